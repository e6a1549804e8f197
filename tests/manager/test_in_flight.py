"""Frames under way at once: their order, and when the next one may be taken up, with a clock that the test turns."""

from __future__ import annotations

import math
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload.errors import LinkLost
from edge_offload.manager.in_flight import FramesInFlight, TicketLock
from edge_offload.manager.tuning import MOST_IN_FLIGHT
from edge_offload.mode import Mode
from edge_offload.modes.runner import Attempt
from edge_offload.runtime.hedge import Hedge, without_queueing
from edge_offload.timing import InferenceReport

FOREVER_S = 30.0


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def report(part_s=0.05, robot_s=0.02, mode=Mode.SERVER, **rest):
    return InferenceReport(mode, "", 0.1, {"compute_robot": robot_s}, part_s=part_s, **rest)


# ------------------------------------------------------------------------------------------------------------- the row


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(0, 30)), max_size=60))
def test_only_the_preceding_frame_is_waited_for(steps):
    clock = Clock()
    row, open_, first = TicketLock(clock), [], {}
    for step in steps:
        clock.now += 1.0
        if step is None:
            open_.append(row.take_ticket())
        elif open_:
            row.release_ticket(open_.pop(step % len(open_)))
        if open_:
            first.setdefault(open_[0], clock.now)
        for ticket in open_:
            since = row.first_since_s(ticket)
            assert since == (first[ticket] if ticket == open_[0] else math.inf)
    assert open_ == sorted(open_)


def test_an_abandoned_place_delays_no_frame_and_may_be_abandoned_twice():
    row = TicketLock()
    first, second, third = (row.take_ticket() for _ in range(3))
    row.release_ticket(second)
    row.release_ticket(second)
    assert math.isinf(row.first_since_s(third))
    row.release_ticket(first)
    assert row.wait_for_ticket(third) < FOREVER_S
    with row.hold_ticket(third):
        pass
    assert row.wait_for_ticket(third) < FOREVER_S, "who has no ticket waits for nobody"


