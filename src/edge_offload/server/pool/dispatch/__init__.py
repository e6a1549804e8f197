"""Batches of a pool under way: a queue before each stage, in the order of deadlines; faults of members."""

from edge_offload.server.pool.dispatch.dispatcher import Dispatcher
from edge_offload.server.pool.dispatch.queues import GRACE_S, Call, Route, Worker, routes_of

__all__ = ["GRACE_S", "Call", "Dispatcher", "Route", "Worker", "routes_of"]
