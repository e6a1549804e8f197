"""What is kept while a run is watched: bounded, for every reader the same, and told when something was missed."""

from __future__ import annotations

from edge_offload.dashboard.history import CAPACITY, EVENTS, History
from tests.dashboard import made_up


def everything(history, cursor):
    result, skipped = [], 0
    while True:
        batch, _ = history.read(cursor, limit=700)
        result += [record for records in batch.records.values() for record in records]
        skipped += batch.skipped
        if not batch.more:
            return result, skipped


def test_two_readers_see_the_same_at_any_time():
    history, records = History(), made_up.run(20)
    early = history.open_cursor()
    seen = []
    for number, record in enumerate(records):
        history.put(record)
        if number % 50 == 0:
            seen += everything(history, early)[0]
    seen += everything(history, early)[0]
    late, skipped = everything(history, history.open_cursor())
    assert len(seen) == len(late) == len(records)
    assert skipped == 0
    assert sorted(seen, key=str) == sorted(late, key=str)


def test_a_slow_reader_costs_no_memory_and_is_notified_of_what_it_missed():
    history = History()
    slow = history.open_cursor()
    for number in range(3 * CAPACITY["latency"]):
        history.put(made_up.latency(float(number)))
    records, skipped = everything(history, slow)
    capacity = CAPACITY["latency"]
    assert [record["t_s"] for record in records] == [float(number) for number in range(2 * capacity, 3 * capacity)]
    assert skipped == 2 * capacity
    # who comes only now has missed nothing
    assert everything(history, history.open_cursor())[1] == 0


def test_a_kind_that_comes_often_does_not_push_out_one_that_comes_seldom():
    history = History()
    history.put(made_up.mode(0.0, "server", "auto", "first"))
    for number in range(2 * CAPACITY["power"]):
        history.put(made_up.power(float(number), 5.0, 0.0))
    batch, _ = history.read(history.open_cursor())
    assert [record["reason"] for record in batch.records["mode"]] == ["first"]


def test_events_are_bounded_too():
    history = History()
    for number in range(2 * EVENTS):
        history.put(made_up.mode(float(number), "server" if number % 2 else "local", "auto", "to and fro"))
    batch, _ = history.read(history.open_cursor())
    assert len(batch.events) == EVENTS


def test_readers_are_notified_when_the_source_restarts():
    history = History()
    cursor = history.open_cursor()
    history.put(made_up.mode(5.0, "server", "auto", "first"))
    history.set_picture(b"\xff\xd8\xff", 5.0)
    assert history.read(cursor)[1] is False
    history.clear()
    history.put(made_up.mode(1.0, "local", "auto", "again"))
    batch, restarted = history.read(cursor)
    assert restarted
    assert [record["reason"] for record in batch.records["mode"]] == ["again"]
    assert history.picture is None
    assert history.read(cursor)[1] is False
