"""Draws pictures of results in a thread of its own, only while they have subscribers."""

from __future__ import annotations

from typing import Any, Callable, Generic, List, NamedTuple, Optional, TypeVar

import rospy
from sensor_msgs.msg import CompressedImage, Image

from edge_offload.arrays import Array
from edge_offload.nodes.common.base import Owner
from edge_offload.nodes.common.convert import bgr_to_image, bgr_to_jpeg
from edge_offload.nodes.inference.latest_frame_queue import LatestFrameQueue, Worker
from edge_offload.perception.overlay import Status
from edge_offload.timing import InferenceReport


class Picture(NamedTuple):
    """Data of which an overlay is drawn.

    Attributes:
        header, bgr: of the frame, and its pixels.
        result: of the frame, of the node that draws it.
        report, energy: what the frame cost (joules).
        carried_s: how old the result is that was carried along to it, seconds.
    """

    header: Any
    bgr: Array
    result: Any
    report: InferenceReport
    energy: float
    carried_s: Optional[float] = None

    def make_status(self) -> Status:
        report = self.report
        return Status(
            report.mode, report.model, report.total_s, report.bytes_up, report.bytes_down, self.energy,
            report.fallback_reason, self.carried_s,
        )  # fmt: skip


AnyPicture = TypeVar("AnyPicture")


class _Lookers(rospy.SubscribeListener):  # type: ignore[misc]
    """Tells when somebody begins or ceases to look."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__()
        self._changed = changed

    def peer_subscribe(self, *_: Any) -> None:
        self._changed()

    def peer_unsubscribe(self, *_: Any) -> None:
        self._changed()


class Painter(Generic[AnyPicture]):
    """Publishes pictures on a topic and its ``compressed`` (JPEG) one; what comes too fast for it is left out.

    Args:
        node: whose pictures; its parameter ~jpeg_quality is theirs.
        topic: of the pictures.
        draw: uint8 [h, w, 3] BGR; called only while somebody looks.
        capacity: pictures that may wait.
        also_draw: publishes what else belongs to every picture, for those who listen to that.

    Attributes:
        watched: whether somebody looks.
        paint: have a picture drawn, if somebody looks, and whatever else is to be published of it.
    """

    def __init__(
        self,
        node: Owner,
        topic: str,
        draw: Callable[[AnyPicture], Array],
        capacity: int,
        also_draw: Optional[Callable[[AnyPicture], None]] = None,
    ) -> None:
        self._quality = node.params["jpeg_quality"]
        self._draw, self._also_draw = draw, also_draw
        self.watched = False
        self._topics: List[rospy.Publisher] = []
        lookers = _Lookers(self._count_watchers)
        self._plain = rospy.Publisher(topic, Image, lookers, queue_size=8)
        self._jpeg = rospy.Publisher(f"{topic}/compressed", CompressedImage, lookers, queue_size=2)
        self._topics += [self._plain, self._jpeg]
        self._count_watchers()
        pictures: LatestFrameQueue[AnyPicture] = LatestFrameQueue(capacity=capacity)
        self.paint = pictures.offer_frame
        self._worker: Worker[Any] = Worker(
            pictures, self._paint_picture, lambda _, error: node.fault("overlay", error), "overlay"
        )

    def start(self) -> None:
        self._worker.start()

    def drain(self, timeout_s: float) -> bool:
        """Draw what waits, and end; False if that takes longer than ``timeout_s``."""
        return self._worker.drain(timeout_s)

    def _count_watchers(self) -> None:
        self.watched = any(topic.get_num_connections() for topic in self._topics)

    def _paint_picture(self, picture: Any) -> None:
        if self._also_draw is not None:
            self._also_draw(picture)
        if not self.watched:
            return
        image = self._draw(picture)
        if self._plain.get_num_connections():
            self._plain.publish(bgr_to_image(image, picture.header))
        if self._jpeg.get_num_connections():
            self._jpeg.publish(bgr_to_jpeg(image, picture.header, self._quality))
