"""Lower bounds on what a plan has still to do before an operator, from flows through the graph of its events.

A plan's events (steps, transfers) form a graph whose longest path is the makespan; so the makespan is at least the
length of any mixture of paths. A :class:`Flow` is such a mixture: a share stays with the robot's steps, one is on the
uplink until operator ``switch`` and then with the server's steps, one stays on the uplink. All are paths in every plan,
because each side takes its steps in order, uploads leave in order of first use, and what is used by operator k has
arrived before k. Where a plan sends rows of one value both ways, a share of each side may cross over with them: the
mixture is as before, and the crossing has cost wire and delay. With ``jump`` all of one side's share crosses at the
last download (or upload).

For each flow, dynamic programming over (rows that the robot must have, rows that the server must have) of every value
gives the least weight of all that can precede, over every choice of counts. Arguments other than an operator's main
one count with the operators that only they depend on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import FrozenSet, List, Optional, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload_research.split.bounds.counts import Counted, Counts

Tables = List[Array]
"""For value -1, 0, 1, …: [robot's rows, server's rows] -> seconds."""


@dataclass(frozen=True)
class Flow:
    """Shares of three paths, together one.

    Attributes:
        robot, server, uplink: shares; that of the uplink stays there.
        switch: the server's share is on the uplink for what is made before this operator, and on the server behind.
        jump: ``down``: the server's share goes over to the robot with the last download; ``up``: the robot's share
            to the server with the last upload.
    """

    robot: float
    server: float
    switch: int = 0
    jump: str = ""
    uplink: float = 0.0

    def wire_share(self, value: int) -> float:
        """Share on the uplink while a value is sent."""
        return self.uplink + (self.server if value < self.switch else 0.0)

    def server_share(self, index: int) -> float:
        """Share with the server's step of an operator."""
        return self.server if index >= self.switch else 0.0

    def flow_after_jump(self) -> Flow:
        """The flow behind its jump."""
        return Flow(1.0, 0.0) if self.jump == "down" else Flow(0.0, 1.0)

    def weights_at(self, index: int) -> Tuple[float, float, float]:
        """Shares of robot, server and uplink where everything before operator ``index`` is still to come."""
        if self.jump:
            return (1.0, 0.0, 0.0) if self.jump == "down" else (0.0, 1.0, 0.0)
        if index > self.switch:
            return self.robot, self.server, self.uplink
        return self.robot, 0.0, self.uplink + self.server


class Potential:
    """The tables of one flow."""

    def __init__(self, counts: Counts, flow: Flow) -> None:
        self.counts, self.flow = counts, flow
        base = replace(flow, jump="")
        self.tables = self._make_tables(base, None, base)
        if flow.jump:
            self.tables = self._make_tables(flow.flow_after_jump(), self.tables, base)

    def _make_tables(self, flow: Flow, before: Optional[Tables], base: Flow) -> Tables:
        """Tables of ``flow``; with those of ``base`` given, everything behind the last jump."""
        counts = self.counts
        moved = base.robot if before is not None and self.flow.jump == "up" else 0.0
        rows = np.arange(counts.input_length + 1)
        share = flow.wire_share(-1)
        sent = share * (counts.input_s * rows + counts.message_s + counts.request_s) + moved * counts.latency_s
        tables = [np.tile(np.where(rows > 0, sent, 0.0), (counts.input_length + 1, 1))]
        for index, entry in enumerate(counts.operators):
            computed = self._computed_weight(flow, index, tables)
            if before is None:
                tables.append(self._received_weight(flow, index, computed))
            else:
                jumping = self._jump_weight(base, index, self._computed_weight(base, index, before))
                options = _Options(counts, entry, computed)
                stay = (options.sent_up if self.flow.jump == "down" else options.sent_down)(0.0, 0.0)
                tables.append(np.minimum(np.minimum(options.send_nothing(), stay), jumping))
        return tables

    def _computed_weight(self, flow: Flow, index: int, tables: Tables) -> Array:
        """Least weight up to and with an operator's steps, by rows computed on each side."""
        entry = self.counts.operators[index]
        main, least = entry.args[entry.main]
        total: Array = tables[main + 1][np.ix_(least, least)]
        for position, (value, other) in enumerate(entry.args):
            if position == entry.main or self.flow.jump:  # before or behind the jump, nobody knows
                continue
            recomputed_s = self._recomputed_times(
                flow, value, self.counts.before[main] | {main} if main >= 0 else frozenset()
            )
            if recomputed_s is not None:
                total = total + recomputed_s[np.ix_(other, other)]
        return np.asarray(total + _work_weight(flow, index, entry))

    def _recomputed_times(self, flow: Flow, value: int, excluded: FrozenSet[int]) -> Optional[Array]:
        """Weight of a value's operators that are not among the ``excluded`` ones; ``None``: there are none."""
        if value < 0 or value in excluded:
            return None
        entry = self.counts.operators[value]
        total = _work_weight(flow, value, entry)
        argument, least = entry.args[entry.main]
        times = self._recomputed_times(flow, argument, excluded)
        if times is not None:
            total = total + times[np.ix_(least, least)]
        return self._received_weight(flow, value, total)

    def _received_weight(self, flow: Flow, index: int, computed: Array) -> Array:
        """Convert a weight by computed rows to one by rows that each side must have, by transfers."""
        options = _Options(self.counts, self.counts.operators[index], computed)
        crossing = min(flow.robot, flow.server_share(index)) if _is_direct(self.counts, index) else 0.0
        return options.least_option(flow.wire_share(index), crossing)

    def _jump_weight(self, base: Flow, index: int, computed: Array) -> Array:
        """The same where the last jump is made with what is sent of this value."""
        options = _Options(self.counts, self.counts.operators[index], computed)
        if self.flow.jump == "down":
            moved = base.server_share(index)
            return np.minimum(options.sent_down(moved, moved), options.sent_both(0.0, 0.0, moved, moved))
        wire, moved = base.wire_share(index), base.robot
        return np.minimum(options.sent_up(wire + moved, moved), options.sent_both(wire + moved, moved, 0.0, 0.0))


