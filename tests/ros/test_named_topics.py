"""What is named is taken; a topic of another type is told, with its type and the argument that names another."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from tests.ros.ros_rig import wait_for, wait_for_readers


@pytest.fixture
def oak(tmp_path):
    """A bag of a camera whose namespace contains "depth", with colour and depth images."""
    rosbag, rospy = pytest.importorskip("rosbag"), pytest.importorskip("rospy")
    from sensor_msgs.msg import Image
    from std_msgs.msg import Header

    path = tmp_path / "oak.bag"
    with rosbag.Bag(str(path), "w") as out:
        for number in range(3):
            stamp = rospy.Time(100 + number)
            colour = Image(Header(stamp=stamp), 8, 8, "bgr8", 0, 24, bytes(192))
            out.write("/depthai/color/image_raw", colour, stamp)
    return str(path)


@pytest.mark.ros
@pytest.mark.parametrize("topic", ["", "/depthai/color/image_raw", "depthai/color/image_raw"])
def test_images_whose_name_contains_depth_are_taken(oak, topic):
    from edge_offload.nodes.camera.bag import BagImages

    images = BagImages(oak, topic)
    assert "/depthai/color/image_raw" in images.name
    assert images.read().shape == (8, 8, 3)


@pytest.mark.ros
def test_without_a_name_the_topic_is_taken_that_is_not_of_depth(oak):
    import rosbag
    import rospy
    from sensor_msgs.msg import Image
    from std_msgs.msg import Header

    from edge_offload.errors import BadInput
    from edge_offload.nodes.camera.bag import image_topic

    with rosbag.Bag(oak, "a") as out:
        for name in ("/front/depth/image_raw", "/front/image_raw"):
            out.write(name, Image(Header(), 8, 8, "mono8", 0, 8, bytes(64)), rospy.Time(200))
    with rosbag.Bag(oak) as bag:
        assert image_topic(bag, "")[0] == "/front/image_raw"
        assert image_topic(bag, "/front/depth/image_raw")[0] == "/front/depth/image_raw"
        with pytest.raises(BadInput, match="/depthai/color/image_raw, /front/depth/image_raw"):
            image_topic(bag, "/nowhere")


@pytest.mark.parametrize("transport", ["auto", "compressed"])
def test_a_topic_of_compressed_images_may_be_named_as_it_is(graph, transport):
    from sensor_msgs.msg import CompressedImage
    from std_msgs.msg import Header

    from edge_offload_msgs.msg import PersonArray

    people = graph.listen("kapao/people", PersonArray)
    publisher = graph.publisher("cam/image_raw/compressed", CompressedImage)
    remapped = f"camera/image_raw:={graph.ns}/cam/image_raw/compressed"
    graph.node("kapao_node", arguments=[remapped], model="tiny_people:make", threads=1, transport=transport)
    wait_for_readers(publisher)
    pixels = np.zeros((96, 128, 3), np.uint8)
    pixels[30:50, 50:70] = 255
    publisher.publish(CompressedImage(Header(), "jpeg", cv2.imencode(".jpg", pixels)[1].tobytes()))
    wait_for(lambda: len(people) and people.messages[0].people, "the answer")


def test_a_topic_of_another_type_is_reported_with_the_argument_that_names_another(graph):
    from sensor_msgs.msg import CameraInfo, Image, PointCloud2

    graph.publisher("camera/image_raw", PointCloud2)
    graph.publisher("camera/camera_info", Image)
    graph.publisher("front/camera_info", CameraInfo)
    node = graph.node("kapao_node", model="tiny_people:make", threads=1)
    wait_for(lambda: graph.complains(node, "camera/image_raw has sensor_msgs/PointCloud2"), "the word of it", 90)
    assert graph.has_status(node, 1, "give image_topic or depth_topic:=")
    # topics of other tests on this master may be named before and behind it
    wait_for(lambda: graph.complains(node, f"{graph.ns}/front/camera_info"), "the topic that has the type")
    assert graph.has_status(node, 1, "give info_topic:=")
