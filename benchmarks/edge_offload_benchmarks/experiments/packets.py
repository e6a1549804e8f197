"""The packet emulator against its own settings: rate, delay, jitter and losses, measured by iperf3 and ping.

Robot and server are two network namespaces; iperf3 and ping know nothing of the emulator. Needs root, and
'apt install iperf3 iputils-ping'.

  edge-offload bench packets                                    every case, 30 s each (five minutes)
  edge-offload bench packets --case rate_93 --seconds 10
  edge-offload bench packets --json packets.json

error: (measured - set) / set. Rates are those of TCP payload. 'added' and 'fastest' have no setting: the round trip
over a link without delay and bandwidth limit, and the most that one core forwards. core: the emulator's share of one;
the kernel's work of delivering a packet is in it.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from edge_offload.outputs import add_output

FAR, PORT = "127.77.61.2", 5201
UNLIMITED_MBPS = 1e5
#: UDP payload and rate of the loss cases: many small packets, so that 30 s tell losses within 1 %.
UDP_BYTES, UDP_MBPS = 100, 16


@dataclass(frozen=True)
class Case:
    """One measurement.

    Attributes:
        tool: tcp or udp (iperf3), or ping.
        quantity: what is compared with ``set``: mbps, rtt_ms, jitter_ms, loss.
        set: the setting; None: there is none.
        mbps, rtt_ms: of the link, both ways unless ``down_mbps``.
        up: impairments from the robot to the server.
        reverse: the server sends.
    """

    tool: str
    quantity: str
    set: Optional[float]
    mbps: float = UNLIMITED_MBPS
    rtt_ms: float = 10.0
    down_mbps: Optional[float] = None
    up: Dict[str, float] = field(default_factory=dict)
    reverse: bool = False


CASES = {
    "rate_20": Case("tcp", "mbps", 20.0, 20.0),
    "rate_93": Case("tcp", "mbps", 93.0, 93.0, 2.6),
    "rate_200": Case("tcp", "mbps", 200.0, 200.0),
    "rate_down": Case("tcp", "mbps", 110.0, 44.0, down_mbps=110.0, reverse=True),
    "delay_10": Case("ping", "rtt_ms", 10.0, rtt_ms=10.0),
    "delay_100": Case("ping", "rtt_ms", 100.0, rtt_ms=100.0),
    "jitter_3": Case("ping", "jitter_ms", 3.0, rtt_ms=20.0, up={"jitter_s": 0.003}),
    "jitter_20": Case("ping", "jitter_ms", 20.0, rtt_ms=80.0, up={"jitter_s": 0.02}),
    "loss_1": Case("udp", "loss", 0.01, up={"loss": 0.01}),
    "loss_3": Case("udp", "loss", 0.03, up={"loss": 0.03}),
    "bursts": Case("udp", "loss", 0.005 / 0.255, up={"to_bad": 0.005, "to_good": 0.25}),
    "added": Case("ping", "rtt_ms", None, rtt_ms=0.0),
    "fastest": Case("tcp", "mbps", None, rtt_ms=0.0),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--case", action="append", choices=sorted(CASES), help="only this one (may be repeated)")
    parser.add_argument("--seconds", type=float, default=30.0, metavar="S", help="of each case (30)")
    parser.add_argument("--seed", type=int, default=0, help="of losses and jitter (0)")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the records packets_bench here")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload import records
    from edge_offload.errors import BadInput, Unsupported

    if args.seconds < 1:
        raise BadInput("--seconds must be at least 1")
    for program in ("iperf3", "ping"):
        if shutil.which(program) is None:
            raise Unsupported(f"{program} is not installed", remedy="apt install iperf3 iputils-ping")
    rows: List[Dict[str, Any]] = []
    print(f"{'case':10} {'tool':5} {'quantity':10} {'set':>8} {'measured':>9} {'error':>7} {'core':>5}")
    for name in args.case or CASES:
        row = {"case": name, **measure_case(CASES[name], args.seconds, args.seed)}
        rows.append(row)
        shown = ["-" if row[key] is None else f"{row[key]:{form}}" for key, form in (("set", ".4g"), ("error", "+.1%"))]
        print(f"{name:10} {row['tool']:5} {row['quantity']:10} {shown[0]:>8} {row['measured']:9.4g} {shown[1]:>7} "
              f"{row['core']:5.0%}", flush=True)  # fmt: skip
    if args.json is not None:
        records.write(args.json, "packets_bench", rows)
        print(f"wrote {args.json}", file=sys.stderr)
    return 0


def measure_case(case: Case, seconds: float, seed: int) -> Dict[str, Any]:
    """Run one case; the row without its name."""
    from edge_offload_research.emulate.trace import BYTES_PER_MBIT, Link, Trace
    from edge_offload_research.testbed.packets.emulator import PacketEmulator
    from edge_offload_research.testbed.packets.impairments import Impairments

    up, down = (Trace.constant_trace(mbps * BYTES_PER_MBIT) for mbps in (case.mbps, case.down_mbps or case.mbps))
    link = Link("bench", up, down, case.rtt_ms / 2e3, case.rtt_ms / 2e3)
    pair = Impairments(**case.up), Impairments()  # type: ignore[arg-type]
    to = f"127.0.0.1:{PORT}"
    with PacketEmulator(f"{FAR}:{PORT}", to, link, pair, seed, namespaces=True) as emulator:
        robot, server = (emulator.network.command_prefix(end) for end in ("robot", "server"))
        started_at, busy = time.monotonic(), time.process_time()
        if case.tool == "ping":
            measured = _run_ping(robot, case.quantity, seconds)
        else:
            measured = _run_iperf(robot, server, case, seconds)
        core = (time.process_time() - busy) / (time.monotonic() - started_at)
        stats = emulator.stats()
    error = None if case.set is None else (measured - case.set) / case.set
    counted = stats["lost_up"] / max(stats["packets_up"], 1)
    return {
        "tool": case.tool, "quantity": case.quantity, "set": case.set, "measured": measured, "error": error,
        "seconds": seconds, "packets": stats["packets_up"] + stats["packets_down"], "lost": counted,
        "dropped": stats["dropped_up"] + stats["dropped_down"], "core": core, "late_s": stats["late_s"],
    }  # fmt: skip


def _run_ping(robot: List[str], quantity: str, seconds: float) -> float:
    command = [*robot, "ping", "-q", "-i", "0.005", "-w", f"{seconds:.0f}", FAR]
    report = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    match = re.search(r"= ([\d.]+)/([\d.]+)/([\d.]+)/([\d.]+) ms", report)
    if match is None:
        raise RuntimeError(f"ping: {report}")
    return float(match.group(4 if quantity == "jitter_ms" else 2))


def _run_iperf(robot: List[str], server: List[str], case: Case, seconds: float) -> float:
    listening = [*server, "iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", str(PORT), "--forceflush"]
    command = [*robot, "iperf3", "-c", FAR, "-p", str(PORT), "-J", "-t", f"{seconds:.0f}"]
    # the slow start is left out; iperf3 would count the losses of omitted UDP packets, but not the packets
    command += ["-O", "2"] if case.tool == "tcp" else []
    if case.tool == "udp":
        command += ["-u", "-b", f"{UDP_MBPS}M", "-l", str(UDP_BYTES), "-w", "4M"]
    if case.reverse:
        command.append("-R")
    with subprocess.Popen(listening, stdout=subprocess.PIPE, text=True) as serving:
        try:
            assert serving.stdout is not None
            while "listening" not in serving.stdout.readline():
                pass
            report = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
        finally:
            serving.kill()
    if "error" in report:
        raise RuntimeError(f"iperf3: {report['error']}")
    if case.tool == "udp":
        return float(report["end"]["sum"]["lost_percent"]) / 100
    return float(report["end"]["sum_received"]["bits_per_second"]) / 1e6
