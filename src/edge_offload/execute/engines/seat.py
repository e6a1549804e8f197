"""An engine in the place of a network: built beside torch, compared with it on real inputs, retired when it fails.

No call ever waits for a build: torch answers until the engine has been built, loaded and found equal within the
tolerance of its class, and again from the moment at which it raises or does not answer.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import logging
import threading
import time
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Callable, DefaultDict, Dict, List, Optional, Sequence, Tuple

import torch
from torch import nn

from edge_offload import background
from edge_offload.errors import EdgeOffloadError, Unsupported
from edge_offload.execute.engines.base import (
    EAGER,
    TOLERANCE,
    Backend,
    Built,
    Direct,
    engine_facts,
    engine_label,
    find_mismatch,
    machine_facts,
)
from edge_offload.execute.engines.cache import EngineCache, EngineEntry, key_of
from edge_offload.execute.engines.export import export_onnx, network_identity
from edge_offload.execute.engines.owners import EngineOwner, Tensors, load_engine
from edge_offload.execute.tensors import Specs, specs_of

#: Real inputs on which engine and torch both compute before the engine takes over.
TRIALS = 2
#: Shapes of inputs of one network that get an engine each.
MOST_SHAPES = 4
#: An engine that takes 20 times as long as torch, and at least so many seconds, hangs.
MIN_HANG_S = 2.0

_log = logging.getLogger(__name__)
#: One build of a backend at a time: frames are answered meanwhile, on the same processor.
_one_build: DefaultDict[str, threading.Lock] = collections.defaultdict(threading.Lock)


class Seat:
    """Runs a network by an engine where there is one for the inputs' shapes, else by torch. Thread-safe.

    Args:
        network: to be run; its parameters stay as they are.
        run_eagerly: runs it by torch and gives its outputs as a tuple.
        backend: of the engines.
        cache: where built engines are kept.
        named: somebody asked for this engine by its name, and is told where torch computes in its place.
        substitute: computes where no engine does, with torch's bits; by default torch.
    """

    def __init__(
        self,
        network: nn.Module,
        run_eagerly: Callable[[Sequence[torch.Tensor]], Tensors],
        backend: Backend,
        cache: Optional[EngineCache] = None,
        named: bool = True,
        substitute: Optional[Seat] = None,
    ) -> None:
        self._network = network
        self._substitute = substitute
        self._run_eagerly = run_eagerly
        self.backend = backend
        self.named = named
        self._cache = cache or EngineCache()
        self._places: Dict[Specs, _EngineForShape] = {}
        self._lock = threading.Lock()

    def run(self, inputs: Sequence[torch.Tensor]) -> Tuple[Tensors, str]:
        """The network's outputs, and what computed them: :data:`EAGER`, or an engine with its facts."""
        place = self._engine_for(specs_of(inputs))
        return self.run_exactly(inputs) if place is None else place.run(inputs)

    def run_exactly(self, inputs: Sequence[torch.Tensor]) -> Tuple[Tensors, str]:
        """As :meth:`run`, with torch's bits."""
        return (self._run_eagerly(inputs), EAGER) if self._substitute is None else self._substitute.run(inputs)

    def state(self) -> Tuple[str, bool]:
        """State of the engines in words, and True if somebody should look at it."""
        with self._lock:
            places = list(self._places.values())
        if not places:
            return f"{EAGER}: {engine_facts(self.backend)} is built when the first frame comes", False
        states = [place.state() for place in places]
        return "; ".join(dict.fromkeys(text for text, _ in states)), any(amber for _, amber in states)

    def latest_engine(self) -> str:
        """Engine that computed last: :data:`EAGER`, or an engine with its facts."""
        with self._lock:
            places = list(self._places.values())
        label = max(places, key=lambda place: place.used_s).label if places else EAGER
        return self._substitute.latest_engine() if label == EAGER and self._substitute is not None else label

    def wait_until_built(self, timeout_s: float) -> bool:
        """Waits up to ``timeout_s`` (seconds); returns True when all builds are done or given up."""
        ends = time.monotonic() + timeout_s
        places = [*self._places.values(), *(self._substitute._places.values() if self._substitute else ())]
        return all(place.built.wait(max(0.0, ends - time.monotonic())) for place in places)

    def close(self) -> None:
        """Give the engines back; torch computes from now on."""
        with self._lock:
            places = list(self._places.values())
        for place in places:
            place.retire("it was closed", amber=False)
        if self._substitute is not None:
            self._substitute.close()

    def _engine_for(self, specs: Specs) -> Optional[_EngineForShape]:
        with self._lock:
            engine = self._places.get(specs)
            if engine is None and len(self._places) < MOST_SHAPES:
                engine = self._places[specs] = _EngineForShape(self, specs)
            return engine

    def prepare_engine(
        self, specs: Specs, inputs: Sequence[torch.Tensor], want: Tensors, threads: int
    ) -> Tuple[EngineOwner, str]:
        """Loads an engine, on a thread of its own, that gave ``want`` for ``inputs``; returns it with its label.

        It has given what torch gives on noise as well; one that was kept did so when it was built.

        Raises:
            EdgeOffloadError: there can be none; the message says why.
        """
        backend = self.backend
        owner: EngineOwner
        if isinstance(backend, Direct):
            attach = functools.partial(backend.capture, self._run_eagerly, inputs)
            owner = load_engine(attach, "it cannot be captured", backend.own_thread)
            label, checked = engine_label(backend), False
        else:
            assert isinstance(backend, Built)
            owner, entry = self._load_or_build(backend, specs, inputs, threads)
            # kernels that were picked by timing: the same bits only where the very same plan runs
            plan = hashlib.sha256(entry.built).hexdigest() if backend.timed else ""
            which = f"plan {plan[:12]}" if backend.timed else f"onnx {entry.onnx[:12]}"
            label, checked = f"{engine_facts(backend)} {which}", entry.checked
        try:
            wrong = ("" if checked else self._wrong_on_noise(owner, inputs)) or self._find_error(owner, inputs, want)
        except BaseException:
            owner.close()
            raise
        if wrong:
            owner.close()
            raise Unsupported(wrong)
        return owner, label

    def _load_or_build(
        self, backend: Built, specs: Specs, inputs: Sequence[torch.Tensor], threads: int
    ) -> Tuple[EngineOwner, EngineEntry]:
        """A loaded engine and the cache's entry of it, built where there is none."""
        network_key = network_identity(self._network, specs)
        # the format counts up when a backend builds something else than before
        made: Dict[str, Any] = {
            "format": 2, "engine": str(engine_facts(backend)), "threads": threads, **machine_facts(),
            **backend.depends_on(),
        }  # fmt: skip
        document: Optional[bytes] = None
        if network_key is None:
            # this network can be told from others by what it exports to, and by nothing less
            document = export_onnx(self._network, inputs, backend.export_dtype())
            network_key = hashlib.sha256(document).hexdigest()
        key = key_of({**made, "network": network_key, "inputs": [spec.to_dict() for spec in specs]})
        new: List[EngineOwner] = []

        def build_entry() -> EngineEntry:
            onnx = document if document is not None else export_onnx(self._network, inputs, backend.export_dtype())
            built = backend.build(onnx, threads)
            new.append(load_engine(functools.partial(backend.load, built, threads), "it cannot be loaded"))
            # one that is wrong is kept, too, but not trusted: building it again would give the same
            return EngineEntry(built, hashlib.sha256(onnx).hexdigest(), not self._wrong_on_noise(new[0], inputs))

        try:
            entry = self._cache.get_or_build(key, build_entry)
        except BaseException:
            for owner in new:
                owner.close()
            raise
        if new:
            return new[0], entry
        try:
            return load_engine(functools.partial(backend.load, entry.built, threads), "it cannot be loaded"), entry
        except Unsupported:
            self._cache.delete_entry(key)
            raise

    def _wrong_on_noise(self, owner: EngineOwner, inputs: Sequence[torch.Tensor]) -> str:
        noise = _noise_like(inputs)
        with torch.inference_mode():
            want = self._run_eagerly(noise)
        return self._find_error(owner, noise, want)

    def _find_error(self, owner: EngineOwner, inputs: Sequence[torch.Tensor], want: Tensors) -> str:
        """Describes how an engine misses ``want``; empty: it does not."""
        return find_mismatch(want, owner.run(inputs, 600.0), TOLERANCE[self.backend.accuracy])


