"""Distances of objects in the images of a camera, from depth images and the clouds of a LiDAR."""

from __future__ import annotations

import math
from typing import Any, Callable, Optional, Sequence, Tuple

import numpy as np
from sensor_msgs.msg import PointCloud2

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.nodes.common.base import Owner
from edge_offload.nodes.common.convert import cloud_to_points
from edge_offload.nodes.common.health import Losses
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.common.poses import TF_WAIT, PoseLookup
from edge_offload.nodes.inference.depth import DepthIntake, MatchedIntake
from edge_offload.nodes.inference.intake import AUTO, WORLD_FRAME, CameraIntake, Frame, tf_time
from edge_offload.perception.geometry import Position, Transform, depth_in_metres
from edge_offload.perception.locator import DEPTH, LIDAR, Locator

ODOMETRY_FRAME = "odom"

POSITIONS = (
    WORLD_FRAME,
    TF_WAIT,
    Param("depth", False, "use an aligned depth image for positions"),
    Param("depth_tolerance", 0.05, "most s between an image and its depth image", low=0.0),
    Param("cloud", False, "use the clouds of a LiDAR for positions"),
    Param("cloud_tolerance", 0.2, "most s between an image and its cloud", low=0.0),
    Param(
        "fixed_frame",
        AUTO,
        "fixed tf frame, to move clouds to the time of the image; auto: odom or ~world_frame",
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
    """Depth images and clouds of a node; makes locators with those of a frame.

    Args:
        node: with the parameters :data:`POSITIONS`.
        camera: of its images.
        depth: topic of depth images.
    """

    def __init__(self, node: Owner, camera: CameraIntake, depth: str) -> None:
        params = node.params
        self._health, self._wait = node.health, not params.get("carry")
        self._depth = (
            DepthIntake(node, depth, params["depth_tolerance"]) if params["depth"] else None
        )  # fmt: skip
        self._clouds = CloudIntake(node, "lidar/points", camera) if params["cloud"] else None
        self._without = {DEPTH: 0, LIDAR: 0}

    @classmethod
    def from_node(
        cls, node: Owner, camera: CameraIntake, depth: str = "camera/depth/image_raw"
    ) -> Optional[RangeIntake]:  # fmt: skip
        """Make that of a node; None where it uses neither depth images nor clouds."""
        return cls(node, camera, depth) if node.params["depth"] or node.params["cloud"] else None

    def notify_with(self, call: Callable[[], None]) -> None:
        for sensor in (self._depth, self._clouds):
            if sensor is not None:
                sensor.notify_with(call)

    def waits_s(self, frame: Frame) -> float:
        """Until when a frame may wait for its depth image and its cloud (monotonic seconds); -infinity: not at all."""
        sensors = (self._depth, self._clouds)
        return max((sensor.waits_s(frame) for sensor in sensors if sensor is not None), default=-math.inf)

    def make_locator(self, frame: Frame, size: Tuple[int, int], **settings: Any) -> Locator:
        """A locator for a frame of this ``size`` (width, height), with the depth image and the cloud of its time."""
        depth, encoding = (None, "") if self._depth is None else self._depth.depth_at(frame, size, self._wait)
        metres = None if depth is None else depth_in_metres(depth, encoding)
        cloud, age_s = (None, 0.0) if self._clouds is None else self._clouds.points_at(frame, self._wait)
        return Locator(depth=metres, cloud=cloud, cloud_age_s=age_s, **settings)

    def report_sources(self, locator: Optional[Locator], positions: Sequence[Optional[Position]]) -> None:
        """Tell what positions come from, and where a source that is asked for gives none.

        Args:
            locator: of the frame; None: the camera is not calibrated.
            positions: of what was seen in it.
        """
        for position in positions:
            self._health.count(f"positions by {'none' if position is None else position.source}")
        remaining = len(positions)
        available = {DEPTH: locator and locator.depth is not None, LIDAR: locator and locator.cloud is not None}
        for source, remedy in _REMEDIES.items():
            by = sum(position is not None and position.source == source for position in positions)
            if by:
                self._without[source] = 0
            elif available[source]:
                self._without[source] += remaining
            remaining -= by
            count = self._without[source]
            if count >= LEAST_OBJECTS:
                self._health.warn(source, f"{source}: no position of the last {count} objects; {remedy}")
            else:
                self._health.clear(source)


class CloudIntake(MatchedIntake):
    """Takes in clouds, and moves them into the frame of the camera.

    From the time of a cloud to that of the image it is moved by a frame that stands still, where tf has one. Else the
    places of both sensors on the robot are all that counts.

    Args:
        node: with the parameters :data:`POSITIONS`.
        topic: of the clouds.
        camera: whose frame they are moved into.
    """

    kind = PointCloud2
    what = "cloud"
    remedy = "check the LiDAR, or name its topic (cloud_topic:=)"
    unmatched = "give ~cloud_tolerance"

    def __init__(self, node: Owner, topic: str, camera: CameraIntake) -> None:
        super().__init__(node, topic, node.params["cloud_tolerance"])
        fixed, carried = node.params["fixed_frame"], bool(node.params.get("carry"))
        self._required = fixed != AUTO
        self._fixed_frames = [name for name in ([fixed] if self._required else [ODOMETRY_FRAME, camera.world]) if name]
        self._eyes = PoseLookup(camera.poses, "~fixed_frame", carried)
        self._sweeps = PoseLookup(camera.poses, "~fixed_frame", carried)
        self._mounts = PoseLookup(camera.poses, carried=carried)
        self._unmoved = Losses("clouds not moved to the time of their image")
        node.health.watch("clouds that move", self._unmoved.describe_losses)
        self._decoded: Tuple[Any, Array] = (None, np.zeros((0, 3), np.float32))

    def points_at(self, frame: Frame, wait: bool = True) -> Tuple[Optional[Array], float]:
        """Points [n, 3] of the nearest cloud in the camera's frame at the time of the image, and seconds between them.

        None when no cloud is near, it is faulty, or tf does not have the place of the LiDAR.

        Args:
            frame: of the camera.
            wait: for a cloud or a pose that comes late.
        """
        try:
            message, later_s = self.match_message(frame, wait)
            points = self._decode_points(message)
            transform = self._follow_motion(frame, message, wait) or self._mounted_transform(frame, message, wait)
        except BadInput as error:
            self._losses.note_loss(str(error))
            return None, 0.0
        self._losses.note_loss()
        moved: Array = points @ transform.rotation.T.astype(np.float32) + transform.translation.astype(np.float32)
        return moved, later_s

    def _decode_points(self, message: Any) -> Array:
        """Points [n, 3] of a cloud in its own frame; each cloud is decoded once."""
        if self._decoded[0] is not message:
            try:
                self._decoded = (message, cloud_to_points(message)[:, :3])
            except BadInput:
                self._node.health.count("bad clouds")
                raise
        return self._decoded[1]

    def _follow_motion(self, frame: Frame, cloud: Any, wait: bool) -> Optional[Transform]:
        """Maps a cloud's points into the camera's frame when the image was taken, by a frame that stands still.

        None where tf has no such frame, or the stamps do not tell.
        """
        at, cause = tf_time(frame.message.header, frame.instant), ""
        for fixed in self._fixed_frames if at and cloud.header.stamp else ():
            times = frame.received_s, frame.until_s
            camera = self._eyes.look_up(fixed, frame.message.header.frame_id, at, *times)
            lidar = self._sweeps.look_up(fixed, cloud.header.frame_id, cloud.header.stamp, *times)
            if not (self._required or self._is_connected(camera)):
                continue
            eye, sensor = camera.settle_transform(wait), lidar.settle_transform(wait)
            if eye is not None and sensor is not None:
                self._unmoved.note_loss()
                self._node.health.value("clouds", f"moved to the time of the image by {fixed!r}")
                return eye.inverse().compose_after(sensor)
            cause = cause or f"by {fixed!r}: {camera.cause or lidar.cause}"
        if cause:
            self._unmoved.note_loss(cause)
        else:
            self._unmoved.clear()
        self._node.health.value("clouds", "placed by where LiDAR and camera are on the robot alone")
        return None

    @staticmethod
    def _is_connected(pose: Any) -> bool:
        """Tell whether tf joins both frames of a pose at any time."""
        return pose.available or not math.isnan(pose.ahead_s)

    def _mounted_transform(self, frame: Frame, cloud: Any, wait: bool) -> Transform:
        """Maps a cloud's points into the camera's frame by the places of both sensors when the image was taken.

        Raises:
            BadInput: tf does not have them.
        """
        header = frame.message.header
        at = tf_time(header, frame.instant)
        pose = self._mounts.look_up(header.frame_id, cloud.header.frame_id, at, frame.received_s, frame.until_s)
        transform = pose.settle_transform(wait)
        if transform is None:
            raise BadInput(f"no pose of {pose.source!r} in {pose.target!r}: {pose.cause}")
        return transform
