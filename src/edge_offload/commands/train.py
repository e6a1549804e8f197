"""Train a network, on synthetic or on your own data; an interrupted training is resumed by the same command.

  edge-offload train TARGET --help     what a target needs and what it writes

A training keeps its state in one folder: a checkpoint (safetensors: nothing in it can be executed) and a log as CSV.
It may be killed at any moment; the same command goes on from the last checkpoint and gives the same curve.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`edge_offload.commands`."""
    from edge_offload.models import training_targets

    targets = parser.add_subparsers(dest="target", metavar="TARGET", required=True)
    for info in sorted(pkgutil.iter_modules(training_targets.__path__), key=lambda item: item.name):
        module = importlib.import_module(f"{training_targets.__name__}.{info.name}")
        text = (module.__doc__ or "").strip()
        target = targets.add_parser(
            info.name.replace("_", "-"),
            help=text.splitlines()[0] if text else "",
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(target)
        target.set_defaults(train=module.run)


def run(args: argparse.Namespace) -> int:
    """See :mod:`edge_offload.commands`."""
    code: int = args.train(args)
    return code
