"""A result for every frame: what leaves, when, and what is learnt of it. Results are numbers that grow by the frame."""

from __future__ import annotations

import math
import random
import threading
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_offload.errors import BadInput
from edge_offload.runtime.carrying import CARRIED, FRESH, LOCAL, NONE, Carrying, Events, FrameLoop

FRAME = 100_000_000


class Counting:
    """Carries a number along: one more for every frame."""

    degraded, way = "", (-1, -1)

    def carry(self, result: float, source: int, target: int) -> float:
        if target < source:
            raise BadInput("back in time")
        return result + (target - source) / FRAME

    def steps(self, result: float, source: int, target: int):
        """One for every frame that it was not carried over before."""
        if self.way[0] != source:
            self.way = (source, source)
        while self.way[1] < target:
            self.way = (source, self.way[1] + FRAME)
            yield


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def made(clock: Clock):
    departed = []
    carrying = Carrying(Counting(), lambda carried, own: min(1.0, abs(carried - own)), clock=clock)
    return FrameLoop(carrying, lambda frame, along: departed.append((frame, along)), clock), departed


def test_before_the_first_result_nothing_is_carried():
    clock = Clock()
    loop, departed = made(clock)
    for number in range(6):
        loop.arrived(f"frame {number}", number * FRAME, clock.now)
        if number == 3:
            loop.add_result(10.0, FRAME, clock.now - 0.2, "tag")
        clock.now += 0.1
    assert [(frame, along.result, along.origin) for frame, along in departed] == [
        ("frame 0", None, NONE), ("frame 1", None, NONE), ("frame 2", None, NONE), ("frame 3", None, NONE),
        ("frame 4", 13.0, CARRIED), ("frame 5", 14.0, CARRIED),
    ]  # fmt: skip
    assert (departed[-1][1].source, departed[-1][1].tag) == (FRAME, "tag")


@pytest.mark.parametrize("comes_s", [0.03, 0.2])
def test_a_frame_waits_for_what_else_its_result_needs_but_not_beyond_its_interval(comes_s):
    """Frames every 0.1 s, and something, such as a pose, that comes so long after each; the network is slow."""
    clock, departed, arrival_s = Clock(), [], {}
    carrying = Carrying(Counting(), lambda *_: 0.0, clock=clock)
    loop = FrameLoop(
        carrying,
        lambda frame, _: departed.append((frame, clock.now)),
        clock,
        waits=lambda frame: -math.inf if clock.now >= arrival_s[frame] else math.inf,
    )
    for number in range(5):
        arrival_s[number] = clock.now + comes_s
        loop.arrived(number, number * FRAME, clock.now)
        for _ in range(10):
            if loop.due_s <= clock.now:
                loop.flush()
            clock.now += 0.01
    assert [frame for frame, _ in departed] == [0, 1, 2, 3, 4]
    for frame, at_s in departed:
        waited_s = at_s - arrival_s[frame] + comes_s
        assert min(comes_s, 0.075) <= waited_s + 1e-6 <= min(comes_s, 0.075) + 0.0101


def test_the_networks_result_waits_for_what_else_it_needs_too():
    clock, departed, ready = Clock(), [], []
    carrying = Carrying(Counting(), lambda *_: 0.0, clock=clock)
    waits = lambda _: -math.inf if ready else math.inf  # noqa: E731
    loop = FrameLoop(carrying, lambda _, along: departed.append(along.origin), clock, waits)
    for number in range(4):
        loop.arrived(number, number * FRAME, clock.now)
        clock.now += 0.1
    loop.flush()
    departed.clear()
    loop.arrived(4, 4 * FRAME, clock.now)
    loop.add_result(10.0, 4 * FRAME, clock.now)
    assert not departed
    ready.append(True)
    assert loop.due_s <= clock.now
    loop.flush()
    assert departed == [FRESH]


