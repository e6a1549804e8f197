"""Publishes detections as ``vision_msgs``, in the image and in space, if that package is installed.

Debian has no package of it; ``scripts/setup --vision-msgs`` builds a pinned release. Only these topics need it.
"""

from __future__ import annotations

import math
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np
import rospy
from geometry_msgs.msg import Point, Pose, Quaternion, Vector3
from scipy.spatial.transform import Rotation

from edge_offload.arrays import Array
from edge_offload.nodes.common.health import Health
from edge_offload.nodes.inference.compose import copy_header
from edge_offload.perception.geometry import Position
from edge_offload.perception.locator import Extent, Locator

try:
    from vision_msgs import msg as vision
except ImportError:
    vision = None

ABSENT = "vision_msgs is not installed ('scripts/setup --vision-msgs', or apt install ros-noetic-vision-msgs)"


Place = Tuple[Position, Extent]
"""Where a detection is, and its rectangle, in one frame."""

ANY_TURN = math.pi**2 / 3
"""Variance of an angle of which nothing is known, square radians."""


def places_of(
    locator: Optional[Locator], boxes: Array, positions: Sequence[Optional[Position]]
) -> List[Optional[Place]]:
    """Return detections' places by boxes [n, 4] and positions of ``locator``; None: not known."""
    return [
        None if locator is None or position is None else (locator.to_world(position), locator.box_extent(box, position))
        for box, position in zip(boxes, positions)
    ]


def rectangle_pose(extent: Extent) -> Pose:
    """The pose of a detection's rectangle: x along its width, y along its height, z away from the camera."""
    x, y, z, w = Rotation.from_matrix(extent.rotation).as_quat().tolist()
    return Pose(Point(*extent.centre.tolist()), Quaternion(x=x, y=y, z=z, w=w))


class DetectionPublisher:
    """Publishes ``vision_msgs/Detection2DArray`` and ``Detection3DArray``, if there are such messages.

    Args:
        topic: name of the first; that of the second has ``_3d`` behind it.
        labels: names of the classes, told on ``<topic>/info`` (``vision_msgs/VisionInfo``) and as its parameter.
        model: name of the model.
        health: is told where there is none.

    Attributes:
        topic: the first publisher; None where there is none.
        space: the second one, likewise.
    """

    def __init__(self, topic: str, labels: Sequence[str], model: str, health: Health) -> None:
        self.topic: Optional[rospy.Publisher] = None
        self.space: Optional[rospy.Publisher] = None
        health.value(topic, "published" if vision is not None else f"not published: {ABSENT}")
        if vision is None:
            return
        self.topic = rospy.Publisher(topic, vision.Detection2DArray, queue_size=100)
        self.space = rospy.Publisher(f"{topic}_3d", vision.Detection3DArray, queue_size=100)
        names = rospy.resolve_name("~labels")
        rospy.set_param(names, {str(number): label for number, label in enumerate(labels)})
        self._info = rospy.Publisher(f"{topic}/info", vision.VisionInfo, queue_size=1, latch=True)
        self._info.publish(vision.VisionInfo(method=model, database_location=names))

    @property
    def watched(self) -> bool:
        return any(topic is not None and topic.get_num_connections() for topic in (self.topic, self.space))

    def publish_detections(self, header: Any, boxes: Array, scores: Array, classes: Array) -> None:
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

    def publish_places(
        self, header: Any, places: Sequence[Optional[Place]], scores: Array, classes: Array
    ) -> None:  # fmt: skip
        """One array for a frame, in space: of those detections whose position is known.

        Args:
            header: of the frame.
            places: of the detections.
            scores: float [n].
            classes: int [n].
        """
        if self.space is not None and self.space.get_num_connections():
            self.space.publish(places_message(header, places, scores, classes))


def places_message(header: Any, places: Sequence[Optional[Place]], scores: Array, classes: Array) -> Any:
    """The ``Detection3DArray`` of a frame, as :meth:`DetectionPublisher.publish_places` takes it."""
    stamped = copy_header(header)
    message = vision.Detection3DArray(header=stamped)
    for place, score, number in zip(places, scores.tolist(), classes.tolist()):
        if place is None:
            continue
        position, extent = place
        stamped.frame_id = position.frame
        one = vision.Detection3D(header=stamped)
        one.bbox.center = rectangle_pose(extent)
        one.bbox.size = Vector3(extent.width, extent.height, 0.0)
        result = vision.ObjectHypothesisWithPose(id=number, score=score)
        result.pose.pose = Pose(Point(*position.xyz.tolist()), Quaternion(w=1.0))
        covariance = np.diag([0.0] * 3 + [ANY_TURN] * 3)
        covariance[:3, :3] = position.covariance
        result.pose.covariance = covariance.ravel().tolist()
        one.results = [result]
        message.detections.append(one)
    return message
