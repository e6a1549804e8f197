"""Which workers of a pool are there, on which nodes, and what speaks against these."""

from __future__ import annotations

import math
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from edge_offload.server.pool.dispatch.jobs import Call, Track, Worker
from edge_offload.server.pool.reserve import Route, Way

#: Identity of a route, stage, number.
Key = Tuple[int, int, int]


class Members:
    """Workers of the routes that are served by, and of those that are still under way.

    Attributes:
        routes: that requests are served by.
        out: nodes that are out of the plan, since when.
        strikes: overdue calls of a node without an answer between them.
        doubted: nodes of which a worker has gone, or whose tensors were waited for in vain, and that have not answered
            since.
    """

    def __init__(self) -> None:
        self.routes: List[Route] = []
        self.out: Dict[str, float] = {}
        self.strikes: Dict[str, int] = {}
        self.doubted: Set[str] = set()
        self._nodes: Dict[Key, str] = {}
        self._absent: Set[Key] = set()

    def use(
        self, routes: Sequence[Route], nodes: Mapping[Worker, str], absent: Sequence[Worker], under_way: Set[int]
    ) -> None:
        """Serve by these routes; of others, ``under_way`` (identities) are still of interest."""
        self.routes = list(routes)
        before = {key: node for key, node in self._nodes.items() if key[0] in under_way}
        self._nodes = {**before, **{self.key(worker): node for worker, node in nodes.items()}}
        self._absent = {self.key(worker) for worker in absent}
        for key, node in self._nodes.items():
            if key in self._absent or node in self.out:
                self._free(key, math.inf)

    def key(self, worker: Worker) -> Key:
        """What a worker is known by while its route is under way."""
        route, stage, number = worker
        return id(self.routes[route]), stage, number

    def present(self, worker: Worker, now: float) -> None:
        """A worker is there (again)."""
        key = self.key(worker)
        self._absent.discard(key)
        if self._nodes.get(key) not in self.out:
            self._free(key, now)

    def leave(self, key: Key) -> None:
        """A worker is not there until :meth:`present`."""
        self._absent.add(key)
        self._free(key, math.inf)

    def node(self, call: Call) -> str:
        """Where a call is made; empty: that is not known."""
        return self._nodes.get((id(call.track.route), call.stage, call.worker), "")

    def nodes_of(self, call: Call) -> List[str]:
        """Of the workers of its stage."""
        key = id(call.track.route), call.stage
        return [self._nodes.get((*key, worker), "") for worker in range(len(call.table.free))]

    @property
    def suspects(self) -> Set[str]:
        """Nodes that something speaks against."""
        return {*self.strikes, *self.doubted}

    @property
    def unsure(self) -> Set[str]:
        """Nodes that are out, or of which an answer is wanted that says that their store is there."""
        return {*self.out, *self.doubted}

    def doubtful(self, track: Track) -> bool:
        """Whether what it goes on from is on a node that may be gone."""
        return bool(track.at) and track.at in {*self.suspects, *self.out}

    def heard(self, node: str, now: float, stored: bool = True) -> None:
        """A node answers; whether that says that its store is there. Members live on without for a while."""
        if node in self.doubted and not stored:
            return
        self.strikes.pop(node, None)
        self.doubted.discard(node)
        if self.out.pop(node, None) is not None:
            for key, of in self._nodes.items():
                if of == node and key not in self._absent:
                    self._free(key, now)

    def take_out(self, node: str, now: float) -> Set[Key]:
        """A node is out of the plan until it is heard; its workers."""
        self.out[node] = now
        keys = {key for key, of in self._nodes.items() if of == node}
        for key in keys:
            self._free(key, math.inf)
        return keys

    def ways(self, batch: int, now: float, avoid: Set[str], other: Optional[Route] = None) -> List[Tuple[Route, Way]]:
        """The earliest way of a batch through each route that takes it, but the other; by none of these nodes."""
        routes = [route for route in self.routes if route.batch >= batch and route is not other]
        known = {id(route): route for route in routes}
        left_out = []
        for (route, stage, worker), node in self._nodes.items():
            if node in avoid and route in known:
                free = known[route].stages[stage].free
                left_out.append((free, worker, float(free[worker])))
                free[worker] = math.inf
        ways = [(route, route.probe(now, batch)) for route in routes]
        for free, worker, when in left_out:
            free[worker] = when
        return ways

    def _free(self, key: Tuple[int, int, int], when: float) -> None:
        for route in self.routes:
            if id(route) == key[0]:
                route.stages[key[1]].occupy(key[2], when)
