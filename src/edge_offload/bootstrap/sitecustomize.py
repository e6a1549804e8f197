"""Runs at the start of a program launched by ``edge-offload exec``: sets the virtual device up around ``import torch``.

It changes nothing until the program imports torch, or what would use a GPU of this machine. A ``sitecustomize`` that
was there before is run as well.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any, Optional

_HERE = os.path.dirname(os.path.abspath(__file__))


class _TorchLoader(importlib.abc.Loader):
    """Loads torch as usual, between the two halves of setting the device up."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def create_module(self, spec: Any) -> Any:
        return self._real.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = self._real
        module.__loader__ = self._real
        self._real.exec_module(module)
        from edge_offload.errors import EdgeOffloadError

        try:
            if os.environ["EDGE_OFFLOAD_EXEC_MODE"] == "split":
                from edge_offload.modes.split.unmodified import program as split_program

                split_program.from_environment()
            else:
                from edge_offload.device import installation

                installation.from_environment()
        except EdgeOffloadError as error:
            raise SystemExit(f"edge-offload exec: {error}") from None


class _TorchFinder(importlib.abc.MetaPathFinder):
    """Steps in once, for ``import torch``."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[Any]:
        if name != "torch" or path is not None:
            return None
        sys.meta_path.remove(self)
        from edge_offload.device import installation
        from edge_offload.errors import EdgeOffloadError

        try:
            installation.preload()
        except EdgeOffloadError as error:
            raise SystemExit(f"edge-offload exec: {error}") from None
        spec = importlib.util.find_spec("torch")
        assert spec is not None
        spec.loader = _TorchLoader(spec.loader)
        return spec


def _chain() -> None:
    """Run the ``sitecustomize`` that this one hides, if any."""
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_chain()
if os.environ.get("EDGE_OFFLOAD_EXEC_MODE"):
    sys.meta_path.insert(0, _TorchFinder())
    try:
        from edge_offload.device import gpu_libraries
    except ImportError:  # another Python, started by the program
        pass
    else:
        gpu_libraries.watch()
