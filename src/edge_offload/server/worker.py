"""Work that waits for the device, served round-robin between robots, and the thread that does it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict, deque
from typing import Callable, Deque, Generic, Hashable, List, Optional, Protocol, Tuple, TypeVar

from edge_offload.errors import Refused

Item = TypeVar("Item")
#: Seconds over which it is known what was handed out though there was no room.
FORCED_S = 5.0


class FairQueue(Generic[Item]):
    """A queue in which a peer that floods delays only itself. Thread-safe.

    Args:
        per_peer: requests that one robot may have waiting.
        total: requests that may wait in all.
        robot_of: what stands for the robot of a peer. Connections of one robot share its turns and its bound: a robot
            with many connections gets no more than one with a single one. By default every peer is a robot.
    """

    def __init__(
        self, per_peer: int = 4, total: int = 64, robot_of: Optional[Callable[[Hashable], Hashable]] = None
    ) -> None:
        self._per_peer = per_peer
        self._total = total
        self._robot_of = robot_of or (lambda peer: peer)
        self._waiting: OrderedDict[Hashable, Deque[Tuple[Item, float, Hashable, float]]] = OrderedDict()
        self._count = 0
        self._serving: Optional[Tuple[float, float]] = None
        self._closed = self._nudged = False
        #: When items were handed out for which there was no room, and what they cost.
        self._forced: Deque[Tuple[float, float]] = deque(maxlen=64)
        self._changed = threading.Condition()

    @property
    def closed(self) -> bool:
        """True if no items are accepted any more."""
        return self._closed

    def nudge(self) -> None:
        """Let the reader in :meth:`get_item` return without an item, to check its other work."""
        with self._changed:
            self._nudged = True
            self._changed.notify_all()

    def put_item(self, peer: Hashable, item: Item, cost_s: float = 0.0) -> None:
        """Queue ``item``, which will take ``cost_s`` seconds, for ``peer``.

        Raises:
            Refused: the queue is full, or it is closed.
        """
        with self._changed:
            robot = self._robot_of(peer)
            queue = self._waiting.get(robot)
            if self._closed:
                raise Refused("the server is shutting down")
            if queue is not None and len(queue) >= self._per_peer:
                raise Refused(
                    f"full: {len(queue)} requests of this robot wait already", remedy="send the next one after a reply"
                )
            if self._count >= self._total:
                raise Refused(
                    f"full: {self._count} requests of {len(self._waiting)} robots wait",
                    remedy="compute locally, lower the frame rate, or use another server",
                )
            if queue is None:
                queue = self._waiting[robot] = deque()
            queue.append((item, cost_s, peer, time.monotonic()))
            self._count += 1
            self._changed.notify()

    def get_item(
        self, timeout_s: Optional[float] = None, room_s: float = math.inf, max_deferral_s: float = math.inf
    ) -> Optional[Tuple[Item, float]]:
        """Return the next item and its cost, each robot in turn.

        None after ``timeout_s``, a nudge, or when it is closed.

        Args:
            timeout_s: seconds to wait for one; None: as long as it takes.
            room_s: one that costs more stays, unless it has waited for ``max_deferral_s``, and so has what is planned.
            max_deferral_s: see ``room_s``: of all items there is one in so many seconds for which there is no room.

        It counts as being served until :meth:`end_item`, so that there is no moment at which it is neither waiting nor
        under way and an impossible request would be admitted.
        """
        with self._changed:

            def fits() -> bool:
                if self._count == 0:
                    return False
                _, cost_s, _, since_s = next(iter(self._waiting.values()))[0]
                if self._forced:
                    since_s = max(since_s, self._forced[-1][0])
                return cost_s <= room_s or time.monotonic() - since_s >= max_deferral_s

            self._changed.wait_for(lambda: fits() or self._closed or self._nudged, timeout_s)
            self._nudged = False
            if not fits():
                return None
            robot, queue = self._waiting.popitem(last=False)
            item, cost_s, _, _ = queue.popleft()
            self._count -= 1
            if queue:
                self._waiting[robot] = queue
            self._serving = (time.monotonic(), cost_s)
            if cost_s > room_s:
                self._forced.append(self._serving)
            return item, cost_s

    def forced_share(self) -> float:
        """Return the share of the last seconds that went to items that did not fit."""
        with self._changed:
            begin = time.monotonic() - FORCED_S
            return min(0.5, sum(cost_s for at_s, cost_s in self._forced if at_s >= begin) / FORCED_S)

    @property
    def busy(self) -> bool:
        """True if an item waits, or is being served."""
        return self._count > 0 or self._serving is not None

    def end_item(self) -> None:
        """Record the end of the item that :meth:`get_item` returned last."""
        with self._changed:
            self._serving = None

    def remove_peer(self, peer: Hashable) -> List[Item]:
        """Remove all items of ``peer``, which has disconnected, and return them."""
        with self._changed:
            robot = self._robot_of(peer)
            queue = self._waiting.get(robot, deque())
            items = [item for item, _, owner, _ in queue if owner == peer]
            remaining = deque(entry for entry in queue if entry[2] != peer)
            if remaining:
                self._waiting[robot] = remaining
            else:
                self._waiting.pop(robot, None)
            self._count -= len(items)
            return items

    def close(self) -> List[Item]:
        """Refuse further items, wake the readers, and return the waiting items."""
        with self._changed:
            items = [item for queue in self._waiting.values() for item, _, _, _ in queue]
            self._waiting.clear()
            self._count = 0
            self._closed = True
            self._changed.notify_all()
            return items

    def __len__(self) -> int:
        return self._count

    def ahead_s(self, peer: Hashable) -> float:
        """Return the wait of an item that ``peer`` would add now (seconds, by the announced costs)."""
        with self._changed:
            robot = self._robot_of(peer)
            before = len(self._waiting.get(robot, ()))
            serving = self._serving
            total = 0.0 if serving is None else max(serving[0] + serving[1] - time.monotonic(), 0.0)
            for other, items in self._waiting.items():
                total += sum(cost for _, cost, _, _ in list(items)[: before if other == robot else before + 1])
            return total


Job = Callable[[], None]
_log = logging.getLogger(__name__)


class Timetable(Protocol):
    """Work that is due at times of its own, which goes before what waits in the queue. Called on the worker's thread.

    Who changes it nudges the queue.
    """

    def due_s(self) -> Optional[float]:
        """Return when its next work is due (monotonic seconds); None while there is none."""

    def run_due_work(self) -> None:
        """Do it, if it still is due."""


class JobWorker:
    """Runs jobs one after the other in its own thread. A job that fails is logged and never ends the thread.

    Args:
        name: of the thread.
        queue: where jobs wait.
        prepare: called once in the thread before the first job.
        timetable: goes before the queue: it waits for one job under way at most.
    """

    def __init__(
        self,
        name: str,
        queue: FairQueue[Job],
        prepare: Optional[Callable[[], None]] = None,
        timetable: Optional[Timetable] = None,
    ) -> None:
        self.queue = queue
        self._timetable = timetable
        self._prepare = prepare
        self._ready = threading.Event()
        self._failure: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._run_jobs, name=name, daemon=True)

    def start(self) -> None:
        """Start, and return once ``prepare`` is done.

        Raises:
            Exception: what ``prepare`` raised.
        """
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def submit_job(self, peer: Hashable, job: Job, cost_s: float = 0.0) -> None:
        """Queue a job that will take about ``cost_s`` seconds.

        Raises:
            Refused: the queue is full or closed.
        """
        self.queue.put_item(peer, job, cost_s)

    def give_way(self) -> None:
        """In a long job, on this thread: do due and waiting work, and return."""
        self._run_due()
        for _ in range(len(self.queue)):
            self._do_next(0.0)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Drop waiting jobs, let the running job end; False if it has not within ``timeout_s``."""
        self.queue.close()
        if self._thread.ident is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run_jobs(self) -> None:
        try:
            if self._prepare is not None:
                self._prepare()
        except Exception as error:
            self._failure = error
            return
        finally:
            self._ready.set()
        while not self.queue.closed:
            due_s = self._run_due()
            self._do_next(due_s, math.inf if due_s is None else due_s)

    def _run_due(self) -> Optional[float]:
        """Do what is due by the timetable; seconds to what is due next."""
        while self._timetable is not None and not self.queue.closed:
            due_s = self._timetable.due_s()
            if due_s is None:
                return None
            remaining_s = due_s - time.monotonic()
            if remaining_s > 0:
                return remaining_s
            self._run_guarded(self._timetable.run_due_work)
        return None

    def _do_next(self, timeout_s: Optional[float], room_s: float = math.inf) -> None:
        """Do the next job if it arrives within ``timeout_s`` and takes no longer than ``room_s``."""
        # a job that costs more than the time to what is planned next waits at most 0.5 s
        entry = self.queue.get_item(timeout_s, room_s, 0.5)
        if entry is None:
            return
        try:
            self._run_guarded(entry[0])
        finally:
            self.queue.end_item()

    def _run_guarded(self, job: Job) -> None:
        try:
            job()
        except (Exception, SystemExit):  # a model that calls sys.exit must not take the thread with it
            _log.exception("a job of %s failed", self._thread.name)
