"""Calibrations of any region, binning, lens and size: points and pixels belong together as for image_geometry."""

from __future__ import annotations

import functools
import types

import cv2
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

pytest.importorskip("sensor_msgs.msg", reason="no ROS messages here")

from sensor_msgs.msg import CameraInfo, RegionOfInterest

from edge_offload.errors import BadInput
from edge_offload.nodes.camera.calibration import (
    camera_of,
    fit_calibration,
    is_rectified,
    published_size,
    rectify_calibration,
)
from edge_offload.nodes.common.health import OK, WARN, Health
from edge_offload.perception.timeline import ZERO, Instant

pytestmark = pytest.mark.ros

LENSES = {
    "plumb_bob": [[], [-0.2, 0.05, 0.001, -0.001], [-0.2, 0.05, 0.001, -0.001, 0.01]],
    "rational_polynomial": [
        [-0.1, 0.02, 0.001, 0, 0, 0.01, 0, 0],
        [-0.1, 0.02, 0.001, 0, 0.01, 0.01, 0, 0, 1e-3, 0, 1e-3, 0],
        [-0.1, 0.02, 0.001, 0, 0.01, 0.01, 0, 0, 1e-3, 0, 1e-3, 0, 0.01, -0.01],
    ],
    "equidistant": [[0.02, -0.01, 0.002, 0.0]],
}
MODELS = tuple(sorted(LENSES))
PIXELS = np.stack(np.meshgrid(np.linspace(0.05, 0.95, 5), np.linspace(0.05, 0.95, 5)), axis=-1).reshape(-1, 2)


class PinholeCameraModel:
    """What image_geometry documents of its class of this name; with ``resize``, scaled like image_proc/resize does."""

    def __init__(self, info: CameraInfo, resize=(1.0, 1.0)) -> None:
        self.fisheye = info.distortion_model == "equidistant"
        self.D, self.R = np.array(info.D), np.reshape(info.R, (3, 3)) if any(info.R) else np.eye(3)
        self.K, self.P = np.reshape(info.K, (3, 3)).copy(), np.reshape(info.P, (3, 4)).copy()
        for matrix in (self.K, self.P):
            # the region first, which is in pixels of the whole sensor
            matrix[0, 2] -= info.roi.x_offset
            matrix[1, 2] -= info.roi.y_offset
            matrix[0] *= resize[0] / max(1, info.binning_x)
            matrix[1] *= resize[1] / max(1, info.binning_y)

    def rectify_points(self, pixels):
        points, rest = pixels.reshape(-1, 1, 2), (self.K, self.D, self.R, self.P[:, :3])
        if self.fisheye:
            return cv2.fisheye.undistortPoints(points, *rest[:2], R=self.R, P=self.P[:, :3]).reshape(-1, 2)
        undistort = getattr(cv2, "undistortPointsIter", cv2.undistortPoints)
        stop = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 100, 1e-12)
        return undistort(points, rest[0], rest[1], R=rest[2], P=rest[3], criteria=stop).reshape(-1, 2)

    def pixels_to_rays(self, rectified_pixels):
        x = (rectified_pixels[:, 0] - self.P[0, 2]) / self.P[0, 0]
        y = (rectified_pixels[:, 1] - self.P[1, 2]) / self.P[1, 1]
        return np.stack([x, y, np.ones_like(x)], axis=1)

    def project_to_pixels(self, points):
        projected = np.column_stack([points, np.ones(len(points))]) @ self.P.T
        return projected[:, :2] / projected[:, 2:]

    def unrectify(self, points):
        seen, zero = (points @ self.R).reshape(-1, 1, 3), np.zeros(3)
        project = cv2.fisheye.projectPoints if self.fisheye else cv2.projectPoints
        return project(seen, zero, zero, self.K, self.D)[0].reshape(-1, 2)


