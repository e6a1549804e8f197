"""Plans against the unsplit network, in float64 and float32: the acceptance criterion of the split.

float64 must agree to 1e-12 of the largest output. In float32 a slice of a convolution may round differently from the
whole, so the split's distance from the float64 network is held against the unsplit network's own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple

import torch

from edge_offload.execute.sequence_runner import SequenceRunner
from edge_offload.ir import Operator, Symbol, sequence_hash
from edge_offload.ir.build import TracedProgram, tensor_digest
from edge_offload.split.footprints.registry import EMPTY, Locality, Range
from edge_offload.split.model.check import BadPlan, check_plan
from edge_offload.split.model.complete import complete_plan, decide_backward
from edge_offload.split.model.locality import LocalityMap, analyse_locality, unite_rows
from edge_offload.split.model.network import TracedNetwork
from edge_offload.split.model.plan import SplitPlan
from edge_offload.split.model.reference import shared_values
from edge_offload_research.split.model.run_plan import run_plan

FLOAT64_BOUND = 1e-12


def float32_bound(unsplit: float) -> float:
    """Return the bound of a split float32 network's error by that of the unsplit one, both against float64."""
    return 1.5 * unsplit + 1e-6


def as_double(program: TracedProgram) -> TracedProgram:
    """The same network in float64: every float32 value, weight and dtype argument."""
    sequence = program.sequence
    values = {number: replace(value, dtype="float64" if value.dtype == "float32" else value.dtype)
              for number, value in sequence.values.items()}  # fmt: skip
    constants: Dict[int, str] = {}
    tensors: Dict[str, torch.Tensor] = {}
    for number, digest in sequence.constants.items():
        tensor = program.constants[digest]
        tensor = tensor.double() if tensor.dtype == torch.float32 else tensor
        constants[number] = tensor_digest(tensor)
        tensors[constants[number]] = tensor

    def widen_argument(arg: Any) -> Any:
        if isinstance(arg, tuple):
            return tuple(map(widen_argument, arg))
        return Symbol("dtype", "float64") if arg == Symbol("dtype", "float32") else arg

    operators = tuple(
        Operator(
            op.name,
            tuple(map(widen_argument, op.args)),
            tuple((key, widen_argument(arg)) for key, arg in op.kwargs),
            op.outputs,
            op.mutates,
            op.aliases,
            op.scope,
        )
        for op in sequence.operators
    )
    return TracedProgram(replace(sequence, values=values, constants=constants, operators=operators).validate(), tensors)


def relative_error(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> float:
    """Largest max|got - want| / max|want| over the outputs; infinite if anything is not a number."""
    worst = 0.0
    for one, other in zip(got, want):
        scale = float(other.double().abs().max()) or 1.0
        difference = float((one.double() - other.double()).abs().max()) / scale
        worst = max(worst, difference if difference == difference else float("inf"))
    return worst


def random_split(located: LocalityMap, chooser: random.Random) -> SplitPlan:
    """Every operator on one side, cut anywhere, or made by each side for itself, at random, for results that are used.

    Planners prefer few kinds of plans; these show that the rest of the space is exact too.
    """

    def decide_rows(index: int, robot: Range, server: Range) -> Tuple[Range, Range]:
        low, high = unite_rows(robot, server)
        undivided = located.operators[index].kind is Locality.GLOBAL
        style = chooser.choice(["robot", "server"] if undivided else ["robot", "server", "own", "own", "cut", "cut"])
        if style == "own" or (style == "cut" and min(robot[1], server[1]) < max(robot[0], server[0])):
            return robot, server
        if style == "cut":
            cut = chooser.randint(low, high)
            parts = (low, cut), (cut, high)
            return parts if chooser.random() < 0.5 else (parts[1], parts[0])
        return ((low, high), EMPTY) if style == "robot" else (EMPTY, (low, high))

    return complete_plan(located, *decide_backward(located, decide_rows))


def shortened_plans(plan: SplitPlan) -> Iterator[SplitPlan]:
    """The plan with one transfer a row shorter at one end, in every way; where one row is all, it goes."""
    for position, transfer in enumerate(plan.transfers):
        for low, high in ((transfer.low + 1, transfer.high), (transfer.low, transfer.high - 1)):
            retained = [replace(transfer, low=low, high=high)] if low < high else []
            yield replace(plan, transfers=(*plan.transfers[:position], *retained, *plan.transfers[position + 1 :]))


def passes_check(plan: SplitPlan, located: LocalityMap, identity: str) -> bool:
    """Return whether :func:`~edge_offload.split.model.check.check_plan` accepts the plan as exact."""
    try:
        check_plan(plan, located, identity)
    except BadPlan:
        return False
    return True


@dataclass(frozen=True)
class _Precision:
    """One network in one precision, with what stays the same from plan to plan."""

    program: TracedProgram
    located: LocalityMap
    inputs: Tuple[torch.Tensor, ...]
    shared: Mapping[int, torch.Tensor]
    identity: str

    @staticmethod
    def of(program: TracedProgram, axes: Mapping[int, int], inputs: Sequence[torch.Tensor]) -> _Precision:
        located = analyse_locality(program.sequence, axes)
        return _Precision(program, located, tuple(inputs), shared_values(located, program.constants),
                          sequence_hash(program.sequence))  # fmt: skip

    def run_unsplit(self) -> Tuple[torch.Tensor, ...]:
        return SequenceRunner(self.program.sequence, self.program.constants).run(self.inputs)

    def run_split(self, plan: SplitPlan) -> Tuple[torch.Tensor, ...]:
        plan = check_plan(replace(plan, sequence=self.identity), self.located, self.identity)
        return run_plan(plan, self.located, self.program.constants, self.inputs, self.shared)


class Verifier:
    """Runs plans for one network. Plans that differ in nothing but codecs (all lossless) are run once."""

    def __init__(self, network: TracedNetwork) -> None:
        axes = {n: network.located.axes[n] for n in network.program.sequence.inputs if n in network.located.axes}
        doubles = [x.double() if x.dtype == torch.float32 else x for x in network.inputs]
        self._single = _Precision.of(network.program, axes, network.inputs)
        self._double = _Precision.of(as_double(network.program), axes, doubles)
        self._truth = self._double.run_unsplit()
        self.unsplit_float32 = relative_error(self._single.run_unsplit(), self._truth)
        self._cached: Dict[Any, Tuple[float, float]] = {}

    def plan_errors(self, plan: SplitPlan) -> Tuple[float, float]:
        """(float64, float32) error of a plan; both against the unsplit float64 network."""
        key = (plan.robot, plan.server, tuple(replace(transfer, codec="raw") for transfer in plan.transfers))
        if key not in self._cached:
            self._cached[key] = (relative_error(self._double.run_split(plan), self._truth),
                                relative_error(self._single.run_split(plan), self._truth))  # fmt: skip
        return self._cached[key]

    def make_record(self, model: str, planner: str, plans: Iterable[SplitPlan]) -> Dict[str, Any]:
        """Worst errors over the plans of one planner: a record of kind ``split_exactness``."""
        plans = list(plans)
        worst: List[float] = [0.0, 0.0]
        for plan in plans:
            worst = [max(pair) for pair in zip(worst, self.plan_errors(plan))]
        return {
            "model": model,
            "planner": planner,
            "plans": len(plans),
            "splits": sum(plan.splits_an_operator for plan in plans),
            "float64": worst[0],
            "float32": worst[1],
            "unsplit_float32": self.unsplit_float32,
            "exact": worst[0] <= FLOAT64_BOUND and worst[1] <= float32_bound(self.unsplit_float32),
        }
