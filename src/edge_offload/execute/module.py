"""Run a module on a device so that the same fingerprint gives the same bits, on robot and server alike."""

from __future__ import annotations

import copy
import functools
import logging
import math
import time
from dataclasses import dataclass, replace
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    List,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    Union,
    runtime_checkable,
)

import torch
from torch import nn

from edge_offload.errors import DeviceLost, EdgeOffloadError, OutOfMemory, Unsupported
from edge_offload.execute.devices import fix_kernel_choice, gpu_failures
from edge_offload.execute.engines.base import (
    AUTO,
    CPU,
    CUDA,
    EAGER,
    ENGINE,
    EXACT,
    FASTEST_EXACT,
    Built,
    Direct,
    engine_facts,
    fingerprint_entry,
)
from edge_offload.execute.fingerprint import fingerprint_of
from edge_offload.memory import flat_bytes

if TYPE_CHECKING:
    from edge_offload.execute.engines.seat import Seat

#: Bytes. torch allocates at this alignment; vector kernels may take another path (other bits) for other addresses.
ALIGNMENT = 64

#: dtypes that NumPy has, too.
_NUMPY = frozenset(
    (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
     torch.float64)
)  # fmt: skip

#: Seconds for which a GPU whose memory ran out is not asked again; they double from time to time.
PAUSE_S, MOST_PAUSE_S = 2.0, 60.0

#: What a module takes: a tensor, or a tuple or list of tensors, one for each parameter of its forward().
Inputs = Union[torch.Tensor, Sequence[torch.Tensor]]

_log = logging.getLogger(__name__)


@runtime_checkable
class Divided(Protocol):
    """A module that says which part of it is dense."""

    def dense_part(self) -> Tuple[nn.Module, Callable[..., object]]:
        """A network with static shapes, and what makes the module's outputs of its outputs."""


@runtime_checkable
class ByEngine(Protocol):
    """A module that torch cannot compute, nor trace: an engine always does.

    Attributes:
        path: of the file that it was read from.
    """

    path: str

    def backend(self, device: str) -> Built:
        """Backend that computes it for inputs on ``device``, ``cpu`` or ``cuda``."""

    def use(self, backend: Optional[Built]) -> None:
        """Have it computed by ``backend`` on its device; None: by the first engine that is installed."""


@dataclass(frozen=True)
class Execution:
    """Outputs of one inference, contiguous and on the CPU.

    Attributes:
        outputs: in the order in which the module returns them.
        compute_s: how long the computation took (seconds, monotonic).
        engine: what computed the dense part: ``eager``, or an engine with its version, precision and network.
        note: why the device that was asked for did not compute it; empty: it did.
    """

    outputs: Tuple[torch.Tensor, ...]
    compute_s: float
    engine: str = EAGER
    note: str = ""


