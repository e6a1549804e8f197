"""Velocity commands to follow a person, within limits. Without a recent position the robot stops."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, fields
from typing import Callable, Optional, Tuple

from edge_offload.errors import BadInput

_TURN_ONLY = math.radians(70)
"""Bearing (radians) from which the robot turns without driving."""


@dataclass(frozen=True)
class FollowerConfig:
    """Limits and gains in SI units and radians; the robot's base frame has x forward and y left.

    Attributes:
        distance: distance to keep from the person.
        distance_dead_zone, bearing_dead_zone: smaller errors of distance and bearing are ignored.
        linear_gain, angular_gain: speed per error of distance or bearing, 1/s.
        max_linear, max_angular: limits of speed. The robot never drives backwards.
        max_linear_acceleration, max_angular_acceleration: limits of acceleration while driving.
        stop_deceleration: deceleration when the target is lost or results are stale.
        target_timeout_s: the target is lost when not seen for this long.
        result_timeout_s: results are stale when none arrived for this long.
    """

    distance: float = 1.5
    distance_dead_zone: float = 0.2
    bearing_dead_zone: float = 0.05
    linear_gain: float = 0.8
    angular_gain: float = 1.5
    max_linear: float = 0.8
    max_angular: float = 1.2
    max_linear_acceleration: float = 0.6
    max_angular_acceleration: float = 2.5
    stop_deceleration: float = 2.0
    target_timeout_s: float = 1.0
    result_timeout_s: float = 0.7

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not (math.isfinite(value) and value >= 0):
                raise BadInput(f"follower: {item.name} is {value}", remedy="give a number, not negative")


@dataclass(frozen=True)
class Command:
    """Velocity, m/s forward and rad/s to the left, and its reason as a text for people."""

    linear: float
    angular: float
    reason: str


class PersonFollower:
    """Converts sightings to velocity commands.

    Call ``add_sighting`` for each result and ``compute_command`` at a steady rate. Both use ``clock`` (monotonic
    seconds), so that the robot stops when no more results are added.
    """

    def __init__(self, config: Optional[FollowerConfig] = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config or FollowerConfig()
        self._clock = clock
        self._target: Optional[Tuple[float, float]] = None
        self._target_s = self._result_s = -math.inf
        self._linear = self._angular = 0.0
        self._last_s: Optional[float] = None

    def add_sighting(self, target: Optional[Tuple[float, float]], taken_s: float) -> None:
        """Add one result.

        Args:
            target: x and y of the person in the robot's base frame, metres; None: not seen in this frame.
            taken_s: time of the frame, on the follower's clock; one older than the last is ignored.
        """
        taken_s = min(taken_s, self._clock())
        self._result_s = max(self._result_s, taken_s)
        if target is not None and taken_s > self._target_s and all(math.isfinite(value) for value in target):
            self._target, self._target_s = (float(target[0]), float(target[1])), taken_s

    def compute_command(self) -> Command:
        """Return the velocity for the current time."""
        now = self._clock()
        # bounded, so that the speed does not jump after a late call
        step_s = 0.0 if self._last_s is None else min(max(0.0, now - self._last_s), 0.2)
        self._last_s = now
        config = self.config
        if now - self._result_s > config.result_timeout_s:
            return self._stop_robot(step_s, "no results yet" if self._result_s == -math.inf else "results are stale")
        if self._target is None or now - self._target_s > config.target_timeout_s:
            return self._stop_robot(step_s, "no target yet" if self._target is None else "target is lost")
        linear, angular, reason = self._desired_speed(*self._target)
        braking = config.max_linear_acceleration if linear > 0 else config.stop_deceleration
        self._linear = _move_toward(self._linear, linear, config.max_linear_acceleration * step_s, braking * step_s)
        turn = config.max_angular_acceleration * step_s
        self._angular = _move_toward(self._angular, angular, turn, turn)
        return Command(self._linear, self._angular, reason)

    def _desired_speed(self, x: float, y: float) -> Tuple[float, float, str]:
        """Return linear and angular speed before the limits of acceleration, and the reason."""
        config = self.config
        bearing, gap = math.atan2(y, x), math.hypot(x, y) - config.distance
        angular = 0.0 if abs(bearing) <= config.bearing_dead_zone else config.angular_gain * bearing
        angular = max(-config.max_angular, min(config.max_angular, angular))
        linear = 0.0 if gap <= config.distance_dead_zone else min(config.max_linear, config.linear_gain * gap)
        linear *= math.cos(bearing) ** 2 if abs(bearing) < _TURN_ONLY else 0.0
        if linear == 0.0 and angular == 0.0:
            return 0.0, 0.0, "at the target"
        return linear, angular, "following" if linear else "turning to the target"

    def _stop_robot(self, step_s: float, reason: str) -> Command:
        """Return the command that slows the robot towards a stop, ``step_s`` seconds after the previous one."""
        braking = self.config.stop_deceleration * step_s
        turn = self.config.max_angular_acceleration * step_s
        self._linear = _move_toward(self._linear, 0.0, braking, braking)
        self._angular = _move_toward(self._angular, 0.0, turn, turn)
        return Command(self._linear, self._angular, reason)


def _move_toward(value: float, target: float, rise: float, fall: float) -> float:
    """Move ``value`` towards ``target``: at most by ``rise`` away from zero, at most by ``fall`` towards zero."""
    limit = rise if abs(target) > abs(value) and target * value >= 0 else fall
    return value + max(-limit, min(limit, target - value))
