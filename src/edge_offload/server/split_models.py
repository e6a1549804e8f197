"""Models that robots split with this server: traced and profiled once for each set of input shapes, and kept."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from edge_offload.execute.tensors import TensorSpec
from edge_offload.server.replicas import Replica, ReplicaPool
from edge_offload.split.networks import Network
from edge_offload.split.profile import Profile, measure
from edge_offload.split.reference import shared_values
from edge_offload.split.runtime.tracing import trace

MAX_LEARNT = 8
"""Traced and profiled models that are kept."""
PROFILE_REPEATS = 3

_Specs = Tuple[TensorSpec, ...]


@dataclass
class Learnt:
    """A model traced for one set of input shapes, and profiled where ``profile`` is there.

    Attributes:
        replica: acquired from the pool for whoever got this; to be released by them.
        network: the trace.
        shared: what both sides have before the first inference.
        profile: of this machine.
    """

    replica: Replica
    network: Network
    shared: Mapping[int, torch.Tensor]
    profile: Optional[Profile] = None


class SplitModels:
    """Outlives connections: a robot that comes back finds its model measured.

    Args:
        pool: builds the models.
    """

    def __init__(self, pool: ReplicaPool) -> None:
        self._pool = pool
        self._learnt: Dict[_Specs, List[Learnt]] = {}
        self._lock = threading.Lock()

    def trace(self, name: Any, options: Any, state_hash: Any, examples: Sequence[torch.Tensor]) -> Learnt:
        """Acquire the model and trace it, or find it; may take long, so not on a thread that others wait for.

        Raises:
            EdgeOffloadError: the model cannot be had, or cannot be traced.
        """
        replica = self._pool.acquire(name, options, state_hash)
        try:
            with self._lock:
                known = self._learnt.get(_specs(examples), [])
                found = next((learnt for learnt in known if learnt.replica is replica), None)
            if found is not None:
                return found
            network = trace(replica.name, replica.executor.module, examples)
            return Learnt(replica, network, shared_values(network.located, network.program.constants))
        except BaseException:
            self._pool.release(replica)
            raise

    def profile(self, learnt: Learnt) -> None:
        """Measure it on this thread, and keep it."""
        try:
            learnt.profile = measure(learnt.network, PROFILE_REPEATS)
        except BaseException:
            self._pool.release(learnt.replica)
            raise
        with self._lock:
            self._learnt.setdefault(_specs(learnt.network.inputs), []).append(learnt)
            while sum(map(len, self._learnt.values())) > MAX_LEARNT:
                oldest = next(iter(self._learnt))
                self._learnt[oldest].pop(0)
                if not self._learnt[oldest]:
                    del self._learnt[oldest]


def _specs(tensors: Sequence[torch.Tensor]) -> _Specs:
    return tuple(TensorSpec.of(tensor) for tensor in tensors)
