"""Recall, precision, average precision: against worked examples, a slow reference, and properties that must hold."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload.errors import BadInput
from edge_offload.models.people import People
from edge_offload.perception.assignment import iou_matrix
from edge_offload_benchmarks.experiments.people import LABELS, extract_blobs, read_labels
from edge_offload_benchmarks.people_tracking import read_identities, tracking_figures
from edge_offload_training import evaluation
from edge_offload_training.evaluation import Matched, Truth, at_threshold, average_precision, best_threshold


def people(*boxes, scores=None):
    scores = scores or [0.9 - 0.1 * index for index in range(len(boxes))]
    return People(np.array(boxes, float).reshape(-1, 4), scores, np.zeros((len(boxes), 17, 3)))


def truth(*boxes, partial=()):
    mask = np.array([index in partial for index in range(len(boxes))], dtype=bool)
    return Truth(np.array(boxes, float).reshape(-1, 4), mask, np.zeros((len(boxes), 17, 3)))


def match(people_found, labels, threshold=0.5, kind="bbox"):
    """The only frame of a match."""
    (matched,) = evaluation.match([people_found], [labels], threshold, kind)
    return matched


A, B, C = [0, 0, 10, 20], [30, 0, 40, 20], [60, 0, 70, 20]


def test_a_person_is_matched_once_and_the_second_detection_is_false():
    matched = match(people(A, A, B), truth(A, B, C))
    assert matched.right.tolist() == [True, False, True]
    assert matched.labelled == 3
    assert at_threshold([matched], 0.0) == (2 / 3, 2 / 3, 4 / 6)
    assert at_threshold([matched], 0.85) == (1 / 3, 1.0, 2 / 4)


def test_hidden_people_are_neither_missed_nor_false_and_take_no_find_from_others():
    matched = match(people(A, C), truth(A, B, C, partial=(1, 2)))
    assert (matched.right.tolist(), matched.labelled) == ([True], 1)
    near = [1, 0, 11, 20]
    matched = match(people(near), truth(near, A, partial=(0,)))
    assert matched.right.tolist() == [True], "the one who must be found comes first"


def test_empty_detections_match_an_empty_truth():
    assert at_threshold([match(People.empty(), truth(A))], 0.5) == (0.0, 0.0, 0.0)
    assert match(people(A), truth()).right.tolist() == [False]
    assert average_precision([match(People.empty(), truth())]) == 0.0


@st.composite
def frames(draw):
    result = []
    for _ in range(draw(st.integers(1, 4))):
        n = draw(st.integers(0, 6))
        scores = np.sort(draw(st.lists(st.floats(0.01, 1), min_size=n, max_size=n)))[::-1]
        right = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=bool)
        result.append(Matched(scores, right, int(right.sum()) + draw(st.integers(0, 3))))
    return result


@settings(max_examples=80, deadline=None)
@given(frames())
def test_average_precision_is_the_definition(given_frames):
    """Slow and plain: at each of 101 recalls, the best precision of any score threshold that reaches it."""
    labelled = sum(frame.labelled for frame in given_frames)
    finds = sorted(
        [(-s, i) for i, s in enumerate(np.concatenate([frame.scores for frame in given_frames]))], key=lambda f: f[0]
    )
    right = np.concatenate([frame.right for frame in given_frames])
    points = []
    for count in range(1, len(finds) + 1):
        hits = sum(bool(right[index]) for _, index in finds[:count])
        points.append((hits / max(1, labelled), hits / count))
    expected = np.mean(
        [max([p for r, p in points if r >= level], default=0.0) for level in np.linspace(0, 1, 101)]
        if labelled
        else [0]
    )
    assert average_precision(given_frames) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(frames())
def test_no_threshold_beats_the_best(given_frames):
    best = at_threshold(given_frames, best_threshold(given_frames))[2]
    assert all(at_threshold(given_frames, s)[2] <= best + 1e-12 for s in np.arange(0.01, 1, 0.01).round(2))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_dropping_weak_finds_first_or_later_is_the_same(data):
    """at_threshold may cut after matching only because a weaker find never changes what a stronger one matched."""
    boxes = [A, B, C, [2, 0, 12, 20], [28, 0, 38, 20], [4, 2, 14, 22]]
    chosen = data.draw(st.lists(st.sampled_from(boxes), min_size=1, max_size=6))
    scores = sorted(data.draw(st.lists(st.floats(0.1, 1), min_size=len(chosen), max_size=len(chosen))), reverse=True)
    cut = data.draw(st.floats(0.1, 1))
    finds, labels = people(*chosen, scores=scores), truth(A, B, C, partial=(2,))
    late = at_threshold([match(finds, labels)], cut)
    early = at_threshold([match(finds.select(finds.scores >= np.float32(cut)), labels)], 0.0)
    assert late == pytest.approx(early) or any(abs(s - cut) < 1e-6 for s in scores)


def test_keypoint_similarity_is_cocos_formula():
    keypoints = np.zeros((1, 17, 3))
    keypoints[0, :, 2] = 1
    keypoints[0, 3:, 2] = 0
    labels = Truth(np.array([[0.0, 0, 40, 100]]), np.array([False]), keypoints)
    moved = np.zeros((1, 17, 3))
    moved[0, :3, 0] = [0, 3, 6]
    moved[0, 3:, 0] = 1000  # not labelled: means nothing
    finds = People([[0, 0, 40, 100]], [1.0], moved)
    k = 2 * np.array([0.026, 0.025, 0.025])
    expected = np.mean(np.exp(-np.array([0, 9, 36]) / (2 * 0.53 * 4000 * k**2)))
    assert match(finds, labels, expected - 1e-6, "keypoints").right.tolist() == [True]
    assert match(finds, labels, expected + 1e-6, "keypoints").right.tolist() == [False]


def test_people_without_labelled_keypoints_are_dont_cares_for_keypoints():
    labels = truth(A, B)
    labels.keypoints[0, :3] = [5, 10, 2]
    matched = match(people(A, B), labels, 0.5, "keypoints")
    assert matched.labelled == 1


def test_intervals_hold_the_value_and_shrink_with_more_data():
    random = np.random.default_rng(1)
    sample = [Matched(np.full(8, 0.5), random.random(8) < 0.8, 8) for _ in range(200)]
    widths = []
    for count in (20, 200):
        intervals = evaluation.bootstrap_intervals(sample[:count], 0.1, 10)
        assert len(intervals) == 3
        for (low, high), value in zip(intervals, at_threshold(sample[:count], 0.1)):
            assert low < value < high
        widths.append(intervals[0][1] - intervals[0][0])
    assert widths[1] < widths[0]


def test_the_shipped_labels_are_sound():
    labels = read_labels(LABELS)
    assert len(labels) >= 40
    assert all(601 <= number < 795 for number in labels)
    for number, frame in labels.items():
        sides = frame.boxes[:, 2:] - frame.boxes[:, :2]
        assert (frame.boxes >= 0).all()
        assert (frame.boxes[:, 2:] <= [768, 576]).all()
        assert (sides > 3).all()
        assert (sides[:, 1] > sides[:, 0])[~frame.partial].all(), f"frame {number}: people stand"
        overlaps = iou_matrix(frame.boxes, frame.boxes)
        assert all(overlaps[i, j] < 0.85 for i, j in itertools.combinations(range(len(sides)), 2)), "labelled twice"


def test_bad_labels_are_refused(tmp_path):
    path = tmp_path / "labels.json"
    for text in ("{", "[]", '{"frames": [{"frame": 1}]}', '{"frames": [{"frame": 1, "people": [{"box": [1, 2]}]}]}'):
        path.write_text(text)
        with pytest.raises(BadInput, match="labels"):
            read_labels(path)


def test_blobs_become_boxes():
    mask = np.zeros((100, 100), np.uint8)
    mask[20:60, 30:45] = 1
    mask[40, 30:45] = 0  # a hole that is closed
    mask[80, 80] = 1  # a speck
    people = extract_blobs(mask)
    assert people.boxes.tolist() == [[30, 20, 45, 60]]


def test_the_hand_labels_name_identities_and_none_jumps():
    identities, truths = read_identities(LABELS), read_labels(LABELS)
    assert identities.keys() == truths.keys()
    last = {}
    for number in sorted(identities):
        for who, box in zip(identities[number], truths[number].boxes):
            centre = (box[:2] + box[2:]) / 2
            if who in last:
                frames = number - last[who][0]
                assert np.hypot(*(centre - last[who][1])) < 25 + 14 * frames, (number, who)
            last[who] = (number, centre)
    assert len(last) == 10


def test_following_is_scored_on_labelled_frames():
    boxes = {number: [100 + 4 * number, 50, 130 + 4 * number, 130] for number in range(30)}
    labelled = (0, 10, 20, 29)
    truths = {number: truth(boxes[number], [400, 60, 420, 110], partial=(1,)) for number in labelled}
    identities = {number: [7, 8] for number in labelled}
    finds = [people(boxes[number], [400, 60, 420, 110]) for number in boxes]
    figures = tracking_figures(finds, list(boxes), truths, identities, 0.5, 10.0)
    assert (figures["people"], figures["identities"], figures["frames"]) == (4, 2, 4)
    assert (figures["mota"], figures["switches"], figures["false_positives"]) == (1.0, 0, 0), "hidden ones do not count"
    finds[15] = people(boxes[15], scores=[0.4])
    assert tracking_figures(finds, list(boxes), truths, identities, 0.5, 10.0)["mota"] == 1.0
    finds[10] = people([300, 300, 330, 380])
    worse = tracking_figures(finds, list(boxes), truths, identities, 0.5, 10.0)
    assert (worse["misses"], worse["fragmentations"], worse["switches"]) == (1, 1, 0)


@pytest.mark.parametrize("ids", [[1, 1], [1, None], ["a", "b"]])
def test_labels_with_unclear_identities_are_refused(tmp_path, ids):
    person = {"box": A, "partial": False}
    frame = {"frame": 3, "people": [{**person, **({} if who is None else {"id": who})} for who in ids]}
    file = tmp_path / "labels.json"
    file.write_text(json.dumps({"frames": [frame]}))
    with pytest.raises(BadInput, match="frame 3"):
        read_identities(file)
    file.write_text(json.dumps({"frames": [{"frame": 3, "people": [person]}]}))
    assert read_identities(file) == {}
