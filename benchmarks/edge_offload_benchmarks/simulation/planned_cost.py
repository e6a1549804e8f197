"""What a frame costs under a table of split plans, on a link that changes: for the robot in virtual time."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Sequence, Tuple

from edge_offload.link.estimate.estimator import Transfer
from edge_offload.modes.split.robot.plan_times import PlanTimes
from edge_offload.split.model.cost import CostModel
from edge_offload.split.model.simulate import CompiledPlan, compile_plan
from edge_offload.split.planners.table import PlanTable
from edge_offload_benchmarks.simulation.virtual_link import VirtualLink
from edge_offload_research.testbed.replay import replay_plan


@dataclass(frozen=True)
class PlannedCost:
    """A table of plans, the cost model that they were made with, and how far off that is.

    Attributes:
        model: operator times of both sides as measured.
        table: one plan per bandwidth.
        place: entry of the table -> place among ``plans``.
        plans: the distinct ones.
        names: of the distinct ones, for people.
        times: what the planner expects of them at any bandwidth.
        ratios: measured / simulated latencies, of which one is drawn per frame.
    """

    model: CostModel
    table: PlanTable
    place: Tuple[int, ...]
    plans: Tuple[CompiledPlan, ...]
    names: Tuple[str, ...]
    times: PlanTimes
    ratios: Tuple[float, ...]

    @staticmethod
    def of(model: CostModel, table: PlanTable, ratios: Sequence[float]) -> PlannedCost:
        """``ratios`` are not empty."""
        from edge_offload.modes.split.robot.runner import describe_plan

        distinct: Dict[Tuple[Any, ...], int] = {}
        place: List[int] = []
        plans: List[CompiledPlan] = []
        names: List[str] = []
        for bandwidth, plan in zip(table.bandwidths, table.plans):
            key = (plan.robot, plan.server, plan.transfers)
            if key not in distinct:
                distinct[key] = len(plans)
                plans.append(compile_plan(plan, model))
                names.append(f"{describe_plan(plan)} from {bandwidth / 1e6:g} MB/s")
            place.append(distinct[key])
        times = PlanTimes.simulate_compiled(plans, model)
        return PlannedCost(model, table, tuple(place), tuple(plans), tuple(names), times, tuple(ratios))

    def of_plan(self, number: int) -> PlannedCost:
        """The same with one plan for every bandwidth."""
        return replace(self, place=(number,) * len(self.place))

    def choose(self, bandwidth: float) -> int:
        """The plan for a bandwidth."""
        return self.place[self.table.find_index(bandwidth)]

    def is_local(self, number: int) -> bool:
        """Return whether a plan makes no use of the link."""
        return not self.plans[number].plan.transfers

    def is_remote(self, number: int) -> bool:
        """Return whether the robot computes no operator of a plan."""
        return self.plans[number].plan.kind == "server"

    def predicted_s(self, bandwidth: float) -> float:
        """Predict the plan's latency at a bandwidth (seconds)."""
        return self.times.predict_seconds(self.choose(bandwidth), bandwidth)

    def run(self, number: int, link: VirtualLink, sent_s: float, chance: random.Random) -> Tuple[Transfer, float]:
        """One frame: what its transfers look like to the robot, and the seconds that it computes.

        Args:
            number: the plan.
            link: carries it from when on it is free.
            sent_s: when the frame begins.
            chance: what the ratio is drawn from.
        """
        begin, rtt_s = max(sent_s, link.free_up_s), link.rtt_s
        replayed = replay_plan(self.plans[number], self.model, link.trace, begin)
        ended = begin + replayed.latency_s * chance.choice(self.ratios)
        if math.isinf(ended):
            never = math.inf
            return Transfer(sent_s, begin, never, never, never, 1e-4, round(replayed.bytes_up), 0), replayed.robot_s
        up_s = replayed.bytes_up / replayed.seen_bytes_per_s if replayed.seen_bytes_per_s > 0 else 0.0
        received = min(begin + up_s + rtt_s / 2, ended)
        down_s = min(replayed.bytes_down / max(replayed.seen_bytes_per_s, 1.0) + rtt_s / 2, ended - received)
        transfer = Transfer(
            sent_s, begin, received, ended - down_s, ended, 1e-4, round(replayed.bytes_up), round(replayed.bytes_down)
        )
        return transfer, replayed.robot_s

    def all_plans(self) -> List[int]:
        """Numbers of the distinct plans that may be used."""
        return sorted(set(self.place))
