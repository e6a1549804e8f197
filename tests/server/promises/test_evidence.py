"""What a robot says it loses, held against what its results differ by."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from edge_offload.server.promises.settings import Wish
from edge_offload.server.services.promise.evidence import (
    LEAST_FACTOR,
    LEAST_RESULTS,
    MOST_FACTOR,
    ROUNDING,
    SAMPLED_NUMBERS,
    LossEvidence,
    result_difference,
)


def a_wish(slope: float, flicker: float = 0.0, noise: float = 0.0) -> Wish:
    return Wish(0.05, slope, 0.1, flicker=flicker, settle=0.8, noise=noise)


def seen(share: float, results: int = 3 * LEAST_RESULTS, stride: int = 2) -> LossEvidence:
    """Of a robot whose results differ by ``share`` from one to the next."""
    evidence, value = LossEvidence(), torch.ones(4)
    for number in range(results):
        evidence.add_result(number * stride, [value])
        value = value * (1 + share) / (1 - share)
    return evidence


def believed_slope(wish: Wish, frames: int = 2) -> float:
    return wish.slope * frames + wish.flicker * (1 - math.exp(-frames / wish.settle))


def test_what_results_bear_out_is_believed() -> None:
    evidence = seen(0.2)
    wish = a_wish(0.02, flicker=0.1, noise=0.1)
    assert evidence.limit_wish(wish) == wish
    assert evidence.note == ""


def test_a_robot_whose_results_hardly_differ_is_not_believed_to_lose_much() -> None:
    evidence = seen(0.005)
    believed = evidence.limit_wish(a_wish(0.5, flicker=0.5, noise=1.0))
    assert believed_slope(believed) == pytest.approx(MOST_FACTOR * 0.005, rel=0.01)
    assert believed.noise <= MOST_FACTOR * 0.005 * 1.01
    assert "says it loses 1.5 in 2.0 frames, while its results differ by 0.005: 0.05 is believed" in evidence.note
    assert evidence.limit_wish(a_wish(0.001)).slope == 0.001
    assert evidence.note == "", "it says otherwise now"


def test_a_robot_whose_results_differ_much_does_lose_something() -> None:
    evidence = seen(0.6)
    believed = evidence.limit_wish(a_wish(0.0))
    assert believed_slope(believed) == pytest.approx(LEAST_FACTOR * (0.6 - ROUNDING), rel=0.01)
    assert "0.006 is believed" in evidence.note


def test_few_results_are_no_evidence_and_those_of_another_time_are_not_compared() -> None:
    wild = a_wish(1.0)
    assert seen(0.0, results=LEAST_RESULTS).limit_wish(wild) == wild
    far = LossEvidence()
    for number in range(5 * LEAST_RESULTS):
        far.add_result(number * 1000, [torch.ones(4)])
    back = LossEvidence()
    for number in range(5 * LEAST_RESULTS):
        back.add_result(-number, [torch.ones(4)])
    assert far.limit_wish(wild) == back.limit_wish(wild) == wild


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        ([1.0, 1.0], [1.0, 1.0], 0.0),
        ([1.0, 0.0], [0.0, 1.0], 1.0),
        ([3.0], [1.0], 0.5),
        ([1, 2, 0, 3], [1, 2, 0, 4], 1 / 3),
        ([[1.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]], 1 / 3),
        ([], [], 0.0),
        ([0.0], [0.0], 0.0),
        ([1.0], [1], 1.0),
        ([math.nan], [1.0], 1.0),
    ],
)
def test_differences(before: list, after: list, share: float) -> None:
    assert result_difference([np.array(before)], [np.array(after)]) == pytest.approx(share)


def test_results_of_any_kind_and_size_are_compared() -> None:
    source = random.Random(1)
    kinds = (torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int64, torch.bool, torch.complex64)
    evidence = LossEvidence()
    for number in range(200):
        shape = [source.randrange(4) for _ in range(source.randrange(4))]
        value = torch.full(shape, source.choice([0.0, 1.0, math.inf]) if number % 3 else 1.0).nan_to_num(posinf=3.0)
        evidence.add_result(number, [value.to(source.choice(kinds)) for _ in range(source.randrange(3))])
    assert math.isfinite(evidence.limit_wish(a_wish(0.5)).slope)
    large = LossEvidence()
    for number in range(3 * LEAST_RESULTS):
        large.add_result(number, [torch.zeros(SAMPLED_NUMBERS, 5)])
    assert large.limit_wish(a_wish(1.0)).slope == pytest.approx(MOST_FACTOR * ROUNDING)
    buffer, same = torch.ones(4), LossEvidence()
    for number in range(3 * LEAST_RESULTS):
        buffer.fill_(number % 2 + 1.0)  # an engine may write its next outputs where the last ones were
        same.add_result(number, [buffer])
    assert same.limit_wish(a_wish(0.1)).slope == 0.1
