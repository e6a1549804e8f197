"""Where torch can compute on this machine, and why not elsewhere."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from typing import Any, Dict, Iterator, Tuple

import torch

from edge_offload.errors import BadInput, DeviceLost, EdgeOffloadError, OutOfMemory, Unsupported
from edge_offload.execute.fingerprint import device_name

AUTO = "auto"

#: What a user may write.
NAMES = re.compile(r"auto|cpu|cuda(:\d+)?")

#: What torch says when a GPU has failed, and not the program.
OF_THE_GPU = re.compile(r"CUDA (driver )?error|cuDNN error|CUBLAS_STATUS|CUSOLVER|CUFFT")

#: Environment variable that allows TF32 on GPUs ("1"): faster matrix products, relative errors of about 1e-3.
TF32 = "EDGE_OFFLOAD_TF32"

#: How the name of a device ends, as a program sees it, that is a CPU.
ON_CPU = " (edge_offload)"


@dataclass(frozen=True)
class Backend:
    """One kind of device.

    Attributes:
        name: what a user writes.
        present: whether it can compute here.
        detail: what it is, or why it is absent.
        remedy: how to get it; empty when it is there.
    """

    name: str
    present: bool
    detail: str
    remedy: str = ""


def backends() -> Tuple[Backend, ...]:
    """Every backend that edge_offload knows, the preferred one first."""
    return (_cuda(), _cpu())


class Virtual:
    """What this process's ``cuda`` is where it is no GPU of this machine; nothing otherwise.

    Attributes:
        owner: who computes it, in words; empty: torch's own device.
        tested: this process computes it, and whoever names it means it: a test without a GPU.
    """

    owner = ""
    tested = False


def pick(name: str = AUTO) -> torch.device:
    """The device named ``name``; ``auto`` is the first backend that is present, and never the virtual device.

    Raises:
        BadInput: no such backend.
        Unsupported: it is absent here; the message says why.
    """
    if not NAMES.fullmatch(name):
        raise BadInput(f"no device {name!r}", remedy=f"use one of: {AUTO}, cpu, cuda, cuda:0, ...")
    known = {backend.name: backend for backend in backends()}
    if name == AUTO:
        present = next(backend.name for backend in known.values() if backend.present)
        return torch.device("cpu" if Virtual.owner else present)
    device = torch.device(name)
    backend = known[device.type]
    if not backend.present:
        raise Unsupported(f"device {name!r} is absent: {backend.detail}", remedy=backend.remedy)
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise Unsupported(f"device {name!r} is absent: there are {torch.cuda.device_count()}", remedy="use cuda:0")
    return device


def settle(device: torch.device) -> torch.device:
    """Fix what decides a GPU's bits in this process, before its fingerprint is taken; returns the device.

    cuDNN's benchmark would pick algorithms by timing, so it is off. TF32 rounds the inputs of convolutions and matrix
    products to 10 bits of mantissa, so it is off unless :data:`TF32` asks for it.
    """
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32_allowed()
    return device


def tf32_allowed() -> bool:
    """Whether the environment of this process allows TF32 on GPUs."""
    return os.environ.get(TF32, "0") not in ("", "0")


def allow_tf32() -> None:
    """Allow TF32 on GPUs in this process and in those that it starts."""
    os.environ[TF32] = "1"


@contextlib.contextmanager
def failures() -> Iterator[None]:
    """Failures of a GPU inside, as errors of ours.

    Raises:
        OutOfMemory: it has less memory than was asked for; it can be asked again.
        DeviceLost: it has failed, and this process cannot use it any more.
    """
    try:
        yield
    except EdgeOffloadError:
        raise
    except torch.cuda.OutOfMemoryError as error:
        raise OutOfMemory(f"the GPU has not enough memory: {_first_line(error)}") from error
    except RuntimeError as error:
        if not OF_THE_GPU.search(str(error)):
            raise
        raise DeviceLost(f"the GPU failed: {_first_line(error)}", remedy="start the program again") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def facts(device: torch.device, most_bytes: int = 1 << 62) -> Dict[str, Any]:
    """What a program may ask of the device (:func:`torch.cuda.get_device_properties`); a CPU answers as a GPU would.

    ``most_bytes``: what a program may hold there, if that is less than the device has.
    """
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return {
            "name": properties.name, "total_memory": min(properties.total_memory, most_bytes),
            "major": properties.major,
            "minor": properties.minor, "multi_processor_count": properties.multi_processor_count,
        }  # fmt: skip
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "name": f"{device_name(device)}{ON_CPU}", "total_memory": min(memory, most_bytes), "major": 8,
        "minor": 0, "multi_processor_count": os.cpu_count() or 1,
    }  # fmt: skip


def _cpu() -> Backend:
    return Backend("cpu", True, f"{torch.get_num_threads()} threads")


def _cuda() -> Backend:
    if Virtual.owner:
        remedy = (
            "" if Virtual.tested else "say --device in front of the program, or start it without the virtual device"
        )
        return Backend("cuda", Virtual.tested, f"the virtual device, computed by {Virtual.owner}", remedy)
    if torch.version.cuda is None:
        return Backend(
            "cuda",
            False,
            f"torch {torch.__version__} is built without CUDA",
            "install a CUDA build of torch (not needed on a CPU server)",
        )
    if not torch.cuda.is_available():
        return Backend("cuda", False, "torch finds no usable NVIDIA GPU", "check nvidia-smi and the driver's version")
    return Backend("cuda", True, f"{torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}")