class ModuleExecutor:
    """Owns a module on a device and runs it in inference mode.

    Inputs are brought to one canonical form first (contiguous, aligned): kernels are chosen by strides and address
    too, so that a channels-last tensor here and its copy from the wire there would not give equal bits.

    Args:
        module: what to run; it is put in eval mode. It stays on the CPU; a GPU has a copy.
        device: ``cpu``, ``cuda`` or ``cuda:n``.
        spare: whether the CPU computes what the GPU has failed to; else that is an error.
        engine: what computes the module's dense part (:mod:`edge_offload.execute.engines`), or the whole module where
            it does not say which part that is; where that cannot be (it is not installed, say), torch does, and
            :meth:`engine_state` says why.

    Raises:
        BadInput: no such engine.
    """

    #: Of a batch of 1, 2, … frames, of a device that states them (seconds); empty: they have to be measured.
    latencies_s: Tuple[float, ...] = ()

    def __init__(
        self,
        module: nn.Module,
        device: Union[str, torch.device] = "cpu",
        engine: str = EAGER,
        spare: bool = False,
    ) -> None:
        self.device = torch.device(device)
        self.where = str(self.device)
        self.module = module.eval().to("cpu")
        #: What computes: the module, or the copy of it on a GPU.
        self.placed = self.module
        self._fallback = CpuFallback(str(self.device)) if spare and self.device.type != "cpu" else None
        self._seat: Optional[Seat] = None
        self._unseated = ""
        self._read_out: Callable[..., object] = lambda *outputs: outputs
        placed = self.device.type == "cpu" or self._place_on_gpu()
        if engine != EAGER and placed:
            self._take_engine(engine)

    def _place_on_gpu(self) -> bool:
        """Put a copy of the module on the GPU, if it has room for it."""
        fix_kernel_choice(self.device)
        try:
            with gpu_failures():
                self.placed = copy.deepcopy(self.module).to(self.device)
        except (OutOfMemory, DeviceLost) as error:
            if self._fallback is None:
                raise
            self._fallback.note_failure(error, for_good=True)
            return False
        return True

    def run_batch(self, frames: Sequence[Sequence[torch.Tensor]]) -> List[Execution]:
        """Compute frames one after another."""
        return [self.run(inputs) for inputs in frames]

    def run(self, inputs: Sequence[torch.Tensor]) -> Execution:
        """One inference.

        Returns:
            The outputs in the order in which the module returns them.

        Raises:
            Unsupported: the module returned something that is neither a tensor nor a sequence of tensors.
            OutOfMemory, DeviceLost: the GPU failed, and nothing computes in its place.
            Exception: whatever the module itself raises.
        """
        if self.device.type == "cpu":
            return self._run_on(inputs, self.module, self.device)
        why = "" if self._fallback is None else self._fallback.stands_in(time.monotonic())
        if not why:
            try:
                with gpu_failures():
                    return self._run_on(inputs, self.placed, self.device)
            except (OutOfMemory, DeviceLost) as error:
                if self._fallback is None:
                    raise
                why = self._fallback.note_failure(error, for_good=isinstance(error, DeviceLost))
        return replace(self._run_on(inputs, self.module, torch.device("cpu")), note=why)

    def _run_on(self, inputs: Sequence[torch.Tensor], module: nn.Module, device: torch.device) -> Execution:
        with torch.inference_mode():
            canonical = [canonical_input(tensor) for tensor in inputs]
            started = time.monotonic()
            moved = [tensor.to(device) for tensor in canonical]
            if self._seat is None or module is not self.placed:
                outputs, engine = module(*moved), self._engine_without_seat(module, device)
            else:
                dense, engine = self._seat.run(moved)
                outputs = self._read_out(*dense)
            results = fetch_outputs(outputs)
            elapsed = time.monotonic() - started
        return Execution(as_ordinary(results), elapsed, engine)

    def fingerprint(self) -> Dict[str, Any]:
        """Facts that decide the bits of what it computes."""
        return {**fingerprint_of(self.device), **self.engine_facts()}

    @property
    def engine(self) -> str:
        """Engine that computed last, as in :attr:`Execution.engine`."""
        return self._engine_without_seat(self.placed, self.device) if self._seat is None else self._seat.latest_engine()

    def _engine_without_seat(self, module: nn.Module, device: torch.device) -> str:
        return _named(module.backend(device.type)) if isinstance(module, ByEngine) else EAGER

    def engine_facts(self) -> Dict[str, str]:
        """Facts of the engine for a fingerprint; empty if results have torch's bits."""
        if isinstance(self.placed, ByEngine):
            return {ENGINE: fingerprint_entry(self.placed.backend(self.device.type))}
        stated_engine = fingerprint_entry(None if self._seat is None else self._seat.backend)
        return {ENGINE: stated_engine} if stated_engine else {}

    def engine_state(self) -> Tuple[str, bool]:
        """State of the engine or of the GPU in words, and True if somebody should look at it."""
        why = "" if self._fallback is None else self._fallback.stands_in(time.monotonic())
        if why:
            return why, True
        if isinstance(self.placed, ByEngine) and not self._unseated:
            backend = self.placed.backend(self.device.type)
            elsewhere = backend.device != self.device.type
            note = f"; no engine computes it on {self.device} here: pip install onnxruntime-gpu" if elsewhere else ""
            return f"{_named(backend)}{note}", elsewhere
        if self._seat is None or self._unseated:
            return self._unseated or EAGER, bool(self._unseated)
        return self._seat.state()

    @property
    def graphs(self) -> Optional[Direct]:
        """Backend that captures torch's kernels; None: another engine, or torch."""
        backend = None if self._seat is None else self._seat.backend
        return backend if isinstance(backend, Direct) and backend.accuracy == EXACT else None

    def engine_ready(self, timeout_s: float) -> bool:
        """Waits up to ``timeout_s`` (seconds) for builds of engines; returns True when all are built or given up."""
        return self._seat is None or self._seat.wait_until_built(timeout_s)

    def close(self) -> None:
        """Give engines back; torch computes from now on."""
        if self._seat is not None:
            self._seat.close()

    def _take_engine(self, name: str) -> None:
        from edge_offload.execute.engines import table
        from edge_offload.execute.engines.seat import Seat

        plain = self._engine_without_seat(self.placed, self.device)
        try:
            backend = table.pick_backend(name, self.device.type, self.module)
        except Unsupported as error:  # its package may have been removed since the last start
            self._unseated = f"{plain}: {error}"
            _log.warning("%s; %s computes", error, "torch" if plain == EAGER else plain)
            if plain != EAGER:
                return
            name, backend = FASTEST_EXACT, table.pick_backend(FASTEST_EXACT, self.device.type)
        if backend is None:
            none = name == AUTO and not table.packaged_engines()
            self._unseated = f"{EAGER}: no engine is installed; {table.INSTALL}" if none else self._unseated
        elif self.device.type == CUDA and backend.device == CPU:
            self._unseated = f"{plain}: engine {backend.name} computes on the CPU, and this device is {self.device}"
        elif self.device.index and name == FASTEST_EXACT:
            _log.info("engine %s computes on the first GPU alone: torch computes on %s", backend.name, self.device)
        elif self.device.index and backend.device == CUDA:
            self._unseated = f"{plain}: engine {backend.name} computes on the first GPU, and this is {self.device}"
        elif self.device.type == CPU and isinstance(backend, Direct) and backend.device == CUDA:
            self._unseated = f"{plain}: engine {backend.name} is for device cuda, and this one is {self.device}"
        elif isinstance(self.placed, ByEngine):
            # whoever gave the module may have it computed by another engine
            self.placed = private = copy.deepcopy(self.placed)
            self.module = private if self.device.type == CPU else self.module
            private.use(backend if isinstance(backend, Built) else None)
        else:
            network: nn.Module = self.placed
            if isinstance(self.placed, Divided):
                network, self._read_out = self.placed.dense_part()
            run = lambda inputs: as_tensors(network(*inputs))  # noqa: E731
            exact = table.pick_backend(FASTEST_EXACT, CPU) if self.device.type == CPU else None
            substitute = None if exact is None or backend is exact else Seat(network, run, exact, named=False)
            self._seat = Seat(network, run, backend, named=name != FASTEST_EXACT, substitute=substitute)


