"""Hand-over of frames from a subscriber to workers: the latest only, or every one. Knows nothing of ROS.

A subscriber that computes in its callback falls behind by a whole queue; one that only puts the frame here is never
more than one inference behind. Every frame offered is taken exactly once or superseded, and counted either way.
Frames of several sources take turns: the next one is of the source that had its last turn the longest ago.
A :class:`Worker` works on one frame at a time, :class:`FramePipeline` on some at once, with results in their order.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from dataclasses import astuple, dataclass, field
from typing import Any, Callable, Deque, Dict, Generic, Iterable, List, Optional, Protocol, TypeVar

from edge_offload.manager.in_flight import FrameOrder

T = TypeVar("T")
F = TypeVar("F", contravariant=True)


@dataclass(frozen=True)
class SlotCounts:
    """Counts of frames: ``offered = taken + superseded + waiting`` at any moment."""

    offered: int = 0
    taken: int = 0
    superseded: int = 0
    waiting: int = 0

    @classmethod
    def sum_counts(cls, many: Iterable[SlotCounts]) -> SlotCounts:
        return cls(*map(sum, zip(*map(astuple, many))))


@dataclass
class _Source(Generic[T]):
    """Frames of one source that wait, and what became of the others."""

    items: Deque[T] = field(default_factory=deque)
    offered: int = 0
    taken: int = 0
    superseded: int = 0

    @property
    def counts(self) -> SlotCounts:
        # a put that waits for room has been offered and waits too
        waiting = self.offered - self.taken - self.superseded
        return SlotCounts(self.offered, self.taken, self.superseded, waiting)


class LatestFrameQueue(Generic[T]):
    """Holds frames until the worker takes them.

    Args:
        capacity: frames of a source that may wait. When one more of it comes, the oldest gives way to it, unless
            ``queue_all``.
        queue_all: nothing gives way; :meth:`put` waits for room instead, which holds up the subscriber's connection.
        source: name of a frame's source, such as its camera; by default all frames are of one.
        accepted: asked of each frame that is offered; those that are not count as superseded.
    """

    def __init__(
        self,
        capacity: int = 1,
        queue_all: bool = False,
        source: Callable[[T], str] = lambda _: "",
        accepted: Callable[[T], bool] = lambda _: True,
    ) -> None:
        self._capacity = capacity
        self._queue_all = queue_all
        self._source = source
        #: In the order of their turns: the one that had its last turn the longest ago is the first.
        self._sources: Dict[str, _Source[T]] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._accepts = accepted

    def put(self, item: T) -> bool:
        """Offer a frame; whether it waits to be taken (False: it is not wanted, or the slot is closed)."""
        accepted = self._accepts(item)
        with self._changed:
            source = self._sources.setdefault(self._source(item), _Source())
            source.offered += 1
            if not accepted:
                source.superseded += 1
                return False
            while self._queue_all and len(source.items) >= self._capacity and not self._closed:
                self._changed.wait()
            if self._closed:
                source.superseded += 1
                return False
            if len(source.items) >= self._capacity:
                source.items.popleft()
                source.superseded += 1
            source.items.append(item)
            self._changed.notify_all()
            return True

    def take(self, timeout_s: Optional[float] = None, wait_s: Callable[[], float] = lambda: 0.0) -> Optional[T]:
        """The oldest frame that waits, of the source whose turn it is; waits for one.

        None after ``timeout_s``, or when closed and empty.

        ``wait_s`` says how long no frame is to be taken yet (seconds; inf: until :meth:`wake`).
        """
        ends = math.inf if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while True:
                name = next((name for name, source in self._sources.items() if source.items), None)
                remaining_s = wait_s() if name is not None else math.inf
                if name is not None and remaining_s <= 0:
                    break
                remaining_s = min(remaining_s, ends - time.monotonic())
                if remaining_s <= 0 or (self._closed and name is None):
                    return None
                self._changed.wait(None if math.isinf(remaining_s) else remaining_s)
            source = self._sources[name] = self._sources.pop(name)  # its next turn comes after those of the others
            source.taken += 1
            item = source.items.popleft()
            self._changed.notify_all()
            return item

    def wake(self) -> None:
        """Have whoever waits in :meth:`take` ask again."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Take no more frames in. Those that wait can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        with self._changed:
            return self._closed

    @property
    def counts(self) -> SlotCounts:
        with self._changed:
            return SlotCounts.sum_counts([SlotCounts(), *(source.counts for source in self._sources.values())])

    def get_counts(self, source: str) -> SlotCounts:
        with self._changed:
            return self._sources[source].counts if source in self._sources else SlotCounts()


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
        self._thread = threading.Thread(target=self._run_work, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run_work(self) -> None:
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


class FrameStages(Protocol[F]):
    """Work on a frame, in three stages. The first and the last are those of one frame at a time, in their order."""

    def prepare(self, frame: F, place: int) -> Any:
        """Make the inputs of the network; ``place``: of the frame in the order of inferences."""

    def infer(self, frame: F, prepared: Any) -> Any:
        """Run the network; that of some frames at once."""

    def finish(self, frame: F, prepared: Any, inferred: Any) -> None:
        """Publish the one result of the frame."""

    def fail(self, frame: F, error: BaseException) -> None:
        """A stage raised ``error``; called in place of :meth:`finish`, or after it."""


class FramePipeline(Generic[T]):
    """Threads that take frames from a slot and work on some at once; results leave in the order of the frames.

    Args:
        slot: where frames come from.
        stages: of the work on a frame.
        order: of inferences.
        wait_s: how long no frame is to be taken yet (seconds), by when (monotonic) those under way were taken.
        most: frames under way at once.
        name: of the threads.
        begin: called first, in each of the threads.
    """

    def __init__(
        self,
        slot: LatestFrameQueue[T],
        stages: FrameStages[T],
        order: FrameOrder,
        wait_s: Callable[[List[float]], float],
        most: int,
        name: str = "worker",
        begin: Callable[[], object] = lambda: None,
    ) -> None:
        self._slot, self._stages, self._wait_s, self._begin = slot, stages, wait_s, begin
        self._order, self._entry, self._exit = order, FrameOrder(), FrameOrder()
        self._door = threading.Lock()
        self._taken_s: List[float] = []
        names = [name, *(f"{name}-{number}" for number in range(2, most + 1))]
        self._threads = [threading.Thread(target=self._run_stages, name=each, daemon=True) for each in names]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def under_way(self) -> int:
        return len(self._taken_s)

    def _run_stages(self) -> None:
        self._begin()
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        with self._door:
            item = self._slot.take(wait_s=lambda: self._wait_s(list(self._taken_s)))
            if item is None:
                return False
            taken_s = time.monotonic()
            self._taken_s.append(taken_s)
            entry, place, leave = self._entry.place(), self._order.place(), self._exit.place()
        try:
            self._run_stage(item, entry, place, leave)
        finally:
            for order, each in ((self._entry, entry), (self._order, place), (self._exit, leave)):
                order.done(each)
            self._taken_s.remove(taken_s)
            self._slot.wake()
        return True

    def _run_stage(self, item: T, entry: int, place: int, leave: int) -> None:
        stages = self._stages
        prepared = inferred = None
        failed: Optional[Exception] = None
        try:
            with self._entry.turn(entry):
                prepared = stages.prepare(item, place)
            inferred = stages.infer(item, prepared)
        except Exception as error:
            failed = error
        self._order.done(place)
        self._exit.wait(leave)
        try:
            if failed is None:
                stages.finish(item, prepared, inferred)
        except Exception as error:
            failed = error
        if failed is not None:
            stages.fail(item, failed)

    def drain(self, timeout_s: float) -> bool:
        """Close the slot, let the frames that were taken or wait be finished, and say whether they were in time."""
        self._slot.close()
        ends = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, ends - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)
