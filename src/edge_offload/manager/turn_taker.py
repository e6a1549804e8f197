"""Decides when one node may send a frame to the server: when the manager gives it a turn, or by the clock.

Without a manager, turns of equal length follow each other by the clock. They go round the robot's nodes, ordered by
name. All nodes compute the same turns from the robot's clock. A node also waits until the frames of other nodes, as
far as it receives their messages, have ended. Pure: times come in as arguments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Dict, Mapping, Optional, Tuple

from edge_offload.manager.tuning import RECENT_S, REPEAT_S, SILENCE_S


@dataclass(frozen=True)
class Claim:
    """The right to send one frame; ``number``: number of the manager's turn, 0 for a turn by the clock."""

    number: int


class TurnTaker:
    """Turns of one node. Use it from one thread at a time.

    In all methods ``now`` is monotonic time, and ``clock_s`` the clock that stamps frames; both are seconds.

    Args:
        node: name of the node.
        now: time of its subscription to turns.

    Attributes:
        clock_reason: why the clock decides, in words; empty: the manager gives turns.
    """

    def __init__(self, node: str, now: float) -> None:
        self._node = node
        self._turn: Tuple[int, int] = (0, 0)
        self._has_turn = False  # given by the manager, and not used yet
        self._received_s = now
        #: Expected latency of a frame of each node (seconds).
        self._latencies_s: Dict[str, float] = {node: REPEAT_S}
        #: Other nodes with a frame in flight: the time until which it is waited for.
        self._busy_until_s: Dict[str, float] = {}
        self._at_once = 1
        self._used_clock_turn: Optional[int] = None
        self.clock_reason = ""

    def record_turn(
        self, now: float, turn: Tuple[int, int], node: str, latencies_s: Mapping[str, float], at_once: int = 1
    ) -> None:
        """Record a turn that the manager gave, or repeated.

        Args:
            now: time of receipt.
            turn: number of the turn and its stamp, since a restarted manager counts from the beginning.
            node: the node that has the turn.
            latencies_s: latency of a frame of each node that takes turns.
            at_once: frames of all nodes that may be in flight at once.
        """
        self._received_s, self.clock_reason, self._at_once = now, "", max(1, at_once)
        if turn == self._turn:
            return
        self._turn, self._has_turn = turn, node == self._node
        self._latencies_s = {self._node: REPEAT_S, **latencies_s}
        # frames of nodes that a new manager does not know yet are kept as well
        self._busy_until_s = {name: until for name, until in self._busy_until_s.items() if until > now}

    def lose_manager(self, why: str) -> None:
        """Let the clock decide from now on: the manager does not give turns any more."""
        self.clock_reason, self._has_turn = self.clock_reason or why, False

    def record_other_frame(self, now: float, node: str, ends: bool) -> None:
        """Record that another node sent a frame, or (``ends``) received its result."""
        if node == self._node:
            return
        self._latencies_s.setdefault(node, REPEAT_S)
        if ends:
            self._busy_until_s.pop(node, None)
        else:
            self._busy_until_s[node] = now + self._latencies_s[node] + RECENT_S

    def wait_s(self, now: float, clock_s: float) -> float:
        """Return the seconds that a frame has to wait; 0: it may go now. Ask again after each message."""
        if not self.clock_reason and now - self._received_s > RECENT_S:
            self.lose_manager(f"no manager has given a turn for {RECENT_S:g} s")
        # also with a manager: a new one does not know which frames are in flight
        busy_s = sorted(until - now for until in self._busy_until_s.values() if until > now)
        if not self.clock_reason:
            silence_s = max(0.0, self._received_s + RECENT_S - now) + 1e-3  # until the manager counts as gone
            return silence_s if not self._has_turn else 0.0 if len(busy_s) < self._at_once else busy_s[0]
        if busy_s:
            return busy_s[-1]
        turn, remaining_s = self._clock_turn(clock_s)
        return 0.0 if turn is None or (remaining_s <= 0 and turn != self._used_clock_turn) else max(remaining_s, 0.02)

    def _clock_turn(self, clock_s: float) -> Tuple[Optional[int], float]:
        """Return the number of the present turn by the clock, and the seconds until this node's next one.

        The number is None where there is no other node.
        """
        names = sorted(self._latencies_s)
        if len(names) == 1:
            return None, 0.0
        length_s = max(self._latencies_s.values()) + SILENCE_S
        turn = math.floor(clock_s / length_s)
        turns_ahead = (names.index(self._node) - turn) % len(names)
        return turn, (turn + turns_ahead) * length_s - clock_s if turns_ahead else 0.0

    def claim_turn(self, now: float, clock_s: float) -> Optional[Claim]:
        """Claim the right to send a frame now; None: it has to wait."""
        if self.wait_s(now, clock_s) > 0:
            return None
        if self.clock_reason:
            self._used_clock_turn = self._clock_turn(clock_s)[0]
            return Claim(0)
        self._has_turn = False
        return Claim(self._turn[0])
