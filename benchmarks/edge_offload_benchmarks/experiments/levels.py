"""The live client and server over both levels of the emulated link, side by side: the proxy of TCP, and packets.

At the level packet both ends are in network namespaces (root). Frames of 200 kB go up and 40 kB down, ten a second.

  edge-offload bench levels                            every case, 20 s of frames and five dead paths each (six minutes)
  edge-offload bench levels --case packet_loss_3
  edge-offload bench levels --congestion reno          as of kernels that take each loss for a full queue (cubic, too)
  edge-offload bench levels --json levels.json

up, down: medians of |estimate - bandwidth| / bandwidth. quiet: the longest wait for a sign of life while packets
flowed: what notices a dead path sooner gives false alarms. noticed, back: from all packets lost to LOST, and from the
end of that to READY, the median and the longest. moved: from another address of the robot to READY.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Optional, Tuple

from edge_offload.outputs import add_output

FAR = "127.77.63.2"
ENDS = ("robot", "server")
#: Before anything is counted, of a dead path, and until something that never comes is given up.
LEAD_S, DEAD_S, PATIENCE_S = 3.0, 3.0, 20.0


@dataclass(frozen=True)
class Case:
    """A link of 93 Mbps.

    Attributes:
        level: tcp or packet.
        rtt_ms: of the link.
        terms: impairments both ways.
    """

    level: str
    rtt_ms: float = 2.6
    terms: Dict[str, float] = field(default_factory=dict)


CASES = {
    "tcp": Case("tcp"),
    "packet": Case("packet"),
    "packet_loss_1": Case("packet", terms={"loss": 0.01}),
    "packet_loss_3": Case("packet", terms={"loss": 0.03}),
    "tcp_70": Case("tcp", 70.0),
    "packet_70": Case("packet", 70.0),
    "packet_jitter_20": Case("packet", 70.0, {"jitter_s": 0.02}),
    "packet_bloat": Case("packet", terms={"queue_bytes": 4 << 20}),
}
MBPS = 93.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--case", action="append", choices=sorted(CASES), help="only this one (may be repeated)")
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="of frames in each case (20)")
    parser.add_argument("--cuts", type=int, default=5, metavar="N", help="dead paths of each case (5)")
    parser.add_argument("--congestion", metavar="NAME", help="of both ends: reno, bbr (the kernel's); packets only")
    parser.add_argument("--seed", type=int, default=0, help="of losses and jitter (0)")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the records levels_bench here")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload import records
    from edge_offload.errors import BadInput

    if args.seconds < 1 or args.cuts < 1:
        raise BadInput("--seconds and --cuts must be at least 1")
    rows = []
    heads = ("case", "up", "down", "p50 ms", "p99 ms", "quiet ms", "false", "noticed s", "back s", "moved s")
    print("{:17} {:>6} {:>6} {:>7} {:>7} {:>8} {:>5} {:>11} {:>11} {:>11}".format(*heads))
    for name in args.case or CASES:
        row = {"case": name, **measure_case(CASES[name], args.seconds, args.cuts, args.seed, args.congestion)}
        rows.append(row)
        shown = (row[key] for key in ("noticed_s", "back_s", "moved_s"))
        times = " ".join("          -" if one is None else f"{one['p50']:6.2f}/{one['most']:.2f}" for one in shown)
        frame_ms, worst_ms = (1e3 * row["frame_s"][key] for key in ("p50", "p99"))
        print(f"{name:17} {row['error_p50']:6.1%} {row['error_down_p50']:6.1%} {frame_ms:7.1f} {worst_ms:7.1f} "
              f"{1e3 * row['quiet_s']:8.0f} {row['false_alarms']:5d} {times}", flush=True)  # fmt: skip
    if args.json is not None:
        records.write(args.json, "levels_bench", rows)
        print(f"wrote {args.json}", file=sys.stderr)
    return 0


class Robot:
    """The robot's process, and the lines that it has written so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.lines: List[Dict[str, Any]] = []
        self._process = process
        self._arrival = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._arrival:
                self.lines.append(json.loads(line))
                self._arrival.notify_all()

    def wait_state(self, state: str, since_s: float) -> float:
        """Return when ``state`` was first entered after ``since_s`` (monotonic); :data:`PATIENCE_S` later if never."""
        ends_s = time.monotonic() + PATIENCE_S
        with self._arrival:
            while time.monotonic() < ends_s:
                times = [line["t"] for line in self.lines if line.get("state") == state and line["t"] >= since_s]
                if times:
                    return float(times[0])
                self._arrival.wait(0.1)
        return since_s + PATIENCE_S


