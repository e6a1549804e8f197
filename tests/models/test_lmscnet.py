"""LMSCNet's published weights on a real sweep: the one check here against a network and a sensor that are not ours."""

import pathlib
import pickle
import zipfile

import numpy as np
import pytest
import torch

from edge_offload.errors import BadInput
from edge_offload.models.scenes.labels import GROUND, VALUE
from edge_offload.models.voxels import FORWARD
from edge_offload.perception.scene.scans import read_scan
from tests.models.lmscnet import LMSCNet, load

DATA = pathlib.Path(__file__).resolve().parents[3] / "shared" / "data" / "snapshots"


@pytest.fixture
def snapshots():
    if not (DATA / "LMSCNet.pth").exists() or not (DATA / "kitti_000000.bin").exists():
        pytest.skip("no real sweep and no published weights next to this checkout")
    return DATA


def test_a_real_sweep_is_completed_to_a_street(snapshots):
    network = load(snapshots / "LMSCNet.pth")
    # the near half of the grid: the far one costs as much and shows no more
    occupancy = FORWARD.occupancy(read_scan(snapshots / "kitti_000000.bin"))[:128, 64:192]
    with torch.inference_mode():
        labels = network(torch.from_numpy(np.ascontiguousarray(occupancy)))[0].numpy()
    hit = occupancy > 0
    assert (labels > 0).sum() > 4 * hit.sum(), "completed"
    assert (labels[hit] > 0).mean() > 0.8, "what was hit is found full"
    kinds = np.bincount(labels.ravel(), minlength=20)
    for name in ("road", "car", "building", "vegetation"):
        assert kinds[VALUE[name]] > 500, name
    heights = np.argwhere(np.isin(labels, GROUND))[:, 2]
    assert np.percentile(heights, 90) <= 4, "ground lies low: the axes of grid and network agree"
    ahead = labels[20:100, 58:70]
    assert np.isin(ahead, VALUE["road"]).any(axis=2).mean() > 0.8, "the car stands on a road that goes on"


@pytest.mark.parametrize("kind", ["text", "other network", "hostile"])
def test_what_is_no_checkpoint_of_it_is_refused_and_not_executed(tmp_path, kind):
    file = tmp_path / "file.pth"
    if kind == "text":
        file.write_bytes(b"not a checkpoint")
    elif kind == "other network":
        torch.save({"model": {"weight": torch.zeros(2)}}, file)
    else:

        class Evil:
            def __reduce__(self):
                return pathlib.Path.touch, (tmp_path / "executed",)

        torch.save({"model": {}}, file)
        with zipfile.ZipFile(file) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(file, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, pickle.dumps(Evil()) if name.endswith("data.pkl") else content)
    with pytest.raises(BadInput, match="LMSCNet"):
        load(file)
    assert not (tmp_path / "executed").exists()


def test_labels_have_the_shape_of_the_occupancy():
    network = LMSCNet().eval()
    with torch.inference_mode():
        (labels,) = network(torch.ones((16, 24, 32), dtype=torch.uint8))
    assert labels.shape == (16, 24, 32)
    assert labels.dtype == torch.uint8
