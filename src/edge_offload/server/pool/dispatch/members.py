"""Which workers of a pool are there, on which nodes, and what speaks against these."""

from __future__ import annotations

from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Set

from edge_offload.server.pool.dispatch.queues import Request, Route, Stage, Worker


class Members:
    """Workers of the routes that are served by, and of those that are still under way.

    Attributes:
        routes: that requests are served by.
        old: that batches are under way on, of plans before.
        able: routes with a worker in every stage.
        unplaced: requests without a route.
        changed: whether who is there has changed since :meth:`settle`.
        out: nodes that are out of the plan, since when.
        strikes: overdue calls of a node without an answer between them.
        doubted: nodes of which a worker has gone, or whose tensors were waited for in vain, and that have not answered
            since.
    """

    def __init__(self) -> None:
        self.routes: List[Route] = []
        self.old: List[Route] = []
        self.able: List[Route] = []
        self.unplaced: List[Request] = []
        self.changed = False
        self.out: Dict[str, float] = {}
        self.strikes: Dict[str, int] = {}
        self.doubted: Set[str] = set()

    def use(self, routes: Sequence[Route], nodes: Mapping[Worker, str], absent: Sequence[Worker]) -> None:
        """Serve by these routes, those that wait for others first."""
        self._withdraw(self.routes)
        busy = [route for route in (*self.old, *self.routes) if any(s.jobs or any(s.calls) for s in route.stages)]
        self.old, self.routes = busy, list(routes)
        for (place, stage, worker), node in nodes.items():
            routes[place].stages[stage].nodes[worker] = node
        for place, stage, worker in absent:
            routes[place].stages[stage].away.add(worker)
        self.changed = True

    def _withdraw(self, routes: Sequence[Route]) -> None:
        for route in routes:
            self.unplaced += route.requests
            route.requests.clear()

    def place(self, request: Request) -> Optional[Route]:
        """Deal a request to the route that it is the turn of, in proportion to their rates; None: not yet."""
        if not self.able or self.changed:
            self.unplaced.append(request)
            return None
        weights = [route.weight for route in self.able]
        for route, weight in zip(self.able, weights):
            route.credit += weight / sum(weights)
        route = max(self.able, key=lambda each: each.credit)
        route.credit -= 1
        route.requests.append(request)
        return route

    def settle(self) -> List[Request]:
        """Note who is there, and deal out what has no route; returns what no route serves."""
        self.changed = False
        for stage in self.stages():
            stage.there = [
                worker for worker, node in enumerate(stage.nodes) if worker not in stage.away and node not in self.out
            ]
        self.able = [route for route in self.routes if route.weight > 0]
        self._withdraw([route for route in self.routes if route.weight <= 0])
        waiting, self.unplaced = sorted(self.unplaced, key=lambda each: each[:2]), []
        if not self.able:
            return waiting
        for request in waiting:
            self.place(request)
        return []

    def stages(self) -> Iterator[Stage]:
        """All stages, the last of each route first."""
        for route in (*self.routes, *self.old):
            yield from reversed(route.stages)

    def present(self, worker: Worker) -> None:
        """A worker is there (again)."""
        place, stage, number = worker
        self.routes[place].stages[stage].away.discard(number)
        self.changed = True

    def leave(self, stage: Stage, worker: int) -> None:
        """A worker is not there until :meth:`present`."""
        stage.away.add(worker)
        self.changed = True

    @property
    def suspects(self) -> Set[str]:
        """Nodes that something speaks against."""
        return {*self.strikes, *self.doubted} if self.strikes or self.doubted else set()

    @property
    def unsure(self) -> Set[str]:
        """Nodes that are out, or of which an answer is wanted that says that their store is there."""
        return {*self.out, *self.doubted}

    def heard(self, node: str, stored: bool = True) -> None:
        """A node answers; whether that says that its store is there. Members live on without for a while."""
        if node in self.doubted and not stored:
            return
        self.strikes.pop(node, None)
        self.doubted.discard(node)
        if self.out.pop(node, None) is not None:
            self.changed = True

    def take_out(self, node: str, now: float) -> None:
        """A node is out of the plan until it is heard."""
        if node not in self.out:
            self.out[node] = now
            self.changed = True
