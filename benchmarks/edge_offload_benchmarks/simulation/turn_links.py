"""Ways to give turns over emulated links, whose bandwidth decides how long each offload takes."""

from __future__ import annotations

import itertools
import math
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from edge_offload_benchmarks.simulation.staleness import RATE
from edge_offload_benchmarks.simulation.turn_taking import Estimates, Pair, Planned, Turns, take_turns
from edge_offload_research.emulate.trace import named_link

#: Links, and the share of their bandwidth that the robot has.
LINKS = (("wifi_indoors", 1.0), ("wifi_outdoors", 1.0), ("wifi_outdoors", 0.1))
#: Seconds that the server computes for people and for the scene, and by how much less or more, at random.
COMPUTES_S, UNEVEN = ((0.12, 0.12), (0.35, 0.45)), (0.9, 1.3)
#: Weights of people and scene.
WEIGHTS = ((0.2, 0.8), (0.5, 0.5), (0.8, 0.2))
#: Frames that an offload takes at most, and the least bandwidth (bytes per second): then it is given up.
MOST_FRAMES, LEAST_RATE = 25, 20e3
CHOOSERS: Mapping[str, Callable[[Tuple[float, float]], Any]] = {"turns": Turns, "plan": Planned}


def over_links(train: Sequence[Pair], validation: Sequence[Pair], seeds: int) -> List[Dict[str, Any]]:
    """The record's ``links``: by link, ``turns`` against ``plan``.

    Args:
        train: stretches that come first.
        validation: stretches that are judged.
        seeds: runs differ by where in the trace they begin, and by how uneven the server is.
    """
    rows = []
    for link, share in LINKS if seeds else ():
        drops: Dict[str, List[Dict[str, Any]]] = {name: [] for name in CHOOSERS}
        cases = itertools.product(COMPUTES_S, range(seeds), WEIGHTS, (False, True))
        for computes_s, seed, weights, local in cases:
            ways = _ways(link, share, computes_s, seed)
            for name, chooser in CHOOSERS.items():
                drops[name].append(_lived(train, validation, chooser(weights), weights, local, ways))
        ratios = [ours["drop"] / other["drop"] for ours, other in zip(drops["turns"], drops["plan"])]
        ages = {f"{name}_stale_s": np.mean([one["stale_s"] for one in drops[name]], axis=0).tolist() for name in drops}
        mean = math.exp(float(np.mean(np.log(ratios))))
        rows.append({"link": link, "share": share, "runs": len(ratios), "mean": mean, "least": min(ratios),
                     "most": max(ratios), **ages})  # fmt: skip
    return rows


def _lived(
    train: Sequence[Pair], validation: Sequence[Pair], choose: Any, weights: Sequence[float], local: bool,
    ways: Callable[[Pair, int], Callable[[int, int], int]],
) -> Dict[str, Any]:  # fmt: skip
    estimates, drops, stale = Estimates(), [], []
    for number, pair in enumerate((*train, *validation)):
        outcome = take_turns(pair, choose, estimates, local, way=ways(pair, number))
        if number >= len(train):
            drops.append(outcome.drops)
            stale.append(outcome.stale)
    lost, age = np.concatenate(drops, axis=1).mean(axis=1), np.concatenate(stale, axis=1).mean(axis=1) / RATE
    return {"drop": float(np.dot(weights, lost)), "stale_s": age.tolist()}


def _ways(
    link: str, share: float, computes_s: Sequence[float], seed: int
) -> Callable[[Pair, int], Callable[[int, int], int]]:
    """Make the latencies of offloads of a pair of stretches in frames, by task and frame."""
    named = named_link(link)
    start_s = float(np.random.default_rng(seed).uniform(0, named.up.period_s))

    def of(pair: Pair, number: int) -> Callable[[int, int], int]:
        # by frame, so that all schedules have the same luck
        uneven = np.random.default_rng([seed, number]).uniform(*UNEVEN, (2, pair.end))

        def way(k: int, frame: int) -> int:
            rate = max(LEAST_RATE, share * named.up.rate_at(start_s + frame / RATE))
            sends_s = float(pair.tables[k].about["bytes"]) / rate + named.up_delay_s + named.down_delay_s
            latency_s = computes_s[k] * float(uneven[k, frame]) + sends_s
            return min(MOST_FRAMES, max(1, math.ceil(latency_s * RATE - 1e-9)))

        return way

    return of