def test_a_network_that_answers_in_time_is_waited_for_and_one_that_fails_to_is_not_waited_for_long():
    clock = Clock()
    loop, departed = made(clock)
    for number in range(8):
        loop.arrived(number, number * FRAME, clock.now)
        clock.now += 0.03
        loop.add_result(float(number), number * FRAME, clock.now - 0.03)
        clock.now += 0.07
    assert [along.origin for _, along in departed][-5:] == [FRESH] * 5
    loop.arrived(8, 8 * FRAME, clock.now)
    assert clock.now < loop.due_s < clock.now + 0.1
    clock.now = loop.due_s
    loop.flush()
    assert (departed[-1][0], departed[-1][1].origin, departed[-1][1].result) == (8, CARRIED, 8.0)
    assert loop.due_s == math.inf


@given(st.integers(0, 10_000))
def test_every_frame_leaves_once_and_in_order_whatever_comes_when(seed):
    chance = random.Random(seed)
    clock = Clock()
    loop, departed = made(clock)
    under_way, stamp, sent, catching_up = [], 0, [], []
    for number in range(60):
        stamp = max(1, stamp + chance.choice((FRAME, FRAME, FRAME, 2 * FRAME, -20 * FRAME)))
        loop.arrived(number, stamp, clock.now)
        sent.append(number)
        under_way.append((clock.now + chance.choice((0.02, 0.05, 0.35)), stamp, clock.now))
        ends = clock.now + 0.1
        while clock.now < ends:
            clock.now += 0.01
            for done, source, received in [each for each in under_way if each[0] <= clock.now]:
                under_way.remove((done, source, received))
                ways = (loop.add_result, lambda r, s, _: loop.add_local_result(r, s),
                        lambda r, s, when: catching_up.append(loop.coming(r, s, when)))  # fmt: skip
                chance.choice(ways)(1.0, source, received)
            if catching_up and next(catching_up[0], catching_up) is catching_up:
                del catching_up[0]
            if loop.due_s <= clock.now:
                loop.flush()
    loop.flush()
    assert [frame for frame, _ in departed] == sent
    assert all(along.source <= stamp for _, along in departed for stamp in [10**18])


def test_frames_leave_with_the_result_before_while_a_newer_one_is_caught_up():
    clock = Clock()
    loop, departed = made(clock)
    for number in range(11):
        loop.arrived(number, number * FRAME, clock.now)
        if number == 1:
            loop.add_result(100.0, 0, clock.now)
        if number == 6:
            steps = loop.coming(20.0, 2 * FRAME, clock.now)
        if number >= 6:
            next(steps, None)
            next(steps, None)
        clock.now += 0.1
    assert [(along.source, along.result) for _, along in departed][5:] == [
        (0, 105.0), (0, 106.0), (0, 107.0), (0, 108.0), (2 * FRAME, 27.0)
    ]  # fmt: skip
    assert next(steps, "ended") == "ended"


def test_a_result_that_is_caught_up_while_stamps_go_back_is_not_taken():
    clock = Clock()
    loop, departed = made(clock)
    for number in range(5):
        loop.arrived(number, number * FRAME, clock.now)
    steps = loop.coming(20.0, FRAME, clock.now)
    next(steps)
    loop.arrived(5, 0, clock.now)
    assert list(steps) == []
    loop.arrived(6, FRAME, clock.now)
    loop.flush()
    assert [along.origin for _, along in departed] == [NONE] * 7


def test_drops_are_learned_from_results_and_the_better_one_is_published():
    clock = Clock()
    carrying = Carrying(Counting(), lambda carried, own: min(1.0, abs(carried - own)), clock=clock)
    for number in range(0, 400, 4):
        # it grows by 1.1 a frame: what is carried over four has lost 0.4; the local one's is off by 0.2
        carrying.add_local_result(1.1 * number + 0.2, number * FRAME)
        carrying.add_result(1.1 * number, number * FRAME, number * FRAME)
        clock.now += 0.4
    curve = carrying.curve()
    assert curve.carried(0.4) == pytest.approx(0.4, abs=0.05)
    assert curve.local == pytest.approx(0.2, abs=0.05)
    last = 396
    carrying.add_local_result(7.0, (last + 5) * FRAME)
    assert carrying.at(last * FRAME).origin == FRESH
    assert carrying.at((last + 5) * FRAME).origin == LOCAL
    assert carrying.at((last + 5) * FRAME).drop < curve.carried(0.5)


