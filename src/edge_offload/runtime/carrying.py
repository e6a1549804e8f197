"""Results for every frame without delay: the network's own if it is in time, else the best one carried to it."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any, Callable, Deque, Generic, Iterator, NamedTuple, Optional, TypeVar

from edge_offload.manager.drop import DropCurve, DropEstimator
from edge_offload.manager.tuning import FIRST_INTERVAL_S, WAIT_SHARE
from edge_offload.perception.carry.carrier import Carrier

Result = TypeVar("Result")
Frame = TypeVar("Frame")

FRESH, CARRIED, LOCAL, NONE = "fresh", "carried", "local", "none"
"""Origins of results: the network on this very frame; on an earlier one; the local algorithm; there is none."""


@dataclass(frozen=True, eq=False)
class Along(Generic[Result]):
    """A result for one frame.

    Attributes:
        result: None where there is none.
        origin: :data:`FRESH`, :data:`CARRIED`, :data:`LOCAL` or :data:`NONE`.
        source: stamp (ns) of the frame that the network, or the local algorithm, saw; 0: none. Where frames arrived
            by instants, it is the :class:`edge_offload.perception.timeline.Instant` of that frame.
        drop: expected loss of accuracy, 0 (as the network's own) to 1; NaN: unknown.
        tag: what the caller gave with the result.
        degraded: why it is carried with less accuracy; empty: it is not.
    """

    result: Optional[Result]
    origin: str
    source: int = 0
    drop: float = math.nan
    tag: Any = None
    degraded: str = ""


class _Retained(NamedTuple):
    result: Any
    source: int
    tag: Any


class Carrying(Generic[Result]):
    """Holds the newest results of the network and of the local algorithm, and gives the better one for each frame.

    The expected drops are learnt: the network's own result for a frame is compared with what was carried there before.
    One thread at a time.

    Args:
        carrier: moves results along.
        loss: returns the drop of one result against the network's own for the same frame, 0 to 1; NaN: no comparison.
        drops: estimator of what carried and local results lose.
        clock: monotonic seconds.
        on_comparison: called with every comparison: stamp of the frame (ns), staleness (s), drop, drops expected now.
        rounds: most passes that carry a new result over frames, each over those that arrived in the pass before.
        most_local: most local results (up to 2 MB each) that wait to be compared with the network's.
    """

    def __init__(
        self,
        carrier: Carrier[Result],
        loss: Callable[[Result, Result], float],
        drops: Optional[DropEstimator] = None,
        clock: Callable[[], float] = time.monotonic,
        on_comparison: Callable[[int, float, float, DropCurve], None] = lambda *_: None,
        rounds: int = 3,
        most_local: int = 16,
    ) -> None:
        self._rounds, self._most_local = rounds, most_local
        self._carrier, self._loss, self._clock, self._on_comparison = carrier, loss, clock, on_comparison
        self.drops = drops or DropEstimator()
        self._network: Optional[_Retained] = None
        self._local: Optional[_Retained] = None
        self._era = 0
        #: The local algorithm's recent results by stamp, to be compared with the network's.
        self._locals: OrderedDict[int, Result] = OrderedDict()

    def reset(self) -> None:
        """Drop all results: stamps or images have started over."""
        self._network = self._local = None
        self._locals.clear()
        self._era += 1

    def carried(self, target: int) -> Optional[Result]:
        """Return the network's newest result, carried to the frame ``target`` (ns); None: no result of it or before."""
        retained = self._network
        return (
            None
            if retained is None or retained.source > target
            else self._carrier.carry(retained.result, retained.source, target)
        )

    def coming(self, result: Result, source: int, newest: Callable[[], int], tag: Any = None) -> Iterator[None]:
        """Take the network's result for the frame ``source`` (ns), and carry it to the newest frame in steps.

        Until the last step :meth:`at` returns what was there before. ``newest`` returns a stamp, ns.
        """
        retained, now, era = self._network, self._clock(), self._era
        if retained is not None and source <= retained.source:
            return
        if source in self._locals:
            lost = self._loss(self._locals[source], result)
            if math.isfinite(lost):
                self.drops.add_local_comparison(now, lost)
        if retained is not None:
            lost = self._loss(self._carrier.carry(retained.result, retained.source, source), result)
            stale_s = (source - retained.source) / 1e9
            # a result of values that are not finite says nothing about carrying
            if math.isfinite(lost):
                self.drops.add_comparison(now, stale_s, lost)
                self._on_comparison(source, stale_s, lost, self.drops.curve(now))
        # more frames arrive during the steps: another round carries the result over them, too
        target = source
        for _ in range(self._rounds):
            before, target = target, max(target, newest())
            if before == target:
                break
            for _ in self._carrier.steps(result, source, target):
                yield
                if era != self._era:
                    return
        self._network = _Retained(result, source, tag)

    def add_result(self, result: Result, source: int, newest: int, tag: Any = None) -> None:
        """Do all steps of :meth:`coming` at once."""
        for _ in self.coming(result, source, lambda: newest, tag):
            pass

    def add_local_result(self, result: Result, source: int, tag: Any = None) -> None:
        """Take the local algorithm's result for the frame ``source`` (ns)."""
        if self._local is None or source > self._local.source:
            self._local = _Retained(result, source, tag)
            self._locals[source] = result
            if len(self._locals) > self._most_local:
                self._locals.popitem(last=False)

    def curve(self) -> DropCurve:
        """Return the drops that are expected now."""
        return self.drops.curve(self._clock())

    def at(self, target: int) -> Along[Result]:
        """Return the result with the least expected drop for the frame ``target`` (ns)."""
        network, local, curve = self._network, self._local, self.curve()
        if network is not None and network.source == target:
            return Along(network.result, FRESH, target, 0.0, network.tag)
        choices = []
        if network is not None and network.source < target:
            choices.append((curve.carried((target - network.source) / 1e9), CARRIED, network))
        if local is not None and local.source <= target:
            lost = 0.5 if curve.local is None else curve.local  # a middle value until the first comparison
            # without the intercept: a local result of this very frame is not carried
            lost += curve.slope * (target - local.source) / 1e9
            choices.append((min(1.0, lost), LOCAL, local))
        if not choices:
            return Along(None, NONE)
        drop, origin, retained = min(choices, key=lambda choice: choice[0])
        moved = self._carrier.carry(retained.result, retained.source, target)
        return Along(moved, origin, retained.source, drop, retained.tag, self._carrier.degraded)


class _Pending(NamedTuple):
    frame: Any
    stamp: int
    #: When it leaves if all that its result needs is there, and at the latest; on the clock.
    leaves_s: float
    latest_s: float


class FrameLoop(Generic[Frame, Result]):
    """Gives every frame its result within the frame interval, in the order of the frames. One thread at a time.

    A frame waits for the network's own result if that usually comes in time. Else, or when that is late, it leaves with
    what is carried to it. It waits as long for whatever else its result needs.

    Args:
        carrying: gives the best result for a frame.
        leave: called with a frame and its result, exactly once for every frame.
        clock: monotonic seconds.
        waits: returns until when, on the clock, a frame waits for what else its result needs; -infinity: not at all.
    """

    def __init__(
        self,
        carrying: Carrying[Result],
        leave: Callable[[Frame, Along[Result]], None],
        clock: Callable[[], float] = time.monotonic,
        waits: Callable[[Frame], float] = lambda _: -math.inf,
    ) -> None:
        self.carrying = carrying
        self._leave, self._clock, self._waits = leave, clock, waits
        self._pending: Optional[_Pending] = None
        self._newest = self._first_stamp = 0
        self._steps: Deque[float] = deque(maxlen=9)
        self._durations: Deque[float] = deque(maxlen=5)

    @property
    def interval_s(self) -> float:
        """Median of the recent times between frames, seconds; 0: not known."""
        steps = list(self._steps)  # a copy, because another thread may call this
        return statistics.median(steps) if steps else 0.0

    @property
    def due_s(self) -> float:
        """Time when the waiting frame has to leave, on the clock; infinity: none waits."""
        pending = self._pending
        if pending is None:
            return math.inf
        return max(pending.leaves_s, min(self._waits(pending.frame), pending.latest_s))

    def arrived(
        self, frame: Frame, stamp: int, received_s: float, follows: bool = True, local: Optional[Result] = None
    ) -> None:
        """Take a frame that the carrier has seen.

        Args:
            frame: passed to ``leave``.
            stamp: its own, or its instant on a timeline, ns.
            received_s: time of receipt, on the clock.
            follows: whether the carrier has the frames before it, so that results can be carried to it.
            local: the local algorithm's result, if it is ready already.
        """
        self.flush()
        if not follows or stamp < self._newest:
            self.carrying.reset()
            self._first_stamp = stamp
            self._steps.clear()
        elif stamp > self._newest > 0:
            self._steps.append((stamp - self._newest) / 1e9)
        self._newest = stamp
        if local is not None:
            self.carrying.add_local_result(local, stamp)
        interval = self.interval_s
        in_time = bool(self._durations) and interval > 0 and statistics.median(self._durations) <= WAIT_SHARE * interval
        leaves_s = received_s + (WAIT_SHARE * interval if in_time else 0.0)
        self._pending = _Pending(frame, stamp, leaves_s, received_s + WAIT_SHARE * (interval or FIRST_INTERVAL_S))
        self._leave_in_time()

    def coming(self, result: Result, source: int, received_s: float, tag: Any = None) -> Iterator[None]:
        """Take the network's result for the frame ``source`` (ns), which was received at ``received_s``.

        It is carried to the newest frame in steps; frames may arrive and leave between them.
        """
        if self.outdated(source):
            return
        self._durations.append(max(0.0, self._clock() - received_s))
        yield from self.carrying.coming(result, source, lambda: self._newest, tag)
        if self._pending is not None and self._pending.stamp == source:
            self._pending = self._pending._replace(leaves_s=-math.inf)
            self._leave_in_time()

    def add_result(self, result: Result, source: int, received_s: float, tag: Any = None) -> None:
        """Do all steps of :meth:`coming` at once."""
        for _ in self.coming(result, source, received_s, tag):
            pass

    def add_local_result(self, result: Result, source: int, tag: Any = None) -> None:
        """Take the local algorithm's result for the frame ``source``."""
        if not self.outdated(source):
            self.carrying.add_local_result(result, source, tag)

    def outdated(self, source: int) -> bool:
        """Tell whether a frame is from before the stamps started over."""
        return not self._first_stamp <= source <= self._newest

    def _leave_in_time(self) -> None:
        if self.due_s <= self._clock():
            self.flush()

    def flush(self) -> None:
        """Let the frame that waits leave."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._leave(pending.frame, self.carrying.at(pending.stamp))


class Events:
    """Thread that makes calls posted by other threads, and what is due at a time, one by one.

    Urgent calls such as a frame's arrival come first, then what is due, then the others. So a result with many steps
    to carry delays no frame that has arrived.

    Args:
        due_s: returns when ``when_due`` is to be called, monotonic seconds; infinity: not at all.
        when_due: does what is due then.
        on_error: called with an exception that a call raised.
    """

    def __init__(
        self, due_s: Callable[[], float], when_due: Callable[[], None], on_error: Callable[[BaseException], None]
    ) -> None:
        self._due_s, self._when_due, self._on_error = due_s, when_due, on_error
        self._changed = threading.Condition()
        self._first: Deque[Callable[[], None]] = deque()
        self._calls: Deque[Callable[[], None]] = deque()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="carry", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def post(self, call: Callable[[], None], first: bool = False) -> None:
        """Queue a call, after earlier ones of its kind; ``first``: before what is due and the others."""
        with self._changed:
            (self._first if first else self._calls).append(call)
            self._changed.notify()

    def go_on(self, call: Callable[[], None]) -> None:
        """Put ``call`` before the others that were not posted ``first``: it continues the current call."""
        with self._changed:
            self._calls.appendleft(call)

    def wake(self) -> None:
        """Look again at what is due, and when."""
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        ended = False
        while not ended:
            with self._changed:
                remaining_s = self._due_s() - time.monotonic()
                while not (self._first or self._calls or self._closed) and remaining_s > 0:
                    self._changed.wait(None if math.isinf(remaining_s) else remaining_s)
                    remaining_s = self._due_s() - time.monotonic()
                # no call is dropped at the end; then when_due is called once more
                ended = not (self._first or self._calls) and self._closed
                if self._first:
                    call = self._first.popleft()
                elif self._calls and remaining_s > 0:
                    call = self._calls.popleft()
                else:
                    call = self._when_due
            try:
                call()
            except Exception as error:
                self._on_error(error)

    def drain(self, timeout_s: float) -> bool:
        """Make the calls that wait, then end the thread; return whether that took at most ``timeout_s``."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()
