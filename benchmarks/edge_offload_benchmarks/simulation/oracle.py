"""A policy that knows what every mode will take, for measuring what the others lose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Mapping

from edge_offload.manager.policy import Decision, Situation
from edge_offload.mode import Mode


@dataclass
class OraclePolicy:
    """Knows what every mode will take, whatever the link does."""

    latencies_s: Callable[[float], Mapping[Mode, float]]
    name: str = "oracle"

    def decide(self, situation: Situation) -> Decision:
        """The mode of the least latency."""
        latencies = self.latencies_s(situation.now_s)
        mode = min(latencies, key=lambda mode: latencies[mode])
        return Decision(mode, f"{mode} will take {latencies[mode] * 1e3:.0f} ms", self.name)
