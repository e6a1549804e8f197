"""The load that a plan bears, by trying loads in virtual time."""

from __future__ import annotations

from typing import Callable


def load_factor(
    attained: Callable[[float], float], target: float = 0.99, step: float = 0.05, most: float = 1.0
) -> float:
    """The largest load, in steps, at which and below which the wanted share is answered in time (bisection)."""
    low, high = 0, round(most / step)
    while low < high:
        middle = (low + high + 1) // 2
        if attained(middle * step) >= target:
            low = middle
        else:
            high = middle - 1
    return low * step
