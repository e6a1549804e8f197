"""The LOPInfer authors' testbed, simulated: six models under every planner, beside what the authors measured.

Operator times of robot and server, latencies and powers are theirs (--data), as is the bandwidth trace; planners, cost
model and codecs are ours. Each model infers in a closed loop while the bandwidth follows the trace. The planner sees
the bandwidth only through past transfers; the row loss_beam_oracle looks it up. Codec ratios and speeds are measured
here and now on real payloads (frames of a video, an image, a LiDAR scan's occupancy and labels); coding on the robot,
and the runtime's own time per request, measured on loopback, are slowed by --robot-factor. The authors' device-only
latency contains their interception's hooks; the simulated one does not.

  edge-offload bench papers --data DIR --scan 000000.bin --json papers.json
  edge-offload bench papers --data DIR --model kapao --planner loss_beam --trace other.csv

ratio is our mean latency / the authors' mean latency for the method named beside the planner. Rows: with codecs and
overhead; with codecs and no overhead; with overhead and no codecs. The temporal codec appears in a row of its own, on a
camera that pans. A noisy sensor has a row of its own, too: it is what limits lossless coding.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

from edge_offload.arrays import Array
from edge_offload.outputs import add_output

if TYPE_CHECKING:
    from edge_offload.split.model.cost import CodecCost
    from edge_offload_research.emulate.trace import Trace
    from edge_offload_research.testbed.graph import Workload
    from edge_offload_research.testbed.profiles import Measured

ORACLE = "loss_beam_oracle"
BINS = 31
PIECE_BYTES = 64 * 1024
PAN_PX = 4
"""Columns by which the moving camera moves from one frame to the next."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--data", type=pathlib.Path, required=True, metavar="DIR",
                        help="the authors' data: op_profiles/, summary.csv, bandwidth_indoors.csv")  # fmt: skip
    parser.add_argument("--trace", type=pathlib.Path, metavar="CSV", help="bandwidth trace: t_s and MBps (indoors)")
    parser.add_argument("--environment", default="indoors", help="which of the authors' runs to stand beside (indoors)")
    parser.add_argument("--model", action="append", help="only this model (may be repeated)")
    parser.add_argument("--planner", action="append", help="only this planner (may be repeated)")
    parser.add_argument("--video", type=pathlib.Path, help="video of a fixed camera (default: the sample video)")
    parser.add_argument("--scan", type=pathlib.Path, help="LiDAR scan: float32 x, y, z, reflectance; agrnav needs it")
    parser.add_argument("--labels", type=pathlib.Path, help="label grid of a network: .npy (else from --scan)")
    parser.add_argument("--robot-factor", type=float, default=3.0, metavar="X",
                        help="how much slower the robot's core codes than this one (3)")  # fmt: skip
    parser.add_argument("--overhead-ms", type=float, metavar="MS",
                        help="the runtime's own time per request (default: measured here x the factor)")  # fmt: skip
    parser.add_argument("--one-way-ms", type=float, default=1.3, help="delay of the link (1.3: half the papers' RTT)")
    parser.add_argument("--seconds", type=float, default=8.0, help="search time of a planner per table (8)")
    parser.add_argument("--frames", type=int, default=8, help="video frames to measure codecs on (8)")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the records `papers` here")
    add_output(parser, "--plot", type=pathlib.Path, metavar="FILE", help="draw ours beside theirs (needs matplotlib)")


@dataclass(frozen=True)
class Variant:
    """One way to run a workload.

    Attributes:
        label: for the table.
        codecs: value -> what its payloads may take.
        overhead_s: the runtime's own time per request.
        camera: what the frames show.
    """

    label: str
    codecs: Dict[int, Tuple[CodecCost, ...]]
    overhead_s: float
    camera: str = "single frames"


