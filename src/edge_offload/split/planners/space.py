"""The planners' common ground: a small description of a plan (row splits), and its cost at many bandwidths at once.

With exact halos it pays to decide only *where* the two sides meet. A :class:`RowSplit` at operator p divides the rows
of what operators up to p hand to those behind: the robot computes the fraction f of them, the server the rest, each is
sent what it lacks. Everywhere else each side computes what its own later rows need, with replicated halos and no
exchange (footprint closure by replication; LOPInfer Sec. IV-C's third mechanism), or with halos that the robot hands
over (Intra-DP's exchange, one way). Device-only has no row split; server-only has one at the end with f = 0; a layer
cut adds one with f = 1; Intra-DP adds one in between.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Dict, List, Mapping, Sequence, Set, Tuple

import numpy as np

from edge_offload import background
from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.ir import sequence_hash
from edge_offload.split.footprints.registry import EMPTY, Locality, Range
from edge_offload.split.model.complete import Ranges, complete_plan, decide_backward
from edge_offload.split.model.cost import RAW, CostModel, Payload
from edge_offload.split.model.locality import unite_rows
from edge_offload.split.model.objective import Objective
from edge_offload.split.model.plan import Side, SplitPlan
from edge_offload.split.model.simulate import compile_plan, sweep_bandwidths


@dataclass(frozen=True, order=True)
class RowSplit:
    """Division of rows behind operator ``position``: the robot computes ``fraction`` of them, the server the rest.

    ``flipped`` gives the robot the last rows instead of the first. ``sent``: between the row split
    before and this one no row is computed twice; the robot sends the rows that both sides need.
    """

    position: int
    fraction: float
    flipped: bool = False
    sent: bool = False
    fixed_share: bool = False


RowSplits = Tuple[RowSplit, ...]
"""Positions ascending, each at most once."""


@dataclass(frozen=True)
class ScoredPlan:
    """A plan's shape with its makespan and energy at every bandwidth of the space."""

    row_splits: RowSplits
    robot: Ranges
    server: Ranges
    makespan_s: Array
    energy_j: Array


