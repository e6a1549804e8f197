"""Finding the operator sequence of one inference in a call log, with no hint from the program.

Two published searches, as pure functions over a log of :class:`~edge_offload_research.call_log.Call`:

* :func:`operator_sequence_search` (RRTO for mobile edge computing, Alg. 1 and 2: FastCheck, FullCheck, realignment of
  rotated windows, data dependencies),
* :func:`data_dependency_search` (RRTO for the robotic internet of things, Alg. 3).

The pseudocode leaves questions open; they are closed here as follows.

* *Cost.* FastCheck and FullCheck as printed compare windows call by call for every candidate start: quadratic. Both
  ask "does the log end in R copies of its last l calls?", which one Z-function over the reversed log answers for
  every l at once. A log of n calls costs a constant number of passes.
* *Rotation.* A window that starts elsewhere in the same cycle repeats as often, give or take one, so realigned windows
  need no second comparison. Which of them are legal is decided for all at once: every value that flows from a writer to
  a later reader forbids the starts in between, and a difference array counts those.
* *State.* A model may update its own parameters (a frame counter). Such a value crosses every possible boundary or is
  read before it is written. The start that the fewest values cross wins, the earliest on a tie, and the crossing
  addresses are reported as ``carried`` rather than the model being refused.
* *Boundaries.* Synchronisation after a copy back belongs to the copy. Other calls without data (``cudaGetDevice``)
  between two inferences open the later one; as printed, they would hide the end marker.
* *Merged repeats.* Of windows that explain equally much of the log the shortest is taken, so that two inferences in a
  row are never taken for one. Of windows that explain unequal amounts the one that explains most wins, so that a loop
  inside the model is not taken for the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Hashable, List, Optional, Sequence, Set, Tuple

from edge_offload_research.call_log import NEUTRAL, Call, Category

DEFAULT_REPEATS = 3


@dataclass(frozen=True)
class InferenceSequence:
    """Place of one inference in a log.

    Attributes:
        start: index of its first call, in its last complete occurrence but possibly one.
        length: number of calls.
        repeats: complete occurrences in a row, the last of which ends at ``start + length``.
        carried: addresses whose value one inference leaves to the next (state), sorted.
    """

    start: int
    length: int
    repeats: int
    carried: Tuple[int, ...] = ()

    @property
    def stop(self) -> int:
        """Index one past the last call."""
        return self.start + self.length


class Steps:
    """Counts elementary steps of a search, so that its growth can be tested without a clock."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, steps: int) -> None:
        """Note steps of the log."""
        self.count += steps


def operator_sequence_search(
    log: Sequence[Call], min_repeats: int = DEFAULT_REPEATS, steps: Optional[Steps] = None
) -> Optional[InferenceSequence]:
    """Find the calls of one inference (RRTO Alg. 1), or None when the log does not yet show ``min_repeats`` of them.

    A sequence starts with a host-to-device copy (and data-less calls before it) and ends with a device-to-host copy and
    its synchronisation. It repeats at least ``min_repeats`` times up to the end of the log, not counting an inference
    that the log cuts off; what precedes the repeats (loading, a first inference that differs) is ignored.

    Time and memory are linear in ``len(log)``.

    Raises:
        ValueError: ``min_repeats`` is below 2, at which nothing repeats.
    """
    if min_repeats < 2:
        raise ValueError(f"min_repeats must be at least 2, not {min_repeats}")
    steps = steps if steps is not None else Steps()
    ends = _end_marks(log, steps)
    if not ends or not any(call.category is Category.HTOD for call in log):
        return None
    end = ends[-1]
    boundaries = [index for index, starts_inference in _list_uploads(log, ends, end, steps) if starts_inference]
    starts = _candidate_starts(log, ends, boundaries, end)
    lengths = fast_check([call.category for call in log[:end]], starts, min_repeats, steps)
    if not lengths:
        return None
    best: Optional[Tuple[int, int]] = None
    reach = _repeat_reach(_record_ids(log[:end]), steps)
    before = _prefix_counts(boundaries, end)
    for length in lengths:
        extent = reach[length] + length
        has_boundary = before[end] - before[end - length] > 0
        if extent >= min_repeats * length and has_boundary and (best is None or extent > best[0]):
            best = (extent, length)
    if best is None:
        return None
    return full_check(log, end, best[1], best[0], boundaries, min_repeats, steps)


def fast_check(tags: Sequence[Hashable], starts: Sequence[int], min_repeats: int, steps: Steps) -> List[int]:
    """Lengths l (ascending) such that the last l tags repeat ``min_repeats`` times and one of ``starts`` begins them.

    It prunes on categories alone (RRTO Alg. 2, FastCheck).
    """
    reach = _repeat_reach(tags, steps)
    total = len(tags)
    steps.add(len(starts))
    return sorted({total - j for j in starts if j < total and reach[total - j] >= (min_repeats - 1) * (total - j)})


