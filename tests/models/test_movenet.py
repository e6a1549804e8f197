"""MoveNet-MultiPose: its read-out against slow loops, its weights' way into the cache, and people on the real video."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import pathlib
import shutil
import stat
import tarfile
import threading
from typing import Dict, List

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from edge_offload.cache import tensors_hash
from edge_offload.errors import BadInput
from edge_offload.ir.build import can_export
from edge_offload.models.movenet import weights
from edge_offload.models.movenet.network import HEADS, INPUT_SCALE, MoveNet
from edge_offload.models.movenet.readout import MoveNetReadout
from edge_offload.models.registry import build_estimator, state_hash
from tests.models import matching


def random_maps(seed: int, height: int, width: int) -> List[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scales = {"center": 2.0, "box_scale": 6.0, "box_offset": 0.5, "keypoint_regress": 3.0, "keypoint_offset": 0.5}
    return [torch.randn((1, c, height, width), generator=generator) * scales.get(name, 2.0) for name, c in HEADS]


def slow_readout(maps: List[torch.Tensor], people: int) -> np.ndarray:
    """One cell at a time, in float64, from the description of the published graph."""
    center, size, shift, heat, regress, offset = (m[0].double().numpy() for m in maps)
    height, width = center.shape[1:]
    sigmoid = np.vectorize(lambda v: 1 / (1 + math.exp(-v)))
    probability = sigmoid(center[0])
    peaks = []
    for y in range(height):
        for x in range(width):
            window = probability[max(0, y - 2) : y + 3, max(0, x - 2) : x + 3]
            if probability[y, x] > window.max() - 1e-6:
                peaks.append((probability[y, x], y, x))
    peaks.sort(key=lambda peak: -peak[0])
    rows = []
    for score, y, x in peaks[:people]:
        h, w = max(size[0, y, x], 0), max(size[1, y, x], 0)
        cy, cx = y + shift[0, y, x], x + shift[1, y, x]
        y0, y1 = np.clip([cy - h / 2, cy + h / 2], 0, height)
        x0, x1 = np.clip([cx - w / 2, cx + w / 2], 0, width)
        points, confident = [], []
        for k in range(17):
            ry, rx = y + regress[2 * k, y, x], x + regress[2 * k + 1, y, x]
            best, at = 0.0, (0, 0)
            for gy in range(height):
                for gx in range(width):
                    if y0 <= gy < y1 and x0 <= gx < x1:
                        distance = (gy - ry) ** 2 + (gx - rx) ** 2
                        value = sigmoid(heat[k, gy, gx]) * math.exp(-distance / (0.300048828125 * min(height, width)))
                        if value > best:
                            best, at = value, (gy, gx)
            points += [
                (at[1] + offset[2 * k + 1, at[0], at[1]]) * 4,
                (at[0] + offset[2 * k, at[0], at[1]]) * 4,
                best,
            ]
            if best > 0.126953125:
                confident.append(best)
        rows.append([x0 * 4, y0 * 4, x1 * 4, y1 * 4, score * np.mean(confident or [0]), *points])
    return np.array(rows)


@pytest.mark.process
@pytest.mark.parametrize(("seed", "height", "width"), [(0, 16, 24), (1, 24, 16)])
def test_readout_is_the_slow_one(seed, height, width):
    maps = random_maps(seed, height, width)
    if seed:  # boxes that end exactly on a cell
        maps[1], maps[2] = maps[1].round() * 2, maps[2].round()
    (rows,) = MoveNetReadout(12)(*maps)
    expected = slow_readout(maps, 12)
    assert len(expected) == 12
    assert (expected[:, 4] > 0).any()
    np.testing.assert_allclose(rows.numpy(), expected, rtol=1e-4, atol=2e-3)


def test_the_output_size_depends_only_on_the_requested_number_of_people():
    for people in (1, 6, 20):
        (rows,) = MoveNetReadout(people)(*random_maps(3, 16, 16))
        assert tuple(rows.shape) == (people, 56)
        assert rows.isfinite().all()
    flat = [torch.zeros_like(m) - 50 for m in random_maps(3, 16, 16)]
    assert (MoveNetReadout(6)(*flat)[0][:, 4] < 1e-6).all()


def test_maps_have_stride_4_of_an_image_scaled_to_minus_one_to_one():
    network = MoveNet().eval()
    seen = []
    network.backbone.stem.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    maps = network(torch.tensor([0, 127, 255], dtype=torch.uint8).view(3, 1, 1).expand(3, 64, 96))
    assert [tuple(m.shape) for m in maps] == [(1, channels, 16, 24) for _, channels in HEADS]
    assert seen[0][0, :, 0, 0].tolist() == pytest.approx([-1, 127 * INPUT_SCALE - 1, 1], abs=1e-4)


@pytest.mark.skipif(not can_export(), reason="this torch decomposes what it exports, and rounds otherwise")
def test_the_entire_module_can_be_exported():
    from edge_offload.models.base import PeopleModule

    module = PeopleModule(MoveNet(), MoveNetReadout(3)).eval()
    image = torch.randint(0, 256, (3, 64, 96), dtype=torch.uint8)
    exported = torch.export.export(module, (image,)).module()
    assert torch.equal(exported(image)[0], module(image)[0])
    assert len(list(torch.fx.symbolic_trace(module.network).graph.nodes)) > 150


# The way of the weights: an npm that is a script of ours hands out a small package of the published layout.


class FakePackage:
    """A package with made-up numbers, an ``npm`` that packs it, and a cache folder of its own."""

    def __init__(self, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = folder / "calls"
        self.archive = folder / "human-models.tgz"
        self.bin = folder / "bin"
        self.bin.mkdir()
        shapes = {name: tuple(tensor.shape) for name, tensor in MoveNet().state_dict().items()}
        rng = np.random.default_rng(0)
        manifest, numbers, self.expected = [], b"", {}
        for ours, theirs, layout in weights._map_names():
            array = rng.standard_normal(shapes[ours]).astype("<f2")
            self.expected[ours] = torch.from_numpy(array.copy())
            axes = {"full": (2, 3, 1, 0), "depthwise": (2, 3, 0, 1), "bias": (0,)}[layout]
            array = np.ascontiguousarray(array.transpose(axes))
            quantization = {"dtype": "float16", "original_dtype": "float32"}
            manifest.append(
                {"name": theirs, "shape": list(array.shape), "dtype": "float32", "quantization": quantization}
            )
            numbers += array.tobytes()
        manifest.insert(3, {"name": "a/constant", "shape": [2], "dtype": "int32"})
        before = sum(2 * int(np.prod(entry["shape"])) for entry in manifest[:3])
        numbers = numbers[:before] + bytes(8) + numbers[before:]
        self.sources = {
            weights.TOPOLOGY: json.dumps({"weightsManifest": [{"weights": manifest}]}).encode(),
            weights.NUMBERS: numbers,
        }
        self.pack(self.sources)
        monkeypatch.setattr(
            weights, "SOURCE_SHA256", {n: hashlib.sha256(data).hexdigest() for n, data in self.sources.items()}
        )
        monkeypatch.setattr(weights, "CONVERTED_SHA256", tensors_hash(self.expected))
        monkeypatch.setenv("EDGE_OFFLOAD_CACHE", str(folder / "cache"))
        monkeypatch.setenv("PATH", f"{self.bin}:{os.environ['PATH']}")
        self.npm(f'cp "{self.archive}" ./human-models-3.0.4.tgz')

    def pack(self, members: Dict[str, bytes]) -> None:
        with tarfile.open(self.archive, "w:gz") as tar:
            for name, data in {"package/README.md": b"x", **members}.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))

    def npm(self, action: str) -> None:
        script = self.bin / "npm"
        script.write_text(f'#!/bin/sh\necho "$@" >> "{self.calls}"\n{action}\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def package(tmp_path, monkeypatch):
    return FakePackage(tmp_path, monkeypatch)


@pytest.mark.process
def test_fetching_converts_every_parameter_once_for_concurrent_callers(package):
    package.npm(f'sleep 0.3; cp "{package.archive}" ./human-models-3.0.4.tgz')
    paths: List[pathlib.Path] = []
    threads = [threading.Thread(target=lambda: paths.append(weights.fetch_weights())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(paths)) == 1
    assert len(paths) == 3
    assert package.calls.read_text().count("pack") == 1
    assert "--ignore-scripts" in package.calls.read_text()
    loaded = load_file(str(paths[0]))
    assert set(loaded) == set(MoveNet().state_dict())
    for name, tensor in package.expected.items():
        assert torch.equal(loaded[name], tensor), name
    assert sorted(p.name for p in paths[0].parent.iterdir()) == [weights.FILE_NAME, "movenet.lock"]


@pytest.mark.process
def test_a_damaged_cache_is_refetched(package):
    path = weights.fetch_weights()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    for broken in (bytes(data), bytes(data[:1000]), b""):
        path.write_bytes(broken)
        assert tensors_hash(weights.load_state()) == weights.CONVERTED_SHA256
    assert package.calls.read_text().count("pack") == 4
    weights.load_state()
    assert package.calls.read_text().count("pack") == 4


@pytest.mark.process
def test_a_package_with_other_numbers_is_refused_and_not_stored(package):
    numbers = bytearray(package.sources[weights.NUMBERS])
    numbers[100] ^= 1
    package.pack({**package.sources, weights.NUMBERS: bytes(numbers)})
    with pytest.raises(BadInput, match="sha256"):
        weights.fetch_weights()
    assert not weights.cached_path().exists()
    package.pack({weights.TOPOLOGY: package.sources[weights.TOPOLOGY]})
    with pytest.raises(BadInput, match=r"has no .*movenet-multipose\.bin"):
        weights.fetch_weights()


@pytest.mark.process
def test_without_npm_or_network_the_error_gives_the_remedy(package, monkeypatch):
    package.npm("echo 'npm error network getaddrinfo ENOTFOUND' >&2; exit 7")
    with pytest.raises(BadInput, match=r"code 7: npm error network.*copy movenet-multipose\.safetensors"):
        weights.fetch_weights()
    monkeypatch.setattr(weights, "FETCH_TIMEOUT_S", 0.2)
    package.npm("exec sleep 20")
    with pytest.raises(BadInput, match="took more than"):
        weights.fetch_weights()
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(BadInput, match="npm is not installed; apt install npm"):
        weights.fetch_weights()


# The real weights.


def test_the_cached_weights_are_the_published_ones(movenet_weights):
    assert tensors_hash(load_file(str(weights.cached_path()))) == weights.CONVERTED_SHA256
    first, second = build_estimator("movenet"), build_estimator("movenet", size=256, people=3)
    assert state_hash(first.module) == state_hash(second.module)


def test_people_are_detected_on_the_real_video(movenet_weights, vtest):
    # measured: 66 of 71 clearly visible people found, nobody who is not there
    labelled = matching.labels()
    pictures = matching.frames(list(labelled))
    estimator = build_estimator("movenet")
    counts = np.sum([matching.count(estimator.infer(pictures[n]), labelled[n]) for n in labelled], axis=0)
    matches, missed, false = counts.tolist()
    assert matches + missed == 71
    assert matches / (matches + missed) >= 0.87
    assert matches / (matches + false) >= 0.95


def test_keypoints_lie_in_the_persons_box_head_above_feet(movenet_weights, vtest):
    picture = matching.frames([180])[180]
    people = build_estimator("movenet").infer(picture)
    assert len(people) >= 5
    for box, keypoints in zip(people.boxes, people.keypoints):
        sure = keypoints[keypoints[:, 2] > 0.3]
        margin = 0.15 * (box[3] - box[1])
        assert (sure[:, 0] > box[0] - margin).all()
        assert (sure[:, 0] < box[2] + margin).all()
        assert keypoints[[0, 5, 6], 1].mean() < keypoints[[11, 12], 1].mean() < keypoints[[15, 16], 1].mean()


def test_an_empty_scene_has_no_people(movenet_weights):
    assert len(build_estimator("movenet", size=256).infer(np.full((120, 160, 3), 90, np.uint8))) == 0


@pytest.mark.parametrize("options", [{"people": 0}, {"people": 101}, {"score": -0.1}, {"score": 2.0}])
def test_options_that_make_no_sense_are_refused(options, movenet_weights):
    with pytest.raises(BadInput, match="movenet"):
        build_estimator("movenet", **options)
