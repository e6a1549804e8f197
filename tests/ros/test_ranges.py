"""Clouds and depth images beside images: matched by time, moved by tf, and told where they are missing. No master."""

from __future__ import annotations

import threading
import time
import types

import numpy as np
import pytest

rospy = pytest.importorskip("rospy")
tf2_py = pytest.importorskip("tf2_py")
pytestmark = pytest.mark.ros

from edge_offload.nodes.common.convert import points_to_cloud, transform_message  # noqa: E402
from edge_offload.nodes.common.health import OK, WARN, Health  # noqa: E402
from edge_offload.nodes.common.params import read  # noqa: E402
from edge_offload.nodes.common.poses import Poses  # noqa: E402
from edge_offload.nodes.inference import depth as depths  # noqa: E402
from edge_offload.nodes.inference import ranges  # noqa: E402
from edge_offload.nodes.inference.intake import Frame  # noqa: E402
from edge_offload.perception.geometry import PinholeCamera, Transform  # noqa: E402
from edge_offload.perception.timeline import ZERO, Instant  # noqa: E402

EYE = Transform(np.eye(3), np.zeros(3))
CAMERA = PinholeCamera(128, 96, np.array([[100.0, 0, 64], [0, 100.0, 48], [0, 0, 1]]))
BOX = np.array([[40.0, 30.0, 80.0, 70.0]])


def at(seconds: float):
    return rospy.Time(*divmod(1_700_000_000 * 10**9 + round(seconds * 1e9), 10**9))


def header(seconds: float, frame_id: str):
    from std_msgs.msg import Header

    return Header(stamp=at(seconds), frame_id=frame_id)


def image(seconds: float, fault: str = "", wait_s: float = 0.0) -> Frame:
    message, now = types.SimpleNamespace(header=header(seconds, "cam")), time.monotonic()
    return Frame(message, now, Instant(message.header.stamp.to_nsec(), fault=fault), until_s=now + wait_s)


def board(depth: float) -> np.ndarray:
    """Points in a LiDAR's frame (x ahead) of a board that is so far ahead, [n, 4]."""
    side, up = np.meshgrid(np.linspace(-0.5, 0.5, 21), np.linspace(-0.5, 0.5, 21))
    return np.stack([np.full(side.size, depth), side.ravel(), up.ravel(), np.zeros(side.size)], axis=1)


#: A LiDAR with x ahead beside a camera with z ahead, 0.2 m to its left.
AHEAD = Transform(np.array([[0.0, -1, 0], [0, 0, -1], [1, 0, 0]]), np.array([-0.2, 0.0, 0.0]))


class Rig:
    """The intake of a node without a master: what comes is handed to it."""

    def __init__(self, monkeypatch, **params) -> None:
        monkeypatch.setattr(depths.rospy, "Subscriber", lambda *_, **__: None)
        self.poses, self.health = Poses(tf2_py.BufferCore()), Health()
        self.params = {**read(ranges.POSITIONS, {"cloud": True, **params}), **params}
        node = types.SimpleNamespace(health=self.health, params=self.params, callback=lambda call: call)
        self.intake = ranges.RangeIntake.from_node(node, types.SimpleNamespace(poses=self.poses, world="map"))

    def tf(self, parent: str, child: str, transform: Transform, seconds: float = 0.0, static: bool = False) -> None:
        message = transform_message(transform, at(seconds), parent, child)
        buffer = self.poses.buffer
        (buffer.set_transform_static if static else buffer.set_transform)(message, "test")
        self.poses.notify_waiting()

    def cloud(self, points, seconds: float, frame_id: str = "velodyne") -> None:
        self.intake._clouds._on_message(points_to_cloud(points, header(seconds, frame_id)))

    def locate(self, frame: Frame):
        """The position of what is in the box, and what the node says."""
        locator = self.intake.make_locator(frame, (128, 96), camera=CAMERA, optical="cam")
        (position,) = locator.locate(BOX)
        return position, self.health.make_report()


