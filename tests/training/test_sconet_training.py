"""Training SCONet: it learns, it goes on after a kill as if nothing had been, and it reads only what it wrote."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from edge_offload.cli import main
from edge_offload.errors import BadInput
from edge_offload.models.scenes.labels import IGNORED, LABELS, VALUE
from edge_offload.models.sconet.completer import load_weights
from edge_offload.models.sconet.network import SCONet
from edge_offload_training.sconet.calibrate import apply_offset, completion_offset
from edge_offload_training.sconet.crops import CropConfig, Crops
from edge_offload_training.sconet.evaluation import evaluate
from edge_offload_training.sconet.loss import loss
from edge_offload_training.sconet.sources import KITTI_SHAPE, folder_source
from edge_offload_training.sconet.trainer import Config, Trainer

CROPS = CropConfig(batch=1, crop=16, window=12, ring=2, reuse=2)


def scene(number: int):
    """Ground everywhere, of which every third row was hit."""
    random = np.random.default_rng(number)
    labels = np.zeros((32, 32, 32), dtype=np.uint8)
    labels[:, :, 1] = VALUE["road"]
    occupancy = np.zeros_like(labels)
    occupancy[random.integers(3) :: 3, :, 1] = 1
    return occupancy, labels


def trainer(folder: pathlib.Path, steps: int = 6, **settings) -> Trainer:
    torch.manual_seed(0)
    return Trainer(SCONet(), scene, Config(steps=steps, save_every=2, warmup=2, crops=CROPS, **settings), folder)


def test_training_goes_on_where_it_stopped_and_gives_the_same_weights_and_curve(tmp_path):
    uninterrupted = trainer(tmp_path / "whole")
    assert uninterrupted.run(lambda row: None)
    first = trainer(tmp_path / "parts")
    assert not first.run(lambda row: None, deadline_s=0.0)
    assert first.step == 2
    second = trainer(tmp_path / "parts")
    assert second.step == 2
    assert second.run(lambda row: None)
    for name, tensor in uninterrupted.network.state_dict().items():
        assert torch.equal(tensor, second.network.state_dict()[name]), name
        assert torch.equal(uninterrupted.average[name], second.average[name]), name

    def curve(folder):
        return [line.rsplit(",", 1)[0] for line in (folder / "log.csv").read_text().splitlines()]

    assert curve(tmp_path / "whole") == curve(tmp_path / "parts")
    assert len(curve(tmp_path / "whole")) == 4


def test_it_learns_to_fill_the_ground(tmp_path):
    made = trainer(tmp_path, steps=24, learning_rate=8e-3)
    rows = []
    made.run(rows.append)
    assert rows[-1]["loss"] < 0.7 * rows[0]["loss"]


@pytest.mark.process
@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_training_that_goes_on(tmp_path):
    program = (
        "import pathlib, sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_sconet_training import trainer\n"
        "import torch; torch.set_num_threads(1)\n"
        "trainer(pathlib.Path(sys.argv[2]), steps=10_000).run(lambda row: None)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(pathlib.Path(__file__).parent), str(tmp_path)])
    try:
        ends = time.monotonic() + 300
        while not (tmp_path / "last.safetensors").exists() and time.monotonic() < ends:
            time.sleep(0.05)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    resumed = trainer(tmp_path, steps=10_000)
    assert resumed.step >= 2
    reference = trainer(tmp_path / "other", steps=10_000)
    while reference.step < resumed.step:
        reference._one()
    for name, tensor in reference.network.state_dict().items():
        assert torch.equal(tensor, resumed.network.state_dict()[name]), name


@pytest.mark.parametrize("content", [b"", b"\x80\x04cos\nsystem\n", b"\xff" * 100])
def test_a_damaged_or_hostile_checkpoint_is_refused(tmp_path, content):
    (tmp_path / "last.safetensors").write_bytes(content)
    with pytest.raises(BadInput, match="last"):
        trainer(tmp_path)


def test_a_checkpoint_of_other_settings_is_refused_and_more_steps_are_not(tmp_path):
    trainer(tmp_path, steps=2).run(lambda row: None)
    with pytest.raises(BadInput, match="settings"):
        trainer(tmp_path, seed=1)
    assert trainer(tmp_path, steps=100).step == 2


def test_the_learning_rate_rises_holds_and_falls():
    config = Config(steps=1000, learning_rate=1.0, warmup=10)
    rates = [config.rate(step) for step in (0, 10, 700, 900, 999)]
    assert rates == pytest.approx([0.1, 1.0, 1.0, 0.4, 0.02])


def test_a_crop_shows_labels_where_the_sweep_is():
    """Whatever flips and turns a crop has gone through, the labels of its window went through the same."""

    def marked(number):
        random = np.random.default_rng(number)
        labels = random.integers(0, 20, (48, 48, 32)).astype(np.uint8)
        return (labels % 2).astype(np.uint8), labels

    crops = Crops(marked, CropConfig(batch=2, crop=32, window=16, ring=3), seed=3)
    for step in range(12):
        batch = crops.batch(step)
        seen = batch.cut_windows(batch.occupancy[:, None])[:, 0]
        labelled = batch.labels != IGNORED
        assert labelled.float().mean() > 0.3
        assert torch.equal(seen[labelled].long(), batch.labels[labelled] % 2)
        assert not labelled[:, :3].any()


def test_crops_of_a_fixed_set_show_every_scene_in_every_turn():
    seen = []

    def source(number):
        seen.append(number)
        return scene(number)

    crops = Crops(source, CropConfig(batch=1, crop=16, window=12, reuse=1), seed=0, count=5)
    for step in range(10):
        crops.batch(step)
    assert set(seen[:5]) == set(range(5))


def test_the_loss_ignores_unlabelled_voxels_and_falls_with_better_answers():
    labels = torch.randint(0, 20, (1, 8, 8, 8))
    labels[:, :4] = IGNORED
    logits = torch.randn(1, 20, 8, 8, 8)
    changed = logits.clone()
    changed[:, :, :4] += 100 * torch.randn(1, 20, 4, 8, 8)
    assert loss(logits, labels)[0] == loss(changed, labels)[0]
    right = torch.nn.functional.one_hot(labels.clamp(max=19), 20).permute(0, 4, 1, 2, 3).float()
    assert loss(logits + 5 * right, labels)[0] < loss(logits, labels)[0] < loss(logits - 5 * right, labels)[0]
    assert loss(logits, torch.full_like(labels, IGNORED))[0] == 0


@pytest.mark.process
def test_custom_scenes_are_read_from_npz_and_from_semantic_kitti(tmp_path):
    occupancy, labels = scene(0)
    np.savez_compressed(tmp_path / "a.npz", occupancy=occupancy, labels=labels)
    source, count = folder_source(tmp_path)
    assert count == 1
    np.testing.assert_array_equal(source(0)[1], labels)

    folder = tmp_path / "voxels"
    folder.mkdir()
    random = np.random.default_rng(0)
    full = (random.random(KITTI_SHAPE) < 0.01).astype(np.uint8)
    raw = random.choice(np.array([0, 1, 10, 40, 80, 254], dtype="<u2"), KITTI_SHAPE)
    invalid = random.random(KITTI_SHAPE) < 0.1
    (folder / "000000.bin").write_bytes(np.packbits(full).tobytes())
    (folder / "000000.label").write_bytes(raw.tobytes())
    (folder / "000000.invalid").write_bytes(np.packbits(invalid).tobytes())
    source, _ = folder_source(folder)
    read_occupancy, read = source(0)
    np.testing.assert_array_equal(read_occupancy, full)
    names = {0: "empty", 10: "car", 40: "road", 80: "pole", 254: "person"}
    for number, name in names.items():
        assert (read[(raw == number) & ~invalid] == VALUE[name]).all()
    assert (read[invalid | (raw == 1)] == IGNORED).all()


@pytest.mark.parametrize("spoil", ["truncate", "label", "pickle", "none"])
def test_unusable_custom_scenes_are_named(tmp_path, spoil):
    occupancy, labels = scene(0)
    if spoil == "label":
        labels[0, 0, 0] = len(LABELS)
    if spoil == "pickle":
        labels = np.array([object()])
    if spoil != "none":
        np.savez(tmp_path / "bad.npz", occupancy=occupancy, labels=labels)
    if spoil == "truncate":
        (tmp_path / "bad.npz").write_bytes((tmp_path / "bad.npz").read_bytes()[:200])
    with pytest.raises(BadInput, match=r"bad\.npz|no scenes"):
        folder_source(tmp_path)[0](0)


def test_evaluation_scores_each_run_on_separate_scenes(monkeypatch):
    seen = []

    class Made:
        def __init__(self, number):
            self.occupancy, self.labels = scene(number)

    def made(number, validation):
        seen.append((number, validation))
        return Made(number)

    monkeypatch.setattr("edge_offload_training.sconet.evaluation.make_pair", made)
    record = evaluate(SCONet().eval(), scenes=2, runs=2)
    assert len(set(seen)) == 4
    assert all(for_validation for _, for_validation in seen)
    nothing = record["methods"]["no completion"]
    assert nothing["mean"]["precision"] == 1.0
    assert nothing["mean"]["completion_iou"] == pytest.approx(1 / 3, abs=0.03)
    assert record["methods"]["column fill"]["mean"]["completion_iou"] == pytest.approx(1.0)
    ious = [row["completion_iou"] for row in record["methods"]["sconet"]["runs"]]
    assert record["margin"]["completion_iou"] == pytest.approx([value - 1.0 for value in ious])


def test_calibration_finds_the_offset_at_which_scenes_overlap_best():
    class Leaning(SCONet):
        """Says road wherever the ground is, and half as surely one layer higher, where nothing is."""

        def logits(self, occupancy):
            _, x, y, z = occupancy.shape
            made = torch.zeros(1, 20, x, y, z)
            made[:, VALUE["road"], :, :, 1] = 2.0
            made[:, VALUE["road"], :, :, 2] = 1.0
            return made

    network = Leaning().eval()
    offset, iou, before = completion_offset(network, [scene(0), scene(1)])
    assert 1.0 <= offset < 2.0
    assert (iou, before) == (1.0, 0.5)
    bias = network.head.classify.bias.clone()
    apply_offset(network, offset)
    changed = (network.head.classify.bias - bias).detach()
    assert changed[0] == pytest.approx(offset)
    assert not changed[1:].any()


def test_weights_are_exported_with_and_without_calibration(tmp_path, capsys):
    trainer(tmp_path / "run", steps=2).run(lambda row: None)
    np.savez_compressed(tmp_path / "a.npz", **dict(zip(("occupancy", "labels"), scene(0))))
    command = ["train", "sconet", "--folder", str(tmp_path / "run"), "--export"]
    assert main([*command, str(tmp_path / "plain.safetensors")]) == 0
    assert main([*command, str(tmp_path / "even.safetensors"), "--calibrate", "1", "--data", str(tmp_path)]) == 0
    assert "completion IoU" in capsys.readouterr().out
    plain, even = SCONet(), SCONet()
    load_weights(plain, tmp_path / "plain.safetensors")
    offset = float(load_weights(even, tmp_path / "even.safetensors")["empty_offset"])
    difference = even.head.classify.bias - plain.head.classify.bias
    assert float(difference.detach()[0]) == pytest.approx(offset, abs=5e-3)
    assert not difference.detach()[1:].any()
