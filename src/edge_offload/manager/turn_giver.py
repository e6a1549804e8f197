"""Gives turns to the networks of a robot by their latest reports; a turn that is not taken or never ends expires.

Pure: times are arguments, monotonic seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Dict, List, Mapping, Optional, Tuple

from edge_offload.errors import BadInput
from edge_offload.manager.drop import DropCurve, Habits
from edge_offload.manager.tuning import FIRST_INTERVAL_S, GIVE_UP_S, POLL_S, RECENT_S, SILENCE_S
from edge_offload.manager.turns import Task, choose


@dataclass(frozen=True)
class Rules:
    """Parameters that may change while turns are given.

    Attributes:
        weights: of tasks, by name; 1 for those that are not named.
        max_run: turns in a row that one task gets while others wait (AccuMO, 2.8.3: ratios up to 3:1).
        in_flight: offloads outstanding at once.
        most_tasks: nodes that may take turns; and turns for which one that left its own is passed over at most.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    max_run: int = 3
    in_flight: int = 1
    most_tasks: int = 16

    def __post_init__(self) -> None:
        for name, weight in self.weights.items():
            if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight < 1e6:
                raise BadInput(f"the weight of task {name} is {weight!r}", remedy="give a number from 0 to 1e6")


@dataclass
class _TaskState:
    """Latest report of a task, and the number of turns for which it is skipped after unused ones."""

    task: str
    latency_s: float
    interval_s: float
    reported_s: float
    curve: DropCurve
    seen_s: float
    vain: int = 0
    skip: int = 0

    def skip_turns(self, most: int) -> None:
        """Skip it after a turn that it did not take or end, for twice as many turns every time, at most ``most``."""
        self.vain = self.skip = min(max(1, 2 * self.vain), most)


@dataclass(frozen=True)
class Turn:
    """The right of one node's frame to go next.

    Attributes:
        number: counted from 1.
        node, task: who has it; a node gives one task its name.
        within_s: not taken by then, it goes to another.
        reason: why, in words.
    """

    number: int
    node: str
    task: str
    within_s: float
    reason: str


@dataclass
class _Given:
    turn: Turn
    given_s: float
    taken_s: float = math.nan


