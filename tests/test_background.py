"""Threads that learn and measure give way to frames, and get on all the same."""

from __future__ import annotations

import gc
import threading

import pytest

from edge_offload import background
from edge_offload.manager.in_flight import Row


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


@pytest.fixture
def row():
    made = Row()
    background.first(made)
    return made


def test_a_step_waits_for_the_frames_that_are_under_way(learner, row):
    places = row.place(), row.place()
    passed = learner(60.0)
    assert not passed.wait(0.2)
    row.done(places[0])
    assert not passed.wait(0.2), "one is still under way"
    row.done(places[1])
    assert passed.wait(60.0)


def test_it_waits_for_no_longer_than_it_is_said(learner, row):
    row.place()
    assert learner(0.01).wait(60.0)


def test_without_frames_and_in_other_threads_nothing_is_waited_for(learner, row):
    assert learner(3600.0).wait(60.0)
    row.place()
    assert learner(3600.0, yields=False).wait(60.0)


def test_who_is_gone_is_not_waited_for(learner):
    row = Row()
    background.first(row)
    row.place()
    del row
    gc.collect()
    assert learner(3600.0).wait(60.0)
