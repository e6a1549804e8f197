"""LiDAR scans from files: KITTI's .bin, nuScenes' .pcd.bin and the point cloud library's .pcd. Independent of ROS."""

from __future__ import annotations

import pathlib
from typing import Dict, List, Sequence, Tuple

import numpy as np

from edge_offload import places
from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.perception.scene.returns import only_returns

SUFFIXES = (".bin", ".pcd")
MAX_POINTS = 10_000_000
AUTO = "auto"
"""Fields of a .bin scan by its name: KITTI's or nuScenes'."""
_KITTI = ("x", "y", "z", "intensity")
# nuScenes devkit, LidarPointCloud.from_file: five float32 a point in sweeps that are called .pcd.bin
_NUSCENES = (*_KITTI, "ring")
_FAR_M = 2000.0
_KINDS = {"F": "f", "U": "u", "I": "i"}


def scan_files(path: str) -> List[pathlib.Path]:
    """Return the scan at ``path``, or all scans of the folder ``path`` in the order of their names.

    Raises:
        BadInput: there are none.
    """
    place = places.expand(path)
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise BadInput(f"no scan file or folder {place}", remedy="give a .bin or .pcd file, or a folder of them")
    files = sorted(file for file in place.iterdir() if file.suffix.lower() in SUFFIXES)
    if not files:
        raise BadInput(f"no scans in {place}", remedy=f"it should hold files {', '.join(SUFFIXES)}")
    return files


def field_names(text: str) -> Tuple[str, ...]:
    """Parse the fields of a point in a .bin scan, all float32, from a text like ``x,y,z,intensity,ring``.

    Raises:
        BadInput: x, y or z is missing or named twice, or there are too many.
    """
    names = tuple(text.replace(",", " ").split())
    if any(names.count(axis) != 1 for axis in "xyz") or len(names) > 64:
        raise BadInput(
            f"{text!r} does not name the fields of a scan",
            remedy="name them in their order, each a float32: x,y,z,intensity,ring",
        )
    return names


