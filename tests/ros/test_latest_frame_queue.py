"""The hand-over of frames: every frame is taken once or superseded, and the worker never idles while one waits."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_offload.manager.in_flight import TicketLock
from edge_offload.manager.turn_giver import TurnGiver
from edge_offload.nodes.inference.latest_frame_queue import FramePipeline, LatestFrameQueue, QueueCounts, Worker


def test_the_newest_frame_is_taken_and_the_older_one_superseded():
    queue = LatestFrameQueue()
    queue.offer_frame("old")
    queue.offer_frame("new")
    assert queue.take_next_frame() == "new"
    counts = queue.counts
    assert (counts.offered, counts.taken, counts.superseded, counts.waiting) == (2, 1, 1, 0)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(["put", "take"]), max_size=60), st.integers(1, 4))
def test_every_frame_is_taken_or_superseded_or_waits(steps, capacity):
    queue = LatestFrameQueue(capacity)
    taken, number = [], 0
    for step in steps:
        if step == "put":
            queue.offer_frame(number)
            number += 1
        else:
            item = queue.take_next_frame(timeout_s=0)
            if item is not None:
                taken.append(item)
        counts = queue.counts
        assert counts.offered == counts.taken + counts.superseded + counts.waiting == number
        assert counts.waiting <= capacity
    assert taken == sorted(set(taken))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(["a", "b", "c", "take"]), max_size=80), st.integers(1, 3))
def test_sources_take_turns_and_none_waits_longer_than_for_one_frame_of_each_other(steps, capacity):
    queue = LatestFrameQueue(capacity, source=lambda frame: frame[0])
    waiting, others, taken = {}, {}, []
    for number, step in enumerate(steps):
        if step != "take":
            queue.offer_frame((step, number))
            waiting[step] = min(capacity, waiting.get(step, 0) + 1)
            others.setdefault(step, Counter())
            continue
        frame = queue.take_next_frame(timeout_s=0)
        assert (frame is None) == (not any(waiting.values()))
        if frame is None:
            continue
        taken.append(frame)
        waiting[frame[0]] -= 1
        others[frame[0]] = Counter()
        for name, had in others.items():
            if waiting.get(name) and name != frame[0]:
                had[frame[0]] += 1
                assert max(had.values()) <= 1, "each other source has one turn at most while a frame waits"
            else:
                had.clear()
    for name in "abc":
        mine = [number for source, number in taken if source == name]
        assert mine == sorted(mine)
        counts = queue.get_counts(name)
        assert (counts.offered, counts.taken) == (steps.count(name), len(mine))
        assert counts.offered == counts.taken + counts.superseded + counts.waiting
    assert queue.counts == QueueCounts.sum_counts(queue.get_counts(name) for name in "abc")


def test_sources_that_always_have_a_frame_go_round():
    queue = LatestFrameQueue(source=lambda frame: frame[0])
    for name in ("front", "left", "rear"):
        queue.offer_frame((name, 0))
    taken = []
    for number in range(1, 10):
        taken.append(queue.take_next_frame())
        for name in ("front", "front", "front", "left", "rear"):  # one of them sends three times as often
            queue.offer_frame((name, number))
    assert [name for name, _ in taken] == ["front", "left", "rear"] * 3
    assert [number for _, number in taken] == list(range(9)), "each the newest"


def test_sources_go_round_as_tasks_that_lose_alike_do_in_the_turns_of_a_patrol():
    giver, now, names = TurnGiver(), 100.0, []
    for _ in range(7):
        for camera in ("front", "left", "rear"):
            giver.report_task(now, camera, camera, 0.06)
        turn = giver.give_turn(now)
        giver.record_taken(now, turn.number, turn.node)
        now += 0.06
        giver.record_ended(now, turn.number, turn.node, 0.06)
        names.append(turn.node)
    queue = LatestFrameQueue(source=str)
    for name in ("front", "left", "rear"):
        queue.offer_frame(name)
    for name in names:
        assert queue.take_next_frame() == name
        queue.offer_frame(name)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 200), st.integers(1, 3))
def test_results_are_as_many_as_frames_taken_with_a_real_worker(frames, producers):
    queue, results = LatestFrameQueue(), []
    worker = Worker(queue, results.append, lambda item, error: None)
    worker.start()

    def produce(first):
        for number in range(frames):
            queue.offer_frame((first, number))

    threads = [threading.Thread(target=produce, args=(first,)) for first in range(producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert worker.drain(60)
    counts = queue.counts
    assert counts.offered == frames * producers == counts.taken + counts.superseded
    assert counts.taken == len(results) == len(set(results))
    for first in range(producers):
        mine = [number for who, number in results if who == first]
        assert mine == sorted(mine)


@pytest.mark.process
def test_the_worker_starts_the_next_frame_as_soon_as_it_is_free():
    queue = LatestFrameQueue()
    gate, spans = threading.Event(), []

    def work(item):
        spans.append(item)
        gate.wait(60)

    worker = Worker(queue, work, lambda item, error: None)
    worker.start()
    queue.offer_frame(0)
    while not spans:
        time.sleep(0.001)
    # while the worker is busy newer frames replace each other; the last waits and must be next without another put
    for number in range(1, 50):
        queue.offer_frame(number)
    gate.set()
    assert worker.drain(60)
    assert spans == [0, 49]


@pytest.mark.process
def test_nothing_is_superseded_in_queue_all_mode_and_the_producer_is_delayed():
    queue = LatestFrameQueue(capacity=2, queue_all=True)
    got, ahead = [], []

    def work(item):
        got.append(item)

    worker = Worker(queue, work, lambda item, error: None)

    def produce():
        for number in range(100):
            queue.offer_frame(number)
            ahead.append(number)

    producer = threading.Thread(target=produce)
    producer.start()
    time.sleep(0.1)
    assert len(ahead) == 2, "the producer must wait while nothing is taken"
    worker.start()
    producer.join(60)
    assert worker.drain(60)
    assert got == list(range(100))
    assert queue.counts.superseded == 0


def test_draining_finishes_the_frame_that_waits_and_refuses_newer_ones():
    queue, results, started, go = LatestFrameQueue(), [], threading.Event(), threading.Event()

    def work(item):
        started.set()
        go.wait(60)
        results.append(item)

    worker = Worker(queue, work, lambda item, error: None)
    worker.start()
    queue.offer_frame("running")
    started.wait(60)
    queue.offer_frame("waiting")
    closing = threading.Thread(target=worker.drain, args=(60,))
    closing.start()
    while not queue.closed:
        time.sleep(0.001)
    assert queue.offer_frame("too late") is False
    go.set()
    closing.join(60)
    assert results == ["running", "waiting"]
    counts = queue.counts
    assert (counts.offered, counts.taken, counts.superseded, counts.waiting) == (3, 2, 1, 0)


def test_closing_frees_a_producer_that_waits_for_room():
    queue = LatestFrameQueue(capacity=1, queue_all=True)
    queue.offer_frame(1)
    outcome = []
    producer = threading.Thread(target=lambda: outcome.append(queue.offer_frame(2)))
    producer.start()
    queue.close()
    producer.join(60)
    assert outcome == [False]
    assert queue.counts.waiting == 1


def test_an_exception_is_handed_over_and_the_worker_goes_on():
    queue, errors, done = LatestFrameQueue(capacity=8), [], []

    def work(item):
        if item == "bad":
            raise ValueError("no")
        done.append(item)

    worker = Worker(queue, work, lambda item, error: errors.append((item, str(error))))
    for item in ("good", "bad", "better"):
        queue.offer_frame(item)
    worker.start()
    assert worker.drain(60)
    assert done == ["good", "better"]
    assert errors == [("bad", "no")]


# --------------------------------------------------------------------------------------------------- frames in flight


class Stage:
    """Stages of frames that run the network when they are let, and note what happens."""

    def __init__(self, lanes, queue_all=True, free=lambda taken_s: 0.0):
        self.queue = LatestFrameQueue(capacity=8, queue_all=queue_all)
        self.order = TicketLock()
        self.prepared, self.finished, self.failed = [], [], []
        self.runs = {}
        self.lock = threading.Lock()

        def wait_s(taken_s):
            return math.inf if len(taken_s) >= lanes else free(taken_s)

        self.pipeline = FramePipeline(self.queue, self, self.order, wait_s, lanes)

    def gate(self, item):
        with self.lock:
            return self.runs.setdefault(item, (threading.Event(), threading.Event()))

    def prepare_frame(self, item, ticket):
        self.prepared.append(item)
        if item == "bad":
            raise ValueError("cannot be prepared")
        return item

    def infer_frame(self, item, prepared):
        assert prepared == item
        begun, go = self.gate(item)
        begun.set()
        assert go.wait(60)
        if item == "lost":
            raise ValueError("lost on the way")
        return item

    def finish_frame(self, item, prepared, inferred):
        assert (prepared, inferred) == (item, item)
        self.finished.append(item)

    def fail_frame(self, item, error):
        self.finished.append(item)
        self.failed.append((item, str(error)))

    def release(self, *items):
        for item in items:
            self.gate(item)[1].set()


@pytest.mark.process
def test_two_are_under_way_and_results_leave_in_their_order():
    stage = Stage(2)
    stage.pipeline.start()
    for item in range(3):
        stage.queue.offer_frame(item)
    assert stage.gate(0)[0].wait(60)
    assert stage.gate(1)[0].wait(60), "the second one runs beside the first"
    assert stage.pipeline.under_way == 2
    stage.release(1)
    assert not stage.gate(2)[0].wait(0.05), "the third waits until the first has its result"
    assert stage.finished == []
    stage.release(0, 2)
    assert stage.pipeline.drain(60)
    assert stage.finished == stage.prepared == [0, 1, 2]


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(st.permutations(range(4)), st.integers(1, 4))
def test_results_are_ordered_and_one_for_each_frame_whichever_stage_is_ready_first(answers, lanes):
    stage = Stage(lanes)
    stage.pipeline.start()
    for item in range(4):
        stage.queue.offer_frame(item)
    for item in answers:
        stage.release(item)
    assert stage.pipeline.drain(60)
    assert stage.finished == [0, 1, 2, 3]
    assert stage.queue.counts.taken == 4


def test_a_frame_that_fails_has_its_result_in_its_turn_wherever_it_failed():
    stage = Stage(2)
    for item in ("first", "bad", "lost", "last"):
        stage.queue.offer_frame(item)
    stage.pipeline.start()
    stage.release("lost", "last")
    assert stage.gate("first")[0].wait(60)
    assert stage.finished == [], "what failed waits for the frame before it"
    stage.release("first")
    assert stage.pipeline.drain(60)
    assert stage.finished == ["first", "bad", "lost", "last"]
    assert stage.failed == [("bad", "cannot be prepared"), ("lost", "lost on the way")]
    assert math.isfinite(stage.order.first_since_s(stage.order.take_ticket())), "no ticket is left"


def test_draining_gives_two_that_are_under_way_and_one_that_waits_their_results():
    stage = Stage(2)
    stage.pipeline.start()
    for item in range(3):
        stage.queue.offer_frame(item)
    assert stage.gate(0)[0].wait(60)
    assert stage.gate(1)[0].wait(60)
    ended = []
    ending = threading.Thread(target=lambda: ended.append(stage.pipeline.drain(60)))
    ending.start()
    while not stage.queue.closed:
        time.sleep(0.001)
    assert stage.queue.offer_frame("too late") is False
    stage.release(1, 2, 0)
    ending.join(60)
    assert ended == [True]
    assert stage.finished == [0, 1, 2]


def test_while_no_frame_may_start_the_newest_one_replaces_the_waiting_one():
    queue, now = LatestFrameQueue(), []
    queue.offer_frame("old")
    taken = []
    taker = threading.Thread(
        target=lambda: taken.append(queue.take_next_frame(wait_s=lambda: 0.0 if now else math.inf))
    )
    taker.start()
    queue.offer_frame("new")
    now.append(1)
    queue.wake_takers()
    taker.join(60)
    assert taken == ["new"]
    assert queue.counts.superseded == 1
