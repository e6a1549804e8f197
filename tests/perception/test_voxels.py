"""Voxel grids: every point lands in the voxel that holds it, and nothing else is full."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edge_offload.errors import BadInput
from edge_offload.models.voxels import FORWARD, VoxelGrid, grid_around

SMALL = VoxelGrid((-1.0, 2.0, -0.5), 0.25, (8, 6, 4))


def slowly(grid: VoxelGrid, points: np.ndarray) -> np.ndarray:
    full = np.zeros(grid.shape, dtype=np.uint8)
    for point in points.tolist():
        place = [(value - start) / grid.voxel_size for value, start in zip(point, grid.origin)]
        if all(np.isfinite(value) and 0 <= value < side for value, side in zip(place, grid.shape)):
            full[tuple(int(value) for value in place)] = 1
    return full


@pytest.mark.process
@settings(deadline=None)
@given(arrays(np.float64, st.tuples(st.integers(0, 30), st.just(3)), elements=st.floats(-4, 5)))
def test_occupancy_is_what_a_loop_over_the_points_finds(points):
    np.testing.assert_array_equal(SMALL.occupancy(points), slowly(SMALL, points))


def test_points_outside_or_not_finite_fill_nothing():
    strange = np.array([[np.nan, 2.1, 0], [np.inf, 2.1, 0], [-1.1, 2.1, 0], [1.0, 2.1, 0], [1e300, 2.1, 0]])
    assert not SMALL.occupancy(strange).any()
    assert not SMALL.occupancy(np.zeros((0, 4), dtype=np.float32)).any()


def test_a_voxel_spans_from_its_lower_faces_to_below_its_upper_ones():
    corner = np.array([[-1.0, 2.0, -0.5]])
    assert SMALL.occupancy(corner)[0, 0, 0] == 1
    assert SMALL.occupancy(corner + 0.25)[1, 1, 1] == 1
    assert SMALL.occupancy(corner + 0.2499)[0, 0, 0] == 1


@pytest.mark.process
def test_centres_lie_in_their_voxels():
    indices = np.argwhere(np.ones(SMALL.shape))
    np.testing.assert_array_equal(SMALL.voxel_indices(SMALL.centres(indices))[0], indices)
    x, y, z = SMALL.axes()
    assert (x[0], y[0], z[0]) == pytest.approx((-0.875, 2.125, -0.375))


def test_columns_by_place_and_the_nearest_one_for_places_outside():
    assert SMALL.cell(-0.6, 2.3) == (1, 1)
    assert SMALL.cell(-50.0, 50.0) == (0, 5)


def test_the_ground_lies_where_a_trained_network_expects_it():
    assert VoxelGrid((0.0, -25.6, -2.0), 0.2, (256, 256, 32)) == FORWARD
    assert grid_around(1.73, forward=True).origin == pytest.approx(FORWARD.origin)
    for height in (0.4, 1.73):
        grid = grid_around(height)
        index, _ = grid.voxel_indices(np.array([[3.0, 1.0, -height]]))
        assert index[0, 2] == 1
    assert grid_around(0.5, 0.1).extent == pytest.approx((25.6, 25.6, 3.2))


@pytest.mark.parametrize(
    "make",
    [
        lambda: VoxelGrid((0, 0, np.nan)),
        lambda: VoxelGrid(voxel_size=0.0),
        lambda: VoxelGrid(shape=(0, 1, 1)),
        lambda: VoxelGrid(shape=(100_000, 100_000, 100_000)),
        lambda: SMALL.occupancy(np.zeros((3, 2))),
        lambda: SMALL.occupancy(np.zeros(3)),
    ],
)
def test_what_is_no_grid_and_what_are_no_points_is_refused(make):
    with pytest.raises(BadInput):
        make()