class Space:
    """Plans for one cost model and a list of bandwidths, described by row splits.

    Args:
        model: costs.
        bandwidths: bytes per second, uplink, ascending.
        codecs: whether payloads may be coded (off for baselines as published).

    Attributes:
        partitions: the best layer partitions found so far, by bandwidth and objective.
    """

    def __init__(self, model: CostModel, bandwidths: Sequence[float], codecs: bool = True) -> None:
        if not len(bandwidths):
            raise BadInput("no bandwidths to plan for")
        self.model = model
        self.located = model.located
        self.bandwidths = np.asarray(bandwidths, dtype=float)
        self.codecs = codecs
        self.identity = sequence_hash(self.located.sequence)
        self.last = len(self.located.operators) - 1
        self._last_uses = self._find_last_uses()
        self._scored: Dict[RowSplits, ScoredPlan] = {}
        self._payloads: Dict[Tuple[int, int, Side], Payload] = {}

    @property
    def device_only(self) -> RowSplits:
        """Row splits with which the robot computes everything."""
        return ()

    @property
    def server_only(self) -> RowSplits:
        """Row splits with which the server computes everything."""
        return (RowSplit(self.last, 0.0),)

    @property
    def evaluated_count(self) -> int:
        """Number of different row split lists that have been scored."""
        return len(self._scored)

    def score_row_splits(self, row_splits: RowSplits) -> ScoredPlan:
        """Return the cost at every bandwidth; cached."""
        scored = self._scored.get(row_splits)
        if scored is None:
            robot, server = self.split_ranges(row_splits)
            scored = self._scored[row_splits] = self.score_ranges(robot, server, row_splits)
        return scored

    def least_energy(self, best: Sequence[ScoredPlan], longer: float) -> List[ScoredPlan]:
        """By bandwidth, the scored plan of least energy whose makespan is that of ``best`` or longer by a share.

        Args:
            best: a plan for each bandwidth.
            longer: the share by which a makespan may be longer.
        """
        plans = [*self._scored.values(), *best]
        makespan, joules = (
            np.array([getattr(scored, name) for scored in plans]) for name in ("makespan_s", "energy_j")
        )
        least = np.array([scored.makespan_s[index] for index, scored in enumerate(best)])
        allowed = np.where(makespan <= least * (1 + longer), joules, np.inf)
        allowed[-len(best) :] -= 1e-12  # on a tie the given plans
        return [plans[row] for row in allowed.argmin(axis=0)]

    def score_ranges(self, robot: Ranges, server: Ranges, row_splits: RowSplits = ()) -> ScoredPlan:
        """Return the cost of any ranges at every bandwidth, each transfer with the codec that is best there."""
        background.check()
        plan = complete_plan(self.located, robot, server, identity=self.identity)
        payloads = [self._payload_for(t.value, t.high - t.low, t.sender) for t in plan.transfers]
        compiled = compile_plan(plan, self.model, payloads)
        makespan, joules = sweep_bandwidths(compiled, self.model, self.bandwidths)
        return ScoredPlan(row_splits, robot, server, makespan, joules)

    def make_plan(self, scored: ScoredPlan, bandwidth: float) -> SplitPlan:
        """Return the finished plan for one bandwidth, codecs chosen."""
        plan = complete_plan(self.located, scored.robot, scored.server, identity=self.identity)
        if not self.codecs:
            return plan
        choose = self.model.best_codec
        return replace(plan, transfers=tuple(
            replace(t, codec=choose(t.value, t.high - t.low, t.sender, bandwidth)) for t in plan.transfers
        ))  # fmt: skip

    def split_ranges(self, row_splits: RowSplits) -> Tuple[Dict[int, Range], Dict[int, Range]]:
        """Return the rows that each side computes."""
        tail_on_robot = not row_splits or row_splits[-1].position < self.last or row_splits[-1].fraction >= 0.5
        active = self._active_row_splits(row_splits)
        sent: Set[int] = set()
        fixed_shares: Dict[int, RowSplit] = {}
        for before, row_split in zip([-1, *(row_split.position for row_split in row_splits)], row_splits):
            if row_split.sent:
                sent.update(range(before + 1, row_split.position + 1))
            if row_split.fixed_share:
                fixed_shares.update(dict.fromkeys(range(before + 1, row_split.position + 1), row_split))

        def decide_rows(index: int, robot: Range, server: Range) -> Tuple[Range, Range]:
            low, high = unite_rows(robot, server)
            row_split = active.get(index)
            if self.located.operators[index].kind is Locality.GLOBAL:
                if row_split is not None:
                    on_robot = row_split.fraction >= 0.5
                else:
                    on_robot = robot[0] < robot[1] and (server[0] >= server[1] or tail_on_robot)
                return ((low, high), EMPTY) if on_robot else (EMPTY, (low, high))
            if index in fixed_shares and index != fixed_shares[index].position:
                mine = self.share_rows(index, fixed_shares[index].fraction, fixed_shares[index].flipped, server)
                missing = uncovered_rows(server, mine)
                return (unite_rows(robot, missing) if missing[0] < missing[1] else robot), mine
            if row_split is None:
                return (robot, uncovered_rows(server, robot)) if index in sent else (robot, server)
            share = round(row_split.fraction * (high - low))
            if row_split.flipped:
                return (high - share, high), (low, high - share)
            return (low, low + share), (low + share, high)

        return decide_backward(self.located, decide_rows)

    def share_rows(self, index: int, fraction: float, flipped: bool, rows: Range) -> Range:
        """Return those of ``rows`` in the server's share, if the robot has ``fraction`` of all rows."""
        length = self.located.operators[index].length
        cut = int(fraction * length + 1e-9)
        low, high = (rows[0], min(rows[1], length - cut)) if flipped else (max(rows[0], cut), rows[1])
        return (low, high) if low < high else EMPTY

    def find_positions(self, most: int = 24, largest: float = 4.0) -> List[int]:
        """Operators behind which little is handed on: candidates for row splits, ascending.

        Of neighbours that hand on as many bytes, the last; of each of ``most`` equal stretches of computation, the one
        that hands on least. What is handed on whole is at most ``largest`` times the raw input (LOPInfer Sec. IV-C4
        asks for 1; but a fraction of it is sent, and may be coded). The end counts if the last operator is local.
        """
        frontier = self.frontier_bytes()
        inputs = sum(self.located.nbytes(number) for number in self.located.sequence.inputs)
        small = [p for p in range(self.last) if frontier[p] <= largest * inputs]
        runs: List[int] = []
        for p in small:  # of neighbours that hand on the same bytes, the last one has done most
            if runs and runs[-1] == p - 1 and frontier[p] <= frontier[runs[-1]]:
                runs[-1] = p
            else:
                runs.append(p)
        if len(runs) > most:
            seconds = np.cumsum([self.model.operator_s(Side.ROBOT, i, e.length)
                                 for i, e in enumerate(self.located.operators)])  # fmt: skip
            edges = np.linspace(0.0, seconds[-1], most + 1)
            bins: Dict[int, int] = {}
            for p in runs:
                bin_index = int(np.searchsorted(edges, seconds[p]))
                if bin_index not in bins or frontier[p] <= frontier[bins[bin_index]]:
                    bins[bin_index] = p
            runs = sorted(bins.values())
        return runs if self.located.operators[self.last].local is None else [*runs, self.last]

    def frontier_bytes(self) -> Array:
        """Return for each operator p the bytes of values made up to p (the input included) and used behind p."""
        changes = np.zeros(len(self.located.operators) + 1)
        producer = self.located.producer
        for number, last_use in self._last_uses.items():
            if number in self.located.free:
                continue
            start = producer.get(number, 0)
            size = self.located.nbytes(number)
            if last_use > start:
                changes[start] += size
                changes[min(last_use, len(self.located.operators))] -= size
        total: Array = np.cumsum(changes)[:-1]
        return total

    def _find_last_uses(self) -> Dict[int, int]:
        last_uses = dict.fromkeys(self.located.sequence.values, -1)
        for number, users in self.located.sequence.consumer_indices().items():
            if users:
                last_uses[number] = users[-1]
        for number in self.located.sequence.retained_ids():
            last_uses[number] = len(self.located.operators)
        return last_uses

    def _active_row_splits(self, row_splits: RowSplits) -> Mapping[int, RowSplit]:
        """Return operator -> its row split, for those with a value that crosses one."""
        active: Dict[int, RowSplit] = {}
        if not row_splits:
            return active
        ordered = sorted(row_splits)
        next_split = 0
        for index in range(len(self.located.operators)):
            while next_split < len(ordered) and ordered[next_split].position < index:
                next_split += 1
            if next_split == len(ordered):
                break
            if any(self._last_uses[number] > ordered[next_split].position for number in self.located.made_by[index]):
                active[index] = ordered[next_split]
        return active

    def _payload_for(self, number: int, rows: int, sender: Side) -> Payload:
        """Return the payload as arrays over the bandwidths, with the best codec at each; cached."""
        key = (number, rows, sender)
        if key not in self._payloads:
            self._payloads[key] = self._best_payload(number, rows, sender)
        return self._payloads[key]

    def _best_payload(self, number: int, rows: int, sender: Side) -> Payload:
        options = (RAW, *self.model.codecs.get(number, ())) if self.codecs else (RAW,)
        if len(options) == 1:
            return self.model.make_payload(number, rows, sender, RAW.name)
        payloads = [self.model.make_payload(number, rows, sender, option.name) for option in options]
        factor = 1.0 if sender is Side.ROBOT else self.model.link.down_factor
        times = np.array([payload.idle_link_s(self.bandwidths * factor) for payload in payloads])
        best = times.argmin(axis=0)

        def select_best(name: str) -> Array:
            values = np.array([getattr(payload, name) for payload in payloads], dtype=float)
            return np.asarray(values[best])

        return Payload(
            select_best("raw_bytes"),
            select_best("coded_bytes"),
            select_best("encode_s"),
            select_best("decode_s"),
            select_best("pieces"),
        )