def measure_case(case: Case, seconds: float, cuts: int, seed: int, congestion: Optional[str] = None) -> Dict[str, Any]:
    """Run one case; the row without its name."""
    from edge_offload_research.emulate.trace import BYTES_PER_MBIT

    truth = MBPS * BYTES_PER_MBIT
    with contextlib.ExitStack() as stack:
        keys = stack.enter_context(tempfile.TemporaryDirectory())
        emulator, inside, address, bind = stack.enter_context(_open_link(case, seed))
        if congestion is not None and case.level == "packet":
            for end in ENDS:
                _set_congestion(inside(end), congestion)
        server = stack.enter_context(_start_end("server", bind, keys, inside("server")))
        assert server.stdout is not None
        server.stdout.readline()
        robot = Robot(stack.enter_context(_start_end("robot", address, keys, inside("robot"))))
        started_at = robot.wait_state("ready", 0.0) + LEAD_S
        time.sleep(LEAD_S + seconds)
        ended = time.monotonic()
        lines = [line for line in robot.lines if started_at <= line["t"] < ended]
        noticed, back = zip(*(_cut_link(emulator, robot, 0.13 * i) for i in range(cuts)))
        moved = [_change_address(emulator, robot, 0.13 * i) for i in range(cuts)] if case.level == "packet" else []
    errors = {way: [abs(line[way] - truth) / truth for line in lines if way in line] for way in ("up", "down")}
    frame_s = sorted(line["frame"] for line in lines if line.get("frame") is not None)
    failed = sum(1 for line in lines if "frame" in line and line["frame"] is None)
    return {
        "level": case.level, "rtt_ms": case.rtt_ms, "impairments": case.terms, "seconds": seconds,
        "congestion": congestion if case.level == "packet" else None,
        "error_p50": statistics.median(errors["up"]), "error_down_p50": statistics.median(errors["down"]),
        "frames": len(frame_s), "failed": failed,
        "frame_s": {"p50": frame_s[len(frame_s) // 2], "p99": frame_s[int(0.99 * len(frame_s))]},
        "quiet_s": max(line["quiet"] for line in lines if "quiet" in line),
        "false_alarms": sum(1 for line in lines if line.get("state") == "lost"),
        "noticed_s": {"p50": statistics.median(noticed), "most": max(noticed)},
        "back_s": {"p50": statistics.median(back), "most": max(back)},
        "moved_s": {"p50": statistics.median(moved), "most": max(moved)} if moved else None,
    }  # fmt: skip


def _set_congestion(inside: List[str], name: str) -> None:
    command = [*inside, "sh", "-c", f"echo {shlex.quote(name)} > /proc/sys/net/ipv4/tcp_congestion_control"]
    if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode:
        from edge_offload.errors import BadInput

        remedy = "/proc/sys/net/ipv4/tcp_allowed_congestion_control names those for namespaces"
        raise BadInput(f"congestion control {name!r} cannot be set", remedy=remedy)


def _cut_link(emulator: Any, robot: Robot, phase_s: float) -> Tuple[float, float]:
    """Cut the link; return the seconds until that is noticed and until it is back."""
    time.sleep(1.0 + phase_s)
    cut = time.monotonic()
    emulator.cut("blackhole")
    lost = robot.wait_state("lost", cut)
    time.sleep(max(0.0, cut + DEAD_S - time.monotonic()))
    restored = time.monotonic()
    emulator.restore()
    return lost - cut, robot.wait_state("ready", restored) - restored


def _change_address(emulator: Any, robot: Robot, phase_s: float) -> float:
    """Give the robot another address; return the seconds until the link is back."""
    time.sleep(2.0 + phase_s)
    started_at = time.monotonic()
    emulator.roam()
    robot.wait_state("lost", started_at)
    return robot.wait_state("ready", started_at) - started_at


@contextlib.contextmanager
def _open_link(case: Case, seed: int) -> Iterator[Tuple[Any, Any, str, str]]:
    """The emulator, the words before a command that make it run at an end, the robot's address and the server's."""
    from edge_offload_benchmarks.ports import lasting_port
    from edge_offload_research.emulate.emulator import Emulator
    from edge_offload_research.emulate.trace import BYTES_PER_MBIT, Link, Trace
    from edge_offload_research.testbed.packets.emulator import PacketEmulator
    from edge_offload_research.testbed.packets.impairments import Impairments

    link = Link.of("bench", Trace.constant_trace(MBPS * BYTES_PER_MBIT), case.rtt_ms / 1e3)
    to = f"127.0.0.1:{lasting_port()}"
    if case.level == "tcp":
        with Emulator("127.0.0.1:0", to, link, seed=seed) as proxy:
            yield proxy, lambda end: [], proxy.address, f"tcp://{to}"
        return
    terms = Impairments(**case.terms)  # type: ignore[arg-type]
    far = f"{FAR}:{lasting_port()}"
    with PacketEmulator(far, to, link, (terms, terms), seed, namespaces=True) as packets:
        yield packets, packets.network.command_prefix, packets.address, f"tcp://{to}"


@contextlib.contextmanager
def _start_end(name: str, address: str, keys: str, inside: List[str]) -> Iterator[subprocess.Popen[str]]:
    command = [*inside, sys.executable, "-m", "edge_offload_benchmarks.link_ends", name, address, keys]
    # a server complains of every path that it finds dead
    errors = subprocess.DEVNULL if name == "server" else None
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
