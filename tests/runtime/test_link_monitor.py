"""Over a remote frame: a link that has stopped is told from one that is slow, or pauses as it always does."""

import math
import threading

import pytest

from edge_offload.link.transport.attention import Attention
from edge_offload.modes.runner import Attempt
from edge_offload.runtime.hedge import Hedge
from edge_offload.runtime.link_monitor import FEWEST, LEAST_S, Pauses, Watch

MB = 1_000_000


def learned(*longest):
    pauses = Pauses()
    for seconds in longest:
        pauses.note(seconds)
    return pauses


def test_nothing_is_concluded_from_a_silence_before_the_link_is_known():
    assert learned(*[0.0] * (FEWEST - 1)).limit_s == math.inf
    assert not Watch(math.inf, 0.3).stopped(5.0, 4.0, 0, 0)


def test_a_link_that_never_pauses_is_found_out_soon_and_one_that_does_is_given_its_time():
    calm, restless = learned(*[0.001] * 64), learned(*([0.001] * 56 + [0.2] * 8))
    assert calm.limit_s == LEAST_S
    assert restless.limit_s > 0.2
    assert Watch(calm.limit_s, 0.3).stopped(1.0, 0.1, 0, 0)
    assert not Watch(restless.limit_s, 0.3).stopped(1.0, 0.2, 0, 0)


def test_a_single_long_pause_does_not_make_it_patient_for_ever():
    assert learned(*([0.001] * 63 + [2.0])).limit_s == LEAST_S


@pytest.mark.parametrize(("pace", "crawls"), [(20 * MB, False), (1.0 * MB, False), (0.25 * MB, True), (0, True)])
def test_an_upload_that_would_take_longer_than_the_robot_counts_as_stopped(pace, crawls):
    watch, size, found = Watch(LEAST_S, 0.3), 245_000, []
    for tick in range(10):
        now = 0.01 * tick
        found.append(watch.stopped(now, 0.0, size, min(size, int(pace * now))))
    assert any(found) is crawls


def test_a_frame_that_is_on_the_server_is_not_taken_for_an_upload_that_stands_still():
    watch = Watch(LEAST_S, 0.3)
    assert not any(watch.stopped(0.01 * tick, 0.0, 245_000, 244_000) for tick in range(50))


def test_the_longest_silence_that_ended_is_remembered():
    attention = Attention()
    attention.note(1.0, 0.9, 100, 50)
    assert attention.quiet_s(1.05) == pytest.approx(0.15)
    attention.note(1.1, math.inf, 100, 100)
    assert attention.quiet_s(1.2) == 0.0
    assert attention.longest_s == pytest.approx(0.2)


def test_the_robot_begins_as_soon_as_the_link_has_stopped_not_when_the_result_is_late():
    hedge, never = Hedge(), threading.Event()
    try:
        outcome = hedge.run(
            lambda: Attempt(("late",)) if never.wait(60.0) else Attempt(("lost",)),
            lambda enough: Attempt(("local",), {"compute_robot": 0.0}),
            20.0,
            lambda: True,
            0.001,
        )
        assert outcome.attempt.outputs == ("local",)
        assert outcome.hedged
        assert not outcome.remote
        waited_s = float(outcome.reason.split()[-2])
        assert waited_s < 10.0
    finally:
        never.set()
        hedge.close()


def test_a_link_that_has_not_stopped_keeps_the_robot_from_beginning():
    hedge, asked = Hedge(), []

    def stopped():
        asked.append(1)
        return False

    try:
        answer = threading.Event()
        threading.Timer(0.1, answer.set).start()
        outcome = hedge.run(
            lambda: Attempt(("remote",)) if answer.wait(60.0) else Attempt(("lost",)),
            lambda enough: Attempt(("local",)),
            60.0,
            stopped,
            0.005,
        )
        assert outcome.attempt.outputs == ("remote",)
        assert not outcome.hedged
        assert asked
    finally:
        hedge.close()
