"""Threads that learn and measure give way to frames, and get on all the same."""

from __future__ import annotations

import threading

import pytest

from edge_offload import background


@pytest.fixture
def learner(monkeypatch):
    """learner(wait_s) -> an event, set when a thread that learns has got past a step."""
    threads = []

    def make(wait_s, yields=True):
        monkeypatch.setattr(background, "WAIT_S", wait_s)
        passed = threading.Event()

        def work():
            if yields:
                with background.yielding():
                    background.give_way()
            else:
                background.give_way()
            passed.set()

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        return passed

    yield make
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()


def test_a_step_waits_for_the_frames_that_are_under_way(learner):
    with background.frame():
        with background.frame():
            passed = learner(60.0)
            assert not passed.wait(0.2)
        assert not passed.wait(0.2), "one is still under way"
    assert passed.wait(60.0)


def test_it_waits_for_no_longer_than_it_is_said(learner):
    with background.frame():
        assert learner(0.01).wait(60.0)


def test_without_frames_and_in_other_threads_nothing_is_waited_for(learner):
    assert learner(3600.0).wait(60.0)
    with background.frame():
        assert learner(3600.0, yields=False).wait(60.0)


def test_a_frame_that_fails_is_over(learner):
    with pytest.raises(ValueError, match="no result"), background.frame():
        raise ValueError("no result")
    assert learner(3600.0).wait(60.0)
