"""Health of a node in words: present conditions, counters and values. Independent of ROS."""

from __future__ import annotations

import copy
import math
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Callable, Deque, Dict, Tuple, Union

OK, WARN, ERROR = range(3)
"""Levels, with the numbers of diagnostic_msgs/DiagnosticStatus."""

TORCHES = "two versions of torch"
"""Name of the figure that says what to do about them; the summary of a run takes it from there."""


@dataclass(frozen=True)
class HealthReport:
    """State of the node: the worst level, the causes, and figures by name."""

    level: int
    message: str
    values: Dict[str, str]


class Health:
    """Collects what is wrong under names, so that a cause can be replaced and cleared. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._conditions: Dict[str, Tuple[int, str]] = {}
        self._counters: Dict[str, int] = {}
        self._values: Dict[str, str] = {}
        self._watched: Dict[str, Callable[[], str]] = {}
        self._fine = "running"
        self._part = ""

    def make_part(self, name: str) -> Health:
        """The same for one part of the node, such as one of its cameras: what it says is told under its name."""
        made = copy.copy(self)
        made._part = f"{self._part}{name}: "
        return made

    def fine(self, message: str) -> None:
        with self._lock:
            self._fine = message

    def warn(self, name: str, cause: str) -> bool:
        """Note that the node is degraded, and why; whether this is news."""
        return self._set_condition(name, WARN, cause)

    def error(self, name: str, cause: str) -> bool:
        """Note that the node does not do its work, and why; whether this is news."""
        return self._set_condition(name, ERROR, cause)

    def watch(self, name: str, find_cause: Callable[[], str]) -> None:
        """Degraded for as long as ``find_cause()``, called for every report, gives a cause; empty: nothing is wrong."""
        part = self._part
        with self._lock:
            self._watched[part + name] = lambda: part + cause if (cause := find_cause()) else ""

    def _set_condition(self, name: str, level: int, cause: str) -> bool:
        name, condition = self._part + name, (level, self._part + cause)
        with self._lock:
            news = self._conditions.get(name) != condition
            self._conditions[name] = condition
            return news

    def clear(self, name: str) -> bool:
        """The condition ``name`` holds no more; whether it did."""
        with self._lock:
            return self._conditions.pop(self._part + name, None) is not None

    def count(self, name: str, amount: int = 1) -> None:
        with self._lock:
            self._counters[self._part + name] = self._counters.get(self._part + name, 0) + amount

    def read_count(self, name: str) -> int:
        with self._lock:
            return self._counters.get(self._part + name, 0)

    def value(self, name: str, value: object) -> None:
        with self._lock:
            self._values[self._part + name] = f"{value:.6g}" if isinstance(value, float) else str(value)

    def make_report(self) -> HealthReport:
        """Return the current state; the worst condition first."""
        with self._lock:
            watched = list(self._watched.values())
        causes = [cause for cause in (find_cause() for find_cause in watched) if cause]
        with self._lock:
            conditions = [*self._conditions.values(), *((WARN, cause) for cause in causes)]
            ranked = sorted(conditions, key=lambda condition: -condition[0])
            values = {**self._values, **{name: str(count) for name, count in self._counters.items()}}
            if not ranked:
                return HealthReport(OK, self._fine, values)
            return HealthReport(ranked[0][0], "; ".join(cause for _, cause in ranked), values)


class Losses:
    """The share of a node's newest results that lack something which was asked for, and why. Thread-safe.

    Args:
        what: the results are without, such as ``results without a position``.
        clock: monotonic seconds.
    """

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what, self._clock = what, clock
        self._lock = threading.Lock()
        self._recent: Deque[Tuple[float, bool]] = deque()
        self._cause: Union[str, Callable[[], str]] = ""

    def note_loss(self, cause: Union[str, Callable[[], str]] = "") -> None:
        """Count one more result; ``cause``: why it lacks something, with the remedy. Empty: it is whole."""
        with self._lock:
            self._recent.append((self._clock(), bool(cause)))
            self._cause = cause or self._cause
            self._prune_old()

    def clear(self) -> None:
        """Forget all: nothing is asked for any more."""
        with self._lock:
            self._recent.clear()

    def describe_losses(self) -> str:
        """``12 of the last 25 results without a position: CAUSE``, by the newest cause; empty: none lacks anything."""
        with self._lock:
            self._prune_old()
            lost, of = sum(lacks for _, lacks in self._recent), len(self._recent)
            cause = self._cause
        if not lost:
            return ""
        return f"{lost} of the last {of} {self._what}: {cause() if callable(cause) else cause}"

    def _prune_old(self) -> None:
        now = self._clock()
        # the newest result counts for longer, where results are rare
        while self._recent and now - self._recent[0][0] > (10.0 if len(self._recent) > 1 else 60.0):
            self._recent.popleft()


class Awaited:
    """Watch on something periodic, such as the messages of a topic, that reports silence. Thread-safe.

    Args:
        what: is awaited, and where: ``cloud on /points``.
        remedy: what to do.
        after_s: silence that is too long, seconds.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        what: str,
        remedy: Callable[[], str],
        after_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._remedy, self._after_s, self._clock = what, remedy, after_s, clock
        self._arrived_s, self._started_s = -math.inf, clock()

    def note_arrival(self) -> None:
        self._arrived_s = self._clock()

    @property
    def has_arrived(self) -> bool:
        return math.isfinite(self._arrived_s)

    @property
    def silent_s(self) -> float:
        """Return the seconds since the last arrival, or since the start."""
        return self._clock() - (self._arrived_s if self.has_arrived else self._started_s)

    def explain_silence(self) -> str:
        """Describe a silence that is too long, and the remedy; empty: there is none."""
        silent_s = self.silent_s
        if silent_s <= self._after_s:
            return ""
        since = f"for {silent_s:.0f} s" if self.has_arrived else "yet"
        return f"no {self._what} {since}; {self._remedy()}"
