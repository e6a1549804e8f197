"""``edge-offload``: everything that works without ROS, as subcommands (see :mod:`edge_offload.commands`)."""

from __future__ import annotations

import argparse
import os
import sys
from typing import List, Optional

from edge_offload import beside, commands, subcommands
from edge_offload.errors import EdgeOffloadError, without_module


def build_parser() -> argparse.ArgumentParser:
    """The parser with one subparser per command, those of distributions beside this one included."""
    parser = argparse.ArgumentParser(
        prog="edge-offload",
        description="Run a robot's neural networks wherever they finish first.",
        epilog="'edge-offload COMMAND --help' explains a command.",
    )
    modules = {**beside.commands(), **subcommands.modules_of(commands)}
    absent = {name: verb.summary for name, verb in beside.VERBS.items() if name not in modules}
    subcommands.add(parser, modules, "command", "run", absent)
    return parser


def main(argv: Optional[List[str]] = None) -> int:
    """Parse ``argv`` (default: the process's arguments), run the command, return its exit code."""
    args = build_parser().parse_args(argv)
    try:
        if args.run is None:
            raise beside.absent(beside.VERBS[args.command].package) or AssertionError(args.command)
        code: int = args.run(args)
        return code
    except EdgeOffloadError as error:
        print(f"edge-offload {args.command}: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        lacking = beside.absent(error.name) or without_module(error)
        print(f"edge-offload {args.command}: {lacking}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # the reader (head, less) went away: not an error of ours; keep the interpreter from flushing again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
