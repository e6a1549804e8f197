"""Batches in windows: what holds for every problem, by a checker of its own, and that compiled plans are the same."""

from __future__ import annotations

import array
import random
from dataclasses import replace
from itertools import repeat
from typing import Any, Dict, List, Sequence, Tuple

import pytest

from edge_offload.errors import Unsupported
from edge_offload.native.libraries import WINDOWS
from edge_offload.native.loader import Library
from edge_offload.server.promises import planner, windows
from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.promises.packing import Batch, Pace
from edge_offload.server.promises.planner import Client, Moment, make_schedule
from edge_offload.server.promises.settings import Wish
from tests.server.promises import reference_windows

#: Of a detector on a GPU (ms, by batch).
GPU = Latencies((0.0194, 0.0323, 0.0468, 0.0602))


@pytest.fixture(scope="module", autouse=True)
def compiled() -> Any:
    """The compiled planner."""
    if not windows.is_ready(wait=True):
        pytest.skip(f"the compiled planner is not there: {windows._library.why_not}")
    return windows._library.module


def test_without_a_compiler_plans_are_made_by_the_order_of_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Library(WINDOWS)
    missing.why_not = "there is no C compiler"
    monkeypatch.setattr(windows, "_library", missing)
    assert make_schedule(a_fleet(1), GPU, Moment(0.3, 2.0)).batches
    assert not make_schedule(a_fleet(12), GPU, Moment(0.3, 2.0)).intervals, "none is in windows"
    with pytest.raises(Unsupported, match="no compiled planner: there is no C compiler"):
        windows.plan_batches([], [], GPU, 0.0, 1.0)


def a_problem(source: random.Random) -> Tuple[List[Pace], List[float], Latencies, float, float, float]:
    seconds = [source.uniform(0.003, 0.1)]
    for _ in range(source.randrange(8)):
        seconds.append(seconds[-1] + source.choice([0.0, source.uniform(0, 0.05)]))
    begin = source.uniform(-5, 1e5)
    paces, ways = [], []
    for n in range(source.randrange(0, 20)):
        frame_interval = source.choice([0.1, 1 / 30, source.uniform(0.01, 0.2)])
        interval = source.choice([float(source.randint(1, 9)), source.uniform(1, 9)])
        arrival = begin - source.uniform(-0.3, 0.5)
        late = -source.choice([0.0, 0.05]) * frame_interval
        paces.append(
            Pace(
                str(n),
                interval,
                source.randint(1, 9),
                source.choice([source.randint(-5, 99), 2**53]),
                arrival,
                frame_interval,
                late,
            )
        )
        ways.append(source.uniform(0, 0.1))
    return (
        paces,
        ways,
        Latencies(tuple(seconds)),
        begin,
        begin + source.choice([0, 0.5, 2.0]),
        source.choice([0, 0.03, 0.3]),
    )


def check(paces: Sequence[Pace], ways: Sequence[float], latencies: Latencies, begin: float, plan: List[Batch]) -> None:
    """What has to hold, told from the problem and the plan alone."""
    free, newest = begin, {place: pace.frame for place, pace in enumerate(paces)}
    for batch in plan:
        places = [place for place, _ in batch.members]
        assert batch.start >= free - 1e-9, "one batch at a time"
        assert 1 <= len(places) == len(set(places)), "a robot at most once"
        assert len(places) <= min([len(latencies.seconds)] + [paces[place].batch for place in places]), (
            "the strictest member"
        )
        free = batch.start + latencies.seconds[len(places) - 1]
        for place, frame in batch.members:
            pace = paces[place]
            assert frame > newest[place], "frames rise"
            newest[place] = frame
            arrival = pace.arrival + (frame - pace.frame) * pace.frame_interval
            assert batch.start >= arrival - 1e-6 * pace.frame_interval - 1e-6, "it has come"
            # had the next frame been computed at once when it came, its result would not be used any sooner
            use = free + ways[place] - arrival
            largest = min(pace.batch, len(latencies.seconds))
            soonest = ways[place] + latencies.seconds[largest - 1] + 0.15 * pace.frame_interval
            assert use <= soonest + pace.frame_interval + 1e-6, "in its window"


def test_plans_of_random_problems_hold_together() -> None:
    source = random.Random(4)
    batches = larger = 0
    for _ in range(10_000):
        paces, ways, latencies, begin, until, grace = a_problem(source)
        plan = windows.plan_batches(paces, ways, latencies, begin, until, grace)
        check(paces, ways, latencies, begin, plan)
        batches += len(plan)
        larger += sum(len(batch.members) > 1 for batch in plan)
    assert batches > 100_000, "the problems say something"
    assert larger > 20_000, "and of batches"


