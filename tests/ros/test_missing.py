"""What is missing is told: positions, depth, a target's place, silent topics. Parts of nodes, without a master."""

from __future__ import annotations

import threading
import time
import types

import pytest

pytest.importorskip("rospy")
pytestmark = pytest.mark.ros

from edge_offload.nodes.common.health import OK, WARN, Health  # noqa: E402
from tests.ros.test_poses import LONG_S, at, moving, tf, transform  # noqa: E402


class Quiet:
    """A node of which nothing but its health and parameters is needed."""

    def __init__(self, **params) -> None:
        self.health, self.params = Health(), params

    def callback(self, function):
        return function


def camera(monkeypatch, poses, world="auto", info=True, calibrated=True, places=True, **params):
    """The intake of a camera, whose CameraInfo has come; and its health."""
    from sensor_msgs.msg import CameraInfo

    from edge_offload.nodes.inference import intake

    monkeypatch.setattr(intake, "Poses", lambda: poses)
    monkeypatch.setattr(intake.rospy, "Subscriber", lambda *_, **__: None)
    monkeypatch.setattr(intake, "others_of", lambda *_: " (there are some on /front/camera_info)")
    node = Quiet(**params)
    made = intake.CameraIntake(node, "info", "image_raw", world)
    made.places = places
    if info:
        k = [100.0, 0, 64, 0, 100, 48, 0, 0, 1] if calibrated else [0.0] * 9
        made._on_info(CameraInfo(width=128, height=96, distortion_model="plumb_bob", D=[0.0] * 5, K=k))
    return made, node.health


def locate(intake, seconds: float = 0.5, wait_s: float = 0.0, frame_id: str = "cam"):
    from std_msgs.msg import Header

    from edge_offload.nodes.inference.intake import Frame
    from edge_offload.perception.locator import Locator
    from edge_offload.perception.timeline import Instant

    now = time.monotonic()
    header = Header(stamp=at(seconds), frame_id=frame_id)
    frame = Frame(types.SimpleNamespace(header=header), now, Instant(header.stamp.to_nsec()), until_s=now + wait_s)
    return intake.make_locator(frame, 128, 96, Locator)


@pytest.mark.parametrize(
    ("transforms", "frame_id", "world", "options", "message"),
    [
        # nobody asked where anybody is
        ([], "cam", "auto", {}, ""),
        ([], "cam", "auto", {"calibrated": False}, ""),
        ([], "cam", "auto", {"info": False}, ""),
        ([], "cam", "auto", {"depth": True}, ""),
        (moving(), "webcam", "auto", {"calibrated": False}, ""),
        (moving("base", "cam"), "cam", "none", {}, ""),
        # all is there
        (moving(), "cam", "auto", {}, ""),
        (moving(), "/cam", "/map", {}, ""),
        (moving("odom", "cam"), "cam", "odom", {}, ""),
        # boxes are what the node is for, or a sensor gives positions, and nobody named a map
        (moving("base", "cam"), "cam", "auto", {"cloud": True}, ""),
        (moving("base", "cam"), "cam", "auto", {"places": False}, ""),
        (moving("base", "cam"), "cam", "auto", {"places": False, "cloud": True}, ""),
        # a half of it is there, or it was asked for by name or by depth
        (moving(), "webcam", "auto", {}, "no frame 'webcam'"),
        (moving(), "webcam", "auto", {"places": False}, "no frame 'webcam'"),
        (moving("base", "cam"), "cam", "map", {"places": False}, "no frame 'map'"),
        (moving("base", "cam"), "cam", "auto", {"places": False, "cloud": True, "info": False}, "no CameraInfo"),
        (moving("base", "cam"), "cam", "auto", {}, "no frame 'map'"),
        (moving(), "cam", "auto", {"calibrated": False}, "not calibrated"),
        (moving(), "cam", "auto", {"info": False}, "no CameraInfo on /info; name its topic (info_topic:=) (there are"),
        ([], "cam", "map", {}, "nobody publishes tf"),
        ([], "cam", "map", {"info": False}, "no CameraInfo on /info"),
        ([], "cam", "auto", {"depth": True, "info": False}, "no CameraInfo on /info"),
        ([], "cam", "none", {"depth": True, "calibrated": False}, "not calibrated"),
        ([], "cam", "none", {"cloud": True, "info": False}, "no CameraInfo on /info"),
    ],
)
def test_a_missing_requested_position_is_reported(monkeypatch, transforms, frame_id, world, options, message):
    intake, health = camera(monkeypatch, tf(*transforms), world, **options)
    for _ in range(4):
        locate(intake, frame_id=frame_id)
    report = health.make_report()
    assert report.level == (WARN if message else OK), report
    assert message in report.message
    if message:
        assert report.message.startswith("4 of the last 4 results without a position")


