"""Frames are told apart, ordered and timed whatever their stamps are."""

from __future__ import annotations

import pickle
from typing import List, Sequence, Tuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload.models.people import People
from edge_offload.perception.agreement import boxes_drop
from edge_offload.perception.carry.flow import FlowCarrier
from edge_offload.perception.timeline import (
    BACKWARD,
    FUTURE,
    JUMP,
    PAST,
    SLOW,
    STANDING,
    ZERO,
    Instant,
    Timeline,
    stamp_of,
)
from edge_offload.perception.tracking import TrackedPerson, Tracker
from edge_offload.runtime.carrying import NONE, Carrying, FrameLoop

SECOND = 10**9
FRAME = SECOND // 10
BASE = 1_700_000_000 * SECOND
BOX = (50.0, 30.0, 80.0, 90.0)


def instants(stamps: Sequence[int], step_s: float = 0.1) -> List[Instant]:
    timeline = Timeline()
    return [timeline.make_instant(stamp, 100.0 + step_s * number) for number, stamp in enumerate(stamps)]


def steps_of(timed: Sequence[Instant]) -> List[float]:
    return [(after - before) * 1e-9 for before, after in zip(timed, timed[1:])]


@pytest.mark.parametrize("step_s", [0.001, 0.1, 3.0])
def test_plausible_stamps_are_used_unchanged_at_any_frame_rate(step_s: float) -> None:
    stamps = [BASE + number * FRAME + number % 3 for number in range(40)]
    timed = instants(stamps, step_s)
    assert [int(instant) for instant in timed] == stamps
    assert [instant.number for instant in timed] == list(range(1, 41))
    assert {(instant.recording, instant.fault) for instant in timed} == {(0, "")}


@pytest.mark.parametrize("stamp", [0, BASE])
def test_stamps_that_stand_leave_the_time_to_the_arrivals(stamp: int) -> None:
    timed = instants([stamp] * 20)
    assert steps_of(timed)[1:] == pytest.approx([0.1] * 18)
    assert {instant.fault for instant in timed[1:]} == {STANDING if stamp else ZERO}
    assert not any(instant.has_valid_stamp for instant in timed[1:])
    assert {stamp_of(instant) for instant in timed} == {stamp}


def test_a_frame_out_of_order_is_one_frame_and_no_recording() -> None:
    stamps = [BASE + number * FRAME for number in range(30)]
    stamps[10] = stamps[9] - SECOND // 500
    timed = instants(stamps)
    assert timed[10].fault == BACKWARD
    assert timed[10].has_valid_stamp
    assert {instant.recording for instant in timed} == {0}
    assert [int(instant) for instant in timed[11:]] == stamps[11:]


@pytest.mark.parametrize("off_s", [-3600, -2, 2, 3600])
def test_one_stamp_that_is_far_off_moves_nothing(off_s: int) -> None:
    stamps = [BASE + number * FRAME for number in range(60)]
    stamps[10] += off_s * SECOND
    timed = instants(stamps)
    assert [instant.fault for instant in timed] == ["" if number != 10 else JUMP for number in range(60)]
    assert {instant.recording for instant in timed} == {0}
    assert steps_of(timed) == pytest.approx([0.1] * 59)


def test_a_clock_that_is_set_forward_goes_on() -> None:
    stamps = [BASE + number * FRAME + (3600 * SECOND if number >= 20 else 0) for number in range(60)]
    timed = instants(stamps)
    assert [instant.fault for instant in timed].count(JUMP) == 1
    assert steps_of(timed) == pytest.approx([0.1] * 59)
    assert {instant.recording for instant in timed} == {0}


@pytest.mark.parametrize("pause_s", [0.1, 5.0])
def test_a_replayed_recording_is_a_new_one(pause_s: float) -> None:
    timeline, timed = Timeline(), []
    arrival_s = 10.0
    for _ in range(3):
        for number in range(100):
            timed.append(timeline.make_instant(BASE + number * FRAME, arrival_s))
            arrival_s += 0.1
        arrival_s += pause_s - 0.1
    late = 0 if pause_s > 1 else 1
    assert [instant.recording for instant in timed] == [0] * (100 + late) + [1] * 100 + [2] * (100 - late)
    assert all(before < after for before, after in zip(timed, timed[1:]))
    assert not timeline.fault_counts, "nothing is wrong with a recording that is played again"
    assert steps_of(timed)[110:190] == pytest.approx([0.1] * 80)


