"""Libraries that would use a GPU of this machine behind the virtual device's back: refused, by name.

TensorRT and pycuda ask no torch: what they compute would not be offloaded, and what torch holds on the virtual device
has no address that they could read. They can be imported; making a context is refused. Imports no torch: a program may
import them first, or alone.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from edge_offload.errors import Unsupported

_TENSORRT = (
    ("ICudaEngine", "create_execution_context"), ("ICudaEngine", "create_execution_context_without_device_memory"),
)  # fmt: skip
#: By module: its classes, and their methods that make a context or take one.
REFUSED: Dict[str, Tuple[Tuple[str, str], ...]] = {
    "pycuda._driver": (("Device", "make_context"), ("Device", "retain_primary_context"), ("Context", "attach")),
    "tensorrt": _TENSORRT, "tensorrt_bindings": _TENSORRT, "tensorrt_rtx": _TENSORRT,
    "tensorrt_rtx_bindings": _TENSORRT,
}  # fmt: skip


def watch() -> None:
    """Refuse from now on; for modules that are imported later."""
    sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Steps in after each of the modules has been loaded."""

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Any = None) -> Optional[Any]:
        if name not in REFUSED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads as usual, and puts the refusals in."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def create_module(self, spec: Any) -> Any:
        return self._real.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._real
        self._real.exec_module(module)
        for kind, method in REFUSED[module.__name__]:
            found = getattr(module, kind, None)
            if hasattr(found, method):
                setattr(found, method, _refusal(f"{module.__name__}.{kind}.{method}"))


def _refusal(what: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise Unsupported(
            f"{what} is not there on the virtual device: it would compute on a GPU of this machine, if there is one",
            remedy="run this model in PyTorch, or start the program without edge-offload exec (edge_offload)",
        )

    return refuse
