"""Starts a node, or the command line, under the Python that has torch. Imports nothing that a Python may lack."""

from __future__ import annotations

import atexit
import importlib
import os
import signal
import sys

from edge_offload.errors import PYTHON_VARIABLE, without_module
from edge_offload.nodes import module_of

#: Exit code of a node that is told to end before it has begun.
INTERRUPTED = 128 + signal.SIGINT
_REPLACED = "_EDGE_OFFLOAD_PYTHON_IN_USE"


def main(node: str) -> None:
    """Run a node and exit with its code."""
    _use_configured_python()
    # roslaunch ends nodes by SIGINT, and a shell has what it starts in the background ignore that. rospy listens to it
    # in any case, but only after the imports, which take seconds: a node told to end before would never know
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        module = importlib.import_module(module_of(node))
        from edge_offload.nodes.common.base import run_node

        code = run_node(module.NODE)
    except ModuleNotFoundError as error:
        print(f"{node}: {without_module(error)}", file=sys.stderr)
        code = 1
    except BrokenPipeError:
        # the reader of --help (head, less) went away; keep the flush below from failing again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    _leave(code)


def _leave(code: int) -> None:
    """End the process without taking the interpreter apart.

    A node has closed what it opened by now. What is left are threads that may be inside torch, or wait for a server
    that does not answer: the interpreter would wait for them, or pull their memory from under them, and roslaunch ends
    by SIGTERM what takes long.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def command() -> None:
    """Run the ``edge-offload`` command line, less what roslaunch adds to the arguments, and exit with its code."""
    _use_configured_python()
    try:
        from edge_offload.cli import main as run_command
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    sys.exit(run_command([argument for argument in sys.argv[1:] if not argument.startswith(("__name:=", "__log:="))]))


def _use_configured_python() -> None:
    """Replace this process by the same one under $EDGE_OFFLOAD_PYTHON, unless it runs under it already.

    catkin's wrappers name the system's Python, which seldom has torch. The mark left in the environment keeps a
    value that is itself a wrapper (a version manager's shim) from replacing the process for ever.
    """
    configured = os.environ.get(PYTHON_VARIABLE, "")
    if not configured or os.environ.pop(_REPLACED, "") == configured:
        return
    if os.path.abspath(configured) == os.path.abspath(sys.executable):
        return
    if not os.access(configured, os.X_OK):
        sys.exit(
            f"{os.path.basename(sys.argv[0])}: {PYTHON_VARIABLE} names {configured!r}, which is no executable file; "
            "unset it or correct it"
        )
    os.environ[_REPLACED] = configured
    sys.stdout.flush()
    os.execv(configured, [configured, *sys.argv])
