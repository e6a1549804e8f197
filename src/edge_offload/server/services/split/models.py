"""Models that robots split with this server: traced and profiled once for each set of input shapes."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

import torch

from edge_offload.errors import Refused
from edge_offload.execute.fingerprint import fingerprint_of
from edge_offload.execute.tensors import TensorSpec
from edge_offload.ir import sequence_hash
from edge_offload.ir.build import TracedProgram
from edge_offload.models.entry import Scalar
from edge_offload.server.services.replica.replicas import Replica, ReplicaStore
from edge_offload.server.services.split.trace_cache import TraceCache
from edge_offload.split.learning.process import SplitLearning
from edge_offload.split.model.network import TracedNetwork
from edge_offload.split.runtime.places import SplitDevice
from edge_offload.split.runtime.profile import Profile
from edge_offload.split.runtime.tracing import locate_along

PROFILE_REPEATS = 3

#: Makes it from a model's name, options, the hash of its weights, and what builds it.
MakeLearning = Callable[[str, Mapping[str, Scalar], Callable[[], str], str], SplitLearning]


@dataclass
class TracedModel:
    """A model traced for one set of input shapes, and profiled where ``profile`` is there.

    Attributes:
        replica: acquired from the pool for whoever got this; to be released by them. None for an inference that was
            recorded on a virtual device: its constants are in ``network``.
        network: the trace.
        shared: what both sides have before the first inference, on the server's device.
        profile: of this machine.
        earlier: a profile that was measured before, which counts if the machine is the same.
        model: key of the model that it is of; "" of an inference that was recorded.
        from_cache: whether it was traced before the server's start, and found by that key.
    """

    replica: Optional[Replica]
    network: TracedNetwork
    shared: Mapping[int, torch.Tensor]
    profile: Optional[Profile] = None
    earlier: Optional[Profile] = None
    model: str = ""
    from_cache: bool = False


class SplitModelStore:
    """Outlives connections: a robot that comes back finds its model measured.

    Args:
        pool: builds the models.
        cache: what outlives the process.
        place: where halves are computed.
        learning: who traces and measures models, by what builds them.
    """

    def __init__(
        self, pool: ReplicaStore, cache: TraceCache, place: SplitDevice, learning: MakeLearning = SplitLearning
    ) -> None:
        self._learning = learning
        self._pool = pool
        self._place = place
        self._cache = cache
        self._traced: List[TracedModel] = []
        self._current: Optional[SplitLearning] = None
        self._closed = False
        self._lock = threading.Lock()

    def trace_model(
        self, name: Any, options: Any, state_hash: Any, examples: Sequence[torch.Tensor], sequence: Any = None
    ) -> TracedModel:
        """Acquire the model and trace it, or use a stored trace; slow, so not on a thread that others wait for.

        Args:
            name: of the registry, as the robot sent it.
            options: of the model, as the robot sent them.
            state_hash: of the robot's weights.
            examples: inputs with the shapes and dtypes to trace.
            sequence: hash of the robot's own trace, if it has one already: then that one.

        Raises:
            EdgeOffloadError: the model cannot be had, or cannot be traced.
        """
        replica = self._pool.acquire_replica(name, options, state_hash)
        try:
            with self._lock:
                match = next((traced for traced in self._matching_models(examples) if traced.replica is replica), None)
                if match is not None and match.from_cache and not _same_trace(match, sequence):
                    self._traced.remove(match)  # the code may have changed since
                    match = None
            if match is not None:
                return match
            model = _trace_key(replica, examples)
            cached_hash = self._cache.find_hash(model) if sequence is None else None
            network, earlier = self._load_cached(replica, examples, cached_hash or sequence)
            if network is not None:
                shared = self._place.share_values(network)
                return TracedModel(replica, network, shared, None, earlier, model, cached_hash is not None)
            built_from = self._pool.build_name(replica)
            learning = self._learning(replica.name, replica.options, lambda: replica.state_hash, built_from)
            with self._lock:
                if self._closed:
                    raise Refused("the server is shutting down")
                self._current = learning
            with learning.keep_process():
                network = learning.trace_model(replica.executor.module, examples)
                measured = learning.measure_profile(network, self._place, PROFILE_REPEATS)
            if measured is not None:
                self._cache.save_trace(network.program, measured, replica.executor.module, model)
            return TracedModel(replica, network, self._place.share_values(network), None, measured, model)
        except BaseException:
            self._pool.release_replica(replica)
            raise

    def _load_cached(
        self, replica: Replica, examples: Sequence[torch.Tensor], sequence: Any
    ) -> Tuple[Optional[TracedNetwork], Optional[Profile]]:
        """Load network and profile from before the server's start, if the robot has the same trace."""
        entry = self._cache.load_trace(sequence, replica.executor.module) if isinstance(sequence, str) else None
        if entry is None:
            return None, None
        program = entry.trace.program
        described = program.sequence
        inputs = [(described.values[number].dtype, described.values[number].shape) for number in described.inputs]
        if inputs != [(spec.dtype, spec.shape) for spec in _specs_of(examples)]:
            return None, None
        located = locate_along(replica.name, described, None)
        return TracedNetwork(replica.name, program, located, tuple(examples), entry.trace.readout), entry.profile

    def add_recorded(self, program: TracedProgram, examples: Sequence[torch.Tensor]) -> TracedModel:
        """An inference that was recorded on a virtual device, analysed or found.

        Raises:
            Unsupported: nothing in it is local.
        """
        identity = sequence_hash(program.sequence)
        with self._lock:
            for traced in self._matching_models(examples):
                if traced.replica is None and traced.profile is not None and traced.profile.sequence == identity:
                    return traced
        located = locate_along("a recorded inference", program.sequence, None)
        network = TracedNetwork(identity, program, located, tuple(examples))
        return TracedModel(None, network, self._place.share_values(network), earlier=self._cache.load_profile(identity))

    def close(self) -> None:
        """Stop the current learning; later requests are refused."""
        with self._lock:
            self._closed, learning = True, self._current
        if learning is not None:
            learning.close()

    def release_model(self, traced: TracedModel) -> None:
        """Release the replica of a model."""
        if traced.replica is not None:
            self._pool.release_replica(traced.replica)

    def profile_model(self, traced: TracedModel, give_way: Callable[[], None] = lambda: None) -> None:
        """Measure and cache a model on this thread, unless this machine has; ``give_way`` is called between timings."""
        try:
            if traced.earlier is not None and traced.earlier.machine == fingerprint_of(self._place.device):
                traced.profile = traced.earlier
            else:
                traced.profile = self._place.measure_profile(traced.network, PROFILE_REPEATS, lambda _: give_way())
                module = None if traced.replica is None else traced.replica.executor.module
                self._cache.save_trace(traced.network.program, traced.profile, module, traced.model or None)
        except BaseException:
            self.release_model(traced)
            raise
        with self._lock:
            self._traced.append(traced)
            del self._traced[:-8]
            self._bound_recorded()

    def _matching_models(self, examples: Sequence[torch.Tensor]) -> List[TracedModel]:
        """Return models traced for inputs of these shapes; the caller holds the lock."""
        specs = _specs_of(examples)
        return [traced for traced in self._traced if _specs_of(traced.network.inputs) == specs]

    def _bound_recorded(self) -> None:
        """Remove the oldest recorded inferences beyond the limit, but not the latest; the caller holds the lock."""
        total = 0
        for traced in [traced for traced in reversed(self._traced) if traced.replica is None]:
            size = sum(tensor.nbytes for tensor in traced.network.program.constants.values())
            if total and total + size > 1 << 30:  # of constants, besides those that robots have open
                self._traced.remove(traced)
            else:
                total += size


def _same_trace(traced: TracedModel, sequence: Any) -> bool:
    """True if a robot that names this hash, if it names one, has the same trace."""
    return sequence is None or traced.profile is None or traced.profile.sequence == sequence


def _trace_key(replica: Replica, examples: Sequence[torch.Tensor]) -> str:
    """Return 32 hexadecimal digits of all that a trace depends on: model, weights, input shapes, torch's version."""
    inputs = [spec.to_dict() for spec in _specs_of(examples)]
    facts = [replica.key, replica.state_hash, inputs, torch.__version__]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def _specs_of(tensors: Sequence[torch.Tensor]) -> Tuple[TensorSpec, ...]:
    return tuple(TensorSpec.of(tensor) for tensor in tensors)
