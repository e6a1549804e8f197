"""Starts a node, or the command line, under the Python that has torch. Imports the standard library only."""

from __future__ import annotations

import importlib
import os
import sys

PYTHON_VARIABLE = "EDGE_OFFLOAD_PYTHON"
_REPLACED = "_EDGE_OFFLOAD_PYTHON_IN_USE"


def main(node: str) -> None:
    """Run the node in module ``edge_offload.nodes.<node>`` and exit with its code."""
    _use_configured_python()
    module = importlib.import_module(f"edge_offload.nodes.{node}")
    from edge_offload.nodes.base import run_node

    sys.exit(run_node(module.NODE))


def command() -> None:
    """Run the ``edge-offload`` command line, less what roslaunch adds to the arguments, and exit with its code."""
    _use_configured_python()
    from edge_offload.cli import main as run_command

    sys.exit(run_command([argument for argument in sys.argv[1:] if not argument.startswith(("__name:=", "__log:="))]))


def _use_configured_python() -> None:
    """Replace this process by the same one under $EDGE_OFFLOAD_PYTHON, unless it runs under it already.

    catkin's wrappers name the system's Python, which seldom has torch. The mark left in the environment keeps a
    value that is itself a wrapper (a version manager's shim) from replacing the process for ever.
    """
    wanted = os.environ.get(PYTHON_VARIABLE, "")
    if not wanted or os.environ.pop(_REPLACED, "") == wanted:
        return
    if os.path.abspath(wanted) == os.path.abspath(sys.executable):
        return
    if not os.access(wanted, os.X_OK):
        sys.exit(
            f"{os.path.basename(sys.argv[0])}: {PYTHON_VARIABLE} names {wanted!r}, which is no executable file; "
            "unset it or correct it"
        )
    os.environ[_REPLACED] = wanted
    sys.stdout.flush()
    os.execv(wanted, [wanted, *sys.argv])
