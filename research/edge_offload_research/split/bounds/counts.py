"""What every plan computes and sends at least, in counts of rows: the problem that the bound over all plans solves.

A plan gives each side one stretch of rows of every operator. Here only the stretches' lengths are kept: ``a`` rows on
the robot and ``b`` on the server. For every plan

- *coverage*: a + b is at least the number of rows that some used row depends on, and a global operator is on one side;
- *footprint*: c rows of an operator need at least ``least[c]`` rows of an argument, the fewest that any c rows need,
  and a side that computed fewer rows of the argument than that was sent the difference;
- *time*: c rows cost launch + c x slope, a transfer its bytes over the bandwidth, with the codec that shrinks most.

Counts that satisfy this need not come from a plan (which end of a value is whose is forgotten), so the least makespan
over counts is a lower bound on that over plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, FrozenSet, List, Sequence, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.split.model.cost import RAW, OperatorCost
from edge_offload.split.model.plan import Side
from edge_offload.split.planners.space import Space
from edge_offload_research.split.planners.underestimate import least_footprints, strictly_needed

INPUT = -1
"""The network's input, where others name the operator that makes a value."""


@dataclass(frozen=True)
class Counted:
    """One operator that the result depends on, with the one value that it makes. Operators count from 0 without gaps.

    Attributes:
        operator: its index in the sequence.
        needed: how many rows both sides together must make.
        length: rows of its value; 1 for a global operator.
        robot_s, server_s: seconds for 0 … length rows.
        args: (operator that makes the argument, fewest of its rows that 0 … length rows need).
        main: the argument with most work behind it, an index into ``args``.
        consumers: operators that read the value, ascending.
        up_s, down_s: seconds of the link for one row.
        up_single_s: seconds from ready to there for one row on an idle uplink, coding and decoding included, at least.
    """

    operator: int
    needed: int
    length: int
    robot_s: Array
    server_s: Array
    args: Tuple[Tuple[int, Array], ...]
    main: int
    consumers: Tuple[int, ...]
    up_s: float
    down_s: float
    up_single_s: float


class Counts:
    """A space at one bandwidth, in counts.

    Attributes:
        operators: in program order; the last one makes the result.
        input_length, input_s, input_alone_s, input_consumers: rows of the input, seconds of uplink for one (see
            :class:`Counted`), and who reads it.
        latency_s, message_s, request_s: as in the cost model.
        before: operator -> all operators that it depends on.

    Raises:
        BadInput: several inputs or results, a result that is used again, or an operator that makes several values.
    """

    def __init__(self, space: Space, bandwidth: float) -> None:
        self.space, model, located = space, space.model, space.located
        self.latency_s, self.message_s = model.link.latency_s, model.link.message_s
        self.request_s = model.request_s
        rates = {Side.ROBOT: bandwidth, Side.SERVER: bandwidth * model.link.down_factor}
        needed = strictly_needed(located)
        users = {number: [user for user in consumers if user in needed]
                 for number, consumers in located.sequence.consumer_indices().items()}  # fmt: skip
        results = {number for number in located.sequence.retained_ids() if number not in located.free}
        inputs = [number for number in located.sequence.inputs if users[number]]
        if len(inputs) != 1 or len(results) != 1 or not results <= set(located.producer):
            raise BadInput("a bound over all plans needs a network with one input and one result")
        place = {index: k for k, index in enumerate(sorted(needed))}
        values = {index: [n for n in located.made_by[index] if users.get(n) or n in results] for index in place}
        (result,) = results
        if users[result] or result not in values[max(place)]:
            raise BadInput("a bound over all plans needs a result that the last operator makes and nothing uses")
        maker = {inputs[0]: INPUT, **{made[0]: place[index] for index, made in values.items()}}
        self.before: List[FrozenSet[int]] = []
        self.operators: List[Counted] = []
        for index in place:
            length = located.operators[index].length
            if len(values[index]) != 1 or located.count_rows(values[index][0]) != length:
                raise BadInput(f"operator {index} does not make one value by rows")
            (number,) = values[index]
            args = tuple((maker[n], np.ceil(least - 1e-9).astype(int))
                         for n, least in least_footprints(located, index).items())  # fmt: skip
            self.before.append(frozenset().union(*(self.before[u] | {u} for u, _ in args if u >= 0)))
            work = [sum(self.operators[v].server_s[-1] for v in self.before[u] | {u}) if u >= 0 else -1.0
                    for u, _ in args]  # fmt: skip
            row_s = [self._row_s(number, rates[side]) for side in Side]
            row_s.append(self._single_s(number, rates[Side.ROBOT]))
            self.operators.append(Counted(index, needed[index], length, _seconds_of(model.robot[index], length),
                                          _seconds_of(model.server[index], length), args, int(np.argmax(work)),
                                          tuple(place[user] for user in users[number]), *row_s))  # fmt: skip
        self.input_length = located.count_rows(inputs[0])
        self.input_s = self._row_s(inputs[0], rates[Side.ROBOT])
        self.input_single_s = self._single_s(inputs[0], rates[Side.ROBOT])
        self.input_consumers = tuple(place[user] for user in users[inputs[0]])

    def _row_s(self, number: int, rate: float) -> float:
        options = (RAW, *self.space.model.codecs.get(number, ())) if self.space.codecs else (RAW,)
        return self.space.located.row_bytes(number) / (max(option.ratio for option in options) * rate)

    def _single_s(self, number: int, rate: float) -> float:
        options = (RAW, *self.space.model.codecs.get(number, ())) if self.space.codecs else (RAW,)
        raw = self.space.located.row_bytes(number)
        return min(max(raw / (option.ratio * rate), option.encode_s(raw, Side.ROBOT), option.decode_s(raw, Side.ROBOT))
                   for option in options)  # fmt: skip

    def list_consumers(self, value: int) -> Sequence[int]:
        """List the readers of operator ``value``."""
        return self.input_consumers if value == INPUT else self.operators[value].consumers

    def is_next(self, value: int) -> bool:
        """Return whether the next operator (after the last one: the robot) reads the value, and awaits its transfer."""
        return value + 1 in self.list_consumers(value) or value + 1 == len(self.operators)

    def has_one_reader(self, value: int) -> bool:
        """Return whether nothing else reads the value."""
        return self.is_next(value) and len(self.list_consumers(value)) <= 1

    def list_footprints(self, index: int) -> Dict[int, Array]:
        """Argument -> fewest rows that 0 … length rows of operator ``index`` need."""
        return dict(self.operators[index].args)


def _seconds_of(cost: OperatorCost, length: int) -> Array:
    seconds: Array = cost.launch_s + cost.row_s * np.arange(length + 1)
    seconds[0] = 0.0
    return seconds
