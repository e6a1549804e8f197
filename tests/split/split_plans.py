"""Random plans that are right by construction, and the error measure of the acceptance criterion."""

from __future__ import annotations

import random
from typing import Any, Dict, Sequence, Tuple

import torch

from edge_offload.execute.sequence_runner import SequenceRunner
from edge_offload.sequence.build import Program, tensor_digest
from edge_offload.split.complete import backward, complete
from edge_offload.split.footprint import EMPTY, Locality, Range
from edge_offload.split.locality import LocalityMap, union
from edge_offload.split.plan import Plan


def random_plan(located: LocalityMap, chooser: random.Random) -> Plan:
    """Each operator is placed at random: on one side, cut somewhere, cut with overlap, either way round."""
    robot: Dict[int, Range] = {}
    server: Dict[int, Range] = {}
    needed = located.needed()
    for index, entry in enumerate(located.operators):
        low, high = located.made(index, needed)
        if entry.kind is Locality.FREE or low >= high:
            continue
        style = chooser.choice(["robot", "server", "cut", "cut", "cut"])
        if entry.kind is Locality.GLOBAL or style != "cut":
            (server if style == "server" else robot)[index] = (low, high)
            continue
        cut, overlap = chooser.randint(low, high), chooser.choice([0, 0, 1, 3])
        first, second = (robot, server) if chooser.random() < 0.5 else (server, robot)
        first[index] = (low, min(cut + overlap, high))
        second[index] = (max(cut - chooser.choice([0, 2]), low), high)
    return complete(located, robot, server)


def tight_plan(located: LocalityMap, chooser: random.Random) -> Plan:
    """A random plan in which every computed row is needed: cuts and replication are decided from the outputs back."""

    def decide(index: int, robot: Range, server: Range) -> Tuple[Range, Range]:
        low, high = union(robot, server)
        whole = located.operators[index].kind is Locality.GLOBAL
        style = chooser.choice(["robot", "server"] if whole else ["robot", "server", "own", "own", "cut", "cut"])
        if style == "own" or (style == "cut" and min(robot[1], server[1]) < max(robot[0], server[0])):
            return robot, server
        if style == "cut":
            cut = chooser.randint(low, high)
            parts = (low, cut), (cut, high)
            return parts if chooser.random() < 0.5 else (parts[1], parts[0])
        return ((low, high), EMPTY) if style == "robot" else (EMPTY, (low, high))

    return complete(located, *backward(located, decide))


def as_double(program: Program) -> Program:
    """The same network in float64: dtype of every float32 value, and of its weights."""
    from dataclasses import replace

    from edge_offload.sequence import Operator, Symbol

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

    def widen(arg: Any) -> Any:
        if isinstance(arg, tuple):
            return tuple(map(widen, arg))
        return Symbol("dtype", "float64") if arg == Symbol("dtype", "float32") else arg

    operators = tuple(
        Operator(op.name, tuple(map(widen, op.args)), tuple((key, widen(arg)) for key, arg in op.kwargs), op.outputs,
                 op.mutates, op.aliases, op.scope)
        for op in sequence.operators
    )  # fmt: skip
    return Program(replace(sequence, values=values, constants=constants, operators=operators).validate(), tensors)


def unsplit(program: Program, inputs: Sequence[torch.Tensor]) -> Tuple[torch.Tensor, ...]:
    return SequenceRunner(program.sequence, program.constants).run(inputs)


def error(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> float:
    """Largest max|got - want| / max|want| over the outputs; infinite if anything is not a number."""
    worst = 0.0
    for one, other in zip(got, want):
        scale = float(other.double().abs().max()) or 1.0
        difference = float((one.double() - other.double()).abs().max()) / scale
        worst = max(worst, difference if difference == difference else float("inf"))
    return worst
