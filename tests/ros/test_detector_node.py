"""A detector of the user's own as a process: here and on a server, and in the field's messages where there are any."""

from __future__ import annotations

import pytest

from tests.ros.ros_rig import free_port, wait_for

OWN = {"model": "tiny_detector:make", "detector": "tiny_detector:Spot", "threads": 1}


def start(graph, images, **params):
    """The detector node, ready for images; what it answers."""
    from edge_offload_msgs.msg import Latency, ObjectArray

    objects, latency = graph.listen("detector/objects", ObjectArray), graph.listen("offload/latency", Latency)
    node = graph.node("detector_node", keys=str(graph.keys), **{**OWN, **params})
    wait_for(lambda: objects.connected and latency.connected, "the start of the node", 90)
    images.wait()
    return node, objects, latency


def test_a_detector_finds_the_same_here_and_on_the_server(graph, images):
    from sensor_msgs.msg import Image

    address = f"tcp://127.0.0.1:{free_port()}"
    graph.node("offload_server_node", bind=address, keys=str(graph.keys), allow=[OWN["model"]], threads=1)
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
    found = objects.messages[-1]
    (spot,) = found.objects
    assert (spot.class_id, spot.label, found.model) == (1, "spot", OWN["model"])
    assert (found.image_width, found.image_height) == (128, 96)
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


def test_detections_are_told_in_the_words_of_the_field(graph, images):
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


def test_without_those_messages_the_node_says_where_they_are_to_be_had(graph, images):
    node, _, _ = start(graph, images)
    key = f"{graph.ns}/detector/detections"
    wait_for(lambda: "detector/detections" in graph.values(node) or key in graph.values(node), "its figures")
    said = graph.values(node).get("detector/detections", "")
    try:
        import vision_msgs  # noqa: F401
    except ImportError:
        assert "scripts/setup --vision-msgs" in said
    else:
        assert said == "published"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": ""}, "names no model"),
        ({"model": "tiny_detector:maek"}, "has no attribute 'maek'"),
        ({"detector": "tiny_detector:Brightest"}, "is no class of detectors"),
    ],
)
def test_a_detector_that_cannot_be_made_ends_the_node_in_one_line(graph, changes, said):
    node = graph.node("detector_node", keys=str(graph.keys), **{**OWN, **changes})
    assert node.wait(90) == 1
    assert said in node.output
    assert "Traceback" not in node.output
