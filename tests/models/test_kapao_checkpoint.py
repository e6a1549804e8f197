"""Checkpoints: official ones load by name and compute the same; hostile and damaged ones are refused unexecuted."""

from __future__ import annotations

import io
import pathlib
import pickle
import subprocess
import sys
import zipfile
from typing import Callable, Optional, Tuple

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from edge_offload.errors import BadInput
from edge_offload.models.kapao import checkpoint
from edge_offload.models.kapao.network import SCALES, Kapao
from edge_offload.models.registry import build_estimator, build_module

HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Tuple[pathlib.Path, dict]:
    """A checkpoint of the official layout (size n), and the image and maps of the network that wrote it."""
    folder = tmp_path_factory.mktemp("official")
    command = [sys.executable, str(HERE / "official_layout.py"), "kapao.pt", "expected.npz", "0.33", "0.25"]
    subprocess.run(command, cwd=folder, check=True, timeout=600)
    return folder / "kapao.pt", dict(np.load(folder / "expected.npz"))


def test_an_official_checkpoint_computes_what_its_own_network_computed(official):
    path, expected = official
    assert "models" not in sys.modules
    estimator = build_estimator("kapao_n", checkpoint=str(path), size=512)
    assert estimator.trained
    with torch.inference_mode():
        maps = estimator.module.network(torch.from_numpy(expected["image"]))
    for k, got in enumerate(maps):
        assert expected[f"map{k}"].std() > 0.01
        np.testing.assert_allclose(got.numpy(), expected[f"map{k}"], rtol=1e-5, atol=1e-5)
    assert estimator.module.readout.anchors[1].tolist() == [[22, 23], [24, 25], [26, 27]]


