"""The container for people, the letterbox, and where the sample video is looked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload.errors import BadInput
from edge_offload.models import video
from edge_offload.models.letterbox import letterbox
from edge_offload.models.people import COCO_KEYPOINTS, SKELETON, People


def test_people_refuse_arrays_that_do_not_fit_each_other():
    assert len(People.empty()) == 0
    with pytest.raises(BadInput, match="boxes has shape"):
        People(np.zeros((2, 4)), np.zeros(1), np.zeros((1, 17, 3)))
    with pytest.raises(BadInput, match="keypoints has shape"):
        People(np.zeros((1, 4)), np.zeros(1), np.zeros((1, 16, 3)))
    with pytest.raises(BadInput, match="NaN"):
        People(np.full((1, 4), np.nan), np.zeros(1), np.zeros((1, 17, 3)))


def test_select_keeps_boxes_scores_and_keypoints_together():
    people = People(np.arange(12).reshape(3, 4), np.array([0.3, 0.9, 0.5]), np.arange(153).reshape(3, 17, 3))
    chosen = people.select(people.scores > 0.4)
    assert chosen.scores.tolist() == pytest.approx([0.9, 0.5])
    assert chosen.boxes[1].tolist() == [8, 9, 10, 11]
    assert chosen.keypoints[0, 0].tolist() == [51, 52, 53]


def test_skeleton_joins_points_of_one_side():
    for a, b in SKELETON:
        sides = {name.split("_")[0] for name in (COCO_KEYPOINTS[a], COCO_KEYPOINTS[b])} & {"left", "right"}
        same_part = COCO_KEYPOINTS[a].split("_")[-1] == COCO_KEYPOINTS[b].split("_")[-1]
        assert len(sides) < 2 or same_part


@pytest.mark.process
@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 300), st.integers(1, 300), st.sampled_from([(64, 32), (96, 32), (128, 64)]), st.integers(0, 2**31)
)
def test_points_map_back_to_their_places(height, width, size_stride, seed):
    size, stride = size_stride
    image, placement = letterbox(np.zeros((height, width, 3), np.uint8), size, stride)
    assert image.shape[1] % stride == 0
    assert image.shape[2] % stride == 0
    assert max(image.shape[1:]) == size
    points = np.random.default_rng(seed).uniform(0, 1, (5, 2)) * (width, height)
    placed = points * (placement.scale_x, placement.scale_y) + (placement.left, placement.top)
    np.testing.assert_allclose(placement.to_image(placed), points, atol=1e-3 * max(width, height))


def test_letterbox_places_the_picture_between_the_padding_and_swaps_the_colours():
    bgr = np.zeros((40, 128, 3), np.uint8)
    bgr[..., 0], bgr[..., 2] = 10, 30
    image, placement = letterbox(bgr, 128, 64, pad=114)
    assert tuple(image.shape) == (3, 64, 128)
    assert placement.top == 12
    assert image[:, 11].unique().tolist() == [114]
    assert image[:, 52].unique().tolist() == [114]
    assert [plane.unique().tolist() for plane in image[:, 12:52]] == [[30], [0], [10]]


@pytest.mark.process
def test_boxes_are_clipped_to_the_picture():
    _, placement = letterbox(np.zeros((48, 64, 3), np.uint8), 64, 64)
    np.testing.assert_allclose(placement.boxes_to_image(np.array([[-5, -5, 80, 80]])), [[0, 0, 64, 48]])


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((0, 4, 3), np.uint8),
        np.zeros((1, 9000, 3), np.uint8),
        None,
    ],
)
def test_what_is_not_a_colour_image_is_refused(image):
    with pytest.raises(BadInput):
        letterbox(image, 64, 32)


@pytest.mark.parametrize("size", [0, 50, 16, -64, 1 << 20])
def test_input_sizes_that_do_not_fit_the_network_are_refused(size):
    with pytest.raises(BadInput, match="multiple"):
        letterbox(np.zeros((4, 4, 3), np.uint8), size, 32)


def test_the_sample_video_is_searched_in_the_users_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGE_OFFLOAD_CACHE", str(tmp_path))
    monkeypatch.setattr(video, "INSTALLED", tmp_path / "installed.avi")
    monkeypatch.delenv(video.ENVIRONMENT, raising=False)
    with pytest.raises(BadInput, match="opencv-doc"):
        video.sample_video()
    (tmp_path / "installed.avi").touch()
    assert video.sample_video() == tmp_path / "installed.avi"
    (tmp_path / "vtest.avi").touch()
    assert video.sample_video() == tmp_path / "vtest.avi"
    monkeypatch.setenv(video.ENVIRONMENT, str(tmp_path / "mine.avi"))
    with pytest.raises(BadInput, match=r"mine\.avi"):
        video.sample_video()
