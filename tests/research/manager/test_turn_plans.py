"""Turns: the plan of the search is that of Algorithm 1's listing, and in the long run as good as the best period."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any, Iterator, List, Optional, Sequence, Tuple

import pytest

from edge_offload.errors import BadInput
from edge_offload_research.turn_plans import Plan, Problem, Task, count_plans, plan_turns


def frames(latencies: Sequence[int], last: Sequence[int], rates: Sequence[float], **more: Any) -> Problem:
    """A problem in frames: tasks a, b, ..."""
    given = {"locals_": [None] * len(rates), "weights": [1.0] * len(rates), "intercepts": [0.0] * len(rates)}
    given.update({name: more.pop(name) for name in list(more) if name in given})
    tasks = [
        Task("abcdefgh"[k], latencies[k], last[k], rates[k], given["intercepts"][k], given["locals_"][k],
             given["weights"][k])
        for k in range(len(rates))
    ]  # fmt: skip
    return Problem(tuple(tasks), **{"horizon_s": 30, "max_run": None, "terminal": False, **more})


def listing(problem: Problem) -> Iterator[Tuple[List[Tuple[int, str]], float]]:
    """Algorithm 1, word by word: every valid plan, frame by frame, with what it costs."""
    tasks, horizon = problem.tasks, int(problem.horizon_s)

    def go(plan: List[Tuple[int, str]], now: int, last_task: str, row: int) -> Iterator[List[Tuple[int, str]]]:
        if now >= horizon:
            yield plan
            return
        for task in tasks:
            length = row + 1 if task.name == last_task else 1
            if problem.max_run is None or len(tasks) == 1 or length <= problem.max_run:
                yield from go([*plan, (now, task.name)], now + int(task.latency_s), task.name, length)

    for offloads in go([], 0, *problem.run):
        cost = 0.0
        for frame in range(horizon):
            for task in tasks:
                usable = [when for when, name in offloads if name == task.name and when + task.latency_s <= frame]
                stale = frame - (max(usable) if usable else task.last_s)
                drop = task.intercept + task.rate * stale
                cost += task.weight * (drop if task.local is None else min(drop, task.local))
        yield offloads, cost


def some_problem(chance: random.Random) -> Problem:
    tasks = chance.choice([1, 2, 2, 2, 3])
    latencies = [chance.randint(2, 6) for _ in range(tasks)]
    return frames(
        latencies,
        [-chance.randint(0, 14) for _ in latencies],
        [chance.choice([0.0, chance.random() * 0.03]) for _ in latencies],
        locals_=[chance.choice([None, chance.random() * 0.4]) for _ in latencies],
        weights=[chance.choice([1.0, chance.random() * 4]) for _ in latencies],
        intercepts=[chance.choice([0.0, chance.random() * 0.2]) for _ in latencies],
        horizon_s=chance.randint(3, 14),
        max_run=chance.choice([None, 1, 2, 3]),
        run=chance.choice([("", 0), ("a", 1), ("a", 3)]),
    )


@pytest.mark.parametrize("seed", range(10))
def test_plan_costs_what_the_best_of_all_listed_plans_costs(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(110):
        problem = some_problem(chance)
        listed = list(listing(problem))
        planned = plan_turns(problem)
        assert planned.cost == pytest.approx(min(cost for _, cost in listed), abs=1e-9), problem
        assert count_plans(problem) == len(listed), problem
        (cost_listed,) = [cost for offloads, cost in listed if offloads == [tuple(one) for one in planned.offloads]]
        assert cost_listed == pytest.approx(planned.cost, abs=1e-9)
        assert planned.first == planned.offloads[0][1]


def test_custom_merge_function_is_minimised_over_all_plans() -> None:
    chance = random.Random(7)
    for _ in range(60):
        problem = some_problem(chance)
        worst = Problem(problem.tasks, problem.horizon_s, problem.max_run, problem.run, terminal=False, merge=max)
        costs = []
        for offloads, _ in listing(problem):
            cost = 0.0
            for frame in range(int(problem.horizon_s)):
                drops = []
                for task in problem.tasks:
                    usable = [when for when, name in offloads if name == task.name and when + task.latency_s <= frame]
                    drops.append(task.drop_at(frame - (max(usable) if usable else task.last_s)))
                cost += max(drops)
            costs.append(cost)
        assert plan_turns(worst).cost == pytest.approx(min(costs), abs=1e-9)


def test_example_of_figure_2_5() -> None:
    problem = frames([2, 2], [-4, -2], [0.01, 0.02], locals_=[0.05, 0.045], horizon_s=4)
    assert [[name for _, name in offloads] for offloads, _ in listing(problem)] == [
        ["a", "a"], ["a", "b"], ["b", "a"], ["b", "b"],
    ]  # fmt: skip
    # the plan [2, 0, 1, 0]: min(4 r1, d1), min(5 r1, d1), ... for task 1; 2, 3, 2, 3 frames for task 2
    costs = {"".join(name for _, name in offloads): cost for offloads, cost in listing(problem)}
    assert costs["ba"] == pytest.approx(0.04 + 3 * 0.05 + 0.04 + 0.045 + 0.04 + 0.045)
    assert plan_turns(problem) == Plan("a", pytest.approx(min(costs.values())), ((0.0, "a"), (2.0, "a")))
    assert count_plans(problem) == 4


@pytest.mark.parametrize(("max_run", "plans"), [(None, 135), (3, 88)])
def test_number_of_plans(max_run: Optional[int], plans: int) -> None:
    assert count_plans(frames([5, 4], [-9, -4], [1, 1], max_run=max_run)) == plans


def best_period(latencies: Sequence[int], rates: Sequence[float], most: int = 8, max_run: int = 3) -> float:
    """Mean cost per frame of the best schedule that repeats itself after at most so many turns."""
    best = math.inf
    for length in range(1, most + 1):
        for period in itertools.product(range(len(rates)), repeat=length):
            rows = [len(list(same)) for _, same in itertools.groupby(period * 3)]
            if len(set(period)) < len(rates) or max(rows) > max_run:
                continue
            starts = [sum(latencies[k] for k in period[:turn]) for turn in range(length)]
            total = sum(latencies[k] for k in period)
            cost = 0.0
            for k, rate in enumerate(rates):
                own_starts = [begin for turn, begin in zip(period, starts) if turn == k]
                for begin, after in zip(own_starts, [*own_starts[1:], own_starts[0] + total]):
                    gap = after - begin
                    cost += rate * (gap * latencies[k] + gap * (gap - 1) / 2)
            best = min(best, cost / total)
    return best


def long_run(latencies: Sequence[int], rates: Sequence[float], terminal: bool = True, turns: int = 260) -> float:
    """Mean cost per frame when every turn is the first one of a plan that is made when it is due."""
    now, last, run, cost, counted = 0, [-9 - k for k in range(len(rates))], ("", 0), 0.0, 0
    for turn in range(turns):
        problem = frames(latencies, [when - now for when in last], rates, max_run=3, run=run, terminal=terminal)
        k = "abcdefgh".index(plan_turns(problem).first)
        run = ("abcdefgh"[k], run[1] + 1 if run[0] == "abcdefgh"[k] else 1)
        for frame in range(now, now + latencies[k]):
            if turn >= 20:
                cost += sum(rate * (frame - when) for rate, when in zip(rates, last))
                counted += 1
        last[k], now = now, now + latencies[k]
    return cost / counted


@pytest.mark.parametrize("latencies", [(4, 4), (5, 4), (7, 2)])
@pytest.mark.parametrize("ratio", [1, 3, 5, 10, 30])
def test_at_constant_rates_no_period_is_better_by_much(latencies: Tuple[int, int], ratio: float) -> None:
    assert long_run(latencies, (1, ratio), turns=90) <= 1.005 * best_period(latencies, (1, ratio))


def test_three_tasks_are_as_good_as_the_best_period() -> None:
    assert long_run((5, 4, 7), (1, 3, 10), turns=60) <= 1.005 * best_period((5, 4, 7), (1, 3, 10), most=5)


def test_terminal_cost_is_what_does_it() -> None:
    best = best_period((4, 4), (1, 30))
    assert long_run((4, 4), (1, 30), terminal=False, turns=90) > 1.02 * best


def test_a_task_that_loses_nothing_gets_one_turn_in_four() -> None:
    now, last, run, turns = 0, [-9, -10], ("", 0), []
    for _ in range(40):
        first = plan_turns(
            frames((4, 4), [when - now for when in last], (0.0, 0.01), max_run=3, run=run, terminal=True)
        ).first
        turns.append(first)
        run = (first, run[1] + 1 if run[0] == first else 1)
        last["ab".index(first)], now = now, now + 4
    assert turns.count("b") >= 30


def test_times_in_seconds_are_those_of_frames() -> None:
    """71 and 61 ms at 60 frames a second are 5 and 4 frames (section 2.8.3); drops are per second and frame."""
    interval = 1 / 60
    tasks = tuple(
        Task(name, latency, last * interval, rate * 60, interval_s=interval)
        for name, latency, last, rate in (("a", 0.07098, -9, 0.011), ("b", 0.06105, -4, 0.03))
    )
    planned = plan_turns(Problem(tasks, 30 * interval, 3, terminal=False))
    same = plan_turns(frames([5, 4], [-9, -4], [0.011, 0.03], max_run=3))
    places = [when / interval for when, _ in planned.offloads]
    assert places == pytest.approx([round(place) for place in places], abs=1e-5)
    gaps = {"a": 5, "b": 4}
    assert [round(after - before) for before, after in zip(places, places[1:])] == [
        gaps[name] for _, name in planned.offloads[:-1]
    ]
    assert planned.cost == pytest.approx(same.cost * interval)


def test_tasks_of_other_rates_wait_for_their_frames() -> None:
    fast = Task("fast", 0.25, -0.3, 1.0, interval_s=0.1)
    slow = Task("slow", 0.25, -0.5, 5.0, interval_s=0.5, next_s=0.2)
    planned = plan_turns(Problem((fast, slow), 3.0, 1, terminal=False))
    for when, name in planned.offloads:
        phase = when / 0.1 if name == "fast" else (when - 0.2) / 0.5
        assert phase == pytest.approx(round(phase), abs=1e-6)
    whens = [when for when, _ in planned.offloads]
    assert all(after - before >= 0.25 - 1e-9 for before, after in zip(whens, whens[1:]))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("terminal", [False, True])
def test_tasks_of_any_rates_are_planned(seed: int, terminal: bool) -> None:
    chance = random.Random(seed)
    for _ in range(40):
        tasks = tuple(
            Task(name, chance.uniform(0.05, 1.2), -chance.choice([0.0, chance.random() * 40]), chance.random(),
                 chance.random(), chance.choice([None, 0.5]), 1.0, chance.choice([0.033, 0.1, 0.7]),
                 chance.choice([0.0, 0.03]))
            for name in "abc"[: chance.choice([2, 2, 3])]
        )  # fmt: skip
        problem = Problem(tasks, 3.0, chance.choice([None, 1, 3]), terminal=terminal)
        planned = plan_turns(problem)
        latency = {task.name: task.latency_s for task in tasks}
        ends = [when + latency[name] for when, name in planned.offloads]
        assert all(after >= end - 1e-6 for end, (after, _) in zip(ends, planned.offloads[1:]))
        assert 0 <= planned.cost < math.inf


def test_two_in_flight_are_never_three() -> None:
    chance = random.Random(3)
    for _ in range(30):
        one = some_problem(chance)
        two = Problem(one.tasks, one.horizon_s, one.max_run, one.run, terminal=False, in_flight=2)
        planned = plan_turns(two)
        assert planned.cost <= plan_turns(one).cost + 1e-9
        latency = {task.name: task.latency_s for task in two.tasks}
        for when, _ in planned.offloads:
            under_way = [name for other, name in planned.offloads if other <= when < other + latency[name]]
            assert len(under_way) <= 2
        assert len({when for when, _ in planned.offloads}) == len(planned.offloads)


def test_an_offload_that_is_under_way_is_waited_for() -> None:
    problem = frames([3, 3], [-4, -5], [0.1, 0.2], horizon_s=12, busy_s=(2.0,))
    assert plan_turns(problem).offloads[0][0] == 2


def test_four_tasks_are_planned_in_little_more_time_than_two() -> None:
    """Latencies of 4 frames: a listing would compare 4 ** 8 plans; states that are looked at are bounded instead."""
    assert count_plans(frames([4] * 4, [-5, -7, -9, -11], [1, 2, 3, 0.5])) == 4**8
    plan_turns(
        frames([4] * 4, [-5, -7, -9, -11], [0.01, 0.02, 0.03, 0.005], max_run=3, terminal=True), most_states=8000
    )


BAD = [
    ({"rates": [math.nan, 1]}, "rate is nan"),
    ({"rates": [-1, 1]}, "rate is -1"),
    ({"weights": [1, math.inf]}, "weight is inf"),
    ({"locals_": [None, math.nan]}, "local is nan"),
    ({"latencies": [0, 4]}, "latency_s is 0"),
    ({"last": [1, -4]}, "in the future"),
    ({"last": [-(10**9), -4]}, "frames old"),
    ({"max_run": 0}, "max_run is 0"),
    ({"horizon_s": math.nan}, "a horizon of nan"),
    ({"horizon_s": 1e6}, "frames within the horizon"),
    ({"latencies": [1e-6, 1]}, "turns within the horizon"),
    ({"run": ("c", 1)}, "the last turns"),
    ({"in_flight": 0}, "offloads in flight"),
]


@pytest.mark.parametrize(("wrong", "expected"), BAD, ids=[message for _, message in BAD])
def test_what_cannot_be_meant_is_refused(wrong: Any, expected: str) -> None:
    facts = {"latencies": [5, 4], "last": [-9, -4], "rates": [1, 1], **wrong}
    with pytest.raises(BadInput, match=expected):
        frames(**facts)


def test_equal_names_and_no_tasks_are_refused() -> None:
    task = Task("a", 4, -4, 1)
    with pytest.raises(BadInput, match="several tasks are called a"):
        Problem((task, task))
    with pytest.raises(BadInput, match="0 tasks"):
        Problem(())


def test_too_many_states_are_refused() -> None:
    with pytest.raises(BadInput, match="more than 50 states"):
        plan_turns(frames([2] * 4, [-5, -7, -9, -11], [1, 2, 3, 0.5], terminal=True), most_states=50)


def test_a_merge_function_without_sense_is_refused() -> None:
    problem = frames([4, 4], [-5, -6], [0.1, 0.2], merge=lambda drops: math.nan)
    with pytest.raises(BadInput, match="merge function gave nan"):
        plan_turns(problem)
