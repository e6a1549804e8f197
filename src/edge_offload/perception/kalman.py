"""Constant-velocity Kalman filter over a box, for irregular time steps."""

from __future__ import annotations

from typing import Tuple

import numpy as np

from edge_offload.arrays import Array

# Standard deviations for centre x, centre y, width, height: box heights, box heights/s, and box heights/s^1.5 (white
# acceleration). So the filter behaves alike near and far. A person walks about 0.8 heights per second. That speed may
# change by about as much within a second.
_MEASUREMENT = np.array([0.04, 0.04, 0.08, 0.06])
_INITIAL_SPEED = np.array([0.8, 0.4, 0.2, 0.2])
_ACCELERATION = np.array([0.6, 0.3, 0.2, 0.2])

_SMALLEST_SIDE = 1.0  # pixels


class BoxFilter:
    """State of one box: centre x, centre y, width, height (pixels) and their rates (pixels/s).

    The four are independent, each with a value, a rate and a 2×2 covariance. Process noise is white acceleration in
    continuous time: two predictions by half a step equal one by the whole step.

    Args:
        box: first detection [4], x1 y1 x2 y2 in pixels.

    Attributes:
        mean: float64 [4], centre x, centre y, width, height (pixels).
        rate: float64 [4], their rates (pixels/s).
    """

    def __init__(self, box: Array) -> None:
        self.mean = _to_centre(box)
        self.rate = np.zeros(4)
        height = self._box_height()
        # covariances [4]: value with value, value with rate, rate with rate
        self._pp = (_MEASUREMENT * height) ** 2
        self._pr = np.zeros(4)
        self._rr = (_INITIAL_SPEED * height) ** 2

    def _box_height(self) -> float:
        return max(float(self.mean[3]), _SMALLEST_SIDE)

    def predict(self, dt: float, hold_size: bool = False) -> None:
        """Predict ``dt`` seconds ahead; ``hold_size`` stops changes of width and height, for a box that is not seen."""
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
        variance = self._pp + (noise_factor * _MEASUREMENT * self._box_height()) ** 2
        gain_p, gain_r = self._pp / variance, self._pr / variance
        self.mean = self.mean + gain_p * residual
        self.mean[2:] = np.maximum(self.mean[2:], _SMALLEST_SIDE)
        self.rate = self.rate + gain_r * residual
        self._rr = self._rr - gain_r * self._pr
        self._pr = (1 - gain_p) * self._pr
        self._pp = (1 - gain_p) * self._pp

    @property
    def box(self) -> Array:
        """Box as float32 [4], x1 y1 x2 y2 in pixels."""
        centre, half = self.mean[:2], self.mean[2:] / 2
        return np.asarray(np.concatenate([centre - half, centre + half]), dtype=np.float32)

    @property
    def centre_spread(self) -> Tuple[float, float]:
        """Standard deviation of a measured centre about the predicted one, x and y, pixels."""
        spread = np.sqrt(self._pp[:2] + (_MEASUREMENT[:2] * self._box_height()) ** 2)
        return float(spread[0]), float(spread[1])


def _to_centre(box: Array) -> Array:
    """Convert x1 y1 x2 y2 to centre x, centre y, width, height; sides are at least :data:`_SMALLEST_SIDE`."""
    box = np.asarray(box, dtype=np.float64)
    size = np.maximum(box[2:] - box[:2], _SMALLEST_SIDE)
    return np.concatenate([(box[:2] + box[2:]) / 2, size])
