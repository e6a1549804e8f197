"""Builds ``kernels.c`` with the system's C compiler on first use and loads it; numpy serves until it is there.

The library is kept as :mod:`edge_offload.native.recipe` says, by source, compiler, flags, interpreter and processor.
``EDGE_OFFLOAD_NATIVE=0`` keeps to numpy.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import pathlib
import platform
import shlex
import shutil
import sysconfig
import threading
from typing import Any, List, Optional

from edge_offload.errors import Unsupported
from edge_offload.native.recipe import Recipe

_SOURCE = pathlib.Path(__file__).with_name("kernels.c")
_MODULE = "edge_offload_kernels"
_FLAGS = ("-O3", "-shared", "-fPIC", "-fno-strict-aliasing")
#: clang on ARM knows the second, not the first.
_TUNINGS = (("-march=native",), ("-mcpu=native",), ())


def compiler() -> List[str]:
    """The C compiler as an argument list: ``$CC``, else cc, gcc or clang.

    Raises:
        Unsupported: there is none.
    """
    chosen = shlex.split(os.environ.get("CC", ""))
    for candidate in [chosen] if chosen else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(candidate[0]):
            return candidate
    raise Unsupported("no C compiler", remedy="apt install gcc, or set CC; until then numpy does the work")


def recipe() -> Recipe:
    """How the library for this source, compiler, interpreter and processor is built.

    Raises:
        Unsupported: no compiler, or no Python headers.
    """
    headers = pathlib.Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").exists():
        raise Unsupported("no Python headers", remedy="apt install python3-dev; until then numpy does the work")
    suffix = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
    flags = (*_FLAGS, f"-I{headers}")
    return Recipe(_MODULE, _SOURCE, tuple(compiler()), flags, suffix, _TUNINGS, (_processor(),))


def _processor() -> str:
    """What -march=native depends on, so that a shared home folder serves unlike machines."""
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    wanted = ("model name", "flags", "features", "cpu part", "cpu implementer")
    lines = {line.strip() for line in text.splitlines() if line.lower().startswith(wanted)}
    return "\n".join([platform.machine(), *sorted(lines)])


def load(path: pathlib.Path) -> Any:
    """The extension module at ``path``.

    Raises:
        Unsupported: it does not load.
    """
    loader = importlib.machinery.ExtensionFileLoader(_MODULE, str(path))
    spec = importlib.util.spec_from_loader(_MODULE, loader)
    if spec is None:
        raise Unsupported(f"{path.name} is not an extension module")
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise Unsupported(f"{path.name} does not load: {error}", remedy=f"delete {path.parent}") from error
    return module


class Builder:
    """Provides the extension module: at once when cached, else from a background build.

    Attributes:
        why_not: why there is no module; empty while there is one, or may still be.
    """

    def __init__(self) -> None:
        self.why_not = ""
        self._module: Optional[Any] = None
        self._lock = threading.Lock()
        self._thread: Optional[threading.Thread] = None

    def module(self, wait: bool = False) -> Optional[Any]:
        """The module, or None while it is being built and when it cannot be. ``wait``: for the build to end."""
        if self._module is not None or self.why_not:
            return self._module
        with self._lock:
            if self._thread is None and not self._settled():
                self._thread = threading.Thread(target=self._work, name="codec-kernels-build")
                self._thread.start()
            thread = self._thread
        if wait and thread is not None:
            thread.join()
        return self._module

    def _settled(self) -> bool:
        if os.environ.get("EDGE_OFFLOAD_NATIVE", "1") == "0":
            self.why_not = "EDGE_OFFLOAD_NATIVE=0"
        else:
            try:
                path = recipe().path()
                if path.exists():
                    self._module = load(path)
            except Unsupported as error:
                self.why_not = str(error)
        return self._module is not None or bool(self.why_not)

    def _work(self) -> None:
        try:
            self._module = load(recipe().build())
        except Unsupported as error:
            self.why_not = str(error)
