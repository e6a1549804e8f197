"""Batches of a pool in flight: a queue before each stage, in the order of deadlines; faults of members."""

from edge_offload.server.pool.dispatch.dispatcher import Dispatcher
from edge_offload.server.pool.dispatch.queues import OVERDUE_GRACE_S, Route, StageCall, Worker, routes_of

__all__ = ["OVERDUE_GRACE_S", "Dispatcher", "Route", "StageCall", "Worker", "routes_of"]
