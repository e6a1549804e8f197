"""A plan under load in virtual time, by the dispatcher that serves robots.

Requests come at random (Poisson) at a share of the plan's rate. Times that batches really take may differ from the
profile's; then the dispatcher hears of it when they end, as from real members.
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
from edge_offload.server.pool.dispatch import Call, Dispatcher, Route, routes_of
from edge_offload.server.pool.plan import Plan
from edge_offload.server.pool.profile import Network


@dataclass(frozen=True)
class Outcome:
    """What became of the load.

    Attributes:
        attainment: share of requests answered in time, by network.
        requests: how many there were, by network.
        utilisation: share of time in which the plan's GPUs computed, by class, of all GPUs of the class.
    """

    attainment: Dict[str, float]
    requests: Dict[str, int]
    utilisation: Dict[str, float]


def poisson(rate: float, seconds: float, source: np.random.Generator) -> Array:
    """Arrival times of a Poisson process."""
    count = source.poisson(rate * seconds)
    times: Array = np.sort(source.uniform(0.0, seconds, count))
    return times


def run(
    plan: Plan,
    networks: Mapping[str, Network],
    cluster: Cluster,
    slo_s: Mapping[str, float],
    arrivals: Mapping[str, Array],
    stretch: Optional[Callable[[], float]] = None,
) -> Outcome:
    """Serve ``arrivals`` (seconds, rising).

    Args:
        plan: what runs where.
        networks: profiles of its networks.
        cluster: what it runs on.
        slo_s: seconds to an answer, by network.
        arrivals: by network.
        stretch: factor by which the next stage of a batch really takes longer than profiled; None: it does not.
    """
    routes = routes_of(plan, networks, cluster)
    world = _World(stretch)
    served = {name: world.serve(routes.get(name, []), times, slo_s[name]) for name, times in arrivals.items()}
    world.run()
    seconds = max((float(times[-1]) for times in arrivals.values() if len(times)), default=0.0)
    return Outcome(
        {name: sum(done) / len(done) if done else 1.0 for name, done in served.items()},
        {name: len(done) for name, done in served.items()},
        utilisation(routes, cluster, seconds),
    )


class _World:
    """Events in virtual time; workers compute what they are sent in turn."""

    def __init__(self, stretch: Optional[Callable[[], float]]) -> None:
        self._stretch = stretch
        self._events: List[Tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()
        self._free: Dict[Tuple[int, int], float] = {}
        self._now = 0.0

    def run(self) -> None:
        """Until nothing happens any more."""
        while self._events:
            self._now, _, what = heapq.heappop(self._events)
            what(self._now)

    def _at(self, when: float, what: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), what))

    def serve(self, routes: Sequence[Route], times: Array, slo_s: float) -> List[bool]:
        """Have requests come; which of them were in time is there after :meth:`run`."""
        in_time = [False] * len(times)
        arrivals = [float(time) for time in times]
        looks = [math.inf]

        def answer(requests: Tuple[int, ...], _payload: Any) -> None:
            for request in requests:
                in_time[request] = self._now <= arrivals[request] + slo_s + 1e-9

        def start(call: Call) -> None:
            key = id(call.table), call.worker
            takes = call.takes * (self._stretch() if self._stretch else 1.0)
            self._free[key] = end = max(self._now, self._free.get(key, 0.0)) + takes
            self._at(end, lambda now: end_of(call, now))

        def end_of(call: Call, now: float) -> None:
            dispatcher.ended(call.number, (), now)
            step(now)

        def step(now: float) -> None:
            again = dispatcher.step(now)
            if again < looks[0] or looks[0] <= now:
                looks[0] = again
                if again < math.inf:
                    self._at(again, lambda then: step(then) if looks[0] <= then else None)

        def arrive(request: int, now: float) -> None:
            if request + 1 < len(arrivals):
                self._at(arrivals[request + 1], lambda then: arrive(request + 1, then))
            dispatcher.arrive(request, (), now + slo_s)
            step(now)

        dispatcher = Dispatcher(start, answer, lambda *_: None)
        dispatcher.use(routes, {}, [], links=True)
        if arrivals:
            self._at(arrivals[0], lambda now: arrive(0, now))
        return in_time


def utilisation(routes: Mapping[str, Sequence[Any]], cluster: Cluster, seconds: float) -> Dict[str, float]:
    """Share of time in which the GPUs of each class computed."""
    busy = dict.fromkeys(cluster.gpus, 0.0)
    for route in itertools.chain.from_iterable(routes.values()):
        for stage, table in zip(route.pipeline.stages, route.stages):
            busy[stage.gpu] += table.busy_s / stage.parts
    return {gpu: spent / (cluster.gpus[gpu] * seconds) if seconds else 0.0 for gpu, spent in busy.items()}
