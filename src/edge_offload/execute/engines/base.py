"""Interfaces of engines: a backend builds a network's ONNX into bytes, loads them, and the engine runs."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import pathlib
import platform
import re
import secrets
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Protocol, Sequence, Tuple, runtime_checkable

import torch

#: The name of torch itself, operator by operator: no engine.
EAGER = "eager"
#: The engine of class ``close`` that was measured to be the fastest, else the first that is installed, else torch.
AUTO = "auto"
#: Torch's own kernels, launched as fast as this device can: as CUDA graphs on a GPU, as a compiled step on a CPU.
FASTEST_EXACT = "exact"
#: What a fingerprint says of an engine, where one computes in place of torch.
ENGINE = "engine"

#: Classes of precision: the bits of torch; float32 in another order of operations; fewer bits than float32.
EXACT, CLOSE, REDUCED = "exact", "close", "reduced"
#: How far an output of a class may be from torch's, as a share of its largest absolute value. Of ``reduced`` nothing is
#: promised: its bound keeps out what computes something else.
TOLERANCE = {EXACT: 0.0, CLOSE: 2e-5, REDUCED: 5e-2}
#: What an engine computes on.
CPU, CUDA = "cpu", "cuda"
#: What a machine lacks where torch finds no GPU.
NO_GPU = "an NVIDIA GPU that torch can use"
#: Tells engines of this process from those of any other whose kernels were picked by timing as well.
_PROCESS = secrets.token_hex(4)


class Engine(Protocol):
    """A network that is loaded. One thread loads it, runs it and closes it."""

    def run(self, inputs: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        """The outputs for ``inputs``, both in the network's order; tensors of their own, on the inputs' device."""

    def close(self) -> None:
        """Give back what it holds."""


class Backend(Protocol):
    """A kind of engine; whoever inherits from it has what most engines have.

    Attributes:
        name: what a user writes.
        precision: of its arithmetic, such as ``fp32``.
        accuracy: its class: :data:`EXACT`, :data:`CLOSE` or :data:`REDUCED`.
        distributions: the Python packages any of which brings it.
        module: what is imported of them, where it may be there without a distribution (NVIDIA's Debian packages).
        device: what it computes on, :data:`CPU` or :data:`CUDA`.
        timed: it picks kernels by timing them, so that two builds of one network may give different bits.
        own_thread: its engines may hang, so that each runs on a thread that can be left behind.
    """

    name: str
    precision: str = "fp32"
    accuracy: str = CLOSE
    distributions: Tuple[str, ...]
    module: str = ""
    device: str = CPU
    timed: bool = False
    own_thread: bool = True

    def missing_parts(self) -> str:
        """Names what is missing here beside its package; empty: nothing."""
        return ""

    def depends_on(self) -> Dict[str, str]:
        """Facts of this machine, beside its processor, that a built engine depends on (plain values)."""
        return {}


@runtime_checkable
class Built(Backend, Protocol):
    """A backend whose engines are built from ONNX, and kept."""

    def export_dtype(self) -> Optional[torch.dtype]:
        """The type of numbers that the network is to be exported with; None: its own."""
        return None

    def build(self, onnx: bytes, threads: int) -> bytes:
        """Builds what :meth:`load` takes from an ONNX model with static shapes; may take minutes."""

    def load(self, built: bytes, threads: int) -> Engine:
        """The engine, ready to run on so many threads of the CPU."""


@runtime_checkable
class Direct(Backend, Protocol):
    """A backend that needs no export: it takes the network as torch runs it."""

    def capture(
        self, run: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor]
    ) -> Engine:
        """An engine that does what ``run`` does for inputs of these shapes."""


@dataclass(frozen=True)
class EngineFacts:
    """Facts that decide the bits of an engine's results, beside the network and the threads."""

    name: str
    version: str
    precision: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} {self.precision}"


def installed_version(backend: Backend) -> Optional[str]:
    """The installed version of what ``backend`` needs, without importing it; None where it is absent."""
    for distribution in backend.distributions:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    spec = importlib.util.find_spec(backend.module) if backend.module else None
    if spec is None or not spec.origin:
        return None
    text = pathlib.Path(spec.origin).read_text("utf-8")
    match = re.search(r"""^__version__ *= *["']([^"']+)""", text, re.MULTILINE)
    return match.group(1) if match else "unknown"


def engine_facts(backend: Backend) -> EngineFacts:
    """The facts of a backend that is installed."""
    return EngineFacts(backend.name, installed_version(backend) or "absent", backend.precision)


def engine_label(backend: Backend) -> str:
    """The facts of a backend; of one that compiles torch's calls, their class too where it is not torch's."""
    accuracy = f" {backend.accuracy}" if isinstance(backend, Direct) and backend.accuracy != EXACT else ""
    return f"{engine_facts(backend)}{accuracy}"


def fingerprint_entry(backend: Optional[Backend]) -> str:
    """Engine as a fingerprint states it; empty where results have torch's bits."""
    if backend is None or backend.accuracy == EXACT:
        return ""
    timing = f", kernels picked by timing in process {_PROCESS}" if backend.timed else ""
    return f"{engine_label(backend)}{timing}"


def driver_release() -> str:
    """NVIDIA's driver, in its own words; empty where there is none."""
    try:
        return pathlib.Path("/proc/driver/nvidia/version").read_text("utf-8").splitlines()[0]
    except (OSError, IndexError):
        return ""


def machine_facts() -> Dict[str, Any]:
    """Facts of this machine on which a built engine may depend."""
    name = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as stream:
            lines = [
                line for line in stream.read().split("\n\n")[0].splitlines() if line[:5] in ("model", "flags", "Featu")
            ]
            name = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    except OSError:
        name = platform.processor()
    return {"machine": platform.machine(), "cpu": name, "torch": str(torch.__version__)}


def find_mismatch(expected: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], tolerance: float) -> str:
    """Describes how outputs miss ``expected`` by more than ``tolerance`` of its largest value; empty: they match.

    Outputs that are no floating-point numbers must be equal.
    """
    if len(expected) != len(outputs):
        return f"{len(outputs)} outputs instead of {len(expected)}"
    for number, (want, have) in enumerate(zip(expected, outputs)):
        if want.shape != have.shape or want.dtype != have.dtype:
            return f"output {number} is {have.dtype} {list(have.shape)} instead of {want.dtype} {list(want.shape)}"
        if not want.is_floating_point():
            if not torch.equal(want, have):
                return f"output {number} differs, and it holds no floating-point numbers"
            continue
        error = relative_error(want, have)
        if not error <= tolerance:
            return f"output {number} is off by {error:.1e} of its largest value, where {tolerance:.0e} is allowed"
    return ""


def relative_error(expected: torch.Tensor, output: torch.Tensor) -> float:
    """Largest difference, as a share of ``expected``'s largest absolute value; NaN where one alone is not finite."""
    if expected.numel() == 0:
        return 0.0
    finite = torch.isfinite(expected)
    if not torch.equal(expected[~finite].nan_to_num(), output[~finite].nan_to_num()):
        return float("nan")
    want, have = expected[finite].double(), output[finite].double()
    if want.numel() == 0:
        return 0.0
    largest = float(want.abs().max())
    difference = float((want - have).abs().max())
    return difference / largest if largest else (0.0 if difference == 0.0 else float("inf"))