@st.composite
def infos(draw, models=MODELS, resizes=True):
    """A CameraInfo of one of ``models``, size of its images, and how much larger they are than the driver's."""
    full = np.array([draw(st.integers(400, 2000)), draw(st.integers(400, 1500))])
    binning = np.array([draw(st.integers(0, 4)), draw(st.integers(0, 4))])
    offset, region = np.zeros(2, int), full
    if draw(st.booleans()):
        region = np.array([draw(st.integers(250, side)) for side in full.tolist()])
        offset = np.array([draw(st.integers(0, room)) for room in (full - region).tolist()])
    size = region // np.maximum(binning, 1)
    resize = np.ones(2)
    if resizes and draw(st.booleans()):
        factor = draw(st.floats(2.0, 4.0))
        size = np.round(region / np.maximum(binning, 1) * factor).astype(int)
        resize = size * np.maximum(binning, 1) / region
        assume(abs(resize[0] / resize[1] - 1) < 0.01)
    assume(tuple(size) != tuple(full) or (not offset.any() and binning.max() <= 1))
    focal = draw(st.floats(0.7, 1.5)) * full.max()
    centre = full * draw(st.floats(0.45, 0.55))
    model = draw(st.sampled_from(models))
    turn = cv2.Rodrigues(np.array([draw(st.floats(-0.1, 0.1)) for _ in range(3)]))[0]
    projection = np.array([[0.9 * focal, 0, centre[0] + 3, 0], [0, 0.9 * focal, centre[1] - 2, 0], [0, 0, 1.0, 0]])
    info = CameraInfo(
        width=int(full[0]), height=int(full[1]), binning_x=int(binning[0]), binning_y=int(binning[1]),
        roi=RegionOfInterest(x_offset=int(offset[0]), y_offset=int(offset[1]),
                             width=int(region[0]) if region is not full else draw(st.sampled_from([0, int(full[0])])),
                             height=int(region[1]) if region is not full else draw(st.sampled_from([0, int(full[1])])),
                             do_rectify=draw(st.booleans())),
        distortion_model=model, D=draw(st.sampled_from(LENSES[model])),
        K=[focal, 0, centre[0], 0, 1.01 * focal, centre[1], 0, 0, 1],
        R=draw(st.sampled_from([np.zeros(9), np.eye(3).ravel(), turn.ravel()])).tolist(), P=projection.ravel().tolist(),
    )  # fmt: skip
    return info, tuple(size.tolist()), tuple(resize.tolist())


@settings(deadline=None, max_examples=150)
@given(infos())
def test_pixels_and_points_belong_together_as_for_image_geometry(drawn):
    info, (width, height), resize = drawn
    reference, pixels = PinholeCameraModel(info, resize), PIXELS * [width, height]
    camera = camera_of(fit_calibration(info, width, height))
    rays = reference.pixels_to_rays(reference.rectify_points(pixels))
    points = rays * np.linspace(1, 9, len(rays))[:, None]
    np.testing.assert_allclose(camera.pixel_rays(pixels), rays, atol=1e-5)
    np.testing.assert_allclose(camera.project(points), reference.unrectify(points), atol=1e-6 * max(width, height))
    # image_rect of the same camera
    camera = camera_of(fit_calibration(rectify_calibration(info), width, height))
    np.testing.assert_allclose(camera.pixel_rays(pixels), reference.pixels_to_rays(pixels), atol=1e-9)
    np.testing.assert_allclose(camera.project(points), reference.project_to_pixels(points), rtol=1e-9)
    if resize == (1.0, 1.0):
        assert published_size(info) == (width, height)


@settings(deadline=None, max_examples=50)
@given(infos(models=("plumb_bob", "rational_polynomial"), resizes=False))
def test_image_geometry_gives_equal_results(drawn):
    model = pytest.importorskip("image_geometry", reason="no image_geometry here").PinholeCameraModel()
    info, (width, height), _ = drawn
    model.fromCameraInfo(info)
    camera = camera_of(fit_calibration(rectify_calibration(info), width, height))
    for pixel in (PIXELS * [width, height])[::6].tolist():
        x, y, z = model.projectPixelTo3dRay(pixel)
        np.testing.assert_allclose(camera.pixel_rays(np.array([pixel]))[0], [x / z, y / z, 1.0], atol=1e-9)
    np.testing.assert_allclose(
        fit_calibration(info, width, height).K, np.asarray(model.intrinsicMatrix()).ravel(), rtol=1e-12
    )


