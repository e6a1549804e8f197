"""The scheduler that the pool's is compared with: queues stage by stage, and no look ahead (IPIPE, 4.5.2).

Each stage has one queue. A worker that is free takes the largest batch, up to the plan's, that is computed before the
oldest request's deadline less the time that the stages after it are planned to take. Requests are dealt out to
pipelines in proportion to their rates; a machine's transfers go one after the other.
"""

from __future__ import annotations

import heapq
import itertools
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.server.pool.columns import Cluster
from edge_offload.server.pool.plan import Plan
from edge_offload.server.pool.profile import Network
from edge_offload.server.pool.reserve import Route, routes_of

ARRIVE, MOVED, LOOK = range(3)


class _Pipe:
    """A pipeline's queues of (deadline, request), and what its stages after each are planned to take."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self.queues: List[List[Tuple[float, int]]] = [[] for _ in route.stages]
        self.after = [0.0] * len(route.stages)
        for number in range(len(route.stages) - 2, -1, -1):
            stage = route.stages[number + 1]
            planned = float(stage.compute_s[route.batch - 1]) + stage.transfer_s * route.batch
            self.after[number] = self.after[number + 1] + planned


def run(
    plan: Plan,
    networks: Mapping[str, Network],
    cluster: Cluster,
    slo_s: Mapping[str, float],
    arrivals: Mapping[str, Array],
) -> Dict[str, float]:
    """Share of requests answered in time, by network; arguments as for the pool's simulator."""
    served = {}
    for name, routes in routes_of(plan, networks, cluster).items():
        served[name] = _serve(routes, arrivals[name], slo_s[name])
    return {name: served.get(name, 0.0) for name in arrivals}


def _serve(routes: Sequence[Route], times: Array, slo_s: float) -> float:
    pipes = [_Pipe(route) for route in routes]
    weights = np.array([pipe.route.pipeline.rate for pipe in pipes])
    weights = weights / weights.sum()
    credit = np.zeros(len(pipes))
    answered = np.zeros(len(times), bool)
    links: Dict[Tuple[int, int, int], float] = {}
    count = itertools.count()
    events: List[Tuple[float, int, int, Any]] = [(float(t), next(count), ARRIVE, n) for n, t in enumerate(times)]
    heapq.heapify(events)

    def serve(place: int, number: int, now: float) -> None:
        pipe = pipes[place]
        stage, queue = pipe.route.stages[number], pipe.queues[number]
        while queue:
            worker = int(stage.free.argmin())
            if stage.free[worker] > now:
                heapq.heappush(events, (float(stage.free[worker]), next(count), LOOK, (place, number)))
                return
            left = queue[0][0] - pipe.after[number] - now
            size = int(np.searchsorted(stage.compute_s[: pipe.route.batch], left, side="right"))
            if size == 0:
                queue.pop(0)
                continue
            if len(queue) < size:
                latest = queue[0][0] - pipe.after[number] - float(stage.compute_s[len(queue)])
                if latest > now + 1e-6:
                    heapq.heappush(events, (latest, next(count), LOOK, (place, number)))
                    return
                size = len(queue)
            batch, queue[:size] = queue[:size], []
            end = now + float(stage.compute_s[size - 1])
            stage.free[worker] = end
            if number == len(pipe.queues) - 1:
                for deadline, request in batch:
                    answered[request] = end <= deadline + 1e-9
                continue
            machine = (place, number, int(stage.machines[worker]))
            moved = max(links.get(machine, 0.0), end) + pipe.route.stages[number + 1].transfer_s * size
            links[machine] = moved
            heapq.heappush(events, (moved, next(count), MOVED, (place, number + 1, batch)))

    while events:
        now, _, kind, what = heapq.heappop(events)
        if kind == ARRIVE:
            request: int = what
            credit += weights
            place = int(credit.argmax())
            credit[place] -= 1
            pipes[place].queues[0].append((float(times[request]) + slo_s, request))
            serve(place, 0, now)
        elif kind == MOVED:
            place, number, batch = what
            pipes[place].queues[number].extend(batch)
            serve(place, number, now)
        else:
            place, number = what
            serve(place, number, now)
    return float(answered.mean()) if len(answered) else 1.0
