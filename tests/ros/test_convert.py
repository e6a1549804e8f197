"""Sensor messages to arrays: every encoding gives the same picture, everything that does not fit is refused."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("sensor_msgs.msg", reason="no ROS messages here")

from sensor_msgs.msg import CompressedImage, Image, PointCloud2, PointField
from std_msgs.msg import Header

from edge_offload.errors import BadInput
from edge_offload.nodes.camera.calibration import camera_of, fitted, load_calibration
from edge_offload.nodes.common.convert import (
    bgr_to_image,
    bgr_to_jpeg,
    cloud_to_points,
    depth_pixels,
    image_to_bgr,
    points_to_cloud,
)

pytestmark = pytest.mark.ros

RED = np.zeros((6, 8, 3), dtype=np.uint8)
RED[..., 2] = 200


def message(pixels: np.ndarray, encoding: str, padding: int = 0) -> Image:
    rows = pixels.reshape(pixels.shape[0], -1).view(np.uint8)
    padded = np.concatenate([rows, np.full((len(rows), padding), 77, dtype=np.uint8)], axis=1)
    return Image(Header(), pixels.shape[0], pixels.shape[1], encoding, 0, padded.shape[1], padded.tobytes())


@pytest.mark.parametrize(
    ("encoding", "pixels"),
    [
        ("bgr8", RED),
        ("BGR8", RED),
        ("8UC3", RED),
        ("rgb8", RED[..., ::-1].copy()),
        ("bgra8", cv2.cvtColor(RED, cv2.COLOR_BGR2BGRA)),
        ("rgba8", cv2.cvtColor(RED, cv2.COLOR_BGR2RGBA)),
    ],
)
@pytest.mark.parametrize("padding", [0, 5])
def test_every_colour_encoding_gives_the_same_picture(encoding, pixels, padding):
    np.testing.assert_array_equal(image_to_bgr(message(pixels, encoding, padding)), RED)


def test_grey_becomes_equal_channels():
    grey = np.arange(48, dtype=np.uint8).reshape(6, 8)
    np.testing.assert_array_equal(image_to_bgr(message(grey, "mono8")), np.repeat(grey[..., None], 3, axis=2))


@pytest.mark.parametrize("pattern", ["rggb", "bggr", "gbrg", "grbg"])
def test_a_bayer_pattern_gives_its_colour_back(pattern):
    """A red surface seen through the filter: only the red pixels are bright."""
    mosaic = np.zeros((16, 16), dtype=np.uint8)
    row, column = divmod(pattern.index("r"), 2)
    mosaic[row::2, column::2] = 200
    middle = image_to_bgr(message(mosaic, f"bayer_{pattern}8"))[4:12, 4:12].reshape(-1, 3).mean(axis=0)
    assert middle[2] > 150
    assert middle[:2].max() < 20


@pytest.mark.parametrize("encoding", ["yuv422", "yuv422_yuy2"])
def test_yuv_gives_its_colour_back(encoding):
    y, u, v = 67, 98, 216  # red 200 by ITU-R BT.601, studio range
    pair = [u, y, v, y] if encoding == "yuv422" else [y, u, y, v]
    pixels = np.tile(np.array(pair, dtype=np.uint8), (6, 4)).reshape(6, 8, 2)
    assert np.abs(image_to_bgr(message(pixels, encoding)).astype(int) - RED).max() <= 3


@pytest.mark.parametrize("text", ["jpeg", "bgr8; jpeg compressed bgr8", "png", "", "rgb8; png compressed "])
def test_the_format_string_of_a_compressed_image_is_not_trusted(text):
    _, coded = cv2.imencode(".png", RED)
    np.testing.assert_array_equal(image_to_bgr(CompressedImage(Header(), text, coded.tobytes())), RED)


GOOD = message(RED, "bgr8")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"encoding": "32FC1"}, "32FC1"),
        ({"encoding": ""}, "not supported"),
        ({"data": GOOD.data[:-1]}, "truncated"),
        ({"data": b""}, "truncated"),
        ({"width": 0}, "empty"),
        ({"height": 0}, "empty"),
        ({"step": 8}, "step"),
        ({"width": 2**31, "step": 3 * 2**31}, "pixels"),
        ({"height": 2**31}, "pixels"),
    ],
)
def test_an_image_that_contradicts_itself_is_refused_in_words(changes, words):
    spoiled = message(RED, "bgr8")
    for field, value in changes.items():
        setattr(spoiled, field, value)
    with pytest.raises(BadInput, match=words):
        image_to_bgr(spoiled)


@pytest.mark.parametrize(
    ("text", "data"), [("jpeg", b""), ("jpeg", b"no picture"), ("16UC1; compressedDepth", b"123456789")]
)
def test_a_compressed_image_without_a_picture_is_refused(text, data):
    with pytest.raises(BadInput, match="compressed image"):
        image_to_bgr(CompressedImage(Header(), text, data))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(0, 64), st.integers(0, 64), st.integers(0, 300), st.binary(max_size=3000),
    st.sampled_from(["bgr8", "rgba8", "mono8", "yuv422", "yuv422_yuy2", "bayer_rggb8", "mono16"]),
)  # fmt: skip
def test_no_header_and_data_whatever_do_worse_than_a_clear_error(width, height, step, data, encoding):
    try:
        bgr = image_to_bgr(Image(Header(), height, width, encoding, 0, step, data))
    except BadInput:
        return
    assert bgr.shape == (height, width, 3)
    assert bgr.dtype == np.uint8


def test_images_survive_the_way_there_and_back():
    rng = np.random.default_rng(0)
    bgr = rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    np.testing.assert_array_equal(image_to_bgr(bgr_to_image(bgr, Header())), bgr)
    assert image_to_bgr(bgr_to_jpeg(RED, Header(), 95)).shape == RED.shape


@pytest.mark.parametrize("big", [0, 1])
def test_depth_keeps_its_values_in_either_byte_order(big):
    order = ">" if big else "<"
    for encoding, kind, values in (("16UC1", "u2", [[0, 1500], [65535, 2]]), ("32FC1", "f4", [[0.5, np.nan], [1, 2]])):
        pixels = np.array(values, dtype=order + kind)
        depth = Image(Header(), 2, 2, encoding, big, pixels.itemsize * 2, pixels.tobytes())
        found, named = depth_pixels(depth)
        np.testing.assert_array_equal(found, np.array(values, dtype=kind))
        assert named == encoding


def test_depth_of_another_encoding_or_too_short_is_refused():
    with pytest.raises(BadInput, match="bgr8"):
        depth_pixels(GOOD)
    with pytest.raises(BadInput, match="truncated"):
        depth_pixels(Image(Header(), 2, 2, "16UC1", 0, 4, b"1234567"))


def cloud(fields, step, data, width, height=1, row_step=None, big=False) -> PointCloud2:
    made = [PointField(name, offset, kind, 1) for name, offset, kind in fields]
    row = width * step if row_step is None else row_step
    return PointCloud2(Header(), height, width, made, big, step, row, data, False)


def test_points_are_found_at_any_offset_and_type_and_bad_ones_left_out():
    layout = np.dtype(
        {"names": ["x", "y", "z"], "formats": ["<f8", "<f4", "<f4"], "offsets": [8, 0, 20], "itemsize": 32}
    )
    data = np.zeros(6, dtype=layout)
    data["x"], data["y"], data["z"] = np.arange(6), 2, 3
    data["y"][4] = np.nan
    fields = [("x", 8, PointField.FLOAT64), ("y", 0, PointField.FLOAT32), ("z", 20, PointField.FLOAT32)]
    # two rows of two points and 8 bytes of padding each
    rows = data[:4].tobytes()
    padded = rows[:64] + bytes(8) + rows[64:]
    points = cloud_to_points(cloud(fields, 32, padded, 2, 2, 72))
    np.testing.assert_array_equal(points, [[n, 2, 3, 0] for n in range(4)])
    assert len(cloud_to_points(cloud(fields, 32, data.tobytes(), 6))) == 5


XYZ = [("x", 0, PointField.FLOAT32), ("y", 4, PointField.FLOAT32), ("z", 8, PointField.FLOAT32)]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (cloud(XYZ[:2], 12, bytes(12), 1), "without z"),
        (cloud(XYZ, 12, bytes(11), 1), "truncated"),
        (cloud(XYZ, 8, bytes(8), 1), "beyond"),
        (cloud(XYZ, 12, bytes(24), 2, 2, 12), "truncated"),
        (cloud(XYZ, 12, bytes(24), 2**31), "truncated"),
    ],
)
def test_a_cloud_that_contradicts_itself_is_refused_in_words(made, words):
    with pytest.raises(BadInput, match=words):
        cloud_to_points(made)


def test_an_empty_cloud_has_no_points_and_clouds_survive_the_way_there_and_back():
    assert cloud_to_points(cloud(XYZ, 12, b"", 0)).shape == (0, 4)
    points = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    np.testing.assert_array_equal(cloud_to_points(points_to_cloud(points, Header())), points)


CALIBRATION = """
image_width: 640
image_height: 480
camera_name: test
camera_matrix: {rows: 3, cols: 3, data: [500, 0, 320, 0, 510, 240, 0, 0, 1]}
distortion_model: plumb_bob
distortion_coefficients: {rows: 1, cols: 5, data: [0.1, 0, 0, 0, 0]}
rectification_matrix: {rows: 3, cols: 3, data: [1, 0, 0, 0, 1, 0, 0, 0, 1]}
projection_matrix: {rows: 3, cols: 4, data: [500, 0, 320, 0, 0, 510, 240, 0, 0, 0, 1, 0]}
"""


def test_a_calibration_becomes_a_camera_info_and_fits_resized_images(tmp_path):
    file = tmp_path / "camera.yaml"
    file.write_text(CALIBRATION, encoding="utf-8")
    info = load_calibration(str(file))
    assert (info.width, info.height, info.K[0], info.P[5]) == (640, 480, 500, 510)
    half = camera_of(fitted(info, 320, 240))
    np.testing.assert_allclose(half.matrix, [[250, 0, 160], [0, 255, 120], [0, 0, 1]])
    with pytest.raises(BadInput, match="640x480"):
        fitted(info, 640, 360)


@pytest.mark.parametrize(
    ("old", "new"), [("image_width: 640", "image_width: x"), ("[500, 0, 320, 0, 510", "[0, 0, 320, 0, 510"),
                     ("projection_matrix: {rows: 3, cols: 4, data: [500,", "projection_matrix: {rows: 3, data: [")]
)  # fmt: skip
def test_a_broken_calibration_names_the_file(tmp_path, old, new):
    file = tmp_path / "camera.yaml"
    file.write_text(CALIBRATION.replace(old, new), encoding="utf-8")
    with pytest.raises(BadInput, match=r"camera\.yaml"):
        load_calibration(str(file))