def test_turns_are_taken_in_the_order_of_the_places():
    row, order = TicketLock(), []
    tickets = [row.take_ticket() for _ in range(6)]

    def take(ticket):
        with row.hold_ticket(ticket):
            order.append(ticket)

    threads = [threading.Thread(target=take, args=(ticket,)) for ticket in reversed(tickets)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(FOREVER_S)
    assert order == tickets


# ------------------------------------------------------------------------------------------------------------ the pace


def test_the_next_frame_starts_when_the_slowest_stage_is_free_for_it():
    frames = FramesInFlight(2)
    assert frames.frame_wait_s(0.0, Mode.SERVER, []) == 0.0, "alone it waits for nothing"
    assert frames.frame_wait_s(0.0, Mode.SERVER, [0.0]) == math.inf, "nothing is known: one at a time"
    frames.learn_costs(report(part_s=0.05))
    assert frames.frame_wait_s(10.02, Mode.SERVER, [10.0]) == pytest.approx(0.03)
    assert frames.frame_wait_s(10.06, Mode.SERVER, [10.0]) == 0.0
    assert frames.frame_wait_s(10.06, Mode.SERVER, [10.0, 10.05]) == math.inf, "two are under way"
    assert frames.frame_wait_s(10.06, Mode.LOCAL, [10.0]) == math.inf, "the robot computes one at a time"
    assert frames.frame_wait_s(10.06, Mode.REPLAY, [10.0]) == math.inf, "another mode, of which nothing is known"


def test_a_robot_that_is_busy_for_longer_than_the_server_sets_the_pace():
    frames = FramesInFlight(2)
    frames.learn_costs(report(part_s=0.05, robot_s=0.08))
    assert frames.part_s(Mode.SERVER) == pytest.approx(0.08)


def test_frames_that_ran_in_another_mode_do_not_set_the_pace():
    frames = FramesInFlight(2)
    frames.learn_costs(report())
    for other in (report(9.0, fallback_reason="late"), report(9.0, hedged=True), report(9.0, mode=Mode.LOCAL)):
        frames.learn_costs(other)
    assert frames.part_s(Mode.SERVER) == pytest.approx(0.05)


def test_no_frame_starts_alongside_a_late_or_local_one():
    frames = FramesInFlight(MOST_IN_FLIGHT)
    frames.learn_costs(report())
    ticket = frames.take_ticket()
    frames.mark_started(ticket, until_s=20.0)
    assert frames.frame_wait_s(19.9, Mode.SERVER, [10.0]) == 0.0
    assert frames.frame_wait_s(20.1, Mode.SERVER, [10.0]) == math.inf, "it is late: another would wait for the same"
    frames.mark_started(ticket, -math.inf)
    assert frames.frame_wait_s(19.9, Mode.SERVER, [10.0]) == math.inf, "the robot computes it"
    frames.release_ticket(ticket)
    assert frames.frame_wait_s(19.9, Mode.SERVER, [10.0]) == 0.0
    frames.mark_started(ticket, -math.inf)
    assert frames.frame_wait_s(19.9, Mode.SERVER, [10.0]) == 0.0, (
        "a rival that begins when the frame is over holds none up"
    )


def test_one_in_flight_is_one_at_a_time_as_before():
    frames = FramesInFlight(1)
    frames.learn_costs(report())
    assert frames.frame_wait_s(99.0, Mode.SERVER, [10.0]) == math.inf
    assert frames.describe() == "1 frame at a time"
    assert "the next frame's input is sent meanwhile" in FramesInFlight(2).describe()


def test_where_one_inference_follows_the_other_a_frame_is_taken_up_when_all_before_it_have_ended():
    now = 10.0
    frames = FramesInFlight(MOST_IN_FLIGHT)
    frames._clock = lambda: now  # type: ignore[method-assign]
    frames.learn_costs(report(part_s=0.09, mode=Mode.REPLAY))
    running, waiting = (
        frames.take_ticket(),
        frames.take_ticket(),
    )  # the first since 10.0, the second taken up at 10.05
    assert frames.frame_wait_s(10.1, Mode.REPLAY, [10.0, 10.05]) == pytest.approx(0.08), "both take 90 ms from 10.0 on"
    now = 10.12
    frames.release_ticket(running)
    assert frames.frame_wait_s(10.15, Mode.REPLAY, [10.05]) == pytest.approx(0.06), "the second began at 10.12"
    frames.release_ticket(waiting)
    assert frames.frame_wait_s(10.22, Mode.REPLAY, [10.05]) == 0.0


def test_a_frame_whose_input_goes_ahead_is_taken_up_early_enough_for_that():
    now = 10.0
    frames = FramesInFlight(2)
    frames._clock = lambda: now  # type: ignore[method-assign]
    frames.learn_costs(report(part_s=0.04, lead_s=0.03, mode=Mode.REPLAY))
    frames.take_ticket()
    assert frames.frame_wait_s(10.0, Mode.REPLAY, [9.9]) == pytest.approx(0.01), "its upload ends with the turn before"
    now = 10.02
    assert frames.frame_wait_s(10.02, Mode.REPLAY, [9.9]) == 0.0


def arriving(interval_s: float, most: int = 2) -> FramesInFlight:
    frames = FramesInFlight(most)
    for number in range(20):
        frames.record_frame_arrival(number * interval_s)
    return frames


def test_frames_wait_where_they_come_faster_than_a_mode_takes_them_up():
    frames = arriving(0.1)
    frames.learn_costs(report(part_s=0.06))
    assert frames.queueing_s(Mode.REPLAY, 0.07, 0.007) < 0.002, "free long before the next frame"
    assert 0.002 < frames.queueing_s(Mode.REPLAY, 0.095, 0.01) < 0.03, "some come too early"
    assert frames.queueing_s(Mode.REPLAY, 0.12, 0.01) == pytest.approx(0.05), "half of an interval"
    assert frames.queueing_s(Mode.SERVER, 0.12, 0.01) < 0.002, "uploads and computations overlap"
    frames.learn_costs(report(part_s=0.06, lead_s=0.05, mode=Mode.REPLAY))
    assert frames.queueing_s(Mode.REPLAY, 0.12, 0.01) < 0.002, "so do the uploads of inputs that go ahead"
    one_by_one = arriving(0.1, most=1)
    one_by_one.learn_costs(report(part_s=0.06))
    assert one_by_one.queueing_s(Mode.SERVER, 0.12, 0.01) == pytest.approx(0.05)


def test_nobody_is_said_to_wait_before_the_interval_is_known():
    assert FramesInFlight(2).queueing_s(Mode.REPLAY, 9.0, 1.0) == 0.0
    assert arriving(0.0).queueing_s(Mode.REPLAY, 9.0, 1.0) == 0.0


# ------------------------------------------------------------------------------------- what waits behind an own frame


def test_a_wait_behind_earlier_frames_is_no_time_of_the_link_or_the_server():
    stages = {"queue": 0.05, "uplink": 0.02, "compute_server": 0.05, "downlink": 0.01}
    attempt = Attempt((), stages, behind_s={"queue": 0.04, "uplink": 0.01})
    report = InferenceReport(Mode.SERVER, "", 0.14, stages)
    attributed = without_queueing(report, attempt)
    assert attributed.total_s == pytest.approx(0.09)
    assert attributed.stages_s["queue"] == pytest.approx(0.01)
    assert attributed.stages_s["uplink"] == pytest.approx(0.01)
    assert report.total_s == 0.14, "the frame took that long all the same"


def test_what_passed_before_the_turn_is_part_of_what_a_frame_takes_alone():
    stages = {"encode": 0.01, "uplink": 0.03, "compute_server": 0.05}
    report = InferenceReport(Mode.REPLAY, "", 0.06, stages)
    alone = without_queueing(report, Attempt((), stages, lead_s=0.04, ahead_s=0.03))
    assert alone.total_s == pytest.approx(0.09)
    assert alone.stages_s == report.stages_s


class AtOnce:
    """The remote result is late from the beginning on."""

    def hedge_at(self):
        return -math.inf

    def next_check_at(self):
        return time.monotonic()

    def link_stopped(self):
        return False


def test_behind_another_frame_a_result_is_not_late_until_that_one_is_through():
    hedge, answer, calls = Hedge(), threading.Event(), []

    class Behind(AtOnce):
        def hedge_at(self):
            # the frame before is through at the fifth look; by then this one has its result
            calls.append(1)
            if len(calls) == 5:
                answer.set()
            return math.inf

    def remote():
        answer.wait(FOREVER_S)
        return Attempt(("remote",))

    try:
        outcome = hedge.race_attempts(remote, lambda _cancelled: pytest.fail("hedged"), Behind())
        assert outcome.remote
        assert not outcome.hedged
    finally:
        hedge.close()


def test_an_outage_with_two_under_way_gives_both_their_results_one_computation_at_a_time():
    hedge, dead, computing, most = Hedge(), threading.Event(), [], []
    outcomes = {}

    def remote():
        dead.wait(FOREVER_S)
        raise LinkLost("gone")

    def local(number):
        def compute(cancelled):
            computing.append(number)
            most.append(len(computing))
            computing.remove(number)
            return Attempt((number,), {"compute_robot": 0.0})

        return compute

    def frame(number):
        outcomes[number] = hedge.race_attempts(remote, local(number), AtOnce())

    threads = [threading.Thread(target=frame, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(FOREVER_S)
    try:
        assert {number: outcome.attempt.outputs for number, outcome in outcomes.items()} == {0: (0,), 1: (1,)}
        assert not any(outcome.remote for outcome in outcomes.values())
        assert max(most) == 1
        assert "has not answered" in hedge.find_overdue_attempt()
    finally:
        dead.set()
        hedge.close()


def test_a_rival_that_waits_for_the_processor_while_its_frame_gets_its_result_never_computes(monkeypatch):
    hedge, free, entered, begun, computed = Hedge(), threading.Event(), threading.Event(), threading.Event(), []
    start = hedge._start_local

    def hold(cancelled):
        entered.set()
        free.wait(FOREVER_S)
        return Attempt(("first",))

    def remote():
        begun.wait(FOREVER_S)
        return Attempt(("remote",))

    def started(local):
        rival = start(local)
        begun.set()
        return rival

    monkeypatch.setattr(hedge, "_start_local", started)
    holder = threading.Thread(target=lambda: hedge.run_unraced(hold))
    holder.start()
    entered.wait(FOREVER_S)
    try:
        outcome = hedge.race_attempts(remote, computed.append, AtOnce())
        assert outcome.attempt.outputs == ("remote",)
        assert outcome.hedged
        assert outcome.local_s == 0.0
    finally:
        free.set()
        holder.join(FOREVER_S)
        hedge._local.shutdown(wait=True)
        hedge.close()
    assert computed == []