class _EngineForShape:
    """The engine for inputs of one shape, from its build to its end."""

    def __init__(self, seat: Seat, specs: Specs) -> None:
        self._seat = seat
        self._specs = specs
        self._name = str(engine_facts(seat.backend))
        self._tolerance = TOLERANCE[seat.backend.accuracy]
        self.label = EAGER
        self.built = threading.Event()
        self.used_s = 0.0
        self._started_s = 0.0
        self._eager_s = 0.0
        self._trials = TRIALS
        self._owner: Optional[EngineOwner] = None
        self._loaded = ""
        self._reason = ""
        self._amber = False
        self._lock = threading.Lock()

    def state(self) -> Tuple[str, bool]:
        if self._reason:
            return f"eager: {self._name}: {self._reason}", self._amber
        if self._owner is None:
            seconds = time.monotonic() - self._started_s
            return f"eager: {self._name} is being built, for {seconds:.0f} s now", self._seat.named
        if self._trials:
            return f"eager: {self._name} is built, and compared with torch on the next frames", False
        return self._loaded, False

    def run(self, inputs: Sequence[torch.Tensor]) -> Tuple[Tensors, str]:
        self.used_s = time.monotonic()
        owner = self._owner
        if owner is None or (self._trials and _all_constant(inputs)):
            return self._run_exactly(inputs)
        try:
            if self._trials:
                want, label = self._run_exactly(inputs)
                self._compare_outputs(want, owner.run(inputs, self._timeout_s()))
                return want, label
            return owner.run(inputs, self._timeout_s()), self._loaded
        except FutureTimeout:
            self.retire(f"it did not answer within {self._timeout_s():.1f} s")
        except Exception as error:
            self.retire(f"it failed: {type(error).__name__}: {str(error)[:300]}")
        return self._run_exactly(inputs)

    def retire(self, reason: str, amber: bool = True) -> None:
        """Torch computes from now on, because of ``reason``."""
        with self._lock:
            owner, self._owner = self._owner, None
            if self._reason:
                return
            self._reason, self._amber, self.label = reason, amber and self._seat.named, EAGER
        if owner is not None:
            owner.close()
        if amber:
            level = logging.WARNING if self._seat.named else logging.INFO
            _log.log(level, "engine %s: %s; torch computes", self._name, reason)
        self.built.set()

    def _run_exactly(self, inputs: Sequence[torch.Tensor]) -> Tuple[Tensors, str]:
        started_s, first = time.monotonic(), not self._started_s
        if first:
            self._started_s = started_s
            before = _state_versions(self._seat._network)
        outputs, label = self._seat.run_exactly(inputs)
        self._eager_s = time.monotonic() - started_s
        if first:
            if _state_versions(self._seat._network) != before:
                self.retire("the network changes its own state while it computes")
                return outputs, label
            # the caller may write to its tensors while they are being exported
            given, want = [one.clone() for one in inputs], tuple(one.clone() for one in outputs)
            background.start("edge-offload-engine-build", self._build_engine, given, want, torch.get_num_threads())
        return outputs, label

    def _build_engine(self, inputs: Sequence[torch.Tensor], want: Tensors, threads: int) -> None:
        try:
            with _one_build[self._seat.backend.name]:
                background.check()
                torch.set_num_threads(threads)
                # an engine that is wrong on the first frame or on noise needs no further trial
                owner, label = self._seat.prepare_engine(self._specs, inputs, want, threads)
        except Exception as error:
            self.retire(error.cause if isinstance(error, EdgeOffloadError) else f"{type(error).__name__}: {error}")
            return
        with self._lock:
            if self._reason:
                owner.close()
            else:
                self._owner, self._loaded = owner, label
        self.built.set()

    def _compare_outputs(self, want: Tensors, outputs: Tensors) -> None:
        wrong = find_mismatch(want, outputs, self._tolerance)
        if wrong:
            self.retire(wrong)
            return
        with self._lock:
            self._trials = max(0, self._trials - 1)
            if not self._trials and not self._reason:
                self.label = self._loaded

    def _timeout_s(self) -> float:
        return max(MIN_HANG_S, 20.0 * self._eager_s)


def _state_versions(network: nn.Module) -> List[int]:
    return [tensor._version for tensor in (*network.parameters(), *network.buffers())]


def _all_constant(inputs: Sequence[torch.Tensor]) -> bool:
    """True if each input is constant, as the zeros are on which a model is warmed up."""
    return all(one.numel() == 0 or bool((one == one.flatten()[0]).all()) for one in inputs)


def _noise_like(inputs: Sequence[torch.Tensor]) -> List[torch.Tensor]:
    """Random inputs of these shapes; those that are no images nor floating-point numbers as they are."""
    draw = torch.Generator().manual_seed(0)
    made = []
    for one in inputs:
        if one.dtype is torch.uint8:
            made.append(torch.randint(0, 256, one.shape, dtype=torch.uint8, generator=draw).to(one.device))
        elif one.dtype is torch.float32:
            made.append(torch.rand(one.shape, generator=draw).to(one.device))
        else:
            made.append(one)
    return made
