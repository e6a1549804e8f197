"""Takes the turns of one node: when its frame may go to the server, by the manager's word or, without it, the clock.

When the manager is gone, nodes take turns by themselves: the robot's time is cut into slots, which all its nodes see
alike, and each slot is another node's. Who still hears the others waits for them, too. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Dict, Mapping, Optional, Tuple

from edge_offload.manager.tuning import RECENT_S, REPEAT_S, SILENCE_S


@dataclass(frozen=True)
class Claim:
    """A frame may go; ``number``: of the manager's turn, or 0: taken by the node itself."""

    number: int


class TurnTaker:
    """One node's. One thread at a time. ``now`` is monotonic, ``clock_s`` what frames are stamped by; both in seconds.

    Args:
        node: its name.
        now: when it began to listen.

    Attributes:
        clock_reason: why turns are taken by the clock, in words; empty: the manager gives them.
    """

    def __init__(self, node: str, now: float) -> None:
        self._node = node
        self._turn: Tuple[int, int] = (0, 0)
        self._mine = False
        self._received_s = now
        self._slots: Dict[str, float] = {node: REPEAT_S}
        self._others: Dict[str, float] = {}
        self._at_once = 1
        self._slot_taken: Optional[int] = None
        self.clock_reason = ""

    def given(
        self, now: float, turn: Tuple[int, int], node: str, latencies_s: Mapping[str, float], at_once: int = 1
    ) -> None:
        """The manager gave a turn, or says again which one it gave.

        Args:
            now: when it was heard.
            turn: its number, and when it was given: another manager counts anew.
            node: whose it is.
            latencies_s: of all nodes that take turns.
            at_once: frames that may be under way.
        """
        self._received_s, self.clock_reason, self._at_once = now, "", max(1, at_once)
        if turn == self._turn:
            return
        self._turn, self._mine = turn, node == self._node
        self._slots = {self._node: REPEAT_S, **latencies_s}
        # also of nodes that a manager which has just come does not know yet
        self._others = {name: until for name, until in self._others.items() if until > now}

    def lose_manager(self, why: str) -> None:
        """The manager does not give turns any more."""
        self.clock_reason, self._mine = self.clock_reason or why, False

    def other(self, now: float, node: str, ends: bool) -> None:
        """Another node took a turn, or its result is there."""
        if node == self._node:
            return
        self._slots.setdefault(node, REPEAT_S)
        if ends:
            self._others.pop(node, None)
        else:
            self._others[node] = now + self._slots[node] + RECENT_S

    def wait_s(self, now: float, clock_s: float) -> float:
        """Return the seconds that a frame has to wait, which messages may change; 0: it may go now."""
        if not self.clock_reason and now - self._received_s > RECENT_S:
            self.lose_manager(f"no manager has given a turn for {RECENT_S:g} s")
        # a manager that has just come does not know what is under way
        busy = sorted(until - now for until in self._others.values() if until > now)
        if not self.clock_reason:
            soon_s = max(0.0, self._received_s + RECENT_S - now) + 1e-3
            return soon_s if not self._mine else 0.0 if len(busy) < self._at_once else busy[0]
        if busy:
            return busy[-1]
        slot, remaining_s = self._slot(clock_s)
        return 0.0 if slot is None or (remaining_s <= 0 and slot != self._slot_taken) else max(remaining_s, 0.02)

    def _slot(self, clock_s: float) -> Tuple[Optional[int], float]:
        """Number of the slot of now (None: nobody else takes turns), and seconds until one of this node's begins."""
        names = sorted(self._slots)
        if len(names) == 1:
            return None, 0.0
        length_s = max(self._slots.values()) + SILENCE_S
        slot = math.floor(clock_s / length_s)
        until = (names.index(self._node) - slot) % len(names)
        return slot, (slot + until) * length_s - clock_s if until else 0.0

    def take(self, now: float, clock_s: float) -> Optional[Claim]:
        """A frame goes; None: it may not, any more."""
        if self.wait_s(now, clock_s) > 0:
            return None
        if self.clock_reason:
            self._slot_taken = self._slot(clock_s)[0]
            return Claim(0)
        self._mine = False
        return Claim(self._turn[0])
