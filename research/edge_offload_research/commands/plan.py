"""Plan how robot and server compute one inference together: a table of plans by bandwidth, and a picture of one.

  edge-offload plan resnet50 --profile robot.json --server-profile server.json
  edge-offload plan vgg19_bn --profile robot.json --slowdown 6 --plot plan.png     robot emulated on this machine
  edge-offload plan kapao_s --objective energy --planner spso_ga --bandwidth 2 5 10 --out table.json
  edge-offload plan kapao_vtest --bandwidth 4 11 20 --measure --plot plan.png       run it here, too, the link emulated
  edge-offload plan mobilenet_v3_large --option size=96 --verify                    every planner, every bandwidth

Without a profile the model is measured here first. Bandwidths are in megabytes per second. The table says what each
plan is (device, server, layers: whole operators on both sides, split: operators on both sides) and what it will cost
beside the baselines. --certify adds how far it is at most from the best replicated split (one in which the sides
exchange nothing between the places where it begins and ends, but for halos that the robot hands over), --bound how far
from a lower bound on all plans.
--verify runs every plan of every planner, and some random ones, and compares them with the unsplit network up to its
last maps, in float64 and float32; every transfer of the random ones is also made one row too short at either end,
which must be refused. It fails if anything is not as it must be. With --out, records are written planner by planner
and those of other models in that file are kept, so that a zoo can be verified bit by bit; --resume keeps this model's,
too, and goes on where a verification was cut off.
"""

from __future__ import annotations

import argparse
import pathlib
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

from edge_offload.outputs import Kept, add_output
from edge_offload.subcommands import positive, some
from edge_offload_research.commands.profile import add_model_arguments, network_of

if TYPE_CHECKING:
    from edge_offload.split.model.cost import CostModel
    from edge_offload.split.model.network import TracedNetwork
    from edge_offload.split.model.objective import Objective
    from edge_offload.split.model.plan import SplitPlan
    from edge_offload.split.planners.space import Space
    from edge_offload.split.planners.table import Effort, PlanTable
    from edge_offload.split.runtime.profile import Profile
    from edge_offload_research.split.model.plan_cost import TimelineSpan


PICTURES = (".png", ".svg", ".pdf")
EVALUATIONS = 1000
"""Plans that a planner may look at here, where seconds are the budget; a robot's own planning looks at fewer."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`edge_offload.commands`."""
    add_model_arguments(parser)
    parser.add_argument("--profile", metavar="FILE", help="the robot's, from 'edge-offload profile' (default: measure)")
    parser.add_argument("--server-profile", metavar="FILE", help="the server's (default: the robot's)")
    parser.add_argument("--slowdown", type=positive, default=1.0, metavar="FACTOR",
                        help="multiply the robot's times, to emulate a slower robot (default 1)")  # fmt: skip
    parser.add_argument("--planner", default="loss_beam", help="device_only, server_only, dsccs, spso_ga, loss_de or "
                        "loss_beam (default)")  # fmt: skip
    parser.add_argument("--objective", default="latency", choices=["latency", "energy", "weighted", "deadline"])
    parser.add_argument("--deadline", type=positive, default=1.0, metavar="SECONDS", help="for --objective deadline")
    parser.add_argument("--weight", type=float, default=0.05, metavar="SECONDS_PER_JOULE", help="for weighted")
    parser.add_argument("--bandwidth", type=positive, nargs="+", metavar="MB/S", help="default: 31 bins, 0.5 to 30")
    parser.add_argument("--latency", type=float, default=0.0013, metavar="SECONDS", help="one way (default 0.0013)")
    parser.add_argument("--request", type=float, default=0.0, metavar="SECONDS", help="the runtime's own per inference")
    parser.add_argument("--no-codecs", action="store_true", help="send everything raw")
    parser.add_argument("--seconds", type=positive, default=8.0, help="time budget of the search (default 8)")
    parser.add_argument("--stream", action="store_true", help="let the server's first steps follow the input's pieces")
    parser.add_argument("--certify", action="store_true", help="say how far each plan is from the best at most")
    parser.add_argument("--bound", type=some, metavar="LABELS",
                        help="look for better plans and bound the makespan of all plans from below, keeping so many "
                             "partial plans per operator (100000 take minutes; ends at a gap of 3%%)")  # fmt: skip
    add_output(parser, "--bounds", metavar="FILE", help="with --bound: only that; notes each bandwidth's gap in FILE "
                        "(JSON, kind 'split_bound') as it is found, and leaves out what FILE holds")  # fmt: skip
    add_output(parser, "--out", metavar="FILE", help="write the table with its plans (JSON, kind 'split_table')")
    add_output(parser, "--plot", metavar="FILE.png", help="draw the plan for --plot-bandwidth")
    parser.add_argument("--measure", action="store_true", help="run both halves of the plan for --plot-bandwidth here, "
                        "the link emulated, and draw that, too")  # fmt: skip
    parser.add_argument("--plot-bandwidth", type=positive, metavar="MB/S", help="default: where a split gains most")
    parser.add_argument("--verify", action="store_true", help="run every plan of every planner; prints JSON")
    parser.add_argument("--random", type=int, default=8, metavar="N", help="random plans for --verify (default 8)")
    parser.add_argument("--resume", action="store_true", help="--verify only what --out does not hold yet")


