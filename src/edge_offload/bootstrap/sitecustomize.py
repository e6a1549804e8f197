"""Runs at the start of a program launched by ``edge-offload exec``: sets the virtual device up around ``import torch``.

Nothing changes until the program imports torch, or a library that would use a GPU of this machine. Another
``sitecustomize``, which this one hides, is executed first. The progress (``python``, then ``device`` or ``local``) is
appended to the file named by ``EDGE_OFFLOAD_EXEC_REPORT``, if the launcher set it.
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
    """Append ``word`` to the launcher's report file; does nothing where there is none."""
    path = os.environ.get("EDGE_OFFLOAD_EXEC_REPORT")
    if path:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
            os.write(descriptor, f"{word}\n".encode())
            os.close(descriptor)


def _print(text: str) -> None:
    print(f"edge-offload exec: {text}", file=sys.stderr, flush=True)


class _TorchLoader(importlib.abc.Loader):
    """Loads torch by its real loader, then installs the virtual device."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def create_module(self, spec: Any) -> Any:
        return self._real.create_module(spec)

    def exec_module(self, module: Any) -> None:
        was_enabled = gc.isenabled()
        gc.disable()  # an import makes no garbage, and searching for it takes a tenth of the import's time
        try:
            self._load_and_install(module)
        finally:
            gc.freeze()
            gc.unfreeze()  # moves all objects to the oldest generation, which collections of young objects skip
            if was_enabled:
                gc.enable()

    def _load_and_install(self, module: Any) -> None:
        """Execute torch's module, then install the virtual device.

        Raises:
            SystemExit: the device cannot be installed; the message is one line.
        """
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
            raise SystemExit(f"edge-offload exec: {_describe_missing(error)}") from None
        _report("device")


class _TorchFinder(importlib.abc.MetaPathFinder):
    """Intercepts the first ``import torch``: preloads the guard library and begins to connect to the server."""

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
                raise SystemExit(f"edge-offload exec: {_describe_missing(error)}") from None
            _print(f"{_describe_missing(error)}; everything is computed on this machine")
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


def _describe_missing(error: ImportError) -> str:
    """Return an error text that names the missing package and the remedy."""
    what = f"the package {error.name.split('.')[0]}" if error.name else str(error)
    launcher = os.environ.get("EDGE_OFFLOAD_EXEC_PYTHON", "")
    other = f", or start the program with {launcher}" if launcher else ""
    return f"{sys.executable} lacks {what}, which the virtual device needs; install edge_offload into it{other}"


def _run_hidden_sitecustomize() -> None:
    """Run the ``sitecustomize`` that this one hides, if any."""
    other_entries = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", other_entries)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _load_gpu_libraries() -> Any:
    """Load ``device/gpu_libraries.py`` by its path, because this Python may lack the package."""
    path = os.path.join(os.path.dirname(_HERE), "device", "gpu_libraries.py")
    spec = importlib.util.spec_from_file_location("_edge_offload_gpu_libraries", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_run_hidden_sitecustomize()
if os.environ.get("EDGE_OFFLOAD_EXEC_MODE"):
    _report("python")
    sys.meta_path.insert(0, _TorchFinder())
    _load_gpu_libraries().watch_imports()
