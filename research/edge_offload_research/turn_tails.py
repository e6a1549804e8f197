"""What the end of a plan leaves behind, in stale results: the terminal cost of turns.

It is the value of a state in turns without end: what follows costs more, or less, than turns cost on average.

Two tasks, one offload at a time: exact. When the turn goes to the other task, what follows depends on nothing
before that, so the best schedule repeats ``x`` turns of one and ``y`` of the other.

More tasks: each alone, as if it paid a price for the server's time; the price is the one at which all together want as
much of it as there is (the relaxation behind Whittle's index). A task alone offloads every so many frames. Pure.
"""

from __future__ import annotations

import math
from typing import Dict, List, Optional, Protocol, Sequence

import numpy as np

from edge_offload.arrays import Array

#: Frames between two offloads of one task that are thought of.
MOST_GAP = 256
#: Halvings of the price's interval.
HALVINGS = 24


class Costly(Protocol):
    """Interface of a task (see :class:`edge_offload_research.turn_plans.Task`)."""

    @property
    def latency_s(self) -> float:
        """Seconds from the stamp of a frame to its usable result."""

    @property
    def interval_s(self) -> float:
        """Between frames."""

    @property
    def weight(self) -> float:
        """Weight of its drop."""

    def drops(self, stale_s: Array) -> Array:
        """Return the drops of results of these ages."""


class Tail:
    """A task alone, paying for the server's time. Frames count from the one that the network saw.

    Args:
        task: what it costs.
        in_flight: offloads outstanding at once; with one, frames of a task are offloaded at least its latency apart.

    Attributes:
        price: of the server's time, per second.
    """

    def __init__(self, task: Costly, in_flight: int) -> None:
        self._task = task
        self._late = max(1, math.ceil(task.latency_s / task.interval_s - 1e-9))
        self._least = self._late if in_flight == 1 else 1
        self._grow_tables(self._late + MOST_GAP + 1)
        gaps = np.arange(self._least, MOST_GAP + 1)
        self._seconds = gaps * task.interval_s
        self._costs = self._summed[self._late + gaps] - self._summed[self._late]
        self.price = self._mean = 0.0
        self._cached: Dict[int, float] = {}

    def _grow_tables(self, frames: int) -> None:
        task = self._task
        drops = task.drops(np.arange(frames) * task.interval_s)
        self._summed = np.concatenate([[0.0], np.cumsum(task.weight * task.interval_s * drops)])

    def pay_price(self, price: float) -> float:
        """Offload as often as is best at this price per second; the share of the server's time that this takes."""
        means = (self._costs + price * self._task.latency_s) / self._seconds
        best = int(np.argmin(means))
        self.price, self._mean = price, float(means[best])
        return float(self._task.latency_s / self._seconds[best])

    def cost_beyond_mean(self, stale: int, end: int) -> float:
        """Return the frames' cost beyond the mean while their staleness goes from ``stale`` to ``end`` (frames)."""
        if end >= len(self._summed):
            self._grow_tables(2 * end + 1)
        return float(self._summed[end] - self._summed[stale]) - self._mean * self._task.interval_s * (end - stale)

    def remaining_cost(self, stale: int) -> float:
        """Return the cost beyond the mean from a frame on whose result is ``stale`` frames old, with a free server."""
        if stale not in self._cached:
            if stale + self._late + MOST_GAP >= len(self._summed):
                self._grow_tables(2 * (stale + self._late + MOST_GAP))
            ends = np.arange(self._late, self._late + MOST_GAP)
            costs = self._summed[stale + ends] - self._summed[stale] - self._mean * self._task.interval_s * ends
            self._cached[stale] = float(costs.min()) + self.price * self._task.latency_s
        return self._cached[stale]


