"""Run an experiment: every number that the documentation quotes comes out of one of these.

  edge-offload bench codecs --json codecs.json --plot codecs.png      payload codecs: ratio and speed
  edge-offload bench EXPERIMENT --help                                what an experiment measures, and its options

An experiment is a module of edge_offload_benchmarks.experiments, found by its name. It prints a table and writes JSON
that follows the schema of edge_offload; plots are drawn from that data. Speeds depend on the machine and on what else
it is doing.
"""

from __future__ import annotations

import argparse

from edge_offload import subcommands


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One subparser per module of :mod:`edge_offload_benchmarks.experiments` that has ``add_arguments`` and ``run``."""
    from edge_offload_benchmarks import experiments

    subcommands.add(parser, subcommands.modules_of(experiments), "experiment", "experiment_run")


def run(args: argparse.Namespace) -> int:
    """Run the chosen experiment."""
    code: int = args.experiment_run(args)
    return code
