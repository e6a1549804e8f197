"""Scans in files of several data sets: their fields are known by the file's name or told, and never guessed."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from edge_offload.errors import BadInput
from edge_offload.perception.scene.scans import read_scan, scan_files


def sweep(count: int, fields: int, seed: int = 0) -> np.ndarray:
    """Points on a circle of 8 m: x, y, z, intensity, ring and whatever follows; float32 [count, fields]."""
    draw = np.random.default_rng(seed)
    angle = draw.uniform(0, 2 * np.pi, count)
    columns = [8 * np.cos(angle), 8 * np.sin(angle), draw.uniform(-1.8, 1, count), draw.integers(0, 255, count)]
    columns += [draw.integers(0, 32, count)] + [draw.uniform(-(seed % 2), 1, count) for _ in range(fields)]
    return np.stack(columns[:fields], axis=1).astype("<f4")


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(128, 400), st.integers(3, 12), st.sampled_from([".bin", ".pcd.bin"]), st.integers(0, 99))
@example(400, 5, ".bin", 0)
@example(400, 4, ".pcd.bin", 0)
@example(400, 8, ".bin", 0)
@example(400, 8, ".bin", 1)
@example(399, 12, ".bin", 0)
def test_a_scan_of_any_number_of_fields_is_right_or_refused(
    tmp_path: pathlib.Path, count: int, fields: int, suffix: str, seed: int
) -> None:
    points = sweep(count, fields, seed)
    file = tmp_path / f"0{suffix}"
    points.tofile(file)
    if (fields, suffix) in ((4, ".bin"), (5, ".pcd.bin")):
        assert_array_equal(read_scan(file), points[:, :4])
    else:
        with pytest.raises(BadInput, match="scan_fields:=x,y,z,intensity,ring"):
            read_scan(file)
    names = ["x", "y", "z", "intensity", "ring", *"abcdefg"][:fields]
    points_read = read_scan(file, ",".join(names))
    assert_array_equal(points_read[:, : min(fields, 4)], points[:, : min(fields, 4)])


def test_fields_may_arrive_in_any_order(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "0.bin"
    points = sweep(50, 5)
    points[:, [3, 2, 4, 0, 1]].tofile(file)
    assert_array_equal(read_scan(file, "intensity z ring x y"), points[:, :4])
    for wrong in ("x,y", "x,y,z,x", "kitti"):
        with pytest.raises(BadInput, match="x,y,z,intensity,ring"):
            read_scan(file, wrong)


def test_intensities_from_0_to_1_and_zero_are_those_of_kitti(tmp_path: pathlib.Path) -> None:
    points = sweep(500, 4)
    for scale in (1 / 255, 0.0, 257.0):
        points[:, 3] *= scale
        points.tofile(tmp_path / "0.bin")
        assert_array_equal(read_scan(tmp_path / "0.bin"), points)


def test_another_kind_of_file_is_refused_and_a_pcd_is_identified_by_its_header(tmp_path: pathlib.Path) -> None:
    other = tmp_path / "cloud.ply"
    other.write_bytes(sweep(16, 4).tobytes())
    with pytest.raises(BadInput, match=r"cloud\.ply is no scan of a known kind"):
        read_scan(scan_files(str(other))[0])
    header = "# .PCD v0.7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 1\nPOINTS 4\nDATA binary\n"
    points = sweep(4, 3)
    (tmp_path / "a.bin").write_bytes(header.encode() + points.tobytes())
    assert_array_equal(read_scan(tmp_path / "a.bin")[:, :3], points)


@pytest.mark.parametrize("suffix", [".bin", ".pcd"])
def test_beams_without_an_echo_are_no_points(tmp_path: pathlib.Path, suffix: str) -> None:
    points = sweep(60, 4)
    points[::6, :3] = 0
    points[1::6, :3] = np.nan
    points[2::6, 0] = np.inf
    points[3::6, :3] = [0.0, 0.0, 0.036]
    header = "# .PCD v0.7\nFIELDS x y z intensity\nSIZE 4 4 4 4\nTYPE F F F F\nCOUNT 1 1 1 1\nPOINTS 60\nDATA binary\n"
    file = tmp_path / f"0{suffix}"
    file.write_bytes((header.encode() if suffix == ".pcd" else b"") + points.tobytes())
    assert_array_equal(read_scan(file), points[np.arange(60) % 6 > 3])
