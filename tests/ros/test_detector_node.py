"""A detector of the user's own as a process: here and on a server, and in the field's messages where there are any."""

from __future__ import annotations

import time

import pytest

from tests.ros.ros_rig import free_port, wait_for, wait_for_readers

PARAMS = {"model": "tiny_detector:make", "detector": "tiny_detector:Spot", "threads": 1}


def start(graph, images, **params):
    """The detector node, ready for images; what it answers."""
    from edge_offload_msgs.msg import Latency, ObjectArray

    objects, latency = graph.listen("detector/objects", ObjectArray), graph.listen("offload/latency", Latency)
    node = graph.node("detector_node", keys=str(graph.keys), **{**PARAMS, **params})
    wait_for(lambda: objects.connected and latency.connected, "the start of the node", 90)
    images.wait()
    return node, objects, latency


def test_a_detector_has_equal_results_locally_and_on_the_server(graph, images):
    from sensor_msgs.msg import Image

    address = f"tcp://127.0.0.1:{free_port()}"
    graph.node("offload_server_node", bind=address, keys=str(graph.keys), allow=[PARAMS["model"]], threads=1)
    masks = graph.listen("detector/mask", Image)
    _, objects, latency = start(graph, images, server=address, mode="server", server_wait=60.0)
    images.send(x=60, y=40)
    wait_for(lambda: len(latency) == 1, "the first answer")

    def offloaded():
        images.send(x=60, y=40)
        count = len(images.stamps)
        wait_for(lambda: len(latency) == count, "an answer")
        return latency.messages[-1].mode == "server"

    wait_for(offloaded, "a frame that the server computed")
    assert latency.messages[-1].round_trips == 1
    assert {latency.messages[0].mode, latency.messages[-1].mode} <= {"local", "server"}
    detections = objects.messages[-1]
    (spot,) = detections.objects
    assert (spot.class_id, spot.label, detections.model) == (1, "spot", PARAMS["model"])
    assert (detections.image_width, detections.image_height) == (128, 96)
    assert spot.x_min < 60 < spot.x_max
    assert spot.y_min < 40 < spot.y_max
    everywhere = {(o.x_min, o.y_min, o.x_max, o.y_max, o.score) for m in objects.messages for o in m.objects}
    assert len(everywhere) == 1, "to the bit"
    wait_for(lambda: len(masks) > 0, "a mask")
    mask = masks.messages[-1]
    assert (mask.encoding, mask.width, mask.height) == ("mono8", 128, 96)
    assert mask.data[40 * 128 + 60] == 2
    assert mask.data[0] == 0


def test_an_odd_answer_of_the_users_class_costs_no_frame(graph, images):
    node, objects, latency = start(graph, images, every_frame=True)
    images.send(y=40)
    images.send(data=bytes(96 * 128 * 3))  # dark: interpret() returns a text
    images.send(y=40)
    wait_for(lambda: len(objects) == len(latency) == 3, "three answers", 30)
    assert [len(message.objects) for message in objects.messages] == [1, 0, 1]
    assert "interpret returned a str" in latency.messages[1].error
    assert node.running


def test_detections_are_published_as_vision_msgs(graph, images):
    vision = pytest.importorskip("vision_msgs.msg", reason="vision_msgs is not installed (scripts/setup --vision-msgs)")
    import rospy

    detections = graph.listen("detector/detections", vision.Detection2DArray)
    info = graph.listen("detector/detections/info", vision.VisionInfo)
    _, objects, _ = start(graph, images)
    wait_for(lambda: detections.connected, "the topic")
    stamp = images.send(x=60, y=40)
    wait_for(lambda: len(detections) == 1 and len(objects) == 1, "both answers")
    (one,), (spot,) = detections.messages[0].detections, objects.messages[0].objects
    assert one.header.stamp.to_nsec() == stamp
    assert one.results[0].id == 1
    assert one.results[0].score == pytest.approx(spot.score)
    assert one.bbox.center.x == pytest.approx((spot.x_min + spot.x_max) / 2)
    assert one.bbox.size_y == pytest.approx(spot.y_max - spot.y_min)
    assert rospy.get_param(info.messages[0].database_location) == {"0": "none", "1": "spot"}