def bandwidth_bins(count: int = 31, low: float = 0.5e6, high: float = 30e6) -> Tuple[float, ...]:
    """Bandwidths in bytes per second, in equal ratios."""
    return tuple(low * (high / low) ** (k / (count - 1)) for k in range(count))


def run(args: argparse.Namespace) -> int:
    """See :mod:`edge_offload.commands`."""
    import time

    from edge_offload import records
    from edge_offload.errors import BadInput
    from edge_offload.split.model.objective import Objective
    from edge_offload.split.planners.space import Space
    from edge_offload.split.planners.table import PLANNERS, Effort, plan_table
    from edge_offload.split.runtime.profile import Profile

    if args.planner not in PLANNERS:
        raise BadInput(f"no planner {args.planner!r}", remedy=f"use one of {', '.join(PLANNERS)}")
    if args.plot and pathlib.Path(args.plot).suffix.lower() not in PICTURES:
        raise BadInput(f"--plot {args.plot}", remedy=f"name one of {', '.join(PICTURES)}")
    if args.bounds and args.bound is None:
        raise BadInput("--bounds notes bounds, and none was asked for", remedy="add --bound LABELS")
    earlier = records.read_list(args.bounds, "split_bound")
    # what is named is read before minutes are spent on measuring
    profiles = [Profile.read(path) if path else None for path in (args.profile, args.server_profile)]
    network = network_of(args, dense=args.verify)
    model = _make_model(args, network, *profiles)
    bandwidths = sorted(rate * 1e6 for rate in args.bandwidth) if args.bandwidth else bandwidth_bins()
    objective = Objective(args.objective, args.weight, args.deadline)
    if args.verify:
        return _verify_plans(args, network, model, bandwidths, objective, Effort(seconds=args.seconds))
    effort = Effort(seconds=args.seconds, evaluations=EVALUATIONS)
    if args.bounds:
        return _note_bounds(args, model, bandwidths, effort, earlier)
    started = time.perf_counter()
    table = plan_table(Space(model, bandwidths, not args.no_codecs), args.planner, objective, effort)
    planning_s = time.perf_counter() - started
    table, bounds = _bound_table(args, model, table)
    if args.stream:
        from edge_offload_research.split.runtime.streaming import stream_table

        table = stream_table(table, model)
    rows = _make_rows(args, model, table, objective, bounds)
    _print_rows(args, rows, planning_s)
    if args.out:
        records.write(args.out, "split_table", {
            "model": args.model, "planner": args.planner, "objective": args.objective, "slowdown": args.slowdown,
            "codecs": not args.no_codecs, "planning_s": planning_s, "rows": rows,
        })  # fmt: skip
    if args.plot or args.measure:
        rate = args.plot_bandwidth * 1e6 if args.plot_bandwidth else _most_gained(rows)
        measured = _measure_plan(args, network, model, table.plan_at(rate), rate) if args.measure else None
        if args.plot:
            from edge_offload_research.split.model.draw import draw_plan

            draw_plan(table.plan_at(rate), model, rate, args.plot, f"{args.model}, {args.planner}", measured)
    return 0


def _measure_plan(
    args: argparse.Namespace, network: TracedNetwork, model: CostModel, plan: SplitPlan, rate: float
) -> Tuple[float, Sequence[TimelineSpan]]:
    """Makespan and timeline of a plan that is run here; says what both sides did."""
    import statistics

    from edge_offload.ir import sequence_hash
    from edge_offload.split.model.plan import Side
    from edge_offload.split.runtime.tables import compile_ready
    from edge_offload_research.split.model.plan_cost import simulate_plan
    from edge_offload_research.split.runtime.timeline import measure_timeline

    runs = compile_ready(plan, network.located, sequence_hash(network.located.sequence))
    measured, seconds = measure_timeline(runs, network, network.inputs, rate, model.link, args.slowdown)
    expected_s = simulate_plan(plan, model, rate).makespan_s
    print(f"at {rate / 1e6:.1f} MB/s (link emulated), {len(seconds)} times: median "
          f"{statistics.median(seconds) * 1e3:.1f} ms, {expected_s * 1e3:.1f} were expected; robot idle "
          f"{measured.idle_share(Side.ROBOT):.0%}, server idle {measured.idle_share(Side.SERVER):.0%}, "
          f"overlap_ratio {measured.overlap_ratio:.2f}")  # fmt: skip
    return measured.makespan_s, measured.spans


