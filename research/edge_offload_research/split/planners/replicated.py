"""The best replicated split, found by looking at all of them and simulating those that a bound does not exclude.

A *waist* is a place in the program over which a single value is handed on. A *replicated split* sends whole parts up at
most twice: behind waist J the robot, which has made everything so far, sends a part of what is handed on; both sides
compute their rows up to waist K, each with its own halos, or the server without: then the robot hands over what both
would compute on the way, or what lies outside the server's share of an operator's rows. The robot sends its rows at K,
and the server finishes. J at the input and K at J are included, so that device-only, server-only and every layer cut at
a waist are of the family. The robot's rows may be any number, the first or the last ones, and payloads take the best
codec.
"""

from __future__ import annotations

import enum
import itertools
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.split.footprints.registry import EMPTY, Locality, Range
from edge_offload.split.model.cost import RAW
from edge_offload.split.model.locality import unite_rows
from edge_offload.split.model.objective import Objective
from edge_offload.split.model.plan import Side
from edge_offload.split.planners.shares import Waist, find_waists
from edge_offload.split.planners.space import RowSplit, RowSplits, ScoredPlan, Space


class HaloSource(enum.Enum):
    """Who computes what both sides need between two waists.

    Each for itself, the robot, or the robot what lies outside the server's share.
    """

    REPLICATED = enum.auto()
    SENT = enum.auto()
    FIXED_SHARE = enum.auto()


