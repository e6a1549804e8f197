"""Choosing a target and following it: steady choices, bounded commands, standing still when in doubt."""

from __future__ import annotations

import math
from typing import List, Optional, Tuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload.errors import BadInput
from edge_offload.perception.follower import Command, FollowerConfig, PersonFollower
from edge_offload.perception.geometry import Position
from edge_offload.perception.target import TargetSelector
from edge_offload.perception.tracking import TrackedPerson
from tests.perception.scenes import box_at, keypoints_in


def person(
    number: int, height: float = 100.0, age_s: float = 1.0, distance: Optional[float] = None, coasting: bool = False
) -> TrackedPerson:
    box = box_at(100.0 * number, 200, 0.4 * height, height)
    position = None if distance is None else Position(np.array([0, 0, distance]), np.eye(3), "depth")
    return TrackedPerson(
        number, box, 0.9, keypoints_in(box), np.zeros(2, np.float32), age_s, 0.0, coasting, position
    )  # fmt: skip


def test_each_rule_selects_its_target() -> None:
    crowd = [person(1, 100, 9.0, 8.0), person(2, 150, 1.0, 6.0), person(3, 120, 2.0, 4.0), person(4, 90, 20.0)]
    for rule, chosen in (("largest", 2), ("nearest", 3), ("longest", 4)):
        selected = TargetSelector(rule).select(crowd, 0.0)
        assert selected is not None
        assert selected.id == chosen
    expected = TargetSelector("id", 1).select(crowd, 0.0)
    assert expected is not None
    assert expected.id == 1
    assert TargetSelector("id", 77).select(crowd, 0.0) is None
    tallest = TargetSelector("nearest").select([person(1, 100), person(2, 150)], 0.0)
    assert tallest is not None
    assert tallest.id == 2


def test_the_target_changes_only_for_one_who_is_clearly_better_for_a_while() -> None:
    selector = TargetSelector("largest", advantage=1.3, dwell_s=0.5)
    selector.select([person(1, 100), person(2, 90)], 0.0)
    for frame in range(1, 20):  # flicker about equal sizes
        selected = selector.select([person(1, 100), person(2, 103 + frame % 3)], frame * 0.1)
        assert selected is not None
        assert selected.id == 1
    chosen = []
    for frame in range(20, 30):
        selected = selector.select([person(1, 100), person(2, 150)], frame * 0.1)
        assert selected is not None
        chosen.append(selected.id)
    assert chosen == [1] * 5 + [2] * 5


def test_a_hidden_target_is_waited_for_then_replaced() -> None:
    selector = TargetSelector("largest", hold_s=1.0)
    selector.select([person(1, 200), person(2, 90)], 0.0)
    assert selector.select([person(2, 90)], 0.5) is None
    back = selector.select([person(1, 80), person(2, 90)], 0.9)
    assert back is not None
    assert back.id == 1
    assert selector.select([person(2, 90)], 1.5) is None
    other = selector.select([person(2, 90)], 2.0)
    assert other is not None
    assert other.id == 2


def test_a_guess_is_never_selected() -> None:
    assert TargetSelector().select([person(1, coasting=True)], 0.0) is None
    assert TargetSelector().select([], 0.0) is None


def test_a_loop_of_the_recording_restarts_the_selection() -> None:
    selector = TargetSelector(hold_s=5.0)
    selector.select([person(1)], 100.0)
    selected = selector.select([person(2)], 50.0)
    assert selected is not None
    assert selected.id == 2


def test_selector_misuse_is_refused() -> None:
    with pytest.raises(BadInput, match="use one of"):
        TargetSelector("prettiest")
    with pytest.raises(BadInput, match="needs the id"):
        TargetSelector("id")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def drive(
    follower: PersonFollower, clock: Clock, target: Optional[Tuple[float, float]], seconds: float
) -> List[Command]:
    """Commands at 20 Hz while ``target`` is seen at 10 Hz."""
    commands = []
    for step in range(round(seconds * 20)):
        clock.now += 0.05
        if step % 2 == 0:
            follower.add_sighting(target, clock.now)
        commands.append(follower.compute_command())
    return commands


