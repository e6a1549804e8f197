"""How many GPUs each stage of each pipeline gets: exact, without a solver.

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
from edge_offload.server.pool.columns import Cluster, Columns, Demand, pipelines

#: Combinations of GPU counts that a plan is made for.
MAX_COMBINATIONS = 40_000
_NEAR = 1e-9
_NOTHING = -1


@dataclass(frozen=True)
class Stage:
    """One stage of a pipeline.

    Attributes:
        first, end: its blocks, ``end`` excluded.
        gpu: class of its GPUs.
        parts: each GPU is divided into this many.
        batch: of the whole pipeline.
        gpus: how many.
    """

    first: int
    end: int
    gpu: str
    parts: int
    batch: int
    gpus: int


@dataclass(frozen=True)
class Pipeline:
    """A network in stages.

    Attributes:
        network: its name.
        rate: frames per second.
        latency_s: of one batch when nothing waits.
        stages: in order.
    """

    network: str
    rate: float
    latency_s: float
    stages: Tuple[Stage, ...]


@dataclass(frozen=True)
class Plan:
    """What runs where.

    Attributes:
        objective: frames per second for a weight of 1, the least of all networks; for a given load: GPUs.
        pipelines: of all networks; those of one network with the same blocks, classes and batch are one.
        rates: frames per second by network.
        passed_over: objective of a plan that promises more and holds less; 0: there is none.
    """

    objective: float
    pipelines: Tuple[Pipeline, ...]
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


class Table:
    """The best rates of one network for every combination of GPU counts.

    Args:
        columns: its pipelines.
        cluster: what there is.
        most_gpus: that a stage may have; None: as many as there are.
    """

    def __init__(self, columns: Sequence[Columns], cluster: Cluster, most_gpus: Optional[int] = None) -> None:
        self._columns = columns
        self._most_gpus = most_gpus
        self._classes = cluster.classes
        self._shape = tuple(count + 1 for count in cluster.gpus.values())
        self._which = np.full(self._shape, _NOTHING)
        self.single = np.zeros(self._shape)
        self._offsets = np.cumsum([0] + [len(one.batch) for one in columns])
        for offset, one in zip(self._offsets, columns):
            self._enter(one, int(offset))
        self.total, self._choice = _closure(self.single)

    def pipelines(self, network: str, gpus: Tuple[int, ...]) -> List[Pipeline]:
        """The best pipelines for these counts."""
        made = []
        at = gpus
        while any(at):
            choice = int(self._choice[at])
            if choice < 0:  # a GPU of class -choice - 1 is of no use here
                at = tuple(count - (place == -choice - 1) for place, count in enumerate(at))
                continue
            used = tuple(int(count) for count in np.unravel_index(choice, self._shape))
            if self.single[used] <= 0:
                break
            made.append(self._pipeline(network, used))
            at = tuple(count - less for count, less in zip(at, used))
        return made

    def _enter(self, one: Columns, offset: int) -> None:
        """Enter each pipeline with 1, 2, … GPUs in the stage that bounds it, and as few as do in the others."""
        places = [self._classes.index(gpu) for gpu in one.classes]
        steps = np.array([math.prod(self._shape[place + 1 :]) for place in range(len(self._shape))])
        for bound, place in enumerate(places):
            counts = np.arange(1, self._shape[place])
            if not len(counts):
                return
            rate = one.rates[:, bound, None] * counts
            needed = np.ceil(rate[:, :, None] / one.rates[:, None, :] * (1 - _NEAR)).astype(int)
            needed[:, :, bound] = counts
            needed = np.maximum(needed, 1)
            allowed = (needed <= (self._most_gpus or needed.max(initial=1))).all(axis=2)
            used = np.zeros((*rate.shape, len(self._shape)), int)
            for stage, of in enumerate(places):
                used[:, :, of] += needed[:, :, stage]
            rows, columns = np.nonzero(allowed & (used < np.array(self._shape)).all(axis=2))
            entries = used[rows, columns] @ steps
            rates = rate[rows, columns]
            order = np.argsort(rates, kind="stable")
            entries, rates, rows = entries[order], rates[order], rows[order]
            better = rates > self.single.reshape(-1)[entries] * (1 + _NEAR)
            self.single.reshape(-1)[entries[better]] = rates[better]
            self._which.reshape(-1)[entries[better]] = offset + rows[better]

    def _pipeline(self, network: str, used: Tuple[int, ...]) -> Pipeline:
        row = int(self._which[used])
        group = int(np.searchsorted(self._offsets, row, side="right")) - 1
        one, row = self._columns[group], row - int(self._offsets[group])
        rate = float(self.single[used])
        counts = [max(1, math.ceil(rate / each * (1 - _NEAR))) for each in one.rates[row]]
        stages = tuple(
            Stage(
                int(one.bounds[row, stage]), int(one.bounds[row, stage + 1]), gpu,
                int(one.parts[row, stage]), int(one.batch[row]), counts[stage],
            )
            for stage, gpu in enumerate(one.classes)
        )  # fmt: skip
        return Pipeline(network, rate, float(one.latency_s[row]), stages)


def most(demands: Sequence[Demand], cluster: Cluster, margin: float = 0.4, most_stages: int = 3) -> Plan:
    """The plan with the greatest rate: for several networks, the greatest least rate over weight.

    Raises:
        BadInput: too large a cluster, or a network that no pipeline answers in time.
    """
    tables = tables_of(demands, cluster, margin, most_stages)
    return alike_as_one(share_out(demands, tables, cluster))


def tables_of(demands: Sequence[Demand], cluster: Cluster, margin: float, most_stages: int) -> List[Table]:
    """A table for each network. Raises as :func:`most`."""
    check(cluster)
    return [Table(pipelines(demand, cluster, margin, most_stages), cluster) for demand in demands]


def share_out(demands: Sequence[Demand], tables: Sequence[Table], cluster: Cluster) -> Plan:
    """Max-min over networks of rate over weight, from their tables."""
    full = tuple(cluster.gpus.values())
    best = tables[0].total / demands[0].weight
    choices = []
    for demand, table in zip(demands[1:], tables[1:]):
        best, choice = _max_min(best, table.total / demand.weight)
        choices.append(choice)
    at, counts = full, []
    for choice in reversed(choices):
        mine = tuple(int(count) for count in np.unravel_index(int(choice[at]), best.shape))
        counts.append(mine)
        at = tuple(count - less for count, less in zip(at, mine))
    counts = [at, *reversed(counts)]
    return plan_of(float(best[full]), demands, tables, counts)


def plan_of(
    objective: float, demands: Sequence[Demand], tables: Sequence[Table], counts: Sequence[Tuple[int, ...]]
) -> Plan:
    """A plan of what each network gets, from their tables."""
    made: List[Pipeline] = []
    rates = {}
    for demand, table, gpus in zip(demands, tables, counts):
        name = demand.network.name
        mine = table.pipelines(name, gpus)
        rates[name] = sum(pipeline.rate for pipeline in mine)
        made.extend(mine)
    return Plan(objective, tuple(made), rates)


def alike_as_one(plan: Plan) -> Plan:
    """Pipelines that differ in their GPUs' number alone: together, so that any GPU of a stage can go on from any."""
    alike: Dict[Tuple[str, Tuple[Stage, ...]], List[Pipeline]] = {}
    for pipeline in plan.pipelines:
        shape = tuple(replace(stage, gpus=0) for stage in pipeline.stages)
        alike.setdefault((pipeline.network, shape), []).append(pipeline)
    together = []
    for group in alike.values():
        each = zip(*(pipeline.stages for pipeline in group))
        stages = tuple(replace(of[0], gpus=sum(stage.gpus for stage in of)) for of in each)
        together.append(replace(group[0], rate=sum(pipeline.rate for pipeline in group), stages=stages))
    return replace(plan, pipelines=tuple(together))


