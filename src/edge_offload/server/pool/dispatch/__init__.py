"""Serves the requests of one network by its routes: :mod:`.dispatcher`, over who is there, calls and their ways."""

from edge_offload.server.pool.dispatch.dispatcher import Dispatcher
from edge_offload.server.pool.dispatch.jobs import GRACE_S, Call, Worker

__all__ = ["GRACE_S", "Call", "Dispatcher", "Worker"]
