"""Poses: late ones are waited for, the others are told with cause and remedy. tf itself, without a master."""

from __future__ import annotations

import threading
import time
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

rospy = pytest.importorskip("rospy")
tf2_py = pytest.importorskip("tf2_py")
pytestmark = pytest.mark.ros

from edge_offload.nodes.common import poses as module  # noqa: E402
from edge_offload.nodes.common.poses import Interval, PoseLookup, Poses, frame_name, waits_until  # noqa: E402

NOON_NS = 1_700_000_000 * 10**9
LONG_S = 3600.0


def at(seconds: float):
    """A time so many seconds after noon."""
    return rospy.Time(*divmod(NOON_NS + round(seconds * 1e9), 10**9))


def transform(parent: str, child: str, seconds: float, x: float = 0.0):
    from geometry_msgs.msg import TransformStamped

    message = TransformStamped(child_frame_id=child)
    message.header.frame_id, message.header.stamp = parent, at(seconds)
    message.transform.translation.x, message.transform.rotation.w = x, 1.0
    return message


def tf(*transforms) -> Poses:
    """What tf says after these, each (parent, child, seconds) or more."""
    poses = Poses(tf2_py.BufferCore())
    for each in transforms:
        poses.buffer.set_transform(transform(*each), "test")
    return poses


def moving(parent: str = "map", child: str = "cam", first: float = 0.0, last: float = 1.0):
    return [(parent, child, first), (parent, child, last)]


def request_pose(poses: Poses, seconds: float = 0.5, target="map", source="cam", wait_s: float = 0.0, **lookup):
    now = time.monotonic()
    return PoseLookup(poses, "~world_frame", **lookup).look_up(target, source, at(seconds), now, now + wait_s)


def test_a_late_pose_is_waited_for_no_longer_than_needed():
    poses = tf(*moving())
    pose = request_pose(poses, 1.06, wait_s=LONG_S)
    transforms = []
    thread = threading.Thread(target=lambda: transforms.append(pose.settle_transform()), daemon=True)
    thread.start()
    for seconds, x in ((1.05, 1.0), (1.1, 2.0)):
        assert not transforms
        poses.buffer.set_transform(transform("map", "cam", seconds, x), "test")
        poses.notify_waiting()
    thread.join(30.0)
    assert transforms[0].translation[0] == pytest.approx(1.2), "that of the time asked for, between the two"
    assert not pose.cause


@pytest.mark.parametrize(
    ("transforms", "source", "seconds"),
    [
        ([], "cam", 0.5),
        (moving(), "camera", 0.5),
        ([*moving(), *moving("odom", "base")], "base", 0.5),
        (moving(), "cam", -0.5),
        (moving(), "cam", 3.0),
        (moving(), "", 0.5),
    ],
    ids=["no tf", "no such frame", "two trees", "before tf began", "tf has stopped", "no frame_id"],
)
def test_an_absent_pose_is_not_waited_for(transforms, source, seconds):
    pose = request_pose(tf(*transforms), seconds, source=source, wait_s=LONG_S)
    thread = threading.Thread(target=pose.settle_transform, daemon=True)
    thread.start()
    thread.join(30.0)
    assert not thread.is_alive(), "nothing waits for what cannot come"
    assert pose.cause


@pytest.mark.parametrize(
    ("transforms", "target", "source", "seconds", "parts"),
    [
        ([], "map", "cam", 0.5, ["nobody publishes tf"]),
        (moving(), "map", "camera", 0.5, ["no frame 'camera'", "tf has these: cam, map", "publish where 'camera' is"]),
        (moving(), "odom", "cam", 0.5, ["no frame 'odom'", "name one as ~world_frame"]),
        (
            [*moving(), *moving("odom", "base")],
            "map",
            "base",
            0.5,
            ["two trees", "'map' and 'odom'", "publish what joins them"],
        ),
        (moving(), "map", "cam", -2.0, ["3.0 s older than the newest pose", "NTP"]),
        (moving(), "map", "cam", 31.0, ["30.0 s older", "is its publisher running"]),
        (moving(), "map", "", 0.5, ["no frame_id", "header.frame_id"]),
        (moving(), "map", "cam", 1.06, ["late by 60 ms: give ~tf_wait:=0.1"]),
    ],
)
def test_a_missing_pose_is_reported_with_the_remedy(transforms, target, source, seconds, parts):
    pose = request_pose(tf(*transforms), seconds, target, source)
    assert pose.settle_transform(wait=False) is None
    assert all(part in pose.cause for part in parts), pose.cause


