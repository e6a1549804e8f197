"""Bags that were recorded with earlier messages are readable after ``rosbag fix`` with the package's own rules."""

from __future__ import annotations

import math
import pathlib

import pytest

from tests.ros.ros_rig import ROOT

RULES = ROOT / "src" / "edge_offload_msgs" / "migration_rules" / "messages.bmr"
#: Written with the messages as they were before forecasts carried the link and a server's status its GPUs.
BEFORE = pathlib.Path(__file__).parent / "bags" / "before_bandwidth.bag"
#: Written with the messages as they were before they named what computes.
BEFORE_ENGINES = BEFORE.with_name("before_engines.bag")
#: Written with the messages as they were before forecasts named a task that takes turns.
BEFORE_TURNS = BEFORE.with_name("before_turns.bag")
#: Written with the messages as they were before results said whether they are carried along.
BEFORE_ORIGIN = BEFORE.with_name("before_origin.bag")
#: Written with the messages as they were before they said in what share of a split frame both sides computed.
BEFORE_OVERLAP = BEFORE.with_name("before_overlap.bag")
#: Written with the messages as they were before a server's status told what it does not believe of robots.
BEFORE_NOTE = BEFORE.with_name("before_note.bag")

#: Written with the messages as they were before objects had positions and positions came from a LiDAR, too.
BEFORE_POSITIONS = BEFORE.with_name("before_positions.bag")
#: Written with the messages as they were before people had the covariance of their position.
BEFORE_COVARIANCE = BEFORE.with_name("before_covariance.bag")
#: Written with the messages as they were before forecasts carried a covariance.
BEFORE_MODE_COVARIANCE = BEFORE.with_name("before_mode_covariance.bag")
#: Written with the messages as they were before a latency named its camera.
BEFORE_CAMERAS = BEFORE.with_name("before_cameras.bag")


@pytest.fixture
def migrated(tmp_path):
    """The messages of a bag after ``rosbag fix``."""
    rosbag = pytest.importorskip("rosbag")
    from rosbag.migration import MessageMigrator, fixbag2

    def fix(before):
        after = tmp_path / "after.bag"
        assert fixbag2(MessageMigrator([str(RULES)], plugins=False), str(before), str(after)) == []
        with rosbag.Bag(str(after)) as bag:
            return [message for _, message, _ in bag.read_messages()]

    return fix


@pytest.mark.ros
def test_a_bag_of_before_the_link_was_in_forecasts_is_migrated(migrated):
    from edge_offload_msgs.msg import Forecast

    forecast, status = migrated(BEFORE)
    assert forecast._md5sum == Forecast._md5sum
    assert (forecast.mode, forecast.obstacle, forecast.remedy) == (
        ["local", "server"], ["", "no server"], ["it lacks a device"]
    )  # fmt: skip
    assert (forecast.latency[1].to_nsec(), forecast.header.stamp.to_nsec()) == (50_000_000, 1_700_000_000_000_000_005)
    assert (list(forecast.bytes_up), forecast.uplink) == ([0, 0], 0.0), "what was not recorded is unknown"
    assert math.isnan(forecast.link_error)
    assert (status.inferences, status.memory, status.models[0].name) == (7, 123456, "movenet")
    assert math.isnan(status.gpu_load)


@pytest.mark.ros
def test_a_bag_of_before_engines_is_migrated(migrated):
    from edge_offload_msgs.msg import Latency, ServerStatus

    latency, status = migrated(BEFORE_ENGINES)
    assert (latency._md5sum, status._md5sum) == (Latency._md5sum, ServerStatus._md5sum)
    assert (latency.engine, status.engine) == ("", ""), "what was not recorded is unknown"
    assert (latency.mode, latency.compute_server.to_nsec(), latency.bytes_up) == ("server", 60_000_000, 246_000)
    assert (status.gpu_load, status.inferences, status.models[0].name) == (0.25, 7, "movenet")


@pytest.mark.ros
def test_a_bag_of_before_turns_is_migrated(migrated):
    from edge_offload_msgs.msg import Forecast

    (forecast,) = migrated(BEFORE_TURNS)
    assert forecast._md5sum == Forecast._md5sum
    assert forecast.task == ""
    assert (forecast.mode, list(forecast.bytes_up), forecast.uplink) == (["local", "server"], [0, 7], 5.0)
    assert (forecast.latency[1].to_nsec(), forecast.link_age.to_nsec()) == (50_000_000, 1_000_000_000)


@pytest.mark.ros
def test_a_bag_without_origins_of_results_is_migrated(migrated):
    from edge_offload_msgs.msg import PersonArray, SemanticGrid

    people, scene = migrated(BEFORE_ORIGIN)
    assert (people._md5sum, scene._md5sum) == (PersonArray._md5sum, SemanticGrid._md5sum)
    for message in (people, scene):
        stamp = message.header.stamp
        assert (message.result.origin, message.result.seen, message.result.expected_drop) == ("fresh", stamp, 0.0)
    assert (people.people[0].id, people.people[0].keypoints[16].score, people.frame_seq) == (4, 0.5, 3)
    assert (bytes(scene.data), scene.labels, scene.size_z) == (b"\0\1", ["empty", "car"], 2)


