"""Handles are opened in the background, again after a refusal or on a new connection, and never waited for."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from edge_offload.errors import Refused
from edge_offload.link.transport.replies import LinkState
from edge_offload.modes import remote as module
from edge_offload.modes.remote import Handles


@pytest.fixture
def client():
    return SimpleNamespace(state=LinkState.READY, cause="nobody", counters={"connections": 1})


@pytest.fixture
def now(monkeypatch):
    """The clock that handles read; and what they open is opened at once."""
    clock = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: clock.seconds)
    monkeypatch.setattr(module.background, "start", lambda _name, work, *args, over: work(*args))
    return clock


def opens(results):
    """Prepares work that gives the next of ``results``, or raises it."""

    def work(_progress):
        outcome = next(results)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return lambda: work


def test_a_handle_is_opened_once_for_each_key_and_connection(client, now):
    handles, results = Handles(client, "it"), opens(iter([7, 8, 9]))
    assert [handles.unavailable_reason(key, results) for key in "aab"] == [None] * 3
    assert (handles.get_handle("a"), handles.get_handle("b")) == (7, 8)
    client.counters["connections"] = 2
    handles.unavailable_reason("a", results)
    assert handles.get_handle("a") == 9


def test_a_refusal_is_reported_with_a_message_and_retried_at_growing_intervals(client, now):
    reports, waits = [], {1: 2.0, 2: 4.0}
    handles = Handles(client, "it", retry_s=waits.get, report=reports.append)
    results = opens(iter([Refused("no room"), Refused("no room"), 5]))
    for later_s in (0.0, 1.9, 0.2, 3.9):
        now.seconds += later_s
        assert handles.unavailable_reason("a", results) == "it was not opened: no room"
    assert reports == ["it was not opened: no room"] * 2
    now.seconds += 0.2
    assert handles.unavailable_reason("a", results) is None


def test_without_a_connection_the_model_is_opened_once_connected(client, now):
    client.state = LinkState.CONNECTING
    handles, results = Handles(client, "it"), opens(iter([3]))
    assert handles.unavailable_reason("a", results) == "no server: nobody"
    client.state = LinkState.READY
    handles.link_changed(LinkState.READY)
    assert handles.get_handle("a") == 3


def test_a_frame_never_waits_for_opening_and_reports_progress(client):
    handles, go, done = Handles(client, "it"), threading.Event(), threading.Event()

    def work(progress):
        progress("being traced")
        done.set()
        go.wait(30.0)
        return 1

    handles.unavailable_reason("a", lambda: work)
    assert done.wait(30.0)
    assert handles.unavailable_reason("a", lambda: work) == "it is being opened: being traced"
    go.set()


def test_the_oldest_of_too_many_is_closed_and_all_are_in_the_end(client, now):
    closed = []
    handles, results = Handles(client, "it", closed.append, most=2), opens(iter(range(10)))
    for key in "abc":
        handles.unavailable_reason(key, results)
    assert (closed, handles.get_handle("a")) == ([0], None)
    handles.close()
    assert closed == [0, 1, 2]


def test_what_is_open_when_all_were_given_up_is_closed_at_once(client, monkeypatch):
    closed, later = [], []
    monkeypatch.setattr(module.background, "start", lambda _name, work, *args, over: later.append((work, args)))
    handles = Handles(client, "it", closed.append)
    handles.unavailable_reason("a", opens(iter([4])))
    handles.close()
    ((work, args),) = later
    work(*args)
    assert closed == [4]


@pytest.mark.parametrize("waits", ["between its steps", "for the server"])
def test_what_is_being_opened_when_all_are_given_up_is_given_up_too(client, waits):
    begun, ended, reported = threading.Event(), threading.Event(), []
    handles = Handles(client, "it", report=reported.append)

    def work(progress):
        try:
            begun.set()
            while waits != "for the server":
                progress("a step")
            module.background.result(Future(), 3600.0)
        finally:
            ended.set()

    assert "is being opened" in handles.unavailable_reason("a", lambda: work)
    assert begun.wait(60.0)
    assert not ended.wait(0.1), "nobody has given it up yet"
    handles.close()
    assert ended.wait(60.0)
    assert handles.unavailable_reason("a", lambda: work) == "it was given up"
    assert reported == [], "nothing is to be said of it"


def test_an_evicted_handle_is_reopened_and_a_pause_ends(client, now):
    handles, results = Handles(client, "it"), opens(iter([1, 2]))
    handles.unavailable_reason("a", results)
    handles.forget("a", 99)
    assert handles.get_handle("a") == 1, "another one was forgotten"
    handles.forget("a", 1)
    assert handles.unavailable_reason("a", results) is None
    assert handles.get_handle("a") == 2
    handles.pause(0.5, "it was full")
    assert handles.unavailable_reason("a", results) == "it was full"
    now.seconds += 0.6
    assert handles.unavailable_reason("a", results) is None


def test_handles_that_are_lost_are_reopened_after_a_while(client, now):
    handles, results = Handles(client, "it"), opens(iter([1, 2]))
    handles.unavailable_reason("a", results)
    handles.lose("the session is gone")
    assert handles.unavailable_reason("a", results) == "the session is gone"
    now.seconds += 2.1
    handles.unavailable_reason("a", results)
    assert handles.get_handle("a") == 2
