"""Number of GPUs of each stage of each pipeline: exact, without a solver.

Whole GPUs belong to one stage (4.21 with whole ``g / v``). For every number of GPUs of each class, ``Table.single`` is
the best rate of one pipeline that uses just these; ``Table.total`` that of any set of pipelines that fits in them, its
max-plus closure. Several networks share a cluster by max-min convolution of their totals over weight. The table has an
entry for each combination of GPU counts, and the time grows with the square of their number.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.server.pool.columns import Cluster, Demand, PipelineColumns, list_pipelines
from edge_offload.server.pool.links import NEAR


@dataclass(frozen=True)
class PlannedStage:
    """One stage of a pipeline.

    Attributes:
        first, end: its blocks, ``end`` excluded.
        gpu: class of its GPUs.
        parts: each GPU is divided into this many.
        batch: of the whole pipeline.
        gpus: their number.
    """

    first: int
    end: int
    gpu: str
    parts: int
    batch: int
    gpus: int


@dataclass(frozen=True)
class PlannedPipeline:
    """A network in stages.

    Attributes:
        network: its name.
        rate: frames per second.
        latency_s: of one batch without waiting.
        stages: in order.
    """

    network: str
    rate: float
    latency_s: float
    stages: Tuple[PlannedStage, ...]


@dataclass(frozen=True)
class PoolPlan:
    """Pipelines of all networks and their GPUs.

    Attributes:
        objective: frames per second for a weight of 1, the least of all networks; for a given load: GPUs.
        pipelines: of all networks; those of one network with the same blocks, classes and batch are one.
        rates: frames per second by network.
        passed_over: objective of a plan with a higher rate and fewer answers in time; 0: there is none.
    """

    objective: float
    pipelines: Tuple[PlannedPipeline, ...]
    rates: Dict[str, float]
    passed_over: float = 0.0

    @property
    def gpus(self) -> Dict[str, int]:
        """GPUs in use, by class."""
        used: Dict[str, int] = {}
        for pipeline in self.pipelines:
            for stage in pipeline.stages:
                used[stage.gpu] = used.get(stage.gpu, 0) + stage.gpus
        return used


class RateTable:
    """The best rates of one network for every combination of GPU counts.

    Args:
        columns: its pipelines.
        cluster: machines and links.
        most_gpus: limit of a stage; None: all of them.
    """

    def __init__(self, columns: Sequence[PipelineColumns], cluster: Cluster, most_gpus: Optional[int] = None) -> None:
        self._columns = columns
        self._most_gpus = most_gpus
        self._classes = cluster.class_names
        self._shape = tuple(count + 1 for count in cluster.gpus.values())
        self._row_of = np.full(self._shape, -1)  # nothing
        self.single = np.zeros(self._shape)
        self._offsets = np.cumsum([0] + [len(one.batch) for one in columns])
        for offset, one in zip(self._offsets, columns):
            self._enter_columns(one, int(offset))
        self.total, self._choice = _close_sums(self.single)

    def best_pipelines(self, network: str, gpus: Tuple[int, ...]) -> List[PlannedPipeline]:
        """Return the best pipelines for these counts."""
        pipelines = []
        remaining = gpus
        while any(remaining):
            choice = int(self._choice[remaining])
            if choice < 0:  # a GPU of class -choice - 1 is of no use here
                remaining = tuple(count - (place == -choice - 1) for place, count in enumerate(remaining))
                continue
            used = tuple(int(count) for count in np.unravel_index(choice, self._shape))
            if self.single[used] <= 0:
                break
            pipelines.append(self._make_pipeline(network, used))
            remaining = tuple(count - less for count, less in zip(remaining, used))
        return pipelines

    def _enter_columns(self, group: PipelineColumns, offset: int) -> None:
        """Enter each pipeline with 1, 2, … GPUs in its bottleneck stage, and the fewest in the others."""
        places = [self._classes.index(gpu) for gpu in group.classes]
        steps = np.array([math.prod(self._shape[place + 1 :]) for place in range(len(self._shape))])
        for bound, place in enumerate(places):
            counts = np.arange(1, self._shape[place])
            if not len(counts):
                return
            rate = group.rates[:, bound, None] * counts
            needed = np.ceil(rate[:, :, None] / group.rates[:, None, :] * (1 - NEAR)).astype(int)
            needed[:, :, bound] = counts
            needed = np.maximum(needed, 1)
            allowed = (needed <= (self._most_gpus or needed.max(initial=1))).all(axis=2)
            used = np.zeros((*rate.shape, len(self._shape)), int)
            for stage, axis in enumerate(places):
                used[:, :, axis] += needed[:, :, stage]
            rows, columns = np.nonzero(allowed & (used < np.array(self._shape)).all(axis=2))
            entries = used[rows, columns] @ steps
            rates = rate[rows, columns]
            order = np.argsort(rates, kind="stable")
            entries, rates, rows = entries[order], rates[order], rows[order]
            better = rates > self.single.reshape(-1)[entries] * (1 + NEAR)
            self.single.reshape(-1)[entries[better]] = rates[better]
            self._row_of.reshape(-1)[entries[better]] = offset + rows[better]

    def _make_pipeline(self, network: str, used: Tuple[int, ...]) -> PlannedPipeline:
        row = int(self._row_of[used])
        group = int(np.searchsorted(self._offsets, row, side="right")) - 1
        group_columns, row = self._columns[group], row - int(self._offsets[group])
        rate = float(self.single[used])
        counts = [max(1, math.ceil(rate / stage_rate * (1 - NEAR))) for stage_rate in group_columns.rates[row]]
        stages = tuple(
            PlannedStage(
                int(group_columns.bounds[row, stage]), int(group_columns.bounds[row, stage + 1]), gpu,
                int(group_columns.parts[row, stage]), int(group_columns.batch[row]), counts[stage],
            )
            for stage, gpu in enumerate(group_columns.classes)
        )  # fmt: skip
        return PlannedPipeline(network, rate, float(group_columns.latency_s[row]), stages)


def plan_most(demands: Sequence[Demand], cluster: Cluster, margin: float = 0.4, most_stages: int = 3) -> PoolPlan:
    """Return the plan with the greatest rate: for several networks, the greatest least rate over weight.

    Raises:
        BadInput: too large a cluster, or a network that no pipeline answers in time.
    """
    tables = make_tables(demands, cluster, margin, most_stages)
    return merge_alike(share_cluster(demands, tables, cluster))


def make_tables(demands: Sequence[Demand], cluster: Cluster, margin: float, most_stages: int) -> List[RateTable]:
    """Make a table for each network. Raises as :func:`plan_most`."""
    check_cluster(cluster)
    return [RateTable(list_pipelines(demand, cluster, margin, most_stages), cluster) for demand in demands]


def share_cluster(demands: Sequence[Demand], tables: Sequence[RateTable], cluster: Cluster) -> PoolPlan:
    """Maximise the least rate over weight of all networks, from their tables."""
    full = tuple(cluster.gpus.values())
    best = tables[0].total / demands[0].weight
    choices = []
    for demand, table in zip(demands[1:], tables[1:]):
        best, choice = _max_min(best, table.total / demand.weight)
        choices.append(choice)
    remaining, counts = full, []
    for choice in reversed(choices):
        share = tuple(int(count) for count in np.unravel_index(int(choice[remaining]), best.shape))
        counts.append(share)
        remaining = tuple(count - less for count, less in zip(remaining, share))
    counts = [remaining, *reversed(counts)]
    return make_plan(float(best[full]), demands, tables, counts)


def make_plan(
    objective: float, demands: Sequence[Demand], tables: Sequence[RateTable], counts: Sequence[Tuple[int, ...]]
) -> PoolPlan:
    """Make a plan from each network's share, from their tables."""
    all_pipelines: List[PlannedPipeline] = []
    rates = {}
    for demand, table, gpus in zip(demands, tables, counts):
        name = demand.network.name
        pipelines = table.best_pipelines(name, gpus)
        rates[name] = sum(pipeline.rate for pipeline in pipelines)
        all_pipelines.extend(pipelines)
    return PoolPlan(objective, tuple(all_pipelines), rates)


