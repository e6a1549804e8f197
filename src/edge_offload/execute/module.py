"""Runs a module on a device so that equal fingerprints give equal bits, on robot and server alike."""

from __future__ import annotations

import copy
import functools
import logging
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

from edge_offload.errors import DeviceLost, OutOfMemory, Unsupported
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
from edge_offload.execute.fallback import CpuFallback
from edge_offload.execute.fingerprint import fingerprint_of
from edge_offload.memory import flat_bytes

if TYPE_CHECKING:
    from edge_offload.execute.engines.seat import Seat

#: Bytes. torch aligns its memory so; for other addresses vector kernels may take another path, with other bits.
ALIGNMENT = 64

#: dtypes that NumPy has as well.
_NUMPY_DTYPES = frozenset(
    (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
     torch.float64)
)  # fmt: skip

#: What a module takes: a tensor, or a tuple or list of tensors, one for each parameter of its forward().
Inputs = Union[torch.Tensor, Sequence[torch.Tensor]]

_log = logging.getLogger(__name__)


@runtime_checkable
class Divided(Protocol):
    """Module that separates its dense part from its read-out."""

    def dense_part(self) -> Tuple[nn.Module, Callable[..., object]]:
        """Return a network with static shapes, and the read-out: from its outputs to those of the module."""


@runtime_checkable
class ByEngine(Protocol):
    """Module that torch can neither compute nor trace: an engine always computes it.

    Attributes:
        path: path of the file that it was read from.
    """

    path: str

    def backend(self, device: str) -> Built:
        """Return the backend that computes it for inputs on ``device``, ``cpu`` or ``cuda``."""

    def use(self, backend: Optional[Built]) -> None:
        """Compute by ``backend`` from now on; None: by the first engine that is installed."""


@dataclass(frozen=True)
class Execution:
    """Outputs of one inference, contiguous and on the CPU.

    Attributes:
        outputs: in the order in which the module returns them.
        compute_s: how long the computation took (seconds, monotonic).
        engine: what computed the dense part: ``eager``, or an engine with its version, precision and network.
        note: why the requested device did not compute it; empty: it did.
    """

    outputs: Tuple[torch.Tensor, ...]
    compute_s: float
    engine: str = EAGER
    note: str = ""


