"""Shares the server between networks: in turns that the manager gives, or in slots that a server promises.

Also measures the accuracy that results lose while frames wait (:mod:`edge_offload.nodes.inference.drops`).
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, List, Optional, Sequence, Tuple

from edge_offload.errors import BadInput
from edge_offload.manager.promise import HABITS, UNKNOWN, PromisePolicy
from edge_offload.mode import Mode
from edge_offload.nodes.common.base import Node
from edge_offload.nodes.inference.carry import CarryThread
from edge_offload.nodes.inference.drops import Drops
from edge_offload.nodes.inference.intake import Frame
from edge_offload.nodes.inference.network import Network
from edge_offload.nodes.inference.turns import Turns
from edge_offload.runtime.promise import Promise


class ServerSharing:
    """The turns or slots of one node at the server.

    Args:
        node: whose network shares it.
        network: of the node.
        carries: what gives every frame its result at once, each that of one sensor.
        task: what the node does.
        wake: called when a frame that waits may go.
        request_turn: called when the manager does not know that turns are wanted.

    Raises:
        BadInput: a promise is requested without a server, or for results that are not carried.
    """

    def __init__(
        self,
        node: Node,
        network: Network,
        carries: Sequence[CarryThread[Any]],
        task: str,
        wake: Callable[[], None],
        request_turn: Callable[[], None],
    ) -> None:
        self._node, self._network = node, network
        self._turns: Optional[Turns] = None
        self._promise: Optional[Promise] = None
        self._drops: List[Drops] = []
        if node.params["turns"]:
            turns = self._turns = Turns(node, task, wake, request_turn)
            if not carries:
                self._drops = [Drops(task, node.health, lambda: turns.interval_s)]
        if node.params["accuracy"]:
            if not carries:
                raise BadInput(
                    "~accuracy is promised for results that are carried along", remedy="start with carry:=true"
                )  # fmt: skip
            habits = HABITS.get(task, UNKNOWN)
            self._promise = network.request_promise(
                PromisePolicy(node.params["accuracy"], node.params["batched"], habits=habits)
            )  # fmt: skip
        for carry in carries:
            self._begin_carry(carry, task)

    def _begin_carry(self, carry: CarryThread[Any], task: str) -> None:
        drops = Drops(task, carry.health, lambda: carry.loop.interval_s)
        self._drops.append(drops)
        carry.start(functools.partial(self._add_comparison, drops))

    @property
    def task(self) -> str:
        """Return the node's task, where the manager gives turns; else empty."""
        return "" if self._turns is None else self._turns.task

    @property
    def has_promise(self) -> bool:
        return self._promise is not None

    @property
    def follows_slots(self) -> bool:
        """Tell whether frames go to the server in the slots of its schedule."""
        return self._promise is not None and not self._promise.fallback_reason

    def wants_frame(self, frame: Frame) -> bool:
        """Tell whether a frame has a slot at the server; True without a promise."""
        return self._promise is None or self._promise.wants_frame(frame.received_s)

    def shared_wait_s(self, needs_link: bool, taken_s: List[float]) -> Optional[float]:
        """Return the seconds until a frame may be taken; None: neither turns nor slots decide that.

        Args:
            needs_link: whether frames go to the server now.
            taken_s: when the frames that are under way were taken (monotonic seconds).
        """
        if self.follows_slots:
            return 0.0
        if self._turns is not None and needs_link:
            # a turn is for one frame
            return math.inf if taken_s else self._turns.wait_s()
        return None

    def choose_mode(self, frame: Frame, mode: Mode, refresh: bool) -> Tuple[Mode, bool]:
        """The mode in which a frame runs that was meant for ``mode``, and whether it may explore."""
        if self.follows_slots:
            return Mode.SERVER, False
        if self._turns is None:
            return mode, refresh
        if frame.claim is None:
            # nothing goes to the server without a turn, not even to see how it is
            return Mode.LOCAL, False
        if mode is Mode.LOCAL:
            self._network.module.explorer.allow()
        return mode, refresh

    def take_turn(self, frame: Frame, needed: bool) -> None:
        """Begin a turn with this frame, where there are turns; not ``needed``: only if the manager has given one."""
        if self._turns is not None:
            frame.claim = self._turns.begin_claim(frame, needed)

    def leave_turn(self, frame: Frame) -> None:
        """End the frame's turn: its result has come, or will never come. Idempotent."""
        claim, frame.claim = frame.claim, None
        if self._turns is not None and claim is not None:
            self._turns.end_claim(claim, frame.message.header)

    def compare_result(self, frame: Frame, result: Any, drop: Callable[[Any, Any], float]) -> None:
        """Measure the accuracy that an earlier result had lost; arguments as of :meth:`.Drops.compare_results`."""
        for drops in self._drops:
            drops.compare_results(frame, result, drop)

    def _add_comparison(self, drops: Drops, *comparison: Any) -> None:
        """Record a comparison of a carried result with the network's own."""
        drops.publish_drop(*comparison)
        if self._promise is not None:
            _, stale_s, drop, _ = comparison
            self._promise.add_comparison(stale_s, drop)

    def refresh(self) -> None:
        health = self._node.health
        if self._turns is not None:
            self._turns.refresh()
        for drops in self._drops:
            drops.refresh()
        if self._promise is not None:
            state = self._promise.describe()
            health.value("promise", state)
            if self._promise.fallback_reason:
                health.warn("promise", state)
            else:
                health.clear("promise")
