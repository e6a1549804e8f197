"""Streams by their address, RTSP or HTTP and what else FFmpeg reads, by OpenCV's reader."""

from __future__ import annotations

import os
import threading
from typing import Any, Optional

import cv2

from edge_offload.arrays import Array
from edge_offload.nodes.camera.addresses import cause_of, hide, split, with_login
from edge_offload.nodes.camera.frames import SourceLost
from edge_offload.nodes.camera.live import Feed, LiveSource

OPTIONS = "rtsp_transport;tcp|fflags;discardcorrupt"
"""For FFmpeg: no packet is lost on the way, and what of a frame had come when a stream broke off is no frame."""
ENVIRONMENT = {"OPENCV_FFMPEG_CAPTURE_OPTIONS": OPTIONS, "OPENCV_FFMPEG_LOGLEVEL": "-8"}
"""What OpenCV looks at when it opens a stream; what a user has set holds."""
END = 0.9
"""Share of a file's frames after which its end is an end: containers tell their number by rule of thumb."""


class NetworkStream(LiveSource):
    """A stream or a file on a server, by its address.

    User and password stand in the address, or in ``~/.netrc``.

    Raises:
        BadInput: that is no address.
    """

    def __init__(self, url: str, rate: float = 0.0, **waits: float) -> None:
        self.check(url)
        super().__init__(hide(url), rate, **waits)
        self._url = url

    @classmethod
    def check(cls, value: str) -> None:
        with_login(value)

    def connect(self) -> Feed:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        _only_errors()
        url = with_login(self._url)
        open_ms, read_ms = int(self.connect_s * 1000), int(self.read_s * 1000)
        waits = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, open_ms, cv2.CAP_PROP_READ_TIMEOUT_MSEC, read_ms]
        capture = cv2.VideoCapture(url, cv2.CAP_FFMPEG, waits)
        if not capture.isOpened():
            raise SourceLost(cause_of(url) or "there is no video that FFmpeg can read")
        return _Capture(capture, split(url).hostname or "its sender")


class _Capture(Feed):
    def __init__(self, capture: cv2.VideoCapture, server: str) -> None:
        self._capture, self._server = capture, server
        self._frames = float(capture.get(cv2.CAP_PROP_FRAME_COUNT))
        # what has no end has no number of frames, or one that makes no sense
        self.live = not 0 < self._frames < 1e9
        rate = float(capture.get(cv2.CAP_PROP_FPS))
        self.rate = rate if 0 < rate <= 1000 else 0.0
        self._read = 0

    def read(self, closed: threading.Event) -> Optional[Array]:
        read, frame = self._capture.read()
        if read and frame is not None:
            self._read += 1
            image: Array = frame
            return image
        if closed.is_set() or (not self.live and self._read >= END * self._frames):
            return None
        raise SourceLost(f"{self._server} sends no more")

    def close(self) -> None:
        self._capture.release()


def _only_errors() -> None:
    """Every attempt that fails would be a line of OpenCV's, which does not know why."""
    levels: Any = vars(cv2.utils).get("logging", cv2)
    levels.setLogLevel(2)
