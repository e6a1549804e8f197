"""The operator sequence search of RRTO (Alg. 1 and 2), over steps: which of them make up one inference.

An inference begins with an upload after a host read and ends with a host read. As published, the search compares
windows of the log call by call for every candidate start, which is quadratic; both of its checks ask "does the log
end in R copies of its last l entries?", which one Z-function over the reversed log answers for every l at once. Steps
carry no data dependencies that could tell one rotation of a cycle from another: the earliest start wins. Of cycles
that explain equally much the shortest is taken, so that two inferences in a row are not taken for one; else the one
that explains most, so that a loop inside a network is not taken for the network.
"""

from __future__ import annotations

from typing import Hashable, List, NamedTuple, Optional, Sequence, Tuple


class LoggedStep(NamedTuple):
    """A step as the search sees it: its signature's number, whether it ends with a host read, whether it uploads."""

    signature: int
    reads: bool
    uploads: bool


def find_cycle(log: Sequence[LoggedStep], min_repeats: int) -> Optional[Tuple[int, int]]:
    """First step and number of steps of the last complete inference; None while none has come ``min_repeats`` times.

    Time and memory are linear in ``len(log)``.

    Raises:
        ValueError: ``min_repeats`` is below 2, at which nothing repeats.
    """
    if min_repeats < 2:
        raise ValueError(f"min_repeats must be at least 2, not {min_repeats}")
    end = max((index + 1 for index, step in enumerate(log) if step.reads), default=0)
    opens = [index for index in range(end) if log[index].uploads and (not index or log[index - 1].reads)]
    if not opens:
        return None
    repeated = z_function(list(reversed(log[:end])))
    best: Optional[Tuple[int, int]] = None
    for length in range(1, end + 1):
        first = log[end - length]
        is_start = first.uploads or length == end or log[end - length - 1].reads
        extent = length + (repeated[length] if length < end else 0)
        if is_start and opens[-1] >= end - length and extent >= min_repeats * length and (not best or extent > best[0]):
            best = extent, length
    if best is None:
        return None
    extent, length = best
    begin = end - extent
    starts = [begin + (index - begin) % length for index in opens if index >= end - length]
    earliest = min((start for start in starts if (end - start) // length >= min_repeats), default=None)
    return None if earliest is None else (earliest + ((end - earliest) // length - 1) * length, length)


def z_function(symbols: Sequence[Hashable]) -> List[int]:
    """``z[i]``: length of the longest common prefix of ``symbols`` and ``symbols[i:]``; ``z[0] = len(symbols)``."""
    total = len(symbols)
    lengths = [total] * total
    start = end = 0
    for index in range(1, total):
        match = min(end - index, lengths[index - start]) if index < end else 0
        while index + match < total and symbols[match] == symbols[index + match]:
            match += 1
        if index + match > end:
            start, end = index, index + match
        lengths[index] = match
    return lengths
