"""The C++ runner of nodes (``native/nodes.cpp``): built beside a server that is at work, used as soon as it is there.

Without it, and without a compiler, nodes are run by :mod:`~edge_offload.execute.session.program`, with equal results.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import logging
import os
import pathlib
import signal
import subprocess
import sys
import threading
from typing import Any, Optional

from edge_offload.errors import EdgeOffloadError
from edge_offload.native import build
from edge_offload.native.recipe import Telling

_log = logging.getLogger(__name__)
NAME = "edge_offload_nodes"


class Library:
    """The runner in this process: absent until it has been built and loaded.

    Attributes:
        module: what was loaded, or None.
    """

    def __init__(self) -> None:
        self.module: Optional[Any] = None
        self._path: Optional[pathlib.Path] = None
        self._useless = False  # it does not load here

    def look(self) -> None:
        """Load it if it has been built by now; costs next to nothing when that was done, or is not to be had."""
        if self.module is not None or self._useless:
            return
        if self._path is None:
            self._path = build.nodes_path()
        if not self._path.exists():
            return
        loader = importlib.machinery.ExtensionFileLoader(NAME, str(self._path))
        spec = importlib.util.spec_from_file_location(NAME, str(self._path), loader=loader)
        assert spec is not None
        try:
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
        except (ImportError, OSError) as error:
            self._useless = True
            _log.warning("steps of data-dependent size run in Python: %s; without that file it is built anew", error)
            return
        self.module = module


library = Library()


class Builder:
    """Builds the runner in a process of its own, at low priority, unless it is there or there is no compiler."""

    def __init__(self) -> None:
        self._process: Optional[subprocess.Popen[str]] = None
        self._teller: Optional[threading.Thread] = None

    def start(self) -> None:
        """Begin, if there is anything to do."""
        try:
            if build.compiler() is None or build.nodes_path().exists():
                return
            command = [sys.executable, "-m", "edge_offload.native.build", *build.NODES]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                start_new_session=True,
            )  # fmt: skip
            self._teller = threading.Thread(target=self._tell, args=(self._process,), name="build", daemon=True)
            self._teller.start()
        except (EdgeOffloadError, OSError) as error:
            _log.info("steps of data-dependent size run without native code: %s", error)

    @staticmethod
    def _tell(process: subprocess.Popen[str]) -> None:
        """Say that it is being built until it is, and why if it cannot be."""
        telling = Telling(build.words(build.NODES), build.nodes_path().parent)
        telling.begin()
        _, said = process.communicate()
        telling.end(done=process.returncode == 0)
        if process.returncode > 0:
            _log.warning("steps of data-dependent size run in Python: %s", (said.splitlines() or ["?"])[-1])

    def stop(self) -> None:
        """End what is being built."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()
        if self._teller is not None:
            self._teller.join()
