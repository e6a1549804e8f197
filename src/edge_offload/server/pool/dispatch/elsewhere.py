"""Where a batch goes whose call has failed or is overdue."""

from __future__ import annotations

import math
from typing import Optional, Sequence, Set, Tuple

from edge_offload.server.pool.dispatch.members import Members
from edge_offload.server.pool.dispatch.queues import Call, Job, Route, Stranded


def way_on(job: Job, members: Members, now: float, slack_s: float) -> Tuple[bool, Optional[Route]]:
    """Whether a batch can go on, and the route by which it begins from its inputs; None: from its last tensors.

    From the inputs where the tensors are lost, or may be and there is the time; or where that is sooner, and the batch
    would be late otherwise.
    """
    size, suspects = len(job.requests), members.suspects
    here = math.inf
    if job.untried(job.route.stages[job.stage]) and job.at not in members.out:
        here = min(job.route.expect(job.stage, size, now, avoid, job.tried) for avoid in (suspects, set()))
    anew, route = _soonest([each for each in members.able if job.stage or each is not job.route], job, now, suspects)
    doubtful = job.at in suspects and anew <= job.latest
    late = here + slack_s > job.latest and anew < here
    if route is not None and (doubtful or late):
        return True, route
    return here < math.inf, None


def stranded(call: Call, able: Sequence[Route], now: float) -> Stranded:
    """How the batch of a call stands that is not counted on any more."""
    job, table, avoid = call.job, call.table, {call.node} - {""}
    frees = [table.free_s[worker] for worker in table.there if table.nodes[worker] not in avoid]
    anew, _ = _soonest([each for each in able if call.stage or each is not call.route], job, now, avoid)
    return Stranded(
        job.began, now, call.due, call.takes, job.left_s, min(frees, default=math.inf), anew - now, job.at,
        job.deadline, len(job.requests),
    )  # fmt: skip


def _soonest(routes: Sequence[Route], job: Job, now: float, avoid: Set[str]) -> Tuple[float, Optional[Route]]:
    """When a batch would end at best by one of these routes from its inputs, and which; None: none takes it."""
    size = len(job.requests)
    best: Tuple[float, Optional[Route]] = (math.inf, None)
    for route in routes:
        if route.batch >= size and job.untried(route.stages[0]):
            best = min(best, (route.expect(0, size, now, avoid, job.tried), route), key=lambda each: each[0])
    return best