def merge_alike(plan: PoolPlan) -> PoolPlan:
    """Merge pipelines that differ only in their number of GPUs, so that any GPU of a stage can follow any."""
    alike: Dict[Tuple[str, Tuple[PlannedStage, ...]], List[PlannedPipeline]] = {}
    for pipeline in plan.pipelines:
        shape = tuple(replace(stage, gpus=0) for stage in pipeline.stages)
        alike.setdefault((pipeline.network, shape), []).append(pipeline)
    merged = []
    for group in alike.values():
        columns = zip(*(pipeline.stages for pipeline in group))
        stages = tuple(replace(stages_[0], gpus=sum(stage.gpus for stage in stages_)) for stages_ in columns)
        merged.append(replace(group[0], rate=sum(pipeline.rate for pipeline in group), stages=stages))
    return replace(plan, pipelines=tuple(merged))


def check_cluster(cluster: Cluster) -> None:
    """Check that a plan can be made for a cluster.

    Raises:
        BadInput: no GPUs, too many, or links of no bandwidth.
    """
    for gpu, count in cluster.gpus.items():
        if count < 1:
            raise BadInput(f"{count} GPUs of class {gpu}", remedy="1 is the least; omit a class without GPUs")
    combinations = math.prod(count + 1 for count in cluster.gpus.values())
    most = 40_000  # it bounds the time of a plan
    if not cluster.gpus or combinations > most:
        raise BadInput(
            f"{combinations} combinations of GPU counts, {most} are planned",
            remedy="plan for a part of the cluster, and put such parts side by side",
        )
    if not (math.isfinite(cluster.bytes_per_s) and cluster.bytes_per_s > 0):
        raise BadInput(
            f"links of {cluster.bytes_per_s} bytes per second", remedy="give what one machine's link carries"
        )
    if not 0 <= cluster.link_share <= 1:
        raise BadInput(f"a link share of {cluster.link_share}", remedy="0 (no rule) to 1")


