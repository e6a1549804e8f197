"""Queue of frames between a subscriber and workers: only the latest frame, or every one. Independent of ROS.

A subscriber that computes in its callback may fall behind by a whole queue. With this queue it is at most one inference
behind. Every offered frame is either taken exactly once or superseded, and counted in both cases. Frames of several
sources take turns: the next one is of the source whose last turn is the longest ago. A :class:`Worker` works on one
frame at a time. A :class:`FramePipeline` works on several at once, with results in the order of the frames.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from dataclasses import astuple, dataclass, field
from typing import Any, Callable, Deque, Dict, Generic, Iterable, List, Optional, Protocol, TypeVar

from edge_offload.manager.in_flight import TicketLock

T = TypeVar("T")
F = TypeVar("F", contravariant=True)


@dataclass(frozen=True)
class QueueCounts:
    """Numbers of frames: ``offered = taken + superseded + waiting`` at any moment.

    ``superseded`` counts the frames that were dropped, those not accepted included.
    """

    offered: int = 0
    taken: int = 0
    superseded: int = 0
    waiting: int = 0

    @classmethod
    def sum_counts(cls, many: Iterable[QueueCounts]) -> QueueCounts:
        """Return the sum of ``many``."""
        return cls(*map(sum, zip(*map(astuple, many))))


@dataclass
class _Source(Generic[T]):
    """Waiting frames of one source, and the numbers of all frames that it offered."""

    items: Deque[T] = field(default_factory=deque)
    offered: int = 0
    taken: int = 0
    superseded: int = 0

    @property
    def counts(self) -> QueueCounts:
        # includes the frame of a put() that is blocked until there is room
        waiting = self.offered - self.taken - self.superseded
        return QueueCounts(self.offered, self.taken, self.superseded, waiting)


class LatestFrameQueue(Generic[T]):
    """Queue of frames by source. Thread-safe.

    Args:
        capacity: most waiting frames of one source. One more replaces the oldest, unless ``queue_all``.
        queue_all: drop no frame; :meth:`offer_frame` waits for room instead, which blocks the subscriber's connection.
        source: returns the name of a frame's source, such as its camera; by default all frames have one source.
        accepted: returns whether to queue an offered frame; a frame that is refused counts as superseded.
    """

    def __init__(
        self,
        capacity: int = 1,
        queue_all: bool = False,
        source: Callable[[T], str] = lambda _: "",
        admit_frame: Callable[[T], bool] = lambda _: True,
    ) -> None:
        self._capacity = capacity
        self._queue_all = queue_all
        self._source = source
        #: In the order of their turns: the source from which no frame was taken for the longest time comes first.
        self._sources: Dict[str, _Source[T]] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._admit_frame = admit_frame

    def offer_frame(self, item: T) -> bool:
        """Offer a frame; return whether it was queued (False: it was not accepted, or the queue is closed).

        Waits for room if ``queue_all``.
        """
        accepted = self._admit_frame(item)
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

    def take_next_frame(
        self, timeout_s: Optional[float] = None, wait_s: Callable[[], float] = lambda: 0.0
    ) -> Optional[T]:
        """Take the oldest frame of the source whose turn it is; wait until there is one.

        Args:
            timeout_s: longest wait, seconds; None: no limit.
            wait_s: returns how long to wait although a frame is there, seconds; inf: until :meth:`wake_takers`.

        Returns:
            the frame; None after ``timeout_s``, or when the queue is closed and empty.
        """
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while True:
                name = next((name for name, source in self._sources.items() if source.items), None)
                remaining_s = wait_s() if name is not None else math.inf
                if name is not None and remaining_s <= 0:
                    break
                remaining_s = min(remaining_s, deadline_s - time.monotonic())
                if remaining_s <= 0 or (self._closed and name is None):
                    return None
                self._changed.wait(None if math.isinf(remaining_s) else remaining_s)
            source = self._sources[name] = self._sources.pop(name)  # moves the source to the end of the order
            source.taken += 1
            item = source.items.popleft()
            self._changed.notify_all()
            return item

    def wake_takers(self) -> None:
        """Make the threads that wait in :meth:`take_frame` call ``wait_s`` again."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Accept no more frames. Waiting frames can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        with self._changed:
            return self._closed

    @property
    def counts(self) -> QueueCounts:
        with self._changed:
            return QueueCounts.sum_counts([QueueCounts(), *(source.counts for source in self._sources.values())])

    def get_counts(self, source: str) -> QueueCounts:
        with self._changed:
            return self._sources[source].counts if source in self._sources else QueueCounts()


