"""Stamps as drivers of other people write them: results are right, and /diagnostics names cause and remedy."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
import time

import cv2
import numpy as np
import pytest

from tests.ros.ros_rig import wait_for
from tests.ros.test_agrnav import CELLS, cloud, floor_and_wall
from tests.ros.test_people_node import start

FRAMES = 40
NOW = 1_700_000_000.0
STAMPS = {
    "zero": ("are 0; have the driver write", lambda number: 0.0),
    "standing": ("are that of the message before", lambda number: NOW),
    "out of order": ("publish in the order", lambda number: NOW + 0.05 * number - 0.052 * (number % 10 == 9)),
    "jumping": ("check the clock of the driver", lambda number: NOW + 0.05 * number + 3600 * (number % 10 == 9)),
    "future": ("set both clocks by NTP", lambda number: NOW + 1e9 + 0.05 * number),
}


def header(stamp_s):
    import rospy
    from std_msgs.msg import Header

    return Header(stamp=rospy.Time(*divmod(round(stamp_s * 1e9), 10**9)), frame_id="camera_optical_frame")


@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("kind", STAMPS)
def test_who_stands_still_has_one_id_and_a_result_in_every_image(graph, images, kind, carry):
    warning, stamp_s = STAMPS[kind]
    node, people, _ = start(graph, images, carry=carry, model_options={"seconds": 0.1 if carry else 0.0})
    sent = []
    for number in range(FRAMES):
        sent.append(header(stamp_s(number)))
        images.send(header=sent[-1])
        time.sleep(0.05)
    taken = wait_for(lambda: len(people) and int(graph.values(node).get("frames taken", 0)), "the first results")
    wait_for(lambda: len(people) >= taken, "a result for every image taken up")
    assert graph.complains(node, warning), graph.statuses(node)[-1].message
    assert len(people) > FRAMES // 2
    assert {message.header.stamp for message in people.messages} <= {one.stamp for one in sent}, "untouched"
    first = next(number for number, message in enumerate(people.messages) if message.people)
    assert first < FRAMES // 4
    assert [len(message.people) for message in people.messages[first:]] == [1] * (len(people) - first)
    assert {person.id for message in people.messages for person in message.people} == {1}
    if carry:
        seen = {message.result.seen for message in people.messages if message.result.origin == "carried"}
        assert seen <= {one.stamp for one in sent}


@pytest.mark.parametrize("carry", [False, True])
def test_a_walking_person_is_followed_and_a_departed_one_removed_though_all_stamps_are_zero(graph, images, carry):
    _, people, _ = start(graph, images, carry=carry, model_options={"seconds": 0.05})
    for number in range(30):
        images.send(x=20 + 2 * number, header=header(0))
        time.sleep(0.06)
    wait_for(lambda: people.messages[-1].people and people.messages[-1].people[0].x_min > 50, "the newest place")
    dark = bytes(96 * 128 * 3)

    def step():
        images.send(header=header(0), data=dark)
        time.sleep(0.06)
        return not people.messages[-1].people

    wait_for(step, "the end of who is not there any more", 10)
    origins = {message.result.origin for message in people.messages}
    assert origins <= {"fresh", "carried", "none"} if carry else origins == {"fresh"}
    assert ("carried" in origins) == carry
    assert sum(message.result.origin == "none" for message in people.messages) < 10


def test_sweeps_whose_stamps_are_all_zero_are_each_carried_to(graph):
    from sensor_msgs.msg import PointCloud2

    from edge_offload_msgs.msg import SemanticGrid
    from tests.ros.ros_rig import wait_for_readers

    scenes = graph.listen("agrnav/semantic_grid", SemanticGrid)
    sweeps = graph.publisher("lidar/points", PointCloud2)
    node = graph.node("agrnav_node", carry=True, cells=CELLS, sensor_height=0.5, threads=1)
    wait_for_readers(sweeps, timeout_s=120)
    for _ in range(20):
        sweeps.publish(cloud(floor_and_wall(), 0))
        time.sleep(0.1)
    wait_for(lambda: len(scenes) >= 15, "scenes")
    wait_for(lambda: graph.complains(node, "sweeps: 20 are 0"), "the word of it")
    assert {message.result.origin for message in scenes.messages} <= {"fresh", "carried", "local"}


def test_clouds_that_a_driver_stamps_far_ahead_are_passed_on_and_reported(graph):
    from sensor_msgs.msg import PointCloud2

    from tests.ros.ros_rig import wait_for_readers

    clouds = graph.listen("lidar/points", PointCloud2)
    driver = graph.publisher("driver/points", PointCloud2)
    node = graph.node("lidar_node", input="driver/points")
    wait_for_readers(driver, timeout_s=60)
    for number in range(5):
        driver.publish(cloud(floor_and_wall(), int(NOW + 1e9 + number) * 10**9))
        time.sleep(0.1)
    wait_for(lambda: len(clouds) == 5, "clouds")
    assert [message.header.stamp.to_sec() for message in clouds.messages] == [NOW + 1e9 + n for n in range(5)]
    wait_for(lambda: graph.complains(node, "set both clocks by NTP"), "the cause and its remedy")


@contextlib.contextmanager
def simulated_time():
    """Nodes that start now take their time from /clock."""
    import rospy

    rospy.set_param("/use_sim_time", True)
    try:
        yield
    finally:
        rospy.delete_param("/use_sim_time")


@pytest.mark.parametrize("kind", ["camera_node", "lidar_node"])
def test_without_a_clock_nothing_is_stamped_and_with_it_all_is(graph, tmp_path, kind):
    import rospy
    from rosgraph_msgs.msg import Clock
    from sensor_msgs.msg import Image, PointCloud2

    topic, message = ("camera/image_raw", Image) if kind == "camera_node" else ("lidar/points", PointCloud2)
    cv2.imwrite(str(tmp_path / "1.png"), np.full((48, 64, 3), 90, np.uint8))
    sent = graph.listen(topic, message)
    source = {"images": str(tmp_path)} if kind == "camera_node" else {"world": "room"}
    with simulated_time():
        node = graph.node(kind, rate=20, **source)
        wait_for(lambda: graph.complains(node, "/use_sim_time is set and nothing came on /clock"), "the word of it")
    assert graph.has_status(node, 2, "rosbag play --clock")
    assert "can be stamped" in node.output
    assert not len(sent)
    clock = rospy.Publisher("/clock", Clock, queue_size=10)
    wait_for(clock.get_num_connections, "a node that takes the time")
    ticks = iter(range(10**6))

    def tick():
        clock.publish(Clock(rospy.Time(50) + rospy.Duration(0, 20_000_000 * next(ticks))))
        time.sleep(0.02)
        return len(sent) > 10

    wait_for(tick, "what is published with the time")
    assert all(50 <= one.header.stamp.secs < 60 for one in sent.messages)
    wait_for(lambda: tick() and not graph.complains(node, "clock"), "the end of the complaint")
    # the simulation is halted: so is what is made of it
    wait_for(lambda: graph.has_status(node, 2, "/clock does not go on"), "the word that time stands", 20)
    number = len(sent)
    time.sleep(0.5)
    assert len(sent) == number
    clock.unregister()


def test_a_network_without_a_clock_works_with_a_notice(graph, images):
    from edge_offload_msgs.msg import PersonArray

    people = graph.listen("kapao/people", PersonArray)
    with simulated_time():
        node = graph.node("kapao_node", model="tiny_people:make", threads=1, keys=str(graph.keys))
        images.wait()
    images.send()
    wait_for(lambda: len(people) and people.messages[0].people, "a result")
    wait_for(lambda: graph.has_status(node, 1, "nothing came on /clock"), "the word of it")


@pytest.mark.parametrize(
    ("stamps", "message"), [([0, 0, 0], "3 frames on .* have stamp 0"), ([5, 6, 5], "2 frames .* 5000")]
)
def test_a_bag_of_indistinguishable_frames_is_refused_in_a_line(master, tmp_path, stamps, message):
    import re

    import rosbag
    import rospy
    from sensor_msgs.msg import Image

    bag = tmp_path / "walk.bag"
    with rosbag.Bag(str(bag), "w") as out:
        for number, stamp in enumerate(stamps):
            picture = Image(header(stamp), 8, 8, "bgr8", 0, 24, bytes(192))
            out.write("/camera/image_raw", picture, rospy.Time(100 + number))
    command = ["regress", str(bag), "--golden", str(tmp_path / "g.json"), "--update"]
    command += ["--launch", "model:=tiny_people:make"]
    python_path = os.pathsep.join([str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "edge_offload.cli", *command], capture_output=True, text=True, timeout=200, check=False,
        env={**os.environ, "PYTHONPATH": python_path},
    )  # fmt: skip
    assert done.returncode == 1
    assert re.search(message, done.stderr), done.stderr
    assert "own-sensor.md" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
