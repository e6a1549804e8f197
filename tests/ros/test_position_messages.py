"""Positions as messages: source, frame and covariance of each; markers; velocities. No master."""

from __future__ import annotations

import types

import numpy as np
import pytest

pytest.importorskip("rospy")
pytestmark = pytest.mark.ros

from std_msgs.msg import Header  # noqa: E402

from edge_offload.mode import Mode  # noqa: E402
from edge_offload.models.detections import Detections  # noqa: E402
from edge_offload.nodes.common.health import Health  # noqa: E402
from edge_offload.nodes.detector.detection_messages import markers_message, objects_message  # noqa: E402
from edge_offload.nodes.inference import vision  # noqa: E402
from edge_offload.nodes.people.people_messages import Motion, people_message, place_people  # noqa: E402
from edge_offload.perception.geometry import PinholeCamera, Position, Transform  # noqa: E402
from edge_offload.perception.locator import DEPTH, GROUND, LIDAR, Locator  # noqa: E402
from edge_offload.perception.tracking import Tracker  # noqa: E402
from edge_offload.timing import InferenceReport  # noqa: E402
from tests.perception.scenes import people  # noqa: E402
from tests.perception.test_geometry import looking_down  # noqa: E402

CAMERA = PinholeCamera(640, 480, np.array([[600.0, 0, 320], [0, 600.0, 240], [0, 0, 1]]))
REPORT = InferenceReport(Mode.LOCAL, "m:make")
BOXES = np.array([[310, 230, 370, 290], [10, 10, 40, 40], [300, 300, 340, 380]])
DETECTIONS = Detections(BOXES, np.array([0.9, 0.8, 0.7]), np.array([3, 1, 3]))
SURE = np.diag([0.01, 0.02, 0.04])


def places(pose=None):
    near, far = np.array([0.2, 0.2, 6.0]), np.array([0.0, 1.0, 6.0])
    positions = [Position(near, SURE, LIDAR), None, Position(far, SURE, GROUND)]
    return vision.places_of(Locator(CAMERA, pose, "eye", "map"), DETECTIONS.boxes, positions)


def test_objects_have_position_frame_and_its_source():
    from edge_offload_msgs.msg import Object

    pose = looking_down()
    located = places(pose)
    message = objects_message(Header(frame_id="eye"), REPORT, (640, 480), DETECTIONS, ["cup", "dog", "cup"], located)
    cup, dog, far = message.objects
    assert (cup.position_source, cup.position_frame) == (Object.LIDAR, "map")
    assert [cup.position.x, cup.position.y, cup.position.z] == pytest.approx(pose.map_points(np.array([0.2, 0.2, 6.0])))
    assert np.reshape(cup.position_covariance, (3, 3)) == pytest.approx(pose.rotation @ SURE @ pose.rotation.T)
    assert (dog.position_source, dog.position_frame, dog.position.z) == (Object.UNKNOWN, "", 0.0)
    assert far.position_source == Object.GROUND
    assert message.header.frame_id == "eye", "the boxes are in the image"
    unplaced = places()
    (cup, *_) = objects_message(Header(frame_id="eye"), REPORT, (640, 480), DETECTIONS, ["cup"] * 3, unplaced).objects
    assert (cup.position_frame, cup.position.z) == ("eye", 6.0)


def test_markers_show_each_located_object_in_its_size():
    from visualization_msgs.msg import Marker

    located = places()
    first, *markers = markers_message(Header(frame_id="eye"), DETECTIONS, ["cup", "dog", "cup"], located).markers
    assert first.action == Marker.DELETEALL
    assert {(marker.ns, marker.id) for marker in markers} == {
        (ns, number) for ns in ("objects", "positions", "labels") for number in (0, 2)
    }
    plate, ball, label = markers[:3]
    assert {marker.header.frame_id for marker in markers} == {"eye"}
    assert (plate.scale.x, plate.scale.y) == pytest.approx((0.6, 0.6))
    assert (ball.pose.position.x, ball.pose.position.z) == (0.2, 6.0)
    assert label.text == "cup (lidar)"
    assert label.pose.position.y < plate.pose.position.y - 0.3, "above it, whose axis y points down"