def run(args: argparse.Namespace) -> int:
    """See the module."""
    import torch

    from edge_offload import records
    from edge_offload.errors import BadInput
    from edge_offload.link import codecs
    from edge_offload.split.planners.table import PLANNERS
    from edge_offload_research.emulate.trace import load_trace
    from edge_offload_research.testbed import graph, profiles

    if args.robot_factor <= 0 or args.seconds <= 0 or args.frames < 2:
        raise BadInput("--robot-factor and --seconds are above 0, --frames at least 2")
    models = args.model or list(profiles.MODELS)
    planners = args.planner or [*PLANNERS, ORACLE]
    for given, allowed in ((models, profiles.MODELS), (planners, (*PLANNERS, ORACLE))):
        for name in given:
            if name not in allowed:
                raise BadInput(f"{name!r} is none of {', '.join(allowed)}")
    if "agrnav" in models and args.scan is None:
        raise BadInput("agrnav's payloads need a LiDAR scan", remedy="give --scan, or choose models with --model")
    torch.set_num_threads(1)
    codecs.prepare()
    trace_path = args.trace or args.data / f"bandwidth_{args.environment}.csv"
    trace = load_trace(trace_path)
    measured = profiles.read_measured(args.data, args.environment)
    overhead = measure_request_s() * args.robot_factor if args.overhead_ms is None else args.overhead_ms / 1e3
    rows: List[Dict[str, Any]] = []
    for model in models:
        workload = graph.build_workload(model, profiles.read_operators(args.data, model))
        variants = make_variants(args, workload, overhead)
        for variant in variants:
            print(f"{model}, {variant.label}: overhead {variant.overhead_s * 1e3:.2f} ms; {describe_variant(variant)}")
            for planner in planners:
                extra = variant is not variants[0] and variant.label != "no codecs"
                if extra and planner != "loss_beam":
                    continue
                row = simulate_one(args, workload, variant, planner, trace, trace_path.stem, measured)
                rows.append(row)
                print(format_row(row), flush=True)
    print(summarise_rows(rows))
    if args.json:
        records.write(args.json, "papers", rows)
    if args.plot:
        draw_rows(rows, args.plot)
    return 0


def make_variants(args: argparse.Namespace, workload: Workload, overhead: float) -> List[Variant]:
    """Codecs and overhead; the first one is what the headline speaks of."""
    codecs = measured_codecs(args, workload.model)
    spatial = _by_value(workload, codecs["spatial"])
    variants = [
        Variant("lossless spatial codecs", spatial, overhead),
        Variant("no overhead", spatial, 0.0),
        Variant("no codecs", {}, overhead),
    ]
    for label, camera in (("moving", "moving camera"), ("noise", "sensor noise of one level")):
        if label in codecs:
            variants.append(Variant(f"{camera}{', temporal codec' if label == 'moving' else ''}",
                                    _by_value(workload, codecs[label]), overhead, camera))  # fmt: skip
    return variants


def _by_value(workload: Workload, options: Dict[str, Tuple[CodecCost, ...]]) -> Dict[int, Tuple[CodecCost, ...]]:
    by_value = {workload.input_value: options["input"]}
    for number in workload.output_values:
        if options.get("output"):
            by_value[number] = options["output"]
    return by_value


def measured_codecs(args: argparse.Namespace, model: str) -> Dict[str, Dict[str, Tuple[CodecCost, ...]]]:
    """Costs of every codec that suits the payloads of a model, by kind of scene and by end."""
    import numpy as np

    from edge_offload.link import codecs
    from edge_offload.models.video import read_frames, sample_video
    from edge_offload_benchmarks import payloads
    from edge_offload_benchmarks.experiments.codecs import Payload, read_labels
    from edge_offload_research.temporal import TEMPORAL

    lossless = codecs.codec_names()

    def measure_cost(arrays: Sequence[Array], names: Sequence[str] = lossless, upward: bool = True,
             references: Optional[Sequence[Array]] = None) -> Tuple[CodecCost, ...]:  # fmt: skip
        pairs = [(array, None if references is None else references[k]) for k, array in enumerate(arrays)]
        return codec_costs(Payload(model, pairs), names, args.robot_factor, upward)

    if model == "agrnav":
        scan = payloads.read_scan(args.scan)
        labels = read_labels(args.labels).astype(np.uint8) if args.labels else payloads.completed_labels(scan)
        occupied = payloads.make_occupancy(scan)
        flat = [np.ascontiguousarray(grid.transpose(0, 2, 1))[None] for grid in (occupied, labels)]
        return {"spatial": {"input": measure_cost(flat[:1]), "output": measure_cost(flat[1:], upward=False)}}
    video = args.video or sample_video()
    frames = list(read_frames(video, [40 * k + 7 for k in range(args.frames)]).values())
    if model != "kapao":
        return {"spatial": {"input": measure_cost([payloads.normalise_frame(frame) for frame in frames])}}
    sized = [payloads.resize_frame(frame, 960, 640) for frame in frames]
    noisy = [payloads.with_noise(frame, 1.0, k) for k, frame in enumerate(sized)]
    pan = _pan_frames(list(read_frames(video, range(100, 100 + args.frames + 1)).values()))
    return {
        "spatial": {"input": measure_cost([_split_planes(frame) for frame in sized])},
        "noise": {"input": measure_cost([_split_planes(frame) for frame in noisy])},
        "moving": {
            "input": measure_cost(
                list(map(_split_planes, pan[1:])), list(TEMPORAL), references=list(map(_split_planes, pan))
            )
        },
    }