class Worker(Generic[T]):
    """Thread that takes frames from a queue and works on one at a time.

    Args:
        queue: of the frames.
        work: called with each frame, in the worker's thread.
        on_error: called with a frame and the exception that ``work`` raised; then the worker takes the next frame.
        name: of the thread.
        begin: called first, in the worker's thread.
    """

    def __init__(
        self,
        queue: LatestFrameQueue[T],
        work: Callable[[T], None],
        on_error: Callable[[T, BaseException], None],
        name: str = "worker",
        begin: Callable[[], object] = lambda: None,
    ) -> None:
        self._queue = queue
        self._work = work
        self._on_error = on_error
        self._begin = begin
        self._thread = threading.Thread(target=self._run_work, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run_work(self) -> None:
        self._begin()
        while True:
            item = self._queue.take_next_frame()
            if item is None:
                return
            try:
                self._work(item)
            except Exception as error:
                self._on_error(item, error)

    def drain(self, timeout_s: float) -> bool:
        """Close the queue and wait for the worker; return whether it finished all frames within ``timeout_s``."""
        self._queue.close()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()


class FrameStages(Protocol[F]):
    """Three stages of the work on a frame.

    :meth:`prepare_frame` and :meth:`finish_frame` run for one frame at a time, in the order in which frames were taken.
    :meth:`infer_frame` may run for several frames at once.
    """

    def prepare_frame(self, frame: F, ticket: int) -> Any:
        """Return the network's inputs; ``ticket`` is the frame's ticket in the pipeline's ``order``."""

    def infer_frame(self, frame: F, prepared: Any) -> Any:
        """Run the network on what :meth:`prepare_frame` returned."""

    def finish_frame(self, frame: F, prepared: Any, inferred: Any) -> None:
        """Publish the one result of the frame."""

    def fail_frame(self, frame: F, error: BaseException) -> None:
        """Handle the error of a stage; called instead of :meth:`finish_frame`, or after it if it raised."""


class FramePipeline(Generic[T]):
    """Threads that take frames from a queue and work on several at once; results come in the order of the frames.

    Args:
        queue: of the frames.
        stages: the work on a frame.
        order: gives each frame its ticket in the order of inferences.
        wait_s: returns how long to wait before the next frame is taken, seconds. The argument: when the frames in
            progress were taken, monotonic seconds.
        most: largest number of frames in progress, which is the number of threads.
        name: of the threads.
        begin: called first, in each of the threads.
    """

    def __init__(
        self,
        queue: LatestFrameQueue[T],
        stages: FrameStages[T],
        order: TicketLock,
        wait_s: Callable[[List[float]], float],
        most: int,
        name: str = "worker",
        begin: Callable[[], object] = lambda: None,
    ) -> None:
        self._queue, self._stages, self._wait_s, self._begin = queue, stages, wait_s, begin
        self._infer_order, self._prepare_order, self._finish_order = order, TicketLock(), TicketLock()
        self._take_lock = threading.Lock()  # frames get their places in the order in which they are taken
        self._taken_s: List[float] = []
        names = [name, *(f"{name}-{number}" for number in range(2, most + 1))]
        self._threads = [threading.Thread(target=self._run_stages, name=each, daemon=True) for each in names]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def under_way(self) -> int:
        """Return the number of frames in progress."""
        return len(self._taken_s)

    def _run_stages(self) -> None:
        self._begin()
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Take one frame and work on it; return False when the queue is closed and empty."""
        with self._take_lock:
            item = self._queue.take_next_frame(wait_s=lambda: self._wait_s(list(self._taken_s)))
            if item is None:
                return False
            taken_s = time.monotonic()
            self._taken_s.append(taken_s)
            prepare_ticket, infer_ticket = self._prepare_order.take_ticket(), self._infer_order.take_ticket()
            finish_ticket = self._finish_order.take_ticket()
        try:
            self._run_all_stages(item, prepare_ticket, infer_ticket, finish_ticket)
        finally:
            self._prepare_order.release_ticket(prepare_ticket)
            self._infer_order.release_ticket(infer_ticket)
            self._finish_order.release_ticket(finish_ticket)
            self._taken_s.remove(taken_s)
            self._queue.wake_takers()
        return True

    def _run_all_stages(self, item: T, prepare_ticket: int, infer_ticket: int, finish_ticket: int) -> None:
        stages = self._stages
        prepared = inferred = None
        failed: Optional[Exception] = None
        try:
            with self._prepare_order.hold_ticket(prepare_ticket):
                prepared = stages.prepare_frame(item, infer_ticket)
            inferred = stages.infer_frame(item, prepared)
        except Exception as error:
            failed = error
        self._infer_order.release_ticket(infer_ticket)
        self._finish_order.wait_for_ticket(finish_ticket)
        try:
            if failed is None:
                stages.finish_frame(item, prepared, inferred)
        except Exception as error:
            failed = error
        if failed is not None:
            stages.fail_frame(item, failed)

    def drain(self, timeout_s: float) -> bool:
        """Close the queue and wait for the threads; return whether they finished all frames within ``timeout_s``."""
        self._queue.close()
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)