K = [500.0, 0, 320, 0, 500, 240, 0, 0, 1]
P = [500.0, 0, 320, 0, 0, 500, 240, 0, 0, 0, 1, 0]
INFO = functools.partial(
    CameraInfo, width=640, height=480, distortion_model="plumb_bob", D=[0.0] * 5, K=K, R=np.eye(3).ravel().tolist(), P=P
)


def region(x0, top, width, height):
    return RegionOfInterest(x_offset=x0, y_offset=top, width=width, height=height)


@pytest.mark.parametrize(
    ("info", "width", "height", "pixel"),
    [
        (INFO(), 640, 480, (360, 270)),
        (INFO(), 320, 240, (180, 135)),
        (INFO(roi=region(0, 0, 640, 480)), 640, 480, (360, 270)),
        (INFO(roi=region(200, 150, 320, 240)), 320, 240, (160, 120)),
        (INFO(roi=region(200, 150, 320, 240)), 160, 120, (80, 60)),
        (INFO(roi=region(200, 150, 0, 0)), 440, 330, (160, 120)),
        (INFO(binning_x=2, binning_y=2), 320, 240, (180, 135)),
        (INFO(binning_x=2), 320, 480, (180, 270)),
        (INFO(binning_x=3, binning_y=3), 213, 160, (120, 90)),
        (INFO(binning_x=3, binning_y=3), 214, 160, (120, 90)),
        (INFO(binning_x=2, binning_y=2, roi=region(160, 120, 320, 240)), 160, 120, (100, 75)),
        # these drivers say what they did, and calibrate what they publish
        (INFO(binning_x=2, binning_y=2), 640, 480, (360, 270)),
        (INFO(roi=region(0, 0, 1280, 960)), 640, 480, (360, 270)),
    ],
)
def test_one_point_of_the_sensor_is_one_direction_however_much_of_it_is_published(info, width, height, pixel):
    ray = camera_of(fit_calibration(info, width, height)).pixel_rays(np.array([pixel], dtype=float))[0]
    np.testing.assert_allclose(ray, [0.08, 0.06, 1.0], atol=1e-9)


@pytest.mark.parametrize(
    ("info", "size", "message"),
    [
        (INFO(), (640, 360), "640x480; the images are 640x360; calibrate"),
        (INFO(roi=region(0, 0, 640, 360)), (320, 240), "roi is 640x360; the images are 320x240"),
        (INFO(roi=region(200, 150, 320, 240)), (440, 330), None),
        (INFO(roi=region(200, 150, 300, 100)), (440, 330), "roi is 300x100"),
        (INFO(binning_x=2), (320, 240), "binned by 2x1; the images are 320x240"),
        (INFO(roi=region(400, 0, 320, 240)), (320, 240), "roi 320x240 at 400,0 is not within 640x480"),
        (INFO(roi=region(4, 0, 640, 480)), (640, 480), "roi 640x480 at 4,0 is not within"),
        (INFO(roi=region(2**32 - 1, 0, 2, 2)), (2, 2), "is not within"),
    ],
)
def test_images_of_a_size_that_does_not_fit_are_reported_with_the_remedy(info, size, message):
    if message is None:
        fit_calibration(info, *size)
        return
    with pytest.raises(BadInput, match=message):
        fit_calibration(info, *size)


