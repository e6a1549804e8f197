"""Reads the images of a bag one after the other, as a source of frames."""

from __future__ import annotations

from typing import Any, Iterator, Optional, Tuple

import rosbag
from sensor_msgs.msg import CameraInfo, CompressedImage, Image

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.nodes.camera.calibration import is_rectified
from edge_offload.nodes.camera.frames import FrameSource
from edge_offload.nodes.common.bags import open_bag, read_messages
from edge_offload.nodes.common.convert import image_to_bgr

IMAGE_TYPES = {"sensor_msgs/Image": Image, "sensor_msgs/CompressedImage": CompressedImage}


class BagImages(FrameSource):
    """The images of one topic in the rhythm in which they were recorded.

    Args:
        path: of the bag.
        topic: of the images; empty: ``camera/image_raw``, or the only one that has some.
        info_topic: of their calibration; empty: ``camera_info`` beside the images.

    Attributes:
        info: the calibration in the bag; None when there is none.
        topic: of the images.

    Raises:
        BadInput: no bag, or not exactly one topic to take.
    """

    def __init__(self, path: str, topic: str = "", info_topic: str = "") -> None:
        self._bag = open_bag(path)
        self.topic, _ = image_topic(self._bag, topic)
        self.name = f"images on {self.topic} in {self._bag.filename}"
        # the median of the index; none for a single image
        frequency = self._bag.get_type_and_topic_info([self.topic]).topics[self.topic].frequency
        self.rate = min(1000.0, float(frequency)) if frequency else 0.0
        self.info, self.rectified = self._read_calibration(info_topic), is_rectified(self.topic)
        self._messages = self._iterate_messages()

    @classmethod
    def check(cls, value: str) -> None:
        # its topics are looked at with image_topic; where there are scenes it holds clouds
        open_bag(value).close()

    def _read_calibration(self, topic: str) -> Optional[CameraInfo]:
        info_topic = self.topic.rsplit("/compressed", 1)[0].rsplit("/", 1)[0] + "/camera_info"
        for _, message, _ in read_messages(self._bag, [topic or info_topic, f"/{(topic or info_topic).strip('/')}"]):
            return message if message._type == "sensor_msgs/CameraInfo" else None
        return None

    def _iterate_messages(self) -> Iterator[Any]:
        return (message for _, message, _ in read_messages(self._bag, [self.topic]))

    def read(self) -> Optional[Array]:
        message = next(self._messages, None)
        return None if message is None else image_to_bgr(message)

    def rewind(self) -> None:
        self._messages = self._iterate_messages()

    def close(self) -> None:
        self._bag.close()


def image_topic(bag: rosbag.Bag, requested: str) -> Tuple[str, Optional[type]]:
    """Topic of the images in ``bag`` and its message class. Without a name, topics of depth are left out of several.

    Raises:
        BadInput: ``requested`` has no images, or it is empty and not exactly one topic has.
    """
    types = {name: facts.msg_type for name, facts in bag.get_type_and_topic_info().topics.items()}
    topics = {name: IMAGE_TYPES[kind] for name, kind in types.items() if kind in IMAGE_TYPES}
    if requested:
        # as on the graph, a leading slash says no more where all names are global, and images may be compressed
        names = {name.strip("/"): name for name in topics}
        name = names.get(requested.strip("/")) or names.get(f"{requested.strip('/')}/compressed")
        if name is None:
            raise BadInput(
                f"no images on topic {requested} in {bag.filename}", remedy=f"it has: {', '.join(topics) or 'none'}"
            )
        return name, topics[name]
    # a guess, for which every topic is good enough that is alone
    topics = {name: kind for name, kind in topics.items() if "depth" not in name.lower()} or topics
    usual = [name for name in topics if name.strip("/") == "camera/image_raw"] if len(topics) > 1 else []
    if usual:
        return usual[0], topics[usual[0]]
    if len(topics) != 1:
        raise BadInput(
            f"{bag.filename} has {len(topics)} image topics",
            remedy=f"choose one (image_topic): {', '.join(topics)}"
            if topics
            else f"it has: {', '.join(f'{name} ({kind})' for name, kind in types.items()) or 'no messages'}",
        )
    return next(iter(topics.items()))
