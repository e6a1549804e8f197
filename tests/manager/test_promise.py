"""Which frames a robot with a promise sends, and when it is on its own again."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import List, Optional, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_offload.errors import BadInput
from edge_offload.manager.forecast import Forecast
from edge_offload.manager.policy import Situation
from edge_offload.manager.promise import UNKNOWN, PromisePolicy
from edge_offload.manager.tuning import ENOUGH, RECENT_S, REPEAT_S
from edge_offload.mode import Mode
from edge_offload.protocol.promises import SETTLE_S, PromiseReport, PromiseRequest, SlotSchedule

FRAME_S = 1 / 30


class Camera:
    """Frames at their times; the policy is asked about each."""

    def __init__(self, bound: float = 0.05, begin: float = 50.0) -> None:
        self.policy = PromisePolicy(bound)
        self.begin, self.count = begin, 0

    @property
    def now(self) -> float:
        return self.begin + self.count * FRAME_S

    def frame(self, jitter: float = 0.0) -> Optional[PromiseReport]:
        captured = self.now + jitter
        self.count += 1
        return self.policy.report_frame(captured, captured) if self.policy.wants_frame(captured, captured) else None

    def promised(self) -> PromiseRequest:
        for _ in range(ENOUGH + 1):
            assert self.policy.wants_frame(self.now, self.now), "on its own every frame may go"
            self.count += 1
        request = self.policy.make_request(self.now, 3)
        assert request is not None
        assert self.policy.make_request(self.now, 3) is None, "once"
        self.policy.record_admission(self.now)
        return request

    def give_turns(self, number: int, *frames: int) -> None:
        self.policy.follow_schedule(
            self.now, SlotSchedule(number, tuple((frame, 0.1 * at) for at, frame in enumerate(frames)))
        )


def test_turns_are_followed_by_the_nearest_frame() -> None:
    camera = Camera()
    request = camera.promised()
    assert (request.frame, request.handle, request.batched) == (0, 3, True)
    assert request.frame_interval == pytest.approx(FRAME_S)
    assert request.age == pytest.approx(FRAME_S)
    camera.give_turns(1, 3, 7, 8)
    sent = [report.frame for report in (camera.frame() for _ in range(10)) if report is not None]
    assert sent == [3, 7, 8]
    assert (camera.policy.followed, camera.policy.missed) == (3, 0)


@given(st.integers(0, 10**6), st.floats(0, 0.3))
def test_frames_rise_and_are_near_whatever_the_camera_drops(seed: int, dropped: float) -> None:
    draw = random.Random(seed)
    camera = Camera()
    camera.promised()
    base = camera.now - FRAME_S
    turns = sorted(draw.sample(range(2, 12), 4))
    camera.give_turns(1, *turns)
    sent: List[Tuple[int, float]] = []
    for _ in range(12):
        if draw.random() < dropped:
            camera.count += 1
            continue
        jitter = draw.uniform(-0.2, 0.2) * FRAME_S
        captured = camera.now + jitter
        report = camera.frame(jitter)
        if report is not None:
            sent.append((report.frame, (captured - base) / FRAME_S))
    frames = [frame for frame, _ in sent]
    assert frames == sorted(set(frames))
    assert set(frames) <= set(turns)
    assert all(-0.75 <= number - frame <= 1.75 for frame, number in sent)
    assert dropped or frames == turns


def test_a_silent_server_leaves_the_robot_in_local_mode() -> None:
    camera = Camera()
    camera.promised()
    camera.give_turns(1, 40)
    while camera.now < 50.0 + (ENOUGH + 1) * FRAME_S + REPEAT_S - FRAME_S:
        assert not camera.policy.wants_frame(camera.now, camera.now)
        camera.count += 1
    camera.count += 3
    assert camera.policy.wants_frame(camera.now, camera.now)
    assert "has sent no slots for" in camera.policy.fallback_reason(camera.now)
    camera.give_turns(2, 90)
    assert not camera.policy.wants_frame(camera.now, camera.now), "it is followed again"


def test_plans_of_before_and_of_another_time_are_not_followed() -> None:
    camera = Camera()
    camera.promised()
    camera.give_turns(5, 2)
    camera.give_turns(5, 1)
    camera.give_turns(4, 1)
    camera.give_turns(6, 10**9)
    assert camera.policy.outdated == 3
    assert all(camera.frame() is None for _ in range(4)), "of plan 6, nothing is of now"
    camera.policy.end_promise(camera.now, "over")
    camera.give_turns(7, 9)
    assert camera.policy.fallback_reason(camera.now) == "over"


def test_a_refusal_is_reported_and_retried_later() -> None:
    camera = Camera()
    camera.promised()
    camera.policy.end_promise(camera.now, "full: 0.08 could be promised now")
    situation = Situation(camera.now, {Mode.SERVER: Forecast(0.1)})
    decision = camera.policy.decide(situation)
    assert decision.mode is Mode.SERVER
    assert decision.reason == "on its own: full: 0.08 could be promised now"
    assert camera.policy.make_request(camera.now, 3) is None
    assert camera.policy.make_request(camera.now + RECENT_S, 3) is not None
    camera.policy.record_admission(camera.now)
    assert camera.policy.describe(camera.now).startswith("promised: at most 0.05")


def test_without_a_server_frames_run_locally() -> None:
    decision = PromisePolicy(0.1).decide(Situation(0.0, {}))
    assert (decision.mode, decision.reason) == (Mode.LOCAL, "this robot has no server")


def test_another_frame_rate_is_reported_by_a_new_request() -> None:
    camera = Camera()
    camera.promised()
    now = camera.now
    for _ in range(ENOUGH + 1):
        now += 2 * FRAME_S
        camera.policy.wants_frame(now, now)
    request = camera.policy.make_request(now, 3)
    assert request is not None
    assert request.frame_interval == pytest.approx(2 * FRAME_S)


def test_estimates_are_reported_with_the_request() -> None:
    camera = Camera()
    for number in range(400):
        stale_s = 0.1 + 0.1 * (number % 5)
        camera.policy.add_comparison(camera.now, stale_s, 0.05 * (1 - math.exp(-stale_s / SETTLE_S)) + 0.3 * stale_s)
    camera.policy.add_comparison(camera.now, math.nan, 0.0)
    camera.policy.add_comparison(camera.now, 0.1, -1.0)
    for number in range(100):
        camera.policy.add_travel_times(0.02 + 0.001 * (number % 10), 0.01)
    camera.policy.add_travel_times(math.inf, 0.0)
    request = camera.promised()
    assert (request.slope, request.flicker) == (pytest.approx(0.01, rel=0.02), pytest.approx(0.05, rel=0.05))
    assert request.noise < 0.01, "these comparisons were not noisy"
    assert 0.027 <= request.up <= 0.029, "as late as nearly all come"
    assert request.down == pytest.approx(0.01)
    camera.give_turns(1, 1)
    assert PromiseReport.parse(camera.frame().to_wire()).slope == pytest.approx(0.01, rel=0.02)  # type: ignore[union-attr]


def test_noise_that_averages_out_is_not_reported() -> None:
    noises = []
    for lasting in (1.0, 0.5):
        camera = Camera()
        camera.policy = PromisePolicy(0.05, habits=replace(UNKNOWN, lasting=lasting))
        for number in range(200):
            camera.policy.add_comparison(camera.now, 0.1, 0.1 + 0.05 * (-1) ** number)
        noises.append(camera.promised().noise)
    assert noises[1] == pytest.approx(noises[0] / 2)
    assert noises[0] == pytest.approx(0.05, rel=0.3)


@pytest.mark.parametrize("bound", [0.0, 1e-9, -1.0, math.nan, 1.5])
def test_bounds_that_cannot_be(bound: float) -> None:
    with pytest.raises(BadInput, match="accuracy"):
        PromisePolicy(bound)