def test_carried_results_wait_within_their_limit():
    pose = request_pose(tf(*moving()), 1.06, wait_s=0.02, carried=True)
    pose.settle_transform(wait=False)
    assert "late by 60 ms" in pose.cause
    assert "wait 20 ms at most" in pose.cause
    assert "~carry:=false" in pose.cause


def test_how_late_tf_is_is_measured_and_what_comes_too_late_is_not_waited_for(monkeypatch):
    clock = types.SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=lambda: clock.now))
    poses = tf(*moving())
    lookup = PoseLookup(poses)

    def lose(seconds):
        pose = lookup.look_up("map", "cam", at(seconds), clock.now, clock.now + 0.1)
        first = pose.waits_s
        clock.now += 0.1
        assert pose.settle_transform() is None
        return first, pose.cause

    waited_until, cause = lose(1.3)
    assert waited_until == pytest.approx(100.1), "nothing is known of tf yet"
    clock.now += 0.25
    poses.buffer.set_transform(transform("map", "cam", 1.4), "test")
    poses.notify_waiting()
    clock.now += 2.0
    waited_until, cause = lose(1.8)
    assert waited_until < 0, "tf comes 350 ms late, and results wait 100 ms"
    assert "late by 350 ms: give ~tf_wait:=0.45" in cause
    # it is quick again: waiting is worth while again
    poses.buffer.set_transform(transform("map", "cam", 2.0), "test")
    assert lookup.look_up("map", "cam", at(1.9), clock.now, clock.now + 0.1).settle_transform() is not None
    assert lookup.look_up("map", "cam", at(2.1), clock.now, clock.now + 0.1).waits_s > clock.now


@given(st.sampled_from(["", "/", "//"]), st.sampled_from(["", "/"]), st.sampled_from(["", "/"]))
def test_a_leading_slash_is_dropped_as_tf_did(target, source, published):
    poses = tf(*moving(f"{published}map", f"{published}robot/cam"))
    assert request_pose(poses, target=f"{target}map", source=f"{source}robot/cam").settle_transform() is not None
    assert frame_name(f"{source}robot/cam") == "robot/cam"


def test_a_frame_is_where_it_is_though_tf_does_not_know_it():
    transform = request_pose(tf(), target="/base_link", source="base_link").settle_transform()
    assert transform.map_points(rospy_point()).tolist() == [1.0, 2.0, 3.0]


def rospy_point():
    import numpy as np

    return np.array([1.0, 2.0, 3.0])


def test_stamp_zero_requests_the_newest():
    poses = tf(("map", "cam", 0.0, 1.0), ("map", "cam", 1.0, 5.0))
    now = time.monotonic()
    assert PoseLookup(poses).look_up("map", "cam", rospy.Time(), now, now).settle_transform().translation[0] == 5.0


def test_results_wait_most_of_the_frame_interval_by_default():
    interval = Interval()
    assert interval.update_interval(10.0) == 0.1, "nothing is known yet"
    for number in range(1, 8):
        interval_s = interval.update_interval(10.0 + 0.2 * number + (0.15 if number == 4 else 0.0))
    assert interval_s == pytest.approx(0.2)
    assert waits_until(10.0, 0.2, {}) == pytest.approx(10.15)
    assert waits_until(10.0, 0.2, {"tf_wait": 0.5}) == pytest.approx(10.5)
    assert waits_until(10.0, 0.2, {"tf_wait": 0.5, "carry": True}) == pytest.approx(10.15)
    assert waits_until(10.0, 0.2, {"tf_wait": 0.5, "deadline": 0.1}) == pytest.approx(10.075)
