"""Models that robots split with this server: traced and profiled once for each set of input shapes, and kept.

What was learned is kept on disk, too: a robot whose server was started again is not to wait for a trace.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from edge_offload.execute.fingerprint import fingerprint
from edge_offload.execute.tensors import TensorSpec
from edge_offload.ir import sequence_hash
from edge_offload.ir.build import Program
from edge_offload.server.services.replica.replicas import Replica, ReplicaPool
from edge_offload.server.services.split.kept import KeptSplits
from edge_offload.split.model.network import Network
from edge_offload.split.model.reference import shared_values
from edge_offload.split.runtime.profile import Profile, measure
from edge_offload.split.runtime.tracing import located_along, trace

MAX_LEARNT = 8
"""Traced and profiled models that are kept."""
MAX_RECORDED_BYTES = 1 << 30
"""Of which recorded inferences may hold so many bytes of constants, besides those that robots have open."""
PROFILE_REPEATS = 3

_Specs = Tuple[TensorSpec, ...]


@dataclass
class Learnt:
    """A model traced for one set of input shapes, and profiled where ``profile`` is there.

    Attributes:
        replica: acquired from the pool for whoever got this; to be released by them. None for an inference that was
            recorded on a virtual device: its constants are in ``network``.
        network: the trace.
        shared: what both sides have before the first inference.
        profile: of this machine.
        earlier: a profile of before the server's start, which counts if the machine is the same.
    """

    replica: Optional[Replica]
    network: Network
    shared: Mapping[int, torch.Tensor]
    profile: Optional[Profile] = None
    earlier: Optional[Profile] = None


class SplitModels:
    """Outlives connections: a robot that comes back finds its model measured.

    Args:
        pool: builds the models.
        kept: what outlives the process.
    """

    def __init__(self, pool: ReplicaPool, kept: KeptSplits) -> None:
        self._pool = pool
        self._kept = kept
        self._learnt: Dict[_Specs, List[Learnt]] = {}
        self._lock = threading.Lock()

    def trace(
        self, name: Any, options: Any, state_hash: Any, examples: Sequence[torch.Tensor], sequence: Any = None
    ) -> Learnt:
        """Acquire the model and trace it, or find it; may take long, so not on a thread that others wait for.

        Args:
            sequence: hash of the robot's own trace, if it has one: then a trace of before the server's start will do.

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
            network, earlier = self._again(replica, examples, sequence)
            network = network or trace(replica.name, replica.executor.module, examples)
            shared = shared_values(network.located, network.program.constants)
            return Learnt(replica, network, shared, earlier=earlier)
        except BaseException:
            self._pool.release(replica)
            raise

    def _again(
        self, replica: Replica, examples: Sequence[torch.Tensor], sequence: Any
    ) -> Tuple[Optional[Network], Optional[Profile]]:
        """The network and the profile of before the server's start, if the robot has the same trace."""
        found = self._kept.find(sequence, replica.executor.module) if isinstance(sequence, str) else None
        if found is None:
            return None, None
        described = found.program.sequence
        inputs = [(described.values[number].dtype, described.values[number].shape) for number in described.inputs]
        if inputs != [(spec.dtype, spec.shape) for spec in _specs(examples)]:
            return None, None
        located = located_along(replica.name, described, None)
        return Network(replica.name, found.program, located, tuple(examples), found.readout), found.profile

    def recorded(self, program: Program, examples: Sequence[torch.Tensor]) -> Learnt:
        """An inference that was recorded on a virtual device, analysed or found.

        Raises:
            Unsupported: nothing in it is local.
        """
        identity = sequence_hash(program.sequence)
        with self._lock:
            for learnt in self._learnt.get(_specs(examples), []):
                if learnt.replica is None and learnt.profile is not None and learnt.profile.sequence == identity:
                    return learnt
        located = located_along("a recorded inference", program.sequence, None)
        network = Network(identity, program, located, tuple(examples))
        shared = shared_values(located, program.constants)
        return Learnt(None, network, shared, earlier=self._kept.profile(identity))

    def release(self, learnt: Learnt) -> None:
        """Whoever got it does not need it any more."""
        if learnt.replica is not None:
            self._pool.release(learnt.replica)

    def profile(self, learnt: Learnt) -> None:
        """Measure it on this thread, unless this machine has, and keep it."""
        try:
            if learnt.earlier is not None and learnt.earlier.machine == fingerprint("cpu"):
                learnt.profile = learnt.earlier
            else:
                learnt.profile = measure(learnt.network, PROFILE_REPEATS)
                module = None if learnt.replica is None else learnt.replica.executor.module
                self._kept.keep(learnt.network.program, learnt.profile, module)
        except BaseException:
            self.release(learnt)
            raise
        with self._lock:
            self._learnt.setdefault(_specs(learnt.network.inputs), []).append(learnt)
            while sum(map(len, self._learnt.values())) > MAX_LEARNT:
                oldest = next(iter(self._learnt))
                self._learnt[oldest].pop(0)
                if not self._learnt[oldest]:
                    del self._learnt[oldest]
            self._bound_recorded()

    def _bound_recorded(self) -> None:
        """The oldest recorded inferences make room; the lock is held."""
        found = [(specs, learnt) for specs, known in self._learnt.items() for learnt in known if learnt.replica is None]
        sizes = [sum(tensor.nbytes for tensor in learnt.network.program.constants.values()) for _, learnt in found]
        total = sum(sizes)
        for (specs, learnt), size in zip(found[:-1], sizes):
            if total > MAX_RECORDED_BYTES:
                self._learnt[specs] = [other for other in self._learnt[specs] if other is not learnt]
                total -= size


def _specs(tensors: Sequence[torch.Tensor]) -> _Specs:
    return tuple(TensorSpec.of(tensor) for tensor in tensors)
