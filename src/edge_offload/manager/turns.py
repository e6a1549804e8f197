"""Whose frame goes to the server next, where several networks of one robot share a server: the one that gains most.

What a task loses with a result of age ``a`` is ``min(intercept + rate * a, local, 1)``: carried along, or made anew by
its local algorithm. A fresh result saves the area above that line, ``rate * a**2 / 2`` up to the age where it is level,
times the task's weight, and costs the server its latency. The largest quotient goes first (Whittle's index); between
equal tasks that is the oldest result. ``edge-offload bench multitask`` holds it against a search of all plans. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence, Tuple


@dataclass(frozen=True)
class Task:
    """A task's present figures.

    Attributes:
        name: of it, unlike any other's.
        latency_s: from the stamp of an offloaded frame until its result can be used (above 0).
        stale_s: age of the newest frame that the network saw, or sees now (from 0 on).
        rate: drop in accuracy per second of staleness.
        intercept: what a result that is carried at all loses, however short the way.
        local: drop of its local algorithm; None if it has none.
        weight: of its drop in the sum.
    """

    name: str
    latency_s: float
    stale_s: float
    rate: float
    intercept: float = 0.0
    local: Optional[float] = None
    weight: float = 1.0

    @property
    def index(self) -> float:
        """Weighted drop that a fresh result saves for each second of the server's time."""
        if self.rate <= 0:
            return 0.0
        most_s = max(0.0, (1.0 if self.local is None else self.local) - self.intercept) / self.rate
        return self.weight * self.rate * min(self.stale_s, most_s) ** 2 / 2 / self.latency_s


def choose(tasks: Sequence[Task], max_run: Optional[int] = None, run: Tuple[str, int] = ("", 0)) -> str:
    """Name of the task whose frame goes next; of equal ones the one with the oldest result.

    Args:
        tasks: at least one.
        max_run: turns in a row that a task gets at most while there are others; None: any number.
        run: the task that had the last turns, and how many in a row.
    """
    name, length = run
    bounded = len(tasks) > 1 and max_run is not None and length >= max_run
    return max((task for task in tasks if not (bounded and task.name == name)), key=_urgency).name


def _urgency(task: Task) -> Tuple[float, float]:
    return task.index, task.stale_s