@pytest.fixture
def robot():
    """Static tf of a robot, with frames that no other test has: the map, an eye 1 m above it, a LiDAR above the eye."""
    import numpy as np
    import tf2_ros

    from edge_offload.nodes.common.convert import transform_message
    from edge_offload.perception.geometry import Transform

    class Robot:
        eye = Transform(np.array([[0.0, 0, 1], [-1, 0, 0], [0, -1, 0]]), np.array([3.0, -2.0, 1.0]))
        lidar = Transform(np.eye(3), np.array([3.0, -2.0, 1.3]))

        def publish(self):
            import rospy

            self.broadcaster = tf2_ros.StaticTransformBroadcaster()
            poses = {"eye_of_robot": self.eye, "lidar_of_robot": self.lidar}
            self.broadcaster.sendTransform(
                [transform_message(pose, rospy.Time(1), "map_of_robot", name) for name, pose in poses.items()]
            )

        def cloud(self, stamp):
            """A plate 5 m before the eye, a wall behind it and the floor, as the LiDAR sees them."""
            from std_msgs.msg import Header

            from edge_offload.nodes.common.convert import points_to_cloud

            across, up = (each.ravel() for each in np.meshgrid(np.linspace(-1, 1, 41), np.linspace(-1, 1, 41)))
            solids = [
                np.stack([np.full(across.size, 5.0), 0.6 * across, 0.6 * up], axis=1),
                np.stack([np.full(across.size, 12.0), 9 * across, 4 * up], axis=1),
                np.stack([6 + 5 * across, 5 * up, np.full(across.size, -1.0)], axis=1),
            ]
            seen = np.concatenate(solids) + self.eye.translation - self.lidar.translation
            points = np.concatenate([seen, np.zeros((len(seen), 1))], axis=1)
            return points_to_cloud(points, Header(stamp=stamp, frame_id="lidar_of_robot"))

    made = Robot()
    yield made
    if hasattr(made, "broadcaster"):  # a test that is skipped publishes nothing
        made.broadcaster.pub_tf.unregister()


def test_an_object_has_its_position_from_the_points_of_a_lidar_in_its_box(graph, images, robot):
    """Cloud, calibration and tf of a made-up robot: in our message, in the field's, and as markers."""
    import rospy
    from sensor_msgs.msg import CameraInfo, PointCloud2
    from std_msgs.msg import Header
    from visualization_msgs.msg import MarkerArray

    from edge_offload_msgs.msg import Object

    vision = pytest.importorskip("vision_msgs.msg", reason="vision_msgs is not installed (scripts/setup --vision-msgs)")
    node, objects, _ = start(graph, images, every_frame=True, cloud=True, world_frame="map_of_robot")
    space, markers = (
        graph.listen("detector/detections_3d", vision.Detection3DArray), graph.listen("detector/markers", MarkerArray)
    )  # fmt: skip
    info = graph.publisher("camera/camera_info", CameraInfo, latch=True)
    clouds = graph.publisher("lidar/points", PointCloud2)
    info.publish(CameraInfo(width=128, height=96, K=[100, 0, 64, 0, 100, 48, 0, 0, 1], distortion_model="plumb_bob"))
    wait_for_readers(clouds, info)
    wait_for(lambda: space.connected and markers.connected, "the topics")

    def send(cloud):
        stamp = rospy.Time(1_700_000_000 + len(images.stamps))
        if cloud:
            clouds.publish(robot.cloud(stamp - rospy.Duration(0, 40_000_000)))
            time.sleep(0.3)
        count = len(objects)
        images.send(x=70, y=40, header=Header(stamp=stamp, frame_id="eye_of_robot"))
        return wait_for(lambda: len(objects) > count and objects.messages[-1], "the answer").objects[0]

    lost = send(cloud=False)
    assert lost.position_source == Object.UNKNOWN
    wait_for(lambda: graph.has_status(node, 1, "name its topic (cloud_topic:=)"), "the word of the silent LiDAR")
    robot.publish()

    def placed():
        """On a busy machine tf or the cloud may come after the image."""
        spot = send(cloud=True)
        return spot if spot.position_source == Object.LIDAR else None

    spot = wait_for(placed, "a position")
    assert spot.position_frame == "map_of_robot"
    # 5 m ahead of the eye; left and up as the middle of the box is
    u, v = (spot.x_min + spot.x_max) / 2, (spot.y_min + spot.y_max) / 2
    where = [3.0 + 5.0, -2.0 - 5.0 * (u - 64) / 100, 1.0 - 5.0 * (v - 48) / 100]
    assert [spot.position.x, spot.position.y, spot.position.z] == pytest.approx(where, abs=0.02)
    assert 0 < spot.position_covariance[0] < 0.02
    wait_for(lambda: graph.has_status(node, 0), "a green light")
    wait_for(lambda: len(space) and space.messages[-1].detections and len(markers), "the other messages")
    (one,) = space.messages[-1].detections
    assert (one.header.frame_id, one.results[0].id) == ("map_of_robot", 1)
    point = one.results[0].pose.pose.position
    assert [point.x, point.y, point.z] == pytest.approx(where, abs=0.02)
    assert one.bbox.size.x == pytest.approx(5.0 * (spot.x_max - spot.x_min) / 100, rel=0.02)
    label = next(marker for marker in markers.messages[-1].markers if marker.ns == "labels")
    assert (label.text, label.header.frame_id) == ("spot (lidar)", "map_of_robot")


