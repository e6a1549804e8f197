"""Recent records of every kind, and the newest picture, of a run that browsers watch. Thread-safe.

Each reader has a cursor into the same rings, so that a slow reader costs no memory. It skips overwritten records and
gets their number.
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
"""Records retained per kind: ten minutes at the usual rates."""

EVENTS = 500
"""Events retained."""


class RecordRing:
    """The last ``capacity`` items, numbered from the first ever appended."""

    def __init__(self, capacity: int) -> None:
        self._items: Deque[Any] = deque(maxlen=capacity)
        self.total = 0

    @property
    def first(self) -> int:
        """Number of the oldest retained item."""
        return self.total - len(self._items)

    def append(self, item: Any) -> None:
        """Append an item and drop the oldest one if full."""
        self._items.append(item)
        self.total += 1

    def items_since(self, position: int, limit: int) -> Tuple[List[Any], int, int]:
        """Return up to ``limit`` items from number ``position``, the next position, and the number of lost items."""
        first = self.first
        start = max(position, first)
        stop = min(start + limit, self.total)
        items = [self._items[index - first] for index in range(start, stop)]
        return items, stop, start - position if position < start else 0


class StampedPicture(NamedTuple):
    """A picture: its number, time of receipt (s since 1970), and JPEG or PNG file."""

    number: int
    t_s: float
    data: bytes


class ReaderUpdate(NamedTuple):
    """New records for one reader.

    Attributes:
        records: by kind, oldest first.
        events: oldest first.
        skipped: number of records that were overwritten before this reader read them.
        more: there are more records than the limit.
    """

    records: Dict[str, List[Record]]
    events: List[Event]
    skipped: int
    more: bool


class Cursor:
    """Position of one reader, from :meth:`History.open_cursor`."""

    def __init__(self, epoch: int, positions: Dict[str, int]) -> None:
        self.epoch = epoch
        self.positions = positions


class History:
    """Recent records, events and the newest picture. The source writes them, readers have cursors."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoch = 0
        self._reset_rings()

    def _reset_rings(self) -> None:
        self._rings = {kind: RecordRing(capacity) for kind, capacity in CAPACITY.items()}
        self._rings["event"] = RecordRing(EVENTS)
        self._digest = Digest()
        self._picture: Optional[StampedPicture] = None

    def put(self, record: Record) -> None:
        """Append a record and its events."""
        with self._lock:
            self._rings[record["kind"]].append(record)
            for event in self._digest.digest_record(record):
                self._rings["event"].append(event)

    def add_event(self, event: Event) -> None:
        """Append an event that follows from no record."""
        with self._lock:
            self._rings["event"].append(event)

    def set_picture(self, data: bytes, t_s: float) -> None:
        """Replace the newest picture by a JPEG or PNG file."""
        with self._lock:
            number = 1 if self._picture is None else self._picture.number + 1
            self._picture = StampedPicture(number, t_s, data)

    def clear(self) -> None:
        """Remove everything, because the source restarts and its times may go back."""
        with self._lock:
            self._epoch += 1
            self._reset_rings()

    @property
    def picture(self) -> Optional[StampedPicture]:
        """The newest picture."""
        with self._lock:
            return self._picture

    def count_records(self) -> Dict[str, int]:
        """Return the number of records ever appended, by kind."""
        with self._lock:
            return {kind: ring.total for kind, ring in self._rings.items()}

    def open_cursor(self) -> Cursor:
        """Return a cursor at the oldest retained records, which counts earlier ones not as skipped."""
        with self._lock:
            return self._start_cursor()

    def _start_cursor(self) -> Cursor:
        return Cursor(self._epoch, {kind: ring.first for kind, ring in self._rings.items()})

    def read(self, cursor: Cursor, limit: int = 2000) -> Tuple[ReaderUpdate, bool]:
        """Return what is new to a reader, at most ``limit`` per kind, and whether the history was cleared before."""
        with self._lock:
            restarted = cursor.epoch != self._epoch
            if restarted:
                fresh = self._start_cursor()
                cursor.epoch, cursor.positions = fresh.epoch, fresh.positions
            records: Dict[str, List[Any]] = {}
            skipped, more = 0, False
            for kind, ring in self._rings.items():
                items, cursor.positions[kind], lost = ring.items_since(cursor.positions[kind], limit)
                skipped += lost
                more = more or cursor.positions[kind] < ring.total
                if items:
                    records[kind] = items
            events = records.pop("event", [])
            return ReaderUpdate(records, events, skipped, more), restarted
