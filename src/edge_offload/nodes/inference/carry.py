"""The thread of a node that gives every frame its result at once, carried along from what the network saw last."""

from __future__ import annotations

import time
from typing import Callable, Generic, TypeVar

from edge_offload.errors import EdgeOffloadError
from edge_offload.nodes.common.health import Health
from edge_offload.nodes.inference.intake import Frame
from edge_offload.nodes.inference.latest_frame_queue import LatestFrameQueue, SlotCounts
from edge_offload.perception.carry.carrier import Carrier
from edge_offload.runtime.carrying import WAITING, Along, Carrying, Events, FrameLoop

Result = TypeVar("Result")


class _Slowed(Generic[Result]):
    """A carrier on a robot that is slowed on purpose (emulation)."""

    def __init__(self, carrier: Carrier[Result], slowdown: float) -> None:
        self._carrier, self._slowdown = carrier, slowdown
        self.degraded = ""

    def carry(self, result: Result, source: int, target: int) -> Result:
        began = time.thread_time()
        moved = self._carrier.carry(result, source, target)
        self.degraded = self._carrier.degraded
        time.sleep((self._slowdown - 1) * (time.thread_time() - began))
        return moved


class CarryThread(Generic[Result]):
    """Takes every frame up, and lets it leave with its result within the frame interval.

    Args:
        carrier: moves results along.
        see: has the carrier see a frame, and offers the frame to the network; whether earlier frames are still known.
        leave: publishes the result of a frame.
        fail: publishes that a frame has none, and why.
        loss: of one result against the network's own, 0 to 1.
        slowdown: factor by which this machine is slowed on purpose.
        health: says how results are carried.
        on_error: told of what should not happen.
    """

    def __init__(
        self,
        carrier: Carrier[Result],
        see: Callable[[Frame], bool],
        leave: Callable[[Frame, Along[Result]], None],
        fail: Callable[[Frame, BaseException], None],
        loss: Callable[[Result, Result], float],
        slowdown: float,
        health: Health,
        on_error: Callable[[str, BaseException], None],
    ) -> None:
        self._see, self._publish, self._fail, self._health = see, leave, fail, health
        self._slot: LatestFrameQueue[Frame] = LatestFrameQueue(capacity=WAITING)
        self.loop: FrameLoop[Frame, Result] = FrameLoop(Carrying(_Slowed(carrier, slowdown), loss), self._leave)
        self._events = Events(lambda: self.loop.due_s, self.loop.flush, lambda error: on_error("carry", error))

    def start(self) -> None:
        """Begin."""
        self._events.start()

    def put(self, frame: Frame) -> bool:
        """A frame has come; whether it will be taken up."""
        taken = self._slot.put(frame)
        self._events.post(self._take)
        return taken

    def post(self, call: Callable[[], None]) -> None:
        """Have something done in the thread, where :attr:`loop` may be used."""
        self._events.post(call)

    @property
    def counts(self) -> SlotCounts:
        """What became of the frames."""
        return self._slot.counts

    def _take(self) -> None:
        frame = self._slot.take(0.0)
        if frame is None:
            return
        try:
            follows = self._see(frame)
        except EdgeOffloadError as error:
            self.loop.flush()
            self._fail(frame, error)
            return
        self.loop.arrived(frame, frame.message.header.stamp.to_nsec(), frame.received_s, follows)

    def _leave(self, frame: Frame, along: Along[Result]) -> None:
        if along.degraded:
            self._health.warn("carry", along.degraded)
        else:
            self._health.clear("carry")
        self._health.count(f"results {along.origin}")
        try:
            self._publish(frame, along)
        except Exception as error:
            self._fail(frame, error)
            if not isinstance(error, EdgeOffloadError):
                raise

    def refresh(self, what: str) -> None:
        """Say on /diagnostics what carrying costs in accuracy; ``what`` the frames are."""
        self._health.value(f"time between {what}", f"{self.loop.interval_s * 1e3:.0f} ms")
        curve = self.loop.carrying.curve()
        local = "" if curve.local is None else f", local algorithm {curve.local:.2f}"
        self._health.value("expected drop", f"{curve.intercept:.2f} + {curve.slope:.2f}/s{local}")

    def drain(self, timeout_s: float) -> bool:
        """Let the frames that wait leave; whether they have in time."""
        self._slot.close()
        return self._events.drain(timeout_s)
