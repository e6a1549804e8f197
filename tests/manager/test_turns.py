"""Turns: the task that gains most, in the long run about as good as the best period; the oldest result among equals."""

from __future__ import annotations

from typing import Optional, Tuple

import pytest

from edge_offload.manager.turn_giver import Rules
from edge_offload.manager.turns import Task, choose
from edge_offload_benchmarks.experiments import multitask


@pytest.mark.parametrize("latencies", [(2, 2), (4, 4), (5, 4), (2, 6)])
def test_at_constant_rates_no_period_is_better_by_much(latencies: Tuple[int, int]) -> None:
    for row in multitask.constant_rates([1, 2, 3, 5, 10, 30], latencies):
        assert row["long_run"] <= 1.01 * row["best_period"], row


def test_equal_tasks_go_by_the_oldest_result() -> None:
    stale = {"a": 0.3, "b": 0.1, "c": 0.2}
    order = []
    for _ in range(6):
        first = choose([Task(name, 0.1, age, 0.2) for name, age in stale.items()], Rules.max_run)
        stale = {name: age + 0.1 for name, age in stale.items()}
        stale[first] = 0.1
        order.append(first)
    assert order == ["a", "c", "b"] * 2


def test_a_task_that_loses_nothing_waits_at_most_until_max_run() -> None:
    still, moves = Task("still", 0.2, 5.0, 0.0), Task("moves", 0.2, 0.4, 0.1)
    assert choose([still, moves]) == "moves"
    assert choose([still, moves], Rules.max_run, ("moves", Rules.max_run - 1)) == "moves"
    assert choose([still, moves], Rules.max_run, ("moves", Rules.max_run)) == "still"
    assert choose([moves], Rules.max_run, ("moves", Rules.max_run)) == "moves", "nobody else is there"
    assert choose([still, moves], None, ("moves", 99)) == "moves"


@pytest.mark.parametrize(("local", "first"), [(None, "old"), (0.15, "fresh")])
def test_a_local_algorithm_bounds_what_an_old_result_loses(local: Optional[float], first: str) -> None:
    assert choose([Task("old", 0.2, 2.0, 0.1, 0.1, local), Task("fresh", 0.2, 1.0, 0.1, 0.1)]) == first


def test_no_result_loses_more_than_everything() -> None:
    dead, other = Task("dead", 0.2, 1e6, 0.1), Task("other", 0.2, 9.0, 0.1, weight=2.0)
    assert choose([dead, other]) == "other"


def test_tasks_with_longer_server_times_get_fewer_turns() -> None:
    assert choose([Task("slow", 0.6, 1.0, 0.1), Task("quick", 0.2, 0.8, 0.1)]) == "quick"


def test_weights_count() -> None:
    assert choose([Task("a", 0.2, 1.0, 0.1), Task("b", 0.2, 0.6, 0.1, weight=4.0)]) == "b"
