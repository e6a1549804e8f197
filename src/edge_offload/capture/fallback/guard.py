"""A device guard for "cuda" that does nothing, where torch has none, or one for a GPU of this machine.

torch will not name a device without a guard. From 2.6 on it has one that does nothing, and puts it in place where a
build with CUDA finds no GPU (``torch._C._ensureCUDADeviceGuardSet``); a build without CUDA has no guard to replace, so
it is shown a stand-in that counts no devices, for the length of that one call. An older torch lends the guard of its
meta device, which does nothing either; but that one names its own device when it is asked for the current one, so
device "cuda" has to be given its number before it gets there.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Callable

import torch

from edge_offload.capture import build
from edge_offload.errors import Unsupported

_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_CUDA, _META = 1, 14  # c10::DeviceType
_VIRTUAL_FUNCTIONS = 128  # more than the interface has


def set_guard() -> bool:
    """Put the guard in place; whether "cuda" has to be numbered (:func:`number_devices`).

    Raises:
        Unsupported: this torch does not let us.
    """
    try:
        library = ctypes.CDLL(str(build.torch_directory() / "lib" / "libc10.so"))
        slot = (ctypes.c_void_p * (_META + 1)).in_dll(library, _REGISTRY)
    except (OSError, ValueError) as error:
        raise Unsupported(
            f"torch {torch.__version__} has no place for a device without a compiler: {error}",
            remedy="apt install g++: the native device can do it",
        ) from None
    ensure = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if ensure is None:
        if not slot[_META]:
            raise Unsupported(f"torch {torch.__version__} has no guard to lend", remedy="apt install g++")
        slot[_CUDA] = slot[_META]
        return True
    zero = ctypes.CFUNCTYPE(ctypes.c_long)(lambda: 0)
    table = (ctypes.c_void_p * _VIRTUAL_FUNCTIONS)(*[ctypes.cast(zero, ctypes.c_void_p).value] * _VIRTUAL_FUNCTIONS)
    stand_in = ctypes.c_void_p(ctypes.addressof(table))
    real = slot[_CUDA]
    slot[_CUDA] = ctypes.addressof(stand_in)
    ensure()
    if slot[_CUDA] == ctypes.addressof(stand_in):
        slot[_CUDA] = real
        raise Unsupported(
            f"torch {torch.__version__} did not take a device guard", remedy="apt install g++: the native device can"
        )
    return False


def number_devices() -> None:
    """Let "cuda" be "cuda:0" wherever torch would ask which one is the current one."""

    def numbered(value: Any) -> Any:
        if isinstance(value, (str, torch.device)) and str(value) == "cuda":
            return torch.device("cuda", 0)
        return value

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if "device" in kwargs:
                kwargs["device"] = numbered(kwargs["device"])
            return function(*[numbered(value) for value in args], **kwargs)

        return call

    def cuda(tensor: Any, device: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(device, int):
            device = torch.device("cuda", device)
        return tensor.to(device if device is not None else "cuda:0", **kwargs)

    for owner, name in (
        (torch.Tensor, "to"), (torch.Tensor, "new_tensor"), (torch, "tensor"), (torch, "as_tensor"),
        (torch, "asarray"),
    ):  # fmt: skip
        setattr(owner, name, wrap(getattr(owner, name)))
    torch.Tensor.cuda = cuda  # type: ignore[method-assign,assignment]
