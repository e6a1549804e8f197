"""Messages of a sensor beside a camera: matched with images by their stamps; late ones are waited for."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from typing import Any, Callable, ClassVar, Deque, Optional, Tuple

import numpy as np
import rospy
from sensor_msgs.msg import Image

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.nodes.common.base import Owner
from edge_offload.nodes.common.convert import depth_pixels
from edge_offload.nodes.common.health import Losses
from edge_offload.nodes.common.poses import frame_name
from edge_offload.nodes.common.topic_types import await_topic
from edge_offload.nodes.inference.intake import BUFFER_BYTES, SILENCE_S, Frame


class MatchedIntake:
    """Keeps the latest messages of a sensor, to be found by the stamp of an image, or by its arrival.

    Args:
        node: whose health tells what is missing.
        topic: of the messages.
        tolerance_s: between an image and its message.

    Attributes:
        kind: class of the messages.
        what: one of them is.
        remedy: where none comes.
        unmatched: remedy where they do not match, and the parameter that allows more.
    """

    kind: ClassVar[Any]
    what: ClassVar[str]
    remedy: ClassVar[str]
    unmatched: ClassVar[str]

    def __init__(self, node: Owner, topic: str, tolerance_s: float) -> None:
        self._node, self._tolerance_s = node, tolerance_s
        self._changed = threading.Condition()
        self._recent: Deque[Tuple[Any, float]] = deque(maxlen=16)
        self._notify: Callable[[], None] = lambda: None
        self._topic = await_topic(topic, self.kind, self.what, self.remedy, SILENCE_S)
        self._losses = Losses(f"images without {self.what}")
        node.health.watch(self.what, self._losses.describe_losses)
        node.health.watch(f"{self.what} topic", self._topic.explain_silence)
        rospy.Subscriber(topic, self.kind, node.callback(self._on_message), queue_size=4, buff_size=BUFFER_BYTES)

    def notify_with(self, call: Callable[[], None]) -> None:
        """Have ``call`` called when a message has come."""
        self._notify = call

    def _on_message(self, message: Any) -> None:
        self._topic.note_arrival()
        with self._changed:
            self._recent.append((message, time.monotonic()))
            self._changed.notify_all()
        self._notify()

    def waits_s(self, frame: Frame) -> float:
        """Until when a frame may wait for its message (monotonic seconds); -infinity: it is here, or will not come.

        It may come as long as those that are here are older than the image.
        """
        if not self._recent or self._topic.silent_s > SILENCE_S:
            return -math.inf
        _, off_s = self._nearest_message(frame)
        return frame.until_s if off_s < -self._tolerance_s else -math.inf

    def _nearest_message(self, frame: Frame) -> Tuple[Any, float]:
        """The message nearest to a frame, and by how much it is later (seconds).

        By the stamps where that of the frame is plausible, else by the arrivals.
        """
        nearest, off_s = None, math.inf
        for message, received_s in reversed(list(self._recent)):
            by_stamp_s = (message.header.stamp - frame.message.header.stamp).to_sec()
            later_s = by_stamp_s if frame.instant.has_valid_stamp else received_s - frame.received_s
            if abs(later_s) < abs(off_s):
                nearest, off_s = message, later_s
        return nearest, off_s

    def match_message(self, frame: Frame, wait: bool) -> Tuple[Any, float]:
        """The message of a frame, and seconds between the two.

        Args:
            frame: it.
            wait: for a message that comes late.

        Raises:
            BadInput: none is near.
        """
        with self._changed:
            while wait and self.waits_s(frame) > time.monotonic():
                self._changed.wait(max(0.0, self.waits_s(frame) - time.monotonic()))
            nearest, off_s = self._nearest_message(frame)
        if nearest is None:
            raise BadInput("none has come")
        if abs(off_s) <= self._tolerance_s:
            return nearest, abs(off_s)
        off, way = abs(off_s), "younger" if off_s > 0 else "older"
        if off > 1.0:
            cause = f"the nearest {self.what} is {off:.0f} s {way} by its stamp"
            raise BadInput(cause, remedy="stamp both by one clock")
        cause = f"the nearest {self.what} is {off * 1e3:.0f} ms {way}"
        enough = math.ceil(abs(off_s) * 1.2 / 0.01) * 0.01
        raise BadInput(cause, remedy=f"{self.unmatched}:={enough:.2g}")


def _refuse_millimetres(depth: Array) -> None:
    """Raises BadInput where floats of a depth image can be no metres."""
    if depth.dtype.kind != "f":
        return
    sampled = depth[::4, ::4]
    valid = sampled[np.isfinite(sampled) & (sampled > 0)]
    nearest = float(np.quantile(valid, 0.01)) if valid.size else 0.0
    if nearest > 100.0:  # metres: cameras for depth see 20 m far, and 100 mm is too near for them
        cause = f"depth image 32FC1 shows nothing nearer than {nearest:.0f} m, as one in millimetres does"
        raise BadInput(cause, remedy="publish metres, or millimetres as 16UC1 (REP 118)")


class DepthIntake(MatchedIntake):
    """Takes in depth images."""

    kind = Image
    what = "depth image"
    remedy = "check the driver, or name the topic of its aligned depth (depth_topic:=)"
    unmatched = "have the driver synchronise them, or give ~depth_tolerance"

    def depth_at(self, frame: Frame, size: Tuple[int, int], wait: bool = True) -> Tuple[Optional[Array], str]:
        """Pixels and encoding of the depth image of a frame; None when none is near, it is faulty or not aligned.

        Args:
            frame: it.
            size: its width and height, pixels.
            wait: for a depth image that comes late.
        """
        try:
            nearest, _ = self.match_message(frame, wait)
            try:
                pixels, encoding = depth_pixels(nearest)
            except BadInput:
                self._node.health.count("bad depth images")
                raise
            if pixels.shape != size[::-1]:
                sizes = f"{pixels.shape[1]}x{pixels.shape[0]} is not aligned with the image {size[0]}x{size[1]}"
                raise BadInput(f"depth image {sizes}", remedy="align depth to colour (registered depth)")
            _refuse_millimetres(pixels)
        except BadInput as error:
            self._losses.note_loss(str(error))
            return None, "32FC1"
        self._losses.note_loss()
        self._compare_frames(frame_name(nearest.header.frame_id), frame_name(frame.message.header.frame_id))
        return pixels, encoding

    def _compare_frames(self, frame: str, images: str) -> None:
        """Tells of depth images that name another lens than the images: their pixels lie elsewhere."""
        if frame and images and frame != images:
            cause = f"depth images are in frame {frame}, the images in {images}; name the topic of aligned depth "
            self._node.health.warn("depth frame", f"{cause}(depth_topic:=), or have its driver write {images}")
        else:
            self._node.health.clear("depth frame")
