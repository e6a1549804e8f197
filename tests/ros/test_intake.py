"""An image that comes plain and compressed, while a node finds out which there are, is one image."""

import types

import pytest

rospy = pytest.importorskip("rospy")
pytestmark = pytest.mark.ros


def test_an_image_that_comes_in_both_forms_is_taken_once(monkeypatch):
    from sensor_msgs.msg import CompressedImage, Image

    from edge_offload.nodes.inference import intake

    subscriber = types.SimpleNamespace(get_num_connections=lambda: 0)
    monkeypatch.setattr(intake.rospy, "Subscriber", lambda *_, **__: subscriber)
    taken = []
    health = types.SimpleNamespace(count=lambda *_: None)
    node = types.SimpleNamespace(params={}, callback=lambda call: call, health=health)
    images = intake.ImageIntake(node, "image", "auto", taken.append, False)

    def publish(kind, second):
        message = kind()
        message.header.stamp = rospy.Time(second)
        message._connection_header = {}
        images._on_image(message)

    for second in (5, 4, 4):
        publish(Image, second)
    assert len(taken) == 3, "stamps of one form may go back or stand"
    images._compressed = images._subscribe_topic("image/compressed", CompressedImage)
    for kind, second in ((CompressedImage, 6), (Image, 6), (Image, 7), (CompressedImage, 7), (Image, 8), (Image, 9),
                         (CompressedImage, 8), (CompressedImage, 9), (CompressedImage, 10)):  # fmt: skip
        publish(kind, second)
    assert [frame.message.header.stamp.secs for frame in taken[3:]] == [6, 7, 8, 9, 10]
    images._compressed = None
    publish(Image, 10)
    assert len(taken) == 9, "one form alone again"


@pytest.mark.parametrize("transport", ["auto", "compressed"])
@pytest.mark.parametrize("topic", ["/cam/image_raw", "/cam/image_raw/compressed"])
def test_a_topic_that_is_called_compressed_is_not_subscribed_to_as_another_type(monkeypatch, topic, transport):
    from sensor_msgs.msg import CompressedImage, Image

    from edge_offload.nodes.inference import intake

    subscribed = []
    monkeypatch.setattr(intake.rospy, "Subscriber", lambda name, kind, *_, **__: subscribed.append((name, kind)))
    node = types.SimpleNamespace(params={}, callback=lambda call: call, health=None)
    intake.ImageIntake(node, topic, transport, print, False)
    plain = transport == "auto" and topic == "/cam/image_raw"
    assert subscribed == [(topic, Image) if plain else ("/cam/image_raw/compressed", CompressedImage)]


@pytest.mark.parametrize("transport", ["auto", "compressed"])
def test_compressed_images_are_searched_next_to_the_remapped_topic(monkeypatch, transport):
    """``camera/image_raw:=/front/image_raw`` of a node of one's own, whose camera has compressed images alone."""
    from sensor_msgs.msg import CompressedImage

    from edge_offload.nodes.inference import intake

    subscribed, subscriber = [], types.SimpleNamespace(get_num_connections=lambda: 0)
    monkeypatch.setattr(intake.rospy, "Subscriber", lambda name, *_, **__: subscribed.append(name) or subscriber)
    monkeypatch.setattr(intake.rospy, "resolve_name", {"camera/image_raw": "/front/image_raw"}.get)
    published = [["/front/image_raw/compressed", CompressedImage._type]]
    monkeypatch.setattr(intake.rospy, "get_published_topics", lambda: published)
    node = types.SimpleNamespace(params={}, callback=lambda call: call, health=intake.Health())
    intake.ImageIntake(node, "camera/image_raw", transport, print, False).refresh()
    assert subscribed[-1] == "/front/image_raw/compressed"
