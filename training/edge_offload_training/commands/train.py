"""Train a network, on synthetic or on your own data; an interrupted training is resumed by the same command.

  edge-offload train TARGET --help     what a target needs and what it writes

A training keeps its state in one folder: a checkpoint (safetensors: nothing in it can be executed) and a log as CSV.
It may be killed at any moment; the same command goes on from the last checkpoint and gives the same curve.
"""

from __future__ import annotations

import argparse

from edge_offload import subcommands


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`edge_offload.commands`."""
    from edge_offload_training import targets

    subcommands.add(parser, subcommands.modules_of(targets), "target", "train")


def run(args: argparse.Namespace) -> int:
    """See :mod:`edge_offload.commands`."""
    code: int = args.train(args)
    return code
