"""Least makespan over all counts, by clocks forward from the input: for networks of residual blocks one after another.

The problem is that of :mod:`counts <edge_offload_research.split.bounds.counts>`, of which more is forgotten, so that it
has few states. From the input on, for every number of rows that robot and server have made of the value handed on, the
clocks (robot, server, uplink) are kept that no others beat. Forgotten are, each of which can only make the result
smaller:

- the queue of the downlink (every download takes its own time only);
- where in a run of cheap element-wise operators rows are sent: they leave when the run's first operator is done, and
  whoever receives them need not compute the rest of the run for them;
- of a block's skip: what the server lacks at the end takes the uplink time but nothing waits for it within the block;
  the robot's rows are counted in classes and rounded up, and a download of them is as fast as if it began with the
  block; of its own operators only the first one takes time; a skip that is not a plain one counts by its work alone.

A state whose clocks and whatever must follow reach the target is left out. What must follow is known from mixtures of
paths at first (``native/clocks.h``). A search without skips goes forward with those; if it finds something below the
target, fronts of what must follow without skips go backward through what it held (``native/tails.h``), and the search
that follows skips leaves out what these exclude. No server is late for work that nobody uses: steps that a plan could
do without are taken to be left out. The search is in C++, built by the system's compiler on first use.
"""

from __future__ import annotations

import ctypes
import functools
import pathlib
from dataclasses import dataclass
from typing import Dict, List, Sequence, Set, Tuple, Union

import numpy as np

from edge_offload.arrays import Array
from edge_offload.native.recipe import Recipe
from edge_offload_research.split.bounds.counts import INPUT, Counted, Counts

SHARES = (0.0, 0.03, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.3, 0.45, 0.65, 0.85, 1.0)
"""Of the robot in the mixtures of paths that bound what must follow."""
CHEAP = 0.004
"""An element-wise operator below this share of the server's time may be taken together with the one before it."""
LONG = 64
"""Rows of a block's source above which operators of its skip that come first are not followed: too many choices."""

PLANNER = Recipe(
    "edge_offload_clocks", "the search by clocks", pathlib.Path(__file__).parent / "native" / "clocks.cpp",
    ("-O3", "-std=c++17"), extension=False,
)  # fmt: skip
_NUMBERS, _TABLES, _SECONDS = ctypes.c_int, ctypes.c_void_p, ctypes.c_double


class Step(ctypes.Structure):
    """One operator of the spine with the cheap ones merged into its argument; as in ``clocks.cpp``."""

    _fields_ = (
        *((name, _NUMBERS) for name in ("argument", "length", "needed")),
        *((name, _TABLES) for name in ("least", "robot", "server", "rest_robot", "rest_server")),
        *((name, _SECONDS) for name in ("up", "up_alone", "down", "message")),
        ("sides", _NUMBERS), ("side_robot", _TABLES), ("side_server", _TABLES),
        ("opens", _NUMBERS), ("joins", _NUMBERS), ("grain", _NUMBERS),
        ("skip_least", _TABLES), ("beside", _NUMBERS), ("skip_rows", _NUMBERS), ("skip_needed", _NUMBERS),
        *((name, _TABLES) for name in ("skip_robot", "skip_server")),
        *((name, _SECONDS) for name in ("skip_up", "skip_down", "source_down", "source_up")),
        ("early_rows", _NUMBERS), ("early_needed", _NUMBERS),
        *((name, _TABLES) for name in ("early_least", "early_robot", "early_server")),
    )  # fmt: skip


@dataclass(frozen=True)
class Skip:
    """Input of a block's end besides its main argument.

    Attributes:
        source: the value at which the block begins.
        side: operators from the source to the end; none: the source itself.
        early: whether these come before the main branch, not behind it.
        least: rows of the source that rows of the end (or of the first side operator) need.
    """

    source: int
    side: Tuple[int, ...]
    early: bool
    least: Array


