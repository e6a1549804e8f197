"""Every way to run a network as a pipeline that answers in time: cuts, classes, shares of a GPU, one batch size.

(4.5.4, 4.B.) Of those with the same classes only the Pareto front of the stages' rates per GPU is retained: no plan
needs another.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import List, Mapping, Sequence, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.server.pool.links import NEAR
from edge_offload.server.pool.profile import BlockProfile


@dataclass(frozen=True)
class Cluster:
    """Machines and links of a pool.

    Attributes:
        gpus: number of GPUs by class.
        bytes_per_s: of each machine's link, each way.
        per_machine: GPUs of a class that share a machine and its link (default 1).
        link_share: share of a machine's link that a stage may fill; 0: no rule, and links do not bound rates.
    """

    gpus: Mapping[str, int]
    bytes_per_s: float
    per_machine: Mapping[str, int] = field(default_factory=dict)
    link_share: float = 0.8

    @property
    def class_names(self) -> Tuple[str, ...]:
        """Names of the classes, in the order of the plan's tables."""
        return tuple(self.gpus)


@dataclass(frozen=True)
class Demand:
    """Requirements of one network.

    Attributes:
        network: its profile.
        slo_s: latency of an answer (seconds).
        weight: its share of the load, against the other networks'.
    """

    network: BlockProfile
    slo_s: float
    weight: float = 1.0


@dataclass(frozen=True)
class PipelineColumns:
    """Pipelines with the same classes, stage by stage.

    Attributes:
        classes: of the stages.
        bounds: [n, stages + 1] first blocks of the stages, and the number of blocks.
        parts: [n, stages] parts into which a stage's GPUs are divided.
        batch: [n].
        rates: [n, stages] frames per second that one whole GPU of the stage does.
        latency_s: [n] seconds from the first stage to the answer, transfers included, nothing waiting.
    """

    classes: Tuple[str, ...]
    bounds: Array
    parts: Array
    batch: Array
    rates: Array
    latency_s: Array

    def select_rows(self, rows: Array) -> PipelineColumns:
        """Return these rows only."""
        return PipelineColumns(
            self.classes, self.bounds[rows], self.parts[rows], self.batch[rows], self.rates[rows], self.latency_s[rows]
        )


def list_pipelines(demand: Demand, cluster: Cluster, margin: float, most_stages: int) -> List[PipelineColumns]:
    """Return all pipelines of the network that answer within ``slo_s * (1 - margin)``; the best of each kind.

    Raises:
        BadInput: there is none; the message gives the fastest one's latency.
    """
    network = demand.network
    usable = [gpu for gpu in cluster.class_names if gpu in network.latency_s]
    if not usable:
        raise BadInput(
            f"nothing says what {network.name} takes on {' or '.join(cluster.class_names)}",
            remedy=f"its profile knows {', '.join(network.latency_s)}; measure with 'edge-offload pool profile'",
        )
    sums = {
        (gpu, parts): np.vstack([np.zeros(table.shape[1]), np.cumsum(table, axis=0)])
        for gpu in usable
        for parts, table in network.latency_s[gpu].items()
    }
    result: List[PipelineColumns] = []
    fastest = np.inf
    for stages in range(1, min(most_stages, network.blocks) + 1):
        cuts = itertools.combinations(range(1, network.blocks), stages - 1)
        bounds = np.array([(0, *cut, network.blocks) for cut in cuts])
        for classes in itertools.product(usable, repeat=stages):
            group = []
            for parts in itertools.product(*(sorted(network.latency_s[gpu]) for gpu in classes)):
                columns = _evaluate_cuts(network, cluster, classes, parts, bounds, sums)
                fastest = min(fastest, float(columns.latency_s.min()))
                in_time = columns.latency_s <= demand.slo_s * (1 - margin) * (1 + NEAR)
                if in_time.any():
                    group.append(columns.select_rows(in_time))
            if group:
                result.append(_keep_best(group))
    if not result:
        raise BadInput(
            f"{network.name}: the fastest pipeline answers after {fastest:.6f} s, "
            f"and {demand.slo_s * (1 - margin):.6f} s are left of {demand.slo_s:g} s",
            remedy="allow more time, or a smaller margin",
        )
    return result


def _evaluate_cuts(
    network: BlockProfile,
    cluster: Cluster,
    classes: Tuple[str, ...],
    parts: Sequence[int],
    bounds: Array,
    sums: Mapping[Tuple[str, int], Array],
) -> PipelineColumns:
    """Evaluate all cuts and batch sizes for these classes and shares."""
    largest = min(sums[key].shape[1] for key in zip(classes, parts))
    batches = np.arange(1, largest + 1)
    transfer_s = network.cut_bytes / cluster.bytes_per_s
    latency = np.zeros((len(bounds), largest))
    rates = np.zeros((len(bounds), largest, len(classes)))
    for stage, (gpu, share) in enumerate(zip(classes, parts)):
        first, end = bounds[:, stage], bounds[:, stage + 1]
        compute_s = sums[gpu, share][end, :largest] - sums[gpu, share][first, :largest]
        rate = batches * share / compute_s
        for cut in ([first] if stage else []) + ([end] if stage < len(classes) - 1 else []):
            if cluster.link_share:
                per_gpu = cluster.link_share / cluster.per_machine.get(gpu, 1)
                rate = np.minimum(rate, (per_gpu / np.maximum(transfer_s[cut - 1], 1e-15))[:, None])
        if stage < len(classes) - 1:
            latency += transfer_s[end - 1][:, None] * batches
        latency += compute_s
        rates[:, :, stage] = rate
    rows = len(bounds) * largest
    return PipelineColumns(
        classes,
        np.repeat(bounds, largest, axis=0),
        np.tile(np.array(parts), (rows, 1)),
        np.tile(batches, len(bounds)),
        rates.reshape(rows, -1),
        latency.reshape(rows),
    )


def _keep_best(group: Sequence[PipelineColumns]) -> PipelineColumns:
    """Return those of one kind that no other dominates in every stage."""
    together = PipelineColumns(
        group[0].classes,
        *(
            np.concatenate([getattr(columns, name) for columns in group])
            for name in ("bounds", "parts", "batch", "rates", "latency_s")
        ),
    )
    return together.select_rows(pareto_rows(together.rates))


def pareto_rows(rates: Array) -> Array:
    """Return rows that no other row dominates in every column; one of those that are equal."""
    order = np.lexsort([-rates[:, column] for column in range(rates.shape[1] - 1, -1, -1)])
    if rates.shape[1] == 1:
        first: Array = order[:1]
        return first
    remaining = rates[order]
    front: List[int] = []
    while len(order):
        front.append(int(order[0]))
        surviving = (remaining > remaining[0] * (1 + NEAR)).any(axis=1)
        order, remaining = order[surviving], remaining[surviving]
    return np.array(front)
