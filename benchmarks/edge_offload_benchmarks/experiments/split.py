"""Split inference for real: robot and server processes on an emulated link, every planner, a sweep of bandwidths.

A server process and an emulator process are started on loopback; this process is the robot. Its computation is slowed
by --slowdown (emulated: it sleeps), so that the two sides differ as a robot and a server do. The table of plans comes
from a profile that both sides take at the start. Each plan runs at the bandwidth that it was made for, and its measured
latency is set beside what the simulation had predicted.

  edge-offload bench split --model movenet --option size=256 --json split.json --plot split.png
  edge-offload bench split --model movenet --bandwidth 2 --bandwidth 8 --planner loss_beam --no-codecs
  edge-offload bench split --model movenet --pairs 50     per bandwidth, what auto runs against the best undivided plan
  edge-offload bench split --tensor-parallel --slowdown 2 --planner loss_beam    every layer divided and gathered; a
                                                          server that is only twice as fast as the robot

Each side has one thread, and a core of its own where the machine has two (the emulator runs beside the robot, which
sleeps most of its time). Planners that choose the same plan for the same bandwidth share its measurement. Read the
figures as those of a busy machine where it was one (the load average is part of the record). With --pairs mode split
runs as it does by itself until it has measured which plan to use at a bandwidth; then that plan and the best one that
divides no operator (layer cuts included, by what they are expected to take) run in turns, inference by inference; the
ratio is the median of the pairs', with its 95 % interval. Where both are the same, a plan that was measured and is not
used is held against it instead.
With --tensor-parallel each operator is divided by the speeds of the two sides, and both get all of each layer, as in a
data centre; both halves run in this process then, and the link is emulated there. Records of other models and slowdowns
that --json holds are kept, and --plot draws all of them.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import tempfile
from dataclasses import replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

from edge_offload.outputs import add_output
from edge_offload_benchmarks.processes import LinkEmulator, Server, patient_client, wait_open

UNDIVIDED, CONTENDER, DEFAULT = ("device_only", "server_only", "dsccs"), "beside", "loss_beam"
BANDWIDTHS = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
OPEN_S = 900.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--model", default="movenet", help="a model of the registry (movenet)")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="option of the model")
    parser.add_argument("--slowdown", type=float, default=8.0, help="how much slower the emulated robot is (8)")
    parser.add_argument("--bandwidth", type=float, action="append", metavar="MBPS",
                        help="10^6 bytes per second (1, 2, 4, 8, 15, 30)")  # fmt: skip
    parser.add_argument("--rtt-ms", type=float, default=2.6, help="round trip time of the link (2.6)")
    parser.add_argument("--planner", action="append", help="only this planner (may be repeated)")
    parser.add_argument("--no-codecs", action="store_true", help="also run every planner without codecs")
    parser.add_argument("--repeats", type=int, default=7, help="inferences per plan and bandwidth (7)")
    parser.add_argument("--pairs", type=int, default=0, metavar="N",
                        help="run the plan in force and the best undivided one N times in turns (0: not)")  # fmt: skip
    parser.add_argument("--tensor-parallel", action="store_true", help="also every layer divided and gathered")
    parser.add_argument("--seconds", type=float, default=4.0, help="search time of a planner per table (4)")
    parser.add_argument("--video", type=pathlib.Path, help="video whose first frame is the input (the sample video)")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the records `split_bench` here")
    add_output(parser, "--plot", type=pathlib.Path, metavar="FILE", help="draw latencies (needs matplotlib)")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    import torch

    from edge_offload import records
    from edge_offload.errors import BadInput
    from edge_offload.split.planners.table import PLANNERS

    planners = args.planner or list(PLANNERS)
    for name in planners:
        if name not in PLANNERS:
            raise BadInput(f"no planner {name!r}", remedy=f"use some of {', '.join(PLANNERS)}")
    if args.repeats < 1 or args.slowdown < 1 or args.seconds <= 0:
        raise BadInput("--repeats and --slowdown are at least 1, --seconds above 0")
    torch.set_num_threads(1)
    before = os.getloadavg()[0]
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as keys:
        core = {cores[0]}
        with Server("--keys", keys, cores=cores[-1:]) as server:
            os.sched_setaffinity(0, core)
            try:
                with LinkEmulator(server.address, 240.0, args.rtt_ms, cores=core) as emulator:
                    rows, pairs = measure_model(args, planners, emulator.state, keys)
            finally:
                os.sched_setaffinity(0, set(cores))
    record = {
        "model": args.model,
        "options": list(args.option),
        "slowdown": args.slowdown,
        "rtt_s": args.rtt_ms / 1e3,
        "load_average": before,
        "rows": rows,
        **({"pairs": pairs} if args.pairs else {}),
        **errors_of(rows),
    }
    others = [item for item in records.read_list(args.json, "split_bench")
              if any(item[key] != record[key] for key in ("model", "options", "slowdown"))]  # fmt: skip
    everything = [*others, record]
    errors = errors_of([row for item in everything for row in item["rows"]])
    print(f"{args.model}: simulated against measured: median error {record['median_error']:.1%}, p90 "
          f"{record['p90_error']:.1%}; robot slowed {args.slowdown:g} times (emulated), load average {before:.1f}\n"
          f"{len(everything)} models: median error {errors['median_error']:.1%}, p90 {errors['p90_error']:.1%}",
          flush=True)  # fmt: skip
    if args.json:
        records.write(args.json, "split_bench", everything)
    if args.plot:
        draw_models(everything, args.plot)
    return 0


def measure_model(
    args: argparse.Namespace, planners: Sequence[str], about: Dict[str, Any], keys: str
) -> Tuple[List[Dict[str, Any]], List[Dict[str, Any]]]:
    """One row per planner, codecs on or off, and bandwidth; and pairs, one cell per bandwidth.

    Args:
        args: of the command line.
        planners: names of what searches for plans.
        about: what the emulator said of itself.
        keys: folder of the keys of robot and server.
    """
    from edge_offload.mode import Mode
    from edge_offload.models import registry
    from edge_offload.models.video import read_frames, sample_video
    from edge_offload.modes.split.robot.opening import ModelSource
    from edge_offload.modes.split.robot.runner import SplitRunner, describe_plan
    from edge_offload.runtime.module import OffloadedModule
    from edge_offload.split.planners.table import Effort
    from edge_offload_research.commands.profile import options_of
    from edge_offload_research.emulate.control import Control
    from edge_offload_research.networks import build_module
    from edge_offload_research.split.model.plan_cost import simulate_plan

    control = Control(about["control"])
    options = options_of(args)
    frame = read_frames(args.video or sample_video(), [0])[0]
    network, given = build_module(args.model, options, frame)
    inputs = list(given)
    rows: List[Dict[str, Any]] = []
    with control, patient_client(about["listen"], keys) as client:
        client.wait_ready(60.0)
        module = OffloadedModule(args.model, network, client, options=options, robot_slowdown=args.slowdown,
                                 hedging=False)  # fmt: skip
        run = module.runners.local.attempt_inference
        source = ModelSource(args.model, options, network, lambda: registry.state_hash(network), run)
        runner = SplitRunner(source, client, args.slowdown, effort=Effort(seconds=args.seconds), measured=False)
        module.add_runner(runner)
        runner.opener.learn_network(inputs)  # before the server measures: they share memory and caches here
        wait_open(module, Mode.SPLIT, inputs, OPEN_S)
        measured: Dict[Any, Dict[str, Any]] = {}
        for codecs in (True, False) if args.no_codecs else (True,):
            for planner in planners:
                planned = runner.plan_again(inputs, planner, codecs)
                for bandwidth in args.bandwidth or BANDWIDTHS:
                    control.do("set", mbps=bandwidth * 8)
                    runner.bandwidth = bandwidth * 1e6
                    plan = planned.plans[planned.place[planned.table.find_index(bandwidth * 1e6)]].plan
                    what = {"planner": planner, "codecs": codecs, "bytes_per_s": bandwidth * 1e6}
                    key = (plan.robot, plan.server, plan.transfers, bandwidth)
                    if key not in measured:
                        expected = simulate_plan(plan, planned.model, bandwidth * 1e6)
                        measured[key] = _repeat_plan(args, module, runner, inputs, {
                            "kind": describe_plan(plan), "steps_robot": len(plan.robot),
                            "steps_server": len(plan.server),
                            "predicted_s": expected.makespan_s,
                            "predicted_stages_s": {"compute_robot": expected.robot_s, "compute_server":
                                                   expected.server_s, "link": expected.communication_s},
                        })  # fmt: skip
                    rows.append({**what, **measured[key]})
                    print(_format_row(rows[-1]), flush=True)
        for bandwidth in (args.bandwidth or BANDWIDTHS) if args.tensor_parallel else ():
            control.do("set", mbps=bandwidth * 8)
            rows.append(_measure_gathered(args, runner, inputs, bandwidth * 1e6))
            print(_format_row(rows[-1]), flush=True)
        pairs: List[Dict[str, Any]] = []
        if args.pairs:
            tables = {name: runner.plan_again(inputs, name) for name in UNDIVIDED}
            runner.opener.settings.measured = True
            tables[DEFAULT] = runner.plan_again(inputs, DEFAULT)
            for bandwidth in args.bandwidth or BANDWIDTHS:
                control.do("set", mbps=bandwidth * 8)
                pairs.append(_measure_pair(args.pairs, module, runner, inputs, tables, bandwidth * 1e6))
                print(_pair_line(pairs[-1]), flush=True)
        module.close()
    return rows, pairs


def _measure_gathered(
    args: argparse.Namespace, runner: Any, inputs: Sequence[Any], bytes_per_s: float
) -> Dict[str, Any]:  # fmt: skip
    """The row of tensor parallelism at one bandwidth; it has more transfers than the protocol lets wait at once."""
    from edge_offload import records
    from edge_offload.split.model.plan import Side
    from edge_offload.split.runtime.tables import compile_ready
    from edge_offload_benchmarks.tensor_parallel import tensor_parallel
    from edge_offload_research.split.model.plan_cost import simulate_plan
    from edge_offload_research.split.runtime.timeline import measure_timeline

    planned = runner.planned(inputs)
    model, network = planned.model, planned.network
    robot_s, server_s = (model.network_s(side) for side in Side)
    plan = tensor_parallel(network.located, server_s / (robot_s + server_s))
    expected = simulate_plan(plan, model, bytes_per_s)
    runs = compile_ready(plan, network.located, plan.sequence)
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # a core for each half, as otherwise
    try:
        _, seconds = measure_timeline(runs, network, inputs, bytes_per_s, model.link, args.slowdown, args.repeats)
    finally:
        os.sched_setaffinity(0, mine)
    rows = {side: sum(step.high - step.low for step in plan.steps_of(side)) for side in Side}
    return {
        "planner": "tensor_parallel", "codecs": False, "bytes_per_s": bytes_per_s, "kind": "split",
        "steps_robot": len(plan.robot), "steps_server": len(plan.server), "predicted_s": expected.makespan_s,
        "predicted_stages_s": {"compute_robot": expected.robot_s, "compute_server": expected.server_s,
                               "link": expected.communication_s},
        "fell_back": 0, "latency_s": records.latency_summary(seconds), "best_s": min(seconds),
        "error": abs(expected.makespan_s / statistics.median(seconds) - 1), "rows_robot": rows[Side.ROBOT],
        "rows_server": rows[Side.SERVER], "bytes_up": round(expected.bytes_up),
        "bytes_down": round(expected.bytes_down),
    }  # fmt: skip


def _measure_pair(
    count: int, module: Any, runner: Any, inputs: Sequence[Any], tables: Dict[str, Any], bytes_per_s: float
) -> Dict[str, Any]:
    """The plan that is used, once that is measured, and the best undivided one, ``count`` times in turns."""
    from edge_offload.modes.split.robot.runner import describe_plan
    from edge_offload_research.split.model.plan_cost import simulate_plan

    measured = _settle_contest(module, runner, inputs, tables[DEFAULT], bytes_per_s)
    chosen = {name: planned.plans[planned.plan_in_use(bytes_per_s)] for name, planned in tables.items()}
    model = tables[DEFAULT].model
    expected = {name: simulate_plan(item.plan, model, bytes_per_s).makespan_s for name, item in chosen.items()}
    contest = tables[DEFAULT].find_contest(bytes_per_s)
    if contest is not None:
        chosen[CONTENDER] = tables[DEFAULT].plans[contest[1]]
        expected[CONTENDER] = simulate_plan(chosen[CONTENDER].plan, model, bytes_per_s).makespan_s
    undivided = [
        name for name in (CONTENDER, *UNDIVIDED) if name in chosen and not chosen[name].plan.splits_an_operator
    ]
    best = min(undivided, key=lambda name: expected[name])
    mine, other = chosen[DEFAULT].plan, chosen[best].plan
    row: Dict[str, Any] = {
        "bytes_per_s": bytes_per_s, "kind": describe_plan(mine), "undivided": describe_plan(other),
        "expected_s": expected[DEFAULT],
        "undivided_expected_s": expected[best], "pairs": 0, "fell_back": 0, "ratio": None, "measured": measured,
    }  # fmt: skip
    if (mine.robot, mine.server, mine.transfers) != (other.robot, other.server, other.transfers):
        return {**row, **_measure_turns(count, module, runner, inputs, (chosen[DEFAULT], chosen[best]))}
    if measured is not None:
        # what was decided after few pairs is held as often as everything else
        divided = tables[DEFAULT].plans[tables[DEFAULT].choose_plan(bytes_per_s)]
        row["divided"] = {
            "kind": describe_plan(divided.plan),
            **_measure_turns(count, module, runner, inputs, (divided, chosen[best])),
        }
    return row


def _measure_turns(
    count: int, module: Any, runner: Any, inputs: Sequence[Any], plans: Tuple[Any, Any]
) -> Dict[str, Any]:
    """Two plans, ``count`` times in turns: medians, and the median of their ratios with its interval."""
    from edge_offload.mode import Mode
    from edge_offload_benchmarks.experiments.modes import ratio_interval

    def run_both(planned: Any) -> Any:
        table = replace(planned.table, bandwidths=(1.0, 2.0), plans=tuple(item.plan for item in plans))
        return replace(planned, table=table, plans=plans, place=(0, 1), undivided=())

    runner.put_in_force(inputs, run_both)
    fell_back = 0
    seconds: List[List[float]] = [[], []]
    for number in range(count + 2):
        latency_s = {}
        for place in (0, 1) if number % 2 else (1, 0):
            runner.bandwidth = 1.0 + place
            _, report = module.run_inference(inputs, Mode.SPLIT)
            latency_s[place] = report.total_s
            fell_back += report.mode is not Mode.SPLIT
        if number >= 2:  # the first ones find cold caches
            for place in (0, 1):
                seconds[place].append(latency_s[place])
    return {
        "pairs": count, "fell_back": fell_back, "median_s": statistics.median(seconds[0]),
        "undivided_median_s": statistics.median(seconds[1]), "ratio": list(ratio_interval(*seconds)),
    }  # fmt: skip


def _settle_contest(
    module: Any, runner: Any, inputs: Sequence[Any], planned: Any, bytes_per_s: float
) -> Optional[Dict[str, Any]]:  # fmt: skip
    """Run mode ``split`` as it runs until it knows which plan to use; what it measured. None: it divides nothing."""
    from edge_offload.mode import Mode
    from edge_offload.modes.split.robot.contest import COLD_PAIRS, DECISION_PAIRS

    runner.put_in_force(inputs, lambda _: planned)
    runner.bandwidth = bytes_per_s
    contest = planned.find_contest(bytes_per_s)
    if contest is None:
        return None
    for _ in range(3 * (COLD_PAIRS + DECISION_PAIRS[-1])):
        if contest[0].in_use is not None:
            break
        module.run_inference(inputs, Mode.SPLIT)
    measured = contest[0].ratios
    if measured is None:
        return {"used": False, "pairs": 0, "ratio": None}
    return {
        "used": bool(contest[0].in_use), "pairs": measured.pairs, "ratio": [measured.ratio, measured.low, measured.high]
    }  # fmt: skip


def _pair_line(row: Dict[str, Any]) -> str:
    text = f"{row['bytes_per_s'] / 1e6:5.1f} MB/s {row['kind']} against {row['undivided']}: "
    if row["measured"] is not None and row["measured"]["ratio"] is not None:
        ratio, low, high = row["measured"]["ratio"]
        verdict = "it is used" if row["measured"]["used"] else "it is not used"
        text = f"a divided plan took {ratio:.3f} [{low:.3f}, {high:.3f}] over {row['measured']['pairs']} pairs as it " \
               f"ran: {verdict}\n{text}"  # fmt: skip
    if row["ratio"] is None and "divided" not in row:
        return text + "the same plan"
    if row["ratio"] is None:
        text, row = f"{text}the same plan; the {row['divided']['kind']} plan against it: ", row["divided"]
    ratio, low, high = row["ratio"]
    return text + f"{ratio:.3f} [{low:.3f}, {high:.3f}] over {row['pairs']} pairs, {row['fell_back']} fell back"


def _repeat_plan(args: argparse.Namespace, module: Any, runner: Any, inputs: Sequence[Any],
            row: Dict[str, Any]) -> Dict[str, Any]:  # fmt: skip
    from edge_offload import records
    from edge_offload.mode import Mode

    seconds: List[float] = []
    stages: List[Dict[str, float]] = []
    fell_back = 0
    for attempt in range(args.repeats + 1):
        _, report = module.run_inference(inputs, Mode.SPLIT)
        if report.mode is not Mode.SPLIT:
            fell_back += 1
        elif attempt:  # the first one finds cold caches
            seconds.append(report.total_s)
            stages.append(dict(report.stages_s))
    counted = runner.counts
    row["fell_back"] = fell_back
    row["latency_s"] = records.latency_summary(seconds) if seconds else None
    names = sorted({name for item in stages for name in item})
    row["stages_s"] = {name: statistics.median(item.get(name, 0.0) for item in stages) for name in names}
    row["best_s"] = min(seconds) if seconds else None
    row["error"] = abs(row["predicted_s"] / statistics.median(seconds) - 1) if seconds else None
    row.update(rows_robot=counted.rows_robot, rows_server=counted.rows_server, bytes_up=counted.bytes_up,
               bytes_down=counted.bytes_down)  # fmt: skip
    return row


def errors_of(rows: Sequence[Dict[str, Any]]) -> Dict[str, float]:
    """Median and 90th percentile of |predicted / measured median - 1| over the plans that use the link."""
    import numpy as np

    errors = [row["error"] for row in rows if row["error"] is not None and row["kind"] != "device-only"]
    if not errors:
        return {"median_error": 0.0, "p90_error": 0.0}
    return {"median_error": float(np.median(errors)), "p90_error": float(np.percentile(errors, 90))}


def _format_row(row: Dict[str, Any]) -> str:
    measured = row["latency_s"]
    text = "never in mode split" if measured is None else f"measured p50 {measured['p50'] * 1e3:7.1f} ms"
    return (
        f"{row['planner']:12s} {'codecs' if row['codecs'] else 'raw':6s} {row['bytes_per_s'] / 1e6:5.1f} MB/s"
        f" {row['kind']:11s} predicted {row['predicted_s'] * 1e3:7.1f} {text}, rows {row['rows_robot']}"
        f"/{row['rows_server']}, {row['bytes_up'] / 1e3:.0f} kB up, {row['bytes_down'] / 1e3:.0f} kB down"
    )


def draw_models(everything: Sequence[Dict[str, Any]], path: pathlib.Path) -> None:
    """Measured and predicted latency over the bandwidth.

    A panel per model and a line per planner; and one against the other.
    """
    from edge_offload_benchmarks.plotting import open_panels

    across = min(len(everything) + 1, 4)
    down = -(-(len(everything) + 1) // across)
    with open_panels(path, down, across, (4.6 * across, 3.6 * down), dpi=100) as grid:
        _draw_panels(everything, grid.flatten())


def _draw_panels(everything: Sequence[Dict[str, Any]], panels: Any) -> None:
    for panel, record in zip(panels, everything):
        for key in dict.fromkeys((row["planner"], row["codecs"]) for row in record["rows"]):
            mine = [row for row in record["rows"] if (row["planner"], row["codecs"]) == key and row["latency_s"]]
            places = [row["bytes_per_s"] / 1e6 for row in mine]
            label = key[0] + ("" if key[1] else ", raw")
            (drawn,) = panel.plot(places, [row["latency_s"]["p50"] * 1e3 for row in mine], "o-", label=label, ms=3)
            panel.plot(places, [row["predicted_s"] * 1e3 for row in mine], ":", color=drawn.get_color())
        panel.set(xscale="log", yscale="log", xlabel="bandwidth, MB/s", ylabel="latency, ms (dotted: predicted)",
                  title=record["model"])  # fmt: skip
        ticks = sorted({row["bytes_per_s"] / 1e6 for row in record["rows"]})
        panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        panel.set_xticks([], minor=True)
        panel.grid(True, alpha=0.3)
    panels[0].legend(fontsize=5)
    last, ends = panels[len(everything)], []
    for record in everything:
        pairs = [(row["predicted_s"] * 1e3, row["latency_s"]["p50"] * 1e3) for row in record["rows"]
                 if row["latency_s"] and row["kind"] != "device-only"]  # fmt: skip
        if pairs:
            last.plot(*zip(*pairs), ".", label=record["model"], ms=4)
            ends += [min(map(min, pairs)), max(map(max, pairs))]
    if ends:
        last.plot([min(ends), max(ends)], [min(ends), max(ends)], "k-", lw=0.6)
    last.set(xscale="log", yscale="log", xlabel="predicted, ms", ylabel="measured, ms", title="simulation")
    last.legend(fontsize=5)
    for panel in panels[len(everything) + 1 :]:
        panel.set_visible(False)
