"""Intake of a node with a network: images (raw or compressed), the instant of each, calibration, pose."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Deque, Dict, Mapping, Optional, Tuple

import rospy
from sensor_msgs.msg import CameraInfo, CompressedImage, Image

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.manager.turn_taker import Claim
from edge_offload.nodes.camera.calibration import (
    camera_of,
    fit_calibration,
    is_rectified,
    published_size,
    rectify_calibration,
)
from edge_offload.nodes.common.base import Owner
from edge_offload.nodes.common.health import Health, Losses
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.common.poses import Interval, Pose, PoseLookup, Poses, frame_name, waits_until
from edge_offload.nodes.common.topic_types import others_of
from edge_offload.perception import timeline
from edge_offload.perception.geometry import PinholeCamera
from edge_offload.perception.locator import Locator
from edge_offload.perception.timeline import UNKNOWN, Instant, Timeline

BUFFER_BYTES = 2**24
"""A subscriber reads so much at a time. rospy's default of 64 kB holds no image, and its age then grows without end."""

SILENCE_S = 3.0

AUTO, NO_FRAME, DEFAULT_FRAME = "auto", "none", "map"
WORLD_FRAME = Param(
    "world_frame",
    AUTO,
    "tf frame of the positions, its ground at z = 0; auto: map, without a warning if there is no tf; "
    "none: no positions on the ground",
)
"""Parameter of nodes that tell where things are."""


FAULTS = {
    timeline.ZERO: "are 0; have the driver write the time of capture into header.stamp",
    timeline.STANDING: "are that of the message before; have the driver stamp each one, or publish /clock more often",
    timeline.SLOW: "hardly go on; check the unit of the driver's clock: header.stamp has seconds and nanoseconds",
    timeline.BACKWARD: "are older than that of the message before; have the driver publish in the order of capture",
    timeline.JUMP: "are far off those around them; check the clock of the driver (chronyc tracking)",
    timeline.FUTURE: "are ahead of the clock of this machine; set both clocks by NTP (chrony)",
    timeline.PAST: "are far behind the clock of this machine; have the driver stamp by it (a LiDAR that counts from "
    "its start: by PTP, or by arrival), or play the bag with --clock and /use_sim_time",
}
"""What is told of stamps, by what is wrong with them."""


@dataclass
class Frame:
    """A message and when it came on the monotonic clock (seconds).

    Attributes:
        instant: when it was taken; frames are told apart, ordered and timed by it, not by their stamps.
        ticket: of its inference, in the order of inferences.
        claim: its turn at the server.
        pixels: of an image, or the voxels that a sweep hit, where they are decoded already.
        until_s: how long its result may wait for what comes late, on the monotonic clock.
        pose: where its sensor was, looked up in tf.
        camera: namespace of the camera that it is from, where there are several.
    """

    message: Any
    received_s: float
    instant: Instant = UNKNOWN
    ticket: Optional[int] = None
    claim: Optional[Claim] = None
    pixels: Optional[Array] = None
    until_s: float = -math.inf
    pose: Optional[Pose] = None
    camera: str = ""


class Arrivals:
    """Gives the frames of one topic their instants, and tells of stamps that are not plausible.

    Args:
        health: where that is told.
        what: the messages are, such as images.
        params: of the node: how long its results may wait.
        camera: of the frames, where there are several.
    """

    def __init__(self, health: Health, what: str, params: Mapping[str, Any], camera: str = "") -> None:
        self._health, self._what, self._params, self._camera = health, what, params, camera
        self._interval = Interval()
        self._timeline = Timeline()
        self._recording = 0
        self._lock = threading.Lock()

    def make_frame(self, message: Any, received_s: float) -> Frame:
        """A message that came at ``received_s`` (monotonic seconds). A leading slash of its frame_id is dropped."""
        header = message.header
        header.frame_id = frame_name(header.frame_id)
        with self._lock:
            instant = self._timeline.make_instant(header.stamp.to_nsec(), received_s, _clock_ns())
            until_s = waits_until(received_s, self._interval.update_interval(received_s), self._params)
        if instant.recording != self._recording:
            self._recording = instant.recording
            self._health.count("recordings that began anew")
        return Frame(message, received_s, instant, until_s=until_s, camera=self._camera)

    def refresh(self) -> None:
        """Tell of the newest stamps. Call it about once a second."""
        with self._lock:
            faults, counted = self._timeline.fault_counts.most_common(), self._timeline.counted_frames
        if not faults:
            self._health.clear("stamps")
            return
        causes = ", ".join(f"{count} {FAULTS[fault]}" for fault, count in faults)
        self._health.warn("stamps", f"stamps of the last {counted} {self._what}: {causes}")