def uncovered_rows(rows: Range, other: Range) -> Range:
    """Return ``rows`` that ``other`` does not cover; all of them if two stretches would remain."""
    low = other[1] if other[0] <= rows[0] < other[1] else rows[0]
    high = other[0] if other[0] < rows[1] <= other[1] else rows[1]
    return (low, high) if low < high else EMPTY


def choose_best(scored: Sequence[ScoredPlan], objective: Objective, bin_index: int) -> ScoredPlan:
    """Return the best plan of a list at one bandwidth; the earlier one on a tie."""
    costs = [objective.compute_cost(float(s.makespan_s[bin_index]), float(s.energy_j[bin_index])) for s in scored]
    return scored[int(np.argmin(costs))]


def insert_row_split(row_splits: RowSplits, row_split: RowSplit) -> RowSplits:
    """Return ``row_splits`` with one more, replacing any at the same position."""
    return tuple(sorted([*(r for r in row_splits if r.position != row_split.position), row_split]))


def remove_row_split(row_splits: RowSplits, index: int) -> RowSplits:
    """Return ``row_splits`` except the one at ``index``."""
    return row_splits[:index] + row_splits[index + 1 :]


def fraction_grid(steps: int = 8) -> Tuple[float, ...]:
    """Return fractions strictly between 0 and 1."""
    return tuple((k + 1) / steps for k in range(steps - 1))
