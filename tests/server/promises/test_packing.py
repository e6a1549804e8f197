"""Requests packed into batches: the chapter's examples, and what holds for every problem, by a checker of its own."""

from __future__ import annotations

import gc
import random
import sys
import time
from typing import Dict, List, Sequence, Tuple

import pytest

from edge_offload.errors import BadInput
from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.promises.packing import Batch, Pace, order_requests, pack_requests


def plan_of(
    paces: Sequence[Pace], latencies: Latencies, begin: float, horizon: float, grace: float = 0.0
) -> List[Batch]:
    return pack_requests(paces, order_requests(paces, begin + horizon), latencies, begin, grace)


def named(paces: Sequence[Pace], plan: Sequence[Batch]) -> List[Tuple[float, List[Tuple[str, int]]]]:
    return [(batch.start, [(paces[place].robot, frame) for place, frame in batch.members]) for batch in plan]


def test_packing_gives_the_plan_of_figure_3_10() -> None:
    paces = [Pace("1", 3, 2, 6, 8), Pace("2", 5, 2, 5, 7), Pace("3", 4, 2, 12, 9)]
    assert named(paces, plan_of(paces, Latencies((1.5, 2.0)), 11, 6)) == [
        (11, [("1", 9), ("2", 9)]),
        (13, [("3", 16), ("1", 11)]),
        (15, [("1", 13), ("2", 13)]),
        (17, [("3", 20)]),
    ]


def robots_served(offsets: Sequence[float], latencies: Latencies, moved: bool) -> int:
    """Robots of figure 3.4 (three that allow a batch of 3 and 2.5 frames, two that allow 1.5) that are served in time.

    ``moved``: packed and moved by Algorithm 2; else in batches of whoever is there, and too late is dropped.
    """
    allowed = [(2.5, 3)] * 3 + [(1.5, 1)] * 2
    paces = [Pace(str(n), 4, batch, 0, offset - 4) for n, (offset, (_, batch)) in enumerate(zip(offsets, allowed))]
    served = set()
    if moved:
        for batch in plan_of(paces, latencies, 0, 3.9):
            if batch.start + latencies.batch_latency(len(batch.members)) <= 4 + 1e-9:  # before the next round
                served |= {place for place, _ in batch.members}
        return len(served)
    free, waiting = 0.0, sorted(range(5), key=lambda place: offsets[place])
    while waiting:
        first = waiting[0]
        start = max(free, offsets[first])
        size = min(allowed[first][1], sum(1 for place in waiting if offsets[place] <= start))
        batch, waiting = waiting[:size], waiting[size:]
        if start + latencies.batch_latency(len(batch)) - offsets[first] <= allowed[first][0] + 1e-9:
            served |= set(batch)
            free = start + latencies.batch_latency(len(batch))
    return len(served)


def test_moving_a_request_holds_a_fourth_robot_as_in_figure_3_4() -> None:
    latencies = Latencies((1.5, 2.0, 2.5))
    assert robots_served([0, 0, 0, 0, 0], latencies, moved=False) == 3
    assert robots_served([0, 0, 0, 2.5, 0], latencies, moved=False) == 4
    assert robots_served([0, 0, 0, 0, 0], latencies, moved=True) == 4


def a_problem(source: random.Random) -> Tuple[List[Pace], Latencies, float, float, float]:
    lat = [source.uniform(0.2, 4)]
    for _ in range(source.randrange(6)):
        lat.append(lat[-1] + source.choice([0.0, source.uniform(0, 2)]))
    begin = source.uniform(-50, 50)
    paces = []
    for n in range(source.randrange(0, 9)):
        frame_interval = source.choice([1.0, 1.0, source.uniform(0.3, 3)])
        arrival = begin - source.uniform(-3, 12)
        paces.append(
            Pace(str(n), source.randint(1, 12), source.randint(1, 8), source.randint(-5, 99), arrival, frame_interval)
        )
    return paces, Latencies(tuple(lat)), begin, source.uniform(0, 25), source.choice([0.0, 0.1, source.random()])


def check(
    paces: Sequence[Pace], latencies: Latencies, begin: float, horizon: float, grace: float, plan: List[Batch]
) -> None:
    """What has to hold, told from the problem and the plan alone."""
    arrivals = sorted(
        (pace.arrival + count * pace.interval * pace.frame_interval, place)
        for place, pace in enumerate(paces)
        for count in range(1, 2 + int(max(0.0, begin + horizon - pace.arrival) / (pace.interval * pace.frame_interval)))
        if pace.arrival + count * pace.interval * pace.frame_interval <= begin + horizon
    )
    order = iter(place for _, place in arrivals)
    newest: Dict[int, int] = {place: pace.frame for place, pace in enumerate(paces)}
    start = begin
    for batch in plan:
        places = [place for place, _ in batch.members]
        if batch.start != pytest.approx(start, abs=1e-9):
            assert batch.start > start, "back to back"
            assert all(paces[place].frame_at(start) <= newest[place] for place in places), "idle for want of a frame"
            comes = [pace.arrival_of(newest[place] + 1) for place, pace in enumerate(paces)]
            assert batch.start <= min(comes[place] for place in places) + 1e-9, "no longer than until the next one"
            assert any(batch.start == pytest.approx(one, abs=1e-9) for one in comes), "until a frame comes"
        assert 1 <= len(places) == len(set(places)), "a robot at most once"
        assert len(places) <= min([len(latencies.seconds)] + [paces[place].batch for place in places]), (
            "the strictest member"
        )
        assert all(place in order for place in places), "the order of arrivals"
        for place, frame in batch.members:
            pace = paces[place]
            assert frame > newest[place], "frames rise"
            assert (
                abs(pace.arrival + (frame - pace.frame) * pace.frame_interval - batch.start)
                <= pace.frame_interval / 2 + 1e-9
            )
            newest[place] = frame
        start = batch.start + latencies.seconds[len(places) - 1] * (1 + grace)