def tf_time(header: Any, instant: Instant) -> rospy.Time:
    """The time at which tf is asked for poses of a frame: its stamp, or the newest there is (0)."""
    return header.stamp if instant.has_valid_stamp else rospy.Time()


def _clock_ns() -> int:
    """The ROS clock; 0 while there is none."""
    return int(rospy.Time.now().to_nsec()) if rospy.rostime.is_rostime_initialized() else 0


class ImageIntake:
    """Subscribes to an image topic and offers every message; finds out by itself whether it is compressed.

    Frames that were lost on the way (gaps in ``header.seq``) are counted as ``frames lost before this node``.
    """

    def __init__(
        self,
        node: Owner,
        topic: str,
        transport: str,
        offer_frame: Callable[[Frame], object],
        queue_all: bool,
        camera: str = "",
    ) -> None:
        self._node = node
        self._topic = topic
        # a name of its own for rospy: the images may be remapped and this one not
        self._compressed_topic = f"{rospy.resolve_name(topic)}/compressed"
        named = rospy.resolve_name(topic).endswith("/compressed")
        # drivers log a long error for a subscriber of another type
        self._transport = transport = "compressed" if named and transport == "auto" else transport
        self._offer_frame = offer_frame
        self._arrivals = Arrivals(node.health, "images", node.params, camera)
        self._last: Optional[Tuple[str, int]] = None
        self._newest: Dict[Any, rospy.Time] = {}
        self._news_s = time.monotonic()
        self._closed = False
        # every message is offered, and the queue of frames drops what is too old: 64 cannot come in between.
        # In queue_all mode nothing may be dropped, whatever comes.
        self._queue = None if queue_all else 64
        self._raw: Optional[rospy.Subscriber] = None
        self._compressed: Optional[rospy.Subscriber] = None
        if transport != "compressed":
            self._raw = self._subscribe_topic(topic, Image)
        if transport == "compressed":
            self._compressed = self._subscribe_topic(topic if named else self._compressed_topic, CompressedImage)

    def _subscribe_topic(self, topic: str, kind: Any) -> rospy.Subscriber:
        return rospy.Subscriber(
            topic, kind, self._node.callback(self._on_image), queue_size=self._queue, buff_size=BUFFER_BYTES
        )

    def _on_image(self, message: Any) -> None:
        self._news_s = time.monotonic()
        if self._raw is not None and self._compressed is not None:
            # until it is known whether there are plain images, each may come in both forms
            kind, stamp = message._type, message.header.stamp
            if any(stamp <= newest for other, newest in self._newest.items() if other != kind):
                return
            self._newest[kind] = stamp
        publisher, seq = message._connection_header.get("callerid", ""), message.header.seq
        if self._last is not None and self._last[0] == publisher and 1 < seq - self._last[1] < 1000:
            self._node.health.count("frames lost before this node", seq - self._last[1] - 1)
        self._last = (publisher, seq)
        self._offer_frame(self._arrivals.make_frame(message, self._news_s))

    def refresh(self) -> None:
        """Look for a publisher, and tell when images stay away. Call it about once a second."""
        if self._closed:
            return
        if self._transport == "auto":
            self._follow_publisher()
        self._arrivals.refresh()
        health, topic = self._node.health, rospy.resolve_name(self._topic)
        silent = time.monotonic() - self._news_s
        if silent <= SILENCE_S:
            health.clear("images")
        elif self._last is None:
            if health.warn(
                "images", f"no image on {topic} yet; check the camera or name its topic{self._other_topics(topic)}"
            ):
                rospy.logwarn(f"no image on {topic} yet{self._other_topics(topic)}")
        else:
            health.warn("images", f"no image on {topic} for {silent:.0f} s; check its driver and the network")

    def _follow_publisher(self) -> None:
        raw = self._raw is not None and self._raw.get_num_connections() > 0
        if raw and self._compressed is not None:
            self._compressed.unregister()
            self._compressed = None
        if raw or self._compressed is not None:
            return
        try:
            published = rospy.get_published_topics()
        except OSError:
            # the master is away; it may come back
            return
        if [rospy.resolve_name(self._topic), CompressedImage._type] in published and self._raw is not None:
            # the topic that was named has compressed images itself: rospy takes one type of a topic at a time
            self._raw.unregister()
            self._raw = None
            self._compressed = self._subscribe_topic(self._topic, CompressedImage)
        elif [self._compressed_topic, CompressedImage._type] in published:
            self._compressed = self._subscribe_topic(self._compressed_topic, CompressedImage)

    @staticmethod
    def _other_topics(topic: str) -> str:
        """Topics that do have images: the one asked for may be misspelt."""
        try:
            published = rospy.get_published_topics()
        except OSError:
            return ""
        images = [name for name, kind in published if kind in (Image._type, CompressedImage._type) and name != topic]
        seen = [name for name in images if not name.endswith(("/overlay", "/overlay/compressed"))]
        return f" (there are images on {', '.join(sorted(seen))})" if seen else ""

    def close(self) -> None:
        self._closed = True
        for subscriber in (self._raw, self._compressed):
            if subscriber is not None:
                subscriber.unregister()