def _make_model(
    args: argparse.Namespace, network: TracedNetwork, robot: Optional[Profile], server: Optional[Profile]
) -> CostModel:
    from edge_offload.execute.heap import retain_freed_memory
    from edge_offload.split.model.cost import LinkCosts
    from edge_offload.split.runtime.profile import make_cost_model, measure_profile

    retain_freed_memory()  # as the runtime does
    robot = robot or measure_profile(network, repeats=3)
    link = LinkCosts(latency_s=args.latency)
    return make_cost_model(
        network.located, robot, server or robot, link, request_s=args.request, slowdown=args.slowdown
    )


def _make_rows(args: argparse.Namespace, model: CostModel, table: PlanTable, objective: Objective,
          bounds: Sequence[Optional[float]]) -> List[Dict[str, Any]]:  # fmt: skip
    import json

    from edge_offload.split.planners.space import Space
    from edge_offload.split.planners.table import plan_table
    from edge_offload_research.split.model.plan_cost import simulate_plan

    space = Space(model, table.bandwidths, not args.no_codecs)
    names = {"device_only_s": "device_only", "server_only_s": "server_only", "layers_s": "dsccs"}
    baselines = {key: plan_table(space, name, objective).predicted_s for key, name in names.items()}
    gaps = _certify_gaps(args, space, table, objective)
    rows = []
    for k, (rate, plan) in enumerate(zip(table.bandwidths, table.plans)):
        outcome = simulate_plan(plan, model, rate)
        rows.append({
            "bandwidth_bytes_per_s": rate,
            "shape": plan.kind,
            "makespan_s": table.predicted_s[k],
            "energy_j": table.predicted_j[k],
            "bytes_up": outcome.bytes_up,
            "bytes_down": outcome.bytes_down,
            "rows_robot": sum(step.high - step.low for step in plan.robot),
            "rows_server": sum(step.high - step.low for step in plan.server),
            **{key: seconds[k] for key, seconds in baselines.items()},
            "certified_gap": gaps[k],
            "bound_gap": bounds[k],
            "plan": json.loads(plan.to_json()),
        })  # fmt: skip
    return rows


def _certify_gaps(
    args: argparse.Namespace, space: Space, table: PlanTable, objective: Objective
) -> List[Optional[float]]:
    if not args.certify:
        return [None] * len(table.plans)
    from edge_offload_research.split.bounds.certificate import certify_table

    return certify_table(space, table, objective)


def _bound_table(args: argparse.Namespace, model: CostModel,
            table: PlanTable) -> Tuple[PlanTable, List[Optional[float]]]:  # fmt: skip
    """The table, improved where the search for a bound comes by better plans, and each plan's gap."""
    if args.bound is None:
        return table, [None] * len(table.plans)
    from edge_offload.errors import BadInput
    from edge_offload.split.planners.space import Space
    from edge_offload_research.split.bounds.bound import Limits, improve_and_bound

    if args.objective != "latency":
        raise BadInput("--bound bounds the makespan", remedy="leave --objective at latency")
    return improve_and_bound(Space(model, table.bandwidths, not args.no_codecs), table, Limits(labels=args.bound))


def _note_bounds(
    args: argparse.Namespace,
    model: CostModel,
    bandwidths: Sequence[float],
    effort: Effort,
    earlier: List[Dict[str, Any]],
) -> int:
    """Bandwidth after bandwidth, so that a run that is cut off can be taken up again; ``earlier``: what is there."""
    import time

    from edge_offload import records
    from edge_offload.split.planners.space import Space
    from edge_offload.split.planners.table import plan_table

    recorded = {tuple(one[key] for key in ("model", "slowdown", "codecs", "bandwidth_bytes_per_s")) for one in earlier}
    saver = Kept()
    for rate in bandwidths:
        if (args.model, args.slowdown, not args.no_codecs, rate) in recorded:
            continue
        planned = plan_table(Space(model, [rate], not args.no_codecs), args.planner, None, effort)
        started = time.perf_counter()
        table, (gap,) = _bound_table(args, model, planned)
        earlier.append({
            "model": args.model, "bandwidth_bytes_per_s": rate, "slowdown": args.slowdown, "codecs": not args.no_codecs,
            "labels": args.bound, "shape": table.plans[0].kind, "planned_s": planned.predicted_s[0],
            "makespan_s": table.predicted_s[0], "bound_s": None if gap is None else table.predicted_s[0] / (1.0 + gap),
            "gap": gap, "seconds": time.perf_counter() - started,
        })  # fmt: skip
        print(f"{args.model} at {rate / 1e6:g} MB/s: {table.predicted_s[0] * 1e3:.1f} ms, gap "
              f"{'-' if gap is None else format(gap, '.2%')}, {earlier[-1]['seconds']:.0f} s", flush=True)  # fmt: skip
        saver("bounds", lambda: records.write(args.bounds, "split_bound", earlier))
    saver.settle()
    return 0


