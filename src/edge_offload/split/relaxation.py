"""The linear relaxation behind :mod:`edge_offload.split.bound`: rows as real numbers, and chains of work that cannot
overlap.

Variables per operator: rows on the robot r and on the server s; per value: rows sent up u and down d; the makespan T.
Footprints and costs (a launch, then a slope) are not linear: each is replaced by an affine function below it on the
node's interval of rows. A *waist* is a place in the program over which a single value is handed on.

Why every plan of a node satisfies the constraints (a plan: each side takes one stretch of rows of each operator, in
program order, and transfers leave in the order of first use; useless steps are left out, which delays nothing):

- *Coverage*: a row that a used row depends on is computed by somebody. Results are made by the robot or sent to it.
- *Footprints*: c rows of an operator on one side need at least ``least[c]`` rows of each argument; whatever of them
  that side did not compute it received, and only what the other side has computed can be sent.
- *Robot*: its steps follow each other.
- *Server start*: every upload that is used before a waist comes in before the server's work behind that waist; uploads
  take the wire one after the other. After the server's last step its result is sent, if only results are sent down.
- *Robot first* (only results are sent down): the robot has made whatever it sends behind a waist after all its steps
  up to that waist, so those uploads start after them, follow each other, and the last one is used before all of the
  server's work behind the place of that use, which the node bounds.
- *Server first* (the robot goes on computing with a download): as before with the roles changed; the server cannot
  begin before something came up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from edge_offload.errors import BadInput
from edge_offload.split.cost import RAW
from edge_offload.split.footprint import Locality
from edge_offload.split.plan import Side
from edge_offload.split.space import Space
from edge_offload.split.underestimate import affine_below, affine_cost, least_footprints, strictly_needed

Interval = Tuple[int, int]
Terms = Dict[int, float]
MOST_CHAINS = 24


@dataclass(frozen=True)
class Place:
    """A waist: between operator ``after`` and the next, only ``value`` is handed on; made by operator ``producer``."""

    after: int
    value: int
    producer: int


@dataclass(frozen=True)
class Node:
    """A set of plans.

    Attributes:
        up: True: nothing but the result is sent down, and the last upload is first used between the waists ``first``
            and ``last``. False: the last download that the robot goes on computing with is.
        first, last: positions in :attr:`Relaxation.places`.
        at_waist: nothing that is made between the two (neighbouring) waists is uploaded, so that the last upload is
            the value of waist ``first`` itself.
        inside: something is.
        input_sent: whether any of the input is uploaded.
        ranges: (side, operator) -> least and most rows, where they have been restricted.
    """

    up: bool
    first: int
    last: int
    input_sent: bool
    at_waist: bool = False
    inside: bool = False
    ranges: Tuple[Tuple[Tuple[Side, int], Interval], ...] = ()


@dataclass(frozen=True)
class Solved:
    """Bound of a node, and where relaxing hurt most: (side, operator, rows)."""

    bound: float
    worst: Optional[Tuple[Side, int, float]]
    limits: Mapping[Tuple[Side, int], Interval]


class Relaxation:
    """Everything about a space that does not depend on the node.

    Raises:
        BadInput: the network has several inputs or results, or its result is used by another operator.
    """

    def __init__(self, space: Space) -> None:
        self.space, self.model, located = space, space.model, space.located
        self.needed = strictly_needed(located)
        self.consumers = {number: [user for user in users if user in self.needed]
                          for number, users in located.sequence.consumers().items()}  # fmt: skip
        inputs = [number for number in located.sequence.inputs if self.consumers[number]]
        results = {number for number in located.sequence.kept() if number not in located.free}
        if len(inputs) != 1 or len(results) != 1 or not results <= set(located.producer):
            raise BadInput("a bound over all plans needs a network with one input and one result")
        (self.input,), (self.result,) = inputs, results
        if self.consumers[self.result] or located.producer[self.result] != max(self.needed):
            raise BadInput("a bound over all plans needs a result that the last operator makes and nothing uses")
        self.values = sorted({number for index in self.needed for number in located.footprint(
            index, 0, located.operators[index].length)} | {self.result})  # fmt: skip
        for index in self.needed:
            for number in located.made_by[index]:
                if number in self.values and located.length(number) != located.operators[index].length:
                    raise BadInput(f"operator {index} does not make its value by rows")
        self.least = {index: least_footprints(located, index) for index in self.needed}
        self.places = self._places()
        self.global_result = located.operators[located.producer[self.result]].kind is Locality.GLOBAL
        others = [users[0] for n, users in self.consumers.items() if n != self.input and users and n in self.values]
        self.input_first = not others or self.consumers[self.input][-1] < min(others)

    def _places(self) -> List[Place]:
        located, count = self.space.located, len(self.space.located.operators)
        crossing: List[Set[int]] = [set() for _ in range(count)]
        for number in self.values:
            reach = count if number == self.result else max(self.consumers[number], default=-1)
            for place in range(located.producer.get(number, 0), min(reach, count)):
                crossing[place].add(number)
        found = [Place(-1, self.input, -1)]
        for place in sorted(self.needed)[:-1]:
            if len(crossing[place]) == 1 and crossing[place] != {self.input}:
                (value,) = crossing[place]
                found.append(Place(place, value, located.producer[value]))
        return [*found, Place(count - 1, -1, count)]

    def has_inside(self, first: int) -> bool:
        """Whether something is made and used between a waist and the next."""
        low, high = self.places[first].after, self.places[first + 1].after
        made = (number for number in self.values if low < self.space.located.producer.get(number, -1) <= high)
        return any(self.consumers[number] and self.consumers[number][0] <= high for number in made)

    def solve(self, node: Node, bandwidth: float) -> Solved:
        """Lower bound on the makespan of the plans of a node."""
        return _Program(self, node, bandwidth).solve()


class _Program:
    """One linear program."""

    def __init__(self, base: Relaxation, node: Node, bandwidth: float) -> None:
        self.base, self.node = base, node
        self.located, self.model = base.space.located, base.model
        self.rates = {Side.ROBOT: bandwidth, Side.SERVER: bandwidth * self.model.link.down_factor}
        self.operators = sorted(base.needed)
        self.column: Dict[Tuple[str, int], int] = {}
        for kind, keys in (("r", self.operators), ("s", self.operators), ("u", base.values), ("d", base.values)):
            for key in keys:
                self.column[kind, key] = len(self.column)
        self.time = len(self.column)
        self.rows: List[Tuple[Terms, float]] = []  # sum of terms <= right-hand side
        self.sendable: Dict[Side, Set[int]] = {Side.ROBOT: set(), Side.SERVER: set()}
        self._allow()
        self.limits = self._limits()
        by_side = {Side.ROBOT: self.model.robot, Side.SERVER: self.model.server}
        self.costs = {key: affine_cost(by_side[key[0]][key[1]], *limits) for key, limits in self.limits.items()}

    def _allow(self) -> None:
        """Which values may be sent at all."""
        base, node = self.base, self.node
        first, last = base.places[node.first], base.places[node.last]
        for number in base.values:
            users = base.consumers[number]
            early = bool(users) and users[0] <= last.after
            made = self.located.producer.get(number, -1)
            if node.up:
                up = early and (made <= first.producer or not node.at_waist)
                down = number == base.result
            else:
                up, down = bool(users), made >= 0 and (early or number == base.result)
            if up and (number != base.input or node.input_sent):
                self.sendable[Side.ROBOT].add(number)
            if down:
                self.sendable[Side.SERVER].add(number)

    def _limits(self) -> Dict[Tuple[Side, int], Interval]:
        """Least and most rows of every operator on each side, as far as the node implies them."""
        base, node = self.base, self.node
        limits = {(side, i): (0, self.located.operators[i].length) for side in Side for i in self.operators}
        place = base.places[node.first]
        if node.up and node.first > 0:  # what it sends behind the waist, the robot has made from there on by itself
            limits[Side.ROBOT, place.producer] = (1, limits[Side.ROBOT, place.producer][1])
        if node.up and base.global_result:  # else the server works for nobody
            maker = self.located.producer[base.result]
            limits[Side.SERVER, maker], limits[Side.ROBOT, maker] = (1, 1), (0, 0)
        for key, (low, high) in node.ranges:
            limits[key] = (max(low, limits[key][0]), min(high, limits[key][1]))
        for index in reversed(self.operators):
            for side in Side:
                low = limits[side, index][0]
                for number, least in base.least[index].items() if low else ():
                    maker = self.located.producer.get(number, -1)
                    if maker in base.needed and number not in self.sendable[side.other]:
                        known = limits[side, maker]
                        limits[side, maker] = (max(known[0], int(least[low])), known[1])
        return limits

    def solve(self) -> Solved:
        """Build and solve."""
        nothing: Mapping[Tuple[Side, int], Interval] = {}
        if any(low > high for low, high in self.limits.values()):
            return Solved(float("inf"), None, nothing)
        self._coverage()
        self._footprints()
        self._chains()
        cost = np.zeros(self.time + 1)
        cost[self.time] = 1.0
        entries = [(row, column, value) for row, (terms, _) in enumerate(self.rows) for column, value in terms.items()]
        where_rows, where_columns, values = zip(*entries)
        matrix = csr_matrix((values, (where_rows, where_columns)), shape=(len(self.rows), self.time + 1))
        found = linprog(cost, A_ub=matrix, b_ub=[right for _, right in self.rows], bounds=self._bounds(),
                        method="highs")  # fmt: skip
        if found.status == 2:
            return Solved(float("inf"), None, nothing)
        if found.status != 0:
            return Solved(0.0, None, nothing)
        return Solved(float(found.fun), self._worst(found.x), self.limits)

    def _bounds(self) -> List[Tuple[float, float]]:
        bounds: List[Tuple[float, float]] = [(0.0, 0.0)] * (self.time + 1)
        for (kind, key), column in self.column.items():
            if kind in "rs":
                bounds[column] = self.limits[Side.ROBOT if kind == "r" else Side.SERVER, key]
            else:
                sent = self.sendable[Side.ROBOT if kind == "u" else Side.SERVER]
                least = 1.0 if kind == "u" and key == self.base.input and self.node.input_sent else 0.0
                bounds[column] = (least, float(self.located.length(key))) if key in sent else (0.0, 0.0)
        bounds[self.time] = (0.0, float("inf"))
        return bounds

    def _at_least(self, terms: Terms, right: float) -> None:
        self.rows.append(({column: -value for column, value in terms.items()}, -right))

    def _coverage(self) -> None:
        base = self.base
        for index in self.operators:
            self._at_least({self.column["r", index]: 1.0, self.column["s", index]: 1.0}, base.needed[index])
        maker = self.located.producer[base.result]
        self._at_least({self.column["r", maker]: 1.0, self.column["d", base.result]: 1.0},
                       self.located.length(base.result))  # fmt: skip
        for number in base.values:
            source = self.located.producer.get(number)
            if source is not None:
                for sent, made in (("u", "r"), ("d", "s")):
                    self._at_least({self.column[made, source]: 1.0, self.column[sent, number]: -1.0}, 0.0)

    def _footprints(self) -> None:
        for index in self.operators:
            for number, least in self.base.least[index].items():
                maker = self.located.producer.get(number)
                for side, own, received in ((Side.ROBOT, "r", "d"), (Side.SERVER, "s", "u")):
                    if maker is None and side is Side.ROBOT:
                        continue
                    offset, slope = affine_below(least, *self.limits[side, index])
                    terms = {self.column[own, index]: -slope, self.column[received, number]: 1.0}
                    if maker is not None:
                        terms[self.column[own, maker]] = terms.get(self.column[own, maker], 0.0) + 1.0
                    self._at_least(terms, offset)

    def _work(self, side: Side, low: int, high: int, terms: Terms) -> float:
        """Add a side's seconds for operators low < i <= high to ``terms``; returns their constant part."""
        constant = 0.0
        for index in self.operators:
            if low < index <= high:
                offset, slope = self.costs[side, index]
                column = self.column["r" if side is Side.ROBOT else "s", index]
                terms[column] = terms.get(column, 0.0) + slope
                constant += offset
        return constant

    def _wire(self, sender: Side, numbers: Sequence[int], terms: Terms) -> None:
        """Add the seconds for which a direction is taken by rows of these values."""
        for number in numbers:
            if number in self.sendable[sender]:
                column = self.column["u" if sender is Side.ROBOT else "d", number]
                terms[column] = terms.get(column, 0.0) + self._row_s(number, sender)

    def _row_s(self, number: int, sender: Side) -> float:
        """Least seconds of wire per row."""
        options = (RAW, *self.model.codecs.get(number, ())) if self.base.space.codecs else (RAW,)
        return self.located.row_bytes(number) / (max(option.ratio for option in options) * self.rates[sender])

    def _chain(self, terms: Terms, constant: float) -> None:
        """The makespan is at least this."""
        self._at_least({self.time: 1.0, **{column: -value for column, value in terms.items()}}, constant)

    def _chains(self) -> None:
        base, node, link = self.base, self.node, self.model.link
        end = len(self.located.operators)
        start = self.model.request_s if node.input_sent and base.input_first else 0.0
        tail = link.latency_s + link.message_s if node.up else 0.0
        results = [base.result] if node.up else []
        first, last = base.places[node.first], base.places[node.last]
        terms: Terms = {}
        self._chain(terms, self._work(Side.ROBOT, -1, end, terms))
        for place in _some(base.places[: node.last + 1] if node.up else base.places):
            early = [n for n in base.values if base.consumers[n] and base.consumers[n][-1] <= place.after]
            message = link.message_s if node.input_sent and base.input in early else 0.0
            terms = {}
            self._wire(Side.ROBOT, early, terms)
            constant = start + message + link.latency_s + tail + self._work(Side.SERVER, place.after, end, terms)
            self._wire(Side.SERVER, results, terms)
            self._chain(terms, constant)
        if node.up:
            # at a waist: its value may be used first by its last user only, as the add behind a residual branch
            rest = min(base.consumers[first.value][-1], last.after) - 1 if node.at_waist else last.after
            for place in _some(base.places[: node.first + 1]):
                terms = {}
                late = [n for n in base.values if self.located.producer.get(n, -1) >= place.producer]
                constant = self._work(Side.ROBOT, -1, place.producer, terms)
                self._wire(Side.ROBOT, late, terms)
                constant += self._work(Side.SERVER, rest, end, terms)
                self._wire(Side.SERVER, results, terms)
                self._chain(terms, constant + link.message_s + link.latency_s + tail)
            return
        for place in _some(base.places[: node.first + 1]):
            terms = {}
            early = [n for n in base.values if base.consumers[n] and base.consumers[n][-1] <= place.after]
            late = [n for n in base.values if self.located.producer.get(n, -1) >= first.producer and n != base.result]
            self._wire(Side.ROBOT, early, terms)
            constant = self._work(Side.SERVER, place.after, first.producer, terms)
            self._wire(Side.SERVER, late if node.first else [], terms)
            constant += self._work(Side.ROBOT, last.after, end, terms)
            self._chain(terms, constant + start + link.message_s + 2 * link.latency_s)

    def _worst(self, x: np.ndarray) -> Optional[Tuple[Side, int, float]]:
        """Where the affine functions lie furthest below footprint or launch, in seconds."""
        worst, found = 1e-7, None
        for side, own, received in ((Side.ROBOT, "r", Side.SERVER), (Side.SERVER, "s", Side.ROBOT)):
            costs = self.model.robot if side is Side.ROBOT else self.model.server
            for index in self.operators:
                low, high = self.limits[side, index]
                rows = float(x[self.column[own, index]])
                if low >= high:
                    continue
                lost = costs[index].launch_s * (1.0 - rows / high) if low == 0 and rows > 1e-6 else 0.0
                for number, least in self.base.least[index].items():
                    offset, slope = affine_below(least, low, high)
                    gap = float(np.interp(rows, np.arange(len(least)), least)) - (offset + slope * rows)
                    source = self.located.producer.get(number)
                    own_s = costs[source].row_s if source is not None else 0.0
                    sent_s = self._row_s(number, received) if number in self.sendable[received] else float("inf")
                    lost += gap * (min(own_s, sent_s) if source is not None else min(sent_s, 1.0))
                if lost > worst:
                    worst, found = lost, (side, index, rows)
        return found


def _some(places: Sequence[Place]) -> Sequence[Place]:
    """At most so many chains: each is a valid bound, neighbours say much the same."""
    if len(places) <= MOST_CHAINS:
        return places
    return [places[k] for k in sorted(set(np.linspace(0, len(places) - 1, MOST_CHAINS).astype(int).tolist()))]
