"""Where training scenes come from: the procedural generator, or files of a folder."""

from __future__ import annotations

import pathlib
import zipfile
import zlib
from typing import Callable, Dict, List, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.models.scenes.labels import IGNORED, LABELS, VALUE
from edge_offload_training.sconet.crops import Source
from edge_offload_training.sconet.samples import make_pair

KITTI_SHAPE = (256, 256, 32)
MAX_FILE_BYTES = 64 << 20
_KITTI_IDS: Dict[str, Tuple[int, ...]] = {
    "empty": (0,),
    "car": (10, 252),
    "bicycle": (11,),
    "motorcycle": (15,),
    "truck": (18, 258),
    "other-vehicle": (13, 16, 20, 256, 257, 259),
    "person": (30, 254),
    # there is no motorcyclist here
    "bicyclist": (31, 32, 253, 255),
    "other-object": (52, 99),
    "road": (40, 60),
    "parking": (44,),
    "sidewalk": (48,),
    "other-ground": (49,),
    "building": (50,),
    "fence": (51,),
    "vegetation": (70,),
    "trunk": (71,),
    "terrain": (72,),
    "pole": (80,),
    "traffic-sign": (81,),
}
"""SemanticKITTI's raw ids by name of the label here; 1 (an outlier) and all others count as unknown."""


def procedural(number: int) -> Tuple[Array, Array]:
    """Occupancy and labels of the procedural scene of this number."""
    made = make_pair(number)
    return made.occupancy, made.labels


def folder_source(folder: pathlib.Path) -> Tuple[Source, int]:
    """The scenes of a folder, and how many there are.

    Raises:
        BadInput: there are none.
    """
    files = sorted(folder.glob("*.npz")) or sorted(file for file in folder.glob("*.bin") if _label(file).exists())
    if not files:
        raise BadInput(
            f"no scenes in {folder}", remedy="it should hold .npz files, or .bin, .label and .invalid of SemanticKITTI"
        )
    read = _from_npz if files[0].suffix == ".npz" else _from_kitti
    return _reader(files, read), len(files)


def _reader(files: List[pathlib.Path], read: Callable[[pathlib.Path], Tuple[Array, Array]]) -> Source:
    def source(number: int) -> Tuple[Array, Array]:
        file = files[number]
        if file.stat().st_size > MAX_FILE_BYTES:
            raise BadInput(f"scene {file} is over {MAX_FILE_BYTES >> 20} MB")
        occupancy, labels = read(file)
        if occupancy.ndim != 3 or occupancy.shape != labels.shape or occupancy.shape[2] != KITTI_SHAPE[2]:
            raise BadInput(
                f"scene {file}: occupancy {occupancy.shape}, labels {labels.shape}, expected [x, y, 32] both"
            )
        if ((labels >= len(LABELS)) & (labels != IGNORED)).any():
            raise BadInput(f"scene {file} has labels above {len(LABELS) - 1}", remedy=f"mark what is unknown {IGNORED}")
        return (occupancy > 0).astype(np.uint8), labels.astype(np.uint8)

    return source


def _from_npz(file: pathlib.Path) -> Tuple[Array, Array]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return arrays["occupancy"], arrays["labels"]
    except (KeyError, ValueError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise BadInput(f"scene {file} cannot be read: {error}", remedy="it needs occupancy and labels") from error


def _label(file: pathlib.Path) -> pathlib.Path:
    return file.with_suffix(".label")


def _from_kitti(file: pathlib.Path) -> Tuple[Array, Array]:
    voxels = int(np.prod(KITTI_SHAPE))
    packed, raw = file.read_bytes(), _label(file).read_bytes()
    if len(packed) != voxels // 8 or len(raw) != 2 * voxels:
        raise BadInput(f"scene {file}: {len(packed)} bytes of voxels, {len(raw)} of labels")
    table = np.full(1 << 16, IGNORED, dtype=np.uint8)
    for name, ids in _KITTI_IDS.items():
        table[list(ids)] = VALUE[name]
    labels = table[np.frombuffer(raw, dtype="<u2")]
    invalid = file.with_suffix(".invalid")
    if invalid.exists():
        mask = invalid.read_bytes()
        if len(mask) != voxels // 8:
            raise BadInput(f"scene {invalid}: {len(mask)} bytes")
        labels[np.unpackbits(np.frombuffer(mask, dtype=np.uint8)) > 0] = IGNORED
    occupancy = np.unpackbits(np.frombuffer(packed, dtype=np.uint8))
    return occupancy.reshape(KITTI_SHAPE), labels.reshape(KITTI_SHAPE)
