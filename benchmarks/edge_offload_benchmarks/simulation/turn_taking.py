"""Two tasks that share one server, in virtual time, over tables of what results lose with staleness.

Time goes in frames, which both tasks have at the same moments. Whose frame is offloaded at frame t has a result that
is shown from frame t + latency on, and then the server is free again. A result that is staler than the tables reach
counts as one of their last column.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.manager.drop import DropEstimator
from edge_offload.manager.turn_giver import Rules
from edge_offload.manager.turns import Task, choose
from edge_offload_benchmarks.simulation.offline_optimum import Offload
from edge_offload_benchmarks.simulation.staleness import FAR, RATE, Table
from edge_offload_research import turn_plans

#: Frames on either side of now, and of staleness, over which true rates are taken.
AROUND = 15
#: Seconds between one stretch of frames and the next, for the estimates.
PAUSE_S = 10.0


@dataclass(frozen=True)
class Pair:
    """Losses of both tasks over the same frames.

    Attributes:
        tables: of either task.
        latencies: frames, of either.
        shown: by way to show results, of either task [frames, FAR + 1]: the drop in a frame by staleness there.
    """

    tables: Tuple[Table, Table]
    latencies: Tuple[int, int]
    shown: Dict[str, Tuple[Array, Array]] = field(default_factory=dict)

    @property
    def begin(self) -> int:
        """The first frame that counts: tables reach back from there."""
        return FAR

    @property
    def end(self) -> int:
        """The frame after the last one."""
        return min(table.frames for table in self.tables)

    @property
    def seen(self) -> List[int]:
        """Frames of the results that are there at first: those that have just come."""
        return [self.begin - latency for latency in self.latencies]

    def drops(self, method: str) -> Tuple[Array, Array]:
        """[frames, FAR + 1] of either task; see ``shown``."""
        if method not in self.shown:
            first, second = (by_frame(table.drop(method)) for table in self.tables)
            self.shown[method] = first, second
        return self.shown[method]

    def local(self, k: int) -> Array:
        """[frames] of a task's local algorithm."""
        return self.tables[k].arrays["drop/local"]


def by_frame(table: Array) -> Array:
    """Shift a table from a result's frame [n, k] to the frame where it is shown [n + k, k]; NaN: before the first."""
    shifted = np.full(table.shape, np.nan)
    for later in range(table.shape[1]):
        shifted[later:, later] = table[: len(table) - later, later]
    return shifted


class Estimates:
    """Estimates of both tasks, by comparisons with each new result. They persist from stretch to stretch."""

    def __init__(self) -> None:
        self.tasks = [DropEstimator(), DropEstimator()]
        self._before_s = 0.0

    def now_s(self, frame: int) -> float:
        """Time of a frame of this stretch."""
        return self._before_s + frame / RATE

    def ends(self, pair: Pair) -> None:
        """A stretch is over."""
        self._before_s += pair.end / RATE + PAUSE_S

    def comes(self, pair: Pair, k: int, frame: int, before: int, now: int) -> None:
        """The result of a frame comes; what was shown there was carried from the one ``before``."""
        stale = min(frame - before, FAR)
        if stale > 0:
            drop = pair.drops("carried")[k][frame, stale]
            self.tasks[k].add_comparison(self.now_s(now), stale / RATE, min(1.0, max(0.0, float(drop))))
        self.tasks[k].add_local_comparison(self.now_s(now), float(pair.local(k)[frame]))

    def prefers_local(self, k: int, frame: int, stale: int) -> bool:
        """Return whether the local algorithm's result is shown (the low-level loop of section 2.5.3)."""
        curve = self.tasks[k].curve(self.now_s(frame))
        return curve.local is not None and curve.local < curve.carried(stale / RATE)


@dataclass
class Situation:
    """Input of a decision on the next turn."""

    pair: Pair
    frame: int
    seen: Sequence[int]
    run: Tuple[int, int]
    latencies_s: Sequence[float]
    estimates: Estimates
    local: bool


Chooser = Callable[[Situation], int]


