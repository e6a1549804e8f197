"""Several cameras through one network of one node: one session at the server, results and costs by camera."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from edge_offload.errors import BadInput
from edge_offload.nodes.common.params import CAMERA_NS, check_namespaces, read
from tests.ros.ros_rig import ROOT, free_port, wait_for, wait_for_readers

CAMERAS = ("front", "left", "rear")
SPOTS = {"front": (30, 40), "left": (60, 40), "rear": (100, 60)}
"""Where a bright spot stands in the images of each camera."""


HEIGHT_M, DOWN_DEGREES, WORLD = 2.0, 30, "map_of_cameras"
FOCAL = {"front": 100.0, "left": 200.0, "rear": 300.0}


def camera_rotation():
    """Turns what a camera sees into the world: all look ahead and down."""
    from scipy.spatial.transform import Rotation

    ahead = Rotation.from_matrix([[0, 0, 1], [-1, 0, 0], [0, -1, 0]])
    return Rotation.from_euler("y", DOWN_DEGREES, degrees=True) * ahead


def ground(name, person):
    """Where a person stands, by the calibration of its camera."""
    import numpy as np

    pixel = np.array([(person.x_min + person.x_max) / 2 - 64, person.y_max - 48, FOCAL[name]])
    ray = camera_rotation().apply(pixel / FOCAL[name])
    return np.array([0, 0, HEIGHT_M]) - ray * HEIGHT_M / ray[2]


@pytest.fixture
def poses(master):
    """tf of the cameras, and a CameraInfo of each on request."""
    import rospy
    import tf2_ros
    from geometry_msgs.msg import Quaternion, TransformStamped
    from sensor_msgs.msg import CameraInfo

    broadcaster, messages = tf2_ros.StaticTransformBroadcaster(), []
    for name in CAMERAS:
        message = TransformStamped(child_frame_id=f"{name}_optical_frame")
        message.header.frame_id, message.header.stamp = WORLD, rospy.Time(1)
        message.transform.translation.z, message.transform.rotation = HEIGHT_M, Quaternion(*camera_rotation().as_quat())
        messages.append(message)
    broadcaster.sendTransform(messages)

    def calibrate(graph):
        for name, focal in FOCAL.items():
            matrix = [focal, 0, 64, 0, focal, 48, 0, 0, 1]
            info = graph.publisher(f"{name}/camera_info", CameraInfo, latch=True)
            info.publish(CameraInfo(width=128, height=96, K=matrix, distortion_model="plumb_bob"))

    yield calibrate
    broadcaster.pub_tf.unregister()


class Cameras:
    """Publishes images of several cameras, all with the same stamps, and collects what comes of them."""

    def __init__(self, graph, cameras=CAMERAS):
        from sensor_msgs.msg import Image

        from edge_offload_msgs.msg import Latency, PersonArray

        self.publishers = {name: graph.publisher(f"{name}/image_raw", Image) for name in cameras}
        self.people = {name: graph.listen(f"{name}/kapao/people", PersonArray) for name in cameras}
        self.latency = graph.listen("offload/latency", Latency)
        self.stamps = []

    def wait(self):
        wait_for(lambda: all(listener.connected for listener in [*self.people.values(), self.latency]), "the node", 90)
        wait_for_readers(*self.publishers.values())

    def send(self, *cameras):
        """One image of each camera, all taken at once."""
        import numpy as np
        import rospy
        from sensor_msgs.msg import Image
        from std_msgs.msg import Header

        stamp = rospy.Time(1_700_000_000, 123_456_789 + 5_000_003 * len(self.stamps))
        for name in cameras or self.publishers:
            (x, y), pixels = SPOTS[name], np.zeros((96, 128, 3), np.uint8)
            pixels[y - 8 : y + 8, x - 8 : x + 8] = 255
            header = Header(stamp=stamp, frame_id=f"{name}_optical_frame")
            self.publishers[name].publish(Image(header, 96, 128, "bgr8", 0, 128 * 3, pixels.tobytes()))
        self.stamps.append(stamp.to_nsec())

    def costs(self, name):
        return [message for message in list(self.latency.messages) if message.camera == name]


def options(graph, **params):
    return {"model": "tiny_people:make", "threads": 1, "keys": str(graph.keys), "camera_ns": list(CAMERAS), **params}


def test_three_cameras_share_one_session_in_turns_with_separate_results(graph, poses):
    import numpy as np

    from edge_offload_msgs.msg import ServerStatus

    address = f"tcp://127.0.0.1:{free_port()}"
    allow = ["tiny_people:make"]
    graph.node("offload_server_node", bind=address, keys=str(graph.keys), allow=allow, threads=1, status_rate=5.0)
    status, cameras = graph.listen("server/status", ServerStatus), Cameras(graph)
    poses(graph)
    node = graph.node("kapao_node", **options(graph, server=address, mode="server", server_wait=60.0, world_frame=WORLD,
                                              model_options={"seconds": 0.02}))  # fmt: skip
    cameras.wait()
    wait_for(lambda: (cameras.send(), time.sleep(0.2), cameras.latency.messages[-1].mode == "server")[-1], "the server")
    for count in range(60):  # each of them more often than the network can take
        if count == 10:
            before, sent = len(cameras.latency), len(cameras.stamps)
        cameras.send()
        time.sleep(0.02)

    def figures(what):
        values = graph.values(node)
        return {name: int(values.get(f"{name}: {what}", -1)) for name in CAMERAS}

    offered = dict.fromkeys(CAMERAS, len(cameras.stamps))
    wait_for(lambda: figures("frames offered") == offered and not any(figures("frames waiting").values()), "arrivals")
    wait_for(lambda: figures("results") == figures("frames taken"), "the last answer")
    taken, superseded = figures("frames taken"), figures("frames superseded")
    wait_for(lambda: {name: len(cameras.people[name]) for name in CAMERAS} == taken, "its receipt")
    wait_for(lambda: len(cameras.latency) == sum(taken.values()), "that of its latency")
    for name in CAMERAS:
        results = cameras.people[name].by_stamp()
        costs = Counter(message.header.stamp.to_nsec() for message in cameras.costs(name))
        assert set(costs) == set(results)
        assert set(costs) <= set(cameras.stamps)
        assert {*costs.values(), *map(len, results.values())} == {1}, "one result and one latency each"
        assert taken[name] + superseded[name] == len(cameras.stamps)
        people = [message for message in cameras.people[name].messages if message.people]
        assert {message.header.frame_id for message in people} == {f"{name}_optical_frame"}
        assert {person.id for message in people for person in message.people} == {1}, "each camera tracks by itself"
        x, y = SPOTS[name]
        assert all(p.x_min < x < p.x_max and p.y_min < y < p.y_max for message in people for p in message.people)
        seen = people[-1].people[0]
        assert seen.position_frame == WORLD
        place = [seen.position.x, seen.position.y, seen.position.z]
        assert np.allclose(place, ground(name, seen), atol=0.02), "by its own calibration and pose"
        assert {message.header.frame_id for message in cameras.costs(name)} == {f"{name}_optical_frame"}
    turns = [message.camera for message in cameras.latency.messages[before:]]
    assert len(turns) < 3 * (len(cameras.stamps) - sent), "the network was meant to be too slow"
    for upto in range(len(turns)):
        had = Counter(dict.fromkeys(CAMERAS, 0), **Counter(turns[:upto]))
        assert max(had.values()) - min(had.values()) <= 1, turns[:upto]
    wait_for(lambda: status.messages[-1].inferences >= len(turns), "the server's word")
    output = status.messages[-1]
    assert (output.robots, [model.name for model in output.models]) == (1, ["tiny_people:make"])
    # one camera falls silent: the others go on, and its name is said
    ends = time.monotonic() + 5.0
    while time.monotonic() < ends and not graph.complains(node, "rear: no image on"):
        cameras.send("front", "left")
        time.sleep(0.1)
    assert graph.complains(node, f"rear: no image on {graph.ns}/rear/image_raw for")
    assert "front: no image" not in graph.statuses(node)[-1].message


def test_results_are_carried_camera_by_camera(graph):
    cameras = Cameras(graph)
    graph.node("kapao_node", **options(graph, carry=True, model_options={"seconds": 0.05}))
    cameras.wait()
    for _ in range(40):
        cameras.send()
        time.sleep(0.04)
    for name in CAMERAS:
        wait_for(lambda name=name: len(cameras.people[name]) == len(cameras.stamps), f"every result of {name}")
        assert [message.header.stamp.to_nsec() for message in cameras.people[name].messages] == cameras.stamps
        seen = [message for message in cameras.people[name].messages if message.people]
        assert {person.id for message in seen for person in message.people} == {1}
        x, y = SPOTS[name]
        assert all(p.x_min < x < p.x_max and p.y_min < y < p.y_max for message in seen for p in message.people)
        assert {"carried", "fresh"} & {message.result.origin for message in seen}
        assert len(cameras.costs(name)) > 1


@pytest.mark.parametrize(
    ("given", "cause"),
    [([], "names no camera"), (["front", "/front/"], "names front twice"), (["front", "2nd"], "has '2nd'"),
     (["front", ""], "has ''"), (["front left"], "has 'front left'")],
)  # fmt: skip
def test_namespaces_that_cannot_be_are_refused_with_the_remedy(given, cause):
    with pytest.raises(BadInput, match=f"^camera_ns {cause}; name each camera once, by its namespace: .front, left"):
        check_namespaces(given)


def test_one_namespace_may_be_given_without_a_list():
    assert read([CAMERA_NS], {"camera_ns": "front"}) == {"camera_ns": ["front"]}
    assert check_namespaces(["/front/", "left/color"]) == ["/front", "left/color"]
    assert read([CAMERA_NS], {}) == {"camera_ns": ["camera"]}


def test_a_node_refuses_what_several_cameras_cannot_have_in_one_line(graph):
    params = {"camera_ns": ["front", "left"], "carry": True, "accuracy": 0.05}
    node = graph.node("kapao_node", model="tiny_people:make", **params)
    assert node.wait(90) == 1
    (line,) = [line for line in node.output.splitlines() if "cannot start" in line]
    assert "~accuracy is promised for the results of one camera; give ~camera_ns one camera" in line
    assert "Traceback" not in node.output


def test_one_camera_has_its_results_where_they_always_were(graph, images):
    import rospy
    from sensor_msgs.msg import Image

    from edge_offload_msgs.msg import Latency, PersonArray

    people, latency = graph.listen("kapao/people", PersonArray), graph.listen("offload/latency", Latency)
    front = graph.publisher("front/image_raw", Image)
    graph.node("kapao_node", **options(graph, camera_ns="front"))
    wait_for(lambda: people.connected and latency.connected, "the start of the node", 90)
    images.publisher = front
    images.wait()
    stamp = images.send()
    wait_for(lambda: len(people) == len(latency) == 1, "the answer")
    assert (people.messages[0].header.stamp.to_nsec(), latency.messages[0].camera) == (stamp, "")
    topics = {name for name, _ in rospy.get_published_topics(graph.ns)}
    assert not any("front/kapao" in name for name in topics)


@pytest.mark.parametrize("given", ["[front, left]", "front", "[front]", "camera"])
def test_launch_files_pass_several_cameras_on_and_leave_one_where_it_was(master, given):
    import roslaunch.config
    from roslaunch.xmlloader import XmlLoader

    config = roslaunch.config.ROSLaunchConfig()
    path = str(ROOT / "launch" / "kapao_tracking.launch")
    arguments = [f"camera_ns:={given}", "server:=none", "follow:=true", "dashboard:=true"]
    XmlLoader().load(path, config, argv=arguments, verbose=False)
    nodes = {node.name: dict(node.remap_args) for node in config.nodes}
    params = {name: param.value for name, param in config.params.items()}
    several = ["front", "left"] if "," in given else None
    for name in ("kapao_node", "run_recorder"):
        assert params.get(f"/{name}/camera_ns") == several
    assert ("camera_node" in nodes) == (several is None), "several are those of drivers that run"
    shown = {name: nodes[name].get("kapao/people") for name in ("follower_node", "dashboard_node")}
    assert set(shown.values()) == ({"front/kapao/people"} if several else {None}), "of the first"
    name = "camera" if several else given.strip("[]")
    for node in ("kapao_node", "run_recorder", *([] if several else ["camera_node"])):
        assert nodes[node]["camera/image_raw"] == f"{name}/image_raw"
    assert nodes["kapao_node"]["camera/camera_info"] == f"{name}/camera_info"
