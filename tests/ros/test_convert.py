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
from edge_offload.nodes.camera.calibration import camera_of, fit_calibration, load_calibration
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


@pytest.mark.parametrize("encoding", ["yuv422", "yuv422_yuy2", "uyvy", "yuyv"])
def test_yuv_gives_its_colour_back(encoding):
    y, u, v = 67, 98, 216  # red 200 by ITU-R BT.601, studio range
    pair = [u, y, v, y] if encoding in ("yuv422", "uyvy") else [y, u, y, v]
    pixels = np.tile(np.array(pair, dtype=np.uint8), (6, 4)).reshape(6, 8, 2)
    assert np.abs(image_to_bgr(message(pixels, encoding)).astype(int) - RED).max() <= 3


SCENE = cv2.resize(np.random.default_rng(1).integers(0, 256, (6, 8, 3), dtype=np.uint8), (64, 48))


def samples(encoding: str) -> np.ndarray:
    """The scene as a driver has it in an encoding of image_encodings.h."""
    if encoding.startswith("bayer"):
        mosaic = np.empty(SCENE.shape[:2], dtype=np.uint8)
        for index, colour in enumerate(encoding[6:10]):
            row, column = divmod(index, 2)
            mosaic[row::2, column::2] = SCENE[row::2, column::2, "bgr".index(colour)]
        return mosaic
    if encoding == "yuv422":
        y, u, v = cv2.split(cv2.cvtColor(SCENE, cv2.COLOR_BGR2YUV))
        u[:, 1::2] = v[:, ::2]
        return np.stack([u, y], axis=2)
    conversions = {
        "rgb8": cv2.COLOR_BGR2RGB,
        "rgba8": cv2.COLOR_BGR2RGBA,
        "bgra8": cv2.COLOR_BGR2BGRA,
        "mono8": cv2.COLOR_BGR2GRAY,
    }
    return cv2.cvtColor(SCENE, conversions[encoding]) if encoding in conversions else SCENE


BAYER = ["bayer_rggb8", "bayer_bggr8", "bayer_gbrg8", "bayer_grbg8"]
COLOURS = ["rgb8", "bgr8", "rgba8", "bgra8"]


@pytest.mark.parametrize("encoding", [*COLOURS, "mono8", *BAYER, "yuv422"])
def test_a_raw_image_becomes_the_picture_that_cv_bridge_makes_of_it(encoding):
    cv_bridge = pytest.importorskip("cv_bridge", reason="no cv_bridge here")
    raw, padded = (message(samples(encoding), encoding, padding) for padding in (0, 4))
    # cv_bridge does not read step
    expected = cv_bridge.CvBridge().imgmsg_to_cv2(raw, "bgr8")
    np.testing.assert_array_equal(image_to_bgr(raw), expected)
    np.testing.assert_array_equal(image_to_bgr(padded), expected)


def transported(pixels: np.ndarray, encoding: str, file: str, form: str) -> CompressedImage:
    """What image_transport's publisher makes of samples: colour becomes BGR, everything else is coded as it is."""
    to_bgr = {"rgb8": cv2.COLOR_RGB2BGR, "rgba8": cv2.COLOR_RGBA2BGR, "bgra8": cv2.COLOR_BGRA2BGR}
    coded = cv2.cvtColor(pixels, to_bgr[encoding]) if encoding in to_bgr else pixels
    return CompressedImage(Header(), form, cv2.imencode(file, coded, [cv2.IMWRITE_JPEG_QUALITY, 98])[1].tobytes())


@pytest.mark.parametrize("file", ["jpeg", "png"])
@pytest.mark.parametrize("encoding", [*COLOURS, "mono8", *BAYER])
def test_a_compressed_image_is_the_picture_of_its_raw_topic(encoding, file):
    """Of the formats that image_transport writes: rgb8; jpeg compressed bgr8, bayer_rggb8; png compressed."""
    form = f"{encoding}; {file} compressed {'bgr8' if encoding in COLOURS else ''}"
    picture = image_to_bgr(transported(samples(encoding), encoding, f".{file}", form)).astype(int)
    difference = np.abs(picture - image_to_bgr(message(samples(encoding), encoding)))
    assert difference.max() == 0 if file == "png" else difference.mean() < 4