def test_the_share_of_losses_is_reported_until_it_is_over(monkeypatch):
    intake, health = camera(monkeypatch, tf(*moving()))
    clock = types.SimpleNamespace(now=0.0)
    intake._losses._clock = lambda: clock.now
    for number in range(5):
        clock.now += 0.2
        assert (locate(intake, 0.9 + 0.05 * number).pose is not None) == (number < 3)
    assert "2 of the last 5 results without a position in 'map': late by" in health.make_report().message
    for _ in range(60):
        clock.now += 0.2
        locate(intake, 0.5)
    assert health.make_report().level == OK


def test_results_that_are_carried_never_wait_in_the_thread_that_carries(monkeypatch):
    intake, _ = camera(monkeypatch, tf(*moving()), carry=True)
    thread = threading.Thread(target=locate, args=(intake, 1.05, LONG_S), daemon=True)
    thread.start()
    thread.join(30.0)
    assert not thread.is_alive()


def test_the_slash_of_a_received_frame_id_is_dropped():
    from sensor_msgs.msg import Image

    from edge_offload.nodes.inference.intake import Arrivals

    message = Image()
    message.header.frame_id, message.header.stamp = "/front/cam", at(0.0)
    frame = Arrivals(Health(), "images", {"tf_wait": 2.0}).make_frame(message, 50.0)
    assert frame.message.header.frame_id == "front/cam"
    assert frame.until_s == 52.0


def depth_frame(seconds: float, received_s: float = 0.0, until_s: float = 0.0):
    from std_msgs.msg import Header

    from edge_offload.nodes.inference.intake import Frame
    from edge_offload.perception.timeline import Instant

    header = Header(stamp=at(seconds))
    message = types.SimpleNamespace(header=header)
    return Frame(message, received_s, Instant(header.stamp.to_nsec()), until_s=until_s)


def depth_image(seconds: float, side: int = 4):
    from sensor_msgs.msg import Image
    from std_msgs.msg import Header

    return Image(Header(stamp=at(seconds)), side, side, "16UC1", 0, 2 * side, b"\x01\x00" * side * side)


@pytest.fixture
def depth(monkeypatch):
    from edge_offload.nodes.common import topic_types
    from edge_offload.nodes.inference import depth as depths

    monkeypatch.setattr(depths.rospy, "Subscriber", lambda *_, **__: None)
    monkeypatch.setattr(topic_types, "others_of", lambda *_: " (there are some on /aligned)")
    node = Quiet()
    return depths.DepthIntake(node, "depth", 0.02), node.health


def test_a_depth_image_that_comes_late_is_waited_for(depth):
    intake, health = depth
    intake._on_message(depth_image(0.9))
    frame, depths = depth_frame(1.0, until_s=time.monotonic() + LONG_S), []
    thread = threading.Thread(target=lambda: depths.append(intake.depth_at(frame, (4, 4))), daemon=True)
    thread.start()
    assert intake.waits_s(frame) == frame.until_s
    assert not depths
    intake._on_message(depth_image(1.01))
    thread.join(30.0)
    assert depths[0][0].shape == (4, 4)
    assert health.make_report().level == OK


