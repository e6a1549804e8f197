"""What a network node takes in: images (raw or compressed), the instant of each, calibration, depth, pose."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Deque, Dict, Optional, Protocol, Tuple

import rospy
import tf2_ros
from sensor_msgs.msg import CameraInfo, CompressedImage, Image

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.manager.turn_taker import Claim
from edge_offload.nodes.camera.calibration import camera_of, fitted
from edge_offload.nodes.common.base import Node
from edge_offload.nodes.common.convert import depth_pixels, transform_of
from edge_offload.nodes.common.health import Health
from edge_offload.perception import timeline
from edge_offload.perception.geometry import Locator, PinholeCamera, Transform
from edge_offload.perception.timeline import UNKNOWN, Instant, Timeline

BUFFER_BYTES = 2**24
"""A subscriber reads so much at a time. rospy's default of 64 kB holds no image, and its age then grows without end."""

SILENCE_S = 3.0
MAX_GAP = 1000


FAULTS = {
    timeline.ZERO: "are 0; have the driver write the time of capture into header.stamp",
    timeline.STANDING: "are that of the message before; have the driver stamp each one, or publish /clock more often",
    timeline.SLOW: "hardly go on; check the unit of the driver's clock: header.stamp has seconds and nanoseconds",
    timeline.BACKWARD: "are older than that of the message before; have the driver publish in the order of capture",
    timeline.JUMP: "are far off those around them; check the clock of the driver (chronyc tracking)",
    timeline.FUTURE: "are ahead of the clock of this machine; set both clocks by NTP (chrony)",
}
"""What is told of stamps, by what is wrong with them."""


@dataclass
class Frame:
    """A message and when it came on the monotonic clock (seconds).

    Attributes:
        instant: when it was taken; frames are told apart, ordered and timed by it, not by their stamps.
        place: among the inferences.
        claim: its turn at the server.
        pixels: of an image, or the voxels that a sweep hit, where they are decoded already.
    """

    message: Any
    received_s: float
    instant: Instant = UNKNOWN
    place: Optional[int] = None
    claim: Optional[Claim] = None
    pixels: Optional[Array] = None


class Arrivals:
    """Gives the frames of one topic their instants, and tells of stamps that are not plausible.

    Args:
        health: where that is told.
        what: the messages are, such as images.
    """

    def __init__(self, health: Health, what: str) -> None:
        self._health, self._what = health, what
        self._timeline = Timeline()
        self._recording = 0
        self._lock = threading.Lock()

    def instant(self, header: Any, received_s: float) -> Instant:
        """The instant of the message with ``header`` that came at ``received_s`` (monotonic seconds)."""
        with self._lock:
            found = self._timeline.instant(header.stamp.to_nsec(), received_s, _clock_ns())
        if found.recording != self._recording:
            self._recording = found.recording
            self._health.count("recordings that began anew")
        return found

    def refresh(self) -> None:
        """Tell of the newest stamps. Call it about once a second."""
        with self._lock:
            faults, counted = self._timeline.faults.most_common(), self._timeline.counted
        if not faults:
            self._health.clear("stamps")
            return
        causes = ", ".join(f"{count} {FAULTS[fault]}" for fault, count in faults)
        self._health.warn("stamps", f"stamps of the last {counted} {self._what}: {causes}")


def tf_time(header: Any, instant: Instant) -> rospy.Time:
    """The time at which tf is asked for poses of a frame: its stamp, or the newest there is (0)."""
    return header.stamp if instant.placeable else rospy.Time()


def _clock_ns() -> int:
    """The ROS clock; 0 while there is none."""
    return int(rospy.Time.now().to_nsec()) if rospy.rostime.is_rostime_initialized() else 0


class FrameSink(Protocol):
    """Where frames are put."""

    def put(self, item: Frame) -> bool:
        """Offer a frame; whether it will be taken."""


class ImageIntake:
    """Subscribes to an image topic and puts every message into a slot; finds out by itself whether it is compressed.

    Frames that were lost on the way (gaps in ``header.seq``) are counted as ``frames lost before this node``.
    """

    def __init__(self, node: Node, topic: str, transport: str, slot: FrameSink, keep_all: bool) -> None:
        self._node = node
        self._topic = topic
        self._transport = transport
        self._slot = slot
        self._arrivals = Arrivals(node.health, "images")
        self._last: Optional[Tuple[str, int]] = None
        self._newest: Dict[Any, rospy.Time] = {}
        self._news_s = time.monotonic()
        self._closed = False
        # every message reaches the slot, which is where frames give way: 64 cannot come between two looks at it.
        # In keep_all mode nothing may be dropped, whatever comes.
        self._queue = None if keep_all else 64
        self._raw: Optional[rospy.Subscriber] = None
        self._compressed: Optional[rospy.Subscriber] = None
        if transport != "compressed":
            self._raw = self._subscribe(topic, Image)
        if transport == "compressed":
            named = topic if rospy.resolve_name(topic).endswith("/compressed") else f"{topic}/compressed"
            self._compressed = self._subscribe(named, CompressedImage)

    def _subscribe(self, topic: str, kind: Any) -> rospy.Subscriber:
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
        if self._last is not None and self._last[0] == publisher and 1 < seq - self._last[1] < MAX_GAP:
            self._node.health.count("frames lost before this node", seq - self._last[1] - 1)
        self._last = (publisher, seq)
        self._slot.put(Frame(message, self._news_s, self._arrivals.instant(message.header, self._news_s)))

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
                "images", f"no image on {topic} yet; check the camera or name its topic{self._others(topic)}"
            ):
                rospy.logwarn(f"no image on {topic} yet{self._others(topic)}")
        else:
            health.warn("images", f"no image on {topic} for {silent:.0f} s")

    def _follow_publisher(self) -> None:
        raw = self._raw is not None and self._raw.get_num_connections() > 0
        if raw and self._compressed is not None:
            self._compressed.unregister()
            self._compressed = None
        if raw or self._compressed is not None:
            return
        compressed = f"{rospy.resolve_name(self._topic)}/compressed"
        try:
            published = rospy.get_published_topics()
        except OSError:
            # the master is away; it may come back
            return
        if [rospy.resolve_name(self._topic), CompressedImage._type] in published and self._raw is not None:
            # the topic that was named has compressed images itself: rospy takes one type of a topic at a time
            self._raw.unregister()
            self._raw = None
            self._compressed = self._subscribe(self._topic, CompressedImage)
        elif [compressed, CompressedImage._type] in published:
            self._compressed = self._subscribe(f"{self._topic}/compressed", CompressedImage)

    @staticmethod
    def _others(topic: str) -> str:
        """Topics that do have images: the one asked for may be misspelt."""
        try:
            published = rospy.get_published_topics()
        except OSError:
            return ""
        images = [name for name, kind in published if kind in (Image._type, CompressedImage._type) and name != topic]
        seen = [name for name in images if not name.endswith(("/overlay", "/overlay/compressed"))]
        return f" (there are images on {', '.join(sorted(seen))})" if seen else ""

    def close(self) -> None:
        """Take no more images in."""
        self._closed = True
        for subscriber in (self._raw, self._compressed):
            if subscriber is not None:
                subscriber.unregister()