def test_a_device_clock_that_wraps_is_no_recording() -> None:
    """RealSense's HARDWARE_CLOCK counts microseconds in 32 bits: it begins again every 72 minutes."""
    turn = 2**32 * 1000
    stamps = [(turn - 3 * SECOND + 12_345 + number * FRAME) % turn for number in range(60)]
    timed = instants(stamps)
    assert {instant.recording for instant in timed} == {0}
    assert [instant.fault for instant in timed if instant.fault] == [JUMP]
    assert steps_of(timed) == pytest.approx([0.1] * 59)


def test_a_clock_of_the_wrong_unit_that_hardly_goes_on_leaves_the_time_to_the_arrivals() -> None:
    """Microseconds that were written as nanoseconds: nobody would ever be forgotten."""
    timed = instants([12 * SECOND + number * FRAME // 1000 for number in range(40)])
    assert {instant.fault for instant in timed[1:]} == {SLOW}
    assert steps_of(timed)[1:] == pytest.approx([0.1] * 38)
    assert {instant.recording for instant in timed} == {0}


def test_a_stepped_recording_uses_its_time() -> None:
    timed = instants([BASE + number * FRAME // 10 for number in range(40)], step_s=5.0)
    assert {instant.fault for instant in timed} == {""}
    assert steps_of(timed) == pytest.approx([0.01] * 39)


def test_stamps_ahead_of_the_clock_are_reported_and_usable_for_ages() -> None:
    timeline = Timeline()
    timed = [timeline.make_instant(BASE + n * FRAME, 1.0 + 0.1 * n, BASE + n * FRAME - 2 * SECOND) for n in range(5)]
    assert {instant.fault for instant in timed} == {FUTURE}
    assert not any(instant.has_valid_stamp for instant in timed)
    assert steps_of(timed) == pytest.approx([0.1] * 4)
    assert timeline.fault_counts == {FUTURE: 5}


@pytest.mark.parametrize("first_stamp", [SECOND, 5000 * SECOND, BASE - 3600 * SECOND])
def test_stamps_far_before_the_clock_are_reported_and_usable_for_ages_and_tf_of_that_clock(first_stamp: int) -> None:
    """A LiDAR that counts from its start, or a bag that is played without --clock: tf may have the same stamps."""
    timeline = Timeline()
    timed = [timeline.make_instant(first_stamp + n * FRAME, 1.0 + 0.1 * n, BASE + n * FRAME) for n in range(5)]
    assert {instant.fault for instant in timed} == {PAST}
    assert all(instant.has_valid_stamp for instant in timed)
    assert [int(instant) for instant in timed] == [first_stamp + n * FRAME for n in range(5)]
    assert timeline.fault_counts == {PAST: 5}


@pytest.mark.parametrize("late_s", [9, 2 * 86400, 3 * 365 * 86400])
def test_late_frames_and_recordings_are_no_fault(late_s: int) -> None:
    timeline = Timeline()
    timed = [
        timeline.make_instant(BASE + n * FRAME, 1.0 + 0.1 * n, BASE + n * FRAME + late_s * SECOND) for n in range(5)
    ]
    assert {instant.fault for instant in timed} == {""}


def test_a_gap_is_measured_by_stamps_even_for_frames_in_a_burst() -> None:
    timeline = Timeline()
    timed = [timeline.make_instant(BASE + n * FRAME, 1.0 + 0.1 * n) for n in range(20)]
    # the link stood for five seconds; of what was sent meanwhile the oldest and the newest come
    timed += [timeline.make_instant(BASE + 20 * FRAME, 8.0), timeline.make_instant(BASE + 70 * FRAME, 8.001)]
    assert steps_of(timed)[-2:] == pytest.approx([0.1, 5.0])
    assert not timeline.fault_counts


def test_an_instant_is_the_same_after_it_was_pickled() -> None:
    instant = Instant(5, 3, 2, 1, JUMP)
    unpickled = pickle.loads(pickle.dumps(instant))
    assert (unpickled, unpickled.stamp_ns, unpickled.number, unpickled.recording, unpickled.fault) == (5, 3, 2, 1, JUMP)
    assert stamp_of(7) == 7


#: What a driver may write, given the true time and the stamp before.
WRITTEN = st.lists(
    st.one_of(
        st.tuples(st.just("true"), st.just(0.0)),
        st.tuples(st.just("zero"), st.just(0.0)),
        st.tuples(st.just("standing"), st.just(0.0)),
        st.tuples(st.just("back"), st.floats(0.001, 0.5)),
        st.tuples(st.just("future"), st.sampled_from([0.3, 1.0, 5.0, 3600.0])),
        st.tuples(st.just("past"), st.sampled_from([2.0, 3600.0])),
    ),
    min_size=5,
    max_size=50,
)


#: Where the driver's clock begins: at the epoch's beginning, or when the device was switched on.
FIRST_STAMPS = st.sampled_from([BASE, SECOND, 12 * SECOND + 345])
#: By how much frames come late, in seconds.
LATE = st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.05, 0.1, 0.2]), min_size=50, max_size=50)


def stamps_of(written: Sequence[Tuple[str, float]], first_stamp: int) -> List[int]:
    """Clocks are wrong for five frames at most: for longer it may be a recording that is played again."""
    stamps: List[int] = []
    wrong = 0
    for number, (kind, off_s) in enumerate(written):
        true, before = first_stamp + number * FRAME, stamps[-1] if stamps else first_stamp
        wrong = wrong + 1 if kind in ("future", "past") else 0
        kind, off = "true" if wrong > 5 else kind, round(off_s * SECOND)
        stamps.append(
            {
                "true": true, "zero": 0, "standing": before, "back": max(0, before - off), "future": true + off,
                # twice in a row, that is a clock that was set back, or a recording that is played again
                "past": true if number and written[number - 1][0] == "past" else max(0, true - off),
            }[kind]
        )  # fmt: skip
    return stamps


def arrived(stamps: Sequence[int], late: Sequence[float]) -> List[Instant]:
    """Instants of frames that are taken every 0.1 s, come late, and in order."""
    timeline, timed, arrival_s = Timeline(), [], 0.0
    for number, stamp in enumerate(stamps):
        arrival_s = max(arrival_s + 1e-4, 100.0 + 0.1 * number + late[number])
        timed.append(timeline.make_instant(stamp, arrival_s))
    return timed


def people(boxes: Sequence[Sequence[float]]) -> People:
    count = len(boxes)
    return People(np.array(boxes, np.float32).reshape(count, 4), np.ones(count), np.zeros((count, 17, 3), np.float32))


@settings(max_examples=200, deadline=None)
@given(WRITTEN, FIRST_STAMPS, LATE)
def test_who_stands_still_has_one_id_in_every_frame_whatever_the_stamps(
    written: List[Tuple[str, float]], first_stamp: int, late: List[float]
) -> None:
    tracker, recording = Tracker(), 0
    timed = arrived(stamps_of(written, first_stamp), late)
    assert all(before < after for before, after in zip(timed, timed[1:]))
    for instant in timed:
        if instant.recording != recording:
            tracker.reset()
            recording = instant.recording
        (person,) = tracker.update(people([BOX]), instant.seconds, (128, 96))
        assert person.id == 1
        assert not person.coasting


@settings(max_examples=30, deadline=None)
@given(WRITTEN, FIRST_STAMPS, LATE)
def test_who_stands_still_is_carried_to_every_frame_whatever_the_stamps(
    written: List[Tuple[str, float]], first_stamp: int, late: List[float]
) -> None:
    """The network takes every third frame, and two frames long."""
    picture = np.random.default_rng(0).integers(0, 255, (96, 128, 3), np.uint8)
    tracker, flow, departed, recording = Tracker(), FlowCarrier(), [], 0
    carrying: Carrying[List[TrackedPerson]] = Carrying(flow, lambda a, b: boxes_drop(boxes(a), boxes(b)))
    loop = FrameLoop(carrying, lambda frame, along: departed.append((frame, along)), lambda: 0.0)
    timed = arrived(stamps_of(written, first_stamp), late)
    for number, instant in enumerate(timed):
        another = instant.recording != recording
        recording = instant.recording
        if another:
            flow.clear_frames()
            tracker.reset()
        follows = flow.add_frame(instant, picture) and not another
        loop.arrived(number, instant, 0.0, follows)
        source = timed[number - 2]
        if number % 3 == 2 and not loop.outdated(source):
            before = carrying.carried(source) or []
            loop.add_result(tracker.update(people([BOX]), source.seconds, (128, 96), before), source, 0.0)
    loop.flush()
    assert [frame for frame, _ in departed] == list(range(len(timed)))
    for number, along in departed[3:]:
        assert along.origin != NONE, number
        assert [person.id for person in along.result] == [1], number
        assert not along.result[0].coasting
        assert stamp_of(along.source) == timed[along.source.number - 1].stamp_ns


def boxes(timed: Sequence[TrackedPerson]) -> np.ndarray:
    return np.array([person.box for person in timed]).reshape(-1, 4)
