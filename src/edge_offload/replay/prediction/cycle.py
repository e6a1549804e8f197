"""Operator sequence search of RRTO (Alg. 1 and 2) over steps: finds the steps that make up one inference.

An inference begins with an upload after a host read and ends with a host read. The published search compares windows of
the log call by call for every candidate start, which takes quadratic time. Both of its checks ask whether the log ends
in R copies of its last l entries. One Z-function over the reversed log answers that for every l in linear time.

The cycle that covers most steps at the end of the log wins; else a loop inside a network could win over the network.
Of cycles that cover equally many the shortest wins; else two inferences in a row could be taken for one. Steps carry
no data dependencies that would distinguish the rotations of a cycle: the earliest start wins.
"""

from __future__ import annotations

from typing import Hashable, List, NamedTuple, Optional, Sequence, Tuple


class LoggedStep(NamedTuple):
    """A step in the log: number of its signature, whether it ends with a host read, whether it uploads anything."""

    signature: int
    reads: bool
    uploads: bool


def find_cycle(log: Sequence[LoggedStep], min_repeats: int) -> Optional[Tuple[int, int]]:
    """Return index of the first step and number of steps of the last complete inference.

    None: no sequence of steps has repeated ``min_repeats`` times.

    Time and memory are linear in ``len(log)``.

    Raises:
        ValueError: ``min_repeats`` is below 2.
    """
    if min_repeats < 2:
        raise ValueError(f"min_repeats must be at least 2, not {min_repeats}")
    end = max((index + 1 for index, step in enumerate(log) if step.reads), default=0)
    opens = [index for index in range(end) if log[index].uploads and (not index or log[index - 1].reads)]
    if not opens:
        return None
    repeated = z_function(list(reversed(log[:end])))
    best: Optional[Tuple[int, int]] = None  # steps covered, length of the cycle
    for length in range(1, end + 1):
        first = log[end - length]
        is_start = first.uploads or length == end or log[end - length - 1].reads
        covered = length + (repeated[length] if length < end else 0)
        enough = covered >= min_repeats * length
        if is_start and opens[-1] >= end - length and enough and (not best or covered > best[0]):
            best = covered, length
    if best is None:
        return None
    covered, length = best
    begin = end - covered
    starts = [begin + (index - begin) % length for index in opens if index >= end - length]
    earliest = min((start for start in starts if (end - start) // length >= min_repeats), default=None)
    return None if earliest is None else (earliest + ((end - earliest) // length - 1) * length, length)


def z_function(symbols: Sequence[Hashable]) -> List[int]:
    """Return z: ``z[i]`` is the length of the longest common prefix of ``symbols`` and ``symbols[i:]``."""
    total = len(symbols)
    lengths = [total] * total
    start = end = 0  # the match that reaches furthest
    for index in range(1, total):
        match = min(end - index, lengths[index - start]) if index < end else 0
        while index + match < total and symbols[match] == symbols[index + match]:
            match += 1
        if index + match > end:
            start, end = index, index + match
        lengths[index] = match
    return lengths