def _split_planes(frame: Array) -> Array:
    import numpy as np

    return np.ascontiguousarray(frame[..., ::-1].transpose(2, 0, 1))


def _pan_frames(frames: Sequence[Array]) -> List[Array]:
    """A 960x640 view that moves over larger frames, as of a camera that turns."""
    from edge_offload_benchmarks import payloads

    large = [payloads.resize_frame(frame, 1280, 960) for frame in frames]
    return [frame[160:800, 40 + PAN_PX * k : 1000 + PAN_PX * k].copy() for k, frame in enumerate(large)]


def codec_costs(payload: Any, names: Sequence[str], robot_factor: float, upward: bool) -> Tuple[CodecCost, ...]:
    """Measured costs; ``upward`` payloads are coded on the robot, the others on the server."""
    from edge_offload.split.model.cost import CodecCost
    from edge_offload_benchmarks.experiments.codecs import measure_payload

    costs = []
    for row in measure_payload(payload, list(names), 3):
        if row["codec"] == "raw":
            continue
        encode, decode = row["encode_bytes_per_s"], row["decode_bytes_per_s"]
        robot, server = (encode, decode) if upward else (decode, encode)
        costs.append(CodecCost(row["codec"], row["ratio"], robot / robot_factor, server))
    return tuple(costs)


def measure_request_s(batches: int = 12, repeats: int = 40) -> float:
    """Measure one request of our link over loopback (seconds): a first piece of a payload up, a short answer down.

    The median of the quietest batch, for other work may run on this machine. Both ends run in this process. Every later
    piece travels behind the first one, and the link's bandwidth is charged apart.
    """
    from edge_offload.link.security.keys import KeyStore
    from edge_offload.link.transport.client import Client
    from edge_offload.link.transport.listener import Listener

    piece = bytes(PIECE_BYTES)
    with tempfile.TemporaryDirectory() as directory:
        keys = KeyStore(pathlib.Path(directory) / "keys")
        listener = Listener(welcome=lambda peer, hello: {}, handle=lambda request: request.reply({}), keys=keys)
        with listener, Client(listener.address, keys=keys) as client:
            client.wait_ready(20.0)
            medians = []
            for _ in range(batches):
                times = []
                for _ in range(repeats):
                    start = time.perf_counter()
                    client.request("echo", {}, [piece], timeout_s=20.0).result(20.0)
                    times.append(time.perf_counter() - start)
                medians.append(statistics.median(times))
    return min(medians)


def simulate_one(args: argparse.Namespace, workload: Workload, variant: Variant, planner: str, trace: Trace,
                 trace_name: str, measured: Dict[Tuple[str, str], Measured]) -> Dict[str, Any]:  # fmt: skip
    """One row: a table of plans, and a closed-loop run over the trace."""
    from edge_offload import records
    from edge_offload.power.states import StatePowers
    from edge_offload.split.model.cost import LinkCosts
    from edge_offload.split.model.simulate import robot_energy
    from edge_offload.split.planners.space import Space
    from edge_offload.split.planners.table import Effort, plan_table
    from edge_offload_research.testbed.loop import run_loop
    from edge_offload_research.testbed.profiles import METHODS

    name = "loss_beam" if planner == ORACLE else planner
    theirs = measured[workload.model, METHODS[name]]
    model = workload.cost_model(variant.codecs, LinkCosts(latency_s=args.one_way_ms / 1e3), variant.overhead_s)
    space = Space(model, [max(k, 0.5) * 1e6 for k in range(BINS)], codecs=bool(variant.codecs))
    start = time.monotonic()
    table = plan_table(space, name, effort=Effort(seconds=args.seconds))
    planned_s = time.monotonic() - start
    loop = run_loop(table, model, trace, theirs.period_s - theirs.mean_s, oracle=planner == ORACLE,
                    probes=name not in ("device_only", "server_only"))  # fmt: skip
    used = sorted({t.codec for plan in table.plans for t in plan.transfers})
    device, server = measured[workload.model, "local"], measured[workload.model, "all"]
    robot_powers = StatePowers(device.power_w, max(server.power_w, StatePowers().standby), StatePowers().standby)
    mean = float(loop.latencies_s.mean())
    return {
        "model": workload.model,
        "planner": planner,
        "codecs": used if variant.codecs else [],
        "trace": trace_name,
        "latency_s": records.latency_summary(loop.latencies_s.tolist()),
        "energy_j": loop.energy_j,
        "overhead_s": variant.overhead_s,
        "authors_s": theirs.mean_s,
        "certified_gap": None,
        "variant": variant.label,
        "camera": variant.camera,
        "sees": "oracle" if planner == ORACLE else "past transfers",
        "ratio": mean / theirs.mean_s,
        "device_only_s": model.network_s(_describe_robot()),
        "authors_latency_s": {"mean": theirs.mean_s, "p50": theirs.p50_s, "p99": theirs.p99_s},
        "authors_method": METHODS[name],
        "authors_energy_j": theirs.energy_j,
        "energy_at_authors_power_j": float(
            robot_energy(replace(model, power=robot_powers), mean, loop.compute_s, loop.wire_s)
        ),
        "inferences": len(loop.latencies_s),
        "local_share": loop.local_share,
        "split_plans": sum(plan.splits_an_operator for plan in table.plans),
        "bytes_per_inference": loop.bytes_per_inference,
        "robot_factor": args.robot_factor,
        "planned_s": planned_s,
    }