def test_a_cloud_is_moved_into_the_camera_by_the_place_of_both_on_the_robot(monkeypatch):
    rig = Rig(monkeypatch)
    rig.tf("cam", "velodyne", AHEAD, static=True)
    rig.cloud(board(4.0), 0.95)
    position, report = rig.locate(image(1.0))
    assert position.xyz[2] == pytest.approx(4.0, abs=0.01)
    assert position.source == "lidar"
    assert report.level == OK
    assert "on the robot alone" in report.values["clouds"]


@pytest.mark.parametrize("fixed", ["odom", "map"])
def test_a_robot_that_moves_between_cloud_and_image_is_taken_into_account(monkeypatch, fixed):
    """It drives at 5 m/s towards the board: 0.5 m in the tenth of a second between the two."""
    rig = Rig(monkeypatch)
    rig.tf("base", "cam", AHEAD.inverse(), static=True)
    rig.tf("base", "velodyne", EYE, static=True)
    for seconds in (0.8, 0.9, 1.0):
        rig.tf(fixed, "base", Transform(np.eye(3), np.array([5.0 * seconds, 0.0, 0.0])), seconds)
    rig.cloud(board(4.0), 0.9)
    position, report = rig.locate(image(1.0))
    assert position.xyz[2] == pytest.approx(3.5, abs=0.01)
    assert report.values["clouds"].endswith(f"by {fixed!r}")


def test_with_late_tf_of_the_fixed_frame_the_cloud_is_used_and_that_is_reported(monkeypatch):
    rig = Rig(monkeypatch)
    rig.tf("base", "cam", AHEAD.inverse(), static=True)
    rig.tf("base", "velodyne", EYE, static=True)
    for seconds in (0.8, 0.94):
        rig.tf("odom", "base", EYE, seconds)
    rig.cloud(board(4.0), 0.9)
    position, report = rig.locate(image(1.0))
    assert position.xyz[2] == pytest.approx(4.0, abs=0.01)
    assert report.level == WARN
    assert "1 of the last 1 clouds not moved to the time of their image: by 'odom': late by 60 ms" in report.message
    assert "give ~tf_wait:=" in report.message


def test_a_late_cloud_and_late_tf_are_waited_for(monkeypatch):
    rig = Rig(monkeypatch)
    rig.tf("base", "cam", AHEAD.inverse(), static=True)
    rig.tf("base", "velodyne", EYE, static=True)
    for seconds in (0.5, 0.94):
        rig.tf("odom", "base", Transform(np.eye(3), np.array([seconds, 0.0, 0.0])), seconds)
    rig.cloud(board(9.0), 0.6)
    results = []
    thread = threading.Thread(target=lambda: results.append(rig.locate(image(1.0, wait_s=3600.0))), daemon=True)
    thread.start()
    rig.cloud(board(4.0), 0.9)
    assert not results
    rig.tf("odom", "base", Transform(np.eye(3), np.array([1.0, 0.0, 0.0])), 1.0)
    thread.join(60)
    ((position, report),) = results
    assert position.xyz[2] == pytest.approx(3.9, abs=0.01)
    assert report.level == OK


def test_what_is_carried_is_woken_by_a_cloud_and_does_not_wait(monkeypatch):
    rig = Rig(monkeypatch, carry=True)
    calls = []
    rig.intake.notify_with(lambda: calls.append("came"))
    rig.tf("cam", "velodyne", AHEAD, static=True)
    rig.cloud(board(4.0), 0.6)
    frame = image(1.0, wait_s=3600.0)
    assert rig.intake.waits_s(frame) == frame.until_s
    position, report = rig.locate(frame)
    assert position is None
    assert "1 of the last 1 images without cloud" in report.message
    rig.cloud(board(4.0), 0.95)
    assert (rig.intake.waits_s(frame), calls) == (-np.inf, ["came", "came"])