def _close_sums(single: Array) -> Tuple[Array, Array]:
    """Return the best sum of entries for every count, and the entry that is used first there.

    A choice of ``-1 - class`` means that a GPU of this class is of no use there.
    """
    total = np.zeros_like(single)
    choice = np.full(single.shape, -1)  # nothing
    for counts in itertools.product(*map(range, single.shape)):
        if not any(counts):
            continue
        window = tuple(slice(0, count + 1) for count in counts)
        sums = single[window] + np.flip(total[window])
        place = int(np.argmax(sums))
        best = sums.reshape(-1)[place]
        entry = int(np.ravel_multi_index(np.unravel_index(place, sums.shape), single.shape))
        for axis, count in enumerate(counts):
            if count:
                without = total[tuple(one - (other == axis) for other, one in enumerate(counts))]
                if without >= best * (1 - NEAR):
                    best, entry = max(best, without), -1 - axis
        total[counts], choice[counts] = best, entry
    return total, choice


def _max_min(one: Array, other: Array) -> Tuple[Array, Array]:
    """Return the best least of both for every count divided between them, and the share of ``other``."""
    best = np.zeros_like(one)
    choice = np.zeros(one.shape, int)
    for counts in itertools.product(*map(range, one.shape)):
        window = tuple(slice(0, count + 1) for count in counts)
        least = np.minimum(np.flip(one[window]), other[window])
        place = int(np.argmax(least))
        best[counts] = least.reshape(-1)[place]
        choice[counts] = int(np.ravel_multi_index(np.unravel_index(place, least.shape), one.shape))
    return best, choice
