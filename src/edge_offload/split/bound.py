"""A lower bound on the makespan of every plan that planners can make, by branch and bound over linear relaxations.

It holds for any stretch of rows of any operator on either side, replicated or not, any transfer in either direction,
with the best codec, steps in program order and transfers in the order of first use. A node fixes where the last upload
(or the last download that the robot goes on computing with) is first used; that gives chains of work which no plan of
the node can overlap (:mod:`edge_offload.split.relaxation` says why). Every plan that uses the link is in one of the
four roots; a node's children cover its plans: the last use is in one half of the program or the other; at a single
stretch between two waists, something made inside it is uploaded or nothing is; an operator has at most so many rows on
a side or more. The least bound of the open nodes is therefore a bound on all plans; device-only is compared apart.

What the relaxation does not see makes the bound loose: a mixture of two plans (half of device-only and half of
server-only) costs it neither halos nor round trips, until enough operators' rows have been fixed.
"""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass, replace
from typing import List, Optional, Tuple

from edge_offload.errors import BadInput
from edge_offload.split.planners import PlanTable
from edge_offload.split.relaxation import Interval, Node, Relaxation, Solved
from edge_offload.split.space import Space


@dataclass(frozen=True)
class Limits:
    """When to stop refining the bound of one plan.

    Attributes:
        gap: a bound this close is good enough.
        programs: linear programs per bandwidth.
        seconds: per bandwidth.
    """

    gap: float = 0.01
    programs: int = 150
    seconds: float = 20.0


def full_space_gaps(space: Space, table: PlanTable, limits: Optional[Limits] = None) -> List[Optional[float]]:
    """Makespan / lower bound over all plans - 1 for every plan of a table; ``None`` where no bound is known.

    There is none for a network with several inputs or results. ``space`` must be over the table's bandwidths.
    """
    try:
        relaxation = Relaxation(space)
    except BadInput:
        return [None] * len(table.plans)
    gaps: List[Optional[float]] = []
    for index, makespan in enumerate(table.predicted_s):
        bound = lower_bound(relaxation, index, makespan, limits or Limits())
        gaps.append(max(makespan / bound - 1.0, 0.0) if bound > 0 else None)
    return gaps


def lower_bound(relaxation: Relaxation, index: int, makespan: float, limits: Limits) -> float:
    """No plan is faster at bandwidth number ``index`` of the space; ``makespan`` is that of the best plan known."""
    space = relaxation.space
    bandwidth = float(space.bandwidths[index])
    best = min(makespan, float(space.score(space.device_only).makespan_s[index]))
    good_enough = best / (1.0 + limits.gap)
    until = time.monotonic() + limits.seconds
    heap: List[Tuple[float, int, Node, Solved]] = []
    programs = 0

    def push(node: Node, floor: float) -> None:
        nonlocal programs
        programs += 1
        solved = relaxation.solve(node, bandwidth)
        bound = max(solved.bound, floor)
        if bound < best:
            heapq.heappush(heap, (bound, programs, node, solved))

    last = len(relaxation.places) - 1
    for up in (True, False):
        for input_sent in (True, False):
            push(Node(up, 0, last, input_sent), 0.0)
    while heap:
        bound, _, node, solved = heap[0]
        if bound >= good_enough or programs >= limits.programs or time.monotonic() > until:
            return bound
        children = _children(relaxation, node, solved)
        if not children:
            return bound
        heapq.heappop(heap)
        for child in children:
            push(child, bound)
    return best


def _children(relaxation: Relaxation, node: Node, solved: Solved) -> List[Node]:
    """A node's plans in two parts: by where the last transfer is used, then by the rows of one operator."""
    if not node.at_waist and not node.inside and node.last - node.first > 1:
        middle = (node.first + node.last) // 2
        return [replace(node, last=middle), replace(node, first=middle)]
    if node.up and not node.at_waist and not node.inside:
        inside = [replace(node, inside=True)] if relaxation.has_inside(node.first) else []
        return [replace(node, at_waist=True), *inside]
    if solved.worst is None:
        return []
    side, operator, rows = solved.worst
    low, high = solved.limits[side, operator]
    cut = min(max(int(rows), low), high - 1)
    return [replace(node, ranges=(*node.ranges, ((side, operator), part))) for part in _parts(low, cut, high)]


def _parts(low: int, cut: int, high: int) -> Tuple[Interval, Interval]:
    return (low, cut), (cut + 1, high)