def test_a_missing_requested_fixed_frame_is_reported(monkeypatch):
    rig = Rig(monkeypatch, fixed_frame="odomm")
    rig.tf("cam", "velodyne", AHEAD, static=True)
    rig.cloud(board(4.0), 1.0)
    position, report = rig.locate(image(1.0))
    assert position.source == "lidar"
    assert report.level == WARN
    assert "no frame 'odomm': tf has these: cam, velodyne; name one as ~fixed_frame" in report.message


@pytest.mark.parametrize(
    ("seconds", "frame_id", "cause"),
    [
        (0.7, "velodyne", "the nearest cloud is 300 ms older; give ~cloud_tolerance:=0.36"),
        (1.5, "velodyne", "the nearest cloud is 500 ms younger; give ~cloud_tolerance:=0.6"),
        (-900.0, "velodyne", "the nearest cloud is 901 s older by its stamp; stamp both by one clock"),
        (5000.0 - 1_700_000_000, "velodyne", "the nearest cloud is 1699995001 s older by its stamp; stamp both by"),
        (1.0, "ouster", "no pose of 'ouster' in 'cam': no frame 'ouster': tf has these: cam, velodyne; publish where"),
        (1.0, "", "no pose of '' in 'cam': it has no frame_id"),
    ],
)
def test_a_useless_cloud_is_reported_with_cause_and_remedy(monkeypatch, seconds, frame_id, cause):
    rig = Rig(monkeypatch)
    rig.tf("cam", "velodyne", AHEAD, static=True)
    rig.cloud(board(4.0), seconds, frame_id)
    position, report = rig.locate(image(1.0))
    assert position is None
    assert report.level == WARN
    assert f"1 of the last 1 images without cloud: {cause}" in report.message or cause in report.message
    rig.cloud(board(4.0), 1.0, "/velodyne")
    position, report = rig.locate(image(1.0))
    assert position is not None, "a leading slash is dropped as tf did"
    assert "1 of the last 2 images without cloud" in report.message


def test_a_silent_lidar_is_reported_with_the_argument_that_names_its_topic(monkeypatch):
    rig = Rig(monkeypatch)
    rig.intake._clouds._topic._started_s -= 60
    assert "no cloud on /lidar/points yet; check the LiDAR, or name its topic (cloud_topic:=)" in (
        rig.health.make_report().message
    )
    rig.cloud(board(4.0), 1.0)
    assert rig.health.make_report().level == OK


def test_the_nearest_cloud_is_chosen_by_stamps_or_else_by_arrival(monkeypatch):
    rig = Rig(monkeypatch)
    rig.tf("cam", "velodyne", AHEAD, static=True)
    for depth, seconds in ((3.0, 0.9), (4.0, 1.0), (5.0, 1.1)):
        rig.cloud(board(depth), seconds)
    assert rig.locate(image(1.02))[0].xyz[2] == pytest.approx(4.0, abs=0.01)
    position, report = rig.locate(image(-500.0, ZERO))
    assert position.xyz[2] == pytest.approx(5.0, abs=0.01), "the newest to arrive"
    assert report.level == OK


def test_a_faulty_cloud_is_reported_and_the_next_one_is_fine(monkeypatch):
    rig = Rig(monkeypatch)
    rig.tf("cam", "velodyne", AHEAD, static=True)
    rig.cloud(board(4.0), 1.0)
    rig.intake._clouds._recent[-1][0].fields.pop(0)
    position, report = rig.locate(image(1.0))
    assert position is None
    assert "point cloud without x" in report.message
    assert report.values["bad clouds"] == "1"
    rig.cloud(board(4.0), 1.01)
    assert rig.locate(image(1.01))[0] is not None


