"""Plans by how many rows of each operator the server makes, and a search that moves these numbers.

The server makes the first rows of every operator (or the last ones), as many as it is given and as its later steps
need. The robot makes what its own later steps need and what the server lacks, and hands that over; of a result, it
makes what is not the server's. So a row more or
less at an operator says whether the server recomputes a halo or is sent it, there and only there. Layer cuts and
replicated splits are such plans.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Callable, Dict, List, Sequence, Set, Tuple

from edge_offload.errors import BadInput
from edge_offload.split.footprints.registry import EMPTY, Locality, Range
from edge_offload.split.model.complete import decide_backward
from edge_offload.split.model.locality import LocalityMap, unite_rows
from edge_offload.split.model.objective import Objective
from edge_offload.split.planners.space import ScoredPlan, Space, uncovered_rows

START_SHARES = tuple(k / 28 for k in range(1, 14))
"""Of the robot where the server has the same share of every operator."""
Ranges = Tuple[Dict[int, Range], Dict[int, Range]]


@dataclass(frozen=True)
class Waist:
    """Between operator ``after`` (-1: before the first) and the next, only ``value`` is handed on."""

    after: int
    value: int


def has_one_input(located: LocalityMap) -> bool:
    """True if a single input is used, at which waists begin."""
    consumers = located.sequence.consumer_indices()
    return sum(bool(consumers[number]) for number in located.sequence.inputs) == 1


def find_waists(located: LocalityMap) -> List[Waist]:
    """Return all waists in program order, the network's one input first, without the end."""
    count = len(located.operators)
    consumers, outputs = located.sequence.consumer_indices(), set(located.sequence.retained_ids())
    crossing: List[Set[int]] = [set() for _ in range(count)]
    for number in located.sequence.values:
        if number in located.free:
            continue
        last_use = count if number in outputs else max(consumers[number], default=-1)
        for place in range(located.producer.get(number, 0), min(last_use, count)):
            crossing[place].add(number)
    (first,) = [number for number in located.sequence.inputs if consumers[number]]
    result = [Waist(-1, first)]
    for place, values in enumerate(crossing[:-1]):
        if len(values) == 1 and values != {first} and located.operators[place].kind is not Locality.FREE:
            result.append(Waist(place, next(iter(values))))
    return result


def server_rows(space: Space, scored: ScoredPlan) -> Tuple[Tuple[int, ...], bool]:
    """Return the limit of the server's rows of every operator in a plan; True if they are counted from the last row."""
    operators, server = space.located.operators, scored.server
    counted_back = any(low > 0 for low, _ in server.values())
    rows = [0] * len(operators)
    for index, (low, high) in server.items():
        rows[index] = operators[index].length - low if counted_back else high
    return tuple(rows), counted_back


def split_ranges(space: Space, rows: Sequence[int], counted_back: bool) -> Ranges:
    """Return the rows of both sides for these limits of the server's rows."""
    operators, outputs = space.located.operators, set(space.located.sequence.retained_ids())

    def decide_rows(index: int, robot: Range, server: Range) -> Tuple[Range, Range]:
        count, length = rows[index], operators[index].length
        both = unite_rows(robot, server)
        if operators[index].kind is Locality.GLOBAL:
            return (EMPTY, both) if count else (both, EMPTY)
        if outputs.intersection(space.located.made_by[index]):
            robot, server = EMPTY, both
        low, high = (max(server[0], length - count), server[1]) if counted_back else (server[0], min(server[1], count))
        mine = (low, high) if low < high else EMPTY
        missing = uncovered_rows(server, mine)
        return (unite_rows(robot, missing) if missing[0] < missing[1] else robot), mine

    return decide_backward(space.located, decide_rows)


def even_rows(space: Space, share: float, until: int) -> Tuple[int, ...]:
    """Return limits that give the robot this share of every operator before ``until``, and no rows behind."""
    lengths = [entry.length for entry in space.located.operators]
    return tuple(length - int(share * length + 1e-9) * (index < until) for index, length in enumerate(lengths))


def refine_rows(space: Space, objective: Objective, best: Sequence[ScoredPlan], tries: int, chooser: random.Random,
           stop: Callable[[], bool] = lambda: False, slack: float = 0.0) -> List[ScoredPlan]:  # fmt: skip
    """The plans, one per bandwidth of the space, or better ones that moving the server's rows has led to.

    It begins with even shares up to a place. A move gives the server a row more or less of each operator of a stretch,
    in proportion to their lengths. Plans that are as good are taken, too, so that moves add up.

    With ``slack`` it begins with the plans that it is given and goes on from plans that cost up to this share more,
    too; the share falls to 0 with the tries (threshold accepting: Dueck and Scheuer, 1990).
    """
    results, current = list(best), list(best)
    count = len(space.located.operators)
    waist = _behind_waists(space)
    places = [range(count + 1), sorted({0, count, *waist})]
    starts = [even_rows(space, share, end) for end in waist[1 :: len(waist) // 16 + 1] for share in START_SHARES]
    starts = [] if slack else chooser.sample(starts, min(len(starts), tries // 4))
    seen: Set[Tuple[Tuple[int, ...], bool]] = set()
    for attempt in range(tries):
        if stop():
            break
        if attempt < len(starts):
            moved, counted_back = starts[attempt], False
        else:
            rows, counted_back = server_rows(space, current[attempt % len(current)])
            moved = _move_rows(space, rows, chooser.choice(places), chooser)
        if (moved, counted_back) in seen:
            continue
        seen.add((moved, counted_back))
        try:
            scored = space.score_ranges(*split_ranges(space, moved, counted_back))
        except BadInput:  # rows that no one side has
            continue
        worse = 1.0 + slack * (1.0 - attempt / tries)
        for index, result in enumerate(results):
            cost = _cost(objective, scored, index)
            if cost <= worse * _cost(objective, current[index], index):
                current[index] = scored
            if cost <= _cost(objective, result, index):
                results[index] = scored
    return results


def _move_rows(space: Space, rows: Sequence[int], places: Sequence[int], chooser: random.Random) -> Tuple[int, ...]:
    first = chooser.randrange(len(places) - 1)
    last = min(first + chooser.choice((1, 2, 3, 4, 6, 10, 20, 40, 80)), len(places) - 1)
    stretch = range(places[first], places[last])
    operators, moved = space.located.operators, list(rows)
    lengths = [operators[index].length for index in stretch if operators[index].length > 1]
    if lengths:
        unit, step = chooser.choice((min(lengths), max(lengths))), chooser.choice((-1, 1))
        for index in stretch:
            length = operators[index].length
            if length > 1:
                moved[index] = min(max(rows[index] + step * max(1, length // unit), 0), length)
    return tuple(moved)


def _behind_waists(space: Space) -> List[int]:
    return [waist.after + 1 for waist in find_waists(space.located)] if has_one_input(space.located) else []


def _cost(objective: Objective, scored: ScoredPlan, index: int) -> float:
    return objective.compute_cost(float(scored.makespan_s[index]), float(scored.energy_j[index]))