def test_compiled_and_python_make_the_same_plans() -> None:
    source = random.Random(5)
    for _ in range(1_500):
        problem = a_problem(source)
        assert windows.plan_batches(*problem) == reference_windows.batches(*problem)


def test_frames_beyond_what_is_exact_in_floating_point_are_numbered_as_they_are() -> None:
    problem = next(one for one in map(a_problem, repeat(random.Random(7))) if len(one[0]) > 3)
    paces = [pace._replace(frame=2**53 + 1) for pace in problem[0]]
    plan = windows.plan_batches(paces, *problem[1:])
    first = {place: frame for batch in reversed(plan) for place, frame in batch.members}
    usual = windows.plan_batches([pace._replace(frame=0) for pace in paces], *problem[1:])
    assert first
    assert first == {place: frame + 2**53 + 1 for batch in reversed(usual) for place, frame in batch.members}


def test_the_compiled_planner_refuses_what_would_never_end(compiled: Any) -> None:
    fine = [0.0, 0.1, 0.05, 1.0, 2.0, 7.0]
    compute = compiled.batches
    first = compute(array.array("d", fine), array.array("d", [0.02]), 0.0, 1.0, 0.0, 0.4)[0]
    assert first[1][0][1] > 7, "frames count from the one that was asked for"
    wrongs = ((1, 0.0), (1, -0.1), (1, float("nan")), (2, 0.01), (3, 0.0), (4, 0.0), (0, float("inf")), (5, 2.0**54))
    for place, wrong in wrongs:
        with pytest.raises(ValueError, match="no windows"):
            compute(
                array.array("d", [*fine[:place], wrong, *fine[place + 1 :]]), array.array("d", [0.02]), 0, 1, 0, 0.4
            )
    for facts, table in ((fine[:5], [0.02]), ([], [0.02]), (fine, []), (fine, [0.0])):
        with pytest.raises(ValueError, match="no windows"):
            compute(array.array("d", facts), array.array("d", table), 0.0, 1.0, 0.0, 0.4)


def frames_of(plan: Sequence[Batch], count: int) -> Dict[int, List[int]]:
    return {one: [frame for batch in plan for place, frame in batch.members if place == one] for one in range(count)}


def test_robots_with_simultaneous_frames_share_windows() -> None:
    """A device that computes one of two before it is too late for the other's frame: each has every other frame."""
    paces = [Pace(str(n), 2.0, 1, 0, 0.0, 0.1, 0.0) for n in range(2)]
    plan = windows.plan_batches(paces, [0.03, 0.03], Latencies((0.05,)), 0.05, 3.0)
    frames = frames_of(plan, 2)
    assert not set(frames[0]) & set(frames[1])
    assert all(later - earlier == 2 for mine in frames.values() for earlier, later in zip(mine[1:], mine[2:]))


def a_fleet(count: int, seed: int = 6) -> List[Client]:
    """Robots at 10 Hz that lose much when a result is a frame older than it could be."""
    source = random.Random(seed)
    clients = []
    for n in range(count):
        up, down = source.choice([(0.013, 0.007), (0.040, 0.017), (0.008, 0.003)])
        wish = Wish(0.04, 0.0134, 0.1, up, down, 4, usual=up, flicker=0.18, settle=0.8)
        clients.append(Client(str(n), wish, 0, -source.uniform(0.0, 0.2)))
    return clients


def test_windows_serve_more_robots_than_the_order_of_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    def count_served() -> int:
        count = 0
        while make_schedule(a_fleet(count + 1), GPU, Moment(0.3, 2.0, grace=0.03)).holds:
            count += 1
        return count

    in_windows = count_served()
    monkeypatch.setattr(planner._Trial, "fit_windows", planner._Trial.fit_back_to_back)
    assert in_windows >= 1.25 * count_served()


def test_the_plan_makes_up_for_what_robots_had_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not all can be held, nobody is far beyond what is left to it; what was had before counts."""

    def beyond() -> float:
        worst = []
        for seed in range(12):
            clients = [
                replace(one, spare=(-0.4 if n % 3 == 0 else 0.3) * one.wish.bound)
                for n, one in enumerate(a_fleet(12, seed))
            ]
            plan = make_schedule(clients, GPU, Moment(0.3, 2.0, grace=0.03))
            worst.append(max((drop - one.spare) / one.wish.bound for drop, one in zip(plan.drops, clients)))
        return sum(worst) / len(worst)

    made_up = beyond()
    monkeypatch.setattr(planner, "_rank_plan", lambda plan: (not plan.holds, plan.worst, plan.overfull))
    assert made_up < 0.95 * beyond()
