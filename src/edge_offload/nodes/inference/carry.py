"""Thread of a node that gives every frame a result at once, carried along from the network's latest result."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Generic, Iterator, Optional, TypeVar

from edge_offload.errors import EdgeOffloadError
from edge_offload.execute.clocks import busy_clock
from edge_offload.manager.drop import DropCurve
from edge_offload.manager.tuning import WAITING
from edge_offload.nodes.common.health import Health
from edge_offload.nodes.inference.intake import Frame
from edge_offload.nodes.inference.latest_frame_queue import LatestFrameQueue, QueueCounts, Worker
from edge_offload.perception.carry.carrier import Carrier
from edge_offload.runtime.carrying import Along, Carrying, Events, FrameLoop

Result = TypeVar("Result")

_ENDED = object()
"""Where no step is left."""


class _Slow:
    """Waits after work as if the machine were slower, on purpose (emulation)."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    @contextlib.contextmanager
    def slow_work(self) -> Iterator[None]:
        """Make what is done here take so many times as long."""
        started_at = busy_clock()
        yield
        if self._factor > 1:
            time.sleep((self._factor - 1) * (busy_clock() - started_at))


class _Slowed(Generic[Result]):
    """A carrier on a robot that is slowed."""

    def __init__(self, carrier: Carrier[Result], slow: _Slow) -> None:
        self._carrier, self._slow = carrier, slow
        self.degraded = ""

    def carry(self, result: Result, source: int, target: int) -> Result:
        with self._slow.slow_work():
            moved = self._carrier.carry(result, source, target)
        self.degraded = self._carrier.degraded
        return moved

    def steps(self, result: Result, source: int, target: int) -> Iterator[None]:
        steps = self._carrier.steps(result, source, target)
        while True:
            with self._slow.slow_work():
                went = next(steps, _ENDED)
            if went is _ENDED:
                return
            yield


@dataclass(frozen=True)
class Task(Generic[Result]):
    """Functions on a node's results by which they can be carried along.

    Attributes:
        carrier: moves them.
        see: has the carrier see a frame, and offers the frame to the network; whether earlier frames are still known.
        leave: publishes the result of a frame.
        fail: publishes that a frame has none, and why.
        drop: of one result against the network's own for the same frame, 0 to 1.
        local_result: the local algorithm, if it is quick: the result of a frame that the carrier has seen.
        local_algorithm: the local algorithm, if it is slow: it works on the latest frame in a thread of its own.
        adopt: makes a result of what ``local_algorithm`` found, in the thread that carries; None: it cannot yet.
        waits: until when (monotonic seconds) a frame's result waits for what else it needs; -infinity: not at all.
    """

    carrier: Carrier[Result]
    see: Callable[[Frame], bool]
    leave: Callable[[Frame, Along[Result]], None]
    fail: Callable[[Frame, BaseException], None]
    drop: Callable[[Result, Result], float]
    local_result: Optional[Callable[[Frame], Result]] = None
    local_algorithm: Optional[Callable[[Frame], Any]] = None
    adopt: Optional[Callable[[Frame, Any], Optional[Result]]] = None
    waits: Callable[[Frame], float] = lambda _: -math.inf


