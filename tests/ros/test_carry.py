"""Nodes that carry results along: what leaves is counted outside."""

from __future__ import annotations

import functools
import threading
import time
from types import SimpleNamespace

import pytest

from tests.ros.ros_rig import wait_for
from tests.ros.test_agrnav import CELLS, cloud, floor_and_wall
from tests.ros.test_people_node import start


def small(side: int) -> dict:
    """Changes that make a grey image of that many pixels each way."""
    return {"height": side, "width": side, "step": 3 * side, "data": bytes([90]) * (3 * side * side)}


def test_of_results_that_wait_the_newest_is_taken_in_and_frames_leave_between_its_steps():
    pytest.importorskip("rospy", reason="no ROS here")
    from edge_offload.nodes.common.health import Health
    from edge_offload.nodes.inference.carry import CarryThread, Task
    from edge_offload.nodes.inference.intake import Frame

    events, begun, go_on = [], threading.Event(), threading.Event()
    still = SimpleNamespace(degraded="", carry=lambda result, *_: result, steps=lambda *_: iter(()))
    fails = functools.partial(events.append, "failed")
    task = Task(still, lambda _: True, lambda *_: events.append("frame"), lambda *_: fails(), lambda *_: 0.0)
    thread = CarryThread(task, 1.0, Health(), lambda *_: events.append("error"))
    thread.start(lambda *_: None)

    def steps(number):
        events.append(number)
        begun.set()
        go_on.wait(10.0)
        yield
        events.append(f"{number} taken in")

    thread.take_in_result(functools.partial(steps, 0))
    assert begun.wait(10.0)
    for number in (1, 2, 3):
        thread.take_in_result(functools.partial(steps, number))
    stamp = SimpleNamespace(to_nsec=lambda: 10**9)
    thread.offer_frame(Frame(SimpleNamespace(header=SimpleNamespace(stamp=stamp)), time.monotonic()))
    go_on.set()
    assert thread.drain(10.0)
    assert events == [0, "frame", "0 taken in", 3, "3 taken in"]


def test_a_frame_that_cannot_be_used_is_reported_on_diagnostics_until_one_can():
    pytest.importorskip("rospy", reason="no ROS here")
    from edge_offload.errors import BadInput
    from edge_offload.nodes.common.health import WARN, Health
    from edge_offload.nodes.inference.carry import CarryThread, Task
    from edge_offload.nodes.inference.intake import Frame

    def see(frame):
        if frame.message is None:
            raise BadInput("16 bits")
        return True

    still = SimpleNamespace(degraded="", carry=lambda result, *_: result, steps=lambda *_: iter(()))
    health, reports = Health(), []
    task = Task(still, see, lambda *_: None, lambda *_: reports.append(health.make_report()), lambda *_: 0.0)
    thread = CarryThread(task, 1.0, health, lambda *_: None)
    thread.start(lambda *_: None)
    thread.offer_frame(Frame(None, time.monotonic()))
    thread.offer_frame(Frame("seen", time.monotonic()))
    assert thread.drain(10.0)
    assert (reports[0].level, reports[0].message, reports[0].values["bad frames"]) == (WARN, "16 bits", "1")
    assert "16 bits" not in health.make_report().message


def test_every_image_has_one_result_at_once_though_the_network_is_slow(graph, images):
    """Images that change size, cannot be read, or come with old stamps are among them."""
    node, people, latency = start(graph, images, carry=True, model_options={"seconds": 0.25})
    for number in range(60):
        images.send(
            x=40 + number // 2, **(small(64) if number in (40, 41) else {"encoding": "no"} if number == 50 else {})
        )
        time.sleep(0.03)
    images.stamps.append(images.send(x=50, header=first_header(images)))
    wait_for(lambda: graph.values(node).get("frames offered") == "61", "the arrival of all images")
    taken = int(graph.values(node)["frames taken"])
    wait_for(lambda: len(people) == taken, "a result for every image taken up")
    results = [message for messages in people.by_stamp().values() for message in messages]
    assert len(results) == taken
    assert taken + int(graph.values(node)["frames superseded"]) == 61
    assert 2 <= len(latency) < 0.5 * taken, "one for each inference, not for each image"
    origins = [message.result.origin for message in results]
    assert origins.count("carried") > 0.5 * taken
    assert set(origins) <= {"fresh", "carried", "none"}
    for message in results:
        if message.result.origin == "carried":
            # one stamp alone that goes back is no new recording: what was seen before it is carried on
            assert 0 < message.result.seen.to_nsec() < max(message.header.stamp.to_nsec(), images.stamps[-2])
            assert message.result.seen.to_nsec() in latency.by_stamp()
            assert 0 <= message.result.expected_drop <= 1
        elif message.result.origin == "none":
            assert not message.people
    late = [message for message in results if message.result.origin == "carried" and message.people]
    assert len({message.people[0].id for message in late}) <= 3


