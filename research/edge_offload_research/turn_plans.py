"""Whose frame goes to the server next, where several networks of one robot share a server (AccuMO, section 2.5.5).

Algorithm 1 lists every valid plan within a horizon, adds up what each would cost in accuracy, and takes the first step
of the best. The same plan is found here by a search (A*) over (time, freshest frame of each task, run length): what
follows depends on nothing else, so plans that meet in such a state are followed further once, and none that is sure to
cost more than the best. Times are seconds, since tasks have frame rates and latencies of their own; with intervals of
1 they are frames, as in the paper. Pure.

A task's result for a frame is as old as the frame that the network last saw, *stale* seconds, and costs
``min(intercept + rate * stale, local)`` of its accuracy: carried along, or made anew by a local algorithm, whichever
is expected to be better. A plan costs the weighted sum over tasks and frames, or what ``merge`` makes of it.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload_research.turn_tails import Pair, make_tails

#: The largest number of turns in a row that one task gets while others wait (section 2.8.3: ratios up to 3:1).
MAX_RUN = 3
#: A number below all costs.
FAR = 1e12
#: Frames that are planned ahead (section 2.8.3).
HORIZON = 30
#: Ticks of the integer clock on which times are compared, per second.
TICKS = 10**9
#: Bounds on what is searched: frames of one task within the horizon and before it, turns, tasks, and states.
MOST_FRAMES, MOST_STALE, MOST_STEPS, MOST_TASKS, MOST_STATES = 400, 100_000, 300, 16, 300_000


@dataclass(frozen=True)
class Task:
    """Estimates of a task at one time.

    Attributes:
        name: of it, unlike any other's.
        latency_s: from the stamp of an offloaded frame until its result can be used.
        last_s: stamp of the frame of its newest usable result, against now: 0 or less.
        rate: drop in accuracy per second of staleness.
        intercept: what a result that is carried at all loses, however short the way: no schedule changes it.
        local: drop of its local algorithm; None if it has none.
        weight: of its drop in the sum.
        interval_s: between its frames.
        next_s: when its next frame comes, against now.
    """

    name: str
    latency_s: float
    last_s: float
    rate: float
    intercept: float = 0.0
    local: Optional[float] = None
    weight: float = 1.0
    interval_s: float = 1.0
    next_s: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise BadInput(f"a task is called {self.name!r}", remedy="give it a name")
        bounds = (("latency_s", 0, True), ("last_s", None, False), ("rate", 0, False), ("intercept", None, False),
                  ("local", 0, False), ("weight", 0, False), ("interval_s", 0, True), ("next_s", 0, False))  # fmt: skip
        for what, low, above in bounds:
            value = getattr(self, what)
            if what == "local" and value is None:
                continue
            if not _is_number(value) or (low is not None and (value < low or (above and value <= low))):
                least = "" if low is None else f" {'above' if above else 'from'} {low}{'' if above else ' on'}"
                raise BadInput(f"task {self.name}: {what} is {value!r}", remedy=f"give a finite number{least}")
        if self.last_s > 0:
            raise BadInput(f"task {self.name}: last_s is {self.last_s!r}, in the future", remedy="give 0 or less")
        if -self.last_s / self.interval_s > MOST_STALE:
            raise BadInput(f"task {self.name}: its last result is {-self.last_s / self.interval_s:.3g} frames old",
                           remedy=f"say {MOST_STALE} at most")  # fmt: skip

    def drop_at(self, stale_s: float) -> float:
        """Expected drop of a result that is so stale (seconds), the better of carried and local."""
        return float(self.drops(np.array(stale_s)))

    def drops(self, stale_s: Array) -> Array:
        """Return the expected drops of several results."""
        return np.minimum(self.intercept + self.rate * stale_s, math.inf if self.local is None else self.local)


@dataclass(frozen=True)
class Problem:
    """The tasks, and what a plan may be.

    Attributes:
        tasks: in the order of preference between plans of equal cost.
        horizon_s: how far is planned.
        max_run: turns in a row that a task gets at most while there are others; None: any number.
        run: the task that had the last turns, and how many in a row; its length is 0 if nobody had one.
        terminal: also count what the end of the plan leaves behind (:mod:`~edge_offload_research.turn_tails`); without,
            a plan ends as Algorithm 1's does, as if nothing came after it.
        in_flight: offloads that may be outstanding at once.
        busy_s: when each of those that are outstanding now will be over, against now.
        merge: makes one drop of the drops of all tasks, in their order, at one moment; None: the weighted sum. With it
            goes one offload in flight, and no terminal cost.
    """

    tasks: Tuple[Task, ...]
    horizon_s: float = float(HORIZON)
    max_run: Optional[int] = MAX_RUN
    run: Tuple[str, int] = ("", 0)
    terminal: bool = True
    in_flight: int = 1
    busy_s: Tuple[float, ...] = ()
    merge: Optional[Callable[[Sequence[float]], float]] = None

    def __post_init__(self) -> None:
        names = [task.name for task in self.tasks]
        twice = sorted({name for name in names if names.count(name) > 1})
        if not 1 <= len(names) <= MOST_TASKS:
            raise BadInput(f"{len(names)} tasks", remedy=f"give 1 to {MOST_TASKS}")
        if twice:
            raise BadInput(f"several tasks are called {', '.join(twice)}", remedy="give each task a name of its own")
        if not _is_number(self.horizon_s) or self.horizon_s <= 0:
            raise BadInput(f"a horizon of {self.horizon_s!r}", remedy="give a finite number above 0")
        most = max(self.horizon_s / task.interval_s for task in self.tasks)
        if most > MOST_FRAMES:
            raise BadInput(f"{most:.3g} frames within the horizon", remedy=f"plan for at most {MOST_FRAMES}")
        if not _is_count(self.in_flight) or not 1 <= self.in_flight <= 8:
            raise BadInput(f"{self.in_flight!r} offloads in flight", remedy="give 1 to 8")
        if self.in_flight * self.horizon_s > MOST_STEPS * min(task.latency_s for task in self.tasks):
            raise BadInput(f"more than {MOST_STEPS} turns within the horizon", remedy="plan for a shorter one")
        if self.max_run is not None and (not _is_count(self.max_run) or self.max_run < 1):
            raise BadInput(f"max_run is {self.max_run!r}", remedy="give a whole number from 1 on, or none")
        if not _is_count(self.run[1]) or (self.run[1] and self.run[0] not in names):
            raise BadInput(f"the last turns were {self.run!r}", remedy="name one of the tasks, and how many it had")
        if not all(map(_is_number, self.busy_s)):
            raise BadInput(f"offloads are over in {self.busy_s}", remedy="give finite numbers")
        if self.merge is not None and (self.in_flight > 1 or self.terminal):
            raise BadInput(
                "an own merge function with several offloads in flight or a terminal cost",
                remedy="plan with in_flight=1 and terminal=False",
            )


class Plan(NamedTuple):
    """The best plan.

    Attributes:
        first: name of the task whose frame goes next.
        cost: weighted drop, summed over the seconds (with intervals of 1: over the frames) of the horizon.
        offloads: when each frame of the plan is offloaded (seconds from now), and of which task.
    """

    first: str
    cost: float
    offloads: Tuple[Tuple[float, str], ...]


class _State(NamedTuple):
    """Time of the next turn (ticks), ends of those outstanding, and the last task with its turns in a row."""

    now: int
    busy: Tuple[int, ...]
    last_task: int
    length: int


class _Step(NamedTuple):
    """A task gets the turn: its frame's number, the first frame that can use the result, and the state after it."""

    task: int
    frame: int
    starts: int
    then: _State