def _print_rows(args: argparse.Namespace, rows: Sequence[Dict[str, Any]], planning_s: float) -> None:
    emulated = f", robot emulated {args.slowdown:g}x slower" if args.slowdown != 1.0 else ""
    print(f"{args.model}: {args.planner}, {args.objective}, planned in {planning_s:.1f} s{emulated}")
    print(f"{'MB/s':>6} {'plan':<7} {'ms':>8} {'J':>7} {'up kB':>8} {'down kB':>8} {'robot rows':>10} "
          f"{'server rows':>11} {'device':>8} {'server':>8} {'layers':>8} {'gap':>6} {'bound':>6}")  # fmt: skip
    for row in rows:
        gap, bound = ("-" if row[key] is None else f"{row[key]:.1%}" for key in ("certified_gap", "bound_gap"))
        print(f"{row['bandwidth_bytes_per_s'] / 1e6:6.2f} {row['shape']:<7} {row['makespan_s'] * 1e3:8.1f} "
              f"{row['energy_j']:7.3f} {row['bytes_up'] / 1e3:8.1f} {row['bytes_down'] / 1e3:8.1f} "
              f"{row['rows_robot']:10} {row['rows_server']:11} {row['device_only_s'] * 1e3:8.1f} "
              f"{row['server_only_s'] * 1e3:8.1f} {row['layers_s'] * 1e3:8.1f} {gap:>6} {bound:>6}")  # fmt: skip


def _most_gained(rows: Sequence[Dict[str, Any]]) -> float:
    """Bandwidth at which the plan gains most over the best baseline."""

    def gain_of(row: Dict[str, Any]) -> float:
        return float(min(row["device_only_s"], row["server_only_s"], row["layers_s"]) / max(row["makespan_s"], 1e-9))

    return float(max(rows, key=gain_of)["bandwidth_bytes_per_s"])


def _verify_plans(args: argparse.Namespace, network: TracedNetwork, model: CostModel, bandwidths: Sequence[float],
            objective: Objective, effort: Effort) -> int:  # fmt: skip
    import json
    import random
    import sys

    from edge_offload import records
    from edge_offload.ir import sequence_hash
    from edge_offload.split.model.check import check_plan
    from edge_offload.split.planners.space import Space
    from edge_offload.split.planners.table import PLANNERS, plan_table
    from edge_offload_research.split.model.exactness import Verifier, passes_check, random_split, shortened_plans

    options = list(args.option)
    earlier = records.read_list(args.out, "split_exactness")
    others = [record for record in earlier if record["model"] != args.model]
    verified = [record for record in earlier if args.resume and record["model"] == args.model
             and record.get("options", []) == options]  # fmt: skip
    verified_planners = {record["planner"] for record in verified}
    verifier = Verifier(network)
    saver = Kept()

    def save_record(record: Dict[str, Any]) -> None:
        records.validate("split_exactness", record)
        verified.append(record)
        print(f"{args.model}, {record['planner']}: {record['plans']} plans, float64 {record['float64']:.1e}, "
              f"{'exact' if record['exact'] else 'NOT EXACT'}", file=sys.stderr)  # fmt: skip
        if args.out:
            saver("out", lambda: records.write(args.out, "split_exactness", [*others, *verified]))

    for name in PLANNERS:
        if name not in verified_planners:
            plans = plan_table(Space(model, bandwidths, not args.no_codecs), name, objective, effort).plans
            save_record({**verifier.make_record(args.model, name, plans), "options": options})
    if "random" not in verified_planners:
        identity = sequence_hash(network.program.sequence)
        anywhere = [check_plan(random_split(network.located, random.Random(seed)), network.located, identity)
                    for seed in range(args.random)]  # fmt: skip
        mutants = [mutant for plan in anywhere for mutant in shortened_plans(plan)]
        refused = sum(not passes_check(mutant, network.located, identity) for mutant in mutants)
        save_record(
            {
                **verifier.make_record(args.model, "random", anywhere),
                "options": options,
                "mutants": len(mutants),
                "mutants_refused": refused,
            }
        )
    json.dump(verified, sys.stdout, indent=2)
    print()
    saver.settle()
    fine = all(record["exact"] and record.get("mutants") == record.get("mutants_refused") for record in verified)
    return 0 if fine else 1
