"""Positions in space: known points are projected, and must be found again."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_offload.errors import BadInput
from edge_offload.perception.geometry import PinholeCamera, Transform, depth_in_metres, load_camera

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
    ray = view.pixel_rays(np.array([[u, v]]))
    assert view.project(ray * 7.0)[0] == pytest.approx([u, v], abs=0.5)


def test_points_behind_the_camera_have_no_pixel() -> None:
    assert np.isnan(camera().project(np.array([[0.1, 0.1, -2.0]]))).all()


def on_ground(view, pixel, pose):
    """Return the ground [3] that one pixel shows, or None."""
    point = view.ground_points(np.array([pixel]), pose)[0]
    return point if np.isfinite(point).all() else None


@given(st.floats(3, 20), st.floats(-1.5, 1.5), st.floats(0.05, 0.6))
def test_a_foot_on_the_ground_is_located_where_it_stands(x: float, y: float, tilt: float) -> None:
    view, pose = camera(), looking_down(tilt=tilt)
    pixel = view.project(pose.inverse().map_points(np.array([[x, y, 0.0]])))[0]
    if not (0 <= pixel[0] < 640 and 0 <= pixel[1] < 479):
        return
    position = on_ground(view, pixel, pose)
    assert position is not None
    assert position == pytest.approx([x, y, 0.0], abs=0.01 * x)


def test_no_ground_above_the_horizon_or_too_far_or_under_the_ground() -> None:
    view, pose = camera(distortion=[]), looking_down(tilt=0.2)
    horizon = 240 - 610 * np.tan(0.2)
    assert on_ground(view, (320, horizon - 1), pose) is None
    assert on_ground(view, (320, horizon + 0.1), pose) is None, "kilometres away"
    assert on_ground(view, (320, 300), pose) is not None
    under = Transform(pose.rotation, np.array([0, 0, -1.0]))
    assert on_ground(view, (320, 300), under) is None


def test_depth_of_a_wrong_encoding_is_refused() -> None:
    with pytest.raises(BadInput, match="encoding"):
        depth_in_metres(np.zeros((480, 640), np.uint8), "8UC1")
    with pytest.raises(BadInput, match="is not 16UC1"):
        depth_in_metres(np.zeros((480, 640), np.float32), "16UC1")


def test_transforms_round_trip() -> None:
    transform = Transform.from_quaternion([1, 2, 3], [0.1, -0.2, 0.3, 0.9])
    points = np.random.default_rng(5).normal(size=(10, 3))
    assert transform.inverse().map_points(transform.map_points(points)) == pytest.approx(points)
    quarter = Transform.from_quaternion([0, 0, 0], [0, 0, np.sqrt(0.5), np.sqrt(0.5)])
    assert quarter.map_points(np.array([1.0, 0, 0])) == pytest.approx([0, 1, 0])
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
        foot = on_ground(demo, (x, bottom), demo.pose)
        assert foot is not None
        ray = demo.pose.rotation @ demo.pixel_rays(np.array([[x, top]]))[0]
        reach = np.linalg.norm((foot - demo.pose.translation)[:2]) / np.linalg.norm(ray[:2])
        height = demo.pose.translation[2] + reach * ray[2]
        assert 1.5 < height < 2.0
    assert on_ground(demo, (100, -300), demo.pose) is None


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