class CameraIntake:
    """The camera behind the images: its calibration by ``CameraInfo``, its place by tf.

    Attributes:
        world: tf frame of the positions; empty: none is asked for.
        poses: what tf says; the cameras of a node share it.
        places: positions are what the node is for; else ``auto`` asks for them only where tf has the frame.
    """

    def __init__(
        self, node: Owner, topic: str, images: str, world_frame: str, poses: Optional[Poses] = None
    ) -> None:  # fmt: skip
        self._node, self._topic = node, topic
        self._rectified = is_rectified(rospy.resolve_name(images))
        self.world = frame_name({NO_FRAME: "", AUTO: DEFAULT_FRAME}.get(world_frame, world_frame))
        self._requested, self.places = world_frame not in ("", NO_FRAME, AUTO), True
        self._carried = bool(node.params.get("carry"))
        # each once, as long as it stays the same: a driver may move the region that it reads while frames are computed
        self._infos: Deque[Any] = deque(maxlen=16)
        self._received = threading.Event()
        self._cached: Optional[Tuple[Any, PinholeCamera]] = None
        self.poses = poses or Poses()
        self._lookup = PoseLookup(self.poses, "~world_frame (none: no positions on the ground)", self._carried)
        self._losses = Losses("results without a position" + (f" in {self.world!r}" if self.world else ""))
        node.health.watch("positions", self._losses.describe_losses)
        rospy.Subscriber(topic, CameraInfo, node.callback(self._on_info), queue_size=4)

    def _on_info(self, message: Any) -> None:
        if not self._infos or _without_header(message) != _without_header(self._infos[-1]):
            self._infos.append(message)
        self._received.set()

    def wait_for_size(self, wait_s: float) -> Optional[Tuple[int, int]]:
        """Width and height of the images in pixels; None when no CameraInfo comes within ``wait_s``."""
        if not self._received.wait(wait_s) or not (self._infos[-1].width and self._infos[-1].height):
            return None
        try:
            return published_size(self._infos[-1])
        except BadInput as error:
            self._node.health.warn("calibration", str(error))
            return None

    def make_locator(self, frame: Frame, width: int, height: int, make: Callable[..., Locator]) -> Optional[Locator]:
        """A locator for an image of this size; None while the camera is not calibrated.

        Waits for a pose that comes late, unless results are carried along.
        """
        camera, uncalibrated = self._fit_camera(frame, width, height)
        pose, unplaced = None, ""
        if self.world:
            place = self._look_up_pose(frame)
            pose = place.settle_transform(wait=camera is not None and not self._carried)
            unplaced = place.cause
        self._report_missing(uncalibrated, unplaced)
        if camera is None:
            return None
        return make(camera=camera, pose=pose, optical=frame.message.header.frame_id, world=self.world)

    def _report_missing(self, uncalibrated: str, unplaced: str) -> None:
        """Tell what is missing, where positions were asked for: by name, by a sensor, or by the other half of it."""
        ranges = any(self._node.params.get(name) for name in ("depth", "cloud"))
        if uncalibrated:
            requested = self._requested or ranges or bool(self.world and not unplaced)
        else:
            # drivers give calibrations unasked; where nobody publishes tf nobody wants to know where they are.
            # Boxes, and positions by a sensor, do without a map
            frames = self.poses.list_frames()
            requested = self._requested or (bool(frames) if self.places and not ranges else self.world in frames)
        if not requested:
            self._losses.clear()
        else:
            self._losses.note_loss(self._calibration_remedy if not self._infos else uncalibrated or unplaced)
        if uncalibrated or (not ranges and (unplaced or not self.world)):
            text = f"none: {uncalibrated or unplaced or 'no ~world_frame'}"
        elif unplaced or not self.world:
            text = f"in the camera's own frame: {unplaced or 'no ~world_frame'}"
        else:
            text = f"in {self.world}"
        self._node.health.value("positions", text)

    def _calibration_remedy(self) -> str:
        name = rospy.resolve_name(self._topic)
        return f"no CameraInfo on {name}; name its topic (info_topic:=){others_of(CameraInfo._type, name)}"

    def _fit_camera(self, frame: Frame, width: int, height: int) -> Tuple[Optional[PinholeCamera], str]:
        """The camera for images of this size, or why there is none."""
        infos = list(self._infos)
        # that of the frame's time; where stamps tell nothing, the newest
        past = [
            info for info in infos if frame.instant.has_valid_stamp and info.header.stamp <= frame.message.header.stamp
        ]
        info = (past or infos or [None])[-1]
        if info is None:
            return None, "no CameraInfo has come"
        if not info.width or not info.K[0]:
            return None, "the camera is not calibrated: K of its CameraInfo is 0; give the driver its calibration"
        key = (*_without_header(info), width, height)
        if self._cached is None or self._cached[0] != key:
            try:
                self._cached = (
                    key,
                    camera_of(fit_calibration(rectify_calibration(info) if self._rectified else info, width, height)),
                )
            except BadInput as error:
                self._node.health.warn("calibration", str(error))
                return None, str(error)
        self._node.health.clear("calibration")
        return self._cached[1], ""

    def _look_up_pose(self, frame: Frame) -> Pose:
        """Maps the camera's frame into the world's when the image was taken."""
        if frame.pose is None:
            header = frame.message.header
            at = tf_time(header, frame.instant)
            frame.pose = self._lookup.look_up(self.world, header.frame_id, at, frame.received_s, frame.until_s)
        return frame.pose

    def waits_s(self, frame: Frame) -> float:
        """Until when a frame's result may wait for its pose (monotonic seconds); -infinity: not at all."""
        return self._look_up_pose(frame).waits_s if self.world and self._infos else -math.inf


def _without_header(info: Any) -> Tuple[Any, ...]:
    return tuple(getattr(info, name) for name in info.__slots__ if name != "header")