def make_tails(tasks: Sequence[Costly], in_flight: int) -> List[Tail]:
    """Make the tail of every task, at the price at which together they use all of the server's time."""
    task_tails = [Tail(task, in_flight) for task in tasks]

    def total_demand(price: float) -> float:
        return sum(tail.pay_price(price) for tail in task_tails)

    low, high = 0.0, 1.0
    if total_demand(low) <= in_flight:
        return task_tails
    while total_demand(high) > in_flight and high < 1e12:
        low, high = high, 4 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if total_demand(middle) > in_flight else (low, middle)
    total_demand(high)
    return task_tails


#: Turns in a row of one of two tasks that are thought of where they are not bounded.
MOST_ROW = 8


class Pair:
    """Two tasks that take turns for ever, one offload at a time. Staleness is in seconds, when a turn ends.

    Args:
        tasks: both.
        max_run: turns in a row that one of them gets at most; None: no bound.
    """

    def __init__(self, tasks: Sequence[Costly], max_run: Optional[int]) -> None:
        self._bounded, self._most = max_run is not None, max_run or MOST_ROW
        #: What a turn takes: results come while a frame waits, and the next turn's is the one after.
        self._turn = [task.interval_s * max(1, math.ceil(task.latency_s / task.interval_s - 1e-9)) for task in tasks]
        self._interval = [task.interval_s for task in tasks]
        self._tasks = tasks
        self._summed: List[List[float]] = [[], []]
        rows = range(1, self._most + 1)
        #: Cost per second of the best schedule.
        self.mean = min(
            (self._cycle_cost(0, x, y) + self._cycle_cost(1, y, x)) / (x * self._turn[0] + y * self._turn[1])
            for x in rows
            for y in rows
        )
        # after the first turn of a row of either task: one is the reference, the other costs so much more
        first, second = self._turn
        self._after = [0.0, 0.0]
        self._after[1] = -min(self._switch_cost(0, first, first + second, x) for x in range(self._most))

    def _staleness_cost(self, k: int, begin: float, end: float) -> float:
        """While the staleness of task ``k`` goes from ``begin`` to ``end``."""
        low, high = begin / self._interval[k], end / self._interval[k]
        if high + 2 > len(self._summed[k]):
            task = self._tasks[k]
            costs = task.weight * task.interval_s * task.drops(np.arange(2 * int(high) + 64) * task.interval_s)
            self._summed[k] = np.concatenate([[0.0], np.cumsum(costs)]).tolist()
        return self._cost_until(k, high) - self._cost_until(k, low)

    def _cost_until(self, k: int, frames: float) -> float:
        summed, complete = self._summed[k], int(frames + 1e-6)
        return summed[complete] + (frames - complete) * (summed[complete + 1] - summed[complete])

    def _cycle_cost(self, k: int, turns: int, others: int) -> float:
        """Return the cost of task ``k`` while ``turns`` turns of it and ``others`` of the other one alternate."""
        turn, gap = self._turn[k], others * self._turn[1 - k]
        return self._staleness_cost(k, turn, 2 * turn + gap) + (turns - 1) * self._staleness_cost(k, turn, 2 * turn)

    def _switch_cost(self, k: int, stale: float, other: float, row: int) -> float:
        """Return the cost beyond the mean of ``row`` turns of task ``k`` and one of the other, at these stalenesses."""
        turn, last = self._turn[k], self._turn[1 - k]
        cost = self._staleness_cost(1 - k, other, other + row * turn + last) - self.mean * (row * turn + last)
        if not row:
            return cost + self._staleness_cost(k, stale, stale + last)
        return (
            cost
            + self._staleness_cost(k, stale, stale + turn)
            + (row - 1) * self._staleness_cost(k, turn, 2 * turn)
            + self._staleness_cost(k, turn, turn + last)
        )

    def remaining_cost(self, stale: Sequence[float], last_task: int, length: int) -> float:
        """Return the cost beyond the mean after ``length`` turns in a row of task ``last_task``."""
        least = math.inf
        for k in (0, 1):
            most = self._most - (length if k == last_task and self._bounded else 0)
            for row in range(1, most + 1):
                least = min(least, self._switch_cost(k, stale[k], stale[1 - k], row) + self._after[1 - k])
        return least
