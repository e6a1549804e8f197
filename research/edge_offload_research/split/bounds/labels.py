"""Least makespan over all counts, by labels from the result back to the input.

A label is a choice of counts for the last operators. Four *tails* say how long before the end the robot's and the
server's next step must start, and when a transfer at the head of either direction's queue must. It also has the rows
of every earlier value that each side must have. One more operator in front costs a label its seconds on either side;
what a side must have and does not compute is sent, before the queue and before that side's next step. Makespan never
falls when a tail or a need grows, so a label that is nowhere below another one is left out.

A label whose tails and :mod:`potentials <edge_offload_research.split.bounds.potentials>` reach the target is left out,
too: none of its plans is below the target. Where too many labels are left, tails are compared on a grid, whose width is
added to an error that the result carries; and where that is not enough, the target is lowered to what the least
promising labels can still become. Both make the bound lower, never wrong.

Of a value that others than the next operator read, only the rows that the next operator reads are awaited there and
queue with what comes behind; the rest has to arrive at its last reader, and to leave before what is read from there on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload_research.split.bounds.counts import INPUT, Counted, Counts
from edge_offload_research.split.bounds.potentials import Flow, Potential, make_flows

Columns = Dict[str, Array]
CHUNK = 1_000_000
"""Choices that are looked at together."""
FEW = 2000
"""So many labels are compared exactly."""
TAILS = ("robot", "server", "up", "down")


@dataclass
class Labels:
    """Columns of equal length.

    Attributes:
        tails: ``robot``, ``server``, ``up``, ``down``: seconds to the end. ``up`` is at least what a transfer needs
            that the server's next step awaits; ``down`` likewise.
        awaited: ``robot``, ``server``: rows of the next value that the following operator needs on that side.
        live: value with other readers -> ``robot``, ``server``: rows needed; ``up``, ``down``: tails at a reader.
        bound: no plan of the label is below it.
    """

    tails: Columns
    awaited: Columns
    live: Dict[int, Columns] = field(default_factory=dict)
    bound: Array = field(default_factory=lambda: np.zeros(1))

    def select_rows(self, rows: Array) -> Labels:
        """Some of them."""
        live = {value: _select_columns(columns, rows) for value, columns in self.live.items()}
        return Labels(_select_columns(self.tails, rows), _select_columns(self.awaited, rows), live, self.bound[rows])

    def __len__(self) -> int:
        return len(self.tails["robot"])


@dataclass(frozen=True)
class Choice:
    """Choices of all labels of an operator: the label behind it, rows on the robot, rows on the server."""

    behind: Array
    robot: Array
    server: Array


class Search:
    """One search.

    Args:
        counts: the problem.
        target: makespans from here on are of no interest.
        most: labels that are kept per operator.
        width: seconds by which tails may differ and still be taken for equal, over all operators together.

    Attributes:
        error: how far the result may be above the truth.
        best: least makespan that was found below the target, infinite if none.
    """

    def __init__(
        self, counts: Counts, target: float, most: int, width: float, tables: Optional[List[Potential]] = None
    ):
        self.counts, self.target, self.most = counts, target, most
        self.potentials = tables if tables is not None else make_potentials(counts)
        self.error, self.best = 0.0, float("inf")
        self._width, self._choices, self._ends = width, [], np.zeros(0)  # type: float, List[Choice], Array

    def run(self) -> float:
        """Lower bound on the makespan of every plan that uses the link, at most the target."""
        last = self.counts.operators[-1]
        tails = {"robot": 0.0, "server": 0.0, "up": self.counts.latency_s, "down": self.counts.latency_s}
        labels = Labels({name: np.full(1, tail) for name, tail in tails.items()},
                        {"robot": np.array([last.length]), "server": np.array([0])})  # fmt: skip
        self._choices = []
        for index in reversed(range(len(self.counts.operators))):
            labels = self._precede_labels(index, labels)
            if not len(labels):
                return self.target - self.error
        self._ends = self._finish_labels(labels)
        self.best = float(self._ends.min())
        return min(self.target, self.best) - self.error

    def list_counts(self, most: int) -> List[List[Tuple[int, int]]]:
        """Counts (robot, server) of every operator, of the best labels that reached the input."""
        plans = []
        for label in np.argsort(self._ends, kind="stable")[:most]:
            plan = []
            for choice in reversed(self._choices):
                plan.append((int(choice.robot[label]), int(choice.server[label])))
                label = choice.behind[label]
            plans.append(plan)
        return plans

    def _precede_labels(self, index: int, labels: Labels) -> Labels:
        """Put operator ``index`` before every label, in every way that may be below the target."""
        needs = labels.live.get(index, labels.awaited)
        sizes = _choices_of(needs["robot"], needs["server"], self.counts.operators[index].needed)
        parts: List[Tuple[Labels, Choice]] = []
        ends = np.cumsum(sizes)
        start = 0
        while start < len(labels):
            done = ends[start - 1] if start else 0
            stop = max(int(np.searchsorted(ends, done + CHUNK, side="right")), start + 1)
            chunk = np.arange(start, stop)
            parts.append(self._expand_labels(index, labels.select_rows(chunk), start))
            start = stop
        joined = _join_labels([part for part, _ in parts])
        retained = self._thin_labels(joined, index)
        choices = [choice for _, choice in parts]
        self._choices.append(Choice(*(np.concatenate([getattr(choice, name) for choice in choices])[retained]
                                      for name in ("behind", "robot", "server"))))  # fmt: skip
        return joined.select_rows(retained)

    def _expand_labels(self, index: int, labels: Labels, offset: int) -> Tuple[Labels, Choice]:
        counts, entry = self.counts, self.counts.operators[index]
        needs = labels.live.get(index, labels.awaited)
        behind, robot, server = _choose_rows(needs["robot"], needs["server"], entry)
        tails = _select_columns(labels.tails, behind)
        sent = {
            "up": self._sent_tail("up", index, labels, behind, server),
            "down": self._sent_tail("down", index, labels, behind, robot),
        }
        tails["robot"] = np.maximum(tails["robot"], sent["up"]) + entry.robot_s[robot]
        tails["server"] = np.maximum(tails["server"], sent["down"]) + entry.server_s[server]
        tails["up"] = np.maximum(np.maximum(tails["up"], sent["up"]), counts.latency_s + tails["server"])
        tails["down"] = np.maximum(np.maximum(tails["down"], sent["down"]), counts.latency_s + tails["robot"])
        value, least = entry.args[entry.main]
        bound, retained = self._bound_labels(index, tails, value, least[robot], least[server])
        behind, robot, server, bound = behind[retained], robot[retained], server[retained], bound[retained]
        tails = _select_columns(tails, retained)
        live = {other: _select_columns(columns, behind) for other, columns in labels.live.items() if other != index}
        zero = np.zeros(len(behind), dtype=int)
        awaited = {"robot": zero, "server": zero}
        for value, least in entry.args:
            rows = {"robot": least[robot], "server": least[server]}
            if value == index - 1:
                awaited = rows
            if not counts.has_one_reader(value):
                live[value] = _merge_readers(live.get(value), rows, tails)
        return Labels(tails, awaited, live, bound), Choice(behind + offset, robot, server)

    def _sent_tail(self, direction: str, index: int, labels: Labels, behind: Array, computed: Array) -> Array:
        """Tail of what is sent of value ``index`` in a direction; 0 where nothing is."""
        counts = self.counts
        side = "server" if direction == "up" else "robot"
        row_s, message = self._wire_seconds(index, direction)
        tail: Array = np.zeros(len(behind))
        if index in labels.live:
            columns = labels.live[index]
            missing = columns[side][behind] - computed
            tail = np.where(missing > 0, row_s * missing + message + columns[direction][behind], 0.0)
        if counts.is_next(index):
            missing = labels.awaited[side][behind] - computed
            queued = row_s * missing + message + labels.tails[direction][behind]
            tail = np.where(missing > 0, np.maximum(tail, queued), tail)
        return tail

    def _wire_seconds(self, value: int, direction: str) -> Tuple[float, float]:
        """Return the seconds of the link per row, and of a message."""
        counts = self.counts
        if value == INPUT:
            return counts.input_s, counts.message_s + counts.request_s
        entry = counts.operators[value]
        return (entry.up_s if direction == "up" else entry.down_s), counts.message_s

    def _finish_labels(self, labels: Labels) -> Array:
        """Makespans: the input has it all on the robot."""
        rows = np.arange(len(labels))
        nothing = np.zeros(len(labels), dtype=int)
        return np.asarray(np.maximum(labels.tails["robot"], self._sent_tail("up", INPUT, labels, rows, nothing)))

    def _bound_labels(self, index: int, tails: Columns, value: int, robot: Array, server: Array,
               at_once: int = 4) -> Tuple[Array, Array]:  # fmt: skip
        """Bounds, and which are below the target; a few potentials at a time, so that most need only the first."""
        bound = np.maximum(tails["robot"], tails["server"])
        below = np.flatnonzero(bound < self.target)
        for first in range(0, len(self.potentials), at_once):
            columns, mine, theirs = _select_columns(tails, below), robot[below], server[below]
            bounds = bound[below]
            for potential in self.potentials[first : first + at_once]:
                of_robot, of_server, of_up = potential.flow.weights_at(index)
                weight = potential.tables[value + 1][mine, theirs]
                bounds = np.maximum(bounds, weight + of_robot * columns["robot"] + of_server * columns["server"]
                                   + of_up * columns["up"])  # fmt: skip
            bound[below] = bounds
            below = below[bounds < self.target]
        return bound, below

    def _thin_labels(self, labels: Labels, index: int) -> Array:
        """The labels that go on."""
        counts, tails = self._comparable_columns(labels)
        table = np.concatenate([counts, tails], axis=1)
        order = np.argsort(labels.bound, kind="stable")
        order = order[_select_undominated(table[order], 100)]
        if len(order) > FEW:
            width = max(self._width - self.error, 0.0) / (2 * (index + 1))
            cells = np.concatenate([counts[order], np.floor(tails[order] / max(width, 1e-12))], axis=1)
            order = order[_first_of_each(cells)]
            allowed = np.concatenate([np.zeros(counts.shape[1]), np.full(tails.shape[1], width)])
            order = order[_select_undominated(table[order], 300, allowed)]
            self.error += 2 * width
        if len(order) > self.most:
            self.target = min(self.target, float(labels.bound[order[self.most]]))
            order = order[: self.most]
        return np.asarray(order[labels.bound[order] < self.target])

    def _comparable_columns(self, labels: Labels) -> Tuple[Array, Array]:
        """Whole numbers and tails [label, column] of which less is better.

        Where the robot must have nothing, all that it may still compute is sent up and used by a step that is there
        already; so its own tail does not matter as long as it is below that. The same for the server.
        """
        counts, tails = self.counts, dict(labels.tails)
        for side, direction in (("robot", "up"), ("server", "down")):
            free, other = labels.awaited[side] == 0, "server" if side == "robot" else "robot"
            least = labels.tails[direction]
            for columns in labels.live.values():
                free = free & (columns[side] == 0)
                least = np.where(columns[other] > 0, np.minimum(least, columns[direction]), least)
            tails[side] = np.where(free, np.maximum(tails[side], counts.message_s + least), tails[side])
        integers = [labels.awaited["robot"], labels.awaited["server"]]
        times = [tails[name] for name in TAILS]
        for columns in labels.live.values():
            integers += [columns["robot"], columns["server"]]
            times += [columns["up"], columns["down"]]
        return np.stack(integers, axis=1).astype(float), np.stack(times, axis=1)


def make_potentials(counts: Counts, chosen: Optional[Sequence[Flow]] = None) -> List[Potential]:
    """Tables of the flows that bound well together."""
    return [Potential(counts, flow) for flow in (chosen if chosen is not None else make_flows(counts))]


def _merge_readers(previous: Optional[Columns], rows: Columns, tails: Columns) -> Columns:
    """A value with several readers: what it must be had of, and the tails at the reader that comes last."""
    if previous is None:
        nothing = np.zeros(len(rows["robot"]))
        previous = {"robot": nothing.astype(int), "server": nothing.astype(int), "up": nothing, "down": nothing}
    columns: Columns = {}
    for side, direction in (("server", "up"), ("robot", "down")):
        first = (previous[side] == 0) & (rows[side] > 0)
        columns[direction] = np.where(first, tails[direction], previous[direction])
        columns[side] = np.maximum(previous[side], rows[side])
    return columns


def _select_columns(columns: Columns, rows: Array) -> Columns:
    return {name: column[rows] for name, column in columns.items()}


def _join_labels(parts: Sequence[Labels]) -> Labels:
    def join_columns(columns: Sequence[Columns]) -> Columns:
        return {name: np.concatenate([one[name] for one in columns]) for name in columns[0]}

    live = {value: join_columns([part.live[value] for part in parts]) for value in parts[0].live}
    return Labels(join_columns([part.tails for part in parts]), join_columns([part.awaited for part in parts]), live,
                  np.concatenate([part.bound for part in parts]))  # fmt: skip


def _choices_of(robot: Array, server: Array, needed: int) -> Array:
    spare = np.maximum(robot + server - needed, 0)
    return np.asarray(2 + robot + server + spare * spare // 2)


def _choose_rows(robot: Array, server: Array, entry: Counted) -> Tuple[Array, Array, Array]:
    """(label, rows on the robot, rows on the server): all that may be best for labels that must have so many rows.

    Nothing is sent; the robot sends some of the server's and computes what nobody would; the other way round; both
    send, and nothing is computed for the other. More than that is computed and sent for nobody. A global operator is
    on one side.
    """
    needed = entry.needed
    spare = robot + server - needed
    single_row = entry.length == 1
    enough = np.flatnonzero((spare >= 0) & ((robot + server <= 1) | (not single_row)))
    parts = [(enough, robot[enough], server[enough])]
    short = np.flatnonzero(spare < 0)
    if len(short):
        label, more = _ragged_indices(1 - spare[short])
        label = short[label]
        parts.append((label, robot[label] + more, needed - robot[label] - more))
    label, retained = _ragged_indices(server)
    parts.append((label, np.maximum(robot[label], needed - retained), retained))
    label, retained = _ragged_indices(robot)
    parts.append((label, retained, np.maximum(server[label], needed - retained)))
    several = np.flatnonzero(spare >= 2)
    if len(several):
        row, first = _ragged_indices(spare[several] - 1)
        label, fewer = several[row], first + 1  # rows of the robot's that are sent to it; then of the server's
        row, second = _ragged_indices(spare[label] - fewer)
        label, fewer, other = label[row], fewer[row], second + 1
        fit = (fewer <= robot[label]) & (other <= server[label])
        label, fewer, other = label[fit], fewer[fit], other[fit]
        parts.append((label, robot[label] - fewer, server[label] - other))
    labels, mine, theirs = (np.concatenate([part[k] for part in parts]) for k in range(3))
    return labels, mine, theirs


def _ragged_indices(sizes: Array) -> Tuple[Array, Array]:
    """List the numbers 0 … sizes[k] - 1 for every k: (k, number)."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def _select_undominated(table: Array, pivots: int, allowed: Optional[Array] = None) -> Array:
    """Rows, in order, without those that are nowhere below one of the first ``pivots`` that remain.

    ``allowed``: by how much a row may be below and still be taken for not below, per column.
    """
    pivot_rows: List[int] = []
    rows = np.arange(len(table))
    while len(rows) and len(pivot_rows) < pivots:
        pivot_rows.append(int(rows[0]))
        least = table[0] if allowed is None else table[0] - allowed
        better = ~(table >= least).all(axis=1)
        better[0] = False
        rows, table = rows[better], table[better]
    return np.concatenate([np.asarray(pivot_rows, dtype=int), rows])


def _first_of_each(cells: Array) -> Array:
    """The first row of every kind, in order."""
    _, first = np.unique(np.ascontiguousarray(cells), axis=0, return_index=True)
    return np.sort(first)