@pytest.mark.parametrize(
    ("stamps", "side", "message"),
    [
        ([], 4, "none has come"),
        ([0.9], 4, "100 ms older; have the driver synchronise them, or give ~depth_tolerance:=0.12"),
        ([0.9, 1.05], 4, "50 ms younger"),
        ([3600.0], 4, "stamp both by one clock"),
        ([1.0], 8, "8x8 is not aligned with the image 4x4"),
    ],
)
def test_depth_that_does_not_match_is_reported_with_the_share_and_the_remedy(depth, stamps, side, message):
    intake, health = depth
    for seconds in stamps:
        intake._on_message(depth_image(seconds, side))
    for _ in range(2):
        assert intake.depth_at(depth_frame(1.0), (4, 4))[0] is None
    report = health.make_report()
    assert report.level == WARN
    assert "2 of the last 2 images without depth image" in report.message
    assert message in report.message


def test_a_depth_topic_that_is_silent_is_reported_with_others_of_its_type(depth):
    intake, health = depth
    intake._topic._started_s -= 10.0
    message = health.make_report().message
    assert "no depth image on /depth yet" in message
    assert "depth_topic:=" in message
    assert "/aligned" in message
    intake._on_message(depth_image(1.0))
    assert health.make_report().level == OK


@pytest.fixture
def follower(monkeypatch):
    from edge_offload.nodes.people import follower_node

    poses = tf(*moving("map", "base_link"))
    silent = types.SimpleNamespace(start=lambda: None, close=lambda: None)
    monkeypatch.setattr(follower_node, "Poses", lambda: poses)
    monkeypatch.setattr(follower_node, "Ticker", lambda *_: silent)
    monkeypatch.setattr(follower_node.rospy, "Publisher", lambda *_, **__: silent)
    monkeypatch.setattr(follower_node.rospy, "Subscriber", lambda *_, **__: silent)
    monkeypatch.setattr(follower_node.FollowerNode, "_age_s", lambda *_: 0.0)
    params = {param.name: param.default for param in follower_node.FollowerNode.declared}
    node = follower_node.FollowerNode({**params, "tf_wait": LONG_S}, Health())
    node.start()
    return node, poses


def target(seconds: float, frame: str = "map", located: bool = True):
    from edge_offload_msgs.msg import Person, PersonArray

    source = Person.GROUND if located else Person.UNKNOWN
    person = Person(id=1, observed=True, target=True, position_source=source, position_frame=frame)
    person.position.x = 4.0
    message = PersonArray(people=[person])
    message.header.stamp = at(seconds)
    return message


def test_the_follower_drives_by_a_pose_that_comes_late_and_by_frames_with_a_slash(follower):
    node, poses = follower
    thread = threading.Thread(target=node._on_people, args=(target(1.06, "/map"),), daemon=True)
    thread.start()
    thread.join(0.05)
    assert node._follower.compute_command().linear == 0.0
    poses.buffer.set_transform(transform("map", "base_link", 1.1, 0.0), "test")
    poses.notify_waiting()
    thread.join(30.0)
    assert node._follower.compute_command().linear > 0.0
    assert node.health.make_report().level == OK


def test_the_follower_reports_why_it_stands(follower):
    node, _ = follower
    node._on_people(target(0.5, "odom"))
    assert node._follower.compute_command().linear == 0.0
    assert "no frame 'odom': tf has these: base_link, map" in node.health.make_report().message
    node._on_people(target(0.5, located=False))
    assert "2 of the last 2" in node.health.make_report().message
    assert "says why" in node.health.make_report().message
    for _ in range(2):
        node._on_people(target(0.5))
    assert "2 of the last 4" in node.health.make_report().message


