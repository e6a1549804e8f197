"""``edge-offload``: everything that works without ROS, as subcommands (see :mod:`edge_offload.commands`)."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import signal
import sys
import tempfile
import traceback
from typing import List, Optional

from edge_offload import beside, commands, outputs, places, subcommands
from edge_offload.errors import EdgeOffloadError, in_words, without_module

INTERRUPTED = 128 + signal.SIGINT
"""Exit code after Ctrl-C, as a shell has it."""

DEFECT = 70
"""Exit code of an error that nobody has foreseen (EX_SOFTWARE of sysexits.h)."""


def build_parser() -> argparse.ArgumentParser:
    """The parser with one subparser per command, those of distributions beside this one included."""
    parser = subcommands.Subparser(
        prog="edge-offload",
        description="Run a robot's neural networks wherever they finish first.",
        epilog="'edge-offload COMMAND --help' explains a command.",
    )
    modules = {**beside.commands(), **subcommands.modules_of(commands)}
    absent = {name: verb.summary for name, verb in beside.VERBS.items() if name not in modules}
    subcommands.add(parser, modules, "command", "run", absent)
    return parser


def main(argv: Optional[List[str]] = None) -> int:
    """Parse ``argv`` (default: the process's arguments), run the command, return its exit code.

    Every error is one line on stderr; one that nobody has foreseen leaves its traceback in a file that the line names.
    """
    try:
        parser = build_parser()
        args = parser.parse_args(argv)
    except KeyboardInterrupt:
        return INTERRUPTED
    args.root_parser = parser  # completion describes it
    try:
        if args.run is None:
            raise beside.absent(beside.VERBS[args.command].package) or AssertionError(args.command)
        outputs.check_outputs(args)
        if os.environ.get("EDGE_OFFLOAD_EXEC_MODE"):
            import torch  # noqa: F401 - under exec its import installs the virtual device, which needs our modules whole
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "edge_offload":
            return _unforeseen(args.command, error)
        return _print_error(args.command, str(beside.absent(error.name) or without_module(error)), 1)
    except BrokenPipeError:
        # the reader (head, less) went away: not an error of ours; keep the interpreter from flushing again
        _leave_output()
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except (EdgeOffloadError, OSError, MemoryError) as error:
        if isinstance(error, OSError) and error.filename is None:
            _leave_output()  # a full disk behind standard output would be told once more at the exit
        explained = places.explained(error) if isinstance(error, OSError) else error
        return _print_error(args.command, in_words(explained, f"see 'edge-offload {args.command} --help'"), 1)
    except Exception as error:
        return _unforeseen(args.command, error)


def _leave_output() -> None:
    """Discard what is still to be printed."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unforeseen(command: str, error: Exception) -> int:
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{type(error).__name__}: {error} ({pathlib.Path(last.filename).name}:{last.lineno})"
    return _print_error(command, f"a defect of edge_offload: {place}; {_store_traceback()}", DEFECT)


def _print_error(command: str, text: str, code: int) -> int:
    print(f"edge-offload {command}: {' '.join(text.split())}", file=sys.stderr)
    return code


def _store_traceback() -> str:
    """Put the traceback where it can be sent from, and say where that is."""
    text = traceback.format_exc()
    try:
        path = places.cache_folder() / "last-error.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except (OSError, EdgeOffloadError):
        try:  # a user without a home, or with one that cannot be written
            handle, name = tempfile.mkstemp(prefix="edge_offload-error-", suffix=".log")
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            path = pathlib.Path(name)
        except OSError as error:
            return f"its traceback could not be kept: {in_words(error)}"
    return f"please report it with {path}"


if __name__ == "__main__":
    sys.exit(main())