class Pattern:
    """Turns that repeat themselves: ``counts`` of either task, as evenly as that goes."""

    def __init__(self, counts: Tuple[int, int]) -> None:
        rare = min(counts)
        self._turns = [k for part in range(rare) for k, n in enumerate(counts) for _ in range(n // rare)]
        self._next = 0

    def __call__(self, now: Situation) -> int:
        """Choose the task of the next turn."""
        self._next += 1
        return self._turns[(self._next - 1) % len(self._turns)]


class Turns:
    """:func:`edge_offload.manager.turns.choose`, asked for every turn, by estimates or by true rates."""

    def __init__(self, weights: Sequence[float], true_rates: bool = False) -> None:
        self._weights, self._true_rates = weights, true_rates

    def __call__(self, now: Situation) -> int:
        """Choose the task of the next turn."""
        # of equal ones the oldest result goes first
        tasks = sorted((self._task(now, k) for k in (0, 1)), key=lambda task: -task.stale_s)
        return "ab".index(self.choose(tasks, ("ab"[now.run[0]], now.run[1]) if now.run[1] else ("", 0)))

    def _task(self, now: Situation, k: int) -> Task:
        if self._true_rates:
            intercept, slope, local = true_rates(now.pair, k, now.frame)
        else:
            curve = now.estimates.tasks[k].curve(now.estimates.now_s(now.frame))
            intercept, slope, local = curve.intercept, curve.slope, curve.local
        stale_s, latency_s = (now.frame - now.seen[k]) / RATE, now.latencies_s[k]
        return Task("ab"[k], latency_s, stale_s, slope, intercept, local if now.local else None, self._weights[k])

    def choose(self, tasks: Sequence[Task], run: Tuple[str, int]) -> str:
        """Name of the task whose turn it is."""
        return choose(tasks, Rules.max_run, run)


class Planned(Turns):
    """:func:`edge_offload_research.turn_plans.plan_turns`, made anew for every turn."""

    def choose(self, tasks: Sequence[Task], run: Tuple[str, int]) -> str:
        """See :class:`Turns`."""
        turn_tasks = tuple(
            turn_plans.Task(
                task.name, task.latency_s, -task.stale_s, task.rate, task.intercept, task.local, task.weight, 1 / RATE
            )
            for task in tasks
        )
        horizon_s = max(turn_plans.HORIZON / RATE, 2.5 * max(task.latency_s for task in tasks))
        return turn_plans.plan_turns(turn_plans.Problem(turn_tasks, horizon_s, Rules.max_run, run)).first


def true_rates(pair: Pair, k: int, frame: int) -> Tuple[float, float, Optional[float]]:
    """Intercept, slope per second (0 on) and local drop, from the true drops of the frames about now."""
    first, last = max(0, frame - AROUND), min(pair.end, frame + AROUND)
    rows = pair.tables[k].drop("carried")[first:last, 1 : AROUND + 1]
    stale = np.broadcast_to(np.arange(1, AROUND + 1) / RATE, rows.shape)
    observed = ~np.isnan(rows)
    if not observed.any() or np.ptp(stale[observed]) == 0:
        return 0.0, 0.0, None
    slope, intercept = np.polyfit(stale[observed], rows[observed], 1)
    return max(0.0, float(intercept)), max(0.0, float(slope)), float(pair.local(k)[first:last].mean())


@dataclass
class Outcome:
    """A run over one pair of stretches: of either task and every frame that counts.

    Attributes:
        stale: [2, frames] frames of staleness of the result that is there.
        local: [2, frames] whether the local algorithm's result is shown in its place.
        drops: [2, frames].
        offloads: when, and whose.
    """

    stale: Array
    local: Array
    drops: Array
    offloads: List[Offload]


#: Latest offloads of a task whose mean latency is what the robot expects of the next.
RECENT = 10


def take_turns(
    pair: Pair,
    choose: Chooser,
    estimates: Estimates,
    local: bool,
    together: bool = False,
    way: Optional[Callable[[int, int], int]] = None,
) -> Outcome:
    """Run in virtual time.

    Args:
        pair: of tables.
        choose: whose turn it is, asked whenever the server is free.
        estimates: of the robot; they learn.
        local: whether both tasks have their local algorithms.
        together: both offload at once and nobody chooses; they share link and server: back after both latencies.
        way: frames that an offload of a task at a frame takes; None: always the pair's latencies.
    """
    latencies = [[latency] for latency in pair.latencies]
    seen, run, frame = pair.seen, (0, 0), pair.begin
    coming: List[Tuple[int, int, int]] = []  # when, whose, and of which frame
    offloads: List[Offload] = []
    length = pair.end - pair.begin
    stale, shown = np.zeros((2, length), dtype=int), np.zeros((2, length), dtype=bool)
    for frame in range(pair.begin, pair.end):
        for when, k, of in [item for item in coming if item[0] == frame]:
            estimates.comes(pair, k, of, seen[k], frame)
            seen[k] = of
            coming.remove((when, k, of))
        if not coming:
            if together:
                chosen, wait = [0, 1], sum(pair.latencies)
            else:
                expected_s = [sum(latest) / len(latest) / RATE for latest in latencies]
                k = choose(Situation(pair, frame, seen, run, expected_s, estimates, local))
                run = (k, run[1] + 1 if run[0] == k else 1)
                chosen, wait = [k], pair.latencies[k] if way is None else way(k, frame)
                latencies[k] = [*latencies[k][1 - RECENT :], wait]
            coming += [(frame + wait, k, frame) for k in chosen]
            offloads += [(frame, k) for k in chosen]
        for k in (0, 1):
            stale[k, frame - pair.begin] = age = min(frame - seen[k], FAR)
            shown[k, frame - pair.begin] = local and estimates.prefers_local(k, frame, age)
    estimates.ends(pair)
    return Outcome(stale, shown, drops_of(pair, "carried", stale, shown), offloads)


def drops_of(pair: Pair, method: str, stale: Array, local: Array) -> Array:
    """[2, frames] what is lost, by what is shown."""
    frames = np.arange(pair.begin, pair.end)
    drops = [np.where(local[k], pair.local(k)[frames], pair.drops(method)[k][frames, stale[k]]) for k in (0, 1)]
    return np.array(drops)


def replayed(pair: Pair, offloads: Sequence[Offload]) -> Array:
    """[2, frames] staleness of the results that are there when these offloads are made."""
    stale = np.zeros((2, pair.end - pair.begin), dtype=int)
    for k, before in enumerate(pair.seen):
        back = [(frame + pair.latencies[k], frame) for frame, whose in offloads if whose == k]
        for frame in range(pair.begin, pair.end):
            newest = max([of for when, of in back if when <= frame], default=before)
            stale[k, frame - pair.begin] = min(frame - newest, FAR)
    return stale
