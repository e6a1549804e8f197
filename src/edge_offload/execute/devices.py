"""Where torch can compute on this machine, and why not elsewhere."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from typing import Any, Dict, Iterator, Optional, Tuple

import torch

from edge_offload.errors import BadInput, DeviceLost, EdgeOffloadError, OutOfMemory, Unsupported
from edge_offload.execute.fingerprint import device_name

AUTO = "auto"

#: What a user may write.
NAMES = re.compile(r"auto|cpu|cuda(:\d+)?")

#: What torch says when a GPU has failed, and not the program.
OF_THE_GPU = re.compile(r"CUDA (driver )?error|cuDNN error|CUBLAS_STATUS|CUSOLVER|CUFFT")
#: Of these, what says that memory is short, which the next call may find again.
NO_MEMORY = re.compile(r"CUDA (driver )?error: out of memory|_ALLOC_FAILED")
#: Of these, what a call is answered that nothing was launched for: the context is as it was.
OF_THE_CALL = re.compile(r"_NOT_SUPPORTED|_BAD_PARAM|_INVALID_VALUE|invalid (configuration )?argument|no kernel image")
RESTART = "start the program again; with CUDA_LAUNCH_BLOCKING=1 where the GPU is the error names its operator"

#: Environment variable that allows TF32 on GPUs ("1"): faster matrix products, relative errors of about 1e-3.
TF32 = "EDGE_OFFLOAD_TF32"

#: How the name of a device ends, as a program sees it, that is a CPU.
ON_CPU = " (edge_offload)"


@dataclass(frozen=True)
class DeviceBackend:
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


def list_backends() -> Tuple[DeviceBackend, ...]:
    """Every backend that edge_offload knows, the preferred one first."""
    return (_cuda_backend(), _cpu_backend())


class Virtual:
    """Description of this process's ``cuda`` if it is no GPU of this machine.

    Attributes:
        owner: who computes it, in words; empty: torch's own device.
        tested: this process computes it, and whoever names it means it: a test without a GPU.
    """

    owner = ""
    tested = False


def pick_device(name: str = AUTO) -> torch.device:
    """The device named ``name``; ``auto`` is the first backend that is present, and never the virtual device.

    Raises:
        BadInput: no such backend.
        Unsupported: it is absent here; the message says why.
    """
    if not NAMES.fullmatch(name):
        raise BadInput(f"no device {name!r}", remedy=f"use one of: {AUTO}, cpu, cuda, cuda:0, ...")
    by_name = {backend.name: backend for backend in list_backends()}
    if name == AUTO:
        present = next(backend.name for backend in by_name.values() if backend.present)
        return torch.device("cpu" if Virtual.owner else present)
    device = torch.device(name)
    backend = by_name[device.type]
    if not backend.present:
        raise Unsupported(f"device {name!r} is absent: {backend.detail}", remedy=backend.remedy)
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise Unsupported(f"device {name!r} is absent: there are {torch.cuda.device_count()}", remedy="use cuda:0")
    return device


def fix_kernel_choice(device: torch.device) -> torch.device:
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
    """True if the environment of this process allows TF32 on GPUs."""
    return os.environ.get(TF32, "0") not in ("", "0")


def allow_tf32() -> None:
    """Allow TF32 on GPUs in this process and in those that it starts."""
    os.environ[TF32] = "1"


def select_device(device: torch.device) -> None:
    """Make ``device`` the one of tensors that are made without a device, in this thread."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def gpu_failure(error: BaseException, operator: str = "") -> Optional[EdgeOffloadError]:
    """The error of ours that ``error`` is where a GPU raised it; None: it is the program's own.

    Args:
        error: what torch raised.
        operator: which was running.

    Returns:
        OutOfMemory: the GPU has less memory than was asked for; it can be asked again.
        DeviceLost: it has failed, and this process cannot use it any more.
    """
    text, where = str(error), f" in {operator}" if operator else ""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return OutOfMemory(f"the GPU has not enough memory{where}: {_first_line(error)}")
    if not isinstance(error, RuntimeError) or isinstance(error, EdgeOffloadError):
        return None
    if isinstance(error, torch.linalg.LinAlgError):  # type: ignore[attr-defined]
        return None  # of a matrix with which the library can do nothing; its text has the library's name
    if not OF_THE_GPU.search(text) or OF_THE_CALL.search(text):
        return None
    if NO_MEMORY.search(text):
        return OutOfMemory(f"the GPU has not enough memory{where}: {_first_line(error)}")
    return DeviceLost(f"the GPU failed{where}: {_first_line(error)}", remedy=RESTART)


@contextlib.contextmanager
def gpu_failures() -> Iterator[None]:
    """Failures of a GPU inside, as errors of ours.

    Raises:
        OutOfMemory, DeviceLost: see :func:`gpu_failure`.
    """
    try:
        yield
    except Exception as error:
        ours = gpu_failure(error)
        if ours is None:
            raise
        raise ours from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def device_facts(device: torch.device, most_bytes: int = 1 << 62) -> Dict[str, Any]:
    """Properties of the device as a program queries them; a CPU answers as a GPU would.

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


def _cpu_backend() -> DeviceBackend:
    return DeviceBackend("cpu", True, f"{torch.get_num_threads()} threads")


def _cuda_backend() -> DeviceBackend:
    if Virtual.owner:
        remedy = (
            "" if Virtual.tested else "say --device in front of the program, or start it without the virtual device"
        )
        return DeviceBackend("cuda", Virtual.tested, f"the virtual device, computed by {Virtual.owner}", remedy)
    if torch.version.cuda is None:
        return DeviceBackend(
            "cuda",
            False,
            f"torch {torch.__version__} is built without CUDA",
            "install a CUDA build of torch (not needed on a CPU server)",
        )
    if not torch.cuda.is_available():
        return DeviceBackend(
            "cuda", False, "torch finds no usable NVIDIA GPU", "check nvidia-smi and the driver's version"
        )
    return DeviceBackend("cuda", True, f"{torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}")