class ModuleExecutor:
    """Owns a module on a device and runs it in inference mode.

    Inputs are first made contiguous and aligned (:func:`canonical_input`). torch chooses kernels also by strides and
    addresses: without this, a channels-last tensor and its copy from the network would not give equal bits.

    Args:
        module: put in eval mode. It stays on the CPU; a GPU gets a copy.
        device: ``cpu``, ``cuda`` or ``cuda:n``.
        engine: computes the dense part of a :class:`Divided` module, or the whole of any other
            (:mod:`edge_offload.execute.engines`). If it cannot (it is not installed, say), torch computes, and
            :meth:`engine_state` says why.
        spare: whether the CPU computes when the GPU has failed; else that failure is raised.

    Raises:
        BadInput: no such engine.
    """

    #: Seconds for a batch of 1, 2, … frames, on a device that states them; empty: they have to be measured.
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
        #: Module that computes: ``module``, or its copy on the GPU.
        self.placed = self.module
        self._fallback = CpuFallback(str(self.device)) if spare and self.device.type != "cpu" else None
        self._seat: Optional[Seat] = None
        #: Why the requested engine does not compute; empty: it does, or was not requested.
        self._problem = ""
        self._read_out: Callable[..., object] = lambda *outputs: outputs
        placed = self.device.type == "cpu" or self._place_on_gpu()
        if engine != EAGER and placed:
            self._take_engine(engine)

    def _place_on_gpu(self) -> bool:
        """Copy the module to the GPU; return False if the GPU failed and the CPU is its fallback."""
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
        """Run frames one after another; each element is the inputs of one frame."""
        return [self.run_module(inputs) for inputs in frames]

    def run_module(self, inputs: Sequence[torch.Tensor]) -> Execution:
        """Run one inference.

        Returns:
            The outputs in the order in which the module returns them, and what computed them.

        Raises:
            Unsupported: the module returned something that is neither a tensor nor a sequence of tensors.
            OutOfMemory, DeviceLost: the GPU failed, and there is no fallback (``spare``).
            Exception: whatever the module itself raises.
        """
        if self.device.type == "cpu":
            return self._run_on(inputs, self.module, self.device)
        why = "" if self._fallback is None else self._fallback.stands_in(time.monotonic())
        if not why:
            try:
                with gpu_failures():
                    execution = self._run_on(inputs, self.placed, self.device)
            except (OutOfMemory, DeviceLost) as error:
                if self._fallback is None:
                    raise
                why = self._fallback.note_failure(error, for_good=isinstance(error, DeviceLost))
            else:
                if self._fallback is not None:
                    self._fallback.note_success()
                return execution
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
        """Return the facts that decide the bits of its results."""
        return {**fingerprint_of(self.device), **self.engine_facts()}

    @property
    def engine(self) -> str:
        """Engine that computed last, as in :attr:`Execution.engine`."""
        return self._engine_without_seat(self.placed, self.device) if self._seat is None else self._seat.latest_engine()

    def _engine_without_seat(self, module: nn.Module, device: torch.device) -> str:
        return _label_of(module.backend(device.type)) if isinstance(module, ByEngine) else EAGER

    def engine_facts(self) -> Dict[str, str]:
        """Return the engine's entry of a fingerprint; empty if results have torch's bits."""
        if isinstance(self.placed, ByEngine):
            return {ENGINE: fingerprint_entry(self.placed.backend(self.device.type))}
        stated_engine = fingerprint_entry(None if self._seat is None else self._seat.backend)
        return {ENGINE: stated_engine} if stated_engine else {}

    def engine_state(self) -> Tuple[str, bool]:
        """Return the state of the engine or of the GPU in words, and True if somebody should look at it."""
        why = "" if self._fallback is None else self._fallback.stands_in(time.monotonic())
        if why:
            return why, True
        if isinstance(self.placed, ByEngine) and not self._problem:
            backend = self.placed.backend(self.device.type)
            elsewhere = backend.device != self.device.type
            note = f"; no engine computes it on {self.device} here: pip install onnxruntime-gpu" if elsewhere else ""
            return f"{_label_of(backend)}{note}", elsewhere
        if self._seat is None or self._problem:
            return self._problem or EAGER, bool(self._problem)
        return self._seat.state()

    @property
    def graphs(self) -> Optional[Direct]:
        """Backend that captures torch's kernels, with torch's bits; None: another engine computes, or torch."""
        backend = None if self._seat is None else self._seat.backend
        return backend if isinstance(backend, Direct) and backend.accuracy == EXACT else None

    def engine_ready(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` (seconds) for builds of engines; return True when all are built or given up."""
        return self._seat is None or self._seat.wait_until_built(timeout_s)

    def close(self) -> None:
        """Release the engines; torch computes from now on."""
        if self._seat is not None:
            self._seat.close()

    def _take_engine(self, name: str) -> None:
        """Use engine ``name``, or note in ``_problem`` why it cannot be used."""
        from edge_offload.execute.engines import table
        from edge_offload.execute.engines.seat import Seat

        default = self._engine_without_seat(self.placed, self.device)
        try:
            backend = table.pick_backend(name, self.device.type, self.module)
        except Unsupported as error:  # its package may have been removed since the last start
            self._problem = f"{default}: {error}"
            _log.warning("%s; %s computes", error, "torch" if default == EAGER else default)
            if default != EAGER:
                return
            name, backend = FASTEST_EXACT, table.pick_backend(FASTEST_EXACT, self.device.type)
        if backend is None:
            none_installed = name == AUTO and not table.packaged_engines()
            self._problem = f"{EAGER}: no engine is installed; {table.INSTALL}" if none_installed else self._problem
        elif self.device.type == CUDA and backend.device == CPU:
            self._problem = f"{default}: engine {backend.name} computes on the CPU, and this device is {self.device}"
        elif self.device.index and name == FASTEST_EXACT:
            _log.info("engine %s computes on the first GPU alone: torch computes on %s", backend.name, self.device)
        elif self.device.index and backend.device == CUDA:
            self._problem = f"{default}: engine {backend.name} computes on the first GPU, and this is {self.device}"
        elif self.device.type == CPU and isinstance(backend, Direct) and backend.device == CUDA:
            self._problem = f"{default}: engine {backend.name} is for device cuda, and this one is {self.device}"
        elif isinstance(self.placed, ByEngine):
            # a copy: the caller may use another engine for the same module
            self.placed = own_copy = copy.deepcopy(self.placed)
            self.module = own_copy if self.device.type == CPU else self.module
            own_copy.use(backend if isinstance(backend, Built) else None)
        else:
            network: nn.Module = self.placed
            if isinstance(self.placed, Divided):
                network, self._read_out = self.placed.dense_part()
            run = lambda inputs: as_tensors(network(*inputs))  # noqa: E731
            exact = table.pick_backend(FASTEST_EXACT, CPU) if self.device.type == CPU else None
            substitute = None if exact is None or backend is exact else Seat(network, run, exact, named=False)
            self._seat = Seat(network, run, backend, named=name != FASTEST_EXACT, substitute=substitute)


#: Name, version and precision of a backend; cached, since installed packages stay as they are.
_label_of: Callable[[Any], str] = functools.lru_cache(maxsize=None)(lambda backend: str(engine_facts(backend)))


def canonical_input(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` on the CPU, contiguous and aligned to :data:`ALIGNMENT`; copy it only if it is not."""
    tensor = tensor.detach().to("cpu").contiguous()
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone(memory_format=torch.contiguous_format)


def _as_ordinary(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.numel() == 0:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    with torch.inference_mode():
        if tensor.dtype in _NUMPY_DTYPES:
            raw = tensor.resolve_neg().numpy().reshape(-1)
        else:
            raw = flat_bytes(tensor).numpy()
    return torch.from_numpy(raw).view(tensor.dtype).reshape(tensor.shape)


def fetch_outputs(result: object) -> Tuple[torch.Tensor, ...]:
    """Fetch the outputs of a module to the CPU, contiguous.

    Raises:
        Unsupported: as :func:`as_tensors`.
    """
    return tuple(tensor.detach().to("cpu").contiguous() for tensor in as_tensors(result))


def as_ordinary(tensors: Sequence[torch.Tensor]) -> Tuple[torch.Tensor, ...]:
    """Wrap the memory of inference tensors in tensors that may be written outside inference mode.

    Results are then like those that are decoded from the network. Call it outside inference mode.
    """
    return tuple(_as_ordinary(tensor) for tensor in tensors)


def as_tensors(result: object) -> Tuple[torch.Tensor, ...]:
    """Return what a module returned (a tensor, or a tuple or list of tensors) as a tuple.

    Raises:
        Unsupported: it returned anything else.
    """
    if isinstance(result, torch.Tensor):
        return (result,)
    if isinstance(result, (tuple, list)) and all(isinstance(item, torch.Tensor) for item in result):
        return tuple(result)
    raise Unsupported(
        f"the model returned {_type_text(result)}", remedy="let its forward return a tensor or a tuple of tensors"
    )


def state_versions(module: nn.Module) -> List[int]:
    """Return torch's write counters of the parameters and buffers; they differ after a run that wrote to them."""
    return [tensor._version for tensor in (*module.parameters(), *module.buffers())]


def _type_text(result: object) -> str:
    if isinstance(result, (tuple, list)):
        return f"a {type(result).__name__} of {', '.join(sorted({type(item).__name__ for item in result}))}"
    return f"a {type(result).__name__}"


def as_inputs(inputs: Inputs) -> Tuple[torch.Tensor, ...]:
    """Return the inputs of a module as a tuple, also for a single tensor.

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
