"""A plan under load in virtual time, by reservations (IPIPE, Algorithms 3 and 4).

Times that batches really take may differ from the profile's; then the scheduler hears of it when they end.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.server.pool.columns import Cluster
from edge_offload.server.pool.plan import PoolPlan
from edge_offload.server.pool.profile import BlockProfile
from edge_offload.server.pool.simulate import LoadOutcome, compute_utilisation
from edge_offload_research.server.pool.reserve import Batcher, Dispatch, Route, routes_of


def run(
    plan: PoolPlan,
    networks: Mapping[str, BlockProfile],
    cluster: Cluster,
    slo_s: Mapping[str, float],
    arrivals: Mapping[str, Array],
    stretch: Optional[Callable[[], float]] = None,
) -> LoadOutcome:
    """Serve ``arrivals`` (seconds, rising) by reservation.

    Args:
        plan: what runs where.
        networks: profiles of its networks.
        cluster: what it runs on.
        slo_s: seconds to an answer, by network.
        arrivals: by network.
        stretch: factor by which the next stage of a batch really takes longer than profiled; None: it does not.
    """
    routes = routes_of(plan, networks, cluster)
    batchers = {name: Batcher(routes.get(name, [])) for name in arrivals}
    answered = {name: np.zeros(len(times), bool) for name, times in arrivals.items()}
    events: List[Tuple[float, int, Callable[[float], None]]] = []
    numbers = itertools.count()
    truth = _Truth(stretch) if stretch is not None else None

    def schedule_event(when: float, what: Callable[[float], None]) -> None:
        heapq.heappush(events, (when, next(numbers), what))

    requested: Dict[str, float] = dict.fromkeys(arrivals, math.inf)

    def decide_network(name: str, now: float) -> None:
        admitted, _, next_decision = batchers[name].decide_batches(now)
        for dispatch in admitted:
            if truth is None:  # all happens as reserved
                end = dispatch.way.end
                for stage, use in zip(dispatch.route.stages, dispatch.way.uses):
                    stage.turns[use.worker].clear()
            else:
                end = truth.follow_batch(dispatch, now, schedule_event)
            for request in dispatch.requests:
                answered[name][request] = end <= arrivals[name][request] + slo_s[name] + 1e-9
        if next_decision < requested[name] or requested[name] <= now:
            requested[name] = next_decision
            if next_decision < math.inf:
                schedule_event(next_decision, lambda now: decide_network(name, now) if requested[name] <= now else None)

    def add_arrival(name: str, request: int, now: float) -> None:
        if request + 1 < len(arrivals[name]):
            schedule_event(float(arrivals[name][request + 1]), lambda then: add_arrival(name, request + 1, then))
        batchers[name].add_request(request, now + slo_s[name])
        decide_network(name, now)

    for name, times in arrivals.items():
        if len(times) and routes.get(name):
            schedule_event(float(times[0]), lambda now, name=name: add_arrival(name, 0, now))  # type: ignore[misc]
    while events:
        now, _, what = heapq.heappop(events)
        what(now)
    return LoadOutcome(
        {name: float(done.mean()) if len(done) else 1.0 for name, done in answered.items()},
        {name: len(done) for name, done in answered.items()},
        compute_utilisation(
            routes, cluster, max((float(times[-1]) for times in arrivals.values() if len(times)), default=0.0)
        ),
    )


class _Truth:
    """Simulation of batches whose stages may differ from the reservation: workers serve in turn."""

    def __init__(self, stretch: Callable[[], float]) -> None:
        self._stretch = stretch
        self._free: Dict[Tuple[int, int], float] = {}

    def follow_batch(
        self, dispatch: Dispatch, now: float, at: Callable[[float, Callable[[float], None]], None]
    ) -> float:
        """Return when the batch is really answered; the scheduler is notified of the end of each stage."""
        ready = now
        for number, (stage, use) in enumerate(zip(dispatch.route.stages, dispatch.way.uses)):
            key = (id(stage), use.worker)
            moved = max(ready, use.begin) + (use.moved - use.begin)
            begin = max(moved, self._free.get(key, 0.0))
            end = begin + float(stage.compute_s[dispatch.way.batch - 1]) * self._stretch()
            self._free[key] = ready = end
            at(end, _make_completion(dispatch.route, number, use))
        return ready


def _make_completion(route: Route, number: int, use: Any) -> Callable[[float], None]:
    return lambda now: route.report_end(number, use, now)
