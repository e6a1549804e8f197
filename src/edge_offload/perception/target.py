"""Selection of the person to follow, by a rule, stable through flicker and short occlusion."""

from __future__ import annotations

from typing import Callable, Dict, Optional, Sequence

from edge_offload.errors import BadInput
from edge_offload.perception.tracking import TrackedPerson


def _box_area(person: TrackedPerson) -> float:
    return max(0.0, float(person.box[2] - person.box[0])) * max(0.0, person.height)


def _inverse_distance(person: TrackedPerson) -> float:
    return 0.0 if person.position is None else 1.0 / max(person.position.distance, 0.1)


RULES: Dict[str, Callable[[TrackedPerson], float]] = {
    "largest": _box_area,
    "nearest": _inverse_distance,
    "longest": lambda person: person.age_s,
}
"""Rule → merit, whose maximum is chosen. ``id`` (one given person) is the fourth rule."""


class TargetSelector:
    """Selects a target, with hysteresis.

    Args:
        rule: ``largest``, ``nearest`` (among known positions; without any, the tallest box), ``longest`` (tracked for
            the longest time) or ``id``.
        person_id: id of the target, for rule ``id``.
        advantage: factor by which another person's merit must exceed the target's ...
        dwell_s: ... for this long before the target changes.
        hold_s: seconds to wait for a target that is not seen, before another is chosen.

    Raises:
        BadInput: no such rule, or a number that makes no sense.
    """

    def __init__(
        self,
        rule: str = "largest",
        person_id: Optional[int] = None,
        advantage: float = 1.3,
        dwell_s: float = 0.5,
        hold_s: float = 2.0,
    ) -> None:
        if rule not in (*RULES, "id"):
            raise BadInput(f"unknown target rule {rule!r}", remedy=f"use one of: {', '.join([*RULES, 'id'])}")
        if rule == "id" and person_id is None:
            raise BadInput("target rule 'id' needs the id of a person")
        if advantage < 1 or dwell_s < 0 or hold_s < 0:
            raise BadInput("target: advantage must be at least 1, dwell_s and hold_s at least 0")
        self._rule = rule
        self._advantage = advantage
        self._dwell_s = dwell_s
        self._hold_s = hold_s
        self._id = person_id
        self._seen_s = -float("inf")
        self._rival: Optional[int] = None
        self._rival_since_s = 0.0
        self._stamp_s = -float("inf")

    @property
    def target_id(self) -> Optional[int]:
        """Id of the target, seen or waited for; None: none yet."""
        return self._id

    def reset(self) -> None:
        """Drop the target, because the recording has restarted."""
        if self._rule != "id":
            self._id, self._rival, self._seen_s = None, None, -float("inf")

    def select(self, people: Sequence[TrackedPerson], stamp_s: float) -> Optional[TrackedPerson]:
        """Return the target in this frame, which may be coasting; None: there is none, or it is not seen."""
        if stamp_s < self._stamp_s and self._rule != "id":  # the recording has restarted
            self._id, self._rival, self._seen_s = None, None, stamp_s
        self._stamp_s = stamp_s
        current = next((person for person in people if person.id == self._id), None)
        if self._rule == "id":
            return current
        if current is not None:
            self._seen_s = stamp_s
        elif self._id is not None and stamp_s - self._seen_s <= self._hold_s:
            return None
        candidates = [person for person in people if not person.coasting]
        merit = self._select_merit(candidates)
        best = max(candidates, key=lambda person: (merit(person), -person.id), default=None)
        if current is None:
            self._set_target(best, stamp_s)
            return best
        if best is None or best.id == current.id or merit(best) <= self._advantage * merit(current):
            self._rival = None
            return current
        if best.id != self._rival:
            self._rival, self._rival_since_s = best.id, stamp_s
        if stamp_s - self._rival_since_s < self._dwell_s:
            return current
        self._set_target(best, stamp_s)
        return best

    def _select_merit(self, people: Sequence[TrackedPerson]) -> Callable[[TrackedPerson], float]:
        if self._rule == "nearest" and all(person.position is None for person in people):
            return lambda person: person.height
        return RULES[self._rule]

    def _set_target(self, person: Optional[TrackedPerson], stamp_s: float) -> None:
        self._id = None if person is None else person.id
        self._seen_s = stamp_s
        self._rival = None
