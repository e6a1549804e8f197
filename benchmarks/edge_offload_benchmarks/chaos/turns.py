"""Turns of the networks of a chaos robot: what nodes tell each other by topics, by calls."""

from __future__ import annotations

import math
import threading
import time
from typing import Callable, Dict, List, Optional

from edge_offload.manager.tuning import REPEAT_S
from edge_offload.manager.turn_giver import Turn, TurnGiver
from edge_offload.manager.turn_taker import Claim, TurnTaker


class Turns:
    """Gives turns and passes on what is said of them, as ``offload/turn`` and ``offload/turn_taken`` do.

    Args:
        names: of the networks.
    """

    def __init__(self, names: List[str]) -> None:
        self._giver = TurnGiver()
        now = time.monotonic()
        self._takers = {name: TurnTaker(name, now) for name in names}
        #: Called when a frame of a network may go; each network sets its own.
        self.wake: Dict[str, Callable[[], None]] = {}
        self._changed = threading.Condition()
        self._last: Optional[Turn] = None
        self._announced_s = now
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="turns", daemon=True)

    def start(self) -> None:
        """Give turns from now on."""
        self._thread.start()

    def close(self) -> None:
        """Give no more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def report_latency(self, name: str, latency_s: float, interval_s: float) -> None:
        """A network's frames go to the server, and take so long."""
        with self._changed:
            self._giver.report_task(time.monotonic(), name, name, latency_s, interval_s)
            self._changed.notify_all()

    def leave_turns(self, name: str) -> None:
        """A network's frames are computed on the robot for now."""
        with self._changed:
            self._giver.remove_node(name)

    def wait_s(self, name: str) -> float:
        """Return for how long no frame of a network may go (seconds)."""
        with self._changed:
            now = time.monotonic()
            if name not in self._giver.tasks:
                # its first turn, or the first one after a long silence
                self._giver.report_task(now, name, name, math.nan)
                self._changed.notify_all()
            return min(0.2, self._takers[name].wait_s(now, now))

    def begin_turn(self, name: str) -> Optional[Claim]:
        """A frame goes; None: it is not its turn."""
        with self._changed:
            now = time.monotonic()
            claim = self._takers[name].claim_turn(now, now)
            if claim is not None:
                self._giver.record_taken(now, claim.number, name)
                self._notify_others(now, name, ends=False)
            return claim

    def end_turn(self, name: str, claim: Claim, captured_s: float) -> None:
        """End a turn, with the time at which its frame was captured."""
        with self._changed:
            now = time.monotonic()
            self._giver.record_ended(now, claim.number, name, now - captured_s)
            self._notify_others(now, name, ends=True)
            self._changed.notify_all()

    def _notify_others(self, now: float, name: str, ends: bool) -> None:
        for other, taker in self._takers.items():
            if other != name:
                taker.record_other_frame(now, name, ends)

    @property
    def count_untaken(self) -> Dict[str, int]:
        """Turns that were not taken, and that never ended."""
        with self._changed:
            return {"not_taken": self._giver.not_taken, "never_ended": self._giver.never_ended}

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                announced = self._give_turn(time.monotonic())
                if not announced:
                    self._changed.wait(min(REPEAT_S / 4, max(0.002, self._giver.due_s(time.monotonic()))))
            if announced:
                for wake in self.wake.values():
                    wake()

    def _give_turn(self, now: float) -> bool:
        """Give a turn if one is due; return whether takers were notified."""
        turn = self._giver.give_turn(now)
        if turn is not None:
            self._last = turn
        if self._last is None or (turn is None and now - self._announced_s < REPEAT_S):
            return False
        self._announced_s = now
        for taker in self._takers.values():
            taker.record_turn(now, (self._last.number, 0), self._last.node, self._giver.tasks)
        return True