class CpuFallback:
    """Fallback from a GPU to the CPU: for a while when its memory ran out, for good when it was lost.

    Args:
        device: the GPU, as a user writes it.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._why = ""
        self._pause_s = PAUSE_S
        self._until_s = 0.0

    def stands_in(self, now_s: float) -> str:
        """Reason of the fallback at ``now_s`` (monotonic); empty: the GPU computes."""
        return self._why if now_s < self._until_s else ""

    def note_failure(self, error: EdgeOffloadError, for_good: bool) -> str:
        """Notes a failure of the GPU; returns the reason of the fallback."""
        self._until_s = math.inf if for_good else time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, MOST_PAUSE_S)
        self._why = f"computed on the CPU in place of {self._device}: {error}"
        return self._why


#: An engine with its facts; what is installed stays as it is.
_named: Callable[[Any], str] = functools.lru_cache(maxsize=None)(lambda backend: str(engine_facts(backend)))


def canonical_input(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` on the CPU, contiguous and aligned to :data:`ALIGNMENT`; itself when it is that already."""
    tensor = tensor.detach().to("cpu").contiguous()
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone(memory_format=torch.contiguous_format)


def _as_ordinary(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.numel() == 0:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    with torch.inference_mode():
        if tensor.dtype in _NUMPY:
            raw = tensor.resolve_neg().numpy().reshape(-1)
        else:
            raw = flat_bytes(tensor).numpy()
    return torch.from_numpy(raw).view(tensor.dtype).reshape(tensor.shape)


def fetch_outputs(result: object) -> Tuple[torch.Tensor, ...]:
    """Fetches the outputs of a module to the CPU, contiguous.

    Raises:
        Unsupported: as :func:`as_tensors`.
    """
    return tuple(tensor.detach().to("cpu").contiguous() for tensor in as_tensors(result))


def as_ordinary(tensors: Sequence[torch.Tensor]) -> Tuple[torch.Tensor, ...]:
    """Wraps the same memory in tensors that may be written outside inference mode, as decoded ones may.

    Call it outside inference mode.
    """
    return tuple(_as_ordinary(tensor) for tensor in tensors)


def as_tensors(result: object) -> Tuple[torch.Tensor, ...]:
    """The tensors that a module returned: one tensor, or a tuple or list of them.

    Raises:
        Unsupported: anything else.
    """
    if isinstance(result, torch.Tensor):
        return (result,)
    if isinstance(result, (tuple, list)) and all(isinstance(item, torch.Tensor) for item in result):
        return tuple(result)
    raise Unsupported(
        f"the model returned {_type_text(result)}", remedy="let its forward return a tensor or a tuple of tensors"
    )


def state_versions(module: nn.Module) -> List[int]:
    """Write counters of the module's parameters and buffers: they differ after a run that changed its own state."""
    return [tensor._version for tensor in (*module.parameters(), *module.buffers())]


def _type_text(result: object) -> str:
    if isinstance(result, (tuple, list)):
        return f"a {type(result).__name__} of {', '.join(sorted({type(item).__name__ for item in result}))}"
    return f"a {type(result).__name__}"


def as_inputs(inputs: Inputs) -> Tuple[torch.Tensor, ...]:
    """Converts the inputs of a module to a tuple, a single tensor as well.

    Raises:
        TypeError: neither a tensor nor a tuple or list of tensors.
    """
    if isinstance(inputs, torch.Tensor):
        return (inputs,)
    if not isinstance(inputs, (tuple, list)):
        raise TypeError(f"inputs are a {type(inputs).__name__}; give a tensor, or a tuple or list of them")
    for number, tensor in enumerate(inputs):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"input {number} is a {type(tensor).__name__}; give a tensor, or a tuple or list of them")
    return tuple(inputs)