def test_reading_an_official_checkpoint_imports_and_executes_nothing(official):
    path, _ = official
    script = (
        "import sys, pathlib; from edge_offload.models.kapao import checkpoint; before = set(sys.modules);"
        f"checkpoint.read_state(pathlib.Path({str(path)!r}));"
        "added = sorted(set(sys.modules) - before); print(added)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=600)
    assert "models" not in done.stdout


def test_state_dicts_and_safetensors_load_too(official, tmp_path):
    state = checkpoint.read_state(official[0])
    reference = Kapao(SCALES["n"])
    checkpoint.load(reference, official[0])
    torch.save({f"module.{name}": tensor for name, tensor in state.items()}, tmp_path / "flat.pt")
    torch.save({"state_dict": reference.state_dict(), "epoch": 3}, tmp_path / "nested.pt")
    save_file({f"network.{name}": tensor.contiguous() for name, tensor in state.items()}, tmp_path / "k.safetensors")
    for name in ("flat.pt", "nested.pt", "k.safetensors"):
        loaded = Kapao(SCALES["n"])
        checkpoint.load(loaded, tmp_path / name)
        for key, tensor in loaded.state_dict().items():
            assert torch.equal(tensor, reference.state_dict()[key]), (name, key)


def test_an_exponential_average_is_preferred_over_the_last_step(tmp_path):
    a, b = Kapao(SCALES["n"]).state_dict(), Kapao(SCALES["n"]).state_dict()
    torch.save({"model": a, "ema": b}, tmp_path / "both.pt")
    state = checkpoint.read_state(tmp_path / "both.pt")
    assert torch.equal(state["model.0.conv.conv.weight"], b["model.0.conv.conv.weight"])


def test_the_wrong_size_is_refused_by_name(official):
    with pytest.raises(BadInput, match=r"not this KAPAO.*check the size"):
        build_module("kapao_s", checkpoint=str(official[0]))


def test_missing_weights_and_numbers_that_are_not_finite_are_refused(official, tmp_path):
    state = checkpoint.read_state(official[0])
    state["model.5.conv.weight"][0, 0, 0, 0] = float("nan")
    torch.save(state, tmp_path / "nan.pt")
    with pytest.raises(BadInput, match=r"model\.5\.conv\.weight holds NaN"):
        build_module("kapao_n", checkpoint=str(tmp_path / "nan.pt"))
    del state["model.5.conv.weight"]
    torch.save(state, tmp_path / "short.pt")
    with pytest.raises(BadInput, match=r"lacks 1 \(model\.5\.conv\.weight\)"):
        build_module("kapao_n", checkpoint=str(tmp_path / "short.pt"))
    with pytest.raises(BadInput, match="no checkpoint"):
        build_module("kapao_n", checkpoint=str(tmp_path / "absent.pt"))


class _Runs:
    """Pickles to a call of ``function(*arguments)``."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Tuple[Callable[..., object], Tuple[object, ...]]:
        return self.call


def archive(
    path: pathlib.Path, data: bytes, members: Optional[dict] = None, compress: int = zipfile.ZIP_STORED
) -> pathlib.Path:
    with zipfile.ZipFile(path, "w", compress) as target:
        target.writestr("archive/data.pkl", data)
        for name, content in (members or {}).items():
            target.writestr(f"archive/{name}", content)
    return path


def tensor_pickle(count: int, offset: int, size: tuple, stride: tuple, repeat: int = 1) -> bytes:
    """A pickle of {'model.0': tensor, ...} over storage '0' of ``count`` float32, as views that the caller makes up."""

    class Storage:
        pass

    class Writer(pickle.Pickler):
        def persistent_id(self, thing: object) -> object:
            return ("storage", torch.FloatStorage, "0", "cpu", count) if isinstance(thing, Storage) else None

    storage = Storage()
    rebuilt = torch._utils._rebuild_tensor_v2
    stream = io.BytesIO()
    views = {f"model.{k}": _Runs(rebuilt, storage, offset, size, stride, False, {}) for k in range(repeat)}
    Writer(stream, protocol=2).dump(views)
    return stream.getvalue()


@pytest.mark.parametrize("place", ["root", "inside", "state"])
def test_a_hostile_pickle_is_refused_and_not_executed(place, tmp_path):
    import os

    proof = tmp_path / "executed"
    attack = _Runs(os.system, f"touch {proof}")
    content: object = {"root": attack, "inside": {"model": attack}, "state": {"model": {"a": attack, "b": 1}}}[place]
    data = pickle.dumps(content, protocol=2)
    with pytest.raises(BadInput, match="holds neither"):
        checkpoint.read_state(archive(tmp_path / "evil.pt", data))
    assert not proof.exists()
    pickle.loads(data)
    assert proof.exists(), "the attack would have worked on an ordinary unpickler"


def test_a_real_checkpoint_with_an_attack_inside_loads_without_executing_it(official, tmp_path):
    import os

    proof = tmp_path / "executed"
    state = checkpoint.read_state(official[0])
    torch.save({"model": state, "callback": _Runs(os.system, f"touch {proof}")}, tmp_path / "evil.pt")
    assert set(checkpoint.read_state(tmp_path / "evil.pt")) == set(state)
    assert not proof.exists()


@pytest.mark.parametrize("target", ["torch._utils _rebuild_tensor_v2", "torch FloatStorage", "collections OrderedDict"])
def test_a_pickle_cannot_alter_its_reader(target, tmp_path):
    module, name = target.split()
    # GLOBAL target; a dict; BUILD: sets attributes on what the reader handed out
    data = f"c{module}\n{name}\n(dS'__defaults__'\nNsb.".encode()
    with pytest.raises(BadInput, match="alter its reader"):
        checkpoint.read_state(archive(tmp_path / "evil.pt", data))


@pytest.mark.parametrize(
    ("offset", "size", "stride", "repeat"),
    [
        (0, (5,), (1,), 1),
        (4, (1,), (1,), 1),
        (0, (2, 2), (3, 1), 1),
        (0, (1 << 39,), (0,), 1),
        (0, (1 << 39, 1 << 39), (0, 0), 1),
        (0, (-1,), (1,), 1),
        (0, (4,), (-1,), 1),
        (0, (4,), (1,), 5000),
    ],
)
def test_tensors_that_reach_outside_their_storage_or_repeat_it_are_refused(offset, size, stride, repeat, tmp_path):
    data = tensor_pickle(4, offset, size, stride, repeat)
    path = archive(tmp_path / "evil.pt", data, {"data/0": bytes(16)})
    if repeat > 1:
        # the pickle itself counts as bytes of the file: fewer than the views would need
        path = archive(tmp_path / "evil.pt", tensor_pickle(4096, 0, (4096,), (1,), repeat), {"data/0": bytes(16384)})
    with pytest.raises(BadInput, match="cannot be read"):
        checkpoint.read_state(path)


def test_a_tensor_of_the_right_shape_is_read(tmp_path):
    values = np.arange(4, dtype=np.float32)
    data = tensor_pickle(4, 1, (3,), (1,))
    state = checkpoint.read_state(archive(tmp_path / "good.pt", data, {"data/0": values.tobytes()}))
    assert state["model.0"].tolist() == [1, 2, 3]


def test_compressed_bombs_legacy_files_and_loops_are_refused(official, tmp_path):
    bomb = tensor_pickle(1 << 22, 0, (1 << 22,), (1,))
    with pytest.raises(BadInput, match="compressed"):
        checkpoint.read_state(
            archive(tmp_path / "bomb.pt", bomb, {"data/0": bytes(1 << 24)}, compress=zipfile.ZIP_DEFLATED)
        )
    torch.save({"a": torch.zeros(1)}, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(BadInput, match="zip-kind"):
        checkpoint.read_state(tmp_path / "legacy.pt")
    loop: dict = {}
    loop["model"] = loop
    with pytest.raises(BadInput, match="holds neither"):
        checkpoint.read_state(archive(tmp_path / "loop.pt", pickle.dumps(loop, protocol=2)))


def test_every_truncation_and_every_flipped_byte_gives_an_error_or_the_same_names(official, tmp_path):
    whole = official[0].read_bytes()
    names = set(checkpoint.read_state(official[0]))
    rng = np.random.default_rng(0)
    damaged = tmp_path / "damaged.pt"
    outcomes = {"refused": 0, "read": 0}
    for trial in range(24):
        data = bytearray(whole)
        if trial % 2:
            data = data[: int(rng.integers(0, len(data)))]
        else:
            # the head holds the pickle, the tail the directory: hit both
            for at in rng.integers(0, 60_000, 8):
                data[int(at) if trial % 4 else -int(at) - 1] ^= int(rng.integers(1, 256))
        damaged.write_bytes(bytes(data))
        try:
            outcomes["read"] += set(checkpoint.read_state(damaged)) == names
        except BadInput:
            outcomes["refused"] += 1
    assert outcomes["refused"] + outcomes["read"] == 24
    assert outcomes["refused"] > 12