def test_the_follower_reports_missing_people_messages(follower, monkeypatch):
    from edge_offload.nodes.common import topic_types

    monkeypatch.setattr(topic_types, "others_of", lambda *_: "")
    node, _ = follower
    node._people._started_s -= 10.0
    assert "no people on /kapao/people yet; start kapao_node" in node.health.make_report().message


@pytest.mark.parametrize(
    ("ever", "connected", "remapped", "warns"),
    [(False, 0, False, False), (True, 0, False, True), (False, 1, False, True), (False, 0, True, True)],
)
def test_a_silent_battery_is_reported_if_configured(monkeypatch, ever, connected, remapped, warns):
    from edge_offload.nodes.common import topic_types
    from edge_offload.nodes.common.health import Awaited
    from edge_offload.nodes.manager import offload_manager_node as manager

    monkeypatch.setattr(topic_types, "others_of", lambda *_: "")
    node = manager.OffloadManagerNode({}, Health())
    clock = types.SimpleNamespace(now=0.0)
    node._battery_news = Awaited("battery state on /battery", lambda: "check its driver", 30.0, lambda: clock.now)
    node._batteries = types.SimpleNamespace(get_num_connections=lambda: connected)
    if remapped:
        monkeypatch.setattr(manager.rospy, "resolve_name", lambda name: "/bms/state")
    if ever:
        node._battery_news.note_arrival()
    assert not node._check_battery()
    clock.now = 31.0
    assert ("no battery state on /battery" in node._check_battery()) == warns


def test_a_goal_in_a_frame_with_a_slash_is_placed_and_an_unknown_one_reported(monkeypatch):
    from geometry_msgs.msg import PoseStamped

    from edge_offload.nodes.scene import goal as goals

    monkeypatch.setattr(goals.rospy, "Subscriber", lambda *_, **__: None)
    poses = tf(("map", "lidar", 0.0, 10.0), ("map", "lidar", 1.0, 10.0))
    node = Quiet(goal_x=12.0, goal_y=1.0)
    goal = goals.GoalIntake(node, poses)
    frame = depth_frame(0.5)
    frame.message.header.frame_id = "lidar"
    assert goal.place_goal(frame, wait=True) == (12.0, 1.0)
    for name, place in (("/map", (1.5, 0.0)), ("/lidar", (11.5, 0.0)), ("odom", None)):
        message = PoseStamped()
        message.header.frame_id, message.pose.position.x = name, 11.5
        goal._on_goal(message)
        assert goal.place_goal(frame, wait=True) == (place if place is None else pytest.approx(place))
    report = node.health.make_report()
    assert report.level == WARN
    assert "no frame 'odom': tf has these: lidar, map; publish where 'odom' is" in report.message


def test_a_lidar_that_falls_silent_is_reported(monkeypatch):
    from sensor_msgs.msg import PointCloud2

    from edge_offload.nodes.common import topic_types
    from edge_offload.nodes.lidar import lidar_node

    monkeypatch.setattr(topic_types, "others_of", lambda *_: " (there are some on /velodyne_points)")
    monkeypatch.setattr(lidar_node.rospy, "Publisher", lambda *_, **__: types.SimpleNamespace(publish=lambda _: None))
    monkeypatch.setattr(lidar_node.rospy, "Subscriber", lambda *_, **__: None)
    monkeypatch.setattr(lidar_node, "cloud_to_points", lambda _: [0])
    monkeypatch.setattr(lidar_node, "points_to_cloud", lambda *_: None)
    params = {param.name: param.default for param in lidar_node.LidarNode.declared}
    node = lidar_node.LidarNode({**params, "input": "/points"}, Health())
    node.start()
    node._on_cloud(PointCloud2())
    assert node.health.make_report().level == OK
    node._input._arrived_s -= 10.0
    report = node.health.make_report()
    assert report.level == WARN
    assert "no cloud on /points for 10 s" in report.message
    assert "/velodyne_points" in report.message
