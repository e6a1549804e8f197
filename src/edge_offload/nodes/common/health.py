"""How a node is doing, in words: conditions that hold, counters and values. Knows nothing of ROS."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Dict, Tuple

OK, WARN, ERROR = 0, 1, 2
"""Levels, with the numbers of diagnostic_msgs/DiagnosticStatus."""

TORCHES = "two versions of torch"
"""Name of the figure that says what to do about them; the summary of a run takes it from there."""


@dataclass(frozen=True)
class Report:
    """What the node says of itself now: the worst level, the causes, and figures by name."""

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
        self._fine = "running"

    def fine(self, message: str) -> None:
        """What to say while nothing is wrong."""
        with self._lock:
            self._fine = message

    def warn(self, name: str, cause: str) -> bool:
        """Note that the node is degraded, and why; whether this is news."""
        return self._hold(name, WARN, cause)

    def error(self, name: str, cause: str) -> bool:
        """Note that the node does not do its work, and why; whether this is news."""
        return self._hold(name, ERROR, cause)

    def _hold(self, name: str, level: int, cause: str) -> bool:
        with self._lock:
            news = self._conditions.get(name) != (level, cause)
            self._conditions[name] = (level, cause)
            return news

    def clear(self, name: str) -> bool:
        """The condition ``name`` holds no more; whether it did."""
        with self._lock:
            return self._conditions.pop(name, None) is not None

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._counters[name] = self._counters.get(name, 0) + amount

    def counted(self, name: str) -> int:
        """Value of a counter."""
        with self._lock:
            return self._counters.get(name, 0)

    def value(self, name: str, value: object) -> None:
        """Set a figure."""
        with self._lock:
            self._values[name] = f"{value:.6g}" if isinstance(value, float) else str(value)

    def report(self) -> Report:
        """Everything, now; the worst condition first."""
        with self._lock:
            ranked = sorted(self._conditions.values(), key=lambda condition: -condition[0])
            values = {**self._values, **{name: str(count) for name, count in self._counters.items()}}
            if not ranked:
                return Report(OK, self._fine, values)
            return Report(ranked[0][0], "; ".join(cause for _, cause in ranked), values)
