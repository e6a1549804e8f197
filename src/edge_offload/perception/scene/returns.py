"""Selection of a LiDAR's points that are echoes; drivers encode beams without one in several ways."""

from __future__ import annotations

import numpy as np

from edge_offload.arrays import Array

MIN_RANGE_M = 0.1
"""Least range of robots' LiDARs (Livox Mid-360: 0.1 m), inside the housing of most.

A beam without an echo is NaN (Velodyne, RoboSense), infinite, or 0, 0, 0 (Ouster, Livox, SICK: sick_scan_xd issue 98
suggests a threshold). Ouster also shifts that origin by some centimetres, to the foot of the sensor."""


def are_returns(points: Array) -> Array:
    """Return bool [n]: the points float32 [n, 3 or more] (x, y, z in metres from the sensor) that are echoes."""
    # squares of far points overflow to infinity, which passes the test
    with np.errstate(over="ignore", invalid="ignore"):
        x, y, z = points[:, 0], points[:, 1], points[:, 2]
        away = x * x + y * y + z * z >= MIN_RANGE_M**2
    return np.asarray(away & np.isfinite(x) & np.isfinite(y) & np.isfinite(z))


def only_returns(points: Array) -> Array:
    """Select the points float32 [n, 4] that are echoes, with 0 for intensities that are not finite."""
    echoes = are_returns(points)
    if not echoes.all():
        points = points[echoes]
    finite = np.isfinite(points[:, 3])
    if not finite.all():
        points = points.copy()
        points[~finite, 3] = 0.0
    return points
