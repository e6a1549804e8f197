"""Guessing which segments come next, from those that came before.

The operator sequence search runs over the log of segments; once it has found the inference, the next segment is the one
after in its cycle. Before that, and for programs that branch, it is what followed the same few segments last time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Deque, Dict, FrozenSet, List, Optional, Tuple

from edge_offload.capture.calls import Call, Category
from edge_offload.capture.search import operator_sequence_search

READ, _, DYNAMIC = range(3)
MAX_CHAIN = 64
MAX_HISTORY = 2048
CONTEXTS = (6, 3, 2, 1)
MAX_CONTEXTS = 65536


@dataclass(frozen=True)
class Done:
    """A segment that the program did, or is expected to do. Fields as :class:`~edge_offload.capture.executor.Step`."""

    segment: int
    base: int
    live: Tuple[Tuple[int, int], ...]
    dead: FrozenSet[int]
    numbers: bytes
    payloads: int
    reason: int

    def same_as(self, real: Done) -> bool:
        """Whether the outcome of this (expected) one is the outcome of ``real``.

        What ``real`` dropped may be more: a storage that was kept for nothing is freed later.
        """
        return (
            self.segment == real.segment
            and self.base == real.base
            and self.reason == real.reason
            and self.live == real.live
            and self.numbers == real.numbers
            and self.dead <= real.dead
        )

    def storages_of(self, canonical: FrozenSet[int]) -> List[int]:
        """Numbers of the new storages that are called ``canonical`` in this segment."""
        older = sorted(number for number, _ in self.live)
        return [self.base + number - sum(1 for other in older if other < number) for number in sorted(canonical)]


class Predictor:
    """Learns from every segment; guesses the next, and the storages that it will touch."""

    def __init__(self, min_repeats: int = 2) -> None:
        self._min_repeats = min_repeats
        self._history: Deque[Done] = deque(maxlen=MAX_HISTORY)
        self._recent: Dict[int, Deque[Done]] = {}
        self._grown: Dict[int, int] = {}
        self._after: Dict[Tuple[int, ...], int] = {}
        self._cycle: List[int] = []
        self._position = 0
        self._search_at = 4
        self._since_search = 0

    @property
    def cycle(self) -> Tuple[int, ...]:
        """The segments of one inference, as found by the operator sequence search; empty while it is unknown."""
        return tuple(self._cycle)

    def add(self, done: Done) -> None:
        """Learn from what the program did."""
        if self._history:
            before = self._history[-1]
            self._grown[before.segment] = done.base - before.base
            for length in CONTEXTS:
                if len(self._history) >= length:
                    if len(self._after) > MAX_CONTEXTS:
                        self._after.clear()
                    self._after[self._context(length)] = done.segment
        self._history.append(done)
        self._recent.setdefault(done.segment, deque(maxlen=2)).append(done)
        if self._cycle:
            if self._cycle[self._position] == done.segment:
                self._position = (self._position + 1) % len(self._cycle)
            else:
                self._cycle, self._search_at, self._since_search = [], 4, 0
        else:
            self._since_search += 1
            if done.reason in (READ, DYNAMIC) and self._since_search >= self._search_at:
                self._search()

    def next(self) -> Optional[int]:
        """The segment that will probably come next."""
        if self._cycle:
            return self._cycle[self._position]
        for length in CONTEXTS:
            if len(self._history) >= length:
                found = self._after.get(self._context(length))
                if found is not None:
                    return found
        return None

    def chain(self, base: int) -> List[Done]:
        """What will probably come next, up to the next upload; the first may have uploads. ``base`` is the first's."""
        return self._chain([], self.next(), base, len(self._history), self._position, allow_upload=True)

    def following(self, done: Done) -> List[Done]:
        """What will probably come after ``done``, which has not been learnt yet, up to the next upload."""
        grown = self._grown.get(done.segment)
        if grown is None:
            return []
        position = self._position
        first: Optional[int]
        if self._cycle:
            if self._cycle[position] != done.segment:
                return []
            position = (position + 1) % len(self._cycle)
            first = self._cycle[position]
        else:
            first = self._lookup([*(item.segment for item in list(self._history)[-CONTEXTS[0] :]), done.segment])
        return self._chain(
            [done.segment], first, done.base + grown, len(self._history) + 1, position, allow_upload=False
        )

    def _chain(
        self, prefix: List[int], first: Optional[int], base: int, _known: int, position: int, allow_upload: bool
    ) -> List[Done]:
        chain: List[Done] = []
        trail = [*(item.segment for item in list(self._history)[-CONTEXTS[0] :]), *prefix]
        segment = first
        while segment is not None and len(chain) < MAX_CHAIN:
            expected = self._expect(segment, base)
            if expected is None or (expected.payloads and (chain or not allow_upload)):
                break
            if expected.reason not in (READ, DYNAMIC):
                break
            chain.append(expected)
            trail.append(segment)
            grown = self._grown.get(segment)
            if grown is None:
                break
            base += grown
            if self._cycle:
                position = (position + 1) % len(self._cycle)
                segment = self._cycle[position]
            else:
                segment = self._lookup(trail)
        return chain

    def _expect(self, segment: int, base: int) -> Optional[Done]:
        """``segment`` as it will look with first new storage ``base``; None if its operands follow no simple rule."""
        recent = self._recent.get(segment)
        if not recent:
            return None
        last = recent[-1]
        before = recent[0]
        live = []
        for (canonical, number), (_, earlier) in zip(last.live, before.live):
            if number == earlier and last is not before:
                live.append((canonical, number))
            elif number - last.base == earlier - before.base:
                live.append((canonical, base + number - last.base))
            else:
                return None
        return Done(segment, base, tuple(live), last.dead & before.dead, last.numbers, last.payloads, last.reason)

    def _context(self, length: int) -> Tuple[int, ...]:
        return tuple(self._history[i].segment for i in range(-length, 0))

    def _lookup(self, trail: List[int]) -> Optional[int]:
        for length in CONTEXTS:
            if len(trail) >= length:
                found = self._after.get(tuple(trail[-length:]))
                if found is not None:
                    return found
        return None

    def _search(self) -> None:
        self._since_search = 0
        log: List[Call] = []
        owner: List[int] = []
        for index, done in enumerate(self._history):
            calls = [Call(Category.LAUNCH, "segment", done.segment)]
            if done.payloads:
                calls.insert(0, Call(Category.HTOD, "upload", done.segment))
            if done.reason in (READ, DYNAMIC):
                calls.append(Call(Category.DTOH, "read", done.segment))
            log += calls
            owner += [index] * len(calls)
        found = operator_sequence_search(log, self._min_repeats)
        if found is None:
            self._search_at = min(2 * self._search_at, MAX_HISTORY // 2)
            return
        members = sorted(set(owner[found.start : found.stop]))
        history = list(self._history)
        self._cycle = [history[index].segment for index in members]
        self._position = (len(history) - members[0]) % len(self._cycle)
        for index in range(members[0], len(history)):
            if history[index].segment != self._cycle[(index - members[0]) % len(self._cycle)]:
                self._cycle = []
                return
