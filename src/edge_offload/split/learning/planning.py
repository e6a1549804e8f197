"""Makes plans from costs: a table for a list of bandwidths, without duplicate plans; converts both to plain data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from edge_offload import background
from edge_offload.power.states import StatePowers
from edge_offload.split.model.cost import CodecCost, CopyCosts, CostModel, LinkCosts, OperatorCost
from edge_offload.split.model.locality import LocalityMap
from edge_offload.split.model.objective import Objective
from edge_offload.split.model.plan import Side, SplitPlan
from edge_offload.split.planners.space import Space
from edge_offload.split.planners.table import DEFAULT_PLANNER, UNDIVIDED_PLANNER, Effort, PlanTable, plan_table


@dataclass
class PlanSettings:
    """Settings for a table of plans.

    Attributes:
        planner, objective, effort: see :func:`~edge_offload.split.planners.table.plan_table`.
        power: watts of the robot by state, for plans that save energy; None: those of a Jetson.
        codecs: whether payloads may be encoded.
        measured: whether a plan that divides operators for latency is used only if it was measured to be no slower than
            the best undivided one (:mod:`edge_offload.modes.split.robot.contest`).
    """

    planner: str = DEFAULT_PLANNER
    objective: Optional[Objective] = None
    effort: Optional[Effort] = None
    power: Optional[StatePowers] = None
    codecs: bool = True
    measured: bool = True


@dataclass(frozen=True)
class DistinctPlans:
    """The plans for a list of bandwidths.

    Attributes:
        table: one plan per bandwidth.
        plans: the distinct plans.
        place: index in the table -> index in ``plans``.
        undivided: index in the table -> index of the best plan that divides no operator; empty: not computed.
    """

    table: PlanTable
    plans: Tuple[SplitPlan, ...]
    place: Tuple[int, ...]
    undivided: Tuple[int, ...] = ()

    def to_facts(self) -> Dict[str, Any]:
        """Return plain data."""
        return {
            "planner": self.table.planner,
            "bandwidths": list(self.table.bandwidths),
            "predicted_s": list(self.table.predicted_s),
            "predicted_j": list(self.table.predicted_j),
            "plans": [plan.to_json() for plan in self.plans],
            "place": list(self.place),
            "undivided": list(self.undivided),
        }

    @staticmethod
    def from_facts(facts: Mapping[str, Any]) -> DistinctPlans:
        """Return the plans of :meth:`to_facts`, unchecked."""
        plans: List[SplitPlan] = []
        for text in facts["plans"]:
            background.give_way()
            plans.append(SplitPlan.from_json(text))
        place, floats = tuple(facts["place"]), (facts[name] for name in ("bandwidths", "predicted_s", "predicted_j"))
        bandwidths, seconds, joules = map(tuple, floats)
        table = PlanTable(facts["planner"], bandwidths, tuple(plans[index] for index in place), seconds, joules)
        return DistinctPlans(table, tuple(plans), place, tuple(facts["undivided"]))


def make_plans(model: CostModel, bandwidths: Sequence[float], settings: PlanSettings) -> DistinctPlans:
    """Make distinct plans for ``bandwidths`` (bytes per second, ascending).

    Raises:
        BadInput: no such planner.
    """
    objective = settings.objective or Objective()
    space = Space(model, bandwidths, settings.codecs)
    table = plan_table(space, settings.planner, objective, settings.effort or Effort())
    chosen = list(table.plans)
    if settings.measured and objective.kind == "latency" and any(plan.splits_an_operator for plan in chosen):
        undivided = plan_table(space, UNDIVIDED_PLANNER, objective).plans
        chosen += [other if plan.splits_an_operator else plan for plan, other in zip(table.plans, undivided)]
    distinct: Dict[Tuple[Any, ...], List[int]] = {}
    for index, plan in enumerate(chosen):
        distinct.setdefault((plan.robot, plan.server, plan.transfers), []).append(index)
    plans: List[SplitPlan] = []
    place = [0] * len(chosen)
    count = len(table.plans)
    for entries in distinct.values():
        for index in entries:
            place[index] = len(plans)
        plans.append(chosen[entries[0]])
    running = replace(table, plans=tuple(plans[position] for position in place[:count]))
    return DistinctPlans(running, tuple(plans), tuple(place[:count]), tuple(place[count:]))


def costs_to_facts(model: CostModel) -> Dict[str, Any]:
    """Return a cost model without its sequence as plain data."""
    return {
        "robot": [[cost.launch_s, cost.row_s] for cost in model.robot],
        "server": [[cost.launch_s, cost.row_s] for cost in model.server],
        "codecs": [[number, [vars(option) for option in options]] for number, options in model.codecs.items()],
        "link": vars(model.link),
        "power": vars(model.power),
        "request_s": model.request_s,
        "alone_s": model.alone_s,
        "copies": {side.value: dataclasses.asdict(copies) for side, copies in model.copies.items()},
    }


def costs_from_facts(facts: Mapping[str, Any], located: LocalityMap) -> CostModel:
    """Return the cost model of :func:`costs_to_facts`, for the same sequence.

    Raises:
        BadInput: the costs are of another sequence.
    """
    robot, server = (tuple(OperatorCost(*cost) for cost in facts[side]) for side in ("robot", "server"))
    copies = {
        Side(side): CopyCosts(OperatorCost(**raw["to_device"]), OperatorCost(**raw["to_host"]))
        for side, raw in facts["copies"].items()
    }
    codecs = {number: tuple(CodecCost(**option) for option in options) for number, options in facts["codecs"]}
    link, power = LinkCosts(**facts["link"]), StatePowers(**facts["power"])
    return CostModel(located, robot, server, codecs, link, power, facts["request_s"], facts["alone_s"], copies)


def settings_to_facts(settings: PlanSettings) -> Dict[str, Any]:
    """Return settings as plain data."""
    return dataclasses.asdict(settings)


def settings_from_facts(facts: Mapping[str, Any]) -> PlanSettings:
    """Return the settings of :func:`settings_to_facts`."""
    kinds = (("objective", Objective), ("effort", Effort), ("power", StatePowers))
    values = {name: None if facts[name] is None else kind(**facts[name]) for name, kind in kinds}
    return PlanSettings(**{**facts, **values})
