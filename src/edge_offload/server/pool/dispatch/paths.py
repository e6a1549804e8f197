"""Where batches go: on to their next stage, elsewhere where that cannot be, or from their inputs by another route."""

from __future__ import annotations

import math
from typing import Optional, Set, Tuple

from edge_offload.server.pool.dispatch.calls import Calls
from edge_offload.server.pool.dispatch.jobs import Call, Job, Stranded, Track, begin
from edge_offload.server.pool.dispatch.members import Key, Members
from edge_offload.server.pool.dispatch.outcomes import Outcomes
from edge_offload.server.pool.reserve import Route, Use, Way


class Paths:
    """Goes on with batches.

    Args:
        members: who is there.
        calls: under way.
        outcomes: notes what could not go on where it was.
    """

    def __init__(self, members: Members, calls: Calls, outcomes: Outcomes) -> None:
        self._members, self._calls, self._outcomes = members, calls, outcomes

    def go_on(self, track: Track, now: float) -> None:
        """A batch comes to its next stage."""
        use = track.uses[track.stage]
        call = self._calls.make(track, track.stage, use, now)
        if not math.isfinite(float(call.table.free[use.worker])) or track.at in self._members.out:
            call.table.done(use)
            self.elsewhere(call, now)
            self._calls.refuse_stranded(track.job, "full: no other member of the pool is there")
            return
        suspects = self._members.suspects
        if self._members.node(call) in suspects:  # by another one, if that is in time
            worker, end = self._soonest(call, suspects, now)
            if worker is not None and self._members.nodes_of(call)[worker] not in suspects:
                self._again(call, worker, end - call.rest_s, now)
                call.table.done(use)
                return
            anew = None if track.job.anew else self._from_inputs(track, now, True, suspects)
            if anew is not None:  # from its inputs besides
                track.job.anew = True
                self._begin_anew(track.job, anew, now)
        if self._calls.links and track.stage:
            call.ready = max(now, use.moved)
        self._calls.add(call)

    def elsewhere(self, call: Call, now: float) -> None:
        """From the last tensors at hand at another worker of the stage, or from the inputs by another route.

        The latter where that is sooner and the former may be late. Both where the tensors are on a node that may be
        gone, from the inputs alone where it is. By nodes that nothing speaks against, if these are in time.
        """
        track, job = call.track, call.track.job
        if not call.wanted:
            return
        track.tried.add(call.worker)
        own = self._members.node(call)
        suspects = {node for node in (own, *self._members.suspects) if node}
        nodes = self._members.nodes_of(call)
        others = [
            float(call.table.free[worker])
            for worker, node in enumerate(nodes)
            if worker not in track.tried and (node != own or not own)
        ]
        self._note(call, min(others, default=math.inf), now)
        doubtful = self._members.doubtful(track)
        worker, end = self._soonest(call, suspects, now)
        sure = worker is not None and end + self._outcomes.slack_s <= job.deadline
        anew = None
        if not sure or (doubtful and not job.anew):
            anew = self._from_inputs(track, now, doubtful, suspects) or self._from_inputs(track, now, doubtful, set())
        if worker is not None and (doubtful or anew is None or end <= anew[1].end):
            self._again(call, worker, end - call.rest_s, now)
            if not doubtful or job.anew:
                return
        if anew is not None:
            job.anew = job.anew or doubtful
            self._begin_anew(job, anew, now)

    def send(self, now: float) -> float:
        """Begin calls whose turn it is; when the next one's may be."""
        again, calls = math.inf, self._calls
        while calls.held:
            held, calls.held = calls.held, []
            tables, elsewhere = {}, False
            for call in held:
                if call not in calls:
                    continue
                there = math.isfinite(float(call.table.free[call.worker])) and call.track.at not in self._members.out
                if call.wanted and there:
                    tables[id(call.table), call.worker] = call.table
                    calls.held.append(call)
                    continue
                calls.remove(call.number)
                call.table.done(call.use)
                if call.wanted:
                    elsewhere = True
                    self.elsewhere(call, now)
                    calls.refuse_stranded(call.track.job, "full: no other member of the pool is there")
            again = min([math.inf, *(calls.send(table, worker, now) for (_, worker), table in tables.items())])
            before = len(calls.held)
            calls.held = [call for call in calls.held if not call.sent]
            if before == len(calls.held) and not elsewhere:
                break
        return again

    def reserve_elsewhere(self, gone: Set[Key]) -> None:
        """What batches under way are to do later at workers that are gone has its turn at others from now on."""
        for track in {id(call.track): call.track for call in self._calls if not call.track.job.done}.values():
            uses = [call.use for call in self._calls if call.track is track]
            for stage in range(track.stage + 1, len(track.route.stages)):
                use, table = track.uses[stage], track.route.stages[stage]
                worker = int(table.free.argmin())
                if (id(track.route), stage, use.worker) not in gone or not math.isfinite(float(table.free[worker])):
                    continue
                end = max(float(table.free[worker]), use.moved) + use.takes
                other = Use(worker, use.begin, use.moved, end, use.takes, use.next, use.deadline)
                rest_s = track.rest_s(stage + 1)
                place = self._calls.place(table, worker, use.deadline, use.moved, use.takes, rest_s)
                for before in (track.uses[stage - 1], *uses):
                    if before.next is not None and before.next[1] is use:
                        before.next = table, other
                if use.next is not None:
                    after, of = use.next
                    of.moved += end - use.end
                    after.settle(of.worker)
                use.next = None
                table.done(use)
                table.turns[worker].insert(place, other)
                table.settle(worker)
                track.uses = (*track.uses[:stage], other, *track.uses[stage + 1 :])

    def _soonest(self, call: Call, suspects: Set[str], now: float) -> Tuple[Optional[int], float]:
        """The worker by which the batch ends first, of those that were not tried, and when; None: it would be late."""
        track, nodes = call.track, self._members.nodes_of(call)
        if track.at in self._members.out:
            return None, math.inf
        moved, rest_s = now + call.table.transfer_s * len(track.job.requests), call.rest_s
        ends = {}
        for worker in range(len(nodes)):
            if worker not in track.tried:
                place = self._calls.place(call.table, worker, track.job.deadline, moved, call.takes, rest_s)
                ends[worker] = max(call.table.begins(worker, place), moved) + call.takes + rest_s
        in_time = [worker for worker, end in ends.items() if end <= track.job.deadline]
        soonest = min(in_time, key=lambda each: (nodes[each] in suspects, ends[each]), default=None)
        return soonest, math.inf if soonest is None else ends[soonest]

    def _again(self, call: Call, worker: int, end: float, now: float) -> None:
        """Make a call once more, or there instead; what follows it moves."""
        moved = now + call.table.transfer_s * len(call.track.job.requests)
        deadline = call.track.job.deadline
        use = Use(worker, now, moved, end, call.takes, call.use.next, deadline)
        place = self._calls.place(call.table, worker, deadline, moved, call.takes, call.rest_s)
        if use.next is not None:
            after, of = use.next
            of.moved += max(0.0, use.end - call.use.end)
            after.settle(of.worker)
        call.use.next = None
        call.table.turns[use.worker].insert(place, use)
        call.table.settle(use.worker)
        self._calls.add(self._calls.make(call.track, call.stage, use, now))

    def _from_inputs(self, track: Track, now: float, again: bool, avoid: Set[str]) -> Optional[Tuple[Route, Way]]:
        """The soonest way from the inputs by none of these nodes, by the same route only ``again``; None: too late."""
        ways = self._members.ways(len(track.job.requests), now, avoid, None if again else track.route)
        found = min(ways, key=lambda each: each[1].end, default=None)
        return found if found is not None and found[1].end <= track.job.deadline else None

    def _begin_anew(self, job: Job, by: Tuple[Route, Way], now: float) -> None:
        route, way = by
        route.reserve(way)
        self.go_on(begin(job, route, way.uses), now)

    def _note(self, call: Call, free: float, now: float) -> None:
        """Keep how a batch stands that cannot go on where it is; the first time counts."""
        track, job = call.track, call.track.job
        if job.stranded is not None:
            return
        batch = len(job.requests)
        left_s = track.rest_s(call.stage)
        ways = self._members.ways(batch, now, {self._members.node(call)} - {""}, None if track.stage else track.route)
        anew_s = min((way.end - now for _, way in ways), default=math.inf)
        job.stranded = Stranded(
            job.began, now, call.due, call.takes, left_s, free, anew_s, track.at, job.deadline, batch
        )
        self._outcomes.stranded.append(job.stranded)
        self._outcomes.moved += batch
