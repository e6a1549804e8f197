"""Run an experiment: every number that the documentation quotes comes out of one of these.

  edge-offload bench codecs --json codecs.json --plot codecs.png      payload codecs: ratio and speed
  edge-offload bench EXPERIMENT --help                                what an experiment measures, and its options

An experiment is a module of edge_offload.bench, found by its name. It prints a table and writes JSON that follows the
schema of edge_offload; plots are drawn from that data. Speeds depend on the machine and on what else it is doing.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One subparser per module of :mod:`edge_offload.bench` that has ``add_arguments`` and ``run``."""
    from edge_offload import bench

    actions = parser.add_subparsers(dest="experiment", metavar="EXPERIMENT", required=True)
    for info in sorted(pkgutil.iter_modules(bench.__path__), key=lambda item: item.name):
        module = importlib.import_module(f"{bench.__name__}.{info.name}")
        if not hasattr(module, "run"):
            continue  # something that experiments share
        text = (module.__doc__ or "").strip()
        sub = actions.add_parser(
            info.name.replace("_", "-"),
            help=text.splitlines()[0] if text else "",
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(sub)
        sub.set_defaults(experiment_run=module.run)


def run(args: argparse.Namespace) -> int:
    """Run the chosen experiment."""
    code: int = args.experiment_run(args)
    return code
