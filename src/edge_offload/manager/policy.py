"""Which mode a frame runs in: a policy decides, and the mode in force can be set from outside."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from edge_offload.modes import Mode


@dataclass(frozen=True)
class Decision:
    """The mode that a frame is asked to run in, and why, in words."""

    mode: Mode
    reason: str


class Policy(Protocol):
    """Decides per frame."""

    def decide(self) -> Decision:
        """The mode for the frame that starts now."""


@dataclass(frozen=True)
class FixedPolicy:
    """Always the same mode."""

    mode: Mode
    reason: str = "fixed by configuration"

    def decide(self) -> Decision:
        """The configured mode."""
        return Decision(self.mode, self.reason)


class ModeHolder:
    """The policy in force, exchangeable while frames run (the service SetMode does). Thread-safe."""

    def __init__(self, policy: Policy) -> None:
        self._lock = threading.Lock()
        self._policy = policy

    def set(self, policy: Policy) -> None:
        """Let ``policy`` decide from the next frame on."""
        with self._lock:
            self._policy = policy

    def decide(self) -> Decision:
        """What the policy in force says now."""
        with self._lock:
            return self._policy.decide()
