"""Path planning in a labelled grid: a slice with the obstacles at the robot's height, and A* on it."""

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
    """Project a labelled grid to a 2D map of free, occupied and unknown cells.

    Args:
        labels: uint8 [x, y, z]; 0 is empty.
        grid: where the labels are.
        ground: label values that can be driven on.
        low_m: lower end of the robot's body, metres above the ground.
        high_m: upper end of the robot's body, metres above the ground.
        step_m: ground that rises by more than this between neighbouring cells is an obstacle.

    Returns:
        int8 [x, y]: OCCUPIED by an object at the body's height or by a step of the ground; else FREE where there is
        ground; else UNKNOWN.
    """
    if labels.shape != grid.shape:
        raise BadInput(f"labels of shape {labels.shape} in a grid of {grid.shape}")
    is_ground = np.isin(labels, list(ground))
    has_ground = is_ground.any(axis=2)
    slice_map = np.full(has_ground.shape, UNKNOWN, dtype=np.int8)
    level = is_ground.argmax(axis=2)
    if has_ground.any():
        # under a car or in a gap the ground has the level of the nearest cell
        nearest = ndimage.distance_transform_edt(~has_ground, return_distances=False, return_indices=True)
        level = level[tuple(nearest)]
    slice_map[has_ground] = FREE
    above = (np.arange(labels.shape[2])[None, None, :] - level[:, :, None]) * grid.voxel_size
    in_way = (labels > 0) & ~is_ground & (above >= low_m) & (above <= high_m)
    rise = (ndimage.maximum_filter(level, 3) - ndimage.minimum_filter(level, 3)) * grid.voxel_size
    # steps below a voxel's height cannot be resolved
    slice_map[has_ground & (rise > max(step_m, grid.voxel_size))] = OCCUPIED
    slice_map[in_way.any(axis=2)] = OCCUPIED
    return slice_map


@dataclass(frozen=True)
class GridPath:
    """A path over a slice.

    Attributes:
        cells: from start to goal, int [n, 2].
        length_m: of the path.
        goal: its last cell, the reachable one nearest to the requested goal.
        reached: whether that is the requested goal.
    """

    cells: Array
    length_m: float
    goal: Cell
    reached: bool


def obstacle_distance(slice_map: Array, voxel_size: float) -> Array:
    """Distance in metres from each cell of a slice to the nearest occupied one."""
    if not (slice_map == OCCUPIED).any():
        return np.full(slice_map.shape, np.inf)
    distance: Array = ndimage.distance_transform_edt(slice_map != OCCUPIED) * voxel_size
    return distance


def find_path(
    slice_map: Array,
    voxel_size: float,
    start: Cell,
    goal: Cell,
    radius_m: float,
    unknown_cost: float = 3.0,
    comfort_m: float = 0.6,
) -> Optional[GridPath]:
    """Plan from ``start`` to ``goal`` by A* for a round robot; cells within ``radius_m`` of an obstacle are closed.

    Steps go to the eight neighbours and cost their length: ``unknown_cost`` times as much in unknown cells, and up to
    twice as much within ``comfort_m`` beyond the radius. Around the start only obstacles are closed, because the robot
    stands there already.

    Returns:
        The cheapest path; if the goal is not reachable, to the reachable cell nearest to it. None: no cell but the
        start is reachable.

    Raises:
        BadInput: start or goal is outside the slice.
    """
    shape = slice_map.shape
    for name, cell in (("start", start), ("goal", goal)):
        if not (0 <= cell[0] < shape[0] and 0 <= cell[1] < shape[1]):
            raise BadInput(f"the {name} {cell} is outside the grid of {shape[0]}x{shape[1]} cells")
    distance = obstacle_distance(slice_map, voxel_size)
    factor = np.where(slice_map == UNKNOWN, unknown_cost, 1.0) * (
        1.0 + np.clip(1 - (distance - radius_m) / comfort_m, 0, 1)
    )
    at = np.indices(shape)
    far = np.hypot(at[0] - start[0], at[1] - start[1]) * voxel_size > radius_m + 2 * voxel_size
    # the robot may stand nearer to obstacles than the radius allows, but not inside them
    closed = ((distance < radius_m) & far) | (slice_map == OCCUPIED)
    closed[start] = False
    parents = _search_path(closed, factor, start, goal)
    ends = list(parents)
    nearest = min(ends, key=lambda cell: (cell[0] - goal[0]) ** 2 + (cell[1] - goal[1]) ** 2)
    if nearest == start and start != goal:
        return None
    cells: List[Cell] = [nearest]
    while cells[-1] != start:
        cells.append(parents[cells[-1]])
    path = np.array(cells[::-1])
    length = float(np.hypot(*np.diff(path, axis=0).T).sum() * voxel_size)
    return GridPath(path, length, nearest, nearest == goal)


def _search_path(closed: Array, factor: Array, start: Cell, goal: Cell) -> Dict[Cell, Cell]:
    """Search until the goal is settled or no cell remains; return the settled cells with their predecessors."""
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
            path_cost = so_far + length * 0.5 * (price[x][y] + price[a][b])
            if path_cost < cost.get((a, b), np.inf):
                cost[(a, b)] = path_cost
                # admissible: never above the remaining cost, so the result is the cheapest path
                remaining = np.sqrt((a - goal[0]) ** 2 + (b - goal[1]) ** 2)
                heapq.heappush(waiting, (path_cost + remaining, path_cost, (a, b), cell))
    return settled
