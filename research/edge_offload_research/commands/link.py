"""Emulate a wireless link in front of a server, list the named links, steer a running emulator.

Examples:
  edge-offload link emulate --listen 127.0.0.1:5701 --to 127.0.0.1:5700 --link wifi_93mbps
  edge-offload link emulate --listen 127.0.0.1:5701 --to 10.0.0.5:5700 --trace my.csv --json-stats stats.json
  edge-offload link emulate --listen 127.0.0.1:5701 --to 127.0.0.1:5700 --rate-mbps 20 --rtt-ms 10
  edge-offload link control 127.0.0.1:5799 cut how=blackhole
  edge-offload link control 127.0.0.1:5799 set mbps=5 rtt_s=0.2
  edge-offload link emulate --level packet --listen 127.77.1.2:5701 --to 127.0.0.1:5700 --link lte --impair loss=0.01
  edge-offload link list

The robot is given the --listen address instead of the server's. A trace is a CSV with the columns t_s and MBps, Mbps or
bytes_per_s (optionally rtt_ms, rtt_s, delay_ms or delay_s) and repeats for ever.

At the level tcp a proxy ends TCP on both sides. At the level packet IP packets are delayed, lost and queued between two
TUN devices, and robot and server have a connection of their own: the server is on this machine, --listen is an address
127.A.B.2 with an odd B, and the process is root, or all of it runs in 'unshare --user --map-root-user --net'.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, ContextManager, Dict, Optional

from edge_offload.outputs import add_output
from edge_offload.subcommands import options

if TYPE_CHECKING:
    from edge_offload_research.emulate.trace import Link

#: What is emulated.
LEVELS = ("tcp", "packet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Subcommands emulate, control, list, make-traces."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    emulate = actions.add_parser("emulate", help="relay a TCP port with a link's bandwidth and delay")
    emulate.add_argument("--listen", required=True, metavar="HOST:PORT", help="where robots connect (port 0: any free)")
    emulate.add_argument("--to", required=True, metavar="HOST:PORT", help="the server")
    which = emulate.add_mutually_exclusive_group()
    which.add_argument("--link", metavar="NAME", help="a named link ('edge-offload link list'); default wifi_93mbps")
    which.add_argument("--trace", metavar="FILE", help="a CSV trace")
    which.add_argument("--rate-mbps", type=float, metavar="R", help="constant bandwidth")
    emulate.add_argument("--rtt-ms", type=float, metavar="D", help="round trip time of the link (default: 2.6)")
    queue = "what may wait: per connection (default: 64), or for all at the level packet (256)"
    emulate.add_argument("--queue-kib", type=int, metavar="K", help=queue)
    emulate.add_argument("--level", choices=LEVELS, default="tcp", help="a proxy of TCP (default), or packets")
    impair = "of packets: loss, to_bad, to_good, loss_bad, jitter_s, reorder, duplicate, ...; up.loss for one direction"
    emulate.add_argument("--impair", nargs="+", default=[], metavar="NAME=VALUE", help=impair)
    emulate.add_argument("--seed", type=int, default=0, metavar="N", help="of losses and jitter (0)")
    emulate.add_argument("--control", metavar="HOST:PORT", default="127.0.0.1:0", help="control socket (loopback)")
    add_output(emulate, "--json-stats", metavar="FILE", help="keep this file up to date with the bytes carried")
    control = actions.add_parser("control", help="steer a running emulator: stats, set, link, cut, restore, ...")
    control.add_argument("address", metavar="HOST:PORT", help="the control address that 'emulate' printed")
    control.add_argument(
        "do", metavar="COMMAND", help="stats | set | link | cut | restore | ... (a wrong one names all)"
    )
    control.add_argument("arguments", nargs="*", metavar="NAME=VALUE", help="e.g. mbps=5, how=blackhole")
    actions.add_parser("list", help="the named links")
    make = actions.add_parser("make-traces", help="write the synthetic traces again (always the same)")
    make.add_argument("directory", nargs="?", help="where to (default: the installed package)")


def run(args: argparse.Namespace) -> int:
    """Run the chosen action."""
    return {"emulate": _run_emulator, "control": _control_emulator, "list": _list_traces, "make-traces": _make_traces}[
        args.action
    ](args)


def _run_emulator(args: argparse.Namespace) -> int:
    from edge_offload.errors import BadInput
    from edge_offload_research.emulate.control import ControlServer
    from edge_offload_research.emulate.trace import BYTES_PER_MBIT, RTT_S, Link, Trace, load_trace, named_link

    if args.rtt_ms is not None and not 0 <= args.rtt_ms < 60_000:
        raise BadInput(f"--rtt-ms {args.rtt_ms:g} is not a round trip time")
    if args.rate_mbps is not None and not 0 <= args.rate_mbps < 1e6:
        raise BadInput(f"--rate-mbps {args.rate_mbps:g} is not a bandwidth")
    if args.queue_kib is not None and args.queue_kib < 2:
        raise BadInput("--queue-kib must be at least 2")
    if args.impair and args.level == "tcp":
        raise BadInput("--impair is of packets", remedy="add --level packet")
    rtt_s = RTT_S if args.rtt_ms is None else args.rtt_ms / 1e3
    if args.trace:
        link = Link.of(pathlib.Path(args.trace).stem, load_trace(args.trace), rtt_s)
    elif args.rate_mbps is not None:
        link = Link.of("custom", Trace.constant_trace(args.rate_mbps * BYTES_PER_MBIT), rtt_s)
    else:
        link = named_link(args.link or "wifi_93mbps")
        if args.rtt_ms is not None:
            link = Link(link.name, link.up, link.down, rtt_s / 2, rtt_s / 2)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with _make_emulator(args, link) as emulator:
        control = ControlServer(emulator, args.control)
        about = {"listen": emulator.address, "to": args.to, "link": link.name, "control": control.address,
                 "level": emulator.stats()["level"]}  # fmt: skip
        print(json.dumps(about), flush=True)
        try:
            announced = False
            while not stop.wait(0.5):
                try:
                    _save_stats(args.json_stats, emulator.stats())
                except BadInput as error:
                    # the link goes on: robots depend on it, and the figures are printed at the end
                    if not announced:
                        print(f"edge-offload link: {error}", file=sys.stderr, flush=True)
                    announced = True
        finally:
            control.close()
            stats = emulator.stats()
            print(json.dumps(stats), flush=True)
            _save_stats(args.json_stats, stats)
    return 0


def _make_emulator(args: argparse.Namespace, link: Link) -> ContextManager[Any]:
    """The emulator of the level that was asked for, or the proxy and one line where packets are not possible."""
    from edge_offload.errors import Unsupported
    from edge_offload_research.emulate.emulator import Emulator

    queue_bytes = args.queue_kib and args.queue_kib << 10
    if args.level == "packet":
        try:
            return packet_emulator(args, link, queue_bytes)
        except Unsupported as error:
            print(f"edge-offload link: no packet level, so a proxy of TCP: {error}", file=sys.stderr, flush=True)
    return Emulator(args.listen, args.to, link, queue_bytes, seed=args.seed)


def packet_emulator(args: argparse.Namespace, link: Link, queue_bytes: Optional[int]) -> ContextManager[Any]:
    """The emulator of packets that the arguments of ``link emulate`` describe.

    Raises:
        BadInput: there is no such impairment, or an address cannot be used.
        Unsupported: this process may make no network devices, or there is no compiler.
    """
    from edge_offload_research.testbed.packets import impairments
    from edge_offload_research.testbed.packets.emulator import PacketEmulator

    values = options(args.impair)
    if queue_bytes:
        values.setdefault("queue_bytes", queue_bytes)
    pair = impairments.change_impairments(impairments.of_link(link), values)
    made: ContextManager[Any] = PacketEmulator(args.listen, args.to, link, pair, args.seed)
    return made


def _save_stats(path: Optional[str], stats: Dict[str, Any]) -> None:
    """Replace the file as a whole: a reader never sees half of it."""
    if not path:
        return
    from edge_offload import records

    records.write(path, "link_stats", stats)


def _control_emulator(args: argparse.Namespace) -> int:
    from edge_offload_research.emulate.control import Control

    arguments = options(args.arguments)
    with Control(args.address) as control:
        print(json.dumps(control.do(args.do, **arguments)))
    return 0


def _list_traces(_args: argparse.Namespace) -> int:
    from edge_offload_research.emulate.trace import named_links

    for name, text in named_links().items():
        print(f"{name:16s}{text}")
    return 0


def _make_traces(args: argparse.Namespace) -> int:
    from edge_offload_research.emulate.trace import TRACE_DIRECTORY, write_traces

    for path in write_traces(args.directory or TRACE_DIRECTORY):
        print(path, file=sys.stdout)
    return 0
