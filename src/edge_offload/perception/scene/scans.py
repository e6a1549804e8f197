"""Reads LiDAR scans: KITTI's .bin, nuScenes' .pcd.bin and the .pcd of the Point Cloud Library. Independent of ROS."""

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
"""Value of ``fields``: those of KITTI or nuScenes, by the name of the .bin file."""
_KITTI = ("x", "y", "z", "intensity")
# nuScenes devkit, LidarPointCloud.from_file: five float32 a point in files called .pcd.bin
_NUSCENES = (*_KITTI, "ring")
_KINDS = {"F": "f", "U": "u", "I": "i"}  # TYPE in a PCD header -> kind of a NumPy dtype


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

    Points without an echo are skipped (see :mod:`edge_offload.perception.scene.returns`).

    Args:
        path: path of a .bin file, which has no header, or of a .pcd file.
        fields: fields of a point in a .bin file (see :func:`field_names`). ``auto``: x y z intensity as in KITTI, and
            also ring in a .pcd.bin file of nuScenes; the values are then checked for plausibility.

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
    """Parse a file without a header as float32 [n, fields]."""
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
    """Raise BadInput if the values show that a point has other fields: columns then mix the values of all fields."""
    with np.errstate(invalid="ignore"):
        problem = ""
        far_m = 2000.0  # no coordinate of a plausible scan is larger
        if (np.abs(table[:, :3][np.isfinite(table[:, :3])]) > far_m).any():
            problem = f"coordinates beyond {far_m:.0f} m"
        elif (table[:, 3] < 0).any():
            problem = "intensities below 0"
        elif _is_periodic(table[:, 0] < 0) or _is_periodic(table[:, 1] < 0):
            problem = "coordinates that are negative in every second, third or fourth point only"
        elif "ring" in names and not _are_rings(table[:, 4]):
            problem = "rings that are no whole numbers from 0"
        elif names == _KITTI and table.size % 5 == 0 and table.size >= 100:
            last = table.reshape(-1, 5)[:, 4]
            # whole numbers in every fifth place, and only there, are rings: a point has five numbers
            if _are_rings(last) and np.ptp(last) > 0 and not _are_rings(table[:, 3]):
                problem = "whole numbers in every fifth place"
    if problem:
        raise BadInput(
            f"scan {path} is not {' '.join(names)} as float32: it would have {problem}",
            remedy="name its fields: --fields or scan_fields:=x,y,z,intensity,ring",
        )


def _is_periodic(flags: Array) -> bool:
    """Return True if flags are never set in one of k phases (k = 2, 3, 4), and often in another: points are longer."""
    if len(flags) < 64:
        return False
    shares = [flags[phase::count].mean() for count in (2, 3, 4) for phase in range(count)]
    return bool(min(shares) == 0 and max(shares) > 0.2)


def _are_rings(column: Array) -> bool:
    """Return True if all values are whole numbers from 0 to 1023, as numbers of a LiDAR's rings are."""
    return bool(((column >= 0) & (column < 1024) & (column == np.floor(column))).all())


def _columns_of(table: Array, names: Sequence[str]) -> Array:
    """Select x, y, z and intensity as float32 [n, 4]; 0 for a missing field."""
    points = np.zeros((len(table), 4), dtype=np.float32)
    for column, name in enumerate(_KITTI):
        if name in names:
            points[:, column] = table[:, names.index(name)]
    return points


def _parse_pcd(data: bytes, path: pathlib.Path) -> Array:
    """Parse an ascii or binary PCD file to x, y, z and intensity, float32 [n, 4]."""
    header, body = _pcd_header(data, path)
    try:
        names = header["FIELDS"]
        sizes = [int(size) for size in header["SIZE"]]
        counts = [int(count) for count in header.get("COUNT", ["1"] * len(names))]
        kinds = [_KINDS[kind] for kind in header["TYPE"]]
        total = int(header["POINTS"][0])
        encoding = header["DATA"][0].lower()
    except (KeyError, ValueError, IndexError) as error:
        raise BadInput(f"scan {path}: malformed PCD header ({error})") from error
    if not 0 <= total <= MAX_POINTS:
        raise BadInput(f"scan {path} states {total} points, the limit is {MAX_POINTS}")
    if not len(names) == len(sizes) == len(counts) == len(kinds) or not {"x", "y", "z"} <= set(names):
        raise BadInput(f"scan {path}: the PCD header does not describe points with x, y and z")
    if any(size not in (1, 2, 4, 8) for size in sizes) or any(not 1 <= count <= 1024 for count in counts):
        raise BadInput(f"scan {path}: the PCD header states field sizes {sizes} and counts {counts}")
    if encoding == "ascii":
        columns = _ascii_columns(body, names, counts, total, path)
    elif encoding == "binary":
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
        raise BadInput(f"scan {path} is {encoding} PCD", remedy="convert it to binary or ascii PCD")
    points = np.zeros((total, 4), dtype=np.float32)
    with np.errstate(over="ignore"):
        for column, name in enumerate(_KITTI):
            if name in columns:
                points[:, column] = columns[name]
    return points


def _pcd_header(data: bytes, path: pathlib.Path) -> Tuple[Dict[str, List[str]], bytes]:
    """Split a PCD file into its header (values by keyword) and the bytes after it."""
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
    """Return the first column of each field; ``counts``: numbers per field, ``total``: points."""
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
