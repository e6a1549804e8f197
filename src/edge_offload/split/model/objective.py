"""What a planner minimises: latency, energy, a weighted sum, or energy under a deadline."""

from __future__ import annotations

from dataclasses import dataclass

from edge_offload.errors import BadInput


@dataclass(frozen=True)
class Objective:
    """``kind`` is one of latency, energy, weighted, deadline.

    Attributes:
        kind: latency (seconds), energy (joules), weighted (seconds + ``seconds_per_joule`` x joules; LOPInfer's
            f = s + lambda E), deadline (joules, if the makespan is at most ``deadline_s``).
        seconds_per_joule: the weight lambda.
        deadline_s: the deadline.
    """

    kind: str = "latency"
    seconds_per_joule: float = 0.05
    deadline_s: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in ("latency", "energy", "weighted", "deadline"):
            raise BadInput(f"unknown objective {self.kind!r}", remedy="use latency, energy, weighted or deadline")
        if not (self.seconds_per_joule >= 0 and self.deadline_s > 0):
            raise BadInput("a weight must not be negative, and a deadline must be positive")

    def compute_cost(self, makespan_s: float, energy_j: float) -> float:
        """Return the number to minimise."""
        if self.kind == "latency":
            return makespan_s
        if self.kind == "energy":
            return energy_j
        if self.kind == "weighted":
            return makespan_s + self.seconds_per_joule * energy_j
        # J per second late: any plan in time beats any that is late, and less late beats more late
        return energy_j + 1e6 * max(makespan_s - self.deadline_s, 0.0)