class _Clock:
    """A problem in ticks from now. Frames of a task are numbered from its next one; those seen are negative."""

    def __init__(self, problem: Problem) -> None:
        tasks = problem.tasks
        self.problem, self.end = problem, _to_ticks(problem.horizon_s)
        self.interval = [max(1, _to_ticks(task.interval_s)) for task in tasks]
        self.latency = [max(1, _to_ticks(task.latency_s)) for task in tasks]
        self.next = [_to_ticks(task.next_s) for task in tasks]
        placed = zip(tasks, self.next, self.interval)
        #: The newest frame of each task whose result is known.
        self.seen = tuple(round((_to_ticks(task.last_s) - first) / interval) for task, first, interval in placed)
        #: Frames of each task within the horizon.
        self.frames = [self.first_frame(k, self.end) for k in range(len(tasks))]
        self._max_run = problem.max_run if len(tasks) > 1 else None
        last_task, length = problem.run
        busy = tuple(sorted(ticks for ticks in map(_to_ticks, problem.busy_s) if ticks > 0))
        begin = 0
        while len(busy) >= problem.in_flight:
            begin, busy = busy[0], busy[1:]
        runs = length and self._max_run is not None
        self._cached: Dict[_State, List[_Step]] = {}
        self.start = _State(
            begin, busy, [t.name for t in tasks].index(last_task) if runs else -1, length if runs else 0
        )

    def first_frame(self, k: int, ticks: int) -> int:
        """Number of the first frame of task ``k`` at or after a time."""
        late = ticks - self.next[k]
        return -(-late // self.interval[k]) if late > 0 else 0

    def stamp_of(self, k: int, frame: int) -> int:
        """Return the stamp of a frame of task ``k`` (ticks)."""
        return self.next[k] + frame * self.interval[k]

    def steps(self, state: _State) -> List[_Step]:
        """List the possible next turns; none where the plan is over."""
        if state not in self._cached:
            self._cached[state] = self._make_steps(state)
        return self._cached[state]

    def _make_steps(self, state: _State) -> List[_Step]:
        steps: List[_Step] = []
        if state.now >= self.end:
            return steps
        room = self.problem.in_flight
        for k in range(len(self.interval)):
            row = state.length + 1 if k == state.last_task else 1
            if self._max_run is not None and row > self._max_run:
                continue
            frame = self.first_frame(k, state.now)
            stamp = self.stamp_of(k, frame)
            if stamp >= self.end:
                continue
            back = stamp + self.latency[k]
            run = (k, row) if self._max_run is not None else (-1, 0)
            if room == 1:
                steps.append(_Step(k, frame, self.first_frame(k, back), _State(back, (), *run)))
                continue
            # the next frame may follow at once while there is room, else when the first of them is back
            pending = sorted((*state.busy, back))
            then = stamp + 1 if len(pending) < room else max(pending[0], stamp + 1)
            after = _State(then, tuple(when for when in pending if when > then), *run)
            steps.append(_Step(k, frame, self.first_frame(k, back), after))
        return steps


class _Sum:
    """The weighted sum. With a terminal cost frames beyond the horizon count, too, against the mean."""

    def __init__(self, clock: _Clock) -> None:
        problem = clock.problem
        self.clock, self._beyond = clock, problem.terminal
        exact = problem.terminal and problem.in_flight == 1 and len(problem.tasks) == 2
        self._pair = Pair(problem.tasks, problem.max_run) if exact else None
        tail_costs = [] if exact else make_tails(problem.tasks, problem.in_flight)
        self._tails = tail_costs if problem.terminal else []
        # an offload pays so much per tick: what makes tasks leave time to each other, so that the bound is a close one
        self._price = tail_costs[0].price / TICKS if tail_costs else 0.0
        # a plan ends when the last result is there, and that may wait for a frame
        beyond = max(clock.latency) + max(clock.interval) + max(clock.next)
        latest = [frames + math.ceil(beyond / interval) + 1 for frames, interval in zip(clock.frames, clock.interval)]
        # cost of frames by staleness, added up: what a stretch of frames costs is a difference of two
        self._summed = [
            np.append(0.0, np.cumsum(task.weight * task.interval_s * task.drops(np.arange(size) * task.interval_s)))
            for task, size in zip(problem.tasks, (last - seen for last, seen in zip(latest, clock.seen)))
        ]
        self._lists = [summed.tolist() for summed in self._summed]
        self._bounds = [] if exact else [self._single_bounds(k) for k in range(len(problem.tasks))]
        self._rows: Dict[_State, Tuple[float, List[List[float]]]] = {}

    def begin(self) -> float:
        """Return the cost of the horizon without any offload."""
        stretches = zip(self._lists, self.clock.frames, self.clock.seen)
        return float(sum(summed[frames - seen] - summed[max(0, -seen)] for summed, frames, seen in stretches))

    def step(self, state: _State, seen: Sequence[int], step: _Step, within: bool = False) -> float:
        """Return the change of the cost by a result from its arrival on: 0 or less; ``within``: in the horizon only."""
        k, frame, start, last = step.task, step.frame, step.starts, seen[step.task]
        summed, frames = self._lists[k], self.clock.frames[k]
        if start > frames and (within or not self._beyond):
            start = frames
        new = summed[frames - frame] - summed[start - frame]
        return float(new - (summed[frames - last] - summed[start - last]))

    def remaining_cost(self, state: _State, seen: Sequence[int]) -> float:
        """Return the cost that the end of a plan leaves; 0 without terminal cost."""
        if not self._beyond:
            return 0.0
        clock, cost, late = self.clock, 0.0, max(0, state.now - self.clock.end)
        if self._pair is not None:
            for k, summed in enumerate(self._lists):
                frames = clock.frames[k]
                cost += summed[max(clock.first_frame(k, state.now), frames) - seen[k]] - summed[frames - seen[k]]
            stale = [(state.now - clock.stamp_of(k, frame)) / TICKS for k, frame in enumerate(seen)]
            return (
                cost - self._pair.mean * late / TICKS + self._pair.remaining_cost(stale, state.last_task, state.length)
            )
        # the means beyond the horizon have the server's price in them, and nobody paid that
        cost = self._price * clock.problem.in_flight * late
        for k, tail in enumerate(self._tails):
            frames, end = clock.frames[k], max(clock.first_frame(k, state.now), clock.frames[k])
            cost += tail.cost_beyond_mean(frames - seen[k], end - seen[k]) + tail.remaining_cost(end - seen[k])
        return cost

    def least(self, cost: float, state: _State, seen: Sequence[int]) -> float:
        """Return the least total of a plan of this cost so far: tasks by themselves, server time at its price.

        For a pair of tasks, which has few states, a number that orders them by time.
        """
        if self._pair is not None:
            return state.now / TICKS - FAR
        if state not in self._rows:
            clock = self.clock
            rows = [
                bound[min(clock.first_frame(k, state.now), clock.frames[k])] for k, bound in enumerate(self._bounds)
            ]
            free_time = clock.problem.in_flight * max(0, clock.end - state.now)
            free_time -= sum(min(when, clock.end) - state.now for when in state.busy)
            self._rows[state] = self._price * free_time, rows
        paid, rows = self._rows[state]
        # a frame before the first one of the plan is the one of the start: its costs stand last
        return cost + sum([row[frame if frame >= 0 else -1] for row, frame in zip(rows, seen)]) - paid

    def _single_bounds(self, k: int) -> List[List[float]]:
        """[frames + 1][frames + 1] least that task ``k`` costs from a frame on, by its freshest one."""
        clock, summed, frames = self.clock, self._summed[k], self.clock.frames[k]
        seen = np.append(np.arange(frames), clock.seen[k])
        best_gain = np.zeros((frames + 1, frames + 1))
        if self._tails:
            best_gain[frames] = [self._tails[k].remaining_cost(frames - last) for last in seen.tolist()]
        unshown = summed[frames - seen]
        for frame in range(frames - 1, -1, -1):
            stamp = clock.stamp_of(k, frame)
            start = clock.first_frame(k, stamp + clock.latency[k])
            end = start if self._beyond else min(start, frames)
            gained = summed[frames - frame] - summed[end - frame]
            paid = self._price * min(clock.latency[k], clock.end - stamp)
            next_frame = min(start if clock.problem.in_flight == 1 else frame + 1, frames)
            # what comes after this frame was not offloaded before it
            gains = gained + paid + best_gain[next_frame, frame] - (unshown - summed[np.maximum(end - seen, 0)])
            best_gain[frame] = np.minimum(best_gain[frame + 1], gains)
        listed: List[List[float]] = best_gain.tolist()
        return listed


class _Merged:
    """The user's own function of all tasks' drops, at each moment at which the fastest task has a frame."""

    def __init__(self, clock: _Clock, merge: Callable[[Sequence[float]], float]) -> None:
        self._clock, self._merge = clock, merge
        self._fast = min(range(len(clock.interval)), key=lambda k: clock.interval[k])

    def begin(self) -> float:
        """Until the first offload."""
        return self._cost_between(0, self._clock.start.now, self._clock.seen)

    def step(self, state: _State, seen: Sequence[int], step: _Step, within: bool = False) -> float:
        """While an offload is under way."""
        return self._cost_between(state.now, step.then.now, seen)

    def remaining_cost(self, state: _State, seen: Sequence[int]) -> float:
        """Return 0: there is no terminal cost."""
        return 0.0

    def least(self, cost: float, state: _State, seen: Sequence[int]) -> float:
        """Return the trivial bound: the function is only known not to be negative."""
        return cost

    def _cost_between(self, begin: int, end: int, seen: Sequence[int]) -> float:
        clock, fast, total = self._clock, self._fast, 0.0
        tasks = clock.problem.tasks
        for frame in range(clock.first_frame(fast, begin), clock.first_frame(fast, min(end, clock.end))):
            now = clock.stamp_of(fast, frame)
            stale = [max(0, now - clock.stamp_of(k, last)) / TICKS for k, last in enumerate(seen)]
            cost = self._merge([task.drop_at(stale_s) for task, stale_s in zip(tasks, stale)])
            if not _is_number(cost) or cost < 0:
                raise BadInput(f"the merge function gave {cost!r}", remedy="it has to give a finite number from 0 on")
            total += cost * tasks[fast].interval_s
        return total


def plan_turns(problem: Problem, most_states: int = MOST_STATES) -> Plan:
    """The plan of the least cost; of several, the one that prefers earlier tasks earlier.

    Args:
        problem: tasks, and what a plan may be.
        most_states: bound on what is searched.

    Raises:
        BadInput: more states than can be searched, no frame to offload, or a merge function that gives no number.
    """
    clock = _Clock(problem)
    costs: Union[_Sum, _Merged] = _Sum(clock) if problem.merge is None else _Merged(clock, problem.merge)
    first = costs.begin()
    # least that a plan can cost, the tasks that had turns in it so far, what they cost, and the state; None: its end
    waiting: List[Tuple[float, Tuple[int, ...], float, Tuple[int, ...], Optional[_State]]] = []
    heapq.heappush(waiting, (first, (), first, clock.seen, clock.start))
    spent_at: Dict[Tuple[Tuple[int, ...], _State], float] = {}
    while True:
        _, path, spent, seen, state = heapq.heappop(waiting)
        if state is None:
            break
        if spent > spent_at.get((seen, state), spent):
            continue
        if len(spent_at) > most_states:
            raise BadInput(f"more than {most_states} states", remedy="plan for a shorter horizon, or fewer tasks")
        steps = clock.steps(state)
        if not steps:
            total = spent + costs.remaining_cost(state, seen)
            heapq.heappush(waiting, (total, path, total, seen, None))
        for step in steps:
            k, then = step.task, step.then
            after = (*seen[:k], step.frame, *seen[k + 1 :])
            cost = spent + costs.step(state, seen, step)
            if cost < spent_at.get((after, then), math.inf):
                spent_at[after, then] = cost
                heapq.heappush(waiting, (costs.least(cost, then, after), (*path, k), cost, after, then))
    if not path:
        raise BadInput("no task has a frame within the horizon", remedy="plan for a longer one")
    return _plan_of(clock, costs, path)


def _plan_of(clock: _Clock, costs: Union[_Sum, _Merged], path: Sequence[int]) -> Plan:
    """The plan in which these tasks have turns."""
    state, seen, offloads, total = clock.start, clock.seen, [], costs.begin()
    for k in path:
        step = next(step for step in clock.steps(state) if step.task == k)
        total += costs.step(state, seen, step, within=True)
        offloads.append((clock.stamp_of(k, step.frame) / TICKS, clock.problem.tasks[k].name))
        state, seen = step.then, (*seen[:k], step.frame, *seen[k + 1 :])
    return Plan(offloads[0][1], total, tuple(offloads))


def count_plans(problem: Problem) -> int:
    """Count the plans that Algorithm 1 would list and simulate."""
    clock = _Clock(problem)
    counted: Dict[_State, int] = {}

    def plans_from(state: _State) -> int:
        if state not in counted:
            steps = clock.steps(state)
            counted[state] = sum(plans_from(step.then) for step in steps) if steps else 1
        return counted[state]

    return plans_from(clock.start)


def _to_ticks(seconds: float) -> int:
    return round(seconds * TICKS)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