class ReplicatedSearch:
    """Goes through the family.

    Args:
        space: a network with one input.
        objective: what to minimise.
        best: cost to beat at every bandwidth; lowered by what is found.
        report: is given every plan that is simulated.
        stop: asked now and then; True ends the search early, and then nothing is proven.
    """

    def __init__(
        self,
        space: Space,
        objective: Objective,
        best: Array,
        report: Optional[Callable[[ScoredPlan], object]] = None,
        stop: Optional[Callable[[], bool]] = None,
    ) -> None:
        self.space, self.objective, self.best = space, objective, best
        self._report, self._stop = report, stop
        count = len(space.located.operators)
        needed = space.located.needed_rows()
        total_s, launch = np.zeros((count + 1, 2)), np.zeros((count + 1, 2))
        for index, entry in enumerate(space.located.operators):
            low, high = space.located.made_rows(index, needed)
            if entry.kind is Locality.FREE or low >= high:
                continue
            for column, side in enumerate((Side.ROBOT, Side.SERVER)):
                costs = space.model.robot if side is Side.ROBOT else space.model.server
                total_s[index + 1, column] = space.model.operator_s(side, index, high - low)
                launch[index + 1, column] = costs[index].launch_s
        self._cones: Dict[Tuple[Side, Range, HaloSource], Tuple[Array, Dict[int, Range]]] = {}
        self._complements: Dict[Range, Array] = {}
        self.total_s, self.launch_s = total_s.cumsum(axis=0), launch.cumsum(axis=0)

    def run_search(self) -> None:
        """Look at every member."""
        self._score_row_splits(self.space.device_only)
        all_waists = find_waists(self.space.located)
        for waist in all_waists:
            if (self._lower_bound(waist, waist, np.zeros(1), np.ones(1)) < self.best).any():
                self._score_row_splits(_make_row_splits(self.space, waist, waist, 0.0, False))
        for kinds in (
            (HaloSource.REPLICATED, HaloSource.SENT),
            (HaloSource.FIXED_SHARE,),
        ):  # what wins most often first, should time run out
            for last in all_waists[1:]:
                length = self.space.located.count_rows(last.value)
                rows = np.arange(1, length)
                if length < 2:
                    continue
                for first in all_waists:
                    if first.after >= last.after:
                        break
                    if self._stop is not None and self._stop():
                        return
                    costs = self._lower_bound(first, last, (rows - 1) / length, (length - rows - 1) / length)
                    for count in rows[(costs < self.best[None, :]).any(axis=1)]:
                        for halos, flipped in itertools.product(kinds, (False, True)):
                            if (self._closer_bound(first, last, int(count), flipped, halos) < self.best).any():
                                self._score_row_splits(
                                    _make_row_splits(self.space, first, last, float(count) / length, flipped, halos)
                                )
                self._cones.clear()
                self._complements.clear()

    def _closer_bound(self, first: Waist, last: Waist, count: int, flipped: bool, halos: HaloSource) -> Array:
        """Least cost at every bandwidth, with the halos of these very rows.

        If they are handed over, the server's seconds and what it is sent first are what the robot's rows leave at
        least.
        """
        length = self.space.located.count_rows(last.value)
        mine, theirs = (0, count), (count, length)
        if flipped:
            mine, theirs = (length - count, length), (0, length - count)
        robot_s, _ = self._find_cone(last, Side.ROBOT, mine)
        before, middle, end = first.after + 1, last.after + 1, len(self.total_s) - 1
        prefix, rest = self.total_s[before, 0], self.total_s[end, 1] - self.total_s[middle, 1]
        if halos is HaloSource.SENT:
            server_s = self._complement_seconds(last, mine)
            low, high = 0, self._count_rows(last, (0, length), first.value) - self._count_rows(last, mine, first.value)
        else:
            server_s, need = self._find_cone(last, Side.SERVER, theirs, halos)
            low, high = need.get(first.value, EMPTY)
        up_first = self._wire_s(first.value) * (high - low) / self.space.located.count_rows(first.value)
        up_last = self._wire_s(last.value) * (count / length)
        robot, server = prefix + robot_s[before], server_s[before] + rest
        return self._chain_cost(robot, server, prefix, rest, up_first, up_last, first.after < 0)

    def _find_cone(self, last: Waist, side: Side, rows: Range,
              halos: HaloSource = HaloSource.REPLICATED) -> Tuple[Array, Dict[int, Range]]:  # fmt: skip
        """Seconds of a side from each operator up to ``last`` for ``rows`` there, and what it needs of every value."""
        key = (side, rows, halos)
        share = 1.0 - (rows[1] - rows[0]) / self.space.located.count_rows(last.value)
        if key not in self._cones:
            located, model = self.space.located, self.space.model
            need: Dict[int, Range] = {last.value: rows}
            seconds = np.zeros(last.after + 2)
            for index in range(last.after, -1, -1):
                low, high = located.made_rows(index, need)
                if (
                    halos is HaloSource.FIXED_SHARE
                    and index < last.after
                    and located.operators[index].kind is not Locality.GLOBAL
                ):
                    low, high = self.space.share_rows(index, share, rows[0] == 0, (low, high))
                for number, part in located.footprint(index, low, high).items():
                    need[number] = unite_rows(need.get(number, EMPTY), part)
                seconds[index] = seconds[index + 1] + model.operator_s(side, index, high - low)
            self._cones[key] = seconds, need
        return self._cones[key]

    def _count_rows(self, last: Waist, rows: Range, number: int) -> int:
        """Return the number of rows of a value that ``rows`` of ``last`` need."""
        low, high = self._find_cone(last, Side.ROBOT, rows)[1].get(number, EMPTY)
        return high - low

    def _complement_seconds(self, last: Waist, mine: Range) -> Array:
        """Return the server's seconds from each operator up to ``last`` without the robot's rows for ``mine``."""
        if mine in self._complements:
            return self._complements[mine]
        located = self.space.located
        all_rows = self._find_cone(last, Side.ROBOT, (0, located.count_rows(last.value)))[1]
        robot = self._find_cone(last, Side.ROBOT, mine)[1]
        seconds = np.zeros(last.after + 2)
        for index in range(last.after, -1, -1):
            (low, high), (first, end) = located.made_rows(index, all_rows), located.made_rows(index, robot)
            rows = max(high - low - (end - first), 0)
            seconds[index] = seconds[index + 1] + self.space.model.operator_s(Side.SERVER, index, rows)
        self._complements[mine] = seconds
        return seconds

    def _chain_cost(self, robot: Any, server: Any, prefix: float, rest: float, up_first: Any, up_last: Any,
              at_input: bool) -> Array:  # fmt: skip
        """Return the cost of chains of work that cannot overlap."""
        link, power = self.space.model.link, self.space.model.power
        request = self.space.model.request_s if at_input else 0.0
        delay = 2 * (link.latency_s + link.message_s)
        makespan = np.maximum(robot + rest + up_last, prefix + request + up_first + np.maximum(server, rest + up_last))
        makespan = makespan + delay
        joules = makespan * power.standby + robot * (power.inference - power.standby)
        return np.asarray(np.vectorize(self.objective.compute_cost)(makespan, joules))

    def _score_row_splits(self, row_splits: RowSplits) -> None:
        scored = self.space.score_row_splits(row_splits)
        if self._report is not None:
            self._report(scored)
        pairs = zip(scored.makespan_s, scored.energy_j)
        self.best = np.minimum(self.best, [self.objective.compute_cost(float(s), float(j)) for s, j in pairs])

    def _lower_bound(self, first: Waist, last: Waist, share: Array, other: Array) -> Array:
        """Least cost [share, bandwidth]: rows in proportion, no halos, nothing but chains of work that cannot overlap.

        ``share`` and ``other``: the robot's and the server's fractions of the rows between the waists, rounded down.
        """
        before, middle, end = first.after + 1, last.after + 1, len(self.total_s) - 1
        prefix = self.total_s[before, 0]
        parts = self.total_s[middle] - self.total_s[before]
        launches = self.launch_s[middle] - self.launch_s[before]
        rest = self.total_s[end, 1] - self.total_s[middle, 1]
        robot = prefix + launches[0] + (parts[0] - launches[0]) * share
        server = launches[1] + (parts[1] - launches[1]) * other + rest
        if first == last:
            robot, server = np.full(1, prefix), np.full(1, rest)
        up_first, up_last = np.outer(other, self._wire_s(first.value)), np.outer(share, self._wire_s(last.value))
        return self._chain_cost(robot[:, None], server[:, None], prefix, rest, up_first, up_last, first.after < 0)

    def _wire_s(self, number: int) -> Array:
        """Return seconds on the wire for a whole value at every bandwidth, with the strongest codec."""
        options = (RAW, *self.space.model.codecs.get(number, ())) if self.space.codecs else (RAW,)
        nbytes = self.space.located.nbytes(number) / max(option.ratio for option in options)
        return np.asarray(nbytes / self.space.bandwidths)


def _make_row_splits(space: Space, first: Waist, last: Waist, fraction: float, flipped: bool,
            halos: HaloSource = HaloSource.REPLICATED) -> RowSplits:  # fmt: skip
    row_splits: List[RowSplit] = [RowSplit(space.last, 0.0)]
    if last.after > first.after:
        row_splits.append(
            RowSplit(last.after, fraction, flipped, halos is HaloSource.SENT, halos is HaloSource.FIXED_SHARE)
        )
    if first.after >= 0:
        row_splits.append(RowSplit(first.after, 1.0))
    return tuple(sorted(row_splits))
