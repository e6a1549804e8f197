"""The form for people: one line per operator, SSA names, shapes and scopes."""

from __future__ import annotations

from typing import List

from edge_offload.sequence.canonical import sequence_hash
from edge_offload.sequence.operators import Arg, Operator, Ref, Symbol
from edge_offload.sequence.sequence import OperatorSequence
from edge_offload.sequence.values import DYNAMIC, Value


def format_value(value: Value) -> str:
    """``%3:float32[1,3,224,224]``; a dynamic size is ``?``."""
    sizes = ",".join("?" if size == DYNAMIC else str(size) for size in value.shape)
    strides = "" if value.strides is None else "/" + ",".join(map(str, value.strides))
    return f"%{value.id}:{value.dtype}[{sizes}{strides}]"


def format_arg(arg: Arg) -> str:
    """The argument as it would be written in a call."""
    if isinstance(arg, Ref):
        return f"%{arg.id}"
    if isinstance(arg, Symbol):
        return arg.name
    if isinstance(arg, tuple):
        return "[" + ", ".join(map(format_arg, arg)) + "]"
    return repr(arg)


def format_operator(sequence: OperatorSequence, operator: Operator) -> str:
    """``%4:float32[1,8] = aten.relu.default(%3)  # layer1`` with writes marked ``!``."""
    made = ", ".join("_" if number is None else format_value(sequence.values[number]) for number in operator.outputs)
    given = [format_arg(arg) for arg in operator.args]
    given += [f"{key}={format_arg(arg)}" for key, arg in operator.kwargs]
    notes = [f"writes %{number}" for number in operator.mutates]
    notes += [f"shares %{number}" for _, number in operator.aliases if number not in operator.mutates]
    if operator.scope:
        notes.append(operator.scope)
    comment = f"  # {'; '.join(notes)}" if notes else ""
    return f"{made or '()'} = {operator.name}({', '.join(given)}){comment}"


def format_sequence(sequence: OperatorSequence) -> str:
    """The whole sequence: header with its hash, inputs, constants, operators, what is kept."""
    lines: List[str] = [f"sequence {sequence_hash(sequence)}: {len(sequence)} operators"]
    lines += [f"input    {format_value(sequence.values[number])}" for number in sequence.inputs]
    lines += [f"constant {format_value(sequence.values[number])} {digest[:12]}"
              for number, digest in sequence.constants.items()]  # fmt: skip
    lines += [format_operator(sequence, operator) for operator in sequence.operators]
    lines.append("outputs  " + ", ".join(f"%{number}" for number in sequence.outputs))
    if sequence.live_outs:
        lines.append("live     " + ", ".join(f"%{number}" for number in sequence.live_outs))
    lines += [f"rebind   %{state} <- %{number}" for state, number in sequence.rebinds]
    return "\n".join(lines)
