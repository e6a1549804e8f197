"""Positions in space: known points are projected, and must be found again."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_offload.errors import BadInput
from edge_offload.perception.geometry import Locator, PinholeCamera, Transform, depth_in_metres, load_camera
from tests.perception.scenes import box_at, keypoints_in

K = np.array([[600.0, 0, 320], [0, 610.0, 240], [0, 0, 1]])
DEMO = pathlib.Path(__file__).parents[2] / "config" / "camera_demo.yaml"


def camera(**changes: object) -> PinholeCamera:
    settings: dict = {"width": 640, "height": 480, "matrix": K, "distortion": [-0.2, 0.05, 0.001, -0.001, 0.0]}
    settings.update(changes)
    return PinholeCamera(**settings)


def looking_down(height: float = 2.0, tilt: float = 0.3) -> Transform:
    """Pose of a camera above the origin that looks along x, ``tilt`` radians below the horizon."""
    forward = np.array([np.cos(tilt), 0, -np.sin(tilt)])
    right = np.array([0, -1.0, 0])
    return Transform(np.stack([right, np.cross(forward, right), forward], axis=1), np.array([0, 0, height]))


@given(st.floats(0, 639), st.floats(0, 479), st.sampled_from(["plumb_bob", "rational_polynomial", "equidistant"]))
def test_rays_undo_the_lens(u: float, v: float, model: str) -> None:
    coefficients = {"plumb_bob": [-0.2, 0.05, 0.001, -0.001, 0.0], "equidistant": [0.02, -0.01, 0.0, 0.0]}
    view = camera(model=model, distortion=coefficients.get(model, [-0.1, 0.02, 0, 0, 0, 0.01, 0, 0]))
    ray = view.rays(np.array([[u, v]]))
    assert view.project(ray * 7.0)[0] == pytest.approx([u, v], abs=0.5)


def test_points_behind_the_camera_have_no_pixel() -> None:
    assert np.isnan(camera().project(np.array([[0.1, 0.1, -2.0]]))).all()


@given(st.floats(3, 20), st.floats(-1.5, 1.5), st.floats(0.05, 0.6))
def test_a_foot_on_the_ground_is_found_where_it_stands(x: float, y: float, tilt: float) -> None:
    view, pose = camera(), looking_down(tilt=tilt)
    pixel = view.project(pose.inverse().points(np.array([[x, y, 0.0]])))[0]
    if not (0 <= pixel[0] < 640 and 0 <= pixel[1] < 479):
        return
    found = view.on_ground(pixel, pose)
    assert found is not None
    assert found == pytest.approx([x, y, 0.0], abs=0.01 * x)


def test_no_ground_above_the_horizon_or_too_far_or_under_the_ground() -> None:
    view, pose = camera(distortion=[]), looking_down(tilt=0.2)
    horizon = 240 - 610 * np.tan(0.2)
    assert view.on_ground((320, horizon - 1), pose) is None
    assert view.on_ground((320, horizon + 0.1), pose) is None, "kilometres away"
    assert view.on_ground((320, 300), pose) is not None
    under = Transform(pose.rotation, np.array([0, 0, -1.0]))
    assert view.on_ground((320, 300), under) is None


def person_at(view: PinholeCamera, pose: Transform, x: float, y: float) -> np.ndarray:
    """Box of a person of 1.7 m standing at x, y."""
    foot, head = view.project(pose.inverse().points(np.array([[x, y, 0.0], [x, y, 1.7]])))
    half = 0.15 * (foot[1] - head[1])
    return np.array([foot[0] - half, head[1], foot[0] + half, foot[1]])


def test_a_person_is_located_by_the_ground_in_the_optical_frame() -> None:
    view, pose = camera(distortion=[]), looking_down()
    box = person_at(view, pose, 8.0, 1.0)
    position = Locator(view, pose).locate(box, np.zeros((17, 3)))
    assert position is not None
    assert position.source == "ground"
    assert pose.points(position.xyz) == pytest.approx([8.0, 1.0, 0.0], abs=1e-3)
    assert position.distance == pytest.approx(np.sqrt(64 + 1 + 4), abs=1e-3)
    eigenvalues = np.linalg.eigvalsh(position.covariance)
    assert (eigenvalues > 0).all()
    further = Locator(view, pose).locate(person_at(view, pose, 15.0, 1.0), np.zeros((17, 3)))
    assert further is not None
    assert np.trace(further.covariance) > 2 * np.trace(position.covariance), "further away is less certain"


def test_the_stated_uncertainty_fits_the_errors_made() -> None:
    view, pose, random = camera(distortion=[]), looking_down(), np.random.default_rng(3)
    box = person_at(view, pose, 10.0, 0.0)
    height = box[3] - box[1]
    normalised = []
    for _ in range(400):
        off = box + random.normal(0, 1, 4) * np.array([0.03, 0, 0.03, 0.04]) * height
        position = Locator(view, pose, tilt_error=0.0).locate(off, np.zeros((17, 3)))
        assert position is not None
        error = position.xyz - pose.inverse().points(np.array([10.0, 0.0, 0.0]))
        normalised.append(error @ np.linalg.solve(position.covariance, error))
    assert 0.7 < np.mean(normalised) < 3.5  # 2 when sizes fit exactly


def test_feet_out_of_the_image_give_no_position() -> None:
    locator = Locator(camera(), looking_down())
    assert locator.locate(np.array([300, 100, 380, 479.5]), np.zeros((17, 3))) is None
    assert Locator(camera()).locate(box_at(320, 240), np.zeros((17, 3))) is None, "no pose, no ground"


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
    position = Locator(view).locate(box, keypoints_in(box), depth, encoding)
    assert position is not None
    assert position.source == "depth"
    assert position.xyz[2] == pytest.approx(4.0, abs=0.02)
    assert position.xyz[0] == pytest.approx(4.0 * (400 - 320) / 600, abs=0.05)
    assert 0 < position.covariance[2, 2] < 0.1


def test_without_usable_depth_the_ground_takes_over() -> None:
    view, pose = camera(distortion=[]), looking_down()
    box = person_at(view, pose, 8.0, 0.5)
    for nothing in (np.nan, 0.0, -1.0, np.inf, 500.0):
        position = Locator(view, pose).locate(box, keypoints_in(box), np.full((480, 640), nothing, np.float32))
        assert position is not None
        assert position.source == "ground"
        assert Locator(view).locate(box, keypoints_in(box), np.full((480, 640), nothing, np.float32)) is None


def test_a_box_partly_or_wholly_out_of_the_image_does_not_crash() -> None:
    depth = np.full((480, 640), 3.0, np.float32)
    for box in (box_at(-20, 240), box_at(660, 240), box_at(2000, 240), box_at(320, -300)):
        position = Locator(camera()).locate(box, keypoints_in(box), depth)
        assert position is None or (np.isfinite(position.xyz).all() and position.source == "depth")


def test_depth_that_is_not_what_it_says_is_refused() -> None:
    locator, box = Locator(camera()), box_at(320, 240)
    with pytest.raises(BadInput, match="encoding"):
        locator.locate(box, keypoints_in(box), np.zeros((480, 640), np.uint8), "8UC1")
    with pytest.raises(BadInput, match="is not 16UC1"):
        depth_in_metres(np.zeros((480, 640), np.float32), "16UC1")
    with pytest.raises(BadInput, match="align depth"):
        locator.locate(box, keypoints_in(box), np.zeros((240, 320), np.float32))


def test_transforms_go_there_and_back() -> None:
    transform = Transform.from_quaternion([1, 2, 3], [0.1, -0.2, 0.3, 0.9])
    points = np.random.default_rng(5).normal(size=(10, 3))
    assert transform.inverse().points(transform.points(points)) == pytest.approx(points)
    quarter = Transform.from_quaternion([0, 0, 0], [0, 0, np.sqrt(0.5), np.sqrt(0.5)])
    assert quarter.points(np.array([1.0, 0, 0])) == pytest.approx([0, 1, 0])
    with pytest.raises(BadInput, match="quaternion"):
        Transform.from_quaternion([0, 0, 0], [0, 0, 0, 0])
    with pytest.raises(BadInput, match="rotation"):
        Transform(np.diag([1.0, 1.0, -1.0]), np.zeros(3))


def test_the_demo_camera_sees_the_ground_and_people_of_human_height() -> None:
    demo = load_camera(DEMO)
    assert (demo.width, demo.height, demo.pose_frame) == (768, 576, "map")
    assert demo.pose is not None
    # two people standing on the pavement, boxes drawn by hand (head and feet)
    for x, top, bottom in ((584, 235, 331), (617, 232, 324), (388, 178, 257)):
        foot = demo.on_ground((x, bottom), demo.pose)
        assert foot is not None
        ray = demo.pose.rotation @ demo.rays(np.array([[x, top]]))[0]
        reach = np.linalg.norm((foot - demo.pose.translation)[:2]) / np.linalg.norm(ray[:2])
        height = demo.pose.translation[2] + reach * ray[2]
        assert 1.5 < height < 2.0
    assert demo.on_ground((100, -300), demo.pose) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no mapping"),
        ("a: [", "not YAML"),
        ("image_width: 640", "camera_matrix"),
        ("image_width: 640\nimage_height: 480\ncamera_matrix: {data: [0,0,0,0,0,0,0,0,1]}", "focal lengths"),
        ("image_width: 640\nimage_height: 480\ncamera_matrix: {data: [1,2]}", "reshape"),
        (
            "image_width: 9\nimage_height: 9\ndistortion_model: magic\ncamera_matrix: {data: [9,0,4,0,9,4,0,0,1]}",
            "unknown distortion model",
        ),
    ],
)
def test_a_broken_calibration_names_the_file_and_the_fault(tmp_path: pathlib.Path, text: str, message: str) -> None:
    path = tmp_path / "camera.yaml"
    path.write_text(text)
    with pytest.raises(BadInput, match=message) as caught:
        load_camera(path)
    assert "camera.yaml" in str(caught.value)
    with pytest.raises(BadInput, match="absent"):
        load_camera(tmp_path / "absent.yaml")
