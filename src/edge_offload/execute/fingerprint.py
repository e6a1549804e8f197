"""Fingerprints of what decides the bits of a result; robot and server compare theirs, and equal ones mean equal bits.

One network gives different bits under another torch build, instruction set or thread count (1 against 2 threads alone
moves MoveNet's heads by 2e-4), so a comparison of results is only exact where the fingerprints agree.
"""

from __future__ import annotations

import os
import platform
import re
from typing import Any, Dict, List, Mapping, Union

import torch

#: Environment variables that steer the choice of kernels in ATen, oneDNN, MKL, cuBLAS and cuDNN.
KERNEL_ENVIRONMENT = (
    "ATEN_CPU_CAPABILITY",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "CUBLAS_WORKSPACE_CONFIG",
)

_LABELS = {
    "torch": "torch",
    "torch_build": "torch build",
    "machine": "machine architecture",
    "device": "device type",
    "device_name": "processor",
    "cpu_capability": "CPU instruction set",
    "threads": "threads",
    "mkldnn": "oneDNN",
    "flush_denormal": "flushing of denormals",
    "matmul_precision": "float32 matmul precision",
    "deterministic": "deterministic algorithms",
    "environment": "kernel environment variables",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "cudnn_flags": "cuDNN flags",
}


def fingerprint_of(device: Union[str, torch.device] = "cpu") -> Dict[str, Any]:
    """Collects everything that decides the bits of a result on ``device``: plain values, so that it can be sent.

    Call it in the thread that computes: thread count and denormal mode belong to a thread.
    """
    place = torch.device(device)
    facts: Dict[str, Any] = {
        "torch": str(torch.__version__),
        "torch_build": str(torch.version.git_version),
        "machine": platform.machine(),
        "device": place.type,
        "device_name": device_name(place),
        "cpu_capability": _cpu_capability(),
        "threads": torch.get_num_threads(),
        "mkldnn": bool(torch.backends.mkldnn.is_available() and torch._C._get_mkldnn_enabled()),
        "flush_denormal": _flushes_denormals(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "environment": {name: os.environ[name] for name in KERNEL_ENVIRONMENT if name in os.environ},
    }
    if place.type == "cuda":
        cudnn = torch.backends.cudnn
        facts["cuda"] = str(torch.version.cuda)
        facts["cudnn"] = cudnn.version() if cudnn.is_available() else None
        facts["cudnn_flags"] = {
            "enabled": bool(cudnn.enabled),
            "benchmark": bool(cudnn.benchmark),
            "deterministic": bool(cudnn.deterministic),
            "conv_tf32": bool(cudnn.allow_tf32),
            "matmul_tf32": bool(torch.backends.cuda.matmul.allow_tf32),
        }
    return facts


def list_differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> List[str]:
    """Describes what differs between two fingerprints; empty when results are bit-equal.

    >>> list_differences({"threads": 1}, {"threads": 2})
    ['threads: 1 here, 2 there']
    """
    differing = []
    for key in sorted(set(ours) | set(theirs), key=str):
        mine, other = ours.get(key), theirs.get(key)
        if mine != other:
            differing.append(f"{_LABELS.get(key, key)}: {_value_text(mine)} here, {_value_text(other)} there")
    return differing


def exactness_refusal(ours: Mapping[str, Any], theirs: Any) -> str:
    """Explains why a server may not compute results that need the robot's bits; empty: its fingerprint is equal.

    Args:
        ours: the robot's fingerprint.
        theirs: what the server sent as its own.

    >>> exactness_refusal({"threads": 1}, {"threads": 2})
    'exact:=true, and results of this server may differ in the last digits (threads: 1 here, 2 there); make both \
equal, or start with exact:=false'
    """
    different = list_differences(ours, theirs) if isinstance(theirs, Mapping) else ["its fingerprint is not known"]
    if not different:
        return ""
    return (
        f"exact:=true, and results of this server may differ in the last digits ({'; '.join(different)}); "
        "make both equal, or start with exact:=false"
    )


def two_torches(ours: Mapping[str, Any], theirs: Any) -> str:
    """Suggests what to do about another release of torch on the server, in one line; empty: the same release.

    Other builds of the same release (CPU, CUDA) have the same operators and are no reason to install anything.

    Args:
        ours: the robot's fingerprint.
        theirs: what the server sent as its own.

    >>> two_torches({"torch": "2.13.0+cpu"}, {"torch": "2.15.0"})
    'torch 2.13.0 on the robot, 2.15.0 on the server: results may differ in the last digits, random numbers \
altogether, and some operators may be refused; pip install torch==2.13.0 on the server (or, if that cannot be, \
torch==2.15.0 on the robot)'
    """
    robot, server = (
        re.match(r"\d+(\.\d+){1,2}", str(facts.get("torch"))[:64]) if isinstance(facts, Mapping) else None
        for facts in (ours, theirs)
    )
    if robot is None or server is None or robot.group() == server.group():
        return ""
    return (
        f"torch {robot.group()} on the robot, {server.group()} on the server: results may differ in the last digits, "
        f"random numbers altogether, and some operators may be refused; pip install torch=={robot.group()} on the "
        f"server (or, if that cannot be, torch=={server.group()} on the robot)"
    )


def _value_text(value: Any) -> str:
    if value is None:
        return "not stated"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}={item}" for key, item in sorted(value.items())) + "}"
    return str(value)


def device_name(device: torch.device) -> str:
    """The GPU, or the processor, as its maker calls it."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as stream:
            first = stream.read().split("\n\n")[0]
    except OSError:
        return platform.processor() or platform.machine()
    facts: Dict[str, str] = {}
    for line in first.splitlines():
        key, _, value = line.partition(":")
        facts[key.strip()] = value.strip()
    parts = [facts.get(key, "") for key in ("model name", "cpu family", "model", "CPU implementer", "CPU part")]
    return " ".join(part for part in parts if part) or platform.machine()


def _cpu_capability() -> str:
    """Instruction set that torch uses; before 2.1 read from its printed configuration."""
    capability = getattr(getattr(torch.backends, "cpu", None), "get_cpu_capability", None)
    if capability is not None:
        return str(capability())
    shown = re.search(r"CPU capability usage: (\S+)", torch.__config__.show())
    return shown.group(1) if shown is not None else "unknown"


def _flushes_denormals() -> bool:
    """Torch can set the mode of a thread but not tell it, so compute with a denormal and look."""
    return bool((torch.full((1,), 2e-39) * 0.5).item() == 0.0)
