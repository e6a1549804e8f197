"""When a remote result is late, when the robot begins by itself, and when an attempt is given up."""

from __future__ import annotations

import math
import time
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_offload.link.estimate.estimator import BACKLOG_BYTES
from edge_offload.link.transport.attention import Attention
from edge_offload.manager.forecast import Forecast
from edge_offload.manager.lateness import Lateness, Patience, Tail, TimeoutLimits, Watch, due_s
from edge_offload.manager.tuning import ENOUGH, GIVE_UP_S, POLL_S, SILENCE_S
from edge_offload.mode import Mode

MB = 1_000_000
NO_HURRY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
SECONDS = st.floats(1e-4, 20)
SERVER = Forecast(Mode.SERVER, 0.1, 0.01)
UNKNOWN = Forecast(Mode.SERVER)


def late_after(lateness, forecast=SERVER, local_s=1.0, **more):
    """Seconds after which the robot begins by itself."""
    return lateness.limit_frame(forecast, local_s, now=100.0, **more).hedge_at() - 100.0


def lateness_after(errors_s, **how):
    lateness = Lateness(**how)
    for error_s in errors_s:
        lateness.learn_result(Mode.SERVER, 0.1 + error_s, error_s)
    return lateness


# ------------------------------------------------------------------------------------------------ late by its forecast


def test_a_result_is_late_when_one_frame_in_fifty_was_not_later_than_that():
    calm, wild = lateness_after([0.002] * 64), lateness_after([0.002] * 48 + [0.2] * 16)
    assert late_after(calm) == pytest.approx(0.1 + 0.002 + POLL_S)
    assert late_after(wild) == pytest.approx(0.1 + 0.2 + POLL_S)
    assert late_after(lateness_after([0.002] * 63 + [30.0])) == pytest.approx(late_after(calm)), (
        "one that met an outage"
    )
    assert late_after(lateness_after([0.0] * (ENOUGH - 1))) == pytest.approx(0.2 + POLL_S), (
        "too few to tell: twice as long"
    )


def test_the_wait_is_bounded_by_the_robots_time_beyond_the_forecast():
    assert late_after(lateness_after([5.0] * 64), local_s=0.2) == pytest.approx(0.1 + 0.2)


def test_late_frames_lengthen_the_timeout():
    lateness = Lateness()
    for _ in range(64):
        with lateness.limit_frame(SERVER, 1.0, now=100.0) as late:
            late.note_result(0.1)
    before = late_after(lateness)
    for _ in range(4):
        lateness.limit_frame(SERVER, 1.0, now=100.0).note_result(0.25)
    assert late_after(lateness) > before + 0.1
    for _ in range(64):
        lateness.limit_frame(SERVER, 1.0, now=100.0).note_result(0.1)
    assert late_after(lateness) == pytest.approx(before)


def test_each_mode_is_late_by_its_forecast_errors():
    lateness = lateness_after([0.5] * 64)
    assert late_after(lateness, Forecast(Mode.REPLAY, 0.1, 0.01)) == pytest.approx(0.2 + POLL_S)


@pytest.mark.parametrize(
    ("how", "forecast", "local_s"),
    [({"hedging": False}, SERVER, 1.0), ({}, UNKNOWN, 1.0), ({}, SERVER, 0.0)],
    ids=["no hedging", "no forecast", "nothing known of the robot"],
)
def test_without_a_forecast_the_latest_replies_set_the_timeout(how, forecast, local_s):
    limits = TimeoutLimits(factor=3.0, slack_s=0.05, first_s=2.0)
    assert late_after(Lateness(limits, **how), forecast, local_s) == pytest.approx(2.0)
    assert late_after(lateness_after([0.0] * 16, limits=limits, **how), forecast, local_s) == pytest.approx(0.35)


def test_a_frame_alongside_a_local_computation_has_its_rival_at_once():
    late = Lateness().limit_probe(SERVER, 1.0, now=100.0)
    assert late.hedge_at() == late.doubtful_at == 100.0


# ------------------------------------------------------------------------------------------------------ with a deadline


@pytest.mark.parametrize("hedging", [True, False])
def test_the_robot_starts_in_time_for_a_deadline(hedging):
    lateness = lateness_after([0.02] * 64, hedging=hedging)
    assert late_after(lateness, local_s=0.3, deadline_s=0.425) == pytest.approx(0.125)
    assert late_after(lateness, local_s=0.03, deadline_s=0.05) == pytest.approx(0.02), "only the robot can be in time"
    assert late_after(lateness, local_s=0.8, deadline_s=0.12) > 0.1, "only the server can be in time"