class Clocks:
    """A network in steps.

    Args:
        counts: the problem.
        classes: of the skips' rows on the robot; 0 forgets skips altogether, but for the work of their operators.

    Raises:
        Unsupported: no C++ compiler.
    """

    def __init__(self, counts: Counts, classes: int = 4) -> None:
        self.counts, self._classes = counts, classes
        self._library = load_library()
        self._retained: List[Array] = []
        self.spine = _find_spine(counts)
        self.skips = _find_skips(counts, self.spine) if classes else {}
        self.runs = _split_runs(counts, self.spine, {skip.source for skip in self.skips.values()})
        self._steps = (Step * len(self.runs))()
        for place, step in enumerate(self._steps):
            self._fill_step(step, place)

    def least_makespan(self, target: float, most: int = 16, grid: float = 0.0005) -> float:
        """A lower bound on the makespan of every plan, at most ``target`` (seconds).

        Args:
            target: makespans from here on are of no interest.
            most: clocks that are kept per number of rows.
            grid: share of the target by which clocks differ that may become one, where there are more.
        """
        free = [step for step in self._steps if step.sides]
        linked = all(step.skip_rows or step.early_rows for step in free)
        shares = np.array(SHARES)
        last = self.counts.operators[-1]
        return float(self._library.least_makespan(
            _NUMBERS(len(self.runs)), self._steps, _NUMBERS(self.counts.input_length), _SECONDS(self.counts.latency_s),
            _SECONDS(self.counts.message_s), _NUMBERS(len(shares)), _TABLES(shares.ctypes.data), _SECONDS(target),
            _SECONDS(grid * target), _NUMBERS(most), _SECONDS(last.down_s), _NUMBERS(linked),
            _NUMBERS(not free), _NUMBERS(bool(self.skips)),
        ))  # fmt: skip

    def _retain_table(self, values: Union[Sequence[float], Array], kind: type = float) -> int:
        self._retained.append(np.ascontiguousarray(values, dtype=np.int32 if kind is int else np.float64))
        return int(self._retained[-1].ctypes.data)

    def _fill_step(self, step: Step, place: int) -> None:
        counts, operators = self.counts, self.counts.operators
        index = self.runs[place][0]
        entry = operators[index]
        value, least = entry.args[entry.main]
        if place == 0:
            rows, run = counts.input_length, []
            step.up, step.up_alone, step.down = counts.input_s, counts.input_single_s, 0.0
            step.message = counts.message_s + counts.request_s
        else:
            rows, run = operators[value].length, self.runs[place - 1]
            step.up, step.down = (min(getattr(operators[k], name) for k in run) for name in ("up_s", "down_s"))
            step.up_alone, step.message = min(operators[k].up_single_s for k in run), counts.message_s
        rest = np.zeros((2, rows + 1))
        for k in run[1:]:
            rest += np.stack([operators[k].robot_s, operators[k].server_s])
        step.rest_robot, step.rest_server = self._retain_table(rest[0]), self._retain_table(rest[1])
        step.argument, step.length, step.needed = rows, entry.length, entry.needed
        step.least = self._retain_table(least, int)
        step.robot, step.server = self._retain_table(entry.robot_s), self._retain_table(entry.server_s)
        opened = [skip for skip in self.skips.values() if skip.source == value]
        step.opens, step.grain = int(bool(opened)), max(1, -(-rows // max(self._classes, 1)))
        step.beside = int(any(skip.source < index < end and skip.side and not skip.early
                              for end, skip in self.skips.items()))  # fmt: skip
        skip = self.skips.get(index)
        step.joins = int(skip is not None)
        if skip is not None:
            self._fill_skip(step, skip)
        if opened and opened[0].early:
            first = operators[opened[0].side[0]]
            step.early_rows, step.early_needed = first.length, first.needed
            step.early_least = self._retain_table(opened[0].least, int)
            step.early_robot, step.early_server = self._retain_table(first.robot_s), self._retain_table(first.server_s)
            step.grain = max(1, -(-first.length // max(self._classes, 1)))
        if value + 1 < index:
            ways = _list_ways([operators[k] for k in range(value + 1, index)])
            step.sides = len(ways)
            step.side_robot, step.side_server = (
                self._retain_table([w[0] for w in ways]),
                self._retain_table([w[1] for w in ways]),
            )

    def _fill_skip(self, step: Step, skip: Skip) -> None:
        operators = self.counts.operators
        step.source_down, step.source_up = operators[skip.source].down_s, operators[skip.source].up_s
        step.skip_least = self._retain_table(skip.least, int)
        if skip.early:
            step.skip_least = self._retain_table(np.arange(len(skip.least)), int)
            step.source_down = min(operators[k].down_s for k in skip.side)
            step.source_up = min(operators[k].up_s for k in skip.side)
        elif skip.side:
            first = operators[skip.side[0]]
            step.skip_rows, step.skip_needed = first.length, first.needed
            step.skip_robot, step.skip_server = self._retain_table(first.robot_s), self._retain_table(first.server_s)
            step.skip_up = min(operators[k].up_s for k in skip.side)
            step.skip_down = min(operators[k].down_s for k in skip.side)


def _find_spine(counts: Counts) -> List[int]:
    """Operators from the input to the result, each the main argument of the next."""
    spine: List[int] = []
    index = len(counts.operators) - 1
    while index != INPUT:
        spine.append(index)
        entry = counts.operators[index]
        index = entry.args[entry.main][0]
    return spine[::-1]


def _find_skips(counts: Counts, spine: Sequence[int]) -> Dict[int, Skip]:
    """End of a block -> its skip, for plain blocks that do not overlap."""
    on, free, after = set(spine), 0, dict(zip(spine, spine[1:]))
    skips: Dict[int, Skip] = {}
    for before, index in zip([INPUT, *spine], spine):
        entry = counts.operators[index]
        others = [arg for place, arg in enumerate(entry.args) if place != entry.main]
        if len(others) != 1:
            continue
        source, least = others[0]
        side: List[int] = []
        while source not in on and source != INPUT and len(counts.operators[source].args) == 1:
            side.insert(0, source)
            source = counts.operators[source].args[0][0]
        if source not in on or source < free or source == before:
            continue
        early = bool(side) and side[0] == source + 1
        if early and (before + 1 < index or side != list(range(source + 1, after[source]))):
            continue
        if early and counts.operators[source].length > LONG:
            continue
        if not early and side != list(range(before + 1, index)):
            continue
        inner = [least] if side else []
        inner += [counts.operators[k].args[0][1] for k in side[1:]]
        if not all(_is_plain(table) for table in inner):
            continue
        first = counts.operators[side[0]].args[0][1] if side else least
        skips[index], free = Skip(source, tuple(side), early, first), index
    return skips


def _split_runs(counts: Counts, spine: Sequence[int], sources: Set[int]) -> List[List[int]]:
    """The spine in runs: an operator, and cheap element-wise ones behind it that only they read."""
    total = sum(float(entry.server_s[-1]) for entry in counts.operators)
    runs: List[List[int]] = []
    for index in spine:
        entry = counts.operators[index]
        cheap = float(entry.server_s[-1]) < CHEAP * total and len(entry.args) == 1 and _is_plain(entry.args[0][1])
        if runs and cheap and index != spine[-1]:
            last = runs[-1][-1]
            if index == last + 1 and last not in sources and entry.length == counts.operators[last].length:
                runs[-1].append(index)
                continue
        runs.append([index])
    return runs


def _is_plain(least: Array) -> bool:
    """Return whether rows need as many rows."""
    return len(least) > 2 and bool((least == np.arange(len(least))).all())


def _list_ways(entries: Sequence[Counted]) -> List[Tuple[float, float]]:
    """List the undominated seconds on robot and server for computing operators in any way."""
    ways = [(0.0, 0.0)]
    for entry in entries:
        mine = np.arange(entry.length + 1)
        theirs = np.maximum(entry.needed - mine, 0)
        pairs = list(zip(entry.robot_s[mine], entry.server_s[theirs]))
        every = sorted({(a + float(c), b + float(d)) for a, b in ways for c, d in pairs})
        ways, least = [], float("inf")
        for robot, server in every:
            if server < least:
                ways.append((robot, server))
                least = server
    return ways


@functools.lru_cache(maxsize=None)
def load_library() -> ctypes.CDLL:
    """The compiled search, built if need be.

    Raises:
        Unsupported: it cannot be built.
    """
    loaded = ctypes.CDLL(str(PLANNER.build()))
    loaded.least_makespan.restype = ctypes.c_double
    return loaded
