"""A native library in this process: looked for, built in the background where asked, loaded once."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import logging
import os
import pathlib
import threading
from typing import Any, Optional

from edge_offload.errors import Unsupported
from edge_offload.native.recipe import Recipe

_log = logging.getLogger(__name__)


def load_extension(name: str, path: pathlib.Path) -> Any:
    """The extension module ``name`` in the file ``path``.

    Raises:
        Unsupported: it does not load.
    """
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, str(path), loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except (ImportError, OSError) as error:
        raise Unsupported(f"{path.name} does not load: {error}", remedy=f"delete {path}: it is built anew") from error
    return module


class Library:
    """An extension module that this process can do without: absent until it has been built and loaded.

    Args:
        recipe: how it is made.
        switch: the environment variable that keeps it out by being 0.

    Attributes:
        module: what was loaded, or None.
        why_not: why it is useless here, and not looked for again; empty while it is there or may still come.
    """

    def __init__(self, recipe: Recipe, switch: str = "") -> None:
        self.module: Optional[Any] = None
        self.why_not = f"{switch}=0" if switch and os.environ.get(switch) == "0" else ""
        self._recipe = recipe
        self._path: Optional[pathlib.Path] = None
        self._lock = threading.Lock()
        self._thread: Optional[threading.Thread] = None
        self._stop = threading.Event()

    def look(self) -> Optional[Any]:
        """The module, loaded if it has been built by now; costs next to nothing once that is settled."""
        if self.module is None and not self.why_not:
            with self._lock:
                if self._exists() and self.module is None:
                    assert self._path is not None
                    try:
                        self.module = load_extension(self._recipe.name, self._path)
                    except Unsupported as error:
                        self.why_not = str(error)
                        _log.warning("%s: %s", self._recipe.what, error)
        return self.module

    def start(self) -> None:
        """Begin to build it in the background, unless it is there, is being built, or cannot be."""
        with self._lock:
            if self._thread is None and not self.why_not and not self._exists() and not self.why_not:
                self._thread = threading.Thread(target=self._build, name=f"build {self._recipe.name}")
                self._thread.start()

    def wait(self) -> None:
        """Until what :meth:`start` began is over."""
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        """End what is being built."""
        self._stop.set()
        self.wait()

    def _exists(self) -> bool:
        try:
            self._path = self._path or self._recipe.path()
        except Unsupported as error:
            self.why_not = str(error)
            _log.info("%s: %s", self._recipe.what, error)
            return False
        return self._path.exists()

    def _build(self) -> None:
        try:
            self._recipe.build(self._stop)
        except Unsupported as error:
            self.why_not = str(error)
            if not self._stop.is_set():
                _log.warning("%s: %s", self._recipe.what, error)
