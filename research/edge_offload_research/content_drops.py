"""What results lose of their accuracy with staleness, by what is known of the content at once.

Speed, turning or the share of failed flow may correct the slope of :class:`edge_offload.manager.drop.DropEstimator`:
how much, is learnt. No task of the robot gives such numbers.
"""

from __future__ import annotations

import math
from typing import List, Mapping, Optional, Sequence, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.manager.drop import DropCurve, DropEstimator, Habits, check_comparison

#: A feature's effect is unknown by this share of the slope's spread, per standard deviation of the feature.
EFFECT = 1.0
#: Features that one task may have.
MOST_FEATURES = 8
#: Standard deviations of a feature from its mean that count at most.
FARTHEST = 3.0


class ContentDropEstimator(DropEstimator):
    """Estimates the drop of one task by features of the content. One thread at a time.

    Args:
        habits: what is believed at first.
        features: names of what is known of the content at once; each frame brings a number for each, or none.

    Raises:
        BadInput: too many features, or one twice.
    """

    def __init__(self, habits: Optional[Habits] = None, features: Sequence[str] = ()) -> None:
        if len(features) > MOST_FEATURES or len(set(features)) < len(features):
            raise BadInput(f"features {list(features)}", remedy=f"give at most {MOST_FEATURES}, each once")
        self._features = tuple(features)
        self._seen = np.zeros((len(features), 2))  # mean and variance of each feature
        super().__init__(habits)

    def _dimensions(self) -> List[Tuple[float, float, float]]:
        effect = (0.0, EFFECT * self._habits.slope_error, self._habits.intercept_s)
        return [*super()._dimensions(), *[effect] * len(self._features)]

    def add_comparison(
        self, now: float, stale_s: float, drop: float, content: Optional[Mapping[str, float]] = None
    ) -> None:
        """Learn from a comparison; ``content``: features, on average over that time.

        Raises:
            BadInput: not such numbers; nothing is learnt from them.
        """
        check_comparison(now, stale_s, drop)
        measured = self._deviations(content, learn=True)
        row = self._row(stale_s)
        row[len(row) - len(measured) :] = stale_s * measured
        self._learn(now, drop, row)

    def curve(self, now: float, content: Optional[Mapping[str, float]] = None) -> DropCurve:
        """Return the expected drops now, of content like this.

        Raises:
            BadInput: a feature that is no number.
        """
        measured = self._deviations(content)
        row = np.eye(len(self._state))[1]
        row[len(row) - len(measured) :] = measured
        return self._curve(now, row)

    def _deviations(self, content: Optional[Mapping[str, float]], learn: bool = False) -> Array:
        """Return how far each feature is from its mean [features], in standard deviations; 0: unknown."""
        deviations = np.zeros(len(self._features))
        for place, name in enumerate(self._features):
            value = (content or {}).get(name)
            if value is None:
                continue
            if not math.isfinite(value):
                raise BadInput(f"feature {name} is {value}", remedy="leave out what is not known")
            if learn:
                gain = max(self._habits.mean_gain, 1 / (self._samples + 1))
                distance = value - self._seen[place, 0]
                self._seen[place, 0] += gain * distance
                self._seen[place, 1] = (1 - gain) * (self._seen[place, 1] + gain * distance**2)
            spread = math.sqrt(self._seen[place, 1])
            if spread > 1e-9:
                deviations[place] = min(FARTHEST, max(-FARTHEST, (value - self._seen[place, 0]) / spread))
        return deviations
