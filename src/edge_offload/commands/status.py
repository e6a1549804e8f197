"""Print the state of a server: load, robots, models, and the promises of accuracy.

  edge-offload status                                this machine's server
  edge-offload status --server tcp://server:5700     another one, whose key is trusted here
  edge-offload status --json                         the same for programs

Columns for each robot with a promise, over the last ten seconds:
  bound      the promised loss of accuracy, 0 to 1
  drop       the loss by the staleness of its results, 0 to 1
  interval   frames from one result to the next
  batch      frames computed together
  late       share of its slots whose frame came too late, 0 to 1
"""

from __future__ import annotations

import argparse
import json
import math
from typing import List

from edge_offload.commands.serve import DEFAULT_BIND, status_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`edge_offload.commands`."""
    parser.add_argument(
        "--server", default=DEFAULT_BIND, metavar="ADDR", help=f"address of the server ({DEFAULT_BIND})"
    )
    parser.add_argument("--keys", metavar="DIR", help="key directory (default: the user's)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """See :mod:`edge_offload.commands`."""
    from edge_offload import background
    from edge_offload.link.security.keys import KeyStore
    from edge_offload.link.transport.client import Client
    from edge_offload.server.status import PromiseStatus, ServerStatus

    with Client(args.server, keys=KeyStore(args.keys) if args.keys else None) as client:
        timeout_s = 5.0
        client.wait_ready(timeout_s)
        body = background.result(client.request("status", timeout_s=timeout_s), timeout_s + 1.0).body
    status = ServerStatus.from_dict(body)
    if args.json:
        promises = [{**one, **{key: None for key, value in one.items() if value != value}} for one in body["promises"]]
        print(json.dumps({**body, "promises": promises}))
        return 0

    def row(one: PromiseStatus) -> List[str]:
        return [one.robot, one.model, f"{one.bound:g}", _shown(one.drop, 4), _shown(one.interval, 1),
                _shown(one.batch, 1), f"{one.late:.0%}"]  # fmt: skip

    print(f"device {status.device}, up {status.uptime_s:.0f} s: {status_line(status)}")
    if status.promises:
        print(f"{status.batches} batches, device idle {status.idle:.0%}")
        rows = [["robot", "model", "bound", "drop", "interval", "batch", "late"], *map(row, status.promises)]
        widths = [max(len(line[column]) for line in rows) for column in range(len(rows[0]))]
        for line in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
        for one in status.promises:
            if one.note:
                print(f"{one.robot} {one.note}")
    return 0


def _shown(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