def test_a_local_network_stands_in_where_it_is_the_better_one(graph, images):
    """It is the same network, only quicker, so it loses nothing; offload/drop says so."""
    from edge_offload_msgs.msg import Drop

    drops = graph.listen("offload/drop", Drop)
    options = {"local": "tiny_people:make", "local_options": {"seconds": 0.01}, "slowdown": 2.0}
    node, people, _ = start(graph, images, carry=True, model_options={"seconds": 0.3}, **options)

    def step():
        images.send(x=40 + len(images.stamps) % 60)
        time.sleep(0.05)
        stood_in = any(message.result.origin == "local" and message.people for message in people.messages)
        return stood_in and any(0 <= drop.local < 0.5 for drop in drops.messages)

    wait_for(step, "a local result, and a comparison of it", 60)
    (message, *_) = [message for message in people.messages if message.result.origin == "local"]
    assert (message.model, message.mode) == ("tiny", "local")
    assert 0 < message.result.seen.to_nsec() <= message.header.stamp.to_nsec()
    assert {drop.task for drop in drops.messages} == {"people"}
    wait_for(lambda: "local algorithm" in graph.values(node)["drop"], "the word of it on /diagnostics")


def first_header(images):
    import rospy
    from std_msgs.msg import Header

    return Header(stamp=rospy.Time(*divmod(images.stamps[0] - 10**9, 10**9)), frame_id="camera_optical_frame")


@pytest.mark.parametrize("odometry", ["before", "late", ""])
def test_every_sweep_has_one_scene_and_missing_odometry_is_reported(graph, odometry):
    import rospy
    import tf2_ros
    from geometry_msgs.msg import Quaternion, TransformStamped, Vector3
    from sensor_msgs.msg import PointCloud2
    from std_msgs.msg import Header

    from edge_offload_msgs.msg import Latency, SemanticGrid
    from tests.ros.ros_rig import wait_for_readers

    scenes, latency = graph.listen("agrnav/semantic_grid", SemanticGrid), graph.listen("offload/latency", Latency)
    node = graph.node("agrnav_node", carry=True, cells=CELLS, sensor_height=0.5, threads=1, odometry_frame="still")
    sweeps = graph.publisher("lidar/points", PointCloud2)
    wait_for_readers(sweeps, timeout_s=120)
    tf = tf2_ros.TransformBroadcaster()
    wait_for_readers(tf.pub_tf)
    points, first_ns = floor_and_wall(), 1_700_000_000_000_000_000
    period_s = 0.2 if odometry == "late" else 0.1

    def move(number, stamp):
        header = Header(stamp=rospy.Time(*divmod(stamp, 10**9)), frame_id="still")
        moved = TransformStamped(header=header, child_frame_id="lidar_link")
        moved.transform.translation, moved.transform.rotation = Vector3(0.02 * number, 0, 0.5), Quaternion(0, 0, 0, 1)
        tf.sendTransform(moved)

    for number in range(20):
        stamp = first_ns + number * round(period_s * 1e9)
        if odometry == "before":
            move(number, stamp)
            time.sleep(0.01)
        elif odometry and not number:
            # what tf does not know at all is not waited for
            move(0, stamp - 10**8)
            time.sleep(0.1)
        sweeps.publish(cloud(points - [0.02 * number, 0, 0], stamp))
        if odometry == "late":
            time.sleep(0.05)
            move(number, stamp)
        time.sleep(period_s - 0.05 * (odometry == "late"))
    wait_for(lambda: graph.values(node).get("sweeps offered") == "20", "the arrival of all sweeps")
    taken = int(graph.values(node)["sweeps taken"])
    wait_for(lambda: len(scenes) == taken, "a scene for every sweep taken up")
    assert len(latency) <= taken
    origins = [messages[0].result.origin for messages in scenes.by_stamp().values()]
    assert {len(result) for result in scenes.by_stamp().values()} == {1}
    assert "carried" in origins or "local" in origins
    assert graph.has_status(node, 1, "scenes are held") != bool(odometry)
