"""Procedural scenes: rays hit what is there, the truth holds what rays hit, held-out objects stay out of training."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload.models.scenes.labels import IGNORED, VALUE
from edge_offload.models.scenes.lidar import Lidar, SensorPose, simulate_sweep
from edge_offload.models.scenes.objects import HELD_OUT, TRAINING, Spot, scale_of
from edge_offload.models.scenes.solids import Solid, make_box
from edge_offload.models.scenes.world import Ground, Street, World, make_room
from edge_offload.models.voxels import grid_around
from edge_offload_training.sconet import truth, visibility
from edge_offload_training.sconet.samples import make_pair

EXACT = Lidar(rings=32, columns=720, noise=0.0, dropout=0.0, dropout_far=0.0)
ROAD, CAR, BUILDING = VALUE["road"], VALUE["car"], VALUE["building"]


def solids():
    place = st.floats(3.0, 15.0)
    size = st.floats(0.3, 2.0)
    return st.tuples(
        st.integers(0, 2), place, st.floats(-3, 3), st.floats(-1, 1), st.tuples(size, size, size), st.floats(0, 3)
    )


@pytest.mark.process
@settings(deadline=None, max_examples=60)
@given(solids())
def test_a_ray_enters_a_solid_where_marching_along_it_does(drawn):
    shape, x, y, z, half, yaw = drawn
    solid = Solid(shape, (x, y, z), half, yaw, CAR)
    aims = np.random.default_rng(0).uniform(-1, 1, (40, 3)) * half + solid.centre
    directions = aims / np.linalg.norm(aims, axis=1, keepdims=True)
    steps = np.arange(0.0, 30.0, 0.005)
    points = directions[:, None, :] * steps[None, :, None]
    inside = solid.depth(points[..., 0], points[..., 1], points[..., 2], 0.0) > 0
    first = np.where(inside.any(axis=1), steps[inside.argmax(axis=1)], np.inf)
    entry = solid.entry_distance(directions)
    grazing = inside.sum(axis=1) < 4
    np.testing.assert_allclose(entry[~grazing], first[~grazing], atol=0.012)


def test_nothing_is_seen_behind_a_wall():
    wall = make_box(6.0, 0.0, -1.0, (0.3, 60.0, 8.0), 0.0, BUILDING)
    world = World(Ground(ROAD), (wall, make_box(9.0, 1.0, 0.0, (4, 2, 1.5), 0.0, CAR)))
    points, labels = simulate_sweep(world, SensorPose(), EXACT, 0)
    ahead = np.abs(np.arctan2(points[:, 1], points[:, 0])) < 1.0
    assert points[ahead, 0].max() < 6.2
    assert CAR not in labels
    assert BUILDING in labels


@pytest.mark.process
def test_ranges_on_flat_ground_and_on_a_wall_are_the_true_ones():
    world = World(Ground(ROAD), (make_box(10.15, 0.0, -1.0, (0.3, 80.0, 8.0), 0.0, BUILDING),))
    points, labels = simulate_sweep(world, SensorPose(), EXACT, 0)
    np.testing.assert_allclose(points[labels == ROAD, 2], -EXACT.height, atol=1e-3)
    np.testing.assert_allclose(points[labels == BUILDING, 0], 10.0, atol=1e-3)


def test_noise_dropouts_and_leaves_act_as_described():
    wall = make_box(10.15, 0.0, -2.0, (0.3, 200.0, 8.0), 0.0, BUILDING)
    noisy = Lidar(rings=32, columns=720, noise=0.05, dropout=0.3, dropout_far=0.3)
    exact, _ = simulate_sweep(World(Ground(ROAD), (wall,)), SensorPose(), EXACT, 0)
    points, labels = simulate_sweep(World(Ground(ROAD), (wall,)), SensorPose(), noisy, 0)
    assert len(points) / len(exact) == pytest.approx(0.7, abs=0.03)
    spread = points[labels == BUILDING]
    straight = spread[np.abs(spread[:, 1]) < 1.0, 0] - 10.0
    assert straight.std() == pytest.approx(0.05, rel=0.2)
    leaves = Solid(0, (5.0, 0.0, 0.0), (0.5, 4.0, 3.0), 0.0, VALUE["vegetation"], porosity=0.4)
    _, labels = simulate_sweep(World(Ground(ROAD), (leaves, wall)), SensorPose(), EXACT, 0)
    labels_of_wall = simulate_sweep(World(Ground(ROAD), (wall,)), SensorPose(), EXACT, 0)[1]
    assert (labels == VALUE["vegetation"]).sum() > 200
    assert (labels == BUILDING).sum() > 0.8 * (labels_of_wall == BUILDING).sum() - 1500


@pytest.mark.parametrize("validation", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_what_a_sweep_hits_is_full_in_the_truth(seed, validation):
    made = make_pair(seed, validation)
    labelled = made.labels != IGNORED
    hit = (made.occupancy > 0) & labelled
    assert hit.sum() > 300
    assert (made.labels[hit] > 0).all()
    assert (made.labels[labelled] > 0).sum() > 3 * hit.sum(), "one sweep sees the lesser part of a scene"


def test_truth_has_a_complete_car_though_the_sensor_sees_one_side():
    world = World(Ground(ROAD), (make_box(8.0, 0.0, 0.0, (4.0, 1.8, 1.5), 0.3, CAR),))
    grid = grid_around(EXACT.height)
    labels = truth.true_labels(world, SensorPose(), EXACT, grid)
    points, hits = simulate_sweep(world, SensorPose(), EXACT, 0)
    volume = (labels == CAR).sum() * grid.voxel_size**3
    assert volume == pytest.approx(4.0 * 1.8 * 1.5, rel=0.35)
    seen = grid.occupancy(points[hits == CAR])
    assert 0 < seen.sum() < 0.5 * (labels == CAR).sum()
    # a surface that only grazes a voxel does not fill it; samples.make_pair fills what was hit all the same
    assert (labels[seen > 0] == CAR).mean() > 0.8


def test_the_inside_of_a_house_and_space_behind_walls_is_unlabelled():
    house = Solid(0, (12.0, 0.0, 2.0), (4.0, 4.0, 3.0), 0.0, BUILDING, shell=0.5)
    grid = grid_around(EXACT.height)
    labels = truth.true_labels(World(Ground(ROAD), (house,)), SensorPose(), EXACT, grid)
    middle = grid.voxel_indices(np.array([[12.0, 0.0, 0.2]]))[0][0]
    assert labels[tuple(middle)] == IGNORED
    made = make_room(3)
    labels = truth.true_labels(made, SensorPose(), EXACT, grid)
    outside = grid.voxel_indices(np.array([[made.bounds[2] + 1.0, 0.0, 0.0]]))[0][0]
    assert labels[tuple(outside)] == IGNORED


@pytest.mark.process
def test_equal_seeds_make_equal_scenes_and_others_differ():
    one, same, other = make_pair(4), make_pair(4), make_pair(5)
    np.testing.assert_array_equal(one.labels, same.labels)
    np.testing.assert_array_equal(one.points, same.points)
    assert one.points.shape != other.points.shape or (one.points != other.points).any()
    validation = make_pair(4, validation=True)
    assert validation.labels.shape == one.labels.shape
    assert (validation.labels != one.labels).any()


def test_a_street_is_the_same_wherever_one_stands_on_it():
    street = Street(7)
    near, far = street.world_around(0.0), street.world_around(40.0)
    common = set(near.solids) & set(far.solids)
    assert len(common) > 0.3 * len(near.solids)


def test_validation_kinds_and_sizes_never_occur_in_training():
    random = np.random.default_rng(0)
    trained = [scale_of(False, random) for _ in range(500)]
    validation = [scale_of(True, random) for _ in range(500)]
    assert not any(min(trained) <= value <= max(trained) for value in validation)
    for role, kinds in HELD_OUT.items():
        assert set(kinds) - set(TRAINING[role]), f"no {role} is held out"
        for maker in {*kinds, *TRAINING[role]}:
            made = maker(Spot(0.0, 0.0, 0.5, 1.0, np.random.default_rng(1)))
            assert made
            assert min(solid.centre[2] - solid.half[2] for solid in made) < 0.7, f"a {maker.__name__} floats"


def test_someone_who_walks_is_elsewhere_later():
    walker = Solid(1, (5.0, 0.0, 0.9), (0.3, 0.3, 0.9), 0.0, VALUE["person"], velocity=(0.0, 1.0))
    assert walker.seen_from(0, 0, 0, 2.0).centre == pytest.approx((5.0, 2.0, 0.9))
    assert walker.seen_from(5.0, 1.0, np.pi / 2, 2.0).centre == pytest.approx((1.0, 0.0, 0.9))
    spot = Spot(0.0, 0.0, 0.0, 1.0, np.random.default_rng(0))
    assert spot.make_ellipsoid("car", 1, (1, 1, 1)).seen_from(1, 0, 0).centre == (-1.0, 0.0, 1.0)
    assert spot.make_post("pole", 0.1, 2.0).raised_by(1.0).centre[2] == 2.0


def test_voxels_that_no_pose_sees_are_unlabelled_and_those_seen_later_labelled():
    wall = make_box(14.0, 8.0, 0.0, (24.0, 0.4, 4.0), 0.0, BUILDING)
    hidden = make_box(14.0, 12.0, 0.0, (1.0, 1.0, 1.5), 0.0, CAR)
    world = World(Ground(ROAD), (wall, hidden, make_box(6.0, 0.0, 0.0, (0.4, 6.0, 4.0), 0.0, BUILDING)))
    pose, grid = SensorPose(), grid_around(EXACT.height)
    visible = visibility.visible_voxels(world, (pose,), pose, EXACT, grid)
    drive = visibility.along_the_street(pose, grid)
    assert len(drive) == 5
    path = visibility.visible_voxels(world, drive, pose, EXACT, grid)

    def at(seen, x, y, z):
        return bool(seen[tuple(grid.voxel_indices(np.array([[x, y, z - EXACT.height]]))[0][0])])

    behind_the_near_wall = (9.0, 0.0, 1.0)
    assert not at(visible, *behind_the_near_wall)
    assert at(path, *behind_the_near_wall)
    assert at(visible, 3.0, 0.0, 0.05), "the ground in sight"
    assert at(path, 14.0, 7.9, 2.0), "the face of a wall"
    assert not at(path, 14.0, 10.2, 0.5), "behind a wall that is passed at a distance"
    assert not at(path, 14.0, 12.0, 0.8), "inside of a car"
    assert (path | ~visible).all(), "more poses see no less"


def test_a_pair_leaves_out_what_cannot_be_seen_but_nothing_that_was_hit():
    made = make_pair(3)
    assert (made.labels[made.occupancy > 0] != IGNORED).all()
    assert 0.05 < (made.labels == IGNORED).mean() < 0.9
