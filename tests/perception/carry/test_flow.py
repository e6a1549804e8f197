"""People carried along by flow: pictures whose motion is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload.errors import BadInput
from edge_offload.perception.assignment import iou_matrix
from edge_offload.perception.carry.flow import FlowCarrier, FlowConfig, masked_median
from tests.perception.carry.moving import SIZE, person, picture

FRAME = 100_000_000


def at(start, velocity, growth, number):
    """Box after ``number`` frames at ``velocity`` px a frame, grown about its centre."""
    centre = (np.array(start[:2]) + start[2:]) / 2 + np.array(velocity) * number
    half = (np.array(start[2:]) - start[:2]) / 2 * growth**number
    return [*(centre - half), *(centre + half)]


def seen(carrier, boxes_by_frame, wall=(0.0, 0.0)):
    for number, boxes in enumerate(boxes_by_frame):
        carrier.add_frame(number * FRAME, picture(boxes, (wall[0] * number, wall[1] * number)))


@settings(max_examples=15)
@given(
    st.floats(-6, 6), st.floats(-4, 4), st.floats(0.98, 1.02), st.tuples(st.floats(-3, 3), st.floats(-2, 2)),
    st.integers(2, 6),
)  # fmt: skip
def test_boxes_and_keypoints_follow_whatever_the_wall_does(vx, vy, growth, wall, frames):
    start = [140.0, 70.0, 180.0, 150.0]
    boxes = [at(start, (vx, vy), growth, number) for number in range(frames + 1)]
    carrier = FlowCarrier()
    seen(carrier, [[box] for box in boxes], wall)
    before = person(start)
    (after,) = carrier.carry([before], 0, frames * FRAME)
    assert iou_matrix(after.box, np.array(boxes[-1]))[0, 0] > 0.8
    assert not after.coasting
    assert after.missed_s == pytest.approx(frames / 10)
    relative = (after.keypoints[:, :2] - after.box[:2]) / (after.box[2:] - after.box[:2])
    same = (before.keypoints[:, :2] - before.box[:2]) / (before.box[2:] - before.box[:2])
    assert np.allclose(relative, same, atol=1e-3)
    assert np.abs(after.velocity / 10 - [vx, vy]).max() < 1.0 + 0.1 * max(abs(vx), abs(vy))


def test_carrying_step_by_step_equals_one_step_and_lists_passed_frames():
    start = [100.0, 70.0, 140.0, 150.0]
    boxes = [[at(start, (3, 1), 1.0, number)] for number in range(6)]
    once, steps = FlowCarrier(), FlowCarrier()
    seen(once, boxes)
    result = [person(start)]
    for number, in_frame in enumerate(boxes):
        steps.add_frame(number * FRAME, picture(in_frame))
        stepped = steps.carry(result, 0, number * FRAME)
    (all_at_once,) = once.carry(result, 0, 5 * FRAME)
    assert np.allclose(stepped[0].box, all_at_once.box, atol=1e-4)
    assert np.allclose(steps.carry(result, 0, 2 * FRAME)[0].box, once.carry(result, 0, 2 * FRAME)[0].box, atol=1e-4)


@settings(max_examples=20)
@given(st.permutations([3, 8, 9, 10, 11]))
def test_a_result_may_be_requested_in_frames_in_any_order(targets):
    """Frames wait for what comes late while a result is caught up with newer ones, in few hops."""
    start = [100.0, 70.0, 140.0, 150.0]
    carrier = FlowCarrier(FlowConfig(hops=3))
    seen(carrier, [[at(start, (3, 0), 1.0, number)] for number in range(12)])
    result = [person(start)]
    for number in targets:
        (moved,) = carrier.carry(result, 0, number * FRAME)
        assert moved.box[0] == pytest.approx(start[0] + 3 * number, abs=1.5)


def test_two_people_who_cross_preserve_their_ids_and_departed_ones_are_removed():
    first, right = [60.0, 70.0, 100.0, 150.0], [200.0, 80.0, 240.0, 160.0]
    paths = [[at(first, (-12, 0), 1.0, number), at(right, (4, 0), 1.0, number)] for number in range(9)]
    carrier = FlowCarrier()
    seen(carrier, paths)
    result = [person(first, 7), person(right, 9)]
    assert [p.id for p in carrier.carry(result, 0, 2 * FRAME)] == [7, 9]
    assert [p.id for p in carrier.carry(result, 0, 8 * FRAME)] == [9]


def test_where_flow_fails_velocity_goes_on_until_the_person_is_lost():
    start = [140.0, 70.0, 180.0, 150.0]
    carrier = FlowCarrier()
    plain = np.full((SIZE[1], SIZE[0], 3), 128, np.uint8)
    for number in range(20):
        carrier.add_frame(number * FRAME, plain)
    result = [person(start, velocity=(20.0, 0.0))]
    (after,) = carrier.carry(result, 0, 5 * FRAME)
    assert after.coasting
    assert after.box[0] == pytest.approx(150.0)
    assert carrier.carry(result, 0, 19 * FRAME) == []


def test_somebody_hidden_goes_on_at_their_velocity_whatever_moves_before_them():
    start = [140.0, 70.0, 180.0, 150.0]
    carrier = FlowCarrier()
    seen(carrier, [[at(start, (-5, 0), 1.0, number)] for number in range(4)])
    (after,) = carrier.carry([person(start, velocity=(30.0, 0.0), coasting=True)], 0, 3 * FRAME)
    assert after.coasting
    assert after.box[0] == pytest.approx(149.0)


def test_a_picture_of_another_size_restarts_the_flow_with_a_notice():
    start = [140.0, 70.0, 180.0, 150.0]
    carrier = FlowCarrier()
    assert carrier.add_frame(0, picture([start]))
    assert not carrier.add_frame(FRAME, picture([start], size=(640, 480)))
    assert carrier.carry([person(start)], 0, FRAME) == []
    assert "size" in carrier.degraded


def test_backward_stamps_restart_the_flow_and_a_target_before_the_source_is_refused():
    start = [140.0, 70.0, 180.0, 150.0]
    carrier = FlowCarrier()
    carrier.add_frame(5 * FRAME, picture([start]))
    assert not carrier.add_frame(FRAME, picture([start]))
    with pytest.raises(BadInput, match="back in time"):
        carrier.carry([person(start)], 5 * FRAME, FRAME)


def test_a_frame_outside_the_ring_costs_the_flow_not_the_result():
    start = [140.0, 70.0, 180.0, 150.0]
    carrier = FlowCarrier(FlowConfig(limit_bytes=3 * SIZE[0] * SIZE[1]))
    for number in range(8):
        carrier.add_frame(number * FRAME, picture([start]))
    (after,) = carrier.carry([person(start, velocity=(10.0, 0.0))], 0, 7 * FRAME)
    assert after.box[0] == pytest.approx(145.0, abs=1.0)
    assert "not held" in carrier.degraded


def test_many_frames_are_caught_up_in_few_hops():
    start = [100.0, 70.0, 140.0, 150.0]
    boxes = [[at(start, (1, 0), 1.0, number)] for number in range(31)]
    hops = []
    for limit in (1000, 10):
        carrier = FlowCarrier(FlowConfig(hops=limit))
        seen(carrier, boxes)
        (after,) = carrier.carry([person(start)], 0, 30 * FRAME)
        assert iou_matrix(after.box, np.array(boxes[30][0]))[0, 0] > 0.7
        hops.append(carrier.hops)
    assert hops == [30, 10]


@pytest.mark.parametrize(
    "pixels", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.float32), np.zeros((0, 4, 3), np.uint8)]
)
def test_what_is_no_picture_is_refused(pixels):
    with pytest.raises(BadInput, match="uint8"):
        FlowCarrier().add_frame(0, pixels)


@given(st.integers(0, 10_000))
def test_masked_median_is_numpys(seed):
    random = np.random.default_rng(seed)
    values, mask = random.normal(size=(6, 9, 2)), random.random((6, 9)) < 0.6
    medians = masked_median(values, mask)
    for row in range(6):
        expected = np.median(values[row][mask[row]], axis=0) if mask[row].any() else [0, 0]
        assert np.allclose(medians[row], expected)
