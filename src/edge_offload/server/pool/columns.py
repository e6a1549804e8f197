"""Every way to run a network as a pipeline that answers in time: cuts, classes, shares of a GPU, one batch size.

(4.5.4, 4.B.) Of those with the same classes only such are kept as are not beaten in every stage's rate per GPU: no plan
needs another.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import List, Mapping, Sequence, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.server.pool.profile import Network

_NEAR = 1e-9


@dataclass(frozen=True)
class Cluster:
    """What there is.

    Attributes:
        gpus: how many of each class.
        bytes_per_s: of each machine's link, each way.
        per_machine: GPUs of a class that share a machine and its link (1 where it is not said).
        link_share: share of a machine's link that a stage may fill; 0: no rule, and links do not bound rates.
    """

    gpus: Mapping[str, int]
    bytes_per_s: float
    per_machine: Mapping[str, int] = field(default_factory=dict)
    link_share: float = 0.8

    @property
    def classes(self) -> Tuple[str, ...]:
        """Names of the classes, in the order of the plan's tables."""
        return tuple(self.gpus)


@dataclass(frozen=True)
class Demand:
    """What is asked of the plan for one network.

    Attributes:
        network: its profile.
        slo_s: seconds from a request to its answer.
        weight: its share of the load, against the other networks'.
    """

    network: Network
    slo_s: float
    weight: float = 1.0


@dataclass(frozen=True)
class Columns:
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

    def take(self, rows: Array) -> Columns:
        """Only these rows."""
        return Columns(
            self.classes, self.bounds[rows], self.parts[rows], self.batch[rows], self.rates[rows], self.latency_s[rows]
        )


def pipelines(demand: Demand, cluster: Cluster, margin: float, most_stages: int) -> List[Columns]:
    """All pipelines of the network that answer within ``slo_s * (1 - margin)``; the best of each kind.

    Raises:
        BadInput: there is none; the message says what the fastest takes.
    """
    network = demand.network
    known = [gpu for gpu in cluster.classes if gpu in network.latency_s]
    if not known:
        raise BadInput(
            f"nothing says what {network.name} takes on {' or '.join(cluster.classes)}",
            remedy=f"its profile knows {', '.join(network.latency_s)}; measure with 'edge-offload pool profile'",
        )
    sums = {
        (gpu, parts): np.vstack([np.zeros(table.shape[1]), np.cumsum(table, axis=0)])
        for gpu in known
        for parts, table in network.latency_s[gpu].items()
    }
    found: List[Columns] = []
    fastest = np.inf
    for stages in range(1, min(most_stages, network.blocks) + 1):
        cuts = itertools.combinations(range(1, network.blocks), stages - 1)
        bounds = np.array([(0, *cut, network.blocks) for cut in cuts])
        for classes in itertools.product(known, repeat=stages):
            group = []
            for parts in itertools.product(*(sorted(network.latency_s[gpu]) for gpu in classes)):
                columns = _columns(network, cluster, classes, parts, bounds, sums)
                fastest = min(fastest, float(columns.latency_s.min()))
                keep = columns.latency_s <= demand.slo_s * (1 - margin) * (1 + _NEAR)
                if keep.any():
                    group.append(columns.take(keep))
            if group:
                found.append(_best(group))
    if not found:
        raise BadInput(
            f"{network.name}: the fastest pipeline answers after {fastest:.6f} s, "
            f"and {demand.slo_s * (1 - margin):.6f} s are left of {demand.slo_s:g} s",
            remedy="allow more time, or a smaller margin",
        )
    return found


def _columns(
    network: Network,
    cluster: Cluster,
    classes: Tuple[str, ...],
    parts: Sequence[int],
    bounds: Array,
    sums: Mapping[Tuple[str, int], Array],
) -> Columns:
    """All cuts and batch sizes for these classes and shares."""
    largest = min(sums[key].shape[1] for key in zip(classes, parts))
    batches = np.arange(1, largest + 1)
    transfer_s = network.cut_bytes / cluster.bytes_per_s
    latency = np.zeros((len(bounds), largest))
    rates = np.zeros((len(bounds), largest, len(classes)))
    for stage, (gpu, share) in enumerate(zip(classes, parts)):
        first, end = bounds[:, stage], bounds[:, stage + 1]
        taken = sums[gpu, share][end, :largest] - sums[gpu, share][first, :largest]
        rate = batches * share / taken
        for cut in ([first] if stage else []) + ([end] if stage < len(classes) - 1 else []):
            if cluster.link_share:
                a_gpu = cluster.link_share / cluster.per_machine.get(gpu, 1)
                rate = np.minimum(rate, (a_gpu / np.maximum(transfer_s[cut - 1], 1e-15))[:, None])
        if stage < len(classes) - 1:
            latency += transfer_s[end - 1][:, None] * batches
        latency += taken
        rates[:, :, stage] = rate
    rows = len(bounds) * largest
    return Columns(
        classes,
        np.repeat(bounds, largest, axis=0),
        np.tile(np.array(parts), (rows, 1)),
        np.tile(batches, len(bounds)),
        rates.reshape(rows, -1),
        latency.reshape(rows),
    )


def _best(group: Sequence[Columns]) -> Columns:
    """Those of one kind that no other beats in every stage."""
    together = Columns(
        group[0].classes,
        *(
            np.concatenate([getattr(columns, name) for columns in group])
            for name in ("bounds", "parts", "batch", "rates", "latency_s")
        ),
    )
    return together.take(not_beaten(together.rates))


def not_beaten(rates: Array) -> Array:
    """Rows that no other row reaches in every column; one of those that are equal."""
    order = np.lexsort([-rates[:, column] for column in range(rates.shape[1] - 1, -1, -1)])
    if rates.shape[1] == 1:
        first: Array = order[:1]
        return first
    left = rates[order]
    kept: List[int] = []
    while len(order):
        kept.append(int(order[0]))
        stays = (left > left[0] * (1 + _NEAR)).any(axis=1)
        order, left = order[stays], left[stays]
    return np.array(kept)
