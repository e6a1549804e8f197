"""Terminals in which the commands of a page are run one after the other. Standard library only.

A command that ends is run in the page's shell: what it exports and where it goes holds for the next ones. One that
stays (a server, a launch) gets a terminal of its own; when it has shown what it must, the next command is run beside
it, and at the end of its block it is ended as by Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shlex
import signal
import subprocess
import tempfile
import time
from typing import Callable, Dict, List, Optional, Sequence

TAIL_LINES = 25
END_S = 30.0
"""What a command may take to end after Ctrl-C."""


class Failed(Exception):
    """A command did not do what the page promises."""


class Terminals:
    """See the module.

    Args:
        folder: for the shell's state and what commands print; seen under the same path by what ``prefix`` starts.
        cwd, environment: where the page's shell begins.
        prefix: what every shell is started by, such as ``chroot DIR``.
    """

    def __init__(
        self, folder: pathlib.Path, cwd: str, environment: Dict[str, str], prefix: Sequence[str] = (), root: str = ""
    ) -> None:
        self._folder = folder
        self._root = root
        self._prefix = list(prefix)
        self._environment = environment
        self._staying: List[Staying] = []
        inside = str(folder)[len(root) :]
        self._state, self._cwd = f"{inside}/environment", f"{inside}/cwd"
        (folder / "environment").write_text("", encoding="utf-8")
        (folder / "cwd").write_text(cwd, encoding="utf-8")

    def run(self, text: str, limit_s: float) -> str:
        """Run a command that ends, and return what it printed.

        Raises:
            Failed: it did not end in time, or with another exit code than 0.
        """
        process, log = self._start(f"{text}\n_code=$?; declare -px > {self._state}; pwd > {self._cwd}; exit $_code")
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            _kill(process)
            raise Failed(f"it has not ended after {limit_s:g} s\n{_tail(log)}") from None
        if code:
            raise Failed(f"exit code {code}\n{_tail(log)}")
        return _read(log)

    def stay(self, text: str, shows: str, limit_s: float) -> None:
        """Start a command that stays, and wait until it has printed the pattern ``shows``.

        Raises:
            Failed: it has not, or it has ended.
        """
        process, log = self._start(text)
        self._staying.append(Staying(text, process))
        end = time.monotonic() + limit_s
        while not re.search(shows, _read(log)):
            if process.poll() is not None and not re.search(shows, _read(log)):
                raise Failed(f"it ended with exit code {process.returncode} and did not print {shows!r}\n{_tail(log)}")
            if time.monotonic() > end:
                raise Failed(f"it has not printed {shows!r} after {limit_s:g} s\n{_tail(log)}")
            time.sleep(0.1)

    def end(self, which: Callable[[str], bool] = lambda _: True) -> None:
        """Ctrl-C for everything that stays, or for the commands that are meant, the last first."""
        for staying in reversed([one for one in self._staying if which(one.text)]):
            staying.end()
            self._staying.remove(staying)

    def _start(self, text: str) -> tuple[subprocess.Popen[bytes], pathlib.Path]:
        handle, name = tempfile.mkstemp(dir=str(self._folder), suffix=".log")
        script = f'. {self._state}; cd "$(cat {self._cwd})" || exit 1\n{text}'
        with os.fdopen(handle, "wb") as log:
            process = subprocess.Popen(
                [*self._prefix, "bash", "-c", script], env=self._environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True, cwd=None if self._root else str(self._folder),
            )  # fmt: skip
        return process, pathlib.Path(name)


class Staying:
    """A command in a terminal of its own."""

    def __init__(self, text: str, process: subprocess.Popen[bytes]) -> None:
        self.text = text
        self.process = process

    def end(self) -> None:
        """Ctrl-C, and harder if it does not heed that."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        _kill(self.process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(log: pathlib.Path) -> str:
    return re.sub(r"\x1b\[[0-9;]*m|\x1b\][^\x07]*\x07", "", log.read_text(encoding="utf-8", errors="replace"))


def _tail(log: pathlib.Path, most: Optional[int] = TAIL_LINES) -> str:
    return "\n".join(f"    | {line}" for line in _read(log).splitlines()[-(most or TAIL_LINES) :])


def quoted(arguments: Sequence[str]) -> str:
    """The words as a shell reads them."""
    return " ".join(shlex.quote(word) for word in arguments)
