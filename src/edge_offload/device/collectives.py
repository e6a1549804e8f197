"""Collectives of ``torch.distributed`` on the virtual device: the group's backend computes them in host memory."""

from __future__ import annotations

import functools
import warnings
from typing import Any, Callable, List, Optional, Tuple

import torch

from edge_offload.errors import Unsupported

#: Refused: programs expect these to return at once, but :func:`_compute_on_host` would wait for the peer.
_POINT_TO_POINT = ("send", "recv_", "recv_any_source_")
#: Holds the registered kernels: torch drops them with this object.
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
    """Register a CUDA kernel for each operator of ``c10d`` that takes tensors."""
    for qualified_name in torch._C._dispatch_get_all_op_names():
        name = qualified_name.partition("::")[2]
        if not qualified_name.startswith("c10d::") or "." in name:
            continue
        op = getattr(torch.ops.c10d, name).default
        if any("Tensor" in str(argument.type) for argument in op._schema.arguments):
            kernel = _refusing_kernel(name) if name in _POINT_TO_POINT else functools.partial(_compute_on_host, op)
            library.impl(name, kernel, "CUDA")


def _compute_on_host(op: Any, *args: Any) -> Any:
    """Call ``op`` with host copies of its tensors, wait for it, and copy what it wrote back to the device."""
    # (tensor on the device, its copy on the host, whether op writes to it)
    copies: List[Tuple[torch.Tensor, torch.Tensor, bool]] = []

    def copy_to_host(value: Any, written: bool) -> Any:
        if isinstance(value, torch.Tensor) and value.is_cuda:
            copies.append((value, value.detach().cpu(), written))
            return copies[-1][1]
        return [copy_to_host(item, written) for item in value] if isinstance(value, (list, tuple)) else value

    names = [argument.name for argument in op._schema.arguments]
    # the schemas of c10d do not mark written arguments: their names tell
    results = op(*(copy_to_host(value, name.startswith(("output", "tensors"))) for name, value in zip(names, args)))
    for result in results if isinstance(results, (list, tuple)) else [results]:
        if isinstance(result, torch.ScriptObject):
            result.wait()  # type: ignore[attr-defined]
    with torch.no_grad():
        for on_device, on_host, written in copies:
            if written:
                on_device.copy_(on_host)

    def restore_tensors(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return next((on_device for on_device, on_host, _ in copies if on_host.is_set_to(value)), value)
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
    """Replace the functions that make groups by ones that refuse NCCL, since it needs GPUs of this machine."""
    module = torch.distributed.distributed_c10d
    for name in ("init_process_group", "new_group"):
        original = getattr(module, name)
        checked = _without_nccl(original, name)
        for namespace in (module, torch.distributed):
            if getattr(namespace, name, None) is original:
                setattr(namespace, name, checked)


def _without_nccl(make: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return ``make`` without NCCL; where ``init_process_group`` is given no backend, it takes gloo."""
    position = 0 if name == "init_process_group" else 2  # of the argument ``backend``

    @functools.wraps(make)
    def checked(*args: Any, **kwargs: Any) -> Any:
        backend = args[position] if len(args) > position else kwargs.get("backend")
        if "nccl" in str(backend).lower():
            raise Unsupported(
                f"torch.distributed.{name}: NCCL joins GPUs of this machine, and the virtual device is none",
                remedy="use backend='gloo', also for a group of one process (edge_offload)",
            )
        if backend is None and name == "init_process_group":
            return make("gloo", *args[1:], **{key: value for key, value in kwargs.items() if key != "backend"})
        return make(*args, **kwargs)

    return checked