def full_check(
    log: Sequence[Call],
    end: int,
    length: int,
    extent: int,
    boundaries: Sequence[int],
    min_repeats: int,
    steps: Optional[Steps] = None,
) -> Optional[InferenceSequence]:
    """Realign the window of ``length`` calls that ends at ``end`` and verify it (RRTO Alg. 2, FullCheck).

    ``log[end - extent:end]`` has period ``length`` record by record. Among its boundaries the legal start is the one
    that the fewest data dependencies cross (see the module's notes on rotation and state).
    """
    steps = steps if steps is not None else Steps()
    first, window = end - extent, end - length
    flows = _Flows(log[window:end], steps)
    choices: List[Tuple[int, int]] = []
    for boundary in boundaries:
        if boundary >= window:
            earliest = first + (boundary - first) % length
            if (end - earliest) // length >= min_repeats:
                choices.append((flows.crossed[boundary - window], earliest))
    steps.add(len(boundaries))
    if not choices:
        return None
    _, earliest = min(choices)
    repeats = (end - earliest) // length
    start = earliest + (repeats - 1) * length
    return InferenceSequence(start, length, repeats, flows.carried_addresses((start - window) % length))


def data_dependency_search(
    log: Sequence[Call], min_repeats: int = 2, steps: Optional[Steps] = None
) -> Optional[InferenceSequence]:
    """Find one inference through the graph of data dependencies (the earlier RRTO, Alg. 3), or None.

    The graph has an edge from the call that last wrote an address to each call that reads it. Starting calls depend on
    no other call of the window, ending calls feed no other. The longest window between a starting call and the last
    ending call that hangs together in the graph, is not itself a repetition, and is followed back through the log
    ``min_repeats`` times, is the inference. Models with two independent halves do not hang together: the answer is then
    None, and :func:`operator_sequence_search` is the one that finds them.
    """
    steps = steps if steps is not None else Steps()
    ends = _end_marks(log, steps)
    if not ends:
        return None
    end = ends[-1]
    starts = {index for index, _ in _list_uploads(log, ends, end, steps)}
    reach = _repeat_reach(_record_ids(log[:end]), steps)
    verified: List[int] = []
    linked = _Components(end)
    producers = _list_producers(log[:end], steps)
    consumers: Dict[int, List[int]] = {}
    for reader, writers in enumerate(producers):
        for writer in writers:
            consumers.setdefault(writer, []).append(reader)
    for index in range(end - 1, -1, -1):
        if log[index].category not in NEUTRAL:
            linked.add(index)
            for reader in consumers.get(index, ()):
                steps.add(1)
                linked.join(index, reader)
        length = end - index
        complete = reach[length] + length >= min_repeats * length
        if index in starts and linked.count == 1 and complete:
            verified.append(length)
    repeated: Set[int] = set()
    for length in verified:
        if length in repeated:
            continue
        for multiple in range(2 * length, reach[length] + length + 1, length):
            steps.add(1)
            repeated.add(multiple)
    primitive = [length for length in verified if length not in repeated]
    if not primitive:
        return None
    length = primitive[-1]
    flows = _Flows(log[end - length : end], steps)
    return InferenceSequence(end - length, length, (reach[length] + length) // length, flows.carried_addresses(0))


def z_function(symbols: Sequence[Hashable], steps: Optional[Steps] = None) -> List[int]:
    """``z[i]``: length of the longest common prefix of ``symbols`` and ``symbols[i:]``; ``z[0] = len(symbols)``."""
    total = len(symbols)
    z = [0] * total
    if not total:
        return z
    z[0] = total
    start = right = compared = 0
    for i in range(1, total):
        match = min(right - i, z[i - start]) if i < right else 0
        while i + match < total and symbols[match] == symbols[i + match]:
            match += 1
            compared += 1
        compared += 1
        if i + match > right:
            start, right = i, i + match
        z[i] = match
    if steps is not None:
        steps.add(compared)
    return z


def _repeat_reach(symbols: Sequence[Hashable], steps: Steps) -> List[int]:
    """``reach[l]``: how many symbols before the last l continue their pattern backward. Index 0 is unused."""
    return [*z_function(list(reversed(symbols)), steps), 0]


def _record_ids(log: Sequence[Call]) -> List[int]:
    """A small integer per distinct record, so that a record-level comparison is one comparison of integers."""
    numbers: Dict[Call, int] = {}
    return [numbers.setdefault(call, len(numbers)) for call in log]


def _end_marks(log: Sequence[Call], steps: Steps) -> List[int]:
    """Indices one past each device-to-host copy and the synchronisation that follows it."""
    marks: List[int] = []
    inside = False
    for index, call in enumerate(log):
        if inside and call.category is not Category.SYNC:
            marks.append(index)
            inside = False
        inside = inside or call.category is Category.DTOH
    if inside:
        marks.append(len(log))
    steps.add(len(log))
    return marks


def _list_uploads(log: Sequence[Call], ends: Sequence[int], end: int, steps: Steps) -> List[Tuple[int, bool]]:
    """Each upload as (index of the first of the data-less calls that lead to it, whether an inference may start there).

    One may start at the first call of the log or right after an end mark.
    """
    marks = [0, *(mark for mark in ends if mark < end)]
    uploads: List[Tuple[int, bool]] = []
    current = 0
    for index in range(end):
        while current + 1 < len(marks) and marks[current + 1] <= index:
            current += 1
        if log[index].category is Category.HTOD:
            opening = index
            while opening > marks[current] and log[opening - 1].category in NEUTRAL:
                opening -= 1
            uploads.append((opening, opening == marks[current]))
    steps.add(end)
    return uploads


def _candidate_starts(log: Sequence[Call], ends: Sequence[int], boundaries: Sequence[int], end: int) -> List[int]:
    """Alg. 1 line 8: every upload, and every position after a copy back (for windows that are rotated).

    After the copy itself too, not only after its synchronisation: the log may stop between the two.
    """
    starts = set(boundaries) | {mark for mark in ends if mark < end}
    for index in range(end - 1):
        if log[index].category is Category.HTOD:
            starts.add(index)
        elif log[index].category is Category.DTOH:
            starts.add(index + 1)
    return sorted(starts)


def _prefix_counts(indices: Sequence[int], end: int) -> List[int]:
    """``counts[i]``: how many of ``indices`` are below ``i``, for i up to ``end``."""
    marks = [0] * (end + 1)
    for index in indices:
        marks[index + 1] += 1
    for i in range(1, end + 1):
        marks[i] += marks[i - 1]
    return marks


def _list_producers(log: Sequence[Call], steps: Steps) -> List[List[int]]:
    """List for each call the calls that last wrote what it reads (none for what the log never wrote)."""
    last: Dict[int, int] = {}
    producers: List[List[int]] = []
    for index, call in enumerate(log):
        producers.append([last[address] for address in call.reads if address in last])
        for address in call.writes:
            last[address] = index
        steps.add(1 + len(call.reads) + len(call.writes))
    return producers


class _Flows:
    """Data dependencies of a cycle of calls: every read is fed by the last write before it, going around if need be.

    Attributes:
        crossed: for every position, how many addresses carry a value across a start just before that position.
    """

    def __init__(self, cycle: Sequence[Call], steps: Steps) -> None:
        self._length = len(cycle)
        self._spans: Dict[Tuple[int, int], int] = {}
        last: Dict[int, int] = {}
        for position, call in enumerate(cycle):
            for address in call.writes:
                last[address] = position
        for position, call in enumerate(cycle):
            for address in call.reads:
                if address in last:
                    span = (position - last[address]) % self._length or self._length
                    key = (address, last[address])
                    self._spans[key] = max(span, self._spans.get(key, 0))
            for address in call.writes:
                last[address] = position
            steps.add(1 + len(call.reads) + 2 * len(call.writes))
        self.crossed = self._count_crossings()

    def _count_crossings(self) -> List[int]:
        change = [0] * (2 * self._length + 2)
        for (_, writer), span in self._spans.items():
            change[writer + 1] += 1
            change[writer + 1 + span] -= 1
        total, unrolled = 0, []
        for step in change[:-1]:
            total += step
            unrolled.append(total)
        return [unrolled[i] + unrolled[i + self._length] for i in range(self._length)]

    def carried_addresses(self, start: int) -> Tuple[int, ...]:
        """Addresses whose value crosses a start just before position ``start``, sorted."""
        crossing = {
            address
            for (address, writer), span in self._spans.items()
            if 1 <= (start - writer) % self._length <= span or span == self._length
        }
        return tuple(sorted(crossing))


class _Components:
    """Union-find over the calls added so far, with the number of separate components."""

    def __init__(self, size: int) -> None:
        self._parent: List[int] = [-1] * size
        self.count = 0

    def add(self, item: int) -> None:
        self._parent[item] = item
        self.count += 1

    def join(self, first: int, second: int) -> None:
        a, b = self._find_root(first), self._find_root(second)
        if a != b:
            self._parent[a] = b
            self.count -= 1

    def _find_root(self, item: int) -> int:
        while self._parent[item] != item:
            self._parent[item] = self._parent[self._parent[item]]
            item = self._parent[item]
        return item
