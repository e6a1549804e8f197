"""Small random networks and clusters."""

from __future__ import annotations

import random
from typing import Dict, Sequence

import numpy as np

from edge_offload.server.pool.columns import Cluster, Demand
from edge_offload.server.pool.profile import BlockProfile

BASE = {"H": 1.0, "M": 2.2, "L": 4.0}


def a_network(
    source: random.Random, name: str, classes: Sequence[str], blocks: int, batches: int, shares: int
) -> BlockProfile:
    latency: Dict[str, Dict[int, np.ndarray]] = {}
    work = [source.uniform(0.5, 3) for _ in range(blocks)]
    for gpu in classes:
        skill = [BASE[gpu] * source.uniform(0.6, 1.6) for _ in range(blocks)]
        latency[gpu] = {
            parts: np.array(
                [
                    [
                        1e-3 * work[b] * skill[b] * (0.5 + 0.5 * n) * (0.4 + 0.6 * parts)
                        for n in range(1, batches // parts + 1)
                    ]
                    for b in range(blocks)
                ]
            )
            for parts in range(1, shares + 1)
            if batches // parts
        }
    return BlockProfile(name, latency, np.array([source.uniform(1e4, 4e6) for _ in range(blocks - 1)]))


def a_demand(source: random.Random, network: BlockProfile, weight: float = 1.0) -> Demand:
    fastest = min(float(shares[1][:, 0].sum()) for shares in network.latency_s.values())
    return Demand(network, fastest * source.uniform(1.8, 6), weight)


def a_cluster(source: random.Random, classes: Sequence[str], most: int) -> Cluster:
    return Cluster(
        {gpu: source.randint(1, most) for gpu in classes},
        source.choice([1.25e8, 1.25e9]),
        {gpu: source.choice([1, 2, 4]) for gpu in classes},
        source.choice([0.0, 0.5, 1.0]),
    )
