"""What an engine is: a backend builds a network's ONNX into bytes that it can load, and what is loaded runs."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Protocol, Sequence, Tuple

import torch

from edge_offload.arrays import Array

#: The name of torch itself, operator by operator: no engine.
EAGER = "eager"
#: The first engine of class ``close`` that is installed; torch where there is none.
AUTO = "auto"
#: What a fingerprint says of an engine, where one computes in place of torch.
ENGINE = "engine"

#: Classes of precision: the bits of torch; float32 in another order of operations; fewer bits than float32.
EXACT, CLOSE, REDUCED = "exact", "close", "reduced"
#: How far an output of a class may be from torch's, as a share of its largest absolute value.
TOLERANCE = {EXACT: 0.0, CLOSE: 2e-5}


class Engine(Protocol):
    """A network that is loaded. One thread runs it."""

    def run(self, inputs: Sequence[Array]) -> List[Array]:
        """The outputs for ``inputs``, both in the network's order; arrays of their own."""

    def close(self) -> None:
        """Give back what it holds."""


class Backend(Protocol):
    """A kind of engine.

    Attributes:
        name: what a user writes.
        precision: of its arithmetic, such as ``fp32``.
        accuracy: its class: :data:`EXACT`, :data:`CLOSE` or :data:`REDUCED`.
        distributions: the Python packages any of which brings it.
    """

    name: str
    precision: str
    accuracy: str
    distributions: Tuple[str, ...]

    def build(self, onnx: bytes, threads: int) -> bytes:
        """What :meth:`load` takes, made of an ONNX model with static shapes; may take minutes."""

    def load(self, built: bytes, threads: int) -> Engine:
        """The engine, ready to run on so many threads of the CPU."""


@dataclass(frozen=True)
class Facts:
    """What decides the bits that an engine gives, beside the network and the threads."""

    name: str
    version: str
    precision: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} {self.precision}"


def version(backend: Backend) -> Optional[str]:
    """The installed version of what ``backend`` needs, without importing it; None where it is absent."""
    for distribution in backend.distributions:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def facts(backend: Backend) -> Facts:
    """The facts of a backend that is installed."""
    return Facts(backend.name, version(backend) or "absent", backend.precision)


def machine() -> Dict[str, Any]:
    """What an engine built on this machine may depend on."""
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


def mismatch(expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor], tolerance: float) -> str:
    """Why ``found`` is not ``expected`` within ``tolerance`` of each output's largest value; empty when it is.

    Outputs that are no floating-point numbers must be equal.
    """
    if len(expected) != len(found):
        return f"{len(found)} outputs instead of {len(expected)}"
    for number, (want, have) in enumerate(zip(expected, found)):
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


def relative_error(expected: torch.Tensor, found: torch.Tensor) -> float:
    """Largest difference, as a share of ``expected``'s largest absolute value; NaN where one alone is not finite."""
    if expected.numel() == 0:
        return 0.0
    finite = torch.isfinite(expected)
    if not torch.equal(expected[~finite].nan_to_num(), found[~finite].nan_to_num()):
        return float("nan")
    want, have = expected[finite].double(), found[finite].double()
    if want.numel() == 0:
        return 0.0
    largest = float(want.abs().max())
    difference = float((want - have).abs().max())
    return difference / largest if largest else (0.0 if difference == 0.0 else float("inf"))
