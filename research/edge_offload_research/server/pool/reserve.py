"""Which GPUs and links a batch gets, and when, before it is let in (4.5.5, Algorithms 3 and 4).

Every GPU (or share of one) has a time from which it is free; a batch reserves what its way through a pipeline needs, in
order, and workers serve in the order in which they were sent work. Of a machine's link, up and down, it reserves a time
between others': a transfer that is to come later blocks none that is over before it. Times are seconds on whatever
clock the caller has; nothing here reads one.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Deque, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.server.pool.columns import Cluster
from edge_offload.server.pool.dispatch import queues
from edge_offload.server.pool.links import NEAR, LinkSchedule, find_gap
from edge_offload.server.pool.plan import PlannedPipeline, PoolPlan
from edge_offload.server.pool.profile import BlockProfile

#: Share of the plan's rate below which batches do not wait in vain until they are full.
LIGHT = 0.5


@dataclass
class StageTable:
    """The workers of one stage, each a GPU or a share of one.

    Attributes:
        machines: of each worker.
        free: when each is free.
        compute_s: by batch - 1.
        transfer_s: for one frame, from the stage before; 0 for the first.
        busy_s: seconds reserved so far, of all workers.
    """

    machines: Array
    free: Array
    compute_s: Array
    transfer_s: float
    busy_s: float = 0.0

    def __post_init__(self) -> None:
        #: What each worker is to do and has not done yet, in turn.
        self.turns: List[List[Use]] = [[] for _ in self.free]
        self._since = self.free.copy()

    def occupy_worker(self, worker: int, until: float) -> None:
        """A worker begins nothing before then; infinite: it is not there."""
        self._since[worker] = self.free[worker] = until
        self.settle_worker(worker)

    def earliest_start(self, worker: int, place: int) -> float:
        """Return when a worker is free for its reservation number ``place``."""
        if place == len(self.turns[worker]) or not math.isfinite(float(self.free[worker])):
            return float(self.free[worker])
        return self.turns[worker][place - 1].end if place else float(self._since[worker])

    def settle_worker(self, worker: int) -> None:
        """Expect ends anew, here and in the stages behind, of what a worker is to do."""
        if not math.isfinite(float(self.free[worker])):
            return
        at = float(self._since[worker])
        moved = []
        for use in self.turns[worker]:
            at = max(at, use.moved) + use.compute_s
            if use.next is not None and abs(at - use.end) > NEAR:
                moved.append((*use.next, at - use.end))
            use.end = at
        self.free[worker] = at
        for stage, use, later_s in moved:
            use.moved += later_s
            stage.settle_worker(use.worker)

    def end_use(self, use: Use, at: Optional[float] = None) -> None:
        """``use`` has ended, or is not to be after all."""
        turns = self.turns[use.worker]
        place = next((place for place, each in enumerate(turns) if each is use), None)
        if place is not None:
            del turns[place]
        if at is not None and math.isfinite(float(self.free[use.worker])):
            self._since[use.worker] = max(float(self._since[use.worker]), at)
        if place is not None or at is not None:
            self.settle_worker(use.worker)


@dataclass(eq=False)
class Use:
    """One stage of a batch's way.

    Attributes:
        worker: of the stage.
        begin, moved, end: transfer (if any) from ``begin`` to ``moved``; computed by ``end``. The last two are moved
            by what really happens.
        compute_s: seconds of computing.
        next: the same batch's use of the next stage.
        deadline: of the batch, where that is known.
    """

    worker: int
    begin: float
    moved: float
    end: float
    compute_s: float = 0.0
    next: Optional[Tuple[StageTable, Use]] = None
    deadline: float = math.inf


@dataclass(frozen=True)
class Way:
    """A batch's way through a pipeline.

    Attributes:
        batch: frames.
        uses: by stage.
        waiting_s: time in which nothing happens to it.
    """

    batch: int
    uses: Tuple[Use, ...]
    waiting_s: float

    @property
    def end(self) -> float:
        """Time of the answer."""
        return self.uses[-1].end


class Route:
    """A pipeline with its reservation tables.

    Args:
        pipeline: of a plan.
        stages: their workers.
        links: of all machines, shared with other routes.
    """

    def __init__(self, pipeline: PlannedPipeline, stages: Sequence[StageTable], links: LinkSchedule) -> None:
        self.pipeline = pipeline
        self.batch = pipeline.stages[0].batch
        self.stages = stages
        self._links = links

    def probe_way(self, now: float, batch: int) -> Way:
        """The way that finishes each stage earliest, if it began now; nothing is reserved (Algorithm 3)."""
        at, worked, uses = now, 0.0, []
        last = -1
        for number, stage in enumerate(self.stages):
            compute_s = float(stage.compute_s[batch - 1])
            worked += compute_s
            if number == 0:
                worker = int(stage.free.argmin())
                begin = moved = at
            else:
                travels = stage.transfer_s * batch
                worked += travels
                worker, moved = self._choose_worker(stage, last, at, travels)
                begin = moved - travels
            at = max(moved, float(stage.free[worker])) + compute_s
            uses.append(Use(worker, begin, moved, at, compute_s))
            last = int(stage.machines[worker])
        return Way(batch, tuple(uses), at - now - worked)

    def _choose_worker(self, stage: StageTable, sender: int, at: float, travels: float) -> Tuple[int, float]:
        """The worker that can begin first with what is at ``sender`` from ``at`` on, and when it is there."""
        links = self._links
        earliest = find_gap(links.up[sender], at, travels) + travels
        earliest_start = np.maximum(stage.free, earliest)
        transferred: Dict[int, float] = {}
        while True:
            worker = int(earliest_start.argmin())
            machine = int(stage.machines[worker])
            if machine in transferred:
                return worker, transferred[machine]
            transferred[machine] = moved = links.earliest_start(sender, machine, at, travels) + travels
            if moved <= earliest:
                return worker, moved
            same_machine = stage.machines == machine
            earliest_start[same_machine] = np.maximum(stage.free[same_machine], moved)

    def reserve_way(self, way: Way) -> None:
        """Reserve what ``way`` uses (Algorithm 3)."""
        last = -1
        now = way.uses[0].begin
        for number, (stage, use) in enumerate(zip(self.stages, way.uses)):
            machine = int(stage.machines[use.worker])
            if number:
                self._links.reserve_span(last, machine, use.begin, use.moved, now)
            stage.free[use.worker] = use.end
            stage.busy_s += use.compute_s
            last = machine
            stage.turns[use.worker].append(use)
            if number + 1 < len(way.uses):
                use.next = self.stages[number + 1], way.uses[number + 1]

    def report_end(self, number: int, use: Use, end: float) -> None:
        """Feedback: stage ``number`` of a reservation really ended at ``end``; what waits behind it moves with it."""
        if use.next is not None:
            table, after = use.next
            after.moved += end - use.end
            use.next = None
            table.settle_worker(after.worker)
        self.stages[number].end_use(use, end)


@dataclass(frozen=True)
class Dispatch:
    """A batch that is let in.

    Attributes:
        route: which pipeline.
        way: what is reserved for it.
        requests: their numbers.
    """

    route: Route
    way: Way
    requests: Tuple[int, ...]


class Batcher:
    """Reservation-aware adaptive batching for the requests of one network (Algorithm 4).

    Args:
        routes: pipelines of the network.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = routes
        self._waiting: Deque[Tuple[int, float]] = deque()
        #: Mean time between requests, where it is known: what would wait in vain for a full batch does not wait.
        self.interval_s: Optional[float] = None

    def __len__(self) -> int:
        return len(self._waiting)

    def set_routes(self, routes: Sequence[Route]) -> None:
        """Another plan: what waits goes by its routes."""
        self._routes = routes

    def add_request(self, request: int, deadline: float) -> None:
        """A request comes; deadlines rise with arrival."""
        self._waiting.append((request, deadline))

    def decide_batches(self, now: float) -> Tuple[List[Dispatch], List[int], float]:
        """Return the admitted batches, the requests that cannot be in time, and the latest time of the next decision.

        The last is infinite while nothing waits.
        """
        admitted: List[Dispatch] = []
        dropped: List[int] = []
        while self._waiting:
            deadline = self._waiting[0][1]
            route, way = self._choose_route(now, deadline)
            if way is None:
                dropped.append(self._waiting.popleft()[0])
            elif len(self._waiting) < way.batch:
                more = way if way.batch == len(self._waiting) + 1 else route.probe_way(now, len(self._waiting) + 1)
                wait_s = max(deadline - more.end, 0.0)
                if not self._is_light() or (self.interval_s or 0.0) * (way.batch - len(self._waiting)) <= wait_s:
                    return admitted, dropped, now + wait_s + 1e-6
                admitted.append(self._admit(route, route.probe_way(now, len(self._waiting))))
            else:
                admitted.append(self._admit(route, way))
        return admitted, dropped, math.inf

    def _is_light(self) -> bool:
        """Return whether the load is so light that a batch need not be full."""
        rate = sum(route.pipeline.rate for route in self._routes)
        return self.interval_s is not None and self.interval_s * rate * LIGHT > 1.0

    def _admit(self, route: Route, way: Way) -> Dispatch:
        route.reserve_way(way)
        return Dispatch(route, way, tuple(self._waiting.popleft()[0] for _ in range(way.batch)))

    def _choose_route(self, now: float, deadline: float) -> Tuple[Route, Optional[Way]]:
        """The route where a full batch waits least, of those that answer it by the deadline if any does; and its way.

        Where none does, the largest batch that is in time, by the route where a full one waits least of those that have
        such a batch.
        """
        ways = [route.probe_way(now, route.batch) for route in self._routes]
        late = [way.end > deadline + NEAR for way in ways]
        order = sorted(range(len(ways)), key=lambda place: (late[place], ways[place].waiting_s))
        for place in order:
            route, way = self._routes[place], ways[place]
            for batch in range(route.batch, 0, -1):
                if batch < route.batch:
                    way = route.probe_way(now, batch)
                if way.end <= deadline + NEAR:
                    return route, way
        return self._routes[order[0]], None


def routes_of(plan: PoolPlan, networks: Mapping[str, BlockProfile], cluster: Cluster) -> Dict[str, List[Route]]:
    """Reservation tables for a plan, by network: the workers and links that the pool's own queues have."""
    return {
        name: [
            Route(
                route.pipeline,
                [
                    StageTable(
                        np.array(stage.machines),
                        np.zeros(len(stage.machines)),
                        np.array(stage.compute_s[1:]),
                        stage.transfer_s,
                    )
                    for stage in route.stages
                ],
                route.links,
            )
            for route in routes
        ]
        for name, routes in queues.routes_of(plan, networks, cluster).items()
    }
