"""``edge-offload``: everything that works without ROS, as subcommands (see :mod:`edge_offload.commands`)."""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from typing import List, Optional

from edge_offload import commands
from edge_offload.errors import EdgeOffloadError


def build_parser() -> argparse.ArgumentParser:
    """The parser with one subparser per module of :mod:`edge_offload.commands`."""
    parser = argparse.ArgumentParser(
        prog="edge-offload",
        description="Run a robot's neural networks wherever they finish first.",
        epilog="'edge-offload COMMAND --help' explains a command.",
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for info in sorted(pkgutil.iter_modules(commands.__path__), key=lambda item: item.name):
        module = importlib.import_module(f"{commands.__name__}.{info.name}")
        text = (module.__doc__ or "").strip()
        subparser = subparsers.add_parser(
            info.name.replace("_", "-"),
            help=text.splitlines()[0] if text else "",
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    return parser


def main(argv: Optional[List[str]] = None) -> int:
    """Parse ``argv`` (default: the process's arguments), run the command, return its exit code."""
    args = build_parser().parse_args(argv)
    try:
        code: int = args.run(args)
        return code
    except EdgeOffloadError as error:
        print(f"edge-offload {args.command}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # the reader (head, less) went away: not an error of ours; keep the interpreter from flushing again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