def _describe_robot() -> Any:
    from edge_offload.split.model.plan import Side

    return Side.ROBOT


def describe_variant(variant: Variant) -> str:
    """The codecs of the input, best ratio first."""
    if not variant.codecs:
        return "raw"
    options = sorted(next(iter(variant.codecs.values())), key=lambda option: -option.ratio)[:3]
    return ", ".join(f"{o.name} {o.ratio:.2f}x at {o.robot_bytes_per_s / 1e6:.0f} MB/s on the robot" for o in options)


def format_row(row: Dict[str, Any]) -> str:
    """One row for people, milliseconds and joules."""
    ours, theirs = row["latency_s"], row["authors_latency_s"]
    mean, p50, p99 = (ours[key] * 1e3 for key in ("mean", "p50", "p99"))
    return (
        f"  {row['planner']:17s} mean {mean:7.1f} p50 {p50:7.1f} p99 {p99:7.1f}"
        f" ms {row['energy_j']:7.3f} J | authors ({row['authors_method']:6s}) {theirs['mean'] * 1e3:6.1f}"
        f" {theirs['p50'] * 1e3:6.1f} {theirs['p99'] * 1e3:7.1f} ms {row['authors_energy_j']:6.3f} J | ratio"
        f" {row['ratio']:.3f}, local {row['local_share']:.0%}, {row['bytes_per_inference'] / 1e3:.0f} kB"
    )


def summarise_rows(rows: Sequence[Dict[str, Any]]) -> str:
    """Geometric mean over the models of (our mean / LOPInfer's measured mean), per variant."""
    lines = []
    for label in dict.fromkeys(row["variant"] for row in rows):
        for planner in ("loss_beam", ORACLE):
            chosen = [row for row in rows if row["planner"] == planner and row["variant"] == label]
            if not chosen:
                continue
            mean = statistics.geometric_mean([row["ratio"] for row in chosen])
            late = max(row["latency_s"]["p99"] / row["device_only_s"] for row in chosen)
            ratios = ", ".join(f"{row['model']} {row['ratio']:.3f}" for row in chosen)
            lines.append(f"{planner}, {label}: geometric mean {mean:.3f} over {len(chosen)} ({ratios}); "
                         f"largest p99 / device-only {late:.3f}")  # fmt: skip
    return "\n".join([*lines, "Device-only in the authors' logs carries their interception's hooks; ours does not."])


def draw_rows(rows: Sequence[Dict[str, Any]], path: pathlib.Path) -> None:
    """Bars of mean latency per model: every planner, and the authors' runs."""
    from edge_offload_benchmarks.plotting import open_panels

    first = rows[0]["variant"]
    chosen = [row for row in rows if row["variant"] == first]
    models = list(dict.fromkeys(row["model"] for row in chosen))
    with open_panels(path, 1, len(models), (3.2 * len(models), 4)) as grid:
        for panel, model in zip(grid[0], models):
            mine = [row for row in chosen if row["model"] == model]
            places = range(len(mine))
            panel.bar(
                [p - 0.2 for p in places], [row["latency_s"]["mean"] * 1e3 for row in mine], 0.4, label="simulated"
            )
            panel.bar(
                [p + 0.2 for p in places], [row["authors_s"] * 1e3 for row in mine], 0.4, label="authors, measured"
            )
            panel.set_xticks(list(places), [row["planner"] for row in mine], rotation=70, fontsize=8)
            panel.set(title=model, ylabel="mean latency, ms")
            panel.grid(True, axis="y", alpha=0.3)
        grid[0, 0].legend(fontsize=8)