class TurnGiver:
    """Giver of turns of one robot. Use it from one thread at a time.

    Nodes are identified by their names, because two tasks may have the same name by mistake.
    """

    def __init__(self, rules: Optional[Rules] = None) -> None:
        self.rules = rules or Rules()
        self._states: Dict[str, _TaskState] = {}
        self._open: List[_Given] = []
        self._run: Tuple[str, int] = ("", 0)
        self._number = 0
        #: Numbers of turns that were not taken, and that were taken and never ended.
        self.not_taken = self.never_ended = 0

    @property
    def tasks(self) -> Dict[str, float]:
        """Return the nodes that take turns, and the latency of each (seconds)."""
        return {node: state.latency_s for node, state in self._states.items()}

    @property
    def shared_tasks(self) -> List[str]:
        """Return the names of tasks that several nodes use."""
        names = [state.task for state in self._states.values()]
        return sorted({name for name in names if names.count(name) > 1})

    def report_task(self, now: float, node: str, task: str, latency_s: float, interval_s: float = math.nan) -> None:
        """Record that a node offloads frames of its task, with the expected latency of a result; NaN: unknown.

        Raises:
            BadInput: too many nodes.
        """
        latency_s = _bounded(latency_s) if math.isfinite(latency_s) else 1.0
        state = self._states.get(node)
        if state is None:
            if len(self._states) >= self.rules.most_tasks:
                raise BadInput(f"more than {self.rules.most_tasks} nodes take turns", remedy="start fewer of them")
            curve = DropCurve(Habits.intercept, Habits.slope, Habits.slope_error)
            state = self._states[node] = _TaskState(task, latency_s, FIRST_INTERVAL_S, now, curve, now - latency_s)
        state.task, state.latency_s, state.reported_s = task, latency_s, now
        if math.isfinite(interval_s) and interval_s > 0:
            state.interval_s = _bounded(interval_s)

    def update_drops(self, now: float, node: str, curve: DropCurve, interval_s: float = math.nan) -> None:
        """Update the accuracy that a node's results lose with staleness; ignored if it takes no turns."""
        state = self._states.get(node)
        if state is not None:
            state.curve, state.reported_s = curve, now
            if math.isfinite(interval_s) and interval_s > 0:
                state.interval_s = _bounded(interval_s)

    def remove_node(self, node: str) -> None:
        """Remove a node that has stopped offloading; its frames in flight are waited for."""
        self._states.pop(node, None)
        self._open = [given for given in self._open if given.turn.node != node or not math.isnan(given.taken_s)]

    def record_taken(self, now: float, number: int, node: str) -> None:
        """Record that a node sent a frame; ``number`` 0: without a turn, because it had no manager."""
        if not number:
            self._open = [given for given in self._open if (given.turn.number, given.turn.node) != (0, node)]
            self._open = [*self._open[-8:], _Given(Turn(0, node, "", 0.0, ""), now, now)]
        for given in self._open:
            if given.turn.number == number and given.turn.node == node and math.isnan(given.taken_s):
                given.taken_s = now
                state = self._states.get(node)
                if state is not None:
                    state.reported_s, state.vain = now, 0
                # only turns that were taken count towards max_run
                self._run = (node, self._run[1] + 1 if self._run[0] == node else 1)

    def record_ended(self, now: float, number: int, node: str, stale_s: float) -> None:
        """End a turn: its result came ``stale_s`` seconds after the frame; NaN: there is none."""
        state = self._states.get(node)
        if state is not None:
            state.reported_s = now
            if math.isfinite(stale_s):
                state.seen_s = max(state.seen_s, now - max(0.0, stale_s))
        self._open = [given for given in self._open if (given.turn.number, given.turn.node) != (number, node)]

    def due_s(self, now: float) -> float:
        """Return the seconds until :meth:`give_turn` may give another turn; inf: no node takes turns."""
        ends = [self._ends(given) - now for given in self._open]
        if len(self._open) < self.rules.in_flight and self._states:
            return 0.0
        return max(0.0, min(ends, default=math.inf))

    def _ends(self, given: _Given) -> float:
        if math.isnan(given.taken_s):
            return given.given_s + given.turn.within_s
        state = self._states.get(given.turn.node)
        latency_s = state.latency_s if state is not None else 0.0
        return given.taken_s + latency_s + RECENT_S

    def give_turn(self, now: float) -> Optional[Turn]:
        """Return the next turn; None: none is due."""
        for node in [node for node, state in self._states.items() if now - state.reported_s > RECENT_S]:
            self.remove_node(node)
        for given in [given for given in self._open if now >= self._ends(given)]:
            self._open.remove(given)
            state = self._states.get(given.turn.node)
            if math.isnan(given.taken_s):
                self.not_taken += 1
            else:
                self.never_ended += 1
            if state is not None:
                state.skip_turns(self.rules.most_tasks)
        if not self._states or len(self._open) >= self.rules.in_flight:
            return None
        least = min(state.skip for state in self._states.values())
        candidates = {node: state for node, state in self._states.items() if state.skip == least}
        for state in self._states.values():
            state.skip = max(0, state.skip - max(1, least))
        node, reason = self._choose(now, candidates)
        self._number += 1
        within_s = self._states[node].interval_s + SILENCE_S  # messages take their time
        turn = Turn(self._number, node, self._states[node].task, within_s, reason)
        self._open.append(_Given(turn, now))
        return turn

    def _choose(self, now: float, candidates: Mapping[str, _TaskState]) -> Tuple[str, str]:
        if len(candidates) == 1:
            (node,) = candidates
            others = [state.task for other, state in self._states.items() if other != node]
            return node, f"{', '.join(others)} left theirs" if others else "no other task takes turns"
        tasks = [self._task(now, node, candidates[node]) for node in sorted(candidates)]
        reasons = "; ".join(self._describe(task, candidates[task.name].task) for task in tasks)
        return choose(tasks, self.rules.max_run, self._run), f"most is gained: {reasons}"

    def _task(self, now: float, node: str, state: _TaskState) -> Task:
        # a frame in flight counts as seen: otherwise a node would get two of several turns at once
        seen_s = max([state.seen_s, *(given.given_s for given in self._open if given.turn.node == node)])
        weight = float(self.rules.weights.get(state.task, 1.0))
        curve = state.curve
        return Task(
            node, state.latency_s, max(0.0, now - seen_s), curve.slope, curve.intercept, curve.local, weight
        )  # fmt: skip

    def _describe(self, task: Task, name: str) -> str:
        local = "" if task.local is None else f", local {task.local:.2f}"
        weight = "" if task.weight == 1 else f" times {task.weight:g}"
        return (
            f"{name} {task.stale_s:.1f} s old, loses {task.intercept:.2f} + {task.rate:.2f}/s{local}{weight}, "
            f"takes {task.latency_s * 1e3:.0f} ms: {task.index:.2g}/s"
        )


def _bounded(seconds: float) -> float:
    """A latency or an interval, as far as it can be meant."""
    return min(GIVE_UP_S, max(POLL_S, seconds))


def rules_with(rules: Rules, **changed: object) -> Rules:
    """Others, checked.

    Raises:
        BadInput: they cannot be meant.
    """
    return replace(rules, **changed)  # type: ignore[arg-type]
