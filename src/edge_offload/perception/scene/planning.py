"""From a labelled grid to a path: what stands in a robot's way, and A* around it."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np
from scipy import ndimage

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.models.voxels import VoxelGrid

Cell = Tuple[int, int]

FREE, UNKNOWN, OCCUPIED = 0, -1, 100
"""Values of a slice, as in nav_msgs/OccupancyGrid."""

_STEPS = tuple((dx, dy, float(np.hypot(dx, dy))) for dx in (-1, 0, 1) for dy in (-1, 0, 1) if dx or dy)


def occupancy_slice(
    labels: Array, grid: VoxelGrid, ground: Sequence[int], low_m: float, high_m: float, step_m: float
) -> Array:
    """Seen from above: what a robot can drive on, what is in its way, and what is not known.

    Args:
        labels: uint8 [x, y, z]; 0 is empty.
        grid: where the labels are.
        ground: label values that can be driven on.
        low_m: metres above the ground where the robot's body begins.
        high_m: metres above the ground where it ends.
        step_m: ground that rises by more than this between neighbouring cells is in the way.

    Returns:
        int8 [x, y]: OCCUPIED where something that is no ground is within the body's height, or the ground is too
        steep; else FREE where there is ground; else UNKNOWN.
    """
    if labels.shape != grid.shape:
        raise BadInput(f"labels of shape {labels.shape} in a grid of {grid.shape}")
    is_ground = np.isin(labels, list(ground))
    known = is_ground.any(axis=2)
    found = np.full(known.shape, UNKNOWN, dtype=np.int8)
    level = is_ground.argmax(axis=2)
    if known.any():
        # under a car or in a gap the ground is that of the nearest cell
        nearest = ndimage.distance_transform_edt(~known, return_distances=False, return_indices=True)
        level = level[tuple(nearest)]
    found[known] = FREE
    above = (np.arange(labels.shape[2])[None, None, :] - level[:, :, None]) * grid.voxel_size
    in_way = (labels > 0) & ~is_ground & (above >= low_m) & (above <= high_m)
    rise = (ndimage.maximum_filter(level, 3) - ndimage.minimum_filter(level, 3)) * grid.voxel_size
    # a voxel's height is the least that a step can be told by
    found[known & (rise > max(step_m, grid.voxel_size))] = OCCUPIED
    found[in_way.any(axis=2)] = OCCUPIED
    return found


@dataclass(frozen=True)
class Plan:
    """A path over a slice.

    Attributes:
        cells: from start to goal, int [n, 2].
        length_m: of the path.
        goal: the cell that it leads to, the nearest to the one asked for that can be reached.
        reached: whether that is the one asked for.
    """

    cells: Array
    length_m: float
    goal: Cell
    reached: bool


def clearance(found: Array, voxel_size: float) -> Array:
    """Metres from every cell of a slice to the nearest occupied one."""
    if not (found == OCCUPIED).any():
        return np.full(found.shape, np.inf)
    distance: Array = ndimage.distance_transform_edt(found != OCCUPIED) * voxel_size
    return distance


def find_path(
    found: Array,
    voxel_size: float,
    start: Cell,
    goal: Cell,
    radius_m: float,
    unknown_cost: float = 3.0,
    comfort_m: float = 0.6,
) -> Optional[Plan]:
    """A* from ``start`` to ``goal`` for a round robot: cells nearer to an obstacle than ``radius_m`` are closed.

    Steps go to the eight neighbours and cost their length; ``unknown_cost`` times as much where nothing is known, and
    up to twice as much within ``comfort_m`` beyond the radius. About the start only the obstacles themselves are
    closed: the robot is there already.

    Returns:
        The cheapest path; to the reachable cell nearest to the goal if the goal itself is closed or cut off; None if
        nothing but the start can be reached.

    Raises:
        BadInput: start or goal is outside the slice.
    """
    shape = found.shape
    for name, cell in (("start", start), ("goal", goal)):
        if not (0 <= cell[0] < shape[0] and 0 <= cell[1] < shape[1]):
            raise BadInput(f"the {name} {cell} is outside the grid of {shape[0]}x{shape[1]} cells")
    room = clearance(found, voxel_size)
    factor = np.where(found == UNKNOWN, unknown_cost, 1.0) * (1.0 + np.clip(1 - (room - radius_m) / comfort_m, 0, 1))
    at = np.indices(shape)
    far = np.hypot(at[0] - start[0], at[1] - start[1]) * voxel_size > radius_m + 2 * voxel_size
    # where the robot stands it is nearer to things than it would plan to be, but not inside them
    closed = ((room < radius_m) & far) | (found == OCCUPIED)
    closed[start] = False
    parents = _search(closed, factor, start, goal)
    ends = list(parents)
    nearest = min(ends, key=lambda cell: (cell[0] - goal[0]) ** 2 + (cell[1] - goal[1]) ** 2)
    if nearest == start and start != goal:
        return None
    cells: List[Cell] = [nearest]
    while cells[-1] != start:
        cells.append(parents[cells[-1]])
    path = np.array(cells[::-1])
    length = float(np.hypot(*np.diff(path, axis=0).T).sum() * voxel_size)
    return Plan(path, length, nearest, nearest == goal)


def _search(closed: Array, factor: Array, start: Cell, goal: Cell) -> Dict[Cell, Cell]:
    """Cells that were settled, each with the one before it; ends when the goal is settled or nothing is left."""
    width, depth = closed.shape
    shut, price = closed.tolist(), factor.tolist()
    cost: Dict[Cell, float] = {start: 0.0}
    settled: Dict[Cell, Cell] = {}
    waiting: List[Tuple[float, float, Cell, Cell]] = [(0.0, 0.0, start, start)]
    while waiting:
        _, so_far, cell, before = heapq.heappop(waiting)
        if cell in settled:
            continue
        settled[cell] = before
        if cell == goal:
            break
        x, y = cell
        for dx, dy, length in _STEPS:
            a, b = x + dx, y + dy
            if not (0 <= a < width and 0 <= b < depth) or shut[a][b]:
                continue
            if dx and dy and (shut[a][y] or shut[x][b]):
                # not through the corner between two obstacles
                continue
            there = so_far + length * 0.5 * (price[x][y] + price[a][b])
            if there < cost.get((a, b), np.inf):
                cost[(a, b)] = there
                # never more than what is left: the result is the cheapest path
                left = np.sqrt((a - goal[0]) ** 2 + (b - goal[1]) ** 2)
                heapq.heappush(waiting, (there + left, there, (a, b), cell))
    return settled