class DepthIntake:
    """Keeps the latest depth images, to be found by the stamp of a colour image, or by its arrival."""

    def __init__(self, node: Node, topic: str, tolerance_s: float) -> None:
        self._node = node
        self._tolerance_s = tolerance_s
        self._lock = threading.Lock()
        self._recent: Deque[Tuple[Any, float]] = deque(maxlen=16)
        rospy.Subscriber(topic, Image, node.callback(self._on_depth), queue_size=4, buff_size=BUFFER_BYTES)

    def _on_depth(self, message: Any) -> None:
        with self._lock:
            self._recent.append((message, time.monotonic()))

    def at(self, frame: Frame) -> Tuple[Optional[Array], str]:
        """Pixels and encoding of the depth image nearest to a frame; None when none is near, or it is faulty.

        Nearest by the stamps where that of the frame is plausible, else by the arrivals.
        """
        with self._lock:
            recent = list(self._recent)
        nearest, off_s = None, math.inf
        for message, received_s in reversed(recent):
            by_stamp_s = (message.header.stamp - frame.message.header.stamp).to_sec()
            apart_s = abs(by_stamp_s if frame.instant.placeable else received_s - frame.received_s)
            if apart_s < off_s:
                nearest, off_s = message, apart_s
        if nearest is None or off_s > self._tolerance_s:
            self._node.health.warn("depth", f"no depth image within {self._tolerance_s * 1e3:.0f} ms of the image")
            return None, ""
        try:
            pixels, encoding = depth_pixels(nearest)
        except BadInput as error:
            self._node.health.count("bad depth images")
            self._node.health.warn("depth", str(error))
            return None, ""
        self._node.health.clear("depth")
        return pixels, encoding


class CameraIntake:
    """The camera behind the images: its calibration by ``CameraInfo``, its place by tf2."""

    def __init__(self, node: Node, topic: str, world_frame: str) -> None:
        self._node = node
        self._world = world_frame
        self._info: Optional[Any] = None
        self._came = threading.Event()
        self._cached: Optional[Tuple[Any, PinholeCamera]] = None
        self._buffer = tf2_ros.Buffer()
        self._listener = tf2_ros.TransformListener(self._buffer)
        rospy.Subscriber(topic, CameraInfo, node.callback(self._on_info), queue_size=4)

    def _on_info(self, message: Any) -> None:
        self._info = message
        self._came.set()

    def size(self, wait_s: float) -> Optional[Tuple[int, int]]:
        """Width and height of the images in pixels; None when no CameraInfo comes within ``wait_s``."""
        if not self._came.wait(wait_s) or self._info is None or not (self._info.width and self._info.height):
            return None
        return self._info.width, self._info.height

    def locator(self, frame: Frame, width: int, height: int, make: Callable[..., Locator]) -> Optional[Locator]:
        """A locator for an image of this size; None while the camera is not calibrated."""
        camera = self._camera(width, height)
        return None if camera is None else make(camera=camera, pose=self.pose(frame))

    def _camera(self, width: int, height: int) -> Optional[PinholeCamera]:
        info = self._info
        if info is None or not info.width or not info.K[0]:
            self._node.health.value("positions", "unknown: the camera is not calibrated")
            return None
        key = (info.width, info.height, width, height, tuple(info.K), tuple(info.D), info.distortion_model)
        if self._cached is None or self._cached[0] != key:
            try:
                self._cached = (key, camera_of(fitted(info, width, height)))
            except BadInput as error:
                self._node.health.value("positions", f"unknown: {error}")
                return None
        return self._cached[1]

    def pose(self, frame: Frame) -> Optional[Transform]:
        """Maps the camera's frame into the world's when the image was taken; None while tf does not know it."""
        header = frame.message.header
        try:
            found = transform_of(
                self._buffer.lookup_transform(self._world, header.frame_id, tf_time(header, frame.instant))
            )
        except (tf2_ros.TransformException, BadInput, ValueError) as error:
            self._node.health.value("positions", f"no pose of {header.frame_id!r} in {self._world!r}: {error}")
            return None
        self._node.health.value("positions", f"in {self._world}")
        return found
