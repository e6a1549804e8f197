"""Robots are served in turn, and a flood harms only its author."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_offload.errors import Refused
from edge_offload.server.status import ServerStatus, StatusBook
from edge_offload.server.worker import FORCED_S, FairQueue, JobWorker


def drain(queue):
    items = []
    while len(queue):
        items.append(queue.get_item(0)[0])
    return items


def test_peers_take_turns_whatever_their_backlog():
    queue = FairQueue(per_peer=10)
    for number in range(6):
        queue.put_item("flood", ("flood", number))
    queue.put_item("calm", ("calm", 0))
    queue.put_item("third", ("third", 0))
    assert drain(queue)[:4] == [("flood", 0), ("calm", 0), ("third", 0), ("flood", 1)]


@given(st.lists(st.integers(0, 4), max_size=60))
def test_order_within_a_peer_and_fairness_between_peers(arrivals):
    queue = FairQueue(per_peer=100, total=1000)
    for number, peer in enumerate(arrivals):
        queue.put_item(peer, (peer, number))
    out = drain(queue)
    assert sorted(number for _, number in out) == list(range(len(arrivals)))
    for peer in set(arrivals):
        mine = [number for owner, number in out if owner == peer]
        assert mine == sorted(mine)
        # while this peer waited, no other was served more than once per turn of it
        positions = [place for place, (owner, _) in enumerate(out) if owner == peer]
        for first, second in zip(positions, positions[1:]):
            between = [owner for owner, _ in out[first + 1 : second]]
            assert len(between) == len(set(between))


def test_connections_of_one_robot_share_its_turns_and_its_bound():
    queue = FairQueue(per_peer=4, robot_of=lambda peer: peer[0])
    for connection in range(4):
        queue.put_item(("greedy", connection), ("greedy", connection))
    queue.put_item(("calm", 0), ("calm", 0))
    with pytest.raises(Refused, match="4 requests of this robot"):
        queue.put_item(("greedy", 9), "one more")
    assert queue.ahead_s(("greedy", 9)) == 0
    assert queue.remove_peer(("greedy", 1)) == [("greedy", 1)], "only what the connection that left had waiting"
    assert drain(queue) == [("greedy", 0), ("calm", 0), ("greedy", 2), ("greedy", 3)]


def test_full_is_per_peer_and_in_all():
    queue = FairQueue(per_peer=2, total=3)
    queue.put_item("a", 1)
    queue.put_item("a", 2)
    with pytest.raises(Refused, match="2 requests of this robot") as refusal:
        queue.put_item("a", 3)
    assert refusal.value.remedy
    queue.put_item("b", 4)
    with pytest.raises(Refused, match="3 requests of 2 robots"):
        queue.put_item("c", 5)
    assert queue.remove_peer("a") == [1, 2]
    queue.put_item("c", 5)
    assert {robot: len(items) for robot, items in queue._waiting.items()} == {"b": 1, "c": 1}


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 9)), max_size=30), st.integers(0, 3))
def test_predicted_wait_is_the_cost_of_what_is_served_first(arrivals, peer):
    queue = FairQueue(per_peer=100, total=1000)
    for owner, cost in arrivals:
        queue.put_item(owner, (owner, cost))
    predicted_zero = queue.ahead_s(peer)
    assert predicted_zero == 0.0, "nothing announced a cost"
    drain(queue)
    for owner, cost in arrivals:
        queue.put_item(owner, cost, cost)
    predicted = queue.ahead_s(peer)
    queue.put_item(peer, "mine")
    before = []
    while True:
        item = queue.get_item(0)[0]
        if item == "mine":
            break
        before.append(item)
    # a peer that waits already keeps its place in the turn; one that is new stands last
    assert sum(before) <= predicted + 1e-9
    if peer not in {owner for owner, _ in arrivals}:
        assert sum(before) == pytest.approx(predicted)


def test_what_a_reader_has_taken_counts_until_it_is_served():
    queue = FairQueue()
    queue.put_item("a", "first", 1000.0)
    assert (queue.ahead_s("b"), queue.busy) == (1000.0, True)
    queue.get_item(0)
    assert 0 < queue.ahead_s("b") <= 1000.0, "at no moment is it neither waiting nor under way"
    assert queue.busy
    queue.end_item()
    assert (queue.ahead_s("b"), queue.busy) == (0.0, False)


def test_closing_wakes_the_reader_and_refuses():
    queue = FairQueue()
    worker = JobWorker("test", queue)
    worker.start()
    assert worker.close(60)
    with pytest.raises(Refused, match="shutting down"):
        queue.put_item("a", lambda: None)


def test_a_failing_job_does_not_end_the_worker(caplog):
    worker = JobWorker("test", FairQueue())
    worker.start()
    done = threading.Event()
    worker.submit_job("a", lambda: 1 / 0)
    worker.submit_job("a", done.set)
    assert done.wait(60)
    assert worker.close(60)
    assert "ZeroDivisionError" in caplog.text


def test_worker_reports_what_its_preparation_raised():
    def fail():
        raise Refused("no such core")

    with pytest.raises(Refused, match="no such core"):
        JobWorker("test", FairQueue(), fail).start()


def test_status_counts_load_and_survives_the_wire():
    now = [100.0]
    book = StatusBook("cpu", clock=lambda: now[0])
    for _ in range(5):
        now[0] += 2.0
        book.record_inference("net", 1.0)
    book.add_totals(refused=2, bytes_in=7)
    status = book.make_status(queue_length=3, sessions=2)
    assert status.load == pytest.approx(0.5)
    assert (status.models["net"].count, status.models["net"].mean_s) == (5, 1.0)
    assert (status.refused, status.bytes_in, status.queue_length, status.sessions) == (2, 7, 3, 2)
    assert ServerStatus.from_dict(status.to_dict()) == status
    now[0] += 100.0
    assert book.make_status(0, 0).load == 0.0


def test_a_long_job_gives_way_to_what_waits():
    worker = JobWorker("test", FairQueue())
    worker.start()
    done, waiting, ended = [], threading.Event(), threading.Event()

    def long():
        assert waiting.wait(60)
        done.append("half")
        worker.give_way()
        done.append("whole")
        ended.set()

    worker.submit_job("a", long)
    worker.submit_job("b", lambda: done.append("frame"))
    worker.submit_job("b", lambda: 1 / 0)
    waiting.set()
    assert ended.wait(60)
    assert done == ["half", "frame", "whole"]
    assert worker.close(60)


class Times:
    """A timetable that a test writes."""

    def __init__(self, *due):
        self.due, self.done = list(due), []

    def due_s(self):
        return self.due[0] if self.due else None

    def run_due_work(self):
        self.done.append(self.due.pop(0))


def test_what_is_due_goes_before_what_waits():
    times = Times()
    worker = JobWorker("test", FairQueue(), timetable=times)
    order, ended = [], threading.Event()
    times.run_due_work = lambda: (order.append(times.due.pop(0)), times.due or ended.set())

    def job():
        order.append("job")
        times.due = [0.0, 1.0]

    worker.submit_job("a", job)
    worker.submit_job("a", lambda: order.append("after"))
    worker.start()
    assert ended.wait(60)
    worker.queue.nudge()
    worker.submit_job("b", ended.set)
    assert worker.close(60)
    assert order[:3] == ["job", 0.0, 1.0]


def test_a_timetable_that_changes_is_looked_at_when_it_nudges():
    times = Times()
    worker = JobWorker("test", FairQueue(), timetable=times)
    ended = threading.Event()
    times.run_due_work = lambda: (times.due.clear(), ended.set())
    worker.start()
    times.due = [0.0]
    worker.queue.nudge()
    assert ended.wait(60)
    assert worker.close(60)


def test_a_job_that_does_not_fit_before_what_is_due_stays_but_not_for_long():
    queue = FairQueue()
    queue.put_item("a", "long", 5.0)
    assert queue.get_item(0, room_s=1.0) is None
    assert queue.get_item(0, room_s=1.0, max_deferral_s=0.0) == ("long", 5.0)
    queue.put_item("a", "short", 0.5)
    assert queue.get_item(0, room_s=1.0) == ("short", 0.5)


def test_of_a_flood_of_jobs_without_room_one_goes_in_a_while():
    queue = FairQueue()
    for robot in "abcd":
        queue.put_item(robot, f"long {robot}", 0.5)
    assert queue.forced_share() == 0.0
    assert queue.get_item(0, room_s=0.1, max_deferral_s=0.0) == ("long a", 0.5)
    assert queue.get_item(0, room_s=0.1, max_deferral_s=60.0) is None, "its turn was used"
    assert queue.forced_share() == pytest.approx(0.5 / FORCED_S)
    assert queue.get_item(0, room_s=1.0, max_deferral_s=60.0) == ("long b", 0.5), "for this one there is room"
    assert queue.forced_share() == pytest.approx(0.5 / FORCED_S)


def test_a_timetable_that_fails_ends_nothing(caplog):
    times = Times(0.0)
    worker = JobWorker("test", FairQueue(), timetable=times)
    ended = threading.Event()
    times.run_due_work = lambda: times.due.pop() / 0
    worker.start()
    worker.submit_job("a", ended.set)
    assert ended.wait(60)
    assert worker.close(60)
    assert "ZeroDivisionError" in caplog.text
