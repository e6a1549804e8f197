"""Present workers of a pool, their nodes, and suspicions against nodes."""

from __future__ import annotations

from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Set

from edge_offload.server.pool.dispatch.queues import PoolRequest, Route, StageQueue, Worker


class Members:
    """Workers of the routes in use, and of older ones with batches in flight.

    Attributes:
        routes: serve new requests.
        old: routes of earlier plans with batches in flight.
        able: routes with a worker in every stage.
        unplaced: requests without a route.
        changed: presence has changed since :meth:`update_presence`.
        excluded: nodes that are out of the plan, with the time of their exclusion.
        strikes: overdue calls of a node without an answer between them.
        doubted: nodes whose worker left or whose tensors did not arrive, until their next answer.
    """

    def __init__(self) -> None:
        self.routes: List[Route] = []
        self.old: List[Route] = []
        self.able: List[Route] = []
        self.unplaced: List[PoolRequest] = []
        self.changed = False
        self.excluded: Dict[str, float] = {}
        self.strikes: Dict[str, int] = {}
        self.doubted: Set[str] = set()

    def use_routes(self, routes: Sequence[Route], nodes: Mapping[Worker, str], absent: Sequence[Worker]) -> None:
        """Serve by these routes, with waiting requests first."""
        self._withdraw_requests(self.routes)
        busy = [route for route in (*self.old, *self.routes) if any(s.jobs or any(s.calls) for s in route.stages)]
        self.old, self.routes = busy, list(routes)
        for (place, stage, worker), node in nodes.items():
            routes[place].stages[stage].nodes[worker] = node
        for place, stage, worker in absent:
            routes[place].stages[stage].absent.add(worker)
        self.changed = True

    def _withdraw_requests(self, routes: Sequence[Route]) -> None:
        for route in routes:
            self.unplaced += route.requests
            route.requests.clear()

    def assign_request(self, request: PoolRequest) -> Optional[Route]:
        """Assign a request to a route, in proportion to the routes' rates; None: not yet."""
        if not self.able or self.changed:
            self.unplaced.append(request)
            return None
        weights = [route.weight for route in self.able]
        for route, weight in zip(self.able, weights):
            route.credit += weight / sum(weights)
        route = max(self.able, key=lambda candidate: candidate.credit)
        route.credit -= 1
        route.requests.append(request)
        return route

    def update_presence(self) -> List[PoolRequest]:
        """Update the present workers, assign waiting requests, and return those that no route serves."""
        self.changed = False
        for stage in self.iterate_stages():
            stage.present = [
                worker
                for worker, node in enumerate(stage.nodes)
                if worker not in stage.absent and node not in self.excluded
            ]
        self.able = [route for route in self.routes if route.weight > 0]
        self._withdraw_requests([route for route in self.routes if route.weight <= 0])
        waiting, self.unplaced = sorted(self.unplaced, key=lambda request_: request_[:2]), []
        if not self.able:
            return waiting
        for request in waiting:
            self.assign_request(request)
        return []

    def iterate_stages(self) -> Iterator[StageQueue]:
        """Iterate over all stages, the last of each route first."""
        for route in (*self.routes, *self.old):
            yield from reversed(route.stages)

    def mark_present(self, worker: Worker) -> None:
        """Mark a worker present (again)."""
        place, stage, number = worker
        self.routes[place].stages[stage].absent.discard(number)
        self.changed = True

    def mark_absent(self, stage: StageQueue, worker: int) -> None:
        """Mark a worker absent until :meth:`mark_present`."""
        stage.absent.add(worker)
        self.changed = True

    @property
    def suspects(self) -> Set[str]:
        """Nodes with strikes or doubts."""
        return {*self.strikes, *self.doubted} if self.strikes or self.doubted else set()

    @property
    def unconfirmed(self) -> Set[str]:
        """Nodes that are excluded, or whose store has to be confirmed by an answer."""
        return {*self.excluded, *self.doubted}

    def record_answer(self, node: str, stored: bool = True) -> None:
        """Record an answer of a node; ``stored``: it confirms its store, which members may briefly outlive."""
        if node in self.doubted and not stored:
            return
        self.strikes.pop(node, None)
        self.doubted.discard(node)
        if self.excluded.pop(node, None) is not None:
            self.changed = True

    def exclude_node(self, node: str, now: float) -> None:
        """Exclude a node from the plan until it answers."""
        if node not in self.excluded:
            self.excluded[node] = now
            self.changed = True
