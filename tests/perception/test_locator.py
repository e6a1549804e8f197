"""Positions of detections: what stands at a known place is seen by camera, depth image or LiDAR, and found there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edge_offload.errors import BadInput
from edge_offload.perception.geometry import PinholeCamera, Transform, depth_in_metres
from edge_offload.perception.locator import DEPTH, GROUND, LIDAR, Locator, nearest_surface
from tests.perception.room import make_room, on_target
from tests.perception.scenes import box_at, keypoints_in
from tests.perception.test_geometry import camera, looking_down


def find(locator: Locator, box: np.ndarray, keypoints: object = None):
    """The position of one person."""
    (position,) = locator.locate([box], [np.zeros((17, 3)) if keypoints is None else keypoints])
    return position


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_an_object_anywhere_is_located_on_its_surface_by_a_depth_image(seed: int) -> None:
    room = make_room(seed)
    locator = Locator(room.camera, room.pose, "eye", "map", depth=room.depth())
    (position,) = locator.locate([room.box])
    placed = locator.to_world(position)
    assert (placed.source, placed.frame) == (DEPTH, "map")
    off, away = on_target(room, placed.xyz)
    assert off < 0.05 + 0.01 * away


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_an_object_anywhere_is_located_on_its_surface_by_a_lidar_anywhere(seed: int) -> None:
    """Before a wall, behind a post, on a floor that the LiDAR sees as well."""
    room = make_room(seed)
    cloud = room.cloud()
    locator = Locator(room.camera, room.pose, "eye", "map", cloud=cloud)
    (position,) = locator.locate([room.box])
    middle, half = (room.box[:2] + room.box[2:]) / 2, (room.box[2:] - room.box[:2]) / 4
    inside = (np.abs(room.camera.project(cloud) - middle) <= half).all(axis=1)
    assume(np.count_nonzero(inside) >= 10)
    placed = locator.to_world(position)
    assert (placed.source, placed.frame) == (LIDAR, "map")
    off, away = on_target(room, placed.xyz)
    assert off < 0.1 + 0.01 * away


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_an_object_anywhere_is_located_where_it_stands_by_the_ground(seed: int) -> None:
    room = make_room(seed)
    locator = Locator(room.camera, room.pose, "eye", "map")
    (position,) = locator.locate([room.box])
    placed = locator.to_world(position)
    assert (placed.source, placed.frame) == (GROUND, "map")
    assert placed.xyz[2] == pytest.approx(0, abs=1e-6)
    off, _ = on_target(room, placed.xyz)
    # the lowest pixel is that of one corner, which need not be the one in the middle
    sigma = np.sqrt(np.linalg.eigvalsh(placed.covariance)[-1])
    assert off < 0.35 * room.target.size.max() + sigma


def person_at(view: PinholeCamera, pose: Transform, x: float, y: float) -> np.ndarray:
    """Box of a person of 1.7 m standing at x, y."""
    foot, head = view.project(pose.inverse().map_points(np.array([[x, y, 0.0], [x, y, 1.7]])))
    half = 0.15 * (foot[1] - head[1])
    return np.array([foot[0] - half, head[1], foot[0] + half, foot[1]])


def test_a_person_is_located_by_the_ground_in_the_optical_frame() -> None:
    view, pose = camera(distortion=[]), looking_down()
    box = person_at(view, pose, 8.0, 1.0)
    position = find(Locator(view, pose), box)
    assert position is not None
    assert position.source == "ground"
    assert pose.map_points(position.xyz) == pytest.approx([8.0, 1.0, 0.0], abs=1e-3)
    assert position.distance == pytest.approx(np.sqrt(64 + 1 + 4), abs=1e-3)
    eigenvalues = np.linalg.eigvalsh(position.covariance)
    assert (eigenvalues > 0).all()
    further = find(Locator(view, pose), person_at(view, pose, 15.0, 1.0))
    assert further is not None
    assert np.trace(further.covariance) > 2 * np.trace(position.covariance), "further away is less certain"


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.sampled_from([(DEPTH, LIDAR), (LIDAR,), ()]))
def test_the_most_trusted_source_that_has_a_position_gives_it(seed: int, sources: tuple) -> None:
    """With a depth image of holes the LiDAR, with no point of it in the box the ground, without a pose nothing."""
    room = make_room(seed)
    assume(min(room.box[2:] - room.box[:2]) > 40)
    depth = room.depth() if DEPTH in sources else np.full((240, 320), np.nan, np.float32)
    cloud = room.cloud() if LIDAR in sources else room.cloud()[:0]
    first = sources[0] if sources else GROUND
    (position,) = Locator(room.camera, room.pose, depth=depth, cloud=cloud).locate([room.box])
    assert position.source == first
    (unplaced,) = Locator(room.camera, depth=depth, cloud=cloud).locate([room.box])
    assert (unplaced and unplaced.source) == (first if sources else None)
    (guess,) = Locator(room.camera, room.pose, depth=depth, cloud=cloud).locate([room.box], measured=[False])
    assert guess.source == GROUND, "where the box is a prediction, what is seen there is something else"


def test_many_objects_are_located_like_single_ones() -> None:
    room = make_room(5)
    locator = Locator(room.camera, room.pose, depth=room.depth(), cloud=room.cloud())
    boxes = [room.box, room.box + 7, [300, 10, 310, 20], room.box - 5]
    together = locator.locate(boxes)
    for box, position in zip(boxes, together):
        (single,) = locator.locate([box])
        assert (single is None) == (position is None)
        assert single is None or (single.xyz == position.xyz).all()
    assert locator.locate([]) == []


@pytest.mark.parametrize(("background", "before"), [(0.0, 0.0), (0.6, 0.0), (0.3, 0.3), (0.4, 0.2), (0.0, 0.3)])
def test_a_surface_is_that_of_the_object_whatever_is_behind_and_little_of_what_is_before(background, before) -> None:
    """Synthetic samples with truth: the mean is off by metres, the median too where the background has the most."""
    random = np.random.default_rng(7)
    for truth in (1.0, 5.0, 20.0):
        n = 300
        samples = truth + random.normal(0, 0.02, n)
        samples[: int(background * n)] = truth + random.uniform(2, 30, int(background * n))
        samples[n - int(before * n) :] = 0.5 * truth
        surface = nearest_surface(samples, 0.4, 0.1, (0.03, 0.0))
        assert surface is not None
        assert surface.depth == pytest.approx(truth, abs=0.02)
        assert 0.01 < surface.error < 0.1


def test_sparse_points_give_no_surface() -> None:
    samples = np.random.default_rng(8).uniform(1, 60, 200)
    assert nearest_surface(samples, 0.4, 0.1, (0.03, 0.0)) is None
    assert nearest_surface(np.zeros(0), 1 / 3, 0.1, (0.03, 0.0)) is None


def test_a_person_behind_another_is_where_the_torso_is() -> None:
    """The one in front covers two fifths of the torso of the one behind."""
    view, box = camera(distortion=[]), box_at(320, 240, 100, 300)
    depth = np.full((480, 640), 12.0, np.float32)
    depth[90:390, 270:370] = 6.0
    depth[:, :313] = 2.5
    position = find(Locator(view, depth=depth), box)
    assert position.xyz[2] == pytest.approx(6.0, abs=0.02)


def test_points_far_outside_of_the_view_are_not_folded_into_the_image() -> None:
    """The polynomial of a wide lens comes back to the middle beyond the edge of the image."""
    view = camera(distortion=[-0.35, 0.0, 0.0, 0.0, 0.0])
    side = np.random.default_rng(9).normal([3.0, 0.0, 1.0], [0.8, 0.3, 0.02], (4000, 3)).astype(np.float32)
    assert np.nanmin(np.abs(view.project(side)[:, 0] - 320)) < 50, "they would be in the image"
    assert Locator(view, cloud=side).locate([[270, 150, 370, 330]]) == [None]


def test_the_age_of_a_cloud_is_in_the_uncertainty() -> None:
    room = make_room(11)
    cloud = room.cloud()
    (now,) = Locator(room.camera, cloud=cloud).locate([room.box])
    (late,) = Locator(room.camera, cloud=cloud, cloud_age_s=0.2).locate([room.box])
    assert np.linalg.eigvalsh(late.covariance - now.covariance) == pytest.approx([0.04] * 3)


def test_the_extent_of_an_object_is_that_of_its_box_at_its_distance() -> None:
    room = make_room(12)
    locator = Locator(room.camera, room.pose, "eye", "map", depth=room.depth())
    (position,) = locator.locate([room.box])
    extent = locator.box_extent(room.box, position)
    assert extent.centre == pytest.approx(locator.to_world(position).xyz, abs=1e-6)
    assert 0.8 * room.target.size[:2].min() < extent.width < 1.2 * np.hypot(*room.target.size[:2])
    assert extent.height == pytest.approx(room.target.size[2], rel=0.5)
    assert extent.rotation == pytest.approx(room.pose.rotation)
    across = room.pose.map_points(position.xyz + np.array([0.5, 0, 0])) - room.pose.map_points(position.xyz)
    assert extent.rotation @ [0.5, 0, 0] == pytest.approx(across), "its width is along the rows of the image"
    beyond = locator.box_extent(np.array([-500.0, -400.0, 900.0, 300.0]), position)
    assert np.isfinite([*beyond.centre, beyond.width, beyond.height]).all()


def test_depth_or_a_cloud_of_another_shape_is_refused() -> None:
    with pytest.raises(BadInput, match="align depth"):
        Locator(camera(), depth=np.zeros((240, 320), np.float32))
    with pytest.raises(BadInput, match=r"not \[n, 3\]"):
        Locator(camera(), cloud=np.zeros((10, 4), np.float32))


def test_the_stated_uncertainty_fits_the_errors_made() -> None:
    view, pose, random = camera(distortion=[]), looking_down(), np.random.default_rng(3)
    box = person_at(view, pose, 10.0, 0.0)
    height = box[3] - box[1]
    normalised = []
    for _ in range(400):
        off = box + random.normal(0, 1, 4) * np.array([0.03, 0, 0.03, 0.04]) * height
        position = find(Locator(view, pose, tilt_error=0.0), off)
        assert position is not None
        error = position.xyz - pose.inverse().map_points(np.array([10.0, 0.0, 0.0]))
        normalised.append(error @ np.linalg.solve(position.covariance, error))
    assert 0.7 < np.mean(normalised) < 3.5  # 2 when sizes fit exactly


def test_feet_out_of_the_image_give_no_position() -> None:
    locator = Locator(camera(), looking_down())
    assert find(locator, np.array([300, 100, 380, 479.5])) is None
    assert find(Locator(camera()), box_at(320, 240)) is None, "no pose, no ground"


def depth_scene(person_m: float, background_m: float, box: np.ndarray) -> np.ndarray:
    depth = np.full((480, 640), background_m, dtype=np.float32)
    x1, y1, x2, y2 = box.astype(int)
    depth[y1:y2, x1:x2] = person_m
    return depth


@pytest.mark.parametrize("encoding", ["32FC1", "16UC1"])
def test_depth_through_holes_and_a_lamp_post(encoding: str) -> None:
    view, box = camera(distortion=[]), box_at(400, 240, 80, 240)
    depth = depth_scene(4.0, 9.0, box)
    depth[:, 396:402] = 2.0  # something thin in front
    holes = np.random.default_rng(4).random(depth.shape) < 0.4
    if encoding == "16UC1":
        depth = (depth * 1000).astype(np.uint16)
        depth[holes] = 0
    else:
        depth[holes] = np.nan
        depth[::7] = np.inf
    position = find(Locator(view, depth=depth_in_metres(depth, encoding)), box, keypoints_in(box))
    assert position is not None
    assert position.source == "depth"
    assert position.xyz[2] == pytest.approx(4.0, abs=0.02)
    assert position.xyz[0] == pytest.approx(4.0 * (400 - 320) / 600, abs=0.05)
    assert 0 < position.covariance[2, 2] < 0.1


def test_without_usable_depth_the_ground_is_used() -> None:
    view, pose = camera(distortion=[]), looking_down()
    box = person_at(view, pose, 8.0, 0.5)
    for nothing in (np.nan, 0.0, -1.0, np.inf, 500.0):
        depth = depth_in_metres(np.full((480, 640), nothing, np.float32), "32FC1")
        position = find(Locator(view, pose, depth=depth), box, keypoints_in(box))
        assert position is not None
        assert position.source == "ground"
        assert find(Locator(view, depth=depth), box, keypoints_in(box)) is None


def test_a_box_partly_or_wholly_out_of_the_image_does_not_crash() -> None:
    depth = np.full((480, 640), 3.0, np.float32)
    for box in (box_at(-20, 240), box_at(660, 240), box_at(2000, 240), box_at(320, -300)):
        position = find(Locator(camera(), depth=depth), box, keypoints_in(box))
        assert position is None or (np.isfinite(position.xyz).all() and position.source == "depth")
