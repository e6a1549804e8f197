"""What ``edge-offload link emulate --level packet`` runs (see :mod:`edge_offload.commands.link`)."""

from __future__ import annotations

import argparse
from typing import Optional

from edge_offload import subcommands
from edge_offload.link.emulate.trace import Link
from edge_offload_research.testbed.packets import impairments
from edge_offload_research.testbed.packets.emulator import PacketEmulator


def emulator(args: argparse.Namespace, link: Link, queue_bytes: Optional[int]) -> PacketEmulator:
    """The emulator that the arguments of ``link emulate`` describe.

    Raises:
        BadInput: there is no such impairment, or an address cannot be used.
        Unsupported: this process may make no network devices, or there is no compiler.
    """
    values = subcommands.options(args.impair)
    if queue_bytes:
        values.setdefault("queue_bytes", queue_bytes)
    pair = impairments.changed(impairments.of_link(link), values)
    return PacketEmulator(args.listen, args.to, link, pair, args.seed)