def test_the_local_algorithm_is_compared_though_the_network_needs_many_frames():
    clock = Clock()
    loop, departed = made(clock)
    for number in range(60):
        loop.arrived(number, number * FRAME, clock.now, local=1.5 * number)
        if number >= 12:
            loop.add_result(1.5 * (number - 12), (number - 12) * FRAME, clock.now - 1.2)
        clock.now += 0.1
    assert loop.carrying.curve().local == pytest.approx(0.0, abs=0.1)
    assert {along.origin for _, along in departed[30:]} == {LOCAL}


def test_backward_stamps_drop_the_state_and_an_earlier_result_is_ignored():
    clock = Clock()
    loop, departed = made(clock)
    loop.arrived("a", 50 * FRAME, clock.now)
    loop.add_result(1.0, 50 * FRAME, clock.now - 1)
    loop.arrived("b", FRAME, clock.now)
    loop.add_result(5.0, 50 * FRAME, clock.now - 1)
    loop.arrived("c", 2 * FRAME, clock.now)
    assert [along.origin for _, along in departed] == [NONE, NONE, NONE]


def test_a_faulty_result_of_a_network_is_not_learned_from_and_the_next_is():
    comparisons = []

    def compared(*comparison):
        comparisons.append(comparison[:3])

    carrying = Carrying(Counting(), lambda carried, own: abs(carried - own), clock=Clock(), on_comparison=compared)
    carrying.add_result(0.0, 0, 0)
    carrying.add_local_result(1.0, FRAME)
    carrying.add_result(math.nan, FRAME, FRAME)
    assert (comparisons, carrying.curve().local) == ([], None)
    carrying.add_result(5.0, 2 * FRAME, 2 * FRAME)
    carrying.add_result(6.25, 3 * FRAME, 3 * FRAME)
    assert comparisons == [(3 * FRAME, 0.1, 0.25)]
    assert carrying.at(4 * FRAME).result == 7.25


def test_memory_stays_bounded_over_ten_thousand_frames():
    clock = Clock()
    loop, departed = made(clock)
    sizes = []
    tracemalloc.start()
    try:
        for number in range(10_000):
            loop.arrived(number, number * FRAME, clock.now, local=float(number))
            if number % 4 == 3:
                loop.add_result(float(number), (number - 3) * FRAME, clock.now - 0.3)
            clock.now += 0.1
            departed.clear()
            if number % 1000 == 999:
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert max(sizes[1:]) < sizes[0] + 20_000


@pytest.mark.process
def test_calls_are_made_one_after_the_other_and_all_before_the_end():
    made_calls, due = [], [math.inf]
    events = Events(lambda: due[0], lambda: (made_calls.append("due"), due.__setitem__(0, math.inf)), made_calls.append)
    events.start()
    for number in range(5):
        events.post(lambda number=number: made_calls.append(number))

    def fails() -> None:
        due[0] = 0.0
        raise ValueError("seen")

    events.post(fails)
    assert events.drain(5.0)
    assert made_calls[:5] == list(range(5))
    assert str(made_calls[5]) == "seen"
    assert made_calls[6] == "due"


@pytest.mark.process
def test_frames_and_what_is_due_pass_results_that_wait():
    made_calls, due, begun, go_on = [], [math.inf], threading.Event(), threading.Event()
    events = Events(lambda: due[0], lambda: (made_calls.append("due"), due.__setitem__(0, math.inf)), made_calls.append)
    events.start()
    events.post(lambda: (begun.set(), go_on.wait(5.0)))
    assert begun.wait(5.0)
    for number in range(2):
        events.post(lambda number=number: made_calls.append(f"result {number}"))
        events.post(lambda number=number: made_calls.append(f"frame {number}"), first=True)
    due[0] = 0.0
    go_on.set()
    assert events.drain(5.0)
    assert made_calls[:5] == ["frame 0", "frame 1", "due", "result 0", "result 1"]