def test_a_slow_robot_with_a_tight_deadline_still_uses_the_server():
    assert math.isinf(due_s(0.1, 0.8, 0.05, 0.05)), "only the server can be in time"
    assert math.isinf(due_s(0.04, 0.8, 0.05, 0.05)), "nobody can, but the server is faster"
    assert due_s(0.04, 0.01, 0.05, 0.05) <= 0.03, "only the robot can"
    assert due_s(0.04, 0.8, math.inf, math.inf) == 0.0, "of which nothing is known cannot be counted on"
    assert math.isinf(due_s(None, 0.8, 0.05, 0.05))


# ------------------------------------------------------------------------------------------ behind the robot's own ones


def test_behind_an_earlier_frame_lateness_counts_from_that_ones_end():
    lateness, first = lateness_after([0.0] * 64), [math.inf, 0.03]
    late = lateness.limit_frame(SERVER, 1.0, now=100.0, behind=lambda: (first[0], first[1]))
    assert math.isinf(late.hedge_at()), "the one before it is not through"
    first[0] = 100.2
    assert late.hedge_at() == pytest.approx(100.2 + 0.03 + POLL_S), "what takes longest of a frame comes after that"
    first[1] = math.nan
    assert late.hedge_at() == pytest.approx(100.2 + 0.1 + POLL_S), "all of it may"
    first[0] = 99.0
    assert late.hedge_at() == pytest.approx(100.1 + POLL_S), "it was the first from its beginning"


def test_a_waiting_frame_is_looked_at_again_only_where_something_may_have_changed():
    lateness, first, now = lateness_after([0.0] * 64), [math.inf], time.monotonic()
    alone = lateness.limit_frame(SERVER, 1.0, now=now + 1.0)
    assert alone.next_check_at() == alone.hedge_at(), "nothing moves: one wake-up"
    behind = lateness.limit_frame(SERVER, 1.0, now=now + 1.0, behind=lambda: (first[0], 0.03))
    assert behind.next_check_at() <= time.monotonic() + POLL_S, "the frame before it may end at any time"
    first[0] = now + 1.2
    assert behind.next_check_at() == behind.hedge_at()


def test_a_link_that_is_watched_is_looked_at_when_it_may_have_stopped():
    watch = Watch(0.2, local_s=1.0)
    limit_s = watch.next_check_s(0.0)
    assert limit_s > 0.2, "it is quiet for as long now and then"
    assert watch.next_check_s(limit_s - 0.05) == pytest.approx(0.05)
    assert watch.next_check_s(2 * limit_s) == POLL_S
    watch.has_stopped(100.0, 0.0, 10 * BACKLOG_BYTES, 0)
    assert watch.next_check_s(0.0) == POLL_S, "bytes are under way: their progress tells"
    watch.has_stopped(100.1, 0.0, 10 * BACKLOG_BYTES, 10 * BACKLOG_BYTES)
    assert watch.next_check_s(0.0) == limit_s


def test_a_deadline_holds_behind_an_earlier_frame_too():
    late = lateness_after([0.0] * 64).limit_frame(SERVER, 0.3, 0.5, 100.0, behind=lambda: (math.inf, 0.03))
    assert late.hedge_at() == pytest.approx(100.2)


# ---------------------------------------------------------------------------------------------- how long an attempt has


def test_an_attempt_with_a_rival_goes_on_and_one_without_is_given_up():
    lateness = lateness_after([0.0] * 16)
    raced, unrivalled = lateness.limit_frame(SERVER, 0.2, now=100.0).budget, lateness.limit_attempt(Mode.SERVER, 0.2)
    assert (raced.use_s, raced.give_up_s) == (pytest.approx(0.35), GIVE_UP_S)
    assert unrivalled.use_s == unrivalled.give_up_s == pytest.approx(0.35)
    patient = Lateness(TimeoutLimits(first_s=30.0, cap_s=60.0)).limit_frame(UNKNOWN, 0.2, now=100.0).budget
    assert patient.give_up_s == 60.0


def test_a_server_is_notified_for_how_long_a_result_is_useful():
    lateness = Lateness(hedging=False)
    assert lateness.limit_frame(UNKNOWN, 0.3, 0.5, 100.0).budget.use_s == pytest.approx(0.2), "then the robot begins"


@NO_HURRY
@given(st.lists(SECONDS, max_size=16), st.one_of(st.none(), SECONDS), SECONDS)
def test_wait_is_bounded_and_leaves_room_for_the_local_result(trips, deadline, local):
    patience = Patience(TimeoutLimits(cap_s=3.0))
    for trip in trips:
        patience.add_round_trip(trip)
    wait = patience.reply_wait_s(deadline, local)
    assert 0 <= wait <= 3.0
    if deadline is not None and deadline - local >= max(trips, default=0.0):
        assert wait <= deadline - local