@pytest.mark.parametrize(
    ("model", "coefficients", "as_for"),
    [
        ("", [0.1, 0, 0, 0], "plumb_bob"),
        ("none", [0.0] * 5, "plumb_bob"),
        ("Brown Conrady", [0.1, 0, 0, 0, 0], "plumb_bob"),
        ("radtan", [0.1, 0, 0, 0], "plumb_bob"),
        ("plumb_bob", [-0.1, 0.02, 0, 0, 0, 0.01, 0, 0], "rational_polynomial"),
        ("rational_polynomial", [0.1, 0, 0, 0, 0], "plumb_bob"),
        ("equidistant", [0.02, -0.01, 0, 0, 0], "fisheye"),
        ("Kannala Brandt4", [0.02, -0.01, 0, 0, 0], "fisheye"),
    ],
)
def test_lenses_are_identified_by_the_names_of_drivers(model, coefficients, as_for):
    cut = coefficients[:4] if as_for == "fisheye" else coefficients
    pixels = PIXELS * [640, 480]
    rays = [
        camera_of(INFO(distortion_model=name, D=values)).pixel_rays(pixels)
        for name, values in ((model, coefficients), (as_for, cut))
    ]
    np.testing.assert_array_equal(*rays)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"distortion_model": "none", "D": [0.1, 0, 0, 0]}, "unknown distortion model 'none'"),
        ({"distortion_model": "ftheta"}, "unknown distortion model 'ftheta'"),
        ({"distortion_model": "equidistant", "D": []}, "0 coefficients do not fit"),
        ({"distortion_model": "equidistant", "D": [0, 0, 0, 0, 0.1]}, "5 coefficients do not fit"),
        ({"D": [0.1, 0.1, float("nan"), 0, 0]}, "5 coefficients do not fit"),
        ({"R": [2.0, 0, 0, 0, 1, 0, 0, 0, 1]}, "R is no rotation"),
        ({"R": [-1.0, 0, 0, 0, 1, 0, 0, 0, 1]}, "R is no rotation"),
        ({"R": [float("nan")] * 9}, "R is no rotation"),
        ({"K": [0.0] * 9}, "K is no camera matrix"),
    ],
)
def test_a_calibration_that_makes_no_sense_is_refused_with_a_message(changes, message):
    with pytest.raises(BadInput, match=message):
        camera_of(INFO(**changes))


def test_a_rotation_that_a_file_has_rounded_is_one():
    turn = np.round(cv2.Rodrigues(np.array([0.02, -0.01, 0.005]))[0], 4)
    ray = camera_of(INFO(R=turn.ravel().tolist())).pixel_rays(np.array([[320.0, 240.0]]))[0]
    np.testing.assert_allclose(ray, turn[:, 2] / turn[2, 2], atol=1e-4)


def test_rectified_images_take_p_and_have_no_distortion():
    bent = INFO(D=[-0.3, 0.1, 0, 0, 0], P=[400.0, 0, 300, 0, 0, 400, 200, 0, 0, 0, 1, 0])
    ray = camera_of(rectify_calibration(bent)).pixel_rays(np.array([[380.0, 240.0]]))[0]
    np.testing.assert_allclose(ray, [0.2, 0.1, 1.0])
    unknown = INFO(P=[0.0] * 12)
    np.testing.assert_allclose(camera_of(rectify_calibration(unknown)).matrix.ravel(), K)
    with pytest.raises(BadInput, match="P of camera_info is 0"):
        rectify_calibration(INFO(D=[-0.3, 0.1, 0, 0, 0], P=[0.0] * 12))


@pytest.mark.parametrize(
    ("topic", "answer"),
    [
        ("/camera/image_raw", False), ("/camera/color/image_raw/compressed", False), ("/camera/image_rect_color", True),
        ("/left/image_rect/compressed", True), ("/zed/zed_node/rgb/image_rect_color", True), ("/directed/image", False),
        ("/camera/rectified/image", True), ("/camera/unrectified/image", False),
    ],
)  # fmt: skip
def test_topics_of_rectified_images_are_identified_by_name(topic, answer):
    assert is_rectified(topic) is answer


@pytest.fixture
def intake(monkeypatch):
    """A CameraIntake without a graph, for images on a topic."""
    rospy = pytest.importorskip("rospy")
    from edge_offload.nodes.inference import intake

    monkeypatch.setattr(intake.rospy, "Subscriber", lambda *_, **__: None)
    monkeypatch.setattr(intake.rospy, "resolve_name", lambda name: name)
    poses = types.SimpleNamespace(list_frames=lambda: [], add_listener=lambda call: None)
    monkeypatch.setattr(intake, "Poses", lambda: poses)
    monkeypatch.setattr(intake, "others_of", lambda *_: "")
    health = Health()
    node = types.SimpleNamespace(callback=lambda call: call, health=health, params={})

    def make(images="/camera/image_raw"):
        made = intake.CameraIntake(node, "/camera/camera_info", images, "none")

        def see(info, second):
            info.header.stamp = rospy.Time(second)
            made._on_info(info)

        def ray(second, pixel, width=640, height=480, placeable=True):
            message = types.SimpleNamespace(header=types.SimpleNamespace(stamp=rospy.Time(second), frame_id="c"))
            frame = intake.Frame(message, 0.0, Instant(10**9, fault="" if placeable else ZERO))
            camera = made.make_locator(frame, width, height, lambda camera, **_: camera)
            return None if camera is None else camera.pixel_rays(np.array([pixel], dtype=float))[0].tolist()

        return made, see, ray, health

    return make


