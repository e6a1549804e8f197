"""Drop estimates that content corrects at once."""

from __future__ import annotations

import math
import random

import pytest

from edge_offload.errors import BadInput
from edge_offload_research.content_drops import ContentDropEstimator
from tests.manager.curves import check_curves


def test_content_corrects_the_slope_at_once() -> None:
    chance = random.Random(4)
    blind, seeing = ContentDropEstimator(), ContentDropEstimator(features=["speed"])
    errors = {id(blind): 0.0, id(seeing): 0.0}
    now = 0.0
    for _ in range(600):
        speed = chance.choice([0.0, 1.0, 2.0])
        slope = 0.05 + 0.15 * speed
        for estimator in (blind, seeing):
            errors[id(estimator)] += abs(estimator.curve(now, {"speed": speed}).slope - slope) if now > 60 else 0.0
        drop = 0.1 + slope * 0.8 + chance.gauss(0, 0.02)
        for estimator in (blind, seeing):
            estimator.add_comparison(now, 0.8, min(1.0, max(0.0, drop)), {"speed": speed})
        now += 0.4
    assert errors[id(seeing)] < 0.4 * errors[id(blind)]
    assert seeing.curve(now).slope == pytest.approx(seeing.curve(now, {"speed": 1.0}).slope, abs=0.05)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_comes_curves_are_bounded_and_memory_is_constant(seed: int) -> None:
    chance = random.Random(seed)
    check_curves(
        ContentDropEstimator(features=["speed", "turn"]),
        chance,
        lambda: {"speed": chance.choice([0.0, 1e6, -3.0])} if chance.random() < 0.7 else None,
    )


def test_nothing_is_learned_from_a_feature_that_is_no_number() -> None:
    estimator = ContentDropEstimator(features=["speed"])
    for step in range(20):
        estimator.add_comparison(0.4 * step, 0.4, 0.2, {"speed": step % 3})
    before = estimator.curve(8.0)
    with pytest.raises(BadInput, match="speed"):
        estimator.add_comparison(8.0, 0.4, 0.1, {"speed": math.nan})
    assert estimator.curve(8.0) == before


def test_features_that_are_named_twice_are_refused() -> None:
    with pytest.raises(BadInput, match="features"):
        ContentDropEstimator(features=["speed", "speed"])
