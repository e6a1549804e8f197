"""Calls under way, in turns: what each worker of a pool is sent, and when."""

from __future__ import annotations

import itertools
import math
from typing import Callable, Dict, Iterator, List, Optional, Sequence

from edge_offload.server.pool.dispatch.jobs import GRACE_S, Call, Job, Track
from edge_offload.server.pool.reserve import StageTable, Use

NEAR = 1e-9


class Calls:
    """Workers are sent batches in the order in which they were reserved, unless one fits in before another has come.

    Args:
        start: makes a call.
        refuse: takes requests that are not computed, and why.

    Attributes:
        links: links are emulated: what goes from stage to stage is held for as long as was reserved for it.
        held: calls that have not been sent.
    """

    def __init__(self, start: Callable[[Call], None], refuse: Callable[[Sequence[int], str], None]) -> None:
        self.links = False
        self.held: List[Call] = []
        self._start, self._refuse = start, refuse
        self._calls: Dict[int, Call] = {}
        self._of: Dict[int, Call] = {}
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Call]:
        return iter(list(self._calls.values()))

    def __contains__(self, call: Call) -> bool:
        return call.number in self._calls

    def make(self, track: Track, stage: int, use: Use, ready: float) -> Call:
        """A call, which is not under way before :meth:`add`."""
        return Call(next(self._numbers), track, stage, use, ready)

    def add(self, call: Call) -> None:
        """It is to be made when it is its turn."""
        call.track.tried.add(call.worker)
        call.track.job.running += 1
        self._calls[call.number] = self._of[id(call.use)] = call
        self.held.append(call)

    def remove(self, number: int) -> Optional[Call]:
        """A call is not under way any more; None: it was not."""
        call = self._calls.pop(number, None)
        if call is not None:
            call.track.job.running -= 1
            self._of.pop(id(call.use), None)
        return call

    def send(self, table: StageTable, worker: int, now: float) -> float:
        """Send a worker what it is to do next, as far as that is here; when to look again at the latest."""
        again = until = math.inf
        at = now
        turns = table.turns[worker]
        for use in list(turns):
            call = self._of.get(id(use))
            if call is not None and call.sent:
                at = max(at, use.end)
            elif call is None or call.ready > now + NEAR:
                if call is not None:
                    again = min(again, call.ready)
                elif now >= use.moved + GRACE_S:
                    continue  # it is late: others need not wait for it
                else:
                    again = min(again, use.moved + GRACE_S)
                until = min(until, use.moved)
            elif max(at, use.moved if self.links else now) + use.takes <= until + NEAR:
                call.sent = True
                at = max(at, use.end)
                if math.isfinite(until):  # before one that has not come yet
                    turns.remove(use)
                    sent = [each for each in turns if (of := self._of.get(id(each))) is not None and of.sent]
                    turns.insert(len(sent), use)
                    table.settle(worker)
                self._start(call)
        return again

    def place(self, table: StageTable, worker: int, deadline: float, moved: float, takes: float, rest_s: float) -> int:
        """Where in a worker's turns a batch comes that others did not do: before those that have more time than it.

        Not before what is under way, would wait for it (it is there at ``moved``), or would then be late: with
        ``rest_s`` of stages behind this one.
        """
        turns = table.turns[worker]
        place = len(turns)
        while place:
            other = turns[place - 1]
            call = self._of.get(id(other))
            if (call is not None and call.sent) or other.deadline <= deadline:
                break
            if moved > other.end - other.takes + NEAR or other.end + takes + rest_s > other.deadline:
                break
            place -= 1
        return place

    def finish(self, job: Job) -> None:
        """A batch is answered or refused: what it was still to do is not."""
        job.done = True
        job.inputs = []
        for track in job.tracks:
            for table, use in zip(track.route.stages, track.uses):
                call = self._of.get(id(use))
                if call is None or not call.sent:
                    if call is not None:
                        self.remove(call.number)
                    table.done(use)

    def refuse_stranded(self, job: Job, why: str) -> None:
        """Refuse a batch that no call is made for any more."""
        if not job.running and not job.done:
            self.finish(job)
            self._refuse(job.requests, why)
