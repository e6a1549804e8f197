"""Requests that wait for the device: bounded per peer, served round-robin between peers."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import Deque, Dict, Generic, Hashable, List, Optional, Tuple, TypeVar

from edge_offload.errors import Refused

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """A queue in which a peer that floods delays only itself. Thread-safe.

    Args:
        per_peer: requests that one peer may have waiting.
        total: requests that may wait in all.
    """

    def __init__(self, per_peer: int = 4, total: int = 64) -> None:
        self._per_peer = per_peer
        self._total = total
        self._waiting: OrderedDict[Hashable, Deque[Tuple[Item, float]]] = OrderedDict()
        self._count = 0
        self._closed = False
        self._changed = threading.Condition()

    def put(self, peer: Hashable, item: Item, cost_s: float = 0.0) -> None:
        """Queue ``item``, which will take ``cost_s`` seconds, for ``peer``.

        Raises:
            Refused: the queue is full, or it is closed.
        """
        with self._changed:
            mine = self._waiting.get(peer)
            if self._closed:
                raise Refused("the server is shutting down")
            if mine is not None and len(mine) >= self._per_peer:
                raise Refused(
                    f"full: {len(mine)} requests of this robot wait already", remedy="send the next one after a reply"
                )
            if self._count >= self._total:
                raise Refused(
                    f"full: {self._count} requests of {len(self._waiting)} robots wait",
                    remedy="compute locally, lower the frame rate, or use another server",
                )
            if mine is None:
                mine = self._waiting[peer] = deque()
            mine.append((item, cost_s))
            self._count += 1
            self._changed.notify()

    def get(self, timeout_s: Optional[float] = None) -> Optional[Tuple[Item, float]]:
        """The next item and its cost, each peer in turn; None after ``timeout_s`` or when the queue is closed."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._count > 0 or self._closed, timeout_s) or self._count == 0:
                return None
            peer, mine = self._waiting.popitem(last=False)
            taken = mine.popleft()
            self._count -= 1
            if mine:
                self._waiting[peer] = mine
            return taken

    def drop(self, peer: Hashable) -> List[Item]:
        """Take out everything that waits for ``peer`` (it left) and return it."""
        with self._changed:
            items = [item for item, _ in self._waiting.pop(peer, ())]
            self._count -= len(items)
            return items

    def close(self) -> List[Item]:
        """Refuse what comes from now on, wake the readers, and return what waited."""
        with self._changed:
            items = [item for mine in self._waiting.values() for item, _ in mine]
            self._waiting.clear()
            self._count = 0
            self._closed = True
            self._changed.notify_all()
            return items

    def __len__(self) -> int:
        return self._count

    def ahead_s(self, peer: Hashable) -> float:
        """Cost of what is served before an item that ``peer`` would put now (seconds)."""
        with self._changed:
            turn = len(self._waiting.get(peer, ()))
            total = 0.0
            for other, items in self._waiting.items():
                total += sum(cost for _, cost in list(items)[: turn if other == peer else turn + 1])
            return total

    def by_peer(self) -> Dict[Hashable, int]:
        """How many items wait per peer."""
        with self._changed:
            return {peer: len(items) for peer, items in self._waiting.items()}
