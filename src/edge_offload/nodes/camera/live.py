"""Live sources of frames, over a network or from a pipeline: a thread reads them, and only the newest frame is used."""

from __future__ import annotations

import abc
import statistics
import threading
import time
from collections import deque
from typing import Callable, Deque, Optional, Tuple

from edge_offload.arrays import Array
from edge_offload.errors import EdgeOffloadError
from edge_offload.nodes.camera.addresses import hide_secrets
from edge_offload.nodes.camera.frames import FrameSource, SourceLost

CLOSE_S = 3.0
SETTLED, DRAIN_S = 0.75, 1.0
"""See :class:`Backlog`; the first in periods."""


class Feed(abc.ABC):
    """An open connection, read by one thread.

    Attributes:
        rate: frames per second that it says it has; 0: it says nothing.
        live: whether frames come when they come; else they wait until they are read (a file on a server).
    """

    rate: float = 0.0
    live: bool = True

    @abc.abstractmethod
    def read(self, closed: threading.Event) -> Optional[Array]:
        """The next frame, uint8 [h, w, 3] BGR; None at the end, or soon after ``closed`` was set.

        Raises:
            SourceLost: there should be one and is not.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Release everything. Called once, by the thread that reads."""


class Backlog:
    """Tells what waited in buffers from what is new, by the pace at which frames arrive.

    At the start of a connection and after a gap what has waited comes at once, frame on frame. Such a frame is old as
    long as another one follows it within most of a period. That ends after :data:`DRAIN_S` at the latest, since a
    stream may be faster than it was thought to be.

    Args:
        rate: frames per second that the stream says it has; 0: unknown.
    """

    def __init__(self, rate: float = 0.0) -> None:
        self._guess_s = 1.0 / rate if rate else 1.0 / 30.0
        self._intervals: Deque[float] = deque(maxlen=15)
        self._last_s: Optional[float] = None
        self._drains, self._draining_since_s = True, 0.0

    def _period_s(self) -> float:
        return statistics.median(self._intervals) if self._intervals else self._guess_s

    def note_arrival(self, now_s: float) -> None:
        period_s, last_s, self._last_s = self._period_s(), self._last_s, now_s
        if last_s is None:
            self._draining_since_s = now_s
            return
        interval_s = now_s - last_s
        if not self._drains and interval_s > 3.0 * period_s:
            self._drains, self._draining_since_s = True, now_s
        elif self._drains and interval_s < SETTLED * period_s and now_s - self._draining_since_s < DRAIN_S:
            return
        else:
            self._drains = False
        self._intervals.append(interval_s)

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until the newest frame counts as new, if no other one comes; 0: now."""
        if not self._drains or self._last_s is None or now_s - self._draining_since_s >= DRAIN_S:
            return 0.0
        return max(0.0, self._last_s + SETTLED * self._period_s() - now_s)


class StreamReader:
    """One connection and the thread that reads it; keeps the newest frame.

    Args:
        connect: opens the connection; it is called in that thread, and may take its time.

    Attributes:
        feed: the connection, once it is open.
        dropped: frames that nobody took before the next one came.
    """

    def __init__(self, connect: Callable[[], Feed]) -> None:
        self.feed: Optional[Feed] = None
        self.dropped = 0
        self._connect = connect
        self._condition = threading.Condition()
        self._closed = threading.Event()
        self._frame: Optional[Array] = None
        self._arrived_s = 0.0
        self._backlog = Backlog()
        self._over: Optional[EdgeOffloadError] = None
        self._ended = False
        self._thread = threading.Thread(target=self._run_feed, name="stream", daemon=True)
        self._thread.start()

    def take_frame(self, within_s: float, earliest_s: float = 0.0) -> Optional[Tuple[Array, float]]:
        """The newest frame and the monotonic instant of its arrival; None at the end.

        Args:
            within_s: longest wait.
            earliest_s: monotonic instant before which none is taken.

        Raises:
            SourceLost: none came in time, or none can come any more.
            BadInput: there is nothing to connect to, and there never will be.
        """
        if not self.wait_for_frame(within_s, earliest_s):
            return None
        with self._condition:
            frame, self._frame = self._frame, None
            assert frame is not None, "nobody else takes frames"
            self._condition.notify_all()
            return frame, self._arrived_s

    def wait_for_frame(self, within_s: float, earliest_s: float = 0.0) -> bool:
        """Wait for a frame, which stays; False at the end. Arguments and errors are those of :meth:`take_frame`."""
        ends_s = time.monotonic() + within_s
        with self._condition:
            while not self._closed.is_set():
                now_s = time.monotonic()
                if self._frame is not None:
                    over = self._ended or self._over is not None
                    live = self.feed is not None and self.feed.live
                    pause_s = max(earliest_s - now_s, self._backlog.wait_s(now_s)) if live and not over else 0.0
                    if pause_s <= 0:
                        return True
                elif self._over is not None:
                    raise self._over
                elif self._ended:
                    return False
                elif now_s >= ends_s:
                    raise SourceLost(f"no frame for {within_s:g} s")
                else:
                    pause_s = ends_s - now_s
                self._condition.wait(pause_s)
        raise SourceLost("the connection was closed")

    def close(self, wait_s: float = 0.0) -> None:
        """Close the connection, and wait so long for the thread that has to do it."""
        self._closed.set()
        with self._condition:
            self._condition.notify_all()
        self._thread.join(wait_s)

    def _run_feed(self) -> None:
        feed: Optional[Feed] = None
        over: Optional[EdgeOffloadError] = None
        try:
            feed = self._connect()
            with self._condition:
                self.feed, self._backlog = feed, Backlog(feed.rate)
            while not self._closed.is_set():
                frame = feed.read(self._closed)
                if frame is None:
                    break
                self._store_frame(frame, time.monotonic())
        except EdgeOffloadError as error:
            over = error
        except Exception as error:
            over = SourceLost(hide_secrets(f"{type(error).__name__}: {error}"))
        with self._condition:
            self._over, self._ended = over, over is None
            self._condition.notify_all()
        if feed is not None:
            feed.close()

    def _store_frame(self, frame: Array, now_s: float) -> None:
        with self._condition:
            if self.feed is not None and not self.feed.live:
                self._condition.wait_for(lambda: self._frame is None or self._closed.is_set())
            elif self._frame is not None:
                self.dropped += 1
            self._frame, self._arrived_s = frame, now_s
            self._backlog.note_arrival(now_s)
            self._condition.notify_all()


class LiveSource(FrameSource):
    """A source that connects, and whose connection may be lost and come back.

    Nothing is opened by the constructor: a camera need not be there when the node starts.

    Args:
        rate: frames per second to take at most; 0: all that there are.
        connect_s: longest wait for the first frame of a connection.
        read_s: longest wait for another one.
    """

    live = True
    networked = True
    pauses_s = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)

    # a camera may send a key frame every ten seconds
    def __init__(self, name: str, rate: float = 0.0, connect_s: float = 15.0, read_s: float = 5.0) -> None:
        self.name = name
        self.connect_s, self.read_s = connect_s, read_s
        self._period_s = 1.0 / rate if rate else 0.0
        self._earliest_s = 0.0
        self._reception: Optional[StreamReader] = None
        self._dropped_before = 0
        self._interrupted = False

    @abc.abstractmethod
    def connect(self) -> Feed:
        """Open a connection; called in a thread of its own.

        Raises:
            SourceLost: that failed, and may succeed later.
            BadInput: it can never succeed.
        """

    def read(self) -> Optional[Array]:
        if self._reception is None:
            self.rewind()
        assert self._reception is not None
        try:
            taken = self._reception.take_frame(self.read_s, self._earliest_s)
        except SourceLost as error:
            raise SourceLost(f"{self.name}: {error}") from error
        if taken is None:
            return None
        frame, self.arrived_s = taken
        self.dropped = self._dropped_before + self._reception.dropped
        self._earliest_s = time.monotonic() + self._period_s
        return frame

    def rewind(self) -> None:
        """Connect anew, and wait for a frame.

        Raises:
            SourceLost: none came.
            BadInput: none ever will.
        """
        self._disconnect(CLOSE_S)
        if self._interrupted:
            raise SourceLost(f"{self.name} was closed")
        reception = self._reception = StreamReader(self.connect)
        try:
            reception.wait_for_frame(self.connect_s)
        except SourceLost as error:
            raise SourceLost(f"{self.name}: {error}") from error
        feed = reception.feed
        if feed is not None:
            self.live, self.rate = feed.live, feed.rate

    def interrupt(self) -> None:
        self._interrupted = True
        if self._reception is not None:
            self._reception.close()

    def close(self) -> None:
        self._disconnect(CLOSE_S)

    def _disconnect(self, wait_s: float) -> None:
        reception, self._reception = self._reception, None
        if reception is not None:
            reception.close(wait_s)
            self._dropped_before += reception.dropped
            self.dropped = self._dropped_before
