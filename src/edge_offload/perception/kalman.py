"""Constant-velocity Kalman filter over a box, for irregular time steps."""

from __future__ import annotations

from typing import Tuple

import numpy as np

from edge_offload.arrays import Array

# Standard deviations in units of the box height, so that the filter behaves alike near and far.
# A walking person covers about 0.8 of their height in a second and changes that by about as much in a second.
_MEASURED = np.array([0.04, 0.04, 0.08, 0.06])
_INITIAL_SPEED = np.array([0.8, 0.4, 0.2, 0.2])
_ACCELERATION = np.array([0.6, 0.3, 0.2, 0.2])

_SMALLEST_SIDE = 1.0


class BoxFilter:
    """State of one box: centre x, centre y, width, height (pixels) and their rates (pixels/s).

    The four are independent, each with a position, a rate and a 2×2 covariance. Process noise is white acceleration
    in continuous time, so that predicting twice by half a step is predicting once by the whole.
    """

    def __init__(self, box: Array) -> None:
        self.mean = _to_centre(box)
        self.rate = np.zeros(4)
        height = self._box_height()
        self._pp = (_MEASURED * height) ** 2
        self._pr = np.zeros(4)
        self._rr = (_INITIAL_SPEED * height) ** 2

    def _box_height(self) -> float:
        return max(float(self.mean[3]), _SMALLEST_SIDE)

    def predict(self, dt: float, hold_size: bool = False) -> None:
        """Predict ``dt`` seconds ahead; ``hold_size`` fixes width and height, for a box that is not seen."""
        if hold_size:
            self.rate[2:] = 0.0
        noise = (_ACCELERATION * self._box_height()) ** 2
        self.mean = self.mean + self.rate * dt
        self.mean[2:] = np.maximum(self.mean[2:], _SMALLEST_SIDE)
        self._pp = self._pp + 2 * dt * self._pr + dt * dt * self._rr + noise * dt**3 / 3
        self._pr = self._pr + dt * self._rr + noise * dt**2 / 2
        self._rr = self._rr + noise * dt

    def update(self, box: Array, noise_factor: float = 1.0) -> None:
        """Update with a box [4], x1 y1 x2 y2, whose standard deviation is ``noise_factor`` times a detection's."""
        residual = _to_centre(box) - self.mean
        spread = self._pp + (noise_factor * _MEASURED * self._box_height()) ** 2
        gain_p, gain_r = self._pp / spread, self._pr / spread
        self.mean = self.mean + gain_p * residual
        self.mean[2:] = np.maximum(self.mean[2:], _SMALLEST_SIDE)
        self.rate = self.rate + gain_r * residual
        self._rr = self._rr - gain_r * self._pr
        self._pr = (1 - gain_p) * self._pr
        self._pp = (1 - gain_p) * self._pp

    @property
    def box(self) -> Array:
        """float32 [4], x1 y1 x2 y2."""
        centre, half = self.mean[:2], self.mean[2:] / 2
        return np.asarray(np.concatenate([centre - half, centre + half]), dtype=np.float32)

    @property
    def centre_spread(self) -> Tuple[float, float]:
        """Standard deviation of a measured centre about the predicted one, x and y, pixels."""
        spread = np.sqrt(self._pp[:2] + (_MEASURED[:2] * self._box_height()) ** 2)
        return float(spread[0]), float(spread[1])


def _to_centre(box: Array) -> Array:
    box = np.asarray(box, dtype=np.float64)
    size = np.maximum(box[2:] - box[:2], _SMALLEST_SIDE)
    return np.concatenate([(box[:2] + box[2:]) / 2, size])
