"""Choosing the mode per frame, over a whole bandwidth trace: auto against each fixed mode and against an oracle.

The components of a frame (compute on robot and server, coding, bytes) are measured here, on frames of a video, as
processor time of one thread; the robot's are slowed by --slowdown. The trace is then run through in *virtual time*,
frame after frame without a pause: estimator, probes, forecasts, policy and hedging are those of the running system and
see the link only through their own transfers. A fixed mode is the running system with that mode held: it falls back and
hedges, too. The oracle knows what every mode will take.

  edge-offload bench adaptive                                          the synthetic indoor trace
  edge-offload bench adaptive --trace bandwidth_indoors.csv            a trace of yours
  edge-offload bench adaptive --trace bandwidth_indoors.csv --outages  the same with outages and weak spots put in
  edge-offload bench adaptive --workload costs.json                    components of your own instead of measured ones

regret: mean latency / the oracle's mean latency - 1. remote when faster: share of the frames for which a remote mode
was forecast to be faster that went there. A workload is a list of {mode, robot_s, server_s, bytes_up, bytes_down}.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

if TYPE_CHECKING:
    from edge_offload.bench.closed_loop import ModeCost, Run
    from edge_offload.link.trace import Trace

#: With --outages, in every period of so many seconds ...
OUTAGE_PERIOD_S = 30.0
#: ... the link is dead for so long, and later weak for so long, with so many bytes per second.
DEAD_S, WEAK_S, WEAK = 4.0, 5.0, 0.25e6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--trace", type=pathlib.Path, metavar="CSV", help="a trace (default: the link wifi_indoors)")
    parser.add_argument("--outages", action="store_true", help="put outages and weak spots into the trace")
    parser.add_argument("--seconds", type=float, metavar="S", help="of the trace (default: all of it, once)")
    parser.add_argument("--rtt-ms", type=float, default=2.6, metavar="D", help="round trip time of the link (2.6)")
    parser.add_argument("--model", default="movenet", help="whose components are measured (movenet)")
    parser.add_argument(
        "--slowdown", type=float, default=4.0, metavar="K", help="of the robot against this machine (4)"
    )
    parser.add_argument("--frames", type=int, default=12, metavar="N", help="frames that are measured (12)")
    parser.add_argument("--workload", type=pathlib.Path, metavar="JSON", help="components instead of measured ones")
    parser.add_argument("--save-workload", type=pathlib.Path, metavar="JSON", help="write the measured components")
    parser.add_argument("--policy", default="auto", help="the policy that is compared: auto, energy (auto)")
    parser.add_argument("--deadline", type=float, default=0.0, metavar="S", help="of a frame; 0: none")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn (0)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the record adaptive_bench here")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload import records
    from edge_offload.errors import BadInput
    from edge_offload.link.trace import load_trace, named_link

    if args.slowdown < 1 or args.frames < 1 or args.deadline < 0 or args.rtt_ms < 0:
        raise BadInput("--slowdown and --frames are at least 1, --deadline and --rtt-ms at least 0")
    trace = load_trace(args.trace) if args.trace is not None else named_link("wifi_indoors").up
    name = args.trace.stem if args.trace is not None else "wifi_indoors"
    if args.outages:
        trace, name = with_outages(trace), f"{name} with outages"
    costs = load_workload(args.workload) if args.workload else measure(args.model, args.slowdown, args.frames)
    if args.save_workload:
        save_workload(args.save_workload, costs)
    seconds = args.seconds or trace.period_s
    began = time.monotonic()
    rows = compare(costs, trace, seconds, args.rtt_ms / 1e3, args.policy, args.deadline or None, args.seed)
    print(f"{name}: {seconds:.0f} s in {time.monotonic() - began:.1f} s of real time; {describe(costs)}")
    heads = ("", "frames", "mean ms", "p50", "p99", "missed", "J/frame", "switches", "regret", "hedged", "remote")
    print("{:>10} {:>7} {:>8} {:>8} {:>8} {:>7} {:>7} {:>8} {:>8} {:>8} {:>7}".format(*heads))
    for row in rows:
        missed = "-" if row["missed"] is None else f"{row['missed']:.1%}"
        latency = row["latency_s"]
        print(
            f"{row['policy']:>10} {row['frames']:7d} {latency['mean'] * 1e3:8.1f} {latency['p50'] * 1e3:8.1f} "
            f"{latency['p99'] * 1e3:8.1f} {missed:>7} {row['energy_j']:7.3f} {row['switches']:8d} {row['regret']:8.1%} "
            f"{row['hedge_rate']:8.1%} {row['remote_share']:7.1%}"
        )
    chosen = next(row for row in rows if row["policy"] == args.policy)
    if chosen["remote_when_faster"] is not None:
        print(
            f"{args.policy}: {chosen['remote_when_faster']:.1%} of the frames forecast to be faster remotely went there"
        )
    if args.json is not None:
        record = {
            "trace": name,
            "seconds": seconds,
            "slowdown": args.slowdown,
            "workload": describe(costs),
            "rows": rows,
        }
        records.write(args.json, "adaptive_bench", record)
        print(f"wrote {args.json}", file=sys.stderr)
    return 0


def compare(
    costs: Sequence[ModeCost],
    trace: Trace,
    seconds: float,
    rtt_s: float,
    policy: str = "auto",
    deadline_s: Optional[float] = None,
    seed: int = 0,
) -> List[Dict[str, Any]]:
    """Rows: the policy, every mode of ``costs`` held, the oracle."""
    from edge_offload.bench.closed_loop import VirtualRobot
    from edge_offload.manager.policy import FixedPolicy, OraclePolicy, make_policy

    runs: Dict[str, Run] = {}
    for name in (policy, *(cost.mode.value for cost in costs)):
        chosen = make_policy(name)
        if isinstance(chosen, FixedPolicy):
            chosen = FixedPolicy(chosen.mode)
        runs[name] = VirtualRobot(costs, trace, chosen, rtt_s, deadline_s, seed).run(seconds)
    oracle = OraclePolicy(lambda now: {})
    knowing = VirtualRobot(costs, trace, oracle, rtt_s, deadline_s, seed)
    oracle.latencies_s = knowing.latencies
    runs["oracle"] = knowing.run(seconds)
    best = sum(runs["oracle"].latencies_s) / len(runs["oracle"].latencies_s)
    return [_row(name, result, best, deadline_s) for name, result in runs.items()]


def _row(name: str, result: Run, best_s: float, deadline_s: Optional[float]) -> Dict[str, Any]:
    from edge_offload import records
    from edge_offload.modes import Mode

    frames = len(result.latencies_s)
    latency = records.latency_summary(result.latencies_s)
    sent = frames - sum(mode is Mode.LOCAL for mode in result.modes)
    missed = None if deadline_s is None else sum(s > deadline_s for s in result.latencies_s) / frames
    return {
        "policy": name,
        "frames": frames,
        "latency_s": latency,
        "missed": missed,
        "energy_j": sum(result.energies_j) / frames,
        "switches": result.switches,
        "regret": latency["mean"] / best_s - 1,
        "hedge_rate": result.hedges / frames,
        "vain_hedge_rate": result.vain_hedges / frames,
        "remote_share": sent / frames,
        "remote_when_faster": result.chosen_remote / result.faster_remote if result.faster_remote else None,
    }


def with_outages(trace: Trace) -> Trace:
    """``trace`` with a dead and a weak stretch in every :data:`OUTAGE_PERIOD_S` seconds."""
    from edge_offload.link.trace import Trace

    step = 0.25
    starts, rates = [], []
    for i in range(int(trace.period_s / step)):
        t = i * step
        within = t % OUTAGE_PERIOD_S
        rate = trace.rate_at(t)
        if 10.0 <= within < 10.0 + DEAD_S:
            rate = 0.0
        elif 20.0 <= within < 20.0 + WEAK_S:
            rate = min(rate, WEAK)
        starts.append(t)
        rates.append(rate)
    return Trace(tuple(starts), tuple(rates), len(starts) * step)


def measure(model: str, slowdown: float, frames: int) -> List[ModeCost]:
    """Components of modes local and server, in processor seconds of one thread."""
    import cv2
    import torch

    from edge_offload.bench.closed_loop import ModeCost
    from edge_offload.errors import BadInput
    from edge_offload.execute.executor import ModuleExecutor
    from edge_offload.execute.tensors import pack, unpack
    from edge_offload.models.registry import build_estimator
    from edge_offload.models.video import sample_video
    from edge_offload.modes import Mode

    torch.set_num_threads(1)
    estimator = build_estimator(model)
    executor = ModuleExecutor(estimator.module)
    compute, coding, serving, sizes, back = [], [], [], [], 0
    video = cv2.VideoCapture(str(sample_video()))
    for number in range(frames + 1):
        there, image = video.read()
        if not there:
            raise BadInput(f"the sample video ended after {number} frames", remedy="ask for fewer --frames")
        inputs = [estimator.prepare(image)[0]]
        began = time.thread_time()
        execution = executor.run(inputs)
        computed_s = time.thread_time() - began
        began = time.thread_time()
        descriptors, buffers = pack(inputs)
        coded_s = time.thread_time() - began
        began = time.thread_time()
        unpack(descriptors, buffers, max_bytes=1 << 30)
        decoded_s = time.thread_time() - began
        if number == 0:
            continue  # the first one pays for choosing kernels
        compute.append(slowdown * computed_s)
        coding.append(slowdown * coded_s)
        serving.append(computed_s + decoded_s)
        sizes.append(sum(memoryview(part).nbytes for part in buffers) + 400)
        _, answer = pack(execution.outputs)
        back = sum(memoryview(part).nbytes for part in answer) + 600
    video.release()
    return [ModeCost(Mode.LOCAL, compute), ModeCost(Mode.SERVER, coding, serving, sizes, back)]


def load_workload(path: pathlib.Path) -> List[ModeCost]:
    """Components from a file (see the module).

    Raises:
        BadInput: it is not of that form.
    """
    from edge_offload.bench.closed_loop import ModeCost
    from edge_offload.errors import BadInput
    from edge_offload.modes import Mode, parse_mode

    try:
        items = json.loads(path.read_text(encoding="utf-8"))
        costs = [
            ModeCost(
                parse_mode(item["mode"]),
                [float(s) for s in item["robot_s"]],
                [float(s) for s in item.get("server_s", [])],
                [int(size) for size in item.get("bytes_up", [])],
                int(item.get("bytes_down", 0)),
            )
            for item in items
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(f"{path} is no workload: {error}", remedy="see 'edge-offload bench adaptive --help'") from error
    if Mode.LOCAL not in {cost.mode for cost in costs} or not all(cost.robot_s for cost in costs):
        raise BadInput(f"{path}: a workload needs the mode local, and robot_s in every mode")
    return costs


def save_workload(path: pathlib.Path, costs: Sequence[ModeCost]) -> None:
    """Write components as :func:`load_workload` reads them."""
    items = [
        {
            "mode": cost.mode.value,
            "robot_s": list(cost.robot_s),
            "server_s": list(cost.server_s),
            "bytes_up": list(cost.bytes_up),
            "bytes_down": cost.bytes_down,
        }
        for cost in costs
    ]
    path.write_text(json.dumps(items, indent=1) + "\n", encoding="utf-8")


def describe(costs: Sequence[ModeCost]) -> str:
    """The components in one line."""
    parts = []
    for cost in costs:
        robot = sum(cost.robot_s) / len(cost.robot_s)
        text = f"{cost.mode} {robot * 1e3:.0f} ms on the robot"
        if cost.server_s and cost.bytes_up:
            server, size = sum(cost.server_s) / len(cost.server_s), sum(cost.bytes_up) / len(cost.bytes_up)
            text += (
                f", {server * 1e3:.0f} ms on the server, {size / 1e3:.0f} kB up, {cost.bytes_down / 1e3:.0f} kB down"
            )
        parts.append(text)
    return "; ".join(parts)
