"""From labels to a slice to a path: what is in the way, and the shortest way around it."""

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload.errors import BadInput
from edge_offload.models.scenes.labels import GROUND, VALUE
from edge_offload.models.voxels import VoxelGrid
from edge_offload.perception.scene.planning import FREE, OCCUPIED, UNKNOWN, find_path, occupancy_slice

GRID = VoxelGrid((0.0, 0.0, -0.4), 0.2, (20, 20, 16))


def road() -> np.ndarray:
    labels = np.zeros(GRID.shape, dtype=np.uint8)
    labels[:, :, 1] = VALUE["road"]
    return labels


def sliced(labels: np.ndarray) -> np.ndarray:
    return occupancy_slice(labels, GRID, GROUND, low_m=0.25, high_m=1.6, step_m=0.2)


def test_open_road_is_free_and_what_stands_on_it_is_not():
    labels = road()
    labels[5, 6, 2:8] = VALUE["person"]
    slices = sliced(labels)
    assert slices[5, 6] == OCCUPIED
    assert (slices == OCCUPIED).sum() == 1
    assert (slices == FREE).sum() == slices.size - 1


def test_a_kerb_is_driven_over_and_a_branch_driven_under():
    labels = road()
    labels[4, 4, 2] = VALUE["other-object"]
    labels[8, 8, 12:] = VALUE["vegetation"]
    assert (sliced(labels) == FREE).all()


def test_what_hangs_at_the_height_of_the_body_is_in_the_way():
    labels = road()
    labels[8, 8, 5] = VALUE["other-object"]
    assert sliced(labels)[8, 8] == OCCUPIED


def test_the_body_stands_on_the_ground_under_it_even_on_a_slope():
    labels = np.zeros(GRID.shape, dtype=np.uint8)
    for x in range(20):
        labels[x, :, x // 4] = VALUE["terrain"]
    labels[18, 3, 4 + 3] = VALUE["fence"]
    labels[2, 3, 14] = VALUE["fence"]
    slices = sliced(labels)
    assert slices[18, 3] == OCCUPIED
    assert slices[2, 3] == FREE


def test_a_ledge_is_in_the_way_and_a_gentle_slope_is_not():
    labels = np.zeros(GRID.shape, dtype=np.uint8)
    labels[:10, :, 1] = VALUE["road"]
    labels[10:, :, 4] = VALUE["sidewalk"]
    slices = sliced(labels)
    assert (slices[9:11] == OCCUPIED).all()
    assert (slices[:8] == FREE).all()


def test_columns_without_ground_are_unknown_not_free():
    labels = road()
    labels[:, 10:, 1] = 0
    slices = sliced(labels)
    assert (slices[:, 10:] == UNKNOWN).all()
    assert (sliced(np.zeros(GRID.shape, dtype=np.uint8)) == UNKNOWN).all()


def shortest(slices: np.ndarray, start, goal) -> float:
    """Dijkstra without any heuristic, for a robot of no width and no wish for comfort: metres, or infinity."""
    cost, waiting, done = {start: 0.0}, [(0.0, start)], set()
    while waiting:
        so_far, cell = heapq.heappop(waiting)
        if cell in done:
            continue
        done.add(cell)
        for dx in (-1, 0, 1):
            for dy in (-1, 0, 1):
                neighbour = (cell[0] + dx, cell[1] + dy)
                if not all(0 <= value < side for value, side in zip(neighbour, slices.shape)):
                    continue
                between = [(cell[0] + dx, cell[1]), (cell[0], cell[1] + dy), neighbour]
                if any(slices[place] == OCCUPIED for place in between):
                    continue
                if so_far + np.hypot(dx, dy) < cost.get(neighbour, np.inf):
                    cost[neighbour] = so_far + np.hypot(dx, dy)
                    heapq.heappush(waiting, (cost[neighbour], neighbour))
    return cost.get(goal, np.inf)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.floats(0.0, 0.45))
def test_the_path_is_as_short_as_dijkstras_and_never_through_an_obstacle(seed, share):
    random = np.random.default_rng(seed)
    slices = np.where(random.random((14, 14)) < share, OCCUPIED, FREE).astype(np.int8)
    start, goal = (0, 0), (13, 12)
    slices[start] = slices[goal] = FREE
    plan = find_path(slices, 1.0, start, goal, radius_m=0.5, comfort_m=1e-9)
    best = shortest(slices, start, goal)
    if np.isinf(best):
        assert plan is None or not plan.reached
        return
    assert plan.reached
    assert plan.length_m == pytest.approx(best)
    assert tuple(plan.cells[0]) == start
    assert tuple(plan.cells[-1]) == goal
    assert (slices[tuple(plan.cells.T)] == FREE).all()
    assert np.abs(np.diff(plan.cells, axis=0)).max() == 1


def test_a_wide_robot_drives_through_the_wide_gap():
    slices = np.zeros((41, 41), dtype=np.int8)
    slices[20, :] = OCCUPIED
    slices[20, 20:22] = FREE
    slices[20, 2:12] = FREE
    narrow = find_path(slices, 0.1, (5, 20), (35, 20), radius_m=0.05, comfort_m=1e-9)
    wide = find_path(slices, 0.1, (5, 20), (35, 20), radius_m=0.3)
    assert 20 in narrow.cells[narrow.cells[:, 0] == 20, 1]
    crossing = wide.cells[wide.cells[:, 0] == 20, 1]
    assert ((crossing >= 4) & (crossing <= 9)).all()


def test_observed_space_is_preferred_to_unobserved():
    slices = np.zeros((21, 21), dtype=np.int8)
    slices[8:13, 3:] = UNKNOWN
    plan = find_path(slices, 1.0, (2, 10), (18, 10), radius_m=0.4)
    assert plan.reached
    assert (slices[tuple(plan.cells.T)] == FREE).all()


def test_a_goal_in_or_behind_a_wall_leads_near_it_with_a_notice():
    slices = np.zeros((20, 20), dtype=np.int8)
    slices[10, :] = OCCUPIED
    plan = find_path(slices, 1.0, (2, 5), (15, 5), radius_m=0.5)
    assert not plan.reached
    assert plan.goal == (9, 5)


def test_a_robot_that_is_walled_in_has_no_path():
    slices = np.full((20, 20), OCCUPIED, dtype=np.int8)
    slices[5, 5] = FREE
    for voxel_size in (1.0, 0.05):
        for radius in (0.0, 0.3):
            assert find_path(slices, voxel_size, (5, 5), (15, 15), radius_m=radius) is None


def test_an_obstacle_at_the_robot_itself_does_not_lock_it_in():
    slices = np.zeros((30, 30), dtype=np.int8)
    slices[5, 6] = OCCUPIED
    plan = find_path(slices, 0.2, (5, 5), (20, 5), radius_m=0.5)
    assert plan.reached


def test_a_goal_outside_is_refused():
    with pytest.raises(BadInput, match="goal"):
        find_path(np.zeros((5, 5), dtype=np.int8), 0.2, (0, 0), (5, 0), 0.1)