@NO_HURRY
@given(st.lists(SECONDS, min_size=1, max_size=16))
def test_as_slow_as_lately_is_not_late(trips):
    patience = Patience(TimeoutLimits(cap_s=100.0))
    for trip in trips:
        patience.add_round_trip(trip)
    assert patience.reply_wait_s() >= max(trips)


def test_late_replies_teach_patience():
    patience = Patience()
    patience.add_round_trip(0.01)
    before = patience.reply_wait_s()
    for _ in range(16):
        patience.add_round_trip(0.5)
    assert patience.reply_wait_s() > before
    assert patience.expected_s() == (0.5, 0.5)


# ------------------------------------------------------------------ a link that has stopped, told from one that is slow


def silences(*longest):
    tail = Tail()
    for seconds in longest:
        tail.add_seconds(seconds)
    return tail.limit_s


def test_silence_means_nothing_before_the_link_is_measured():
    assert silences(*[0.0] * (ENOUGH - 1)) == math.inf
    assert not Watch(math.inf, 0.3).has_stopped(5.0, 4.0, 0, 0)


def test_a_stop_of_a_steady_link_is_detected_sooner_than_one_of_a_pausing_link():
    calm, restless = silences(*[0.001] * 64), silences(*([0.001] * 56 + [0.2] * 8))
    assert Watch(calm, 0.3).has_stopped(1.0, 0.05, 0, 0)
    assert not Watch(calm, 0.3).has_stopped(1.0, 0.03, 0, 0)
    assert not Watch(restless, 0.3).has_stopped(1.0, 0.2, 0, 0)


def test_a_single_long_pause_does_not_make_it_patient_for_ever():
    assert silences(*([0.001] * 63 + [2.0])) == 0.001


@pytest.mark.parametrize(("pace", "crawls"), [(20 * MB, False), (1.0 * MB, False), (0.25 * MB, True), (0, True)])
def test_an_upload_that_would_take_longer_than_the_robot_counts_as_stopped(pace, crawls):
    watch, size, stops = Watch(0.0, 0.3), 245_000, []
    for tick in range(10):
        now = 0.01 * tick
        stops.append(watch.has_stopped(now, 0.0, size, min(size, int(pace * now))))
    assert any(stops) is crawls


def test_a_frame_that_is_on_the_server_is_not_taken_for_an_upload_that_stands_still():
    watch = Watch(0.0, 0.3)
    assert not any(watch.has_stopped(0.01 * tick, 0.0, 245_000, 244_000) for tick in range(50))


def test_the_longest_silence_that_ended_is_remembered():
    attention = Attention()
    attention.note_overdue(1.0, 0.9, 100, 50)
    assert attention.quiet_s(1.05) == pytest.approx(0.15)
    attention.note_overdue(1.1, math.inf, 100, 100)
    assert attention.quiet_s(1.2) == 0.0
    assert attention.longest_s == pytest.approx(0.2)


def test_a_policys_frame_detects_the_stopped_link_and_a_fixed_mode_waits():
    attention, attending = Attention(), []

    @contextmanager
    def attend():
        attending.append(True)
        yield attention
        attending.pop()

    lateness = Lateness(attend=attend)
    for _ in range(ENOUGH):
        with lateness.limit_frame(SERVER, 1.0, watched=True) as late:
            late.note_result(0.1)
    attention.note_overdue(0.0, time.monotonic() - 2 * SILENCE_S, 100, 100)
    with lateness.limit_frame(SERVER, 1.0, watched=True) as late:
        assert attending
        assert late.link_stopped()
    assert not attending
    with lateness.limit_frame(SERVER, 1.0) as late:
        assert not attending
        assert not late.link_stopped()
    with Lateness(attend=attend).limit_frame(SERVER, 1.0, watched=True) as late:
        assert not late.link_stopped(), "how long it may be quiet is not known"


def test_silences_of_completed_frames_count_as_a_healthy_link():
    attention = Attention()

    @contextmanager
    def attend():
        yield attention

    lateness = Lateness(attend=attend)
    attention.note_overdue(1.0, 1.0, 0, 0)
    attention.note_overdue(1.5, math.inf, 0, 0)
    assert attention.longest_s == 0.5
    for _ in range(ENOUGH):
        with lateness.limit_frame(SERVER, 1.0, watched=True) as late:
            late.note_result(0.1)
    attention.note_overdue(2.0, time.monotonic() - 0.6, 0, 0)
    with lateness.limit_frame(SERVER, 1.0, watched=True) as late:
        assert not late.link_stopped()
    attention = Attention()
    attention.note_overdue(2.0, time.monotonic() - 0.9, 0, 0)
    with lateness.limit_frame(SERVER, 1.0, watched=True) as late:
        assert late.link_stopped()