class _Options:
    """Transfers of one value; each gives [robot's rows, server's rows] that the sides must have -> weight.

    Arguments are the shares that pay for the wire and for the delay of a message.
    """

    def __init__(self, counts: Counts, entry: Counted, computed: Array) -> None:
        self.counts, self.entry = counts, entry
        rows = np.arange(entry.length + 1)
        both = rows[:, None] + rows[None, :]
        impossible = (both < entry.needed) | (both > 1 if entry.length == 1 else False)
        self.computed = np.where(impossible, np.inf, computed)

    def send_nothing(self) -> Array:
        return _allow_more(_allow_more(self.computed, 0), 1)

    def sent_up(self, wire: float, delay: float) -> Array:
        return self._compute_fewer(_allow_more(self.computed, 0), 1, wire, delay)

    def sent_down(self, wire: float, delay: float) -> Array:
        return _allow_more(self._compute_fewer(self.computed, 0, wire, delay), 1)

    def sent_both(self, up: float, up_delay: float, down: float, down_delay: float) -> Array:
        return self._compute_fewer(self._compute_fewer(self.computed, 0, down, down_delay), 1, up, up_delay)

    def least_option(self, wire: float, crossing: float) -> Array:
        """All of these; ``crossing`` of either side's share goes over where rows are sent both ways."""
        one = np.minimum(self.send_nothing(), self.sent_down(0.0, 0.0))
        both = self.sent_both(wire + crossing, crossing, crossing, crossing)
        return np.minimum(np.minimum(one, self.sent_up(wire, 0.0)), both)

    def _compute_fewer(self, weight: Array, axis: int, wire: float, delay: float) -> Array:
        """Let a side compute fewer rows than it must have, and receive the rest."""
        row_s = wire * (self.entry.down_s if axis == 0 else self.entry.up_s)
        rows = np.arange(weight.shape[axis], dtype=float)
        paid = row_s * (rows[:, None] if axis == 0 else rows[None, :])
        cheapest = np.roll(np.minimum.accumulate(weight - paid, axis=axis), 1, axis)
        cheapest[(0, slice(None)) if axis == 0 else (slice(None), 0)] = np.inf
        return np.asarray(cheapest + paid + wire * self.counts.message_s + delay * self.counts.latency_s)


def _work_weight(flow: Flow, index: int, entry: Counted) -> Array:
    weight: Array = (flow.robot * entry.robot_s)[:, None] + (flow.server_share(index) * entry.server_s)[None, :]
    return weight


def _allow_more(weight: Array, axis: int) -> Array:
    """A side may have computed more rows than it must have."""
    return np.flip(np.minimum.accumulate(np.flip(weight, axis), axis=axis), axis)


def make_flows(counts: Counts) -> List[Flow]:
    """Flows that bound well together, those that bound most first: shares around that of balanced work."""
    server = np.cumsum([entry.server_s[-1] for entry in counts.operators])
    robot = sum(float(entry.robot_s[-1]) for entry in counts.operators)
    sent = float(server[-1]) + counts.input_length * counts.input_s  # what server-only takes
    fair, slow = (float(single / max(single + robot, 1e-12)) for single in (server[-1], sent))
    shares = [min(share, 0.9) for share in (fair, 1.4 * fair, 2.0 * fair, 0.7 * fair, slow, 1.3 * slow)]
    places = (int(np.searchsorted(server, part * server[-1])) for part in (0.03, 0.1, 0.3))
    switches = sorted({0, *(_next_unbridged(counts, place) for place in places)})
    candidates = [
        Flow(shares[0], 1.0 - shares[0]),
        Flow(0.0, 1.0, 0),
        Flow(0.0, 1.0, switches[1] if switches[1:] else 0),
    ]
    candidates += [Flow(0.0, 1.0, 0, "down"), Flow(1.0, 0.0)]
    candidates += [
        Flow(share, 1.0 - share, 0, jump) for share in (shares[0], shares[2], 0.5) for jump in ("up", "down")
    ]
    candidates += [Flow(share, (1.0 - share) * part, switch, "", (1.0 - share) * (1.0 - part))
              for part in (1.0, 0.8) for switch in switches for share in shares]  # fmt: skip
    return list(dict.fromkeys(candidates))


def _is_direct(counts: Counts, value: int) -> bool:
    """Return whether the next operator reads the value as its main argument: nothing counted lies in between."""
    if value + 1 == len(counts.operators):
        return False
    entry = counts.operators[value + 1]
    return entry.args[entry.main][0] == value


def _next_unbridged(counts: Counts, place: int) -> int:
    """The next place at which no main argument is handed over an operator: there the uplink's share can go over."""
    bridges = [(entry.args[entry.main][0], k) for k, entry in enumerate(counts.operators)]
    while any(value < place < user for value, user in bridges):
        place += 1
    return place
