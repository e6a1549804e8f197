"""The next route of a batch whose call has failed or is overdue."""

from __future__ import annotations

import math
from typing import Optional, Sequence, Set, Tuple

from edge_offload.server.pool.dispatch.members import Members
from edge_offload.server.pool.dispatch.queues import Job, Route, StageCall, Stranded


def find_route(job: Job, members: Members, now: float, slack_s: float) -> Tuple[bool, Optional[Route]]:
    """Return whether a batch can continue, and the route from its inputs; None: from its last tensors.

    It restarts from the inputs if the tensors are lost, or may be lost and there is time; or if the batch would be late
    otherwise and that is sooner.
    """
    size, suspects = len(job.requests), members.suspects
    onward = math.inf
    if job.has_untried(job.route.stages[job.stage]) and job.holder not in members.excluded:
        onward = min(job.route.expected_end(job.stage, size, now, avoid, job.tried) for avoid in (suspects, set()))
    restarted, route = _soonest_route(
        [route_ for route_ in members.able if job.stage or route_ is not job.route], job, now, suspects
    )
    doubtful = job.holder in suspects and restarted <= job.latest
    late = onward + slack_s > job.latest and restarted < onward
    if route is not None and (doubtful or late):
        return True, route
    return onward < math.inf, None


def describe_stranded(call: StageCall, able: Sequence[Route], now: float) -> Stranded:
    """Describe the state of a batch when its call was abandoned."""
    job, table, avoid = call.job, call.table, {call.node} - {""}
    frees = [table.free_s[worker] for worker in table.present if table.nodes[worker] not in avoid]
    restarted, _ = _soonest_route([route for route in able if call.stage or route is not call.route], job, now, avoid)
    return Stranded(
        job.started_at, now, call.due, call.compute_s, job.remaining_s, min(frees, default=math.inf),
        restarted - now, job.holder,
        job.deadline, len(job.requests),
    )  # fmt: skip


def _soonest_route(routes: Sequence[Route], job: Job, now: float, avoid: Set[str]) -> Tuple[float, Optional[Route]]:
    """Return the best end of a batch from its inputs over these routes, and that route; None: no route takes it."""
    size = len(job.requests)
    best: Tuple[float, Optional[Route]] = (math.inf, None)
    for route in routes:
        if route.batch >= size and job.has_untried(route.stages[0]):
            best = min(best, (route.expected_end(0, size, now, avoid, job.tried), route), key=lambda pair: pair[0])
    return best
