"""Plans by how many rows of each operator the server makes, and a search that moves these numbers.

The server makes the first rows of every operator (or the last ones), as many as it is given and as its later steps
need. The robot makes what its own later steps need and what the server lacks, and hands that over; of a result, it
makes what is not the server's. So a row more or
less at an operator says whether the server recomputes a halo or is sent it, there and only there. Layer cuts and
replicated splits are such plans.
"""

from __future__ import annotations

import random
from typing import Callable, Dict, List, Sequence, Set, Tuple

from edge_offload.errors import BadInput
from edge_offload.split.footprints.registry import EMPTY, Locality, Range
from edge_offload.split.model.complete import backward
from edge_offload.split.model.locality import union
from edge_offload.split.model.objective import Objective
from edge_offload.split.planners.replicated import one_input, waists
from edge_offload.split.planners.space import Scored, Space, remainder

SHARES = tuple(k / 28 for k in range(1, 14))
"""Of the robot where the server has the same share of every operator."""
Ranges = Tuple[Dict[int, Range], Dict[int, Range]]


def server_rows(space: Space, scored: Scored) -> Tuple[Tuple[int, ...], bool]:
    """Return the limit of the server's rows of every operator in a plan; True if they are counted from the last row."""
    operators, server = space.located.operators, scored.server
    counted_back = any(low > 0 for low, _ in server.values())
    rows = [0] * len(operators)
    for index, (low, high) in server.items():
        rows[index] = operators[index].length - low if counted_back else high
    return tuple(rows), counted_back


def ranges(space: Space, rows: Sequence[int], counted_back: bool) -> Ranges:
    """Return the rows of both sides for these limits of the server's rows."""
    operators, kept = space.located.operators, set(space.located.sequence.retained_ids())

    def decide(index: int, robot: Range, server: Range) -> Tuple[Range, Range]:
        count, length = rows[index], operators[index].length
        both = union(robot, server)
        if operators[index].kind is Locality.GLOBAL:
            return (EMPTY, both) if count else (both, EMPTY)
        if kept.intersection(space.located.made_by[index]):
            robot, server = EMPTY, both
        low, high = (max(server[0], length - count), server[1]) if counted_back else (server[0], min(server[1], count))
        mine = (low, high) if low < high else EMPTY
        lacking = remainder(server, mine)
        return (union(robot, lacking) if lacking[0] < lacking[1] else robot), mine

    return backward(space.located, decide)


def even(space: Space, share: float, until: int) -> Tuple[int, ...]:
    """Return limits that give the robot this share of every operator before ``until``, and no rows behind."""
    lengths = [entry.length for entry in space.located.operators]
    return tuple(length - int(share * length + 1e-9) * (index < until) for index, length in enumerate(lengths))


def refine(space: Space, objective: Objective, best: Sequence[Scored], tries: int, chooser: random.Random,
           stop: Callable[[], bool] = lambda: False, slack: float = 0.0) -> List[Scored]:  # fmt: skip
    """The plans, one per bandwidth of the space, or better ones that moving the server's rows has led to.

    It begins with even shares up to a place. A move gives the server a row more or less of each operator of a stretch,
    in proportion to their lengths. Plans that are as good are taken, too, so that moves add up.

    With ``slack`` it begins with the plans that it is given and goes on from plans that cost up to this share more,
    too; the share falls to 0 with the tries (threshold accepting: Dueck and Scheuer, 1990).
    """
    found, held = list(best), list(best)
    count = len(space.located.operators)
    waist = _behind_waists(space)
    places = [range(count + 1), sorted({0, count, *waist})]
    starts = [even(space, share, end) for end in waist[1 :: len(waist) // 16 + 1] for share in SHARES]
    starts = [] if slack else chooser.sample(starts, min(len(starts), tries // 4))
    seen: Set[Tuple[Tuple[int, ...], bool]] = set()
    for attempt in range(tries):
        if stop():
            break
        if attempt < len(starts):
            moved, counted_back = starts[attempt], False
        else:
            rows, counted_back = server_rows(space, held[attempt % len(held)])
            moved = _moved(space, rows, chooser.choice(places), chooser)
        if (moved, counted_back) in seen:
            continue
        seen.add((moved, counted_back))
        try:
            scored = space.score_ranges(*ranges(space, moved, counted_back))
        except BadInput:  # rows that no one side has
            continue
        worse = 1.0 + slack * (1.0 - attempt / tries)
        for at, known in enumerate(found):
            cost = _cost(objective, scored, at)
            if cost <= worse * _cost(objective, held[at], at):
                held[at] = scored
            if cost <= _cost(objective, known, at):
                found[at] = scored
    return found


def _moved(space: Space, rows: Sequence[int], places: Sequence[int], chooser: random.Random) -> Tuple[int, ...]:
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
    return [waist.after + 1 for waist in waists(space.located)] if one_input(space.located) else []


def _cost(objective: Objective, scored: Scored, index: int) -> float:
    return objective.cost(float(scored.makespan_s[index]), float(scored.energy_j[index]))