def test_a_person_has_a_position_from_a_lidar_too(graph, images, robot):
    import rospy
    from sensor_msgs.msg import CameraInfo, PointCloud2
    from std_msgs.msg import Header

    from edge_offload_msgs.msg import Person, PersonArray

    people = graph.listen("kapao/people", PersonArray)
    graph.node("kapao_node", model="tiny_people:make", threads=1, cloud=True, world_frame="map_of_robot")
    info = graph.publisher("camera/camera_info", CameraInfo, latch=True)
    clouds = graph.publisher("lidar/points", PointCloud2)
    info.publish(CameraInfo(width=128, height=96, K=[100, 0, 64, 0, 100, 48, 0, 0, 1], distortion_model="plumb_bob"))
    robot.publish()
    wait_for_readers(clouds, info, images.publisher)

    def person():
        stamp = rospy.Time(1_700_000_000 + len(images.stamps))
        clouds.publish(robot.cloud(stamp))
        time.sleep(0.3)
        count = len(people)
        images.send(header=Header(stamp=stamp, frame_id="eye_of_robot"))
        (person_message,) = wait_for(lambda: len(people) > count and people.messages[-1], "the answer").people
        return person_message if person_message.position_source == Person.LIDAR else None

    located = wait_for(person, "a position")
    assert located.position_frame == "map_of_robot"
    assert located.position.x == pytest.approx(3.0 + 5.0, abs=0.02)


def test_without_vision_msgs_the_node_names_the_package(graph, images):
    node, _, _ = start(graph, images)
    key = f"{graph.ns}/detector/detections"
    wait_for(lambda: "detector/detections" in graph.values(node) or key in graph.values(node), "its figures")
    value = graph.values(node).get("detector/detections", "")
    try:
        import vision_msgs  # noqa: F401
    except ImportError:
        assert "scripts/setup --vision-msgs" in value
    else:
        assert value == "published"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": ""}, "names no model"),
        ({"model": "tiny_detector:maek"}, "has no attribute 'maek'"),
        ({"detector": "tiny_detector:Brightest"}, "is no class of detectors"),
    ],
)
def test_a_detector_that_cannot_be_made_ends_the_node_in_one_line(graph, changes, message):
    node = graph.node("detector_node", keys=str(graph.keys), **{**PARAMS, **changes})
    assert node.wait(90) == 1
    assert message in node.output
    assert "Traceback" not in node.output
