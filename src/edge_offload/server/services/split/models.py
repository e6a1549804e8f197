"""Models that robots split with this server: traced and profiled once for each set of input shapes."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

import torch

from edge_offload.execute.fingerprint import fingerprint
from edge_offload.execute.tensors import TensorSpec
from edge_offload.ir import sequence_hash
from edge_offload.ir.build import TracedProgram
from edge_offload.server.services.replica.replicas import Replica, ReplicaPool
from edge_offload.server.services.split.trace_cache import TraceCache
from edge_offload.split.model.network import Network
from edge_offload.split.runtime.places import Place
from edge_offload.split.runtime.profile import Profile
from edge_offload.split.runtime.tracing import located_along, trace

MAX_TRACED = 8
"""Traced and profiled models that are kept."""
MAX_RECORDED_BYTES = 1 << 30
"""Of which recorded inferences may hold so many bytes of constants, besides those that robots have open."""
PROFILE_REPEATS = 3


@dataclass
class TracedModel:
    """A model traced for one set of input shapes, and profiled where ``profile`` is there.

    Attributes:
        replica: acquired from the pool for whoever got this; to be released by them. None for an inference that was
            recorded on a virtual device: its constants are in ``network``.
        network: the trace.
        shared: what both sides have before the first inference, on the server's device.
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
        cache: what outlives the process.
        place: where halves are computed.
    """

    def __init__(self, pool: ReplicaPool, cache: TraceCache, place: Place) -> None:
        self._pool = pool
        self._place = place
        self._cache = cache
        self._traced: List[TracedModel] = []
        self._lock = threading.Lock()

    def trace(
        self, name: Any, options: Any, state_hash: Any, examples: Sequence[torch.Tensor], sequence: Any = None
    ) -> TracedModel:
        """Acquire the model and trace it, or find it; may take long, so not on a thread that others wait for.

        Args:
            name: of the registry, as the robot sent it.
            options: of the model, as the robot sent them.
            state_hash: of the robot's weights.
            examples: inputs with the shapes and dtypes to trace.
            sequence: hash of the robot's own trace, if it has one: then a trace of before the server's start will do.

        Raises:
            EdgeOffloadError: the model cannot be had, or cannot be traced.
        """
        replica = self._pool.acquire(name, options, state_hash)
        try:
            with self._lock:
                found = next((traced for traced in self._known(examples) if traced.replica is replica), None)
            if found is not None:
                return found
            network, earlier = self._cached(replica, examples, sequence)
            network = network or trace(replica.name, replica.executor.module, examples)
            shared = self._place.shared(network)
            return TracedModel(replica, network, shared, earlier=earlier)
        except BaseException:
            self._pool.release(replica)
            raise

    def _cached(
        self, replica: Replica, examples: Sequence[torch.Tensor], sequence: Any
    ) -> Tuple[Optional[Network], Optional[Profile]]:
        """The network and the profile of before the server's start, if the robot has the same trace."""
        found = self._cache.find(sequence, replica.executor.module) if isinstance(sequence, str) else None
        if found is None:
            return None, None
        described = found.program.sequence
        inputs = [(described.values[number].dtype, described.values[number].shape) for number in described.inputs]
        if inputs != [(spec.dtype, spec.shape) for spec in _specs(examples)]:
            return None, None
        located = located_along(replica.name, described, None)
        return Network(replica.name, found.program, located, tuple(examples), found.readout), found.profile

    def recorded(self, program: TracedProgram, examples: Sequence[torch.Tensor]) -> TracedModel:
        """An inference that was recorded on a virtual device, analysed or found.

        Raises:
            Unsupported: nothing in it is local.
        """
        identity = sequence_hash(program.sequence)
        with self._lock:
            for traced in self._known(examples):
                if traced.replica is None and traced.profile is not None and traced.profile.sequence == identity:
                    return traced
        located = located_along("a recorded inference", program.sequence, None)
        network = Network(identity, program, located, tuple(examples))
        return TracedModel(None, network, self._place.shared(network), earlier=self._cache.profile(identity))

    def release(self, traced: TracedModel) -> None:
        """Whoever got it does not need it any more."""
        if traced.replica is not None:
            self._pool.release(traced.replica)

    def profile(self, traced: TracedModel, give_way: Callable[[], None] = lambda: None) -> None:
        """Measure it on this thread, unless this machine has, and keep it; ``give_way`` is called between timings."""
        try:
            if traced.earlier is not None and traced.earlier.machine == fingerprint(self._place.device):
                traced.profile = traced.earlier
            else:
                traced.profile = self._place.measure(traced.network, PROFILE_REPEATS, lambda _: give_way())
                module = None if traced.replica is None else traced.replica.executor.module
                self._cache.keep(traced.network.program, traced.profile, module)
        except BaseException:
            self.release(traced)
            raise
        with self._lock:
            self._traced.append(traced)
            del self._traced[:-MAX_TRACED]
            self._bound_recorded()

    def _known(self, examples: Sequence[torch.Tensor]) -> List[TracedModel]:
        """Models traced for inputs of these shapes; the lock is held."""
        specs = _specs(examples)
        return [traced for traced in self._traced if _specs(traced.network.inputs) == specs]

    def _bound_recorded(self) -> None:
        """The oldest recorded inferences make room, but not for the latest; the lock is held."""
        total = 0
        for traced in [traced for traced in reversed(self._traced) if traced.replica is None]:
            size = sum(tensor.nbytes for tensor in traced.network.program.constants.values())
            if total and total + size > MAX_RECORDED_BYTES:
                self._traced.remove(traced)
            else:
                total += size


def _specs(tensors: Sequence[torch.Tensor]) -> Tuple[TensorSpec, ...]:
    return tuple(TensorSpec.of(tensor) for tensor in tensors)
