"""Tracking: ids that stay with people, through crossings, occlusion, gaps and loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Dict, List

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload.errors import BadInput
from edge_offload.models.people import People
from edge_offload.perception.assignment import assign_pairs, iou_matrix
from edge_offload.perception.kalman import BoxFilter
from edge_offload.perception.tracking import TrackedPerson, Tracker, TrackerConfig, match_people
from edge_offload_benchmarks.tracking_metrics import TrackingScore
from tests.perception.scenes import box_at, noisy, people

Scene = Callable[[float], Dict[int, np.ndarray]]


def quality(scene: Scene, seconds: float, hidden: Callable[[int, float], bool], step: float = 0.1) -> Dict[str, float]:
    """Track ``scene`` (person → box at a time), where ``hidden`` people are not detected; score who is reported."""
    tracker, score, random = Tracker(), TrackingScore(), np.random.default_rng(1)
    for frame in range(round(seconds / step)):
        now = frame * step
        truth = scene(now)
        seen = noisy({key: box for key, box in truth.items() if not hidden(key, now)}, random)
        tracked = tracker.update(people(seen.values()), now)
        score.add(
            {key: box for key, box in truth.items() if not hidden(key, now)},
            {person.id: person.box for person in tracked if not person.coasting},
        )
    return score.result()


def never(person: int, now: float) -> bool:
    return False


def test_two_people_crossing_preserve_their_ids() -> None:
    def scene(now: float) -> Dict[int, np.ndarray]:
        return {1: box_at(100 + 80 * now, 200), 2: box_at(500 - 80 * now, 210)}

    result = quality(scene, 5.0, never)
    assert result["switches"] == 0
    assert result["mota"] > 0.95


def test_the_one_behind_is_hidden_while_they_cross() -> None:
    def scene(now: float) -> Dict[int, np.ndarray]:
        return {1: box_at(100 + 80 * now, 200), 2: box_at(500 - 80 * now, 208)}

    def hidden(person: int, now: float) -> bool:
        return person == 2 and iou_matrix(scene(now)[1], scene(now)[2])[0, 0] > 0.1

    result = quality(scene, 5.0, hidden)
    assert result["switches"] == 0
    assert result["idf1"] > 0.95


def test_walking_side_by_side_and_following_each_other() -> None:
    def scene(now: float) -> Dict[int, np.ndarray]:
        return {1: box_at(100 + 60 * now), 2: box_at(128 + 60 * now), 3: box_at(60 + 60 * now, 206)}

    assert quality(scene, 6.0, never)["switches"] == 0


def test_an_id_survives_a_second_behind_a_pillar() -> None:
    def scene(now: float) -> Dict[int, np.ndarray]:
        return {1: box_at(100 + 60 * now)}

    result = quality(scene, 6.0, lambda _, now: 2.5 < now < 3.5)
    assert result["switches"] == 0


def test_irregular_frames_are_nothing_special() -> None:
    random = np.random.default_rng(2)
    tracker, now, ids = Tracker(), 0.0, set()
    for _ in range(60):
        now += float(random.choice([0.03, 0.1, 0.4]))
        tracked = tracker.update(people([box_at(50 + 70 * now), box_at(900 - 40 * now, 300)]), now)
        ids |= {person.id for person in tracked}
    assert ids == {1, 2}


def test_a_person_absent_for_long_returns_with_another_id() -> None:
    tracker = Tracker(TrackerConfig(max_lost_s=1.0, coast_s=0.5))
    assert [person.id for person in tracker.update(people([box_at(100)]), 0.0)] == [1]
    coasting = tracker.update(People.empty(), 0.4)
    assert [(person.id, person.coasting) for person in coasting] == [(1, True)]
    assert coasting[0].missed_s == pytest.approx(0.4)
    assert tracker.update(People.empty(), 0.6) == []
    assert [person.id for person in tracker.update(people([box_at(100)]), 0.9)] == [1], "within max_lost_s"
    tracker.update(People.empty(), 2.0)
    tracker.update(people([box_at(100)]), 2.1)
    assert [person.id for person in tracker.update(people([box_at(100)]), 2.2)] == [2]


def test_a_newcomer_is_reported_after_n_detections_and_a_flicker_never() -> None:
    tracker = Tracker(TrackerConfig(min_hits=3))
    tracker.update(people([box_at(100)]), 0.0)
    counts = []
    for frame in range(1, 5):
        counts.append(len(tracker.update(people([box_at(100), box_at(400)]), frame * 0.1)))
    assert counts == [1, 1, 2, 2]
    tracker.update(people([box_at(100), box_at(400), box_at(700)]), 0.5)
    assert len(tracker.update(people([box_at(100), box_at(400)]), 0.6)) == 2
    assert len(tracker.update(people([box_at(100), box_at(400), box_at(700)]), 0.7)) == 2


def test_weak_detections_extend_tracks_but_start_none() -> None:
    tracker = Tracker()
    tracker.update(people([box_at(100)]), 0.0)
    for frame in range(1, 30):
        tracked = tracker.update(people([box_at(100 + frame), box_at(400)], [0.15, 0.15]), frame * 0.1)
    assert [(person.id, person.coasting) for person in tracked] == [(1, False)]


def test_what_is_reported_is_what_was_detected() -> None:
    tracker = Tracker()
    for frame in range(5):
        detected = people([box_at(100 + 7.3 * frame)], [0.7])
        (person,) = tracker.update(detected, frame * 0.1)
        assert np.array_equal(person.box, detected.boxes[0])
        assert np.array_equal(person.keypoints, detected.keypoints[0])
        assert person.score == pytest.approx(0.7)
    assert person.velocity[0] == pytest.approx(73, rel=0.2)
    assert person.age_s == pytest.approx(0.4)


def test_a_coasting_person_moves_on_with_the_pose() -> None:
    tracker = Tracker()
    for frame in range(10):
        (seen,) = tracker.update(people([box_at(100 + 10 * frame)]), frame * 0.1)
    (guess,) = tracker.update(People.empty(), 1.2)
    assert guess.coasting
    moved = guess.box[0] - seen.box[0]
    assert moved == pytest.approx(30, abs=6)
    assert (guess.keypoints[:, 0] - seen.keypoints[:, 0]) == pytest.approx(np.full(17, moved), abs=3)


def test_a_loop_of_the_recording_starts_afresh_and_no_id_comes_twice() -> None:
    tracker = Tracker()
    for loop in range(3):
        ids = set()
        for frame in range(20):
            tracked = tracker.update(people([box_at(100 + 5 * frame), box_at(400)]), 50.0 + frame * 0.1)
            ids |= {person.id for person in tracked}
        assert ids == {1 + 2 * loop, 2 + 2 * loop}


def test_a_clock_set_back_a_little_costs_no_id() -> None:
    tracker = Tracker()
    for frame, stamp in enumerate([0.0, 0.1, 0.2, 0.15, 0.25, 0.25, 0.3]):
        tracked = tracker.update(people([box_at(100 + frame)] if frame != 3 else []), stamp)
        assert [(person.id, person.coasting) for person in tracked] == [(1, frame == 3)]


def test_people_who_leave_the_image_do_not_coast_outside() -> None:
    tracker = Tracker()
    for frame in range(8):
        tracker.update(people([box_at(700 + 9 * frame)]), frame * 0.1, (768, 576))
    assert tracker.update(People.empty(), 0.9, (768, 576)) == []


def test_one_person_detected_twice_is_one_person() -> None:
    tracker = Tracker()
    for frame in range(10):
        tracked = tracker.update(people([box_at(100), box_at(102)], [0.9, 0.6]), frame * 0.1)
        assert len(tracked) == 1


def test_nonsense_is_refused_or_ignored() -> None:
    with pytest.raises(BadInput, match="stamp"):
        Tracker().update(People.empty(), float("nan"))
    with pytest.raises(BadInput, match="low"):
        TrackerConfig(low_score=0.6, high_score=0.5)
    assert Tracker().update(people([[100, 100, 100, 200], [300, 200, 200, 100]]), 0.0) == []


frames_of_boxes = st.lists(
    st.tuples(
        st.floats(-1, 3),  # step in time; below -0.2 the recording "loops"
        st.lists(
            st.tuples(st.floats(-50, 800), st.floats(-50, 600), st.floats(0, 300), st.floats(0, 300), st.floats(0, 1)),
            max_size=6,
        ),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(frames_of_boxes)
def test_whatever_comes_ids_are_unique_outputs_bounded_and_runs_repeat(frames: list) -> None:
    def run() -> List[List[TrackedPerson]]:
        tracker, now, results = Tracker(TrackerConfig(max_tracks=8)), 100.0, []
        for step, boxes in frames:
            now += step
            detections = people([[x, y, x + w, y + h] for x, y, w, h, _ in boxes], [box[4] for box in boxes])
            results.append(tracker.update(detections, now, (768, 576)))
        return results

    results = run()
    for tracked, (_, boxes) in zip(results, frames):
        ids = [person.id for person in tracked]
        assert len(set(ids)) == len(ids)
        assert len(tracked) <= 8
        assert sum(not person.coasting for person in tracked) <= len(boxes)
        for person in tracked:
            assert np.isfinite(person.box).all()
            assert np.isfinite(person.velocity).all()
            assert person.missed_s <= TrackerConfig().coast_s
    repeated = run()
    assert [[(p.id, p.box.tolist()) for p in frame] for frame in results] == [
        [(p.id, p.box.tolist()) for p in frame] for frame in repeated
    ]


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8))
def test_predicting_in_steps_is_predicting_at_once(steps: List[float]) -> None:
    def filtered() -> BoxFilter:
        box_filter = BoxFilter(box_at(100))
        box_filter.predict(0.1)
        box_filter.update(box_at(110, 205))
        return box_filter

    stepwise, once = filtered(), filtered()
    for step in steps:
        stepwise.predict(step)
    once.predict(sum(steps))
    assert stepwise.box == pytest.approx(once.box, abs=1e-3)
    assert stepwise.centre_spread == pytest.approx(once.centre_spread, rel=1e-6)


def test_assignment_skips_a_bad_pair_rather_than_spoil_a_good_one() -> None:
    cost = np.array([[0.1, 0.8], [0.8, np.inf]])
    pairs, rows, columns = assign_pairs(cost, limit=0.9)
    assert pairs == [(0, 0)]
    assert (rows, columns) == ([1], [1])


def test_quality_counts_what_goes_wrong() -> None:
    score = TrackingScore()
    a, b = box_at(100), box_at(300)
    score.add({1: a, 2: b}, {7: a, 8: b})
    score.add({1: a, 2: b}, {7: a})  # 2 is missed
    score.add({1: a, 2: b}, {7: a, 9: b})  # 2 comes back as 9: a switch and a fragment
    score.add({1: a}, {7: a, 5: box_at(600)})  # 5 is nobody
    result = score.result()
    assert (result["people"], result["misses"], result["false_positives"]) == (7, 1, 1)
    assert (result["switches"], result["fragmentations"]) == (1, 1)
    assert result["mota"] == pytest.approx(1 - 3 / 7)
    assert result["motp"] == pytest.approx(1.0)
    assert result["idf1"] == pytest.approx(2 * 5 / (7 + 7))


def test_quality_keeps_a_pair_that_still_overlaps() -> None:
    score = TrackingScore()
    score.add({1: box_at(100)}, {7: box_at(100)})
    score.add({1: box_at(100)}, {7: box_at(108), 8: box_at(100)})
    assert score.result()["switches"] == 0


def test_poses_distinguish_people_in_the_same_place() -> None:
    def pair(swapped: bool) -> People:
        boxes = [box_at(200, 200, 60, 100), box_at(206, 200, 60, 100)]
        detections = people(boxes)
        detections.keypoints[0, :, 0] = 185 + 0.1 * detections.keypoints[0, :, 0] - 20  # one leans to the left
        detections.keypoints[1, :, 0] = 215 + 0.1 * detections.keypoints[1, :, 0] - 20
        if swapped:  # the boxes jump by less than the people differ
            detections.boxes[:] = detections.boxes[::-1]
        return detections

    tracker = Tracker(TrackerConfig(duplicate_iou=0.99))
    first = {p.id: p.keypoints[0, 0] for p in tracker.update(pair(False), 0.0)}
    second = {p.id: p.keypoints[0, 0] for p in tracker.update(pair(True), 0.1)}
    assert len(first) == 2
    assert second == pytest.approx(first, abs=1)


def test_carried_boxes_are_where_people_are_looked_for_and_are_no_detections() -> None:
    """Two who turn round between two looks of the network, 0.8 s apart: velocities would swap them."""
    tracker = Tracker()
    for step in range(4):
        seen = tracker.update(people([box_at(100 + 40 * step), box_at(500 - 40 * step)]), 0.1 * step)
    first, right = seen
    back = [replace(first, box=box_at(150)), replace(right, box=box_at(450))]
    tracked = tracker.update(people([box_at(452), box_at(152)]), 1.1, carried=back)
    assert {p.id: int(p.box[0] + 20) for p in tracked} == {first.id: 152, right.id: 452}
    carried_on = tracker.update(people([box_at(452)]), 1.2, carried=[replace(first, box=box_at(160)), *tracked[1:]])
    assert carried_on[0].id == first.id
    assert carried_on[0].coasting, "carried, but not seen"
    assert carried_on[0].missed_s == pytest.approx(0.1)
    assert carried_on[0].box[0] + 20 == pytest.approx(160, abs=15)


def test_without_carried_boxes_nothing_is_different() -> None:
    one, other = Tracker(), Tracker()
    for step in range(6):
        seen = people([box_at(100 + 9 * step), box_at(500 - 14 * step)][: 1 + step % 2])
        for a, b in zip(one.update(seen, 0.1 * step), other.update(seen, 0.1 * step, carried=())):
            assert a.id == b.id
            assert (a.box == b.box).all()


def test_another_network_updates_existing_tracks_and_starts_none() -> None:
    tracks = Tracker().update(people([box_at(100, 200), box_at(300, 200)]), 0.0)
    detections = people([box_at(305, 200), box_at(600, 200)])
    (person,) = match_people(detections, tracks)
    assert person.id == tracks[1].id
    assert person.box.tolist() == pytest.approx(box_at(305, 200).tolist())
    assert (person.coasting, person.velocity.tolist()) == (False, tracks[1].velocity.tolist())
    assert match_people(detections, []) == match_people(People.empty(), tracks) == []