def test_plans_of_random_problems_hold_together() -> None:
    source = random.Random(3)
    batches = larger = 0
    for _ in range(10_000):
        paces, latencies, begin, horizon, grace = a_problem(source)
        plan = plan_of(paces, latencies, begin, horizon, grace)
        check(paces, latencies, begin, horizon, grace, plan)
        assert bool(plan) == bool(order_requests(paces, begin + horizon)), (
            "a server does not stall for want of a new frame"
        )
        batches += len(plan)
        larger += sum(len(batch.members) > 1 for batch in plan)
        if all(
            pace.frame_interval <= latencies.seconds[0] and pace.arrival <= begin - pace.frame_interval
            for pace in paces
        ):
            requested = sum(len(batch.members) for batch in plan)
            assert requested == len(order_requests(paces, begin + horizon)), "nothing falls away where frames are new"
    assert batches > 20_000, "the problems say something"
    assert larger > 3_000, "and of batches"


def test_a_server_without_a_new_frame_waits_for_the_next_one() -> None:
    paces = [Pace("r0", 2, 1, 48, 14.6)]
    plan = plan_of(paces, Latencies((1.4,)), 14.9, 60)
    assert named(paces, plan)[:2] == [(pytest.approx(15.6), [("r0", 49)]), (pytest.approx(17.0), [("r0", 50)])]
    assert len(plan) == len(order_requests(paces, 14.9 + 60)) == 30


def test_a_faster_server_than_its_robots_does_not_end_its_plan_with_the_first_frames() -> None:
    paces = [Pace("a", 2, 2, 0, 0.0), Pace("b", 3, 2, 0, 0.5)]
    plan = plan_of(paces, Latencies((0.1, 0.15)), 1.0, 12)
    assert sum(len(batch.members) for batch in plan) >= 8
    check(paces, Latencies((0.1, 0.15)), 1.0, 12, 0.0, plan)


@pytest.mark.parametrize("arrival", [1e17, -1e17])
def test_times_so_large_that_none_passes_end_the_plan(arrival: float) -> None:
    assert plan_of([Pace("a", 1, 1, 0, arrival)], Latencies((1.0,)), arrival, 10) == []


def test_a_batch_ends_where_a_member_would_not_allow_it() -> None:
    paces = [Pace("tolerant", 1, 4, 0, 0), Pace("another", 1, 4, 0, 0), Pace("strict", 1, 1, 0, 0)]
    plan = plan_of(paces, Latencies((1.0, 1.5, 2.0, 2.5)), 1, 0)
    assert named(paces, plan) == [(1, [("tolerant", 1), ("another", 1)]), (2.5, [("strict", 3)])]


@pytest.mark.parametrize("speed", [1.0, 100.0], ids=["busy", "idle"])
def test_packing_costs_work_in_proportion_to_the_requests(speed: float) -> None:
    paces = [Pace(str(n), 3 + n % 4, 1 + n % 5, 0, -(n % 3)) for n in range(16)]
    latencies = Latencies(tuple(seconds / speed for seconds in (1.0, 1.4, 1.8, 2.2, 2.6)))

    def count_calls(horizon: float) -> int:
        calls = 0

        def count(_frame: object, _event: str, _argument: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(count)
        try:
            plan_of(paces, latencies, 0, horizon)
        finally:
            sys.setprofile(None)
        return calls

    def measure(horizon: float) -> float:
        begin = time.thread_time()
        plan_of(paces, latencies, 0, horizon)
        return time.thread_time() - begin

    assert count_calls(4_000) <= 10.5 * count_calls(400)
    gc.disable()  # it takes longer the more there is, whatever the planner does
    try:
        turns = [(measure(4_000), measure(400)) for _ in range(5)]
    finally:
        gc.enable()
    # work inside of calls, such as a search of a list, would take 100 times as long
    assert min(long for long, _ in turns) <= 40 * min(short for _, short in turns)


@pytest.mark.parametrize("table", [[], [0.0], [1.0, float("nan")], [2.0, 1.0], ["1"], [True], [1.0] * 65, None])
def test_a_latency_table_that_makes_no_sense_is_refused(table: object) -> None:
    with pytest.raises(BadInput):
        Latencies.parse(table)  # type: ignore[arg-type]
