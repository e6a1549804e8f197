"""A wall clock of its own for a child process, which can be stepped (libfaketime); the host's clock stays as it is."""

from __future__ import annotations

import glob
import os
import pathlib
import tempfile
from typing import List, Optional

from edge_offload.errors import Unsupported

PLACES = ("/usr/lib/*/faketime", "/usr/lib/faketime", "/usr/local/lib/faketime")


def find_library() -> Optional[str]:
    """Find libfaketime (the variant for programs with threads); None where it is not installed."""
    return next((path for place in PLACES for path in sorted(glob.glob(f"{place}/libfaketimeMT.so.1"))), None)


CUSTOMIZE = '''"""A process with a wall clock of its own sleeps in another way, from its start on, as do its children.

libfaketime breaks clock_nanosleep until a time of the monotonic clock, as time.sleep does it from Python 3.11 on, and
subprocess where it waits with a time limit: OSError 22. A sitecustomize that this one hides is run as well.
"""

import importlib.machinery
import importlib.util
import os
import sys
import threading
import time

time.sleep = lambda seconds: threading.Event().wait(seconds) and None
_here = [os.path.abspath(entry or os.curdir) for entry in sys.path].index(os.path.dirname(os.path.abspath(__file__)))
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path[_here + 1 :])
if _spec is not None and _spec.loader is not None:
    _spec.loader.exec_module(importlib.util.module_from_spec(_spec))
'''


class WallClock:
    """One clock: give :meth:`words` to the processes that shall have it, then :meth:`step` it while they run.

    Only the wall clock is changed. The monotonic clock stays true, as it does on a host whose clock is set.

    Raises:
        Unsupported: libfaketime is not installed.
    """

    def __init__(self) -> None:
        path = find_library()
        if path is None:
            raise Unsupported("a wall clock that jumps needs libfaketime (Debian: faketime)")
        self._library = path
        self._directory = tempfile.TemporaryDirectory(prefix="edge_offload_clock_")
        self._file = pathlib.Path(self._directory.name) / "offset"
        # not beside the clock: what a process imports from there is this alone
        self._customize = pathlib.Path(self._directory.name) / "python"
        self._customize.mkdir()
        (self._customize / "sitecustomize.py").write_text(CUSTOMIZE, encoding="ascii")
        self.step(0.0)

    def command_prefix(self) -> List[str]:
        """Return the words to put before a command."""
        path = [str(self._customize), os.environ.get("PYTHONPATH", "")]
        return [
            "env",
            f"LD_PRELOAD={self._library}",
            f"FAKETIME_TIMESTAMP_FILE={self._file}",
            "FAKETIME_CACHE_DURATION=1",  # it looks for a step once a second, not with every look at the clock
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            "DONT_FAKE_MONOTONIC=1",  # its name in older releases
            f"PYTHONPATH={os.pathsep.join(filter(None, path))}",
        ]

    def step(self, offset_s: float) -> None:
        """Set the clock to the host's plus ``offset_s``; the processes have it within a second."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{offset_s:+.3f}\n", encoding="ascii")
        os.replace(new, self._file)  # it may be read at any moment

    def close(self) -> None:
        """Remove what it left on disk; the processes must have ended."""
        self._directory.cleanup()
