"""Solids with a vertical axis: intersections with rays, and the voxels that they fill."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Tuple

import numpy as np

from edge_offload.arrays import Array

BOX, CYLINDER, ELLIPSOID = range(3)


@dataclass(frozen=True)
class Solid:
    """A box, an elliptic cylinder or an ellipsoid.

    Attributes:
        shape: BOX, CYLINDER or ELLIPSOID.
        centre: m.
        half: m, half extents along the solid's own axes.
        yaw: rad, of its own x axis from the world's.
        label: value from :data:`edge_offload.models.scenes.labels.LABELS`.
        porosity: share of the rays that pass through it, as through leaves and grilles.
        shell: m, depth below which the inside is unknown; 0: it is full.
        velocity: m/s in the plane.
    """

    shape: int
    centre: Tuple[float, float, float]
    half: Tuple[float, float, float]
    yaw: float
    label: int
    porosity: float = 0.0
    shell: float = 0.0
    velocity: Tuple[float, float] = (0.0, 0.0)

    @property
    def radius(self) -> float:
        """m, of a vertical cylinder about the centre that holds the solid."""
        return float(np.hypot(self.half[0], self.half[1]))

    def seen_from(self, x: float, y: float, yaw: float, time_s: float = 0.0) -> Solid:
        """Transform it, at ``time_s``, to the frame of a sensor at ``x``, ``y`` (m) with ``yaw`` (rad)."""
        east = self.centre[0] + self.velocity[0] * time_s - x
        north = self.centre[1] + self.velocity[1] * time_s - y
        cos, sin = float(np.cos(yaw)), float(np.sin(yaw))
        centre = (cos * east + sin * north, cos * north - sin * east, self.centre[2])
        return replace(self, centre=centre, yaw=self.yaw - yaw, velocity=(0.0, 0.0))

    def raised_by(self, height: float) -> Solid:
        """Return a copy, higher by ``height`` (m)."""
        return replace(self, centre=(self.centre[0], self.centre[1], self.centre[2] + height))

    def entry_distance(self, directions: Array) -> Array:
        """Distance at which rays from the origin enter, in multiples of ``directions`` (float [..., 3]); inf: a miss.

        A solid that contains the origin is not hit.
        """
        cos, sin = np.cos(self.yaw), np.sin(self.yaw)
        a, b, c = self.half
        start = np.array(
            [-(cos * self.centre[0] + sin * self.centre[1]) / a, -(cos * self.centre[1] - sin * self.centre[0]) / b]
        )
        up = -self.centre[2] / c
        # in units of the half extents every solid is a unit one
        along = (cos * directions[..., 0] + sin * directions[..., 1]) / a
        across = (cos * directions[..., 1] - sin * directions[..., 0]) / b
        rise = directions[..., 2] / c
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.shape == BOX:
                near, far = _slab(float(start[0]), along)
                for place, rate in ((float(start[1]), across), (up, rise)):
                    low, high = _slab(place, rate)
                    near, far = np.maximum(near, low), np.minimum(far, high)
            else:
                flat = self.shape == CYLINDER
                square = along**2 + across**2 + (0.0 if flat else rise**2)
                middle = along * start[0] + across * start[1] + (0.0 if flat else rise * up)
                rest = start @ start + (0.0 if flat else up**2) - 1.0
                root = np.sqrt(middle**2 - square * rest)
                near, far = (-middle - root) / square, (-middle + root) / square
                if flat:
                    low, high = _slab(up, rise)
                    near, far = np.maximum(near, low), np.minimum(far, high)
            hit = (near < far) & (near > 0)
        distance: Array = np.where(hit, near, np.inf)
        return distance

    def depth(self, x: Array, y: Array, z: Array, margin: float) -> Array:
        """Depth in metres of points inside the solid, grown by ``margin`` (m) on all sides; negative outside.

        Exact for boxes, an estimate for the round ones. ``x``, ``y`` and ``z`` are broadcast.
        """
        cos, sin = np.cos(self.yaw), np.sin(self.yaw)
        east, north = x - self.centre[0], y - self.centre[1]
        along, across, up = cos * east + sin * north, cos * north - sin * east, z - self.centre[2]
        a, b, c = (half + margin for half in self.half)
        if self.shape == BOX:
            flat: Array = np.minimum(a - np.abs(along), b - np.abs(across))
            return np.asarray(np.minimum(flat, c - np.abs(up)))
        round_part = (along / a) ** 2 + (across / b) ** 2
        if self.shape == CYLINDER:
            return np.asarray(np.minimum((1.0 - np.sqrt(round_part)) * min(a, b), c - np.abs(up)))
        inside: Array = (1.0 - np.sqrt(round_part + (up / c) ** 2)) * min(a, b, c)
        return inside


def _slab(place: float, rate: Array) -> Tuple[Array, Array]:
    """Return the times at which a coordinate from ``place`` with ``rate`` enters and leaves [-1, 1]."""
    one, two = (-1.0 - place) / rate, (1.0 - place) / rate
    return np.fmin(one, two), np.fmax(one, two)


def make_box(x: float, y: float, low: float, size: Tuple[float, float, float], yaw: float, label: int) -> Solid:
    """Make a box of full ``size`` (m) that stands at height ``low`` over ``x``, ``y``."""
    half = (size[0] / 2, size[1] / 2, size[2] / 2)
    return Solid(BOX, (x, y, low + half[2]), half, yaw, label)
