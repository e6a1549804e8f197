"""Scenes carried along by rigid motion of the sensor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_offload.errors import BadInput
from edge_offload.models.voxels import VoxelGrid, grid_around
from edge_offload.perception.carry.odometry import LineOfSight, SceneCarrier, move_labels
from edge_offload.perception.geometry import Transform

GRID = grid_around(0.6, cells=48)
FRAME = 100_000_000


def pose(x: float = 0.0, y: float = 0.0, z: float = 0.0, yaw: float = 0.0) -> Transform:
    return Transform.from_quaternion((x, y, z), (0.0, 0.0, np.sin(yaw / 2), np.cos(yaw / 2)))


def grid_of_labels(seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (random.integers(1, 20, GRID.shape) * (random.random(GRID.shape) < 0.3)).astype(np.uint8)


@given(st.integers(0, 99), st.tuples(*[st.integers(-60, 60)] * 2, st.integers(-40, 40)), st.integers(0, 3))
def test_integer_voxels_and_quarter_turns_are_exact(seed, steps, quarters):
    """A point of the frame of now is at ``shift + R point`` before: the label there is the label now."""
    labels = grid_of_labels(seed)
    moved, inside = move_labels(labels, pose(*(0.2 * step for step in steps), yaw=quarters * np.pi / 2), GRID)
    cos, sin = round(np.cos(quarters * np.pi / 2)), round(np.sin(quarters * np.pi / 2))
    now = np.stack(np.meshgrid(*(np.arange(side) for side in GRID.shape), indexing="ij"), axis=-1)
    half = np.array([24, 24])  # voxels from the corner to the sensor
    centred = now[..., :2] - half + 0.5
    x = cos * centred[..., 0] - sin * centred[..., 1] + steps[0]
    y = sin * centred[..., 0] + cos * centred[..., 1] + steps[1]
    before = np.stack([np.floor(x + half[0]), np.floor(y + half[1]), now[..., 2] + steps[2]], axis=-1).astype(int)
    within = ((before >= 0) & (before < GRID.shape)).all(axis=-1)
    clipped = np.clip(before, 0, np.array(GRID.shape) - 1)
    expected = np.where(within, labels[tuple(clipped[..., axis] for axis in range(3))], 0)
    assert (moved == expected).all()
    assert (inside == ((before[..., :2] >= 0) & (before[..., :2] < GRID.shape[:2])).all(axis=-1)[..., 0]).all()


@given(st.floats(-3, 3), st.floats(-3, 3), st.floats(-np.pi, np.pi))
def test_any_motion_puts_a_label_within_a_voxel_of_where_it_belongs(x, y, yaw):
    labels = np.zeros(GRID.shape, dtype=np.uint8)
    labels[20:22, 30:32, 8:12] = 7
    motion = pose(x, y, yaw=yaw)
    moved, _ = move_labels(labels, motion, GRID)
    before = motion.map_points(GRID.centres(np.argwhere(moved == 7)))
    low, high = (
        np.array(GRID.origin) + 0.2 * np.array([20, 30, 8]),
        np.array(GRID.origin) + 0.2 * np.array([22, 32, 12]),
    )
    assert (before >= low - 1e-4).all()
    assert (before <= high + 1e-4).all()


def test_a_slope_shears_the_columns():
    labels = np.zeros(GRID.shape, dtype=np.uint8)
    labels[:, :, 3] = 9
    tilt = np.radians(5)
    lean = Transform.from_quaternion((0, 0, 0), (0, np.sin(tilt / 2), 0, np.cos(tilt / 2)))
    level = move_labels(labels, lean, GRID)[0].argmax(axis=2)
    assert level[40, 24] - level[8, 24] == pytest.approx(32 * np.sin(tilt), abs=1.01)


def sweep(*boxes: tuple) -> np.ndarray:
    hits = np.zeros(GRID.shape, dtype=np.uint8)
    hits[:, :, 1] = 1
    for box in boxes:
        hits[box] = 1
    return hits


def test_new_hits_are_full_what_is_seen_through_is_not_and_what_comes_into_view_is_from_the_sweep():
    carrier = SceneCarrier(GRID)
    person, wall = (slice(34, 36), slice(23, 25), slice(2, 9)), (40, slice(10, 40), slice(2, 12))
    carrier.add_frame(0, sweep(), pose())
    carrier.add_frame(FRAME, sweep(wall), pose(x=0.4))
    labels = np.zeros(GRID.shape, dtype=np.uint8)
    labels[:, :, 1] = 9
    labels[person] = 6
    carried = carrier.carry(labels, 0, FRAME)
    assert not carrier.degraded
    assert (carried[wall] > 0).all()
    assert not (carried[:, :, 5:] == 6).any(), "a wall is seen behind somebody who has left"
    assert (carried[46:, :, 1] > 0).all(), "ground that was out of reach before"
    assert carried[10, 10, 1] == 9


def test_a_late_pose_is_requested_on_demand():
    poses = {}
    carrier = SceneCarrier(GRID)
    carrier.add_frame(0, sweep(), lambda: poses.get(0))
    carrier.add_frame(FRAME, sweep(), lambda: poses.get(1))
    labels = np.zeros(GRID.shape, dtype=np.uint8)
    labels[30, 20, 5] = 6
    assert carrier.carry(labels, 0, FRAME)[30, 20, 5] == 6
    assert "no odometry" in carrier.degraded
    poses.update({0: pose(), 1: pose(x=0.4)})
    assert carrier.carry(labels, 0, FRAME)[28, 20, 5] == 6
    assert not carrier.degraded


def test_who_is_not_seen_through_stays():
    carrier = SceneCarrier(GRID)
    person = (slice(34, 36), slice(23, 25), slice(2, 9))
    for number in range(3):
        carrier.add_frame(number * FRAME, sweep(person), pose(x=0.2 * number))
    labels = np.zeros(GRID.shape, dtype=np.uint8)
    labels[person] = 6
    carried = carrier.carry(labels, 0, 2 * FRAME)
    assert (carried[32:34, 23:25, 2:9] == 6).mean() > 0.9


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (None, pose(), "no odometry"),
        (pose(), None, "no odometry"),
        (pose(), pose(x=40.0), "jumped"),
        (pose(), pose(yaw=3.0), "jumped"),
    ],
)
def test_without_odometry_labels_stay_and_hits_are_full(first, second, why):
    carrier = SceneCarrier(GRID)
    carrier.add_frame(0, sweep(), first)
    hit = (slice(20, 22), slice(20, 22), slice(3, 6))
    carrier.add_frame(FRAME, sweep(hit), second)
    labels = np.zeros(GRID.shape, dtype=np.uint8)
    labels[:, :, 1] = 9
    carried = carrier.carry(labels, 0, FRAME)
    assert why in carrier.degraded
    assert (carried[:, :, 1] == 9).all()
    assert (carried[hit] > 0).all()


def test_an_evicted_sweep_is_reported_and_an_earlier_one_refused():
    carrier = SceneCarrier(GRID)
    carrier.add_frame(5 * FRAME, sweep(), pose())
    carrier.add_frame(2 * FRAME, sweep(), pose())
    labels = grid_of_labels(1)
    carrier.carry(labels, FRAME, 2 * FRAME)
    assert "not held" in carrier.degraded
    assert carrier.carry(labels, FRAME, FRAME) is labels
    assert not carrier.degraded
    with pytest.raises(BadInput, match="back in time"):
        carrier.carry(labels, 2 * FRAME, FRAME)
    with pytest.raises(BadInput, match="shape"):
        carrier.carry(labels[1:], FRAME, 2 * FRAME)
    with pytest.raises(BadInput, match="grid"):
        carrier.add_frame(3 * FRAME, labels[1:])


@given(st.integers(0, 999))
def test_sight_never_clears_behind_a_hit(seed):
    """By the definition, voxel by voxel: only what is well before the nearest hit about its direction."""
    grid = VoxelGrid((-1.6, -1.6, -0.8), 0.2, (16, 16, 8))
    random = np.random.default_rng(seed)
    hits = (random.random(grid.shape) < 0.03).astype(np.uint8)
    labels = (random.random(grid.shape) < 0.5).astype(np.uint8)
    cleared = (labels > 0) & (LineOfSight(grid).clear_visible(labels, hits) == 0)
    place, ray = grid.centres(np.argwhere(hits)), grid.centres(np.argwhere(cleared))
    if len(ray):
        distance = np.linalg.norm(ray, axis=1)
        # every cleared voxel has a hit further out within three directions' width
        cosine = (ray @ place.T) / distance[:, None] / np.linalg.norm(place, axis=1)
        wide = np.cos(np.radians(2 * 2 * np.sqrt(2) * 1.01))
        further = np.linalg.norm(place, axis=1)[None, :] > distance[:, None] + 0.6
        assert ((cosine >= wide) & further).any(axis=1).all()