def read_scan(path: pathlib.Path, fields: str = AUTO) -> Array:
    """Read a scan as float32 [n, 4]: x, y, z in metres and intensity (0 without one).

    Points that are no returns are skipped (see :mod:`edge_offload.perception.scene.returns`).

    Args:
        path: of a .bin file, which has no header, or of a .pcd file.
        fields: of a point in a .bin file (see :func:`field_names`); ``auto``: x y z intensity, as KITTI writes it, and
            also ring in a .pcd.bin file of nuScenes. The values are then checked for plausibility.

    Raises:
        BadInput: the file cannot be read, is malformed, or its fields are not plausible.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read scan {path}: {error.strerror}") from error
    suffix = path.suffix.lower()
    if suffix == ".pcd" or data.startswith(b"# .PCD"):
        return only_returns(_parse_pcd(data, path))
    if suffix != ".bin":
        raise BadInput(f"{path} is no scan of a known kind", remedy=f"give a file {' or '.join(SUFFIXES)}")
    if fields.strip() not in ("", AUTO):
        return only_returns(_columns_of(_read_table(data, field_names(fields), path), field_names(fields)))
    names = _NUSCENES if path.name.lower().endswith(".pcd.bin") else _KITTI
    table = _read_table(data, names, path)
    _check_columns(table, names, path)
    return only_returns(_columns_of(table, names))


def _read_table(data: bytes, names: Sequence[str], path: pathlib.Path) -> Array:
    """Read float32 [n, fields] of a file without a header."""
    size = 4 * len(names)
    if not data or len(data) % size:
        raise BadInput(
            f"scan {path} has {len(data)} bytes, which are no points of {len(names)} float32 ({' '.join(names)})",
            remedy="name its fields: --fields or scan_fields:=x,y,z,intensity,ring",
        )
    if len(data) // size > MAX_POINTS:
        raise BadInput(f"scan {path} holds {len(data) // size} points, the limit is {MAX_POINTS}")
    return np.frombuffer(data, dtype="<f4").reshape(-1, len(names))


def _check_columns(table: Array, names: Sequence[str], path: pathlib.Path) -> None:
    """Reject a file whose fields differ from those of its name: its columns are then a mixture of all fields."""
    with np.errstate(invalid="ignore"):
        doubt = ""
        if (np.abs(table[:, :3][np.isfinite(table[:, :3])]) > _FAR_M).any():
            doubt = f"coordinates beyond {_FAR_M:.0f} m"
        elif (table[:, 3] < 0).any():
            doubt = "intensities below 0"
        elif _is_periodic(table[:, 0] < 0) or _is_periodic(table[:, 1] < 0):
            doubt = "coordinates that are negative in every second, third or fourth point only"
        elif "ring" in names and not _are_rings(table[:, 4]):
            doubt = "rings that are no whole numbers from 0"
        elif names == _KITTI and table.size % 5 == 0 and table.size >= 100:
            last = table.reshape(-1, 5)[:, 4]
            # integers in every fifth place, and only there, are the rings of points of five numbers
            if _are_rings(last) and np.ptp(last) > 0 and not _are_rings(table[:, 3]):
                doubt = "whole numbers in every fifth place"
    if doubt:
        raise BadInput(
            f"scan {path} is not {' '.join(names)} as float32: it would have {doubt}",
            remedy="name its fields: --fields or scan_fields:=x,y,z,intensity,ring",
        )


def _is_periodic(flags: Array) -> bool:
    """Return whether a flag never holds in every k-th place, and often in others: points are then longer."""
    if len(flags) < 64:
        return False
    shares = [flags[phase::count].mean() for count in (2, 3, 4) for phase in range(count)]
    return bool(min(shares) == 0 and max(shares) > 0.2)


def _are_rings(column: Array) -> bool:
    return bool(((column >= 0) & (column < 1024) & (column == np.floor(column))).all())


def _columns_of(table: Array, names: Sequence[str]) -> Array:
    points = np.zeros((len(table), 4), dtype=np.float32)
    for column, name in enumerate(_KITTI):
        if name in names:
            points[:, column] = table[:, names.index(name)]
    return points


def _parse_pcd(data: bytes, path: pathlib.Path) -> Array:
    header, body = _pcd_header(data, path)
    try:
        names = header["FIELDS"]
        sizes = [int(size) for size in header["SIZE"]]
        counts = [int(count) for count in header.get("COUNT", ["1"] * len(names))]
        kinds = [_KINDS[kind] for kind in header["TYPE"]]
        total = int(header["POINTS"][0])
        coding = header["DATA"][0].lower()
    except (KeyError, ValueError, IndexError) as error:
        raise BadInput(f"scan {path}: malformed PCD header ({error})") from error
    if not 0 <= total <= MAX_POINTS:
        raise BadInput(f"scan {path} states {total} points, the limit is {MAX_POINTS}")
    if not len(names) == len(sizes) == len(counts) == len(kinds) or not {"x", "y", "z"} <= set(names):
        raise BadInput(f"scan {path}: the PCD header does not describe points with x, y and z")
    if any(size not in (1, 2, 4, 8) for size in sizes) or any(not 1 <= count <= 1024 for count in counts):
        raise BadInput(f"scan {path}: the PCD header states field sizes {sizes} and counts {counts}")
    if coding == "ascii":
        columns = _ascii_columns(body, names, counts, total, path)
    elif coding == "binary":
        # a name that occurs twice (padding is called _) must not clash
        fields = [
            (f"{index}", f"<{kind}{size}", (count,))
            for index, (kind, size, count) in enumerate(zip(kinds, sizes, counts))
        ]
        try:
            layout = np.dtype(fields)
        except TypeError as error:
            raise BadInput(f"scan {path}: the PCD header describes fields that do not exist ({error})") from error
        if len(body) < total * layout.itemsize:
            raise BadInput(f"scan {path} is truncated: {len(body)} bytes for {total} points of {layout.itemsize}")
        cloud = np.frombuffer(body, dtype=layout, count=total)
        columns = {name: cloud[f"{index}"][:, 0] for index, name in enumerate(names)}
    else:
        raise BadInput(f"scan {path} is {coding} PCD", remedy="convert it to binary or ascii PCD")
    points = np.zeros((total, 4), dtype=np.float32)
    with np.errstate(over="ignore"):
        for column, name in enumerate(_KITTI):
            if name in columns:
                points[:, column] = columns[name]
    return points


def _pcd_header(data: bytes, path: pathlib.Path) -> Tuple[Dict[str, List[str]], bytes]:
    header: Dict[str, List[str]] = {}
    rest = data
    for _ in range(64):
        line, end, rest = rest.partition(b"\n")
        tokens = line.decode("ascii", "replace").split()
        if tokens and not tokens[0].startswith("#"):
            header[tokens[0].upper()] = tokens[1:]
            if tokens[0].upper() == "DATA":
                return header, rest
        if not end:
            break
    raise BadInput(f"scan {path} is no PCD file: its header has no DATA line")


def _ascii_columns(
    body: bytes, names: List[str], counts: List[int], total: int, path: pathlib.Path
) -> Dict[str, Array]:
    try:
        numbers = np.array(body.split(), dtype=np.float64)
    except ValueError as error:
        raise BadInput(f"scan {path}: {error}") from error
    width = sum(counts)
    if len(numbers) < total * width:
        raise BadInput(f"scan {path} is truncated: {len(numbers)} numbers for {total} points of {width}")
    rows = numbers[: total * width].reshape(total, width)
    starts = np.cumsum([0, *counts[:-1]])
    return {name: rows[:, start] for name, start in zip(names, starts)}