def test_the_follower_drives_to_its_distance_and_stops() -> None:
    clock = Clock()
    follower = PersonFollower(clock=clock)
    x = 5.0
    for _ in range(400):
        clock.now += 0.05
        follower.add_sighting((x, 0.0), clock.now)
        command = follower.compute_command()
        assert command.linear >= 0
        x -= command.linear * 0.05
    assert x == pytest.approx(1.7, abs=0.05)
    assert (command.linear, command.angular, command.reason) == (0.0, 0.0, "at the target")


def test_it_turns_before_it_drives_and_never_backs_up() -> None:
    clock = Clock()
    follower = PersonFollower(clock=clock)
    turning = drive(follower, clock, (0.0, 4.0), 1.0)
    assert all(command.linear == 0 for command in turning)
    assert turning[-1].angular == pytest.approx(1.2)
    assert drive(follower, clock, (-3.0, -0.5), 2.0)[-1].angular == pytest.approx(-1.2)
    assert all(command.linear >= 0 for command in drive(follower, clock, (0.5, 0.0), 1.0))


def test_it_stops_when_the_target_is_lost_and_when_results_stop() -> None:
    clock = Clock()
    follower = PersonFollower(clock=clock)
    assert follower.compute_command().reason == "no results yet"
    assert drive(follower, clock, (5.0, 0.0), 3.0)[-1].linear == pytest.approx(0.8)
    lost = drive(follower, clock, None, 2.0)
    assert lost[int(0.8 * 20)].linear == pytest.approx(0.8), "a short occlusion is bridged"
    assert (lost[-1].linear, lost[-1].reason) == (0.0, "target is lost")
    drive(follower, clock, (5.0, 0.0), 3.0)
    for _ in range(13):  # silence
        clock.now += 0.05
        assert follower.compute_command().linear > 0
    for _ in range(12):
        clock.now += 0.05
        silent = follower.compute_command()
    assert (silent.linear, silent.angular, silent.reason) == (0.0, 0.0, "results are stale")


def test_old_frames_stop_the_follower() -> None:
    clock = Clock()
    follower = PersonFollower(clock=clock)
    drive(follower, clock, (5.0, 0.0), 2.0)
    taken = clock.now
    for _ in range(60):
        clock.now += 0.05
        follower.add_sighting((5.0, 0.0), taken)
        last = follower.compute_command()
    assert last.linear == 0
    assert last.reason == "results are stale"


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 0.5),
            st.one_of(st.none(), st.tuples(st.floats(allow_nan=True), st.floats(-10, 10))),
            st.booleans(),
        ),
        max_size=60,
    )
)
def test_whatever_it_sees_limits_hold(events: list) -> None:
    clock, config = Clock(), FollowerConfig()
    follower, before = PersonFollower(config, clock), Command(0.0, 0.0, "")
    for step, target, seen in events:
        clock.now += step
        if seen:
            follower.add_sighting(target, clock.now)
        command = follower.compute_command()
        span = min(step, 0.2) + 1e-9
        assert 0 <= command.linear <= config.max_linear + 1e-9
        assert abs(command.angular) <= config.max_angular + 1e-9
        assert command.linear - before.linear <= config.max_linear_acceleration * span + 1e-9
        assert before.linear - command.linear <= config.stop_deceleration * span + 1e-9
        assert abs(command.angular - before.angular) <= config.max_angular_acceleration * span + 1e-9
        assert math.isfinite(command.linear + command.angular)
        before = command


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(BadInput, match="max_linear"):
        FollowerConfig(max_linear=-1)


def test_a_late_result_does_not_replace_a_newer_one() -> None:
    clock = Clock()
    follower = PersonFollower(clock=clock)
    clock.now = 10.0
    follower.add_sighting((5.0, 0.0), 9.9)
    follower.add_sighting((0.5, 3.0), 9.5)
    follower.compute_command()
    clock.now = 10.1
    command = follower.compute_command()
    assert command.linear > 0
    assert command.angular == 0
