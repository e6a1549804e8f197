"""What is kept of a run while it is watched: the recent records of every kind, and the newest picture. Thread-safe.

Every reader has a cursor of its own into the same rings, so a reader that is slow costs no memory: it skips what has
been overwritten meanwhile, and is told how much that was.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Deque, Dict, List, NamedTuple, Optional, Tuple

from edge_offload.dashboard.digest import Digest, Event
from edge_offload.dashboard.stream import Record

CAPACITY = {
    "about": 4,
    "latency": 6000,
    "people": 600,
    "scene": 600,
    "mode": 500,
    "bandwidth": 3000,
    "power": 6000,
    "server": 1500,
    "diagnostic": 500,
}
"""Records kept per kind: ten minutes at the usual rates."""

EVENTS = 500
"""Events kept."""


class Ring:
    """The last ``capacity`` items, and how many there ever were."""

    def __init__(self, capacity: int) -> None:
        self._items: Deque[Any] = deque(maxlen=capacity)
        self.total = 0

    @property
    def first(self) -> int:
        """Number of the oldest item that is kept."""
        return self.total - len(self._items)

    def append(self, item: Any) -> None:
        """Add one; the oldest gives way."""
        self._items.append(item)
        self.total += 1

    def since(self, position: int, limit: int) -> Tuple[List[Any], int, int]:
        """Items from number ``position`` on, at most ``limit``: they, the number after the last, how many are lost."""
        first = self.first
        start = max(position, first)
        stop = min(start + limit, self.total)
        items = [self._items[index - first] for index in range(start, stop)]
        return items, stop, start - position if position < start else 0


class Picture(NamedTuple):
    """The newest picture: its number, when it came (s since 1970), and a JPEG or PNG file."""

    number: int
    t_s: float
    data: bytes


class Batch(NamedTuple):
    """What is new to one reader.

    Attributes:
        records: by kind, oldest first.
        events: oldest first.
        skipped: records that were overwritten before this reader came for them.
        more: whether there is more to fetch at once.
    """

    records: Dict[str, List[Record]]
    events: List[Event]
    skipped: int
    more: bool


class Cursor:
    """Where one reader is. Made by :meth:`History.cursor`."""

    def __init__(self, epoch: int, positions: Dict[str, int]) -> None:
        self.epoch = epoch
        self.positions = positions


class History:
    """See the module. ``put`` is for the source, the rest for readers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoch = 0
        self._empty()

    def _empty(self) -> None:
        self._rings = {kind: Ring(capacity) for kind, capacity in CAPACITY.items()}
        self._rings["event"] = Ring(EVENTS)
        self._digest = Digest()
        self._picture: Optional[Picture] = None

    def put(self, record: Record) -> None:
        """One more record, in the order in which they came."""
        with self._lock:
            self._rings[record["kind"]].append(record)
            for event in self._digest.events(record):
                self._rings["event"].append(event)

    def note(self, event: Event) -> None:
        """An event that no record tells of."""
        with self._lock:
            self._rings["event"].append(event)

    def show(self, data: bytes, t_s: float) -> None:
        """The newest picture, a JPEG or PNG file."""
        with self._lock:
            number = 1 if self._picture is None else self._picture.number + 1
            self._picture = Picture(number, t_s, data)

    def clear(self) -> None:
        """Forget everything: the source begins anew, and its times may go back."""
        with self._lock:
            self._epoch += 1
            self._empty()

    @property
    def picture(self) -> Optional[Picture]:
        """The newest picture."""
        with self._lock:
            return self._picture

    def counts(self) -> Dict[str, int]:
        """How many records of every kind there ever were."""
        with self._lock:
            return {kind: ring.total for kind, ring in self._rings.items()}

    def cursor(self) -> Cursor:
        """A reader that has seen nothing yet; what was overwritten before it came is not called skipped."""
        with self._lock:
            return self._fresh()

    def _fresh(self) -> Cursor:
        return Cursor(self._epoch, {kind: ring.first for kind, ring in self._rings.items()})

    def read(self, cursor: Cursor, limit: int = 2000) -> Tuple[Batch, bool]:
        """What is new to a reader, at most ``limit`` of every kind; and whether everything before it is void."""
        with self._lock:
            anew = cursor.epoch != self._epoch
            if anew:
                fresh = self._fresh()
                cursor.epoch, cursor.positions = fresh.epoch, fresh.positions
            records: Dict[str, List[Any]] = {}
            skipped, more = 0, False
            for kind, ring in self._rings.items():
                items, cursor.positions[kind], lost = ring.since(cursor.positions[kind], limit)
                skipped += lost
                more = more or cursor.positions[kind] < ring.total
                if items:
                    records[kind] = items
            events = records.pop("event", [])
            return Batch(records, events, skipped, more), anew
