"""What ``edge-offload exec`` starts: a Python that takes the virtual device in, or a program that may start one.

The device comes into a Python by ``sitecustomize`` on ``PYTHONPATH``. A Python that ignores it is refused. Of any other
program (a shell, ``env``, a wrapper) the launcher waits for the end, and for a report that a Python has the device.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import Any, Dict, List, Optional, Sequence

from edge_offload.errors import BadInput, in_words
from edge_offload.parent import with_parent

REPORT, LAUNCHER = "EDGE_OFFLOAD_EXEC_REPORT", "EDGE_OFFLOAD_EXEC_PYTHON"
_PYTHON = re.compile(r"python[\d.]*t?d?")
_WITH_VALUE, _LAST = "WXQ", "cm"
#: Options by which a Python takes nothing from ``PYTHONPATH``, or runs no ``sitecustomize``.
_IGNORING = "EIS"
_PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


def python_arguments(program: Sequence[str]) -> Optional[List[str]]:
    """The arguments of the Python that ``program`` is, those of its first line included; None if it is no Python."""
    path = shutil.which(program[0])
    if path is None:
        return None
    with contextlib.suppress(OSError):
        with open(path, "rb") as stream:
            first = stream.readline(256)
        if not first.startswith(b"#!"):
            return list(program[1:]) if _PYTHON.fullmatch(pathlib.Path(path).name) else None
        parts = shlex.split(first[2:].decode(errors="replace"))
        if parts and pathlib.Path(parts[0]).name == "env":
            parts = [word for word in parts[1:] if word != "-S"]
        if parts and _PYTHON.fullmatch(pathlib.Path(parts[0]).name):
            return [*parts[1:], path, *program[1:]]
    return None


def ignoring_option(arguments: Sequence[str]) -> str:
    """The option, such as ``-E``, by which Python with these arguments never runs ``sitecustomize``; or nothing."""
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        option = rest.pop(0)
        if option.startswith("--"):
            rest = rest[1:] if option == "--check-hash-based-pycs" else rest
            continue
        for place, letter in enumerate(option[1:], 1):
            if letter in _IGNORING:
                return f"-{letter}"
            if letter in _LAST:
                return ""
            if letter in _WITH_VALUE:
                rest = rest if option[place + 1 :] else rest[1:]
                break
    return ""


def accepts_device(program: Sequence[str], absent_local: bool) -> bool:
    """Checks that ``program`` is a Python that takes the device in, so that it can replace the launcher.

    Args:
        program: with its arguments.
        absent_local: the program may run without the device, which is said.

    Raises:
        BadInput: it is a Python that ignores what brings the device.
    """
    arguments = python_arguments(program)
    if arguments is None:
        return False
    option = ignoring_option(arguments)
    if not option:
        return True
    cause = f"{program[0]} {option} does not take in the virtual device, which comes by PYTHONPATH and sitecustomize"
    if not absent_local:
        raise BadInput(cause, remedy=f"leave {option} out, or add --absent local to compute on this machine")
    print(f"edge-offload exec: {cause}: everything is computed on this machine", file=sys.stderr, flush=True)
    return True


def explain_failed_start(program: str, error: OSError) -> BadInput:
    """Return the cause and the remedy of a program that the kernel did not start."""
    remedy = f"name its interpreter, as in: sh {program}" if error.errno == errno.ENOEXEC else ""
    return BadInput(f"cannot run {program}: {error.strerror}", remedy)


def run_watched(program: Sequence[str], environment: Dict[str, str], absent_local: bool) -> int:
    """Run a program that is no Python itself, and wait for it; signals are passed on.

    Args:
        program: with its arguments.
        environment: of the program.
        absent_local: it may have computed on this machine alone, which is said.

    Returns:
        Its exit code, 128 and the signal's number if it was killed, or 1 if no Python in it took the device in.
    """
    with tempfile.NamedTemporaryFile(prefix="edge_offload-exec-") as report:
        code = _run_and_wait({**environment, REPORT: report.name}, program)
        reports = set(report.read().decode().split())
    if reports & {"device", "local"}:
        return code
    if "python" in reports:
        if code == 0:
            text = f"nothing was offloaded: no Python of {program[0]} imported torch"
            print(f"edge-offload exec: {text}", file=sys.stderr, flush=True)
        return code
    cause = f"no Python of {program[0]} took the virtual device in"
    if absent_local:
        print(f"edge-offload exec: {cause}: everything was computed on this machine", file=sys.stderr, flush=True)
        return code
    remedy = "keep PYTHONPATH as it is set, without python -E, -I or -S, or name the Python: exec -- python program.py"
    print(f"edge-offload exec: {in_words(BadInput(cause, remedy=remedy))}", file=sys.stderr, flush=True)
    return code or 1


def _run_and_wait(environment: Dict[str, str], program: Sequence[str]) -> int:
    numbers = [getattr(signal, name) for name in _PASSED_ON]
    child: List[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: Any) -> None:
        # a terminal reaches the whole group, the program included
        if child and not (number in (signal.SIGINT, signal.SIGQUIT) and _from_terminal()):
            with contextlib.suppress(ProcessLookupError):
                child[0].send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        child.append(subprocess.Popen(list(program), env=environment, preexec_fn=with_parent()))
        code = child[0].wait()
    except OSError as error:
        raise explain_failed_start(program[0], error) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _from_terminal() -> bool:
    """True if this process is in the foreground of a terminal, whose keys reach its whole group."""
    try:
        descriptor = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(descriptor)