def check(cluster: Cluster) -> None:
    """Whether a plan can be made for it.

    Raises:
        BadInput: no GPUs, too many, or links of no bandwidth.
    """
    for gpu, count in cluster.gpus.items():
        if count < 1:
            raise BadInput(f"{count} GPUs of class {gpu}", remedy="1 is the least; leave out a class that is not there")
    combinations = math.prod(count + 1 for count in cluster.gpus.values())
    if not cluster.gpus or combinations > MAX_COMBINATIONS:
        raise BadInput(
            f"{combinations} combinations of GPU counts, {MAX_COMBINATIONS} are planned",
            remedy="plan for a part of the cluster, and put such parts side by side",
        )
    if not (math.isfinite(cluster.bytes_per_s) and cluster.bytes_per_s > 0):
        raise BadInput(
            f"links of {cluster.bytes_per_s} bytes per second", remedy="give what one machine's link carries"
        )
    if not 0 <= cluster.link_share <= 1:
        raise BadInput(f"a link share of {cluster.link_share}", remedy="0 (no rule) to 1")


def _closure(single: Array) -> Tuple[Array, Array]:
    """The best sum of entries whose counts fit, for every count; and the entry that is taken first there.

    A choice of ``-1 - class`` says that a GPU of this class is of no use there.
    """
    total = np.zeros_like(single)
    choice = np.full(single.shape, _NOTHING)
    for at in itertools.product(*map(range, single.shape)):
        if not any(at):
            continue
        window = tuple(slice(0, count + 1) for count in at)
        sums = single[window] + np.flip(total[window])
        place = int(np.argmax(sums))
        best = sums.reshape(-1)[place]
        taken = int(np.ravel_multi_index(np.unravel_index(place, sums.shape), single.shape))
        for axis, count in enumerate(at):
            if count:
                without = total[tuple(one - (other == axis) for other, one in enumerate(at))]
                if without >= best * (1 - _NEAR):
                    best, taken = max(best, without), -1 - axis
        total[at], choice[at] = best, taken
    return total, choice


def _max_min(one: Array, other: Array) -> Tuple[Array, Array]:
    """For every count the best least of both when it is divided between them, and what ``other`` gets."""
    best = np.zeros_like(one)
    choice = np.zeros(one.shape, int)
    for at in itertools.product(*map(range, one.shape)):
        window = tuple(slice(0, count + 1) for count in at)
        least = np.minimum(np.flip(one[window]), other[window])
        place = int(np.argmax(least))
        best[at] = least.reshape(-1)[place]
        choice[at] = int(np.ravel_multi_index(np.unravel_index(place, least.shape), one.shape))
    return best, choice
