"""Random plans that are right by construction."""

from __future__ import annotations

import random
from typing import Dict, Sequence, Set, Tuple

import torch

from edge_offload.execute.sequence_runner import SequenceRunner
from edge_offload.ir.build import TracedProgram
from edge_offload.split.footprints.registry import Locality, Range
from edge_offload.split.model.complete import complete_plan
from edge_offload.split.model.locality import LocalityMap
from edge_offload.split.model.plan import Side, SplitPlan


def random_plan(located: LocalityMap, chooser: random.Random) -> SplitPlan:
    """Each operator is placed at random: on one side, cut somewhere, cut with overlap, either way round."""
    robot: Dict[int, Range] = {}
    server: Dict[int, Range] = {}
    needed = located.needed_rows()
    for index, entry in enumerate(located.operators):
        low, high = located.made_rows(index, needed)
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
    return complete_plan(located, robot, server)


def unsplit(program: TracedProgram, inputs: Sequence[torch.Tensor]) -> Tuple[torch.Tensor, ...]:
    return SequenceRunner(program.sequence, program.constants).run(inputs)


def wastes_rows(plan: SplitPlan, located: LocalityMap) -> bool:
    """Whether some computed row is used by nobody: a side's rows are one stretch, so two uses may leave a gap."""
    steps = {side: {step.operator: step for step in plan.steps_of(side)} for side in Side}
    used: Dict[Side, Dict[int, Set[int]]] = {side: {} for side in Side}
    for number in located.sequence.retained_ids():
        used[Side.ROBOT][number] = set(range(located.count_rows(number)))
    for index in range(len(located.operators) - 1, -1, -1):
        for number in located.made_by[index]:  # what a side does not make itself, the other sends
            for side in Side:
                step = steps[side].get(index)
                computed = set(range(step.low, step.high)) if step else set()
                lacking = used[side].get(number, set()) - computed
                used[side.opposite].setdefault(number, set()).update(lacking)
        for side in Side:
            step = steps[side].get(index)
            if step is None:
                continue
            rows = set().union(*(used[side].get(number, set()) for number in located.made_by[index]))
            if not set(range(step.low, step.high)) <= rows:
                return True
            for row in range(step.low, step.high):
                for number, (low, high) in located.footprint(index, row, row + 1).items():
                    used[side].setdefault(number, set()).update(range(low, high))
    return False


def has_global_window(located: LocalityMap) -> bool:
    """Whether a global operator slides a window: it is given its whole input, and may pass over the last rows."""
    pairs = zip(located.sequence.operators, located.operators)
    return any(entry.kind is Locality.GLOBAL and ("conv" in op.name or "pool" in op.name) for op, entry in pairs)
