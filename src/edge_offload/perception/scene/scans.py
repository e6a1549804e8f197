"""LiDAR scans from files: KITTI's .bin and the point cloud library's .pcd. Knows nothing of ROS."""

from __future__ import annotations

import pathlib
from typing import Dict, List, Tuple

import numpy as np

from edge_offload import places
from edge_offload.arrays import Array
from edge_offload.errors import BadInput

SUFFIXES = (".bin", ".pcd")
MAX_POINTS = 10_000_000
_KINDS = {"F": "f", "U": "u", "I": "i"}


def scan_files(path: str) -> List[pathlib.Path]:
    """The scan at ``path``, or all scans of the folder ``path`` in the order of their names.

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


def read_scan(path: pathlib.Path) -> Array:
    """Points of a scan, float32 [n, 4]: x, y, z in metres and intensity; points that are not finite are left out.

    Raises:
        BadInput: the file cannot be read, or does not hold what its kind says.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read scan {path}: {error.strerror}") from error
    points = _from_pcd(data, path) if path.suffix.lower() == ".pcd" else _from_bin(data, path)
    finite: Array = points[np.isfinite(points[:, :3]).all(axis=1)]
    return finite


def _from_bin(data: bytes, path: pathlib.Path) -> Array:
    if not data or len(data) % 16:
        raise BadInput(f"scan {path} has {len(data)} bytes", remedy="a .bin scan is x y z intensity as float32 each")
    return np.frombuffer(data, dtype="<f4").reshape(-1, 4)


def _from_pcd(data: bytes, path: pathlib.Path) -> Array:
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
    for column, name in enumerate(("x", "y", "z", "intensity")):
        if name in columns:
            points[:, column] = columns[name]
    return points


def _pcd_header(data: bytes, path: pathlib.Path) -> Tuple[Dict[str, List[str]], bytes]:
    header: Dict[str, List[str]] = {}
    rest = data
    for _ in range(64):
        line, end, rest = rest.partition(b"\n")
        words = line.decode("ascii", "replace").split()
        if words and not words[0].startswith("#"):
            header[words[0].upper()] = words[1:]
            if words[0].upper() == "DATA":
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