@pytest.mark.parametrize(
    ("form", "exchanged"),
    [
        ("jpeg", False), ("png", False), ("", False), ("RGB jpeg", False), ("bgr8; jpeg compressed bgr8", False),
        ("BGR8; PNG compressed BGR8", False), ("8UC3; png compressed ", False), ("mono8; png compressed ", False),
        ("yuv422_yuy2; jpeg compressed ", False), ("bayer_rggb8; jpeg compressed bgr8", False), ("rgb8", False),
        ("rgb8; png compressed ", True), ("bgr8; jpeg compressed rgb8", True), ("rgb8; jpeg", True),
    ],
)  # fmt: skip
def test_a_file_of_three_channels_has_the_order_that_image_transport_reads_in_its_format(form, exchanged):
    coded = cv2.imencode(".png", SCENE)[1].tobytes()
    expected = SCENE[..., ::-1] if exchanged else SCENE
    np.testing.assert_array_equal(image_to_bgr(CompressedImage(Header(), form, coded)), expected)


def test_a_file_with_transparency_or_one_channel_is_a_picture_whatever_word_names_it():
    clear = cv2.imencode(".png", samples("bgra8"))[1].tobytes()
    np.testing.assert_array_equal(image_to_bgr(CompressedImage(Header(), "png", clear)), SCENE)
    grey = cv2.imencode(".png", samples("mono8"))[1].tobytes()
    for form in ("jpeg", "", "mono8; png compressed mono8", "8UC1; png compressed ", "bgr8; jpeg compressed bgr8"):
        picture = image_to_bgr(CompressedImage(Header(), form, grey))
        np.testing.assert_array_equal(picture, np.repeat(samples("mono8")[..., None], 3, axis=2))


COUNTS = np.arange(7000, 9000, dtype=np.uint16).reshape(40, 50)


@pytest.mark.parametrize(
    ("form", "pixels", "error"),
    [
        ("mono16; png compressed ", COUNTS, "mono16.*16 bits.*8 bits"),
        ("16UC1; png compressed ", COUNTS, "16uc1.*16 bits.*8 bits"),
        ("bgr16; png compressed bgr16", np.dstack([COUNTS] * 3), "bgr16.*16 bits"),
        ("bayer_rggb16; png compressed ", COUNTS, "bayer_rggb16.*16 bits"),
        ("png", COUNTS, "16 bits.*8 bits"),
        ("mono16; jpeg compressed ", samples("mono8"), "mono16.*16 bits"),
        ("bayer_rggb8; png compressed ", COUNTS, "16 bits"),
        ("bayer_rggb8; jpeg compressed mono8", samples("mono8"), "lost the colour.*transport:=raw"),
        ("yuv422_yuy2; jpeg compressed mono8", samples("mono8"), "lost the colour.*transport:=raw"),
        ("yuv422; jpeg compressed ", samples("mono8"), "lost the colour.*transport:=raw"),
        ("rgb8; jpeg compressed mono8", samples("mono8"), "lost the colour.*transport:=raw"),
        ("bayer_rggb8; jpeg compressed ", SCENE, "3 channels.*encoding"),
        ("nv21; jpeg compressed mono8", samples("mono8"), "nv21.*publish one of"),
        ("32FC1; tiff compressed ", SCENE, "32fc1.*publish one of"),
        ("16UC1; compressedDepth", COUNTS, "depth image.*colour"),
        ("32FC1; compressedDepth png", COUNTS, "depth image.*colour"),
    ],
)  # fmt: skip
def test_a_compressed_image_that_has_not_the_picture_of_its_raw_topic_is_refused_with_the_remedy(form, pixels, error):
    coded = cv2.imencode(".jpg" if "jpeg" in form else ".png", pixels)[1].tobytes()
    with pytest.raises(BadInput, match=error):
        image_to_bgr(CompressedImage(Header(), form, coded))