def test_detections_in_space_are_published_as_vision_msgs(monkeypatch):
    pytest.importorskip("vision_msgs.msg", reason="vision_msgs is not installed (scripts/setup --vision-msgs)")
    sent = {}

    def publisher(topic, kind, **_):
        publish = sent.setdefault(topic, []).append
        return types.SimpleNamespace(publish=publish, get_num_connections=lambda: 1)

    monkeypatch.setattr(vision.rospy, "Publisher", publisher)
    monkeypatch.setattr(vision.rospy, "set_param", lambda *_: None)
    pose = looking_down()
    located = places(pose)
    reported = vision.DetectionPublisher("detections", ["a", "b", "c", "cup"], "m:make", Health())
    reported.publish_places(Header(frame_id="eye"), located, DETECTIONS.scores, DETECTIONS.classes)
    reported.publish_places(Header(frame_id="eye"), [None] * 3, DETECTIONS.scores, DETECTIONS.classes)
    message, empty = sent["detections_3d"]
    assert (message.header.frame_id, empty.header.frame_id, empty.detections) == ("map", "eye", [])
    cup, far = message.detections
    assert (cup.header.frame_id, cup.results[0].id, cup.results[0].score) == ("map", 3, pytest.approx(0.9))
    point = cup.results[0].pose.pose.position
    assert [point.x, point.y, point.z] == pytest.approx(pose.map_points(np.array([0.2, 0.2, 6.0])))
    covariance = np.reshape(cup.results[0].pose.covariance, (6, 6))
    assert covariance[:3, :3] == pytest.approx(pose.rotation @ SURE @ pose.rotation.T)
    assert (np.diag(covariance)[3:] > 3).all(), "nothing is known of how it is turned"
    assert (cup.bbox.size.x, cup.bbox.size.y, cup.bbox.size.z) == pytest.approx((0.6, 0.6, 0.0))
    turn = cup.bbox.center.orientation
    turned = Transform.from_quaternion([0, 0, 0], [turn.x, turn.y, turn.z, turn.w])
    assert turned.rotation == pytest.approx(pose.rotation)
    assert far.bbox.size.y == pytest.approx(80 / 600 * 6.0)


def test_people_name_the_source_of_their_position():
    from edge_offload_msgs.msg import Person

    (tracked,) = Tracker().update(people([[300, 200, 340, 300]]), 0.0, (640, 480))
    locator = Locator(CAMERA, optical="eye")
    for source, constant in ((DEPTH, Person.DEPTH), (LIDAR, Person.LIDAR), (GROUND, Person.GROUND)):
        someone = tracked.with_position(Position(np.array([0.0, 0.0, 4.0]), SURE, source))
        placed = place_people([someone], locator, Motion(), 0.0)
        (person,) = people_message(Header(), REPORT, (640, 480), [someone], placed).people
        assert (person.position_source, person.position_frame, person.position.z) == (constant, "eye", 4.0)


def test_a_person_whose_position_comes_from_another_source_has_not_jumped():
    """The feet on the ground at one time, the torso 1.2 m above at the next."""
    motion = Motion()
    for step in range(5):
        feet = Position(np.array([0.1 * step, 0.0, 0.0]), SURE, GROUND, "map")
        walked = motion.update(7, feet, 0.1 * step)
    torso = Position(np.array([0.5, 0.0, 1.2]), SURE, LIDAR, "map")
    assert motion.update(7, torso, 0.5) == pytest.approx(walked)
    further = Position(np.array([0.6, 0.0, 1.2]), SURE, LIDAR, "map")
    velocity = motion.update(7, further, 0.6)
    assert velocity[2] == 0
    assert velocity[0] > walked[0]
