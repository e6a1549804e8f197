"""Collectives of ``torch.distributed`` on the virtual device: the group's backend computes them in host memory."""

from __future__ import annotations

import functools
import warnings
from typing import Any, Callable, List, Optional, Tuple

import torch

from edge_offload.errors import Unsupported

#: Between two processes only: a call waits for the other side, where a program counts on going on.
_SENDING = ("send", "recv_", "recv_any_source_")
_registered: Optional[torch.library.Library] = None


def register_collectives() -> None:
    """Make ``torch.distributed`` take tensors of the virtual device; once per process."""
    global _registered
    if _registered is not None or not torch.distributed.is_available():
        return
    _registered = torch.library.Library("c10d", "IMPL")
    with warnings.catch_warnings():  # torch up to 2.0 warns of each kernel that is replaced
        warnings.simplefilter("ignore")
        _replace_kernels(_registered)
    _refuse_nccl()


def _replace_kernels(library: torch.library.Library) -> None:
    for full in torch._C._dispatch_get_all_op_names():
        name = full.partition("::")[2]
        if not full.startswith("c10d::") or "." in name:
            continue
        op = getattr(torch.ops.c10d, name).default
        if any("Tensor" in str(argument.type) for argument in op._schema.arguments):
            library.impl(name, _refusing_kernel(name) if name in _SENDING else functools.partial(_on_host, op), "CUDA")


def _on_host(op: Any, *args: Any) -> Any:
    """Call ``op`` with copies in this machine's memory, wait for it, and write its results to the device."""
    copies: List[Tuple[torch.Tensor, torch.Tensor, bool]] = []

    def copy_to_host(value: Any, written: bool) -> Any:
        if isinstance(value, torch.Tensor) and value.is_cuda:
            copies.append((value, value.detach().cpu(), written))
            return copies[-1][1]
        return [copy_to_host(item, written) for item in value] if isinstance(value, (list, tuple)) else value

    names = [argument.name for argument in op._schema.arguments]
    results = op(*(copy_to_host(value, name.startswith(("output", "tensors"))) for name, value in zip(names, args)))
    for result in results if isinstance(results, (list, tuple)) else [results]:
        if isinstance(result, torch.ScriptObject):
            result.wait()  # type: ignore[attr-defined]
    with torch.no_grad():
        for ours, copy, written in copies:
            if written:
                ours.copy_(copy)

    def restore_tensors(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return next((ours for ours, copy, _ in copies if copy.is_set_to(value)), value)
        return type(value)(restore_tensors(item) for item in value) if isinstance(value, (list, tuple)) else value

    return restore_tensors(results)


def _refusing_kernel(name: str) -> Callable[..., Any]:
    def refuse(*_: Any) -> Any:
        raise Unsupported(
            f"torch.distributed.{name.rstrip('_')} takes no tensor of the virtual device",
            remedy="give it a copy on the host: tensor.cpu() (edge_offload)",
        )

    return refuse


def _refuse_nccl() -> None:
    """NCCL computes on GPUs of this machine: refuse it by name; a group of any backend is one of gloo."""
    module = torch.distributed.distributed_c10d
    for name in ("init_process_group", "new_group"):
        made = getattr(module, name)
        checked = _without_nccl(made, name)
        for place in (module, torch.distributed):
            if getattr(place, name, None) is made:
                setattr(place, name, checked)


def _without_nccl(make: Callable[..., Any], name: str) -> Callable[..., Any]:
    place = 0 if name == "init_process_group" else 2

    @functools.wraps(make)
    def checked(*args: Any, **kwargs: Any) -> Any:
        backend = args[place] if len(args) > place else kwargs.get("backend")
        if "nccl" in str(backend).lower():
            raise Unsupported(
                f"torch.distributed.{name}: NCCL joins GPUs of this machine, and the virtual device is none",
                remedy="use backend='gloo', also for a group of one process (edge_offload)",
            )
        if backend is None and name == "init_process_group":
            return make("gloo", *args[1:], **{key: value for key, value in kwargs.items() if key != "backend"})
        return make(*args, **kwargs)

    return checked