@pytest.mark.ros
def test_a_bag_without_overlap_of_split_frames_is_migrated(migrated):
    from edge_offload_msgs.msg import Latency

    (latency,) = migrated(BEFORE_OVERLAP)
    assert latency._md5sum == Latency._md5sum
    shares = (latency.overlap_ratio, latency.idle_robot, latency.idle_server)
    assert all(math.isnan(share) for share in shares), "what was not recorded is unknown"
    assert (latency.mode, latency.engine, latency.compute_robot.to_nsec()) == ("split", "eager", 40_000_000)
    assert (latency.bytes_up, latency.connected, latency.emulated_slowdown, latency.energy) == (246_000, True, 2.0, 1.5)


@pytest.mark.ros
def test_a_bag_without_engines_has_no_overlap_either(migrated):
    latency, _ = migrated(BEFORE_ENGINES)
    assert math.isnan(latency.overlap_ratio)


@pytest.mark.ros
def test_a_bag_of_before_latencies_named_a_camera_is_migrated(migrated):
    from edge_offload_msgs.msg import Latency

    (latency,) = migrated(BEFORE_CAMERAS)
    assert latency._md5sum == Latency._md5sum
    assert (latency.camera, latency.model, latency.mode, latency.engine) == ("", "movenet", "server", "eager")
    assert (latency.frame_seq, latency.bytes_up, latency.energy, latency.connected) == (7, 246_000, 1.5, True)
    assert (latency.header.frame_id, latency.compute_server.to_nsec()) == ("camera", 60_000_000)


@pytest.mark.ros
def test_a_bag_without_doubted_values_in_its_status_is_migrated(migrated):
    from edge_offload_msgs.msg import ServerStatus

    (status,) = migrated(BEFORE_NOTE)
    assert status._md5sum == ServerStatus._md5sum
    (promise,) = status.promises
    assert promise.note == "", "what was not recorded is not said"
    assert (promise.robot, promise.model, promise.turns) == ("patrol", "movenet", 11)
    assert (promise.drop, promise.interval, promise.batch, promise.late_share) == (0.03125, 2.5, 1.5, 0.125)
    assert (status.idle, status.batches, status.inferences, status.models[0].name) == (0.25, 3, 7, "movenet")


@pytest.mark.ros
def test_a_bag_of_before_objects_had_positions_is_migrated(migrated):
    from edge_offload_msgs.msg import Object, ObjectArray, Person, PersonArray

    people, objects = migrated(BEFORE_POSITIONS)
    assert (people._md5sum, objects._md5sum) == (PersonArray._md5sum, ObjectArray._md5sum)
    (person,), (thing,) = people.people, objects.objects
    assert (person.id, person.position_source, person.position_frame) == (4, Person.GROUND, "map")
    assert (person.position.x, person.position.y, person.velocity.x) == (1.0, 2.0, 0.5)
    assert (people.result.origin, person.keypoints[16].score, people.frame_seq) == ("fresh", 0.5, 3)
    assert (thing.class_id, thing.label, thing.score, thing.y_max) == (2, "chair", 0.5, 4.0)
    assert (thing.position_source, thing.position_frame) == (Object.UNKNOWN, ""), "what was not recorded is unknown"
    assert not any(thing.position_covariance)


@pytest.mark.ros
def test_a_bag_of_before_forecasts_carried_a_covariance_is_migrated(migrated):
    from edge_offload_msgs.msg import Forecast

    (forecast,) = migrated(BEFORE_MODE_COVARIANCE)
    assert forecast._md5sum == Forecast._md5sum
    assert list(forecast.covariance) == [], "modes are independent where nothing is known"
    assert (forecast.task, list(forecast.bytes_up), forecast.doubt[0].to_nsec()) == ("people", [0, 245_000], 2_000_000)


@pytest.mark.ros
def test_a_bag_of_before_positions_had_a_covariance_is_migrated(migrated):
    from edge_offload_msgs.msg import Person, PersonArray

    (message,) = migrated(BEFORE_COVARIANCE)
    assert message._md5sum == PersonArray._md5sum
    (person,) = message.people
    assert list(person.position_covariance) == [0.0] * 9, "what was not recorded is unknown"
    assert (person.id, person.target, person.position_frame, person.position_source) == (3, True, "map", Person.DEPTH)
    assert (person.position.y, person.velocity.z, person.keypoints[16].y) == (-2.0, -0.25, 32.0)
    assert (message.result.origin, message.result.expected_drop, message.frame_seq) == ("carried", 0.125, 7)
