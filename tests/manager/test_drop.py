"""Drop estimates: an affine curve over staleness, followed where it is measured, the task's mean where it is not."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Callable

import pytest

from edge_offload.errors import BadInput
from edge_offload.manager.drop import DropEstimator, Habits
from tests.manager.curves import check_curves


def follow(
    estimator: DropEstimator,
    chance: random.Random,
    slope: Callable[[float], float],
    begin_s: float = 0.0,
    seconds: float = 60.0,
    intercept: float = 0.15,
    noise: float = 0.03,
) -> float:
    """Comparisons every 0.4 s of results that are 0.4 to 1.2 s old; the time of the last one."""
    now = begin_s
    while now < begin_s + seconds:
        stale_s = chance.choice([0.4, 0.8, 1.2])
        drop = intercept + slope(now) * stale_s + chance.gauss(0, noise)
        estimator.add_comparison(now, stale_s, min(1.0, max(0.0, drop)))
        now += 0.4
    return now - 0.4


@pytest.mark.parametrize("seed", range(12))
def test_slope_and_intercept_are_distinguished(seed: int) -> None:
    chance = random.Random(seed)
    slope, intercept = chance.uniform(0.0, 0.4), chance.uniform(0.05, 0.25)
    estimator = DropEstimator()
    now = follow(estimator, chance, lambda _: slope, intercept=intercept)
    curve = estimator.curve(now)
    assert abs(curve.slope - slope) < max(3 * curve.slope_error, 0.02)
    assert curve.slope_error < 0.1
    assert abs(curve.intercept - intercept) < 0.06
    assert curve.carried(1.0) == pytest.approx(intercept + slope, abs=0.05)
    assert curve.age_s == 0


def test_an_immediate_loss_is_excluded_from_the_line() -> None:
    believed = Habits(0.05, 0.01, 0.1, 0.01, intercept_s=600.0, slope_s=600.0, noise=0.03, mean_gain=0.0)
    curves = {}
    for error in (0.0, 0.1):
        estimator = DropEstimator(replace(believed, level_error=error))
        now = follow(estimator, random.Random(5), lambda _: 0.1, intercept=0.25, seconds=120)
        curves[error] = estimator.curve(now)
    assert curves[0.0].intercept > 0.15, "else it is taken for flicker"
    assert curves[0.1].slope == pytest.approx(0.1, abs=0.01)
    assert curves[0.1].intercept == pytest.approx(0.05, abs=0.01)


def test_a_flickering_network_has_no_slope() -> None:
    estimator = DropEstimator()
    now = follow(estimator, random.Random(1), lambda _: 0.0, intercept=0.19, seconds=120)
    assert estimator.curve(now).slope < 0.05
    assert estimator.curve(now).intercept == pytest.approx(0.19, abs=0.04)


def test_a_step_of_the_slope_is_followed_within_seconds() -> None:
    estimator, chance = DropEstimator(), random.Random(2)
    now = follow(estimator, chance, lambda _: 0.02)
    now = follow(estimator, chance, lambda _: 0.4, begin_s=now + 0.4, seconds=4)
    assert estimator.curve(now).slope > 0.25
    assert estimator.curve(now).intercept == pytest.approx(0.15, abs=0.06)
    now = follow(estimator, chance, lambda _: 0.0, begin_s=now + 0.4, seconds=4)
    assert estimator.curve(now).slope < 0.12


def test_where_nothing_is_measured_the_slope_goes_back_to_the_tasks_mean() -> None:
    estimator, chance = DropEstimator(), random.Random(3)
    now = follow(estimator, chance, lambda now: 0.1 if now % 40 < 20 else 0.3, seconds=400)
    now = follow(estimator, chance, lambda _: 0.6, begin_s=now + 0.4, seconds=6)
    before, later, late = estimator.curve(now), estimator.curve(now + 5), estimator.curve(now + 1000)
    assert before.slope > later.slope > late.slope
    assert late.slope == pytest.approx(0.2, abs=0.1)
    assert before.slope_error < later.slope_error < late.slope_error
    assert late.age_s == pytest.approx(1000)


def test_the_local_algorithm_is_followed_and_preferred_where_it_is_better() -> None:
    estimator = DropEstimator()
    assert estimator.curve(0.0).local is None
    chance = random.Random(5)
    now = follow(estimator, chance, lambda _: 0.3)
    for step in range(30):
        estimator.add_local_comparison(now + 0.4 * step, 0.35 + chance.gauss(0, 0.03))
    curve = estimator.curve(now + 12)
    assert curve.local == pytest.approx(0.35, abs=0.05)
    assert curve.carried(0.3) <= curve.local < curve.carried(2.0)
    assert estimator.curve(now + 500).local_error > 2 * curve.local_error


@pytest.mark.parametrize("seed", range(6))
def test_whatever_comes_curves_are_bounded_and_memory_is_constant(seed: int) -> None:
    check_curves(DropEstimator(), random.Random(seed))


@pytest.mark.parametrize(
    ("stale_s", "drop"), [(0.0, 0.1), (-1.0, 0.1), (math.nan, 0.1), (0.4, math.nan), (0.4, 1.1), (0.4, -0.1)]
)
def test_impossible_values_teach_nothing(stale_s: float, drop: float) -> None:
    estimator = DropEstimator()
    follow(estimator, random.Random(6), lambda _: 0.2, seconds=5)
    before = estimator.curve(5.0)
    with pytest.raises(BadInput):
        estimator.add_comparison(5.0, stale_s, drop)
    assert estimator.curve(5.0) == before


def test_habits_without_sense_are_refused() -> None:
    with pytest.raises(BadInput, match="slope_error"):
        Habits(slope_error=0.0)
    with pytest.raises(BadInput, match="noise"):
        Habits(noise=math.nan)