def test_the_region_that_is_read_may_move_while_frames_are_computed(intake):
    made, see, ray, _ = intake()
    for second, x0 in ((1, 0), (2, 0), (3, 100), (4, 100), (5, 300)):
        see(INFO(roi=region(x0, 0, 320, 240)), second)
    assert len(made._infos) == 3, "each once"
    for second, x0 in ((1, 0), (2.5, 0), (3, 100), (4.9, 100), (5, 300), (9, 300), (0.5, 300)):
        assert ray(second, (0, 0), 320, 240)[0] == pytest.approx((x0 - 320) / 500), second
    assert ray(1, (0, 0), 320, 240, placeable=False)[0] == pytest.approx((300 - 320) / 500), "the newest"


def test_images_that_do_not_fit_their_calibration_are_reported_on_diagnostics_until_they_do(intake):
    made, see, ray, health = intake()
    see(INFO(binning_x=2, binning_y=2), 1)
    assert made.wait_for_size(0.0) == (320, 240)
    assert ray(1, (0, 0), 640, 360) is None
    report = health.make_report()
    assert report.level == WARN
    assert "640x360" in report.message
    assert "640x360" in report.values["positions"]
    assert ray(1, (180, 135), 320, 240) == pytest.approx([0.08, 0.06, 1.0])
    assert health.make_report().level == OK
    see(INFO(roi=region(600, 0, 320, 240)), 2)
    assert made.wait_for_size(0.0) is None
    assert "not within" in health.make_report().message


def test_a_node_of_rectified_images_uses_p(intake):
    bent = {"D": [-0.3, 0.1, 0, 0, 0], "P": [400.0, 0, 300, 0, 0, 400, 200, 0, 0, 0, 1, 0]}
    for topic, at in (("/camera/image_rect_color", [0.2, 0.1]), ("/camera/image_raw", [0.1201, 0])):
        _, see, ray, _ = intake(topic)
        see(INFO(**bent), 1)
        assert ray(1, (380, 240))[:2] == pytest.approx(at, abs=1e-3)


def test_a_bag_of_rectified_images_is_stepped_with_their_calibration(tmp_path, monkeypatch):
    """On their new topic nothing says of the images that they are rectified."""
    rosbag = pytest.importorskip("rosbag")
    import genpy
    from sensor_msgs.msg import Image

    from edge_offload.nodes.monitor import regress_node

    with rosbag.Bag(str(tmp_path / "walk.bag"), "w") as bag:
        bag.write("/left/image_rect", Image(), genpy.Time(1))
    published = []
    monkeypatch.setattr(
        regress_node.rospy, "Publisher", lambda *_, **__: types.SimpleNamespace(publish=published.append)
    )
    monkeypatch.setattr(regress_node.rospy, "Subscriber", lambda *_, **__: None)
    monkeypatch.setattr(regress_node.threading, "Thread", lambda **_: types.SimpleNamespace(start=lambda: None))
    params = {"bag": str(tmp_path / "walk.bag"), "out": "out.json", "results": "people", "topic": "", "network": ""}
    node = regress_node.RegressNode(params, Health())
    node.start()
    node._companions["/left/camera_info"](
        INFO(D=[-0.3, 0.1, 0, 0, 0], P=[400.0, 0, 300, 0, 0, 400, 200, 0, 0, 0, 1, 0])
    )
    (info,) = published
    assert (info.K[0], info.K[2], list(info.D)) == (400.0, 300.0, [])