def test_a_lidar_without_positions_is_reported(monkeypatch):
    """Its tf is there and wrong: the cloud lies beside everything that is seen, and the ground would stand in."""
    rig = Rig(monkeypatch)
    rig.tf("cam", "velodyne", Transform(AHEAD.rotation, np.array([9.0, 0.0, 0.0])), static=True)
    rig.cloud(board(4.0), 1.0)
    for _ in range(ranges.LEAST_OBJECTS):
        assert rig.health.make_report().level == OK
        locator = rig.intake.make_locator(image(1.0), (128, 96), camera=CAMERA)
        rig.intake.report_sources(locator, locator.locate(BOX))
    report = rig.health.make_report()
    assert report.level == WARN
    assert "lidar: no position of the last 20 objects; check the tf between LiDAR and camera" in report.message
    assert report.values["positions by none"] == "20"
    rig.tf("cam", "velodyne", AHEAD, static=True)
    locator = rig.intake.make_locator(image(1.0), (128, 96), camera=CAMERA)
    rig.intake.report_sources(locator, locator.locate(BOX))
    assert rig.health.make_report().level == OK


def test_a_depth_image_outranks_the_cloud_and_an_unaligned_one_is_reported(monkeypatch):
    from sensor_msgs.msg import Image

    rig = Rig(monkeypatch, depth=True)
    rig.tf("cam", "velodyne", AHEAD, static=True)
    rig.cloud(board(4.0), 1.0)

    def depth(height, width):
        pixels = np.full((height, width), 2500, "<u2")
        rig.intake._depth._on_message(Image(header(1.0, "cam"), height, width, "16UC1", 0, 2 * width, pixels.tobytes()))

    depth(48, 64)
    position, report = rig.locate(image(1.0))
    assert position.source == "lidar"
    assert "not aligned" in report.message
    rig.intake._depth._recent.clear()
    depth(96, 128)
    position, _ = rig.locate(image(1.0))
    assert position.source == "depth"
    assert position.xyz[2] == pytest.approx(2.5, abs=0.01)


@pytest.mark.parametrize(("frame_id", "level"), [("cam", OK), ("/cam", OK), ("", OK), ("depth_cam", WARN)])
def test_depth_images_of_another_lens_are_reported_though_their_size_fits(monkeypatch, frame_id, level):
    """A stereo camera's own depth has the size of its colour images, and shows what another lens sees."""
    from sensor_msgs.msg import Image

    rig = Rig(monkeypatch, cloud=False, depth=True)
    pixels = np.full((96, 128), 2500, "<u2").tobytes()
    rig.intake._depth._on_message(Image(header(1.0, frame_id), 96, 128, "16UC1", 0, 256, pixels))
    position, report = rig.locate(image(1.0))
    assert position.source == "depth"
    assert report.level == level
    assert ("frame depth_cam, the images in cam; name the topic of aligned depth" in report.message) == (level == WARN)
    rig.intake._depth._on_message(Image(header(1.0, "cam"), 96, 128, "16UC1", 0, 256, pixels))
    assert rig.locate(image(1.0))[1].level == OK, "the driver was mended"


@pytest.mark.parametrize(
    ("unit", "nearest", "level"), [(1.0, 0.3, OK), (1.0, 60.0, OK), (1e3, 0.3, WARN), (1e3, 60.0, WARN)]
)
def test_a_depth_image_in_millimetres_as_floats_is_reported(monkeypatch, unit, nearest, level):
    """REP 118 has metres in 32FC1; what nobody sees through is 0, or not a number."""
    from sensor_msgs.msg import Image

    rig = Rig(monkeypatch, cloud=False, depth=True)
    pixels = np.linspace(nearest, nearest + 5, 96 * 128, dtype="<f4").reshape(96, 128) * np.float32(unit)
    pixels[:40], pixels[40:50] = 0.0, np.nan
    rig.intake._depth._on_message(Image(header(1.0, "cam"), 96, 128, "32FC1", 0, 512, pixels.tobytes()))
    rig.locate(image(1.0))
    report = rig.health.make_report()
    assert report.level == level
    if level:
        assert "depth image 32FC1 shows nothing nearer than" in report.message
        assert "publish metres, or millimetres as 16UC1" in report.message
