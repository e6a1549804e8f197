"""Stages, classes, batch sizes and GPUs for networks on a pool of unlike GPUs.

  edge-offload pool plan --profiles DIR --cluster 25xL4,75xP4 --network kapao_s --slo 0.2 --bandwidth 6
  edge-offload pool plan … --network a:2 --network b --slo a=0.2 --slo b=0.1        a gets twice the rate of b
  edge-offload pool plan … --load 500         fewest GPUs for 500 frames per second (times each network's weight)
  edge-offload pool plan … --planner whole    without partitions, to compare with (paired: pairs of unlike GPUs)
  edge-offload pool plan … --planner steady   as a server plans: undivided where that answers more in time

DIR holds block_latency_us.csv (dnn, gpu, vgpu_denom, block, batch, latency_us) and cut_bytes.csv (dnn, cut_after_block,
bytes_batch1). A network is cut into at most --partitions stages at its blocks, every stage on GPUs of one class, all
stages of a pipeline at one batch size; what nothing waits for is answered within SLO * (1 - margin), and no stage fills
its machines' links beyond --link-share. The plan is the best there is (IPIPE, 4.B, whole GPUs for each stage).
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Tuple

from edge_offload.commands.pool import explain_undivided
from edge_offload.errors import BadInput

if TYPE_CHECKING:
    from edge_offload.server.pool.columns import Cluster, Demand
    from edge_offload.server.pool.plan import PoolPlan


def add_arguments(plan: argparse.ArgumentParser) -> None:
    """See :mod:`edge_offload.commands`."""
    plan.add_argument("--profiles", metavar="DIR", required=True, help="folder with the two CSV files")
    plan.add_argument("--cluster", metavar="NxCLASS,…", required=True, help="GPUs there are: 25xL4,75xP4")
    plan.add_argument(
        "--network", metavar="NAME[:WEIGHT]", action="append", required=True, help="once for each network; weight 1"
    )
    plan.add_argument(
        "--slo", metavar="[NAME=]S", action="append", required=True, help="seconds to an answer, of all or one network"
    )
    plan.add_argument("--margin", type=float, default=0.4, help="share of the SLO that is left for waiting (0.4)")
    plan.add_argument("--partitions", type=int, default=3, metavar="N", help="stages of a pipeline, at most (3)")
    plan.add_argument(
        "--bandwidth", type=float, default=10.0, metavar="GBPS", help="of a machine's link, each way (10)"
    )
    plan.add_argument(
        "--link-share", type=float, default=0.8, metavar="SHARE",
        help="of its machines' links that a stage may fill; 0: no rule, 1: all of it (0.8)",
    )  # fmt: skip
    plan.add_argument(
        "--per-machine", metavar="CLASS=N,…", default="", help="GPUs that share a machine and its link: L4=4,T4=2 (1)"
    )
    plan.add_argument("--load", type=float, metavar="FPS", help="fewest GPUs for this instead of the greatest rate")
    plan.add_argument("--planner", choices=("pooled", "steady", "whole", "paired"), default="pooled", help="(pooled)")
    plan.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """See :mod:`edge_offload.commands`."""
    from edge_offload.server.pool.choose import plan_steady

    made, demands, cluster = solve_plan(args)
    if args.json:
        print(json.dumps(as_dict(made), indent=1))
        return 0
    for name, rate in made.rates.items():
        print(f"{name}: {rate:.1f} frames per second")
        for pipeline in (one for one in made.pipelines if one.network == name):
            print(
                f"  {pipeline.rate:8.1f} /s, {pipeline.latency_s * 1e3:.1f} ms, batches of {pipeline.stages[0].batch}"
            )
            for stage in pipeline.stages:
                share = f", each 1/{stage.parts}" if stage.parts > 1 else ""
                print(f"           blocks {stage.first}-{stage.end - 1} on {stage.gpus} x {stage.gpu}{share}")
    used = ", ".join(f"{made.gpus.get(gpu, 0)} of {count} {gpu}" for gpu, count in cluster.gpus.items())
    print(f"GPUs in use: {used}")
    if args.load is None and args.planner == "pooled":
        taken = plan_steady(demands, cluster, args.margin, args.partitions)
        if taken.passed_over:
            why = explain_undivided(taken.passed_over, taken.objective)
            print(f"a server takes another plan (--planner steady): {why}")
    elif made.passed_over:
        print(explain_undivided(made.passed_over, made.objective))
    return 0


def solve_plan(args: argparse.Namespace) -> Tuple[PoolPlan, List[Demand], Cluster]:
    """The plan that the arguments ask for, what is planned, and for what.

    Raises:
        BadInput: they make no sense, or nothing fits.
    """
    from edge_offload.server.pool import profile
    from edge_offload.server.pool.columns import Cluster, Demand
    from edge_offload_research.server.pool.baselines import PLANNERS
    from edge_offload_research.server.pool.fewest import plan_fewest

    if not 0 <= args.margin < 1:
        raise BadInput(f"--margin {args.margin}", remedy="0 to below 1")
    if not 1 <= args.partitions <= 4:
        raise BadInput(f"--partitions {args.partitions}", remedy="1 to 4")
    if args.load is not None and (args.planner != "pooled" or not 0 < args.load < math.inf):
        raise BadInput("--load is a positive number, and for the pooled planner alone")
    gpus = parse_counts(args.cluster)
    weights = parse_networks(args.network)
    profiles = profile.load_profiles(pathlib.Path(args.profiles))
    for name in weights:
        if name not in profiles:
            raise BadInput(f"{args.profiles} has no network {name}", remedy=f"it has {', '.join(sorted(profiles))}")
    slo_s = parse_deadlines(args.slo, weights)
    demands = [Demand(profiles[name], slo_s[name], weight) for name, weight in weights.items()]
    cluster = Cluster(gpus, args.bandwidth * 1e9 / 8, per_machine(args.per_machine, gpus), args.link_share)
    if args.load is not None:
        made = plan_fewest(demands, args.load, cluster, args.margin, args.partitions)
    else:
        made = PLANNERS[args.planner](demands, cluster, args.margin, args.partitions)
    return made, demands, cluster


def as_dict(made: Any) -> Dict[str, Any]:
    """A plan for JSON: rates in frames per second, ``blocks`` as first and end (excluded), ``share`` of a GPU."""
    return {
        "objective": made.objective,
        "pipelines": [
            {
                "network": pipeline.network,
                "rate": pipeline.rate,
                "latency_s": pipeline.latency_s,
                "stages": [
                    {
                        "blocks": [stage.first, stage.end], "class": stage.gpu, "share": 1 / stage.parts,
                        "batch": stage.batch, "gpus": stage.gpus,
                    }
                    for stage in pipeline.stages
                ],
            }
            for pipeline in made.pipelines
        ],
    }  # fmt: skip


def parse_counts(text: str) -> Dict[str, int]:
    """``25xL4,75xP4`` as numbers by class."""
    counted: Dict[str, int] = {}
    for part in text.split(","):
        number, cross, gpu = part.strip().partition("x")
        if not cross or not number.isdigit() or int(number) < 1 or not gpu or gpu in counted:
            raise BadInput(f"--cluster {text}: {part!r} is no number of GPUs of a class", remedy="write 25xL4,75xP4")
        counted[gpu] = int(number)
    return counted


def parse_networks(texts: List[str]) -> Dict[str, float]:
    """``NAME[:WEIGHT]`` as weights by name."""
    weights: Dict[str, float] = {}
    for text in texts:
        name, _, weight = text.rpartition(":") if ":" in text else (text, "", "1")
        if weight.isidentifier() and name.replace(".", "").isidentifier() and "." in name:
            name, weight = text, "1"  # a factory of the user's own
        value = _parse_positive(weight, f"--network {text}: weight {weight!r}")
        if not name or name in weights:
            raise BadInput(f"--network {text}: {'twice' if name else 'no name'}", remedy="write NAME or NAME:WEIGHT")
        weights[name] = value
    return weights


def parse_deadlines(texts: List[str], names: Mapping[str, float]) -> Dict[str, float]:
    """``[NAME=]S`` as seconds by name."""
    every, by_name = _parse_assigned(texts, "--slo")
    unknown = [name for name in by_name if name not in names]
    missing = [name for name in names if name not in by_name]
    if unknown:
        raise BadInput(f"--slo {unknown[0]}: no such --network", remedy=f"there are {', '.join(names)}")
    if missing and every is None:
        raise BadInput(f"no --slo for {missing[0]}", remedy="give one for all, or NAME=S")
    return {name: by_name[name] if name in by_name else float(every or 0) for name in names}


def per_machine(text: str, gpus: Mapping[str, int]) -> Dict[str, int]:
    """``L4=4,T4=2`` as numbers by class."""
    sharing = {}
    for part in filter(None, text.split(",")):
        gpu, _, number = part.strip().partition("=")
        if gpu not in gpus or not number.isdigit() or int(number) < 1:
            raise BadInput(f"--per-machine {part!r}", remedy=f"write CLASS=N, with a class of {', '.join(gpus)}")
        sharing[gpu] = int(number)
    return sharing


def _parse_assigned(texts: List[str], option: str) -> Tuple[Any, Dict[str, float]]:
    every, by_name = None, {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        value = _parse_positive(number, f"{option} {text}")
        if equals:
            by_name[name] = value
        else:
            every = value
    return every, by_name


def _parse_positive(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise BadInput(what, remedy="give a positive number")
    return value
