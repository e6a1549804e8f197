"""Runs at the start of a program launched by ``edge-offload exec``: sets the virtual device up around ``import torch``.

It changes nothing until the program imports torch, or what would use a GPU of this machine. A ``sitecustomize`` that
was there before is run as well. What became of the device goes to the file of the launcher, if it waits for a report.
"""

import contextlib
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any, Optional

_HERE = os.path.dirname(os.path.abspath(__file__))


def _report(word: str) -> None:
    """Tell the launcher how far this Python is; nobody waits where there is no file."""
    path = os.environ.get("EDGE_OFFLOAD_EXEC_REPORT")
    if path:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
            os.write(descriptor, f"{word}\n".encode())
            os.close(descriptor)


def _print(text: str) -> None:
    print(f"edge-offload exec: {text}", file=sys.stderr, flush=True)


class _TorchLoader(importlib.abc.Loader):
    """Loads torch as usual, between the two halves of setting the device up."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def create_module(self, spec: Any) -> Any:
        return self._real.create_module(spec)

    def exec_module(self, module: Any) -> None:
        collects = gc.isenabled()
        gc.disable()  # of what is imported nothing is garbage, and to look for some takes a tenth of the time
        try:
            self._install_around(module)
        finally:
            gc.freeze()
            gc.unfreeze()  # all of it is old now: the next passes over new objects leave it out
            if collects:
                gc.enable()

    def _install_around(self, module: Any) -> None:
        module.__spec__.loader = self._real
        module.__loader__ = self._real
        self._real.exec_module(module)
        from edge_offload.errors import EdgeOffloadError

        try:
            if os.environ["EDGE_OFFLOAD_EXEC_MODE"] == "split":
                from edge_offload.modes.split.unmodified import program as split_program

                split_program.install_from_environment()
            else:
                from edge_offload.device import installation

                installation.from_environment()
        except EdgeOffloadError as error:
            raise SystemExit(f"edge-offload exec: {error}") from None
        except ModuleNotFoundError as error:
            raise SystemExit(f"edge-offload exec: {_lacking(error)}") from None
        _report("device")


class _TorchFinder(importlib.abc.MetaPathFinder):
    """Steps in once, for ``import torch``."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[Any]:
        if name != "torch" or path is not None:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None:
            return None
        try:
            from edge_offload.device import connect, installation, visible
            from edge_offload.errors import EdgeOffloadError
        except ImportError as error:
            if os.environ.get("EDGE_OFFLOAD_EXEC_ABSENT") != "local":
                raise SystemExit(f"edge-offload exec: {_lacking(error)}") from None
            _print(f"{_lacking(error)}; everything is computed on this machine")
            _report("local")
            return spec
        if not visible.is_visible(os.environ):
            _print(f"{visible.VARIABLE}={os.environ[visible.VARIABLE]} hides the virtual GPU: nothing is offloaded")
            _report("local")
            return spec
        try:
            installation.preload_guard()
            connect.dial_server(connect.ExecSettings.from_environment(os.environ))
        except EdgeOffloadError as error:
            raise SystemExit(f"edge-offload exec: {error}") from None
        spec.loader = _TorchLoader(spec.loader)
        return spec


def _lacking(error: ImportError) -> str:
    """What this Python lacks, and the remedy."""
    what = f"the package {error.name.split('.')[0]}" if error.name else str(error)
    launcher = os.environ.get("EDGE_OFFLOAD_EXEC_PYTHON", "")
    other = f", or start the program with {launcher}" if launcher else ""
    return f"{sys.executable} lacks {what}, which the virtual device needs; install edge_offload into it{other}"


def _chain() -> None:
    """Run the ``sitecustomize`` that this one hides, if any."""
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _gpu_libraries() -> Any:
    """The module of that name, by its path: this Python may lack the package."""
    path = os.path.join(os.path.dirname(_HERE), "device", "gpu_libraries.py")
    spec = importlib.util.spec_from_file_location("_edge_offload_gpu_libraries", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_chain()
if os.environ.get("EDGE_OFFLOAD_EXEC_MODE"):
    _report("python")
    sys.meta_path.insert(0, _TorchFinder())
    _gpu_libraries().watch_imports()
