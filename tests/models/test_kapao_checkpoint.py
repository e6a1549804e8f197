"""Checkpoints: official ones are converted and compute the same; hostile and damaged ones are refused unexecuted."""

from __future__ import annotations

import io
import pathlib
import pickle
import subprocess
import sys
import zipfile
from typing import Callable, Dict, Optional, Tuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from edge_offload.cli import main
from edge_offload.errors import BadInput
from edge_offload.models.kapao import checkpoint
from edge_offload.models.kapao.network import SCALES, Kapao
from edge_offload.models.registry import build_estimator, build_module
from edge_offload_training.pickled import read_state

pytestmark = pytest.mark.process


FOLDER = pathlib.Path(__file__).parent


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Tuple[pathlib.Path, dict]:
    """A checkpoint of the official layout (size n), and the image and maps of the network that wrote it."""
    folder = tmp_path_factory.mktemp("official")
    command = [sys.executable, str(FOLDER / "official_layout.py"), "kapao.pt", "expected.npz", "0.33", "0.25"]
    subprocess.run(command, cwd=folder, check=True, timeout=600)
    return folder / "kapao.pt", dict(np.load(folder / "expected.npz"))


@pytest.fixture(scope="module")
def converted(official: Tuple[pathlib.Path, dict]) -> pathlib.Path:
    """The same, by ``edge-offload convert``."""
    out = official[0].with_suffix(".safetensors")
    assert main(["convert", str(official[0]), str(out)]) == 0
    return out


def test_a_converted_official_checkpoint_computes_the_official_outputs(official, converted):
    expected = official[1]
    assert "models" not in sys.modules, "nothing that the pickle names was imported"
    estimator = build_estimator("kapao_n", checkpoint=str(converted), size=512)
    assert estimator.trained
    with torch.inference_mode():
        maps = estimator.module.network(torch.from_numpy(expected["image"]))
    for k, got in enumerate(maps):
        assert expected[f"map{k}"].std() > 0.01
        np.testing.assert_allclose(got.numpy(), expected[f"map{k}"], rtol=1e-5, atol=1e-5)
    assert estimator.module.readout.anchors[1].tolist() == [[22, 23], [24, 25], [26, 27]]


def test_a_pickle_is_refused_with_the_command_that_converts_it(official, converted):
    with pytest.raises(BadInput, match="is a pickle") as caught:
        build_estimator("kapao_n", checkpoint=str(official[0]))
    assert caught.value.remedy.endswith(f"edge-offload convert {official[0]} {converted}")


