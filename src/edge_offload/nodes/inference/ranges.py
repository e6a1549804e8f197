"""What measures how far off things are, beside the images of a camera: depth images, and the clouds of a LiDAR."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from typing import Any, Deque, Optional, Sequence, Tuple

import numpy as np
import rospy
import tf2_ros
from sensor_msgs.msg import PointCloud2

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.nodes.common.base import Node
from edge_offload.nodes.common.convert import cloud_to_points, transform_of
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.inference.intake import BUFFER_BYTES, DepthIntake, Frame, tf_time
from edge_offload.perception.geometry import Position, Transform, depth_in_metres
from edge_offload.perception.locator import DEPTH, LIDAR, Locator

AUTO = "auto"
ODOMETRY_FRAME = "odom"

POSITIONS = (
    Param("depth", False, "use an aligned depth image for positions"),
    Param("depth_tolerance", 0.05, "s between an image and its depth image", low=0.0),
    Param("cloud", False, "use the clouds of a LiDAR for positions"),
    Param("cloud_tolerance", 0.2, "s between an image and its cloud", low=0.0),
    Param(
        "fixed_frame",
        AUTO,
        "tf frame that stands still, by which clouds are moved to the time of the image; auto: odom or ~world_frame",
    ),
)
"""Parameters of nodes that tell where things are."""

LEAST_OBJECTS = 20
"""Objects in a row that a source gives no position of, before that is told."""

_REMEDIES = {
    DEPTH: "check that depth images have values, and are aligned with the images",
    LIDAR: "check the tf between LiDAR and camera, and that the LiDAR looks where the camera does",
}


class RangeIntake:
    """Depth images and clouds of one node, where it is to use any; makes locators with those of a frame.

    Args:
        node: with the parameters :data:`POSITIONS`.
        buffer: of tf.
        world_frame: of the node.
    """

    def __init__(self, node: Node, buffer: tf2_ros.Buffer, world_frame: str) -> None:
        params = node.params
        self._health = node.health
        self._depth = (
            DepthIntake(node, "camera/depth/image_raw", params["depth_tolerance"]) if params["depth"] else None
        )
        fixed = params["fixed_frame"]
        frames = (ODOMETRY_FRAME, world_frame) if fixed == AUTO else (fixed,)
        self._clouds = (
            CloudIntake(node, "lidar/points", params["cloud_tolerance"], buffer, frames, fixed != AUTO)
            if params["cloud"]
            else None
        )
        self._without = {DEPTH: 0, LIDAR: 0}

    def locator(self, frame: Frame, size: Tuple[int, int], **settings: Any) -> Locator:
        """A locator for a frame of this ``size`` (width, height), with the depth image and the cloud of its time."""
        cloud, age_s = (None, 0.0) if self._clouds is None else self._clouds.at(frame)
        return Locator(depth=self._metres(frame, size), cloud=cloud, cloud_age_s=age_s, **settings)

    def _metres(self, frame: Frame, size: Tuple[int, int]) -> Optional[Array]:
        if self._depth is None:
            return None
        depth, encoding = self._depth.at(frame)
        if depth is not None and depth.shape != size[::-1]:
            self._health.warn("depth", f"depth image {depth.shape[::-1]} is not aligned with the image {list(size)}")
            return None
        return None if depth is None else depth_in_metres(depth, encoding)

    def account(self, locator: Optional[Locator], positions: Sequence[Optional[Position]]) -> None:
        """Tell what positions come from, and where a source that is asked for gives none.

        Args:
            locator: of the frame; None: the camera is not calibrated.
            positions: of what was seen in it.
        """
        if locator is None:
            cause = "no positions by depth or LiDAR: the camera is not calibrated"
            self._health.warn("ranges", f"{cause}; name the topic of its CameraInfo (info_topic:=)")
            return
        self._health.clear("ranges")
        for position in positions:
            self._health.count(f"positions by {'none' if position is None else position.source}")
        left = len(positions)
        for source, there in ((DEPTH, locator.depth is not None), (LIDAR, locator.cloud is not None)):
            by = sum(position is not None and position.source == source for position in positions)
            if by:
                self._without[source] = 0
            elif there:
                self._without[source] += left
            left -= by
            if self._without[source] >= LEAST_OBJECTS:
                count = self._without[source]
                self._health.warn(source, f"{source}: no position of the last {count} objects; {_REMEDIES[source]}")
            else:
                self._health.clear(source)


class CloudIntake:
    """Keeps the latest clouds of a LiDAR, to be found by the stamp of an image, or by its arrival.

    A cloud is moved into the frame of the camera, from its time to that of the image by a frame that stands still where
    tf has one. Else the places of both sensors on the robot are all that counts.

    Args:
        node: whose health tells what is missing.
        topic: of the clouds.
        tolerance_s: between an image and its cloud.
        buffer: of tf.
        fixed_frames: frames that stand still, the best first.
        asked: whether such a frame is asked for by name.
    """

    def __init__(
        self,
        node: Node,
        topic: str,
        tolerance_s: float,
        buffer: tf2_ros.Buffer,
        fixed_frames: Sequence[str],
        asked: bool,
    ) -> None:
        self._node, self._topic, self._tolerance_s = node, topic, tolerance_s
        self._buffer, self._fixed_frames, self._asked = buffer, [name for name in fixed_frames if name], asked
        self._lock = threading.Lock()
        self._recent: Deque[Tuple[Any, float]] = deque(maxlen=16)
        self._decoded: Tuple[Any, Array] = (None, np.zeros((0, 3)))
        rospy.Subscriber(topic, PointCloud2, node.callback(self._on_cloud), queue_size=4, buff_size=BUFFER_BYTES)

    def _on_cloud(self, message: Any) -> None:
        with self._lock:
            self._recent.append((message, time.monotonic()))

    def at(self, frame: Frame) -> Tuple[Optional[Array], float]:
        """Points [n, 3] of the nearest cloud in the camera's frame at the time of the image, and seconds between them.

        None when no cloud is near, it is faulty, or tf does not have the place of the LiDAR.
        """
        try:
            message, apart_s = self._nearest(frame)
            transform, cause = self._transform(frame, message)
            points = self._points(message) @ transform.rotation.T.astype(np.float32)
            points += transform.translation.astype(np.float32)
        except BadInput as error:
            self._node.health.warn("cloud", str(error))
            return None, 0.0
        if cause:
            self._node.health.warn("cloud", cause)
        else:
            self._node.health.clear("cloud")
        return points, apart_s

    def _nearest(self, frame: Frame) -> Tuple[Any, float]:
        """The cloud nearest to a frame and seconds between them, by stamps, or by arrivals if its stamp is faulty."""
        with self._lock:
            recent = list(reversed(self._recent))
        topic = rospy.resolve_name(self._topic)
        if not recent:
            raise BadInput(f"no cloud on {topic} yet", remedy="check the LiDAR, or name its topic (cloud_topic:=)")
        stamp, placeable = frame.message.header.stamp, frame.instant.placeable
        apart_s = [
            (message.header.stamp - stamp).to_sec() if placeable else received_s - frame.received_s
            for message, received_s in recent
        ]
        index = int(np.argmin(np.abs(apart_s)))
        off_s = apart_s[index]
        if abs(off_s) > self._tolerance_s:
            enough = math.ceil(abs(off_s) * 1.2 / 0.05) * 0.05
            than = f"{'younger' if off_s > 0 else 'older'} than the image"
            raise BadInput(
                f"the nearest cloud on {topic} is {abs(off_s):.2f} s {than}",
                remedy=f"give ~cloud_tolerance:={enough:.2g}" if abs(off_s) < 1 else "stamp both by one clock (NTP)",
            )
        return recent[index][0], abs(off_s)

    def _points(self, message: Any) -> Array:
        """Points [n, 3] of a cloud in its own frame; each cloud is decoded once."""
        if self._decoded[0] is not message:
            try:
                self._decoded = (message, cloud_to_points(message)[:, :3])
            except BadInput:
                self._node.health.count("bad clouds")
                raise
        return self._decoded[1]

    def _transform(self, frame: Frame, cloud: Any) -> Tuple[Transform, str]:
        """Maps a cloud's points into the camera's frame when the image was taken, and what is wrong with that."""
        camera, lidar = (header.frame_id.lstrip("/") for header in (frame.message.header, cloud.header))
        at, cause = tf_time(frame.message.header, frame.instant), ""
        for fixed in self._fixed_frames if at and cloud.header.stamp else ():
            try:
                found = self._buffer.lookup_transform_full_core(camera, at, lidar, cloud.header.stamp, fixed)
                self._node.health.value("clouds", f"moved to the time of the image by {fixed!r}")
                return transform_of(found), ""
            except tf2_ros.ExtrapolationException as error:
                cause = f"clouds are not moved to the time of the image, tf of {fixed!r} is late or short: {error}"
            except (tf2_ros.TransformException, BadInput, ValueError) as error:
                cause = f"clouds are not moved to the time of the image: {error}" if self._asked else cause
        self._node.health.value("clouds", "placed by where LiDAR and camera are on the robot alone")
        if camera == lidar:
            return Transform(np.eye(3), np.zeros(3)), cause
        try:
            return transform_of(self._buffer.lookup_transform_core(camera, lidar, at)), cause
        except (tf2_ros.TransformException, BadInput, ValueError) as error:
            raise BadInput(
                f"no pose of {lidar!r} in {camera!r}: {error}",
                remedy="publish where the LiDAR is (static_transform_publisher)",
            ) from None
