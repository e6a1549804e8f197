"""Writes the annotated images of a run to a video, and the one with the most results to a picture."""

from __future__ import annotations

import pathlib
from typing import Any, Callable, List, Optional

import rospy
from sensor_msgs.msg import Image

from edge_offload.nodes.common.convert import image_to_bgr
from edge_offload.nodes.common.health import Health
from edge_offload.nodes.inference.latest_frame_queue import LatestFrameQueue, Worker
from edge_offload.perception.video import VideoParts, write_png


class OverlayFile:
    """Open from construction on.

    Args:
        path: the video; the picture lies beside it, as .png.
        video: what writes it.
        topic: of the images.
        shown: how much the result with a stamp (ns) shows.
        health: told what cannot be written; the run goes on without it.
    """

    def __init__(
        self, path: pathlib.Path, video: VideoParts, topic: str, shown: Callable[[int], int], health: Health
    ) -> None:
        self._path, self._video, self._shown, self._health = path, video, shown, health
        self._best: Optional[Any] = None
        self._most = -1
        capacity = 16  # images that may wait for the disk
        images: LatestFrameQueue[Any] = LatestFrameQueue(capacity=capacity)
        self._writer: Worker[Any] = Worker(images, self._write_picture, self._on_error, "overlay")
        self._writer.start()
        rospy.Subscriber(topic, Image, images.offer_frame, queue_size=2 * capacity, buff_size=2**24)

    def drain(self, timeout_s: float) -> bool:
        """Write what waits; whether that was done in time."""
        return self._writer.drain(timeout_s)

    def close(self) -> List[str]:
        """Finish the files, and name them.

        Raises:
            EdgeOffloadError: one of them cannot be written.
        """
        files = [str(path) for path in self._video.close()]
        if self._best is not None:
            files.append(str(write_png(self._path.with_suffix(".png"), self._best)))
        return files

    def _write_picture(self, message: Any) -> None:
        bgr = image_to_bgr(message)
        self._video.write(bgr)
        shown = self._shown(message.header.stamp.to_nsec())
        if shown >= self._most:
            self._best, self._most = bgr, shown

    def _on_error(self, _: Any, error: BaseException) -> None:
        self._health.warn("video", f"overlay: {error}")
        rospy.logwarn_throttle(10.0, f"overlay: {error}")
