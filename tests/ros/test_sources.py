"""Frames and scans from files: what is missing or broken is named, what is there comes in order."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edge_offload.errors import BadInput
from edge_offload.models.video import Video
from edge_offload.nodes.camera.frames import Device, ImageFolder, VideoFile
from edge_offload.perception.scene.scans import read_scan, scan_files


def test_images_are_sorted_by_their_numbers(tmp_path):
    for number in (10, 9, 1):
        cv2.imwrite(str(tmp_path / f"frame{number}.png"), np.full((4, 4, 3), number, dtype=np.uint8))
    source = ImageFolder(str(tmp_path))
    seen = [int(source.read()[0, 0, 0]) for _ in range(3)]
    assert seen == [1, 9, 10]
    assert source.read() is None
    source.rewind()
    assert int(source.read()[0, 0, 0]) == 1


def test_tiff_images_are_included(tmp_path):
    for number, suffix in enumerate((".png", ".tif", ".TIFF"), start=1):
        cv2.imwrite(str(tmp_path / f"{number}{suffix}"), np.full((4, 4, 3), number, dtype=np.uint8))
    source = ImageFolder(str(tmp_path))
    assert [int(source.read()[0, 0, 0]) for _ in range(3)] == [1, 2, 3]


def test_a_video_plays_to_its_end_and_repeats(tmp_path):
    path = str(tmp_path / "clip.avi")
    writer = cv2.VideoWriter(path, cv2.VideoWriter_fourcc(*"MJPG"), 7.0, (32, 32))
    for _ in range(4):
        writer.write(np.zeros((32, 32, 3), dtype=np.uint8))
    writer.release()
    source = VideoFile(path)
    assert source.rate == pytest.approx(7.0)
    for _ in range(2):
        assert [source.read() is None for _ in range(5)] == [False] * 4 + [True]
        source.rewind()


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_truncated_video_reports_its_readable_part(tmp_path, capsys, share):
    """OpenCV ends it as if that were all."""
    path = tmp_path / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 7.0, (64, 64))
    chance = np.random.default_rng(0)
    for _ in range(40):
        writer.write(chance.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    writer.release()
    path.write_bytes(path.read_bytes()[: round(share * path.stat().st_size)])
    source = VideoFile(str(path))
    read = 0
    while source.read() is not None:
        read += 1
    message = f"{path}: {read} of 40 frames can be read; copy it again from its source"
    assert source.lacking == (message if share < 1 else "")
    assert len(list(Video(path).frames())) == read
    assert (message in capsys.readouterr().err) == (share < 1)


@pytest.mark.parametrize("make", [VideoFile, ImageFolder])
def test_a_missing_file_or_folder_is_named(make, tmp_path):
    with pytest.raises(BadInput, match="nowhere"):
        make(str(tmp_path / "nowhere"))


def test_what_is_no_video_and_what_is_no_image_is_named(tmp_path):
    fake = tmp_path / "fake.avi"
    fake.write_bytes(b"this is text")
    with pytest.raises(BadInput, match=r"fake\.avi"):
        VideoFile(str(fake))
    with pytest.raises(BadInput, match="no images"):
        ImageFolder(str(tmp_path))
    (tmp_path / "broken.png").write_bytes(b"no picture")
    with pytest.raises(BadInput, match=r"broken\.png"):
        ImageFolder(str(tmp_path)).read()


def test_images_of_sixteen_bits_are_refused_and_do_not_become_black(tmp_path):
    cv2.imwrite(str(tmp_path / "thermal.png"), np.full((4, 4), 7500, dtype=np.uint16))
    with pytest.raises(BadInput, match=r"thermal\.png.*16 bits.*convert"):
        ImageFolder(str(tmp_path)).read()


def test_a_missing_camera_is_named():
    with pytest.raises(BadInput, match="/dev/video93"):
        Device("93")


POINTS = np.array([[1, 2, 3, 0.5], [4, 5, 6, 0.25], [np.nan, 0, 0, 1]], dtype=np.float32)


@pytest.mark.process
def test_a_kitti_scan_is_read_and_points_that_are_not_finite_omitted(tmp_path):
    file = tmp_path / "0.bin"
    file.write_bytes(POINTS.tobytes())
    np.testing.assert_array_equal(read_scan(file), POINTS[:2])


def pcd(data: str, body: bytes, points: int = 3) -> bytes:
    header = (
        "# .PCD v0.7\nVERSION 0.7\nFIELDS x y z intensity\nSIZE 4 4 4 4\nTYPE F F F F\nCOUNT 1 1 1 1\n"
        f"WIDTH {points}\nHEIGHT 1\nPOINTS {points}\nDATA {data}\n"
    )
    return header.encode() + body


@pytest.mark.process
@pytest.mark.parametrize("coding", ["ascii", "binary"])
def test_a_pcd_scan_is_read(tmp_path, coding):
    text = "\n".join(" ".join(str(value) for value in point) for point in POINTS).encode()
    file = tmp_path / "0.pcd"
    file.write_bytes(pcd(coding, text if coding == "ascii" else POINTS.tobytes()))
    np.testing.assert_array_equal(read_scan(file), POINTS[:2])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.bin", b"12345", "5 bytes"),
        ("a.bin", b"", "0 bytes"),
        ("a.pcd", b"no header at all", "DATA"),
        ("a.pcd", pcd("binary", b"short"), "truncated"),
        ("a.pcd", pcd("ascii", b"1 2 3"), "truncated"),
        ("a.pcd", pcd("ascii", b"1 2 x 4 1 2 3 4 1 2 3 4"), "a.pcd"),
        ("a.pcd", pcd("binary_compressed", b""), "binary_compressed"),
        ("a.pcd", pcd("binary", b"", points=10**12), "limit"),
        ("a.pcd", pcd("binary", b"").replace(b"FIELDS x", b"FIELDS q"), "x, y and z"),
        ("a.pcd", pcd("binary", b"").replace(b"TYPE F", b"TYPE Q"), "header"),
        ("a.pcd", pcd("binary", b"").replace(b"SIZE 4 4 4 4", b"SIZE 3 4 4 4"), "sizes"),
    ],
)
def test_a_broken_scan_is_refused_by_name(tmp_path, name, content, message):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(BadInput, match=message):
        read_scan(file)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([b"", b"DATA ascii\n", b"DATA binary\n"]), st.binary(max_size=200))
@example(b"DATA binary\n", POINTS.tobytes())
def test_no_bytes_whatever_do_worse_than_a_clear_error(tmp_path_factory, coding, tail):
    file = tmp_path_factory.getbasetemp() / "fuzz.pcd"
    file.write_bytes(pcd("binary", b"")[: -len(b"DATA binary\n")] + coding + tail)
    try:
        scan = read_scan(file)
    except BadInput:
        return
    assert scan.dtype == np.float32
    assert scan.shape[0] <= 3, "no more points than its header tells"
    assert scan.shape[1] == 4
    assert np.isfinite(scan[:, :3]).all()


def test_a_folder_without_scans_is_named(tmp_path):
    with pytest.raises(BadInput, match="no scans"):
        scan_files(str(tmp_path))
