"""A measured profile as an operator sequence with locality along the image's width, and as a cost model.

The sequence is for planning alone: its operators carry no weights and cannot be run. Everything that is not understood
is global; in-place results stand under the last name that they were given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np

from edge_offload.errors import BadInput
from edge_offload.ir import Kind, Operator, OperatorSequence, Ref, Value
from edge_offload.split.footprints.registry import Footprint, Local, Locality, Range, RowReader, window_rows
from edge_offload.split.model.cost import CodecCost, CostModel, LinkCosts, OperatorCost
from edge_offload.split.model.locality import LocalityMap, OperatorLocality
from edge_offload_research.testbed.profiles import ProfiledOperator
from edge_offload_research.testbed.windows import SLIDING, Window, windows_of

_ALONG = {
    "batch_norm", "layer_norm", "relu", "silu", "gelu", "sigmoid", "linear", "permute", "unflatten", "contiguous",
    "mul", "mul_", "add", "add_", "sub", "div", "pow", "dropout", "cat", "type", "squeeze", "argmax", "__getitem__",
    "__setitem__",
}  # fmt: skip
"""An output column needs the same column of every input that has columns."""
_IN_PLACE = {"relu", "silu", "add_", "mul_", "dropout"}
_ROW_OPERATORS = {"layer_norm", "linear", "argmax"}
_LAUNCH_BYTES = 512 * 1024


@dataclass(frozen=True)
class Workload:
    """One profiled model, ready to plan for.

    Attributes:
        model: its name.
        located: sequence and locality.
        robot, server: cost of every operator.
        input_value, output_values: what is sent when the server computes everything.
    """

    model: str
    located: LocalityMap
    robot: Tuple[OperatorCost, ...]
    server: Tuple[OperatorCost, ...]
    input_value: int
    output_values: Tuple[int, ...]

    def cost_model(self, codecs: Mapping[int, Tuple[CodecCost, ...]], link: LinkCosts, request_s: float) -> CostModel:
        """The cost model with these codecs, link and overhead."""
        return CostModel(self.located, self.robot, self.server, codecs, link, request_s=request_s)


def build_workload(model: str, profile: Sequence[ProfiledOperator]) -> Workload:
    """The workload behind a profile. Every profiled millisecond is charged to some operator that the results need.

    Raises:
        BadInput: the profile does not fit the model.
    """
    retained, inputs_of = _retain_operators(profile)
    outputs = inputs_of[profile[-1].index]
    values: Dict[int, Value] = {0: Value(0, _dtype_of(profile[0]), _flat_shape(profile[0]), Kind.INPUT)}
    operators: List[Operator] = []
    for op in retained:
        values[op.index] = Value(op.index, _dtype_of(op), _flat_shape(op))
        name = op.name.strip("_") or "op"
        operators.append(Operator(f"profile.{name}.default", tuple(Ref(n) for n in inputs_of[op.index]), (),
                                  (op.index,), scope=f"{op.index}"))  # fmt: skip
    sequence = OperatorSequence(values, (0,), {}, tuple(operators), outputs).validate()
    located = _locate_operators(model, profile[0], retained, inputs_of, sequence)
    robot = _charge_seconds(profile, retained, [op.robot_s for op in profile])
    server = _charge_seconds(profile, retained, [op.server_s for op in profile])
    return Workload(
        model, located,
        _uniform_costs(located, robot, _launch_seconds(profile, [op.robot_s for op in profile])),
        _uniform_costs(located, server, _launch_seconds(profile, [op.server_s for op in profile])),
        0, outputs,
    )  # fmt: skip


def _retain_operators(profile: Sequence[ProfiledOperator]) -> Tuple[List[ProfiledOperator], Dict[int, Tuple[int, ...]]]:
    """Operators with an output that the results need, and what each of them takes."""
    by_index = {op.index: op for op in profile}
    made: Dict[int, ProfiledOperator] = {}
    inputs_of: Dict[int, Tuple[int, ...]] = {}
    for op in profile:
        inputs = [number for number in op.inputs if number in made]
        if op.name == "__setitem__" and inputs:  # a new version of what it wrote to
            first = made[inputs[0]]
            op = ProfiledOperator(op.index, op.name, first.axis, op.inputs, first.shape, first.nbytes,
                                  op.robot_s, op.server_s)  # fmt: skip
        inputs_of[op.index] = tuple(
            number for number in inputs
            if not any(by_index[later].name in _IN_PLACE | {"__setitem__"} and number in inputs_of[later]
                       for later in inputs if later > number)
        )  # fmt: skip
        if op.shape and op.nbytes and (inputs_of[op.index] or op.index == 0):
            made[op.index] = op
    needed: Set[int] = set()
    waiting = list(inputs_of[profile[-1].index])
    while waiting:
        number = waiting.pop()
        if number not in needed:
            needed.add(number)
            waiting += inputs_of[number]
    return [op for op in made.values() if op.index in needed and op.index > 0 and op.name != "_end"], inputs_of


def _charge_seconds(profile: Sequence[ProfiledOperator], retained: Sequence[ProfiledOperator],
            seconds: Sequence[float]) -> Dict[int, float]:  # fmt: skip
    """Position among the kept operators -> seconds; what was not kept is charged to the one before it."""
    position = {op.index: place for place, op in enumerate(retained)}
    charged = dict.fromkeys(range(len(retained)), 0.0)
    place = 0
    for op, spent in zip(profile, seconds):
        place = position.get(op.index, place)
        charged[place] += spent
    return charged


def _launch_seconds(profile: Sequence[ProfiledOperator], seconds: Sequence[float]) -> float:
    """Return the cost of starting an operator: the median of the operators with small outputs."""
    small = [spent for op, spent in zip(profile, seconds) if spent > 0 and 0 < op.nbytes <= _LAUNCH_BYTES]
    return float(np.median(small)) if small else 0.0


def _dtype_of(op: ProfiledOperator) -> str:
    return "uint8" if op.nbytes == int(np.prod(op.shape)) else "float32"


def _flat_shape(op: ProfiledOperator) -> Tuple[int, ...]:
    """The shape, or a flat one where an operator has several outputs or an odd size."""
    width = 1 if _dtype_of(op) == "uint8" else 4
    return op.shape if int(np.prod(op.shape)) * width == op.nbytes else (max(op.nbytes // 4, 1),)


def _locate_operators(
    model: str, start: ProfiledOperator, retained: Sequence[ProfiledOperator], inputs_of: Mapping[int, Tuple[int, ...]],
    sequence: OperatorSequence,
) -> LocalityMap:  # fmt: skip
    widths: Dict[int, int] = {}
    axes: Dict[int, int] = {}
    if start.axis is not None:
        axes[0], widths[0] = start.axis, start.shape[start.axis]
    sliding = _sliding_windows(model, retained, inputs_of, sequence)
    entries: List[OperatorLocality] = []
    for op in retained:
        sources = {number: widths[number] for number in inputs_of[op.index] if number in widths}
        local = None
        if op.axis is not None and sources and op.axis < len(sequence.values[op.index].shape):
            local = _local_footprint(op, sources, sequence.values[op.index].shape[op.axis], sliding.get(op.index))
        if local is None:
            entries.append(OperatorLocality(Locality.GLOBAL, 1, None))
        else:
            assert op.axis is not None
            axes[op.index], widths[op.index] = op.axis, local.length
            entries.append(OperatorLocality(local.kind, local.length, local))
    return LocalityMap(sequence, tuple(entries), axes, frozenset())


def _sliding_windows(
    model: str,
    retained: Sequence[ProfiledOperator],
    inputs_of: Mapping[int, Tuple[int, ...]],
    sequence: OperatorSequence,
) -> Dict[int, Window]:
    sliding = [op for op in retained if op.name in SLIDING]
    ratios = [(sequence.values[inputs_of[op.index][-1]].shape[-1], op.shape[-1]) for op in sliding]
    windows = windows_of(model, [op.name for op in sliding], ratios)
    if len(windows) != len(sliding):
        raise BadInput(f"the profile of {model} has {len(sliding)} sliding operators, the network {len(windows)}")
    for op, (before, after), sized in zip(sliding, ratios, windows):
        if op.name == "conv_transpose2d":
            continue
        expected = (before + 2 * sized.padding - sized.dilation * (sized.kernel - 1) - 1) // sized.stride + 1
        if expected != after:
            raise BadInput(f"{model}, operator {op.index}: {sized} makes {expected} of {before} columns, not {after}")
    return {op.index: sized for op, sized in zip(sliding, windows)}


def _local_footprint(
    op: ProfiledOperator, sources: Mapping[int, int], length: int, sized: Optional[Window]
) -> Optional[Local]:
    """The operator's footprint along the width, or ``None`` if it is global."""
    needs: Dict[int, Footprint] = {}
    kind = Locality.BLOCK
    for number, size in sources.items():
        if sized is not None:
            needs[number] = (
                _transposed_footprint(size, sized) if op.name == "conv_transpose2d" else _window_footprint(size, sized)
            )
        elif op.name == "interpolate" and length % size == 0:
            needs[number] = _upsampled_footprint(length // size)
        elif op.name == "__getitem__" and size == 2 * length:  # every second column
            needs[number] = _window_footprint(size, Window(2, 2, 0))
        elif op.name in _ALONG and size == length:
            needs[number] = _same_rows
            kind = Locality.ROW if op.name in _ROW_OPERATORS else Locality.ELEMENT
        else:
            return None
    return Local(kind, (op.axis,), length, needs, _no_kernel)


def _same_rows(low: int, high: int) -> Range:
    return low, high


def _window_footprint(size: int, sized: Window) -> Footprint:
    return lambda low, high: window_rows(low, high, size, sized.kernel, sized.stride, sized.padding, sized.dilation)


def _transposed_footprint(size: int, sized: Window) -> Footprint:
    """Output column j takes input columns i with j = i x stride - padding + k, 0 <= k < kernel."""

    def rows_needed(low: int, high: int) -> Range:
        first = -((sized.kernel - 1 - low - sized.padding) // sized.stride)
        return max(first, 0), min((high - 1 + sized.padding) // sized.stride + 1, size)

    return rows_needed


def _upsampled_footprint(factor: int) -> Footprint:
    return lambda low, high: (low // factor, (high - 1) // factor + 1)


def _no_kernel(low: int, high: int, reader: RowReader) -> List[object]:
    del low, high, reader
    raise BadInput("a profile can be planned for, not run", remedy="run a sequence built from the network itself")


def _uniform_costs(located: LocalityMap, side_costs: Mapping[int, float], launch_s: float) -> Tuple[OperatorCost, ...]:
    """Costs from whole-operator times alone: ``launch_s`` (at most the whole time) and the rest shared by the rows.

    Args:
        located: the sequence and its axes.
        side_costs: operator -> seconds for all its rows; operators that are not named cost nothing.
        launch_s: assumed launch cost.
    """
    costs = []
    for index, entry in enumerate(located.operators):
        operator_s = side_costs.get(index, 0.0)
        launch = min(launch_s, operator_s)
        costs.append(OperatorCost(launch, (operator_s - launch) / entry.length))
    return tuple(costs)