def test_state_dicts_convert_too(official, converted, tmp_path):
    state = read_state(official[0])
    converted_state = load_file(str(converted))
    assert set(converted_state) == set(state)
    torch.save({f"module.{name}": tensor for name, tensor in state.items()}, tmp_path / "flat.pt")
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "nested.pt")
    torch.save({"state_dict": state}, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    for name in ("flat", "nested", "legacy"):
        assert main(["convert", str(tmp_path / f"{name}.pt"), str(tmp_path / f"{name}.safetensors")]) == 0
        loaded = network(load_file(str(tmp_path / f"{name}.safetensors")))
        for key, tensor in network(converted_state).state_dict().items():
            assert torch.equal(tensor, loaded.state_dict()[key]), (name, key)


def network(tensors: Dict[str, torch.Tensor]) -> Kapao:
    """KAPAO nano with these weights."""
    made = Kapao(SCALES["n"])
    checkpoint.load_network(made, pathlib.Path("weights.safetensors"), tensors)
    return made


def test_an_exponential_average_is_preferred_over_the_last_step(tmp_path):
    a, b = Kapao(SCALES["n"]).state_dict(), Kapao(SCALES["n"]).state_dict()
    torch.save({"model": a, "ema": b}, tmp_path / "both.pt")
    state = read_state(tmp_path / "both.pt")
    assert torch.equal(state["model.0.conv.conv.weight"], b["model.0.conv.conv.weight"])


def test_the_wrong_size_is_refused_by_name(converted):
    with pytest.raises(BadInput, match=r"not this KAPAO.*check the size"):
        build_module("kapao_s", checkpoint=str(converted))


def test_missing_weights_and_numbers_that_are_not_finite_are_refused(converted, tmp_path):
    state = load_file(str(converted))
    state["model.5.conv.weight"][0, 0, 0, 0] = float("nan")
    save_file(state, tmp_path / "nan.safetensors")
    with pytest.raises(BadInput, match=r"model\.5\.conv\.weight holds NaN"):
        build_module("kapao_n", checkpoint=str(tmp_path / "nan.safetensors"))
    del state["model.5.conv.weight"]
    save_file(state, tmp_path / "short.safetensors")
    with pytest.raises(BadInput, match=r"lacks 1 \(model\.5\.conv\.weight\)"):
        build_module("kapao_n", checkpoint=str(tmp_path / "short.safetensors"))
    with pytest.raises(BadInput, match="no checkpoint"):
        build_module("kapao_n", checkpoint=str(tmp_path / "absent.safetensors"))


class _Runs:
    """Pickles to a call of ``function(*arguments)``."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Tuple[Callable[..., object], Tuple[object, ...]]:
        return self.call


def archive(path: pathlib.Path, data: bytes, members: Optional[dict] = None) -> pathlib.Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as target:
        target.writestr("archive/data.pkl", data)
        target.writestr("archive/version", "3\n")
        for name, content in (members or {}).items():
            target.writestr(f"archive/{name}", content)
    return path


def tensor_pickle(count: int, offset: int, size: tuple, stride: tuple) -> bytes:
    """A pickle of {'model.0': tensor} over storage '0' of ``count`` float32, as a view that the caller makes up."""

    class Storage:
        pass

    class Writer(pickle.Pickler):
        def persistent_id(self, thing: object) -> object:
            return ("storage", torch.FloatStorage, "0", "cpu", count) if isinstance(thing, Storage) else None

    stream = io.BytesIO()
    view = _Runs(torch._utils._rebuild_tensor_v2, Storage(), offset, size, stride, False, {})
    Writer(stream, protocol=2).dump({"model.0": view})
    return stream.getvalue()


@pytest.mark.parametrize("place", ["root", "inside", "state"])
def test_a_hostile_pickle_is_refused_and_not_executed(place, official, tmp_path):
    import os

    proof = tmp_path / "executed"
    attack = _Runs(os.system, f"touch {proof}")
    state = read_state(official[0])
    content: object = {"root": attack, "inside": {"model": attack}, "state": {"model": state, "callback": attack}}
    content = content[place]
    torch.save(content, tmp_path / "evil.pt")
    with pytest.raises(BadInput, match=r"cannot be read.*posix"):
        read_state(tmp_path / "evil.pt")
    assert not proof.exists()
    torch.load(tmp_path / "evil.pt", weights_only=False)
    assert proof.exists(), "the attack would have worked on an ordinary unpickler"


def test_a_class_that_is_not_allowed_is_refused_by_name(tmp_path):
    torch.save({"model": torch.nn.Linear(2, 2)}, tmp_path / "linear.pt")
    with pytest.raises(BadInput, match="Linear"):
        read_state(tmp_path / "linear.pt")
    before = set(torch.serialization.get_safe_globals())
    torch.save({"model": torch.nn.Conv2d(1, 1, 1)}, tmp_path / "conv.pt")
    assert set(read_state(tmp_path / "conv.pt")) == {"weight", "bias"}
    assert set(torch.serialization.get_safe_globals()) == before, "the allow-list is this file's alone"


@pytest.mark.parametrize("target", ["torch._utils _rebuild_tensor_v2", "torch FloatStorage", "collections OrderedDict"])
def test_a_pickle_cannot_alter_its_reader(target, tmp_path):
    module, name = target.split()
    # GLOBAL target; a dict; BUILD: would set attributes on what the reader handed out
    data = f"\x80\x02c{module}\n{name}\n}}X\x0c\x00\x00\x00__defaults__Nsb.".encode("latin-1")
    with pytest.raises(BadInput, match="cannot be read"):
        read_state(archive(tmp_path / "evil.pt", data))


@pytest.mark.parametrize(
    ("offset", "size", "stride"),
    [
        (0, (5,), (1,)),
        (4, (1,), (1,)),
        (0, (2, 2), (3, 1)),
        (0, (1 << 39, 1 << 39), (0, 0)),
        (0, (-1,), (1,)),
        (0, (4,), (-1,)),
    ],
)
def test_tensors_that_reach_outside_their_storage_are_refused(offset, size, stride, tmp_path):
    path = archive(tmp_path / "evil.pt", tensor_pickle(4, offset, size, stride), {"data/0": bytes(16)})
    with pytest.raises(BadInput, match="cannot be read"):
        read_state(path)


def test_a_tensor_of_the_right_shape_is_read(tmp_path):
    values = np.arange(4, dtype=np.float32)
    data = tensor_pickle(4, 1, (3,), (1,))
    state = read_state(archive(tmp_path / "good.pt", data, {"data/0": values.tobytes()}))
    assert state["model.0"].tolist() == [1, 2, 3]


def test_every_truncation_and_every_flipped_byte_gives_an_error_or_the_same_names(official, tmp_path):
    content = official[0].read_bytes()
    names = set(read_state(official[0]))
    rng = np.random.default_rng(0)
    damaged = tmp_path / "damaged.pt"
    outcomes = {"refused": 0, "read": 0}
    for trial in range(24):
        data = bytearray(content)
        if trial % 2:
            data = data[: int(rng.integers(0, len(data)))]
        else:
            # the head holds the pickle, the tail the directory: hit both
            for at in rng.integers(0, 60_000, 8):
                data[int(at) if trial % 4 else -int(at) - 1] ^= int(rng.integers(1, 256))
        damaged.write_bytes(bytes(data))
        try:
            outcomes["read"] += set(read_state(damaged)) == names
        except BadInput:
            outcomes["refused"] += 1
    assert outcomes["refused"] + outcomes["read"] == 24
    assert outcomes["refused"] > 12
