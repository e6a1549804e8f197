"""Which points of a LiDAR are echoes of something: drivers write a beam without an echo in several ways."""

from __future__ import annotations

import numpy as np

from edge_offload.arrays import Array

MIN_RANGE_M = 0.1
"""Nearer than any LiDAR of robots measures (Livox Mid-360: 0.1 m), and inside the housing of most.

A beam without an echo is NaN (Velodyne, RoboSense), infinite, 0, 0, 0 (Ouster, Livox, SICK: sick_scan_xd issue 98 says
to take what is very near for it), or such an origin moved by some centimetres, to the foot of the sensor (Ouster)."""


def are_returns(points: Array) -> Array:
    """Which of the points float32 [n, 3 or more] (x, y, z in metres from the sensor) are echoes: bool [n]."""
    # far away squares overflow: infinite is far enough
    with np.errstate(over="ignore", invalid="ignore"):
        x, y, z = points[:, 0], points[:, 1], points[:, 2]
        away = x * x + y * y + z * z >= MIN_RANGE_M**2
    return np.asarray(away & np.isfinite(x) & np.isfinite(y) & np.isfinite(z))


def only_returns(points: Array) -> Array:
    """Those of the points float32 [n, 4] that are echoes; an intensity that is not finite is 0."""
    echoes = are_returns(points)
    if not echoes.all():
        points = points[echoes]
    finite = np.isfinite(points[:, 3])
    if not finite.all():
        points = points.copy()
        points[~finite, 3] = 0.0
    return points