@pytest.mark.parametrize("encoding", ["mono16", "16UC1", "rgb16", "bayer_grbg16"])
def test_a_raw_image_of_sixteen_bits_is_refused_with_the_remedy(encoding):
    with pytest.raises(BadInput, match=f"{encoding}.*16 bits.*8 bits"):
        image_to_bgr(message(COUNTS, encoding))


GOOD = message(RED, "bgr8")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"encoding": "32FC1"}, "32FC1"),
        ({"encoding": ""}, "not supported"),
        ({"data": GOOD.data[:-1]}, "truncated"),
        ({"data": b""}, "truncated"),
        ({"width": 0}, "empty"),
        ({"height": 0}, "empty"),
        ({"step": 8}, "step .* have the driver state the bytes of a row"),
        ({"width": 2**31, "step": 3 * 2**31}, "pixels"),
        ({"height": 2**31}, "pixels"),
    ],
)
def test_an_image_that_contradicts_itself_is_refused_with_a_message(changes, error):
    broken = message(RED, "bgr8")
    for field, value in changes.items():
        setattr(broken, field, value)
    with pytest.raises(BadInput, match=error):
        image_to_bgr(broken)


@pytest.mark.parametrize(
    ("text", "data"), [("jpeg", b""), ("jpeg", b"no picture"), ("16UC1; compressedDepth", b"123456789")]
)
def test_a_compressed_image_without_a_picture_is_refused(text, data):
    with pytest.raises(BadInput, match="compressed image"):
        image_to_bgr(CompressedImage(Header(), text, data))


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_jpeg_that_was_cut_off_is_no_picture_with_a_grey_end(share):
    """A USB camera whose bandwidth does not do."""
    coded = cv2.imencode(".jpg", np.tile(np.arange(256, dtype=np.uint8), (200, 1)))[1].tobytes()
    assert image_to_bgr(CompressedImage(Header(), "jpeg", coded + bytes(40))).shape == (200, 256, 3)
    with pytest.raises(BadInput, match="cut off"):
        image_to_bgr(CompressedImage(Header(), "jpeg", coded[: int(share * len(coded))]))


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


def test_images_survive_a_round_trip():
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
        picture, named = depth_pixels(depth)
        np.testing.assert_array_equal(picture, np.array(values, dtype=kind))
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


def test_points_are_read_at_any_offset_and_type_and_bad_ones_omitted():
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
    ("made", "error"),
    [
        (cloud(XYZ[:2], 12, bytes(12), 1), "without z"),
        (cloud(XYZ, 12, bytes(11), 1), "truncated"),
        (cloud(XYZ, 8, bytes(8), 1), "beyond"),
        (cloud(XYZ, 12, bytes(24), 2, 2, 12), "truncated"),
        (cloud(XYZ, 12, bytes(24), 2**31), "truncated"),
    ],
)
def test_a_cloud_that_contradicts_itself_is_refused_with_a_message(made, error):
    with pytest.raises(BadInput, match=error):
        cloud_to_points(made)


def test_an_empty_cloud_has_no_points_and_clouds_survive_a_round_trip():
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
    half = camera_of(fit_calibration(info, 320, 240))
    np.testing.assert_allclose(half.matrix, [[250, 0, 160], [0, 255, 120], [0, 0, 1]])
    with pytest.raises(BadInput, match="640x480"):
        fit_calibration(info, 640, 360)


@pytest.mark.parametrize(
    ("old", "new"), [("image_width: 640", "image_width: x"), ("[500, 0, 320, 0, 510", "[0, 0, 320, 0, 510"),
                     ("projection_matrix: {rows: 3, cols: 4, data: [500,", "projection_matrix: {rows: 3, data: [")]
)  # fmt: skip
def test_a_broken_calibration_names_the_file(tmp_path, old, new):
    file = tmp_path / "camera.yaml"
    file.write_text(CALIBRATION.replace(old, new), encoding="utf-8")
    with pytest.raises(BadInput, match=r"camera\.yaml"):
        load_calibration(str(file))
