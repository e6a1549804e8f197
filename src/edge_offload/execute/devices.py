"""Where torch can compute on this machine, and why not elsewhere."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Dict, Tuple

import torch

from edge_offload.errors import BadInput, Unsupported
from edge_offload.execute.fingerprint import device_name

AUTO = "auto"

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


def pick(name: str = AUTO) -> torch.device:
    """The device named ``name``; ``auto`` is the first backend that is present.

    Raises:
        BadInput: no such backend.
        Unsupported: it is absent here; the message says why.
    """
    known = {backend.name: backend for backend in backends()}
    if name == AUTO:
        return torch.device(next(backend.name for backend in known.values() if backend.present))
    if name not in known:
        raise BadInput(f"no device {name!r}", remedy=f"use one of: {AUTO}, {', '.join(known)}")
    backend = known[name]
    if not backend.present:
        raise Unsupported(f"device {name!r} is absent: {backend.detail}", remedy=backend.remedy)
    return torch.device(name)


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