class CarryThread(Generic[Result]):
    """Takes every frame up, and lets it leave with its result within the frame interval.

    Args:
        task: what is carried.
        slowdown: factor by which this machine is slowed on purpose.
        health: says how results are carried.
        on_error: told of what should not happen.

    Attributes:
        health: as given.
    """

    def __init__(
        self, task: Task[Result], slowdown: float, health: Health, on_error: Callable[[str, BaseException], None]
    ) -> None:
        self._task, self.health, self._slow = task, health, _Slow(slowdown)
        self._queue: LatestFrameQueue[Frame] = LatestFrameQueue(capacity=WAITING)
        self._on_comparison: Callable[[int, float, float, DropCurve], None] = lambda *_: None
        carrier = _Slowed(task.carrier, self._slow)
        carrying = Carrying(carrier, task.drop, on_comparison=lambda *comparison: self._on_comparison(*comparison))
        self.loop: FrameLoop[Frame, Result] = FrameLoop(carrying, self._publish_carried, waits=task.waits)
        self._events = Events(lambda: self.loop.due_s, self.loop.flush, lambda error: on_error("carry", error))
        self._lock = threading.Lock()
        self._waits: Optional[Callable[[], Iterator[None]]] = None
        self._local_worker: Optional[Worker[Frame]] = None
        if task.local_algorithm is not None:
            self._latest: LatestFrameQueue[Frame] = LatestFrameQueue()
            self._local_worker = Worker(
                self._latest, self._run_local, lambda _, error: on_error("local", error), "local"
            )

    def start(self, on_comparison: Callable[[int, float, float, DropCurve], None]) -> None:
        """Begin; ``on_comparison``: called with every comparison (:class:`Carrying`)."""
        self._on_comparison = on_comparison
        self._events.start()
        if self._local_worker is not None:
            self._local_worker.start()

    def offer_frame(self, frame: Frame) -> bool:
        """A frame has come; whether it will be taken up."""
        taken = self._queue.offer_frame(frame)
        self._events.post(self._take_frame, first=True)
        return taken

    def post(self, call: Callable[[], None]) -> None:
        """Have something done in the thread, where :attr:`loop` may be used."""
        self._events.post(call)

    def wake(self) -> None:
        """Something has come that the result of a frame may wait for."""
        self._events.wake()

    def take_in_result(self, steps: Callable[[], Iterator[None]]) -> None:
        """The network's result has come: have it taken in, in ``steps``, between which frames may leave.

        One at a time; of results that wait for that only the newest is taken in.
        """
        with self._lock:
            waited, self._waits = self._waits, steps
        if waited is None:
            self._events.post(self._take_in)
        else:
            self.health.count("results that a newer one overtook")

    def _take_in(self) -> None:
        with self._lock:
            steps, self._waits = self._waits, None
        if steps is not None:
            self._go_on(steps())

    def _go_on(self, steps: Iterator[None]) -> None:
        if next(steps, _ENDED) is not _ENDED:
            self._events.go_on(functools.partial(self._go_on, steps))

    @property
    def counts(self) -> QueueCounts:
        return self._queue.counts

    def _take_frame(self) -> None:
        frame = self._queue.take_next_frame(0.0)
        if frame is None:
            return
        self.loop.flush()
        try:
            with self._slow.slow_work():
                follows = self._task.see(frame)
                local = None if self._task.local_result is None else self._task.local_result(frame)
        except EdgeOffloadError as error:
            self.health.count("bad frames")
            self.health.warn("unusable", str(error))
            self._task.fail(frame, error)
            return
        self.health.clear("unusable")
        self.loop.arrived(frame, frame.instant, frame.received_s, follows, local)
        if self._local_worker is not None:
            self._latest.offer_frame(frame)

    def _run_local(self, frame: Frame) -> None:
        assert self._task.local_algorithm is not None
        with self._slow.slow_work():
            local = self._task.local_algorithm(frame)
        self.post(lambda: self._adopt_local(frame, local))

    def _adopt_local(self, frame: Frame, local: Any) -> None:
        outdated = self.loop.outdated(frame.instant)
        result = None if self._task.adopt is None or outdated else self._task.adopt(frame, local)
        if result is not None:
            self.loop.add_local_result(result, frame.instant)

    def _publish_carried(self, frame: Frame, along: Along[Result]) -> None:
        if along.degraded:
            self.health.warn("carry", along.degraded)
        else:
            self.health.clear("carry")
        self.health.count(f"results {along.origin}")
        try:
            self._task.leave(frame, along)
        except Exception as error:
            self._task.fail(frame, error)
            if not isinstance(error, EdgeOffloadError):
                raise

    def refresh(self, what: str) -> None:
        """Say on /diagnostics how far apart frames are; ``what`` they are."""
        self.health.value(f"time between {what}", f"{self.loop.interval_s * 1e3:.0f} ms")

    def drain(self, timeout_s: float) -> bool:
        """Let the frames that wait leave; whether they have in time."""
        self._queue.close()
        ended = self._local_worker is None or self._local_worker.drain(timeout_s)
        return self._events.drain(timeout_s) and ended
