"""Hand-over of frames from a subscriber to one worker: the latest only, or every one. Knows nothing of ROS.

A subscriber that computes in its callback falls behind by a whole queue; one that only puts the frame here is never
more than one inference behind. Every frame offered is taken exactly once or superseded, and counted either way.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Callable, Deque, Generic, Optional, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class SlotCounts:
    """What became of the frames: ``offered = taken + superseded + waiting`` at any moment."""

    offered: int = 0
    taken: int = 0
    superseded: int = 0
    waiting: int = 0


class LatestFrameQueue(Generic[T]):
    """Holds frames until the worker takes them.

    Args:
        capacity: frames that may wait. When one more comes, the oldest gives way to it, unless ``keep_all``.
        keep_all: nothing gives way; :meth:`put` waits for room instead, which holds up the subscriber's connection.
    """

    def __init__(self, capacity: int = 1, keep_all: bool = False) -> None:
        self._capacity = capacity
        self._keep_all = keep_all
        self._items: Deque[T] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._offered = self._taken = self._superseded = 0

    def put(self, item: T) -> bool:
        """Offer a frame; whether it waits to be taken (False: the slot is closed, nobody will)."""
        with self._changed:
            self._offered += 1
            while self._keep_all and len(self._items) >= self._capacity and not self._closed:
                self._changed.wait()
            if self._closed:
                self._superseded += 1
                return False
            if len(self._items) >= self._capacity:
                self._items.popleft()
                self._superseded += 1
            self._items.append(item)
            self._changed.notify_all()
            return True

    def take(self, timeout_s: Optional[float] = None) -> Optional[T]:
        """The oldest frame that waits; waits for one. None after ``timeout_s``, or when closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._items) or self._closed, timeout_s)
            if not self._items:
                return None
            self._taken += 1
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """Take no more frames in. Those that wait can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        with self._changed:
            return self._closed

    @property
    def counts(self) -> SlotCounts:
        """What became of the frames so far."""
        with self._changed:
            # a put that waits for room has been offered and waits too
            waiting = self._offered - self._taken - self._superseded
            return SlotCounts(self._offered, self._taken, self._superseded, waiting)


class Worker(Generic[T]):
    """A thread that takes frames from a slot and works on one at a time.

    Args:
        slot: where frames come from.
        work: called with each frame, in the worker's thread.
        on_error: called with a frame and the exception that ``work`` let through; the worker goes on.
        begin: called first, in the worker's thread.
    """

    def __init__(
        self,
        slot: LatestFrameQueue[T],
        work: Callable[[T], None],
        on_error: Callable[[T, BaseException], None],
        name: str = "worker",
        begin: Callable[[], object] = lambda: None,
    ) -> None:
        self._slot = slot
        self._work = work
        self._on_error = on_error
        self._begin = begin
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to take frames."""
        self._thread.start()

    def _run(self) -> None:
        self._begin()
        while True:
            item = self._slot.take()
            if item is None:
                return
            try:
                self._work(item)
            except Exception as error:
                self._on_error(item, error)

    def drain(self, timeout_s: float) -> bool:
        """Close the slot, let the worker finish the frames that wait, and say whether it did within ``timeout_s``."""
        self._slot.close()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()
