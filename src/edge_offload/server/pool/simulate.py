"""Simulates a plan under load in virtual time, with the dispatcher that serves robots.

Requests arrive as a Poisson process. Simulated times of batches may differ from the profile; the dispatcher then learns
of the difference when a batch ends, as with real workers.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.server.pool.columns import Cluster
from edge_offload.server.pool.dispatch import Dispatcher, Route, StageCall, routes_of
from edge_offload.server.pool.plan import PoolPlan
from edge_offload.server.pool.profile import BlockProfile


@dataclass(frozen=True)
class LoadOutcome:
    """Result of a simulated load.

    Attributes:
        attainment: share of requests answered in time, by network.
        requests: their number, by network.
        utilisation: by class of GPU, the share of time in which GPUs computed, over all GPUs of the class.
    """

    attainment: Dict[str, float]
    requests: Dict[str, int]
    utilisation: Dict[str, float]


def poisson_arrivals(rate: float, seconds: float, source: np.random.Generator) -> Array:
    """Return ascending arrival times (seconds) of a Poisson process with ``rate`` per second for ``seconds``."""
    count = source.poisson(rate * seconds)
    times: Array = np.sort(source.uniform(0.0, seconds, count))
    return times


def simulate_load(
    plan: PoolPlan,
    networks: Mapping[str, BlockProfile],
    cluster: Cluster,
    slo_s: Mapping[str, float],
    arrivals: Mapping[str, Array],
    stretch: Optional[Callable[[], float]] = None,
) -> LoadOutcome:
    """Simulate requests on a plan until all are answered or refused.

    Args:
        plan: stages and their GPUs.
        networks: profiles of the plan's networks, by name.
        cluster: machines of the plan.
        slo_s: latency bound of an answer, by network (seconds).
        arrivals: ascending arrival times, by network (seconds).
        stretch: returns, for the next call, its simulated time over its profile's; None: always 1.
    """
    routes = routes_of(plan, networks, cluster)
    events = _VirtualTime(stretch)
    served = {name: events.serve_network(routes.get(name, []), times, slo_s[name]) for name, times in arrivals.items()}
    events.run_events()
    seconds = max((float(times[-1]) for times in arrivals.values() if len(times)), default=0.0)
    return LoadOutcome(
        {name: sum(answered) / len(answered) if answered else 1.0 for name, answered in served.items()},
        {name: len(answered) for name, answered in served.items()},
        compute_utilisation(routes, cluster, seconds),
    )


class _VirtualTime:
    """Queue of events in virtual time (seconds); each worker computes its calls one after another."""

    def __init__(self, stretch: Optional[Callable[[], float]]) -> None:
        self._stretch = stretch
        self._events: List[Tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()  # orders events of the same time
        self._free_at_s: Dict[Tuple[int, int], float] = {}
        self._now = 0.0

    def run_events(self) -> None:
        """Run events until none remain."""
        while self._events:
            self._now, _, action = heapq.heappop(self._events)
            action(self._now)

    def _schedule_event(self, time_: float, action: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time_, next(self._numbers), action))

    def serve_network(self, routes: Sequence[Route], times: Array, slo_s: float) -> List[bool]:
        """Schedule requests; return a list that :meth:`run_events` fills: whether each was answered in time."""
        in_time = [False] * len(times)
        arrivals = [float(arrival) for arrival in times]
        next_step = [math.inf]  # time of the scheduled dispatcher step

        def answer(requests: Tuple[int, ...], _payload: Any) -> None:
            for request in requests:
                in_time[request] = self._now <= arrivals[request] + slo_s + 1e-9

        def start(call: StageCall) -> None:
            key = id(call.table), call.worker
            duration = call.compute_s * (self._stretch() if self._stretch else 1.0)
            self._free_at_s[key] = end = max(self._now, self._free_at_s.get(key, 0.0)) + duration
            self._schedule_event(end, lambda now: end_of(call, now))

        def end_of(call: StageCall, now: float) -> None:
            dispatcher.end_call(call.number, (), now)
            step(now)

        def step(now: float) -> None:
            next_s = dispatcher.step(now)
            if next_s < next_step[0] or next_step[0] <= now:
                next_step[0] = next_s
                if next_s < math.inf:
                    self._schedule_event(next_s, lambda then: step(then) if next_step[0] <= then else None)

        def arrive(request: int, now: float) -> None:
            if request + 1 < len(arrivals):
                self._schedule_event(arrivals[request + 1], lambda then: arrive(request + 1, then))
            dispatcher.add_request(request, (), now + slo_s)
            step(now)

        dispatcher = Dispatcher(start, answer, lambda *_: None)
        dispatcher.use_routes(routes, {}, [], links=True)
        if arrivals:
            self._schedule_event(arrivals[0], lambda now: arrive(0, now))
        return in_time


def compute_utilisation(routes: Mapping[str, Sequence[Any]], cluster: Cluster, seconds: float) -> Dict[str, float]:
    """Return the share of ``seconds`` in which the GPUs of each class computed."""
    busy = dict.fromkeys(cluster.gpus, 0.0)
    for route in itertools.chain.from_iterable(routes.values()):
        for stage, table in zip(route.pipeline.stages, route.stages):
            busy[stage.gpu] += table.busy_s / stage.parts
    return {gpu: spent / (cluster.gpus[gpu] * seconds) if seconds else 0.0 for gpu, spent in busy.items()}
