"""The field's messages for detections, ``vision_msgs``, where they are installed.

Debian has no package of them; ``scripts/setup --vision-msgs`` builds a pinned release. Without them nothing is missing
but these topics.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

import rospy

from edge_offload.arrays import Array
from edge_offload.nodes.common.health import Health
from edge_offload.nodes.inference.compose import copy_header

try:
    from vision_msgs import msg as vision
except ImportError:
    vision = None

ABSENT = "vision_msgs is not installed ('scripts/setup --vision-msgs', or apt install ros-noetic-vision-msgs)"


class DetectionPublisher:
    """Publishes ``vision_msgs/Detection2DArray``, if there is such a message.

    Args:
        topic: its name.
        labels: names of the classes, told on ``<topic>/info`` (``vision_msgs/VisionInfo``) and as its parameter.
        model: name of the model.
        health: is told where there is none.

    Attributes:
        topic: the publisher; None where there is none.
    """

    def __init__(self, topic: str, labels: Sequence[str], model: str, health: Health) -> None:
        self.topic: Optional[rospy.Publisher] = None
        health.value(topic, "published" if vision is not None else f"not published: {ABSENT}")
        if vision is None:
            return
        self.topic = rospy.Publisher(topic, vision.Detection2DArray, queue_size=100)
        names = rospy.resolve_name("~labels")
        rospy.set_param(names, {str(number): label for number, label in enumerate(labels)})
        self._info = rospy.Publisher(f"{topic}/info", vision.VisionInfo, queue_size=1, latch=True)
        self._info.publish(vision.VisionInfo(method=model, database_location=names))

    def publish(self, header: Any, boxes: Array, scores: Array, classes: Array) -> None:
        """One array for a frame, empty where nothing was found.

        Args:
            header: of the frame.
            boxes: float [n, 4], x1 y1 x2 y2 in pixels.
            scores: float [n].
            classes: int [n].
        """
        if self.topic is None or not self.topic.get_num_connections():
            return
        stamped = copy_header(header)
        message = vision.Detection2DArray(header=stamped)
        for (x1, y1, x2, y2), score, number in zip(boxes.tolist(), scores.tolist(), classes.tolist()):
            one = vision.Detection2D(header=stamped)
            one.bbox.center.x, one.bbox.center.y = (x1 + x2) / 2, (y1 + y2) / 2
            one.bbox.size_x, one.bbox.size_y = x2 - x1, y2 - y1
            one.results = [vision.ObjectHypothesisWithPose(id=number, score=score)]
            message.detections.append(one)
        self.topic.publish(message)
