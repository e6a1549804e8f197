"""Streams by address (RTSP, HTTP and others that FFmpeg reads), through OpenCV's reader."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import Any, Deque, Optional, Tuple

import cv2

from edge_offload.arrays import Array
from edge_offload.nodes.camera.addresses import hide_secrets, probe_url, split_url, with_login
from edge_offload.nodes.camera.frames import SourceLost
from edge_offload.nodes.camera.live import Feed, LiveSource

OPTIONS = "rtsp_transport;tcp|fflags;discardcorrupt"
"""For FFmpeg: no packet is lost on the way, and what of a frame had come when a stream broke off is no frame."""
ENVIRONMENT = {"OPENCV_FFMPEG_CAPTURE_OPTIONS": OPTIONS, "OPENCV_FFMPEG_LOGLEVEL": "-8"}
"""What OpenCV looks at when it opens a stream; what a user has set holds."""


class NetworkStream(LiveSource):
    """A stream or a file on a server, by its address.

    User and password stand in the address, or in ``~/.netrc``.

    Raises:
        BadInput: that is no address.
    """

    def __init__(self, url: str, rate: float = 0.0, **waits: float) -> None:
        self.check(url)
        super().__init__(hide_secrets(url), rate, **waits)
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
            raise SourceLost(probe_url(url) or "there is no video that FFmpeg can read")
        return StreamCapture(capture, split_url(url).hostname or "its sender")


class StreamLag:
    """Tells a stream that is read more slowly than it is sent: its frames come later and later, and none is missing.

    A frame is late that has been on its way for 1 s longer than the quickest one of the last 300 s. What a network held
    up is late, too, but not for 2 s.
    """

    def __init__(self) -> None:
        self._ways: Deque[Tuple[float, float]] = deque()
        self._late_since_s: Optional[float] = None

    def note_arrival(self, sent_s: float, now_s: float) -> float:
        """A frame of the stream's instant ``sent_s`` arrived: by how many seconds frames are late; 0: in time."""
        way_s = now_s - sent_s
        # the quickest one is in front, behind it those that will be the quickest once it is too old
        while self._ways and self._ways[-1][1] >= way_s:
            self._ways.pop()
        self._ways.append((now_s, way_s))
        while self._ways[0][0] < now_s - 300.0:
            self._ways.popleft()
        late_s = way_s - self._ways[0][1]
        if late_s < 1.0:
            self._late_since_s = None
        elif self._late_since_s is None:
            self._late_since_s = now_s
        return late_s if self._late_since_s is not None and now_s - self._late_since_s > 2.0 else 0.0


class StreamCapture(Feed):
    """A stream that OpenCV has opened; ``server`` is who sends it."""

    def __init__(self, capture: cv2.VideoCapture, server: str) -> None:
        self._capture, self._server = capture, server
        self._lateness = StreamLag()
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
            self._check_late()
            image: Array = frame
            return image
        # containers tell their number of frames by rule of thumb
        if closed.is_set() or (not self.live and self._read >= 0.9 * self._frames):
            return None
        raise SourceLost(f"{self._server} sends no more")

    def _check_late(self) -> None:
        """Give up a connection whose frames come later and later: another one begins with new frames.

        Raises:
            SourceLost: it is such a one.
        """
        sent_s = float(self._capture.get(cv2.CAP_PROP_POS_MSEC)) / 1000.0
        # a stream of single pictures has no times
        late_s = self._lateness.note_arrival(sent_s, time.monotonic()) if self.live and 0 < sent_s < 1e9 else 0.0
        if late_s:
            raise SourceLost(
                f"frames come {late_s:.1f} s late, they are sent faster than this machine reads them",
                remedy="ask the camera for a smaller picture or fewer frames",
            )

    def close(self) -> None:
        self._capture.release()


def _only_errors() -> None:
    """Every attempt that fails would be a line of OpenCV's, which does not know why."""
    levels: Any = vars(cv2.utils).get("logging", cv2)
    levels.setLogLevel(2)
