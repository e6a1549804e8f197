"""Plans for pools of unlike GPUs under load, in virtual time, from profiles of real GPUs: ours, and what to compare.

Clusters are the authors' four of 25 + 75 GPUs; networks are served three at a time (the groups, weights and deadlines
of --plans where it is given, else groups by --seed and five times the latency on the fastest class), and each alone
with --alone. Requests come at random (Poisson). A load of 1 is what our plan with the whole of the links promises; the
table has the largest load, in steps of 0.05 (alone: 0.01), at which 99 % of each network's requests are in time.

  edge-offload bench pool --profiles DIR --json pool.json
  edge-offload bench pool --profiles DIR --plans reference_plans.csv --alone --json pool.json --plot pool.png
  edge-offload bench pool --profiles DIR --alone --groups 0 --cluster HC4 --json pool.json --update      a part of it

  edge-offload bench pool --profiles DIR --real NAME --gpus 4xL4,12xP4 --seconds 60 --json pool.json
  edge-offload bench pool --profiles DIR --faults NAME --repeat 5 --json pool.json
  edge-offload bench pool --costs --json pool.json
  edge-offload bench pool --networks 500 --json pool.json
  edge-offload bench pool --profiles DIR --plans reference_plans.csv --planning --json pool.json

--real: one network on an emulated cluster of this machine, head, members, driver and server as they are, requests of
robots through ZeroMQ; GPUs sleep the time of the profile, dilated until what a stage costs beyond it is at most 2 % of
the shortest stage. How many are answered in time, beside the simulator's on the same arrivals. Put into the record that
--json names. It ends with 1 if a request is lost or the cluster is more than a point below the simulator.
--faults: such a cluster with a machine's actors killed, its raylet killed, all of it stopped, from outside and under
load: of the requests whose batch was under way there and could still be in time elsewhere, how many were. Ends with 1
below 95 %, or if a request is lost.
--costs: memory and processor of head and members, and processor that a frame of 250 kB through two stages adds.

--networks: KAPAO on so many frames of the sample video, MoveNet and ResNet-50 on a tenth of it, in up to three stages
on two slowed classes, beside an undivided server and the robot itself: bits, and people. Ends with 1 if any differ.
--planning: processor time of a server's planner for 25 + 75 GPUs: each network in up to three stages, groups in up to
two. Ends with 1 if a plan took more than 0.25 s.

pooled: our plan, 0.8 of the links, undivided where that answers more in time, as a server plans; pooled_links_1: the
greatest rate with all of the links, whatever it holds; whole: no partitions (NP); paired: pairs of one GPU of
each class (DART-r); authors: their plan, our scheduler. GPUs are emulated by their measured latencies: nothing is
computed. 'bench pool-schedulers' compares the scheduler with reservations.
"""

from __future__ import annotations

import argparse
import csv
import json
import pathlib
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from edge_offload.errors import BadInput
from edge_offload.outputs import add_output
from edge_offload.server.pool import profile, simulate
from edge_offload.server.pool.choose import plan_steady, plan_undivided
from edge_offload.server.pool.columns import Cluster, Demand
from edge_offload.server.pool.plan import PlannedPipeline, PlannedStage, PoolPlan, plan_most
from edge_offload.server.pool.profile import BlockProfile
from edge_offload_research.server.pool.baselines import plan_pairs
from edge_offload_research.server.pool.simulate import load_factor

#: name, classes with how many share a machine, and bytes per second of its link.
CLUSTERS: Dict[str, Tuple[Dict[str, int], float]] = {
    "HC1": ({"L4": 1, "P4": 1}, 6e9 / 8),
    "HC2": ({"L4": 4, "T4": 2}, 10e9 / 8),
    "HC3": ({"V100": 2, "P4": 1}, 6e9 / 8),
    "HC4": ({"V100": 4, "T4": 2}, 10e9 / 8),
}
COUNTS = (25, 75)
STEP, SINGLE_STEP, MOST = 0.05, 0.01, 1.0
#: Seconds of processor that a plan for all of a cluster may take.
PLANNED_S = 0.25
#: Requests at a load of 1 that suffice for one network alone, where --seconds would be more.
SINGLE_REQUESTS = 6000


@dataclass(frozen=True)
class Case:
    """Networks on a cluster.

    Attributes:
        cluster: its name.
        group: networks, deadlines and weights.
        margin: of the deadline.
        authors: their plan of it, if there is one.
    """

    cluster: str
    group: Tuple[Demand, ...]
    margin: float
    authors: Optional[PoolPlan] = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--profiles", type=pathlib.Path, metavar="DIR", help="as for 'pool plan'; --costs needs none")
    parser.add_argument("--costs", action="store_true", help="what head, members and frames cost; needs Ray")
    parser.add_argument("--networks", type=int, metavar="FRAMES", help="real networks in stages; needs Ray")
    parser.add_argument("--planning", action="store_true", help="processor time of the planner")
    parser.add_argument("--plans", type=pathlib.Path, metavar="CSV", help="the authors' plans, to stand beside ours")
    parser.add_argument("--alone", action="store_true", help="each network alone, too, at margins of 0.1 and 0.4")
    parser.add_argument("--cluster", action="append", choices=list(CLUSTERS), help="only this one (may be repeated)")
    parser.add_argument("--groups", type=int, metavar="N", help="groups of each cluster, at most (default: all)")
    parser.add_argument("--update", action="store_true", help="keep what --json has of other clusters, and of the rest")
    parser.add_argument("--real", default="", metavar="NAME", help="this network on an emulated cluster; needs Ray")
    parser.add_argument("--faults", default="", metavar="NAME", help="harm to such a cluster under load; needs Ray")
    parser.add_argument("--gpus", metavar="NxCLASS,…", help="--real: of it (4xL4,12xP4); --faults (6xL4,12xP4)")
    parser.add_argument("--times", type=float, default=30.0, metavar="X", help="--real, --faults: least dilation (30)")
    parser.add_argument(
        "--load", type=float, metavar="F", help="--real (0.9), --faults (0.6): share of the planned rate"
    )
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="--faults: of each kind (5)")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="of virtual time for each load; --real: of load (10)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of arrivals and groups (0)")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the record here")
    add_output(parser, "--plot", type=pathlib.Path, metavar="FILE", help="draw load factors (needs matplotlib)")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    if args.seconds <= 0 or (args.groups is not None and args.groups < (0 if args.alone else 1)):
        raise BadInput("--seconds is above 0 and --groups at least 1 (0: with --alone)")
    if args.update and args.json is None:
        raise BadInput("--update without a file", remedy="say --json FILE")
    if args.costs:
        return _measure_costs(args)
    if args.networks is not None:
        return _measure_networks(args)
    if args.profiles is None:
        raise BadInput("no --profiles", remedy="name a folder as 'edge-offload pool profile' writes it")
    if args.real or args.faults:
        return _measure_real(args) if args.real else _measure_faults(args)
    networks = profile.load_profiles(args.profiles)
    clusters = args.cluster or list(CLUSTERS)
    if args.planning:
        return _measure_planning(args, networks, clusters)
    cases = _make_cases(args, networks, clusters)
    earlier = json.loads(args.json.read_text(encoding="utf-8")) if args.update and args.json.exists() else {}
    replaced = {"alone" if single else "groups" for _, single in cases}
    record: Dict[str, Any] = {**earlier, "seconds": args.seconds}
    for kind in ("groups", "alone"):
        record[kind] = [row for row in earlier.get(kind, []) if kind not in replaced or row["cluster"] not in clusters]
    for number, (case, single_network) in enumerate(cases, 1):
        row = _measure_case(case, networks, args, single_network)
        record["alone" if single_network else "groups"].append(row)
        shown = ", ".join(f"{name} {one['load']:.2f}" for name, one in row["systems"].items())
        print(
            f"{number} of {len(cases)}: {case.cluster}, "
            f"{' + '.join(_shorten_name(one) for one in row['networks'])}: {shown}",
            flush=True,
        )
        if args.json:  # after each, so that a run that is stopped has something to show
            args.json.write_text(
                json.dumps({**record, "summary": summarise_record(record)}, indent=1) + "\n", encoding="utf-8"
            )
    for name, line in summarise_record(record).items():
        print(f"{name}: {line}")
    if args.plot:
        _draw_record(args.plot, record)
    return 0


def _measure_costs(args: argparse.Namespace) -> int:
    from edge_offload.server.pool.cluster import check_available
    from edge_offload_benchmarks.pool_real import measure_costs

    check_available()
    measured = measure_costs(args.seconds)
    print(
        f"head and two members: {measured['idle_bytes'] / 1e9:.2f} GB, {100 * measured['idle_cores']:.1f} % of a core; "
        f"{1e3 * measured['frame_cpu_s']:.1f} ms of processor a frame "
        f"({1e3 * measured['frame_cpu_all_s']:.1f} with what is "
        f"there without frames, {100 * measured['without_frames_cores']:.1f} %), p50 {1e3 * measured['p50_s']:.0f} ms; "
        f"at {measured['often']['per_s']} a second "
        f"{1e3 * sum(measured['often']['frame_cpu_by_s'].values()):.1f} ms, the "
        f"driver {1e3 * measured['often']['frame_cpu_by_s']['driver']:.1f} ms"
    )
    _save_part(args, "costs", measured)
    return 0


def _measure_planning(args: argparse.Namespace, networks: Mapping[str, BlockProfile], clusters: Sequence[str]) -> int:
    args.alone = True
    taken: Dict[str, List[float]] = {"one network": [], "several networks": []}
    for case, single in _make_cases(args, networks, clusters):
        for link_share in (0.8, 1.0):
            started_at = time.process_time()
            plan_steady(case.group, cluster_of(case.cluster, link_share), case.margin, _max_stages(single))
            taken["one network" if single else "several networks"].append(time.process_time() - started_at)
    rows = [
        {
            "what": what, "stages": _max_stages(what == "one network"), "plans": len(each_s),
            "mean_s": float(np.mean(each_s)), "most_s": max(each_s),
        }
        for what, each_s in taken.items() if each_s
    ]  # fmt: skip
    for row in rows:
        print(
            f"{row['what']} in up to {row['stages']} stages, {row['plans']} plans for {' + '.join(map(str, COUNTS))} "
            f"GPUs: {row['mean_s']:.3f} s of processor in the mean, {row['most_s']:.3f} s at most (bar {PLANNED_S:g})"
        )
    _save_part(args, "planning", rows)
    return 0 if judge_planning(rows) else 1


def judge_planning(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether every plan was made in time."""
    return all(row["most_s"] <= PLANNED_S for row in rows)


def _max_stages(single: bool) -> int:
    """Return the most stages of a pipeline, as in the paper."""
    return 3 if single else 2


def _measure_networks(args: argparse.Namespace) -> int:
    from edge_offload.server.pool.cluster import check_available

    check_available()
    if not 1 <= args.networks <= 10000:
        raise BadInput("--networks is 1 to 10000 frames")
    from edge_offload_benchmarks.pool_networks import measure_networks

    rows = measure_networks(args.networks, lambda rows: _save_part(args, "networks", rows))
    complete = all(row[key] == row["frames"] for row in rows for key in ("remote", "equal_local", "equal_server"))
    return 0 if complete and all(row["people_equal"] == row["frames"] for row in rows if row["people"]) else 1


def _save_part(args: argparse.Namespace, name: str, part: Any) -> None:
    if args.json:
        earlier = json.loads(args.json.read_text(encoding="utf-8")) if args.json.exists() else {}
        args.json.write_text(json.dumps({**earlier, name: part}, indent=1) + "\n", encoding="utf-8")


def _measure_real(args: argparse.Namespace) -> int:
    from edge_offload.server.pool.cluster import check_available
    from edge_offload_benchmarks.pool_real import measure_pool
    from edge_offload_research.commands.pool_plan import parse_counts

    check_available()
    load = _choose_load(args, 0.9)
    gpus = parse_counts(args.gpus or "4xL4,12xP4")
    outcome = measure_pool(args.profiles, args.real, gpus, args.times, load, args.seconds, args.seed)
    print(
        f"{outcome['requests']} requests at {load:g} of {outcome['rate']:.1f} /s: {100 * outcome['served']:.2f} % in "
        f"time, {100 * outcome['simulated']:.2f} % in the simulator; {outcome['refused']} refused, "
        f"{outcome['lost']} lost"
    )
    _save_part(args, "real", outcome)
    confirmed = outcome["served"] >= outcome["simulated"] - 0.01 and not outcome["lost"] and not outcome["failed"]
    return 0 if confirmed else 1


def _choose_load(args: argparse.Namespace, usual: float) -> float:
    load: float = usual if args.load is None else args.load
    if not 1 <= args.times <= 10000 or not 0 < load <= 2 or not 1 <= args.repeat <= 1000:
        raise BadInput("--times is 1 to 10000, --load above 0 and at most 2, --repeat 1 to 1000")
    return load


def _measure_faults(args: argparse.Namespace) -> int:
    from edge_offload.server.pool.cluster import check_available
    from edge_offload_benchmarks.pool_faults import measure_faults, meets_share
    from edge_offload_research.commands.pool_plan import parse_counts

    check_available()
    gpus = parse_counts(args.gpus or "6xL4,12xP4")
    rows = measure_faults(args.profiles, args.faults, gpus, args.times, _choose_load(args, 0.6), args.repeat, args.seed)
    for row in rows:
        print(
            f"{row['fault']}: {row['stranded']} requests under way there, {row['could']} could be in time elsewhere, "
            f"{row['did']} were; of {row['requests']} in all {row['refused']} refused, {row['lost']} lost"
        )
    _save_part(args, "faults", rows)
    return 0 if meets_share(rows) else 1


def _make_cases(
    args: argparse.Namespace, networks: Mapping[str, BlockProfile], clusters: Sequence[str]
) -> List[Tuple[Case, bool]]:
    groups = cases_of(args.plans, networks, clusters, args.groups, args.seed)
    cases = [(group, False) for group in groups]
    if args.alone:
        cases += [
            (Case(cluster, (Demand(network, _five_times(network)),), margin), True)
            for cluster in clusters
            for margin in (0.1, 0.4)
            for network in networks.values()
        ]
    return cases


def cases_of(
    plans: Optional[pathlib.Path], networks: Mapping[str, BlockProfile], clusters: Sequence[str],
    most_groups: Optional[int],
    seed: int,
) -> List[Case]:  # fmt: skip
    """Groups of networks on each cluster: the authors' where there is their table, else random ones."""
    if plans is not None:
        groups = _read_published(plans, networks, clusters)
    else:
        order = np.random.default_rng(seed).permutation(sorted(networks))
        demands = [Demand(networks[str(name)], _five_times(networks[str(name)])) for name in order]
        groups = [
            Case(cluster, tuple(demands[at : at + 3]), 0.4) for cluster in clusters for at in range(0, len(demands), 3)
        ]
    return [one for cluster in clusters for one in [g for g in groups if g.cluster == cluster][:most_groups]]


def _read_published(path: pathlib.Path, networks: Mapping[str, BlockProfile], clusters: Sequence[str]) -> List[Case]:
    """Groups, weights, deadlines and plans of the authors' table: three rows a group."""
    try:
        with open(path, newline="", encoding="utf-8") as lines:
            rows = [row for row in csv.DictReader(lines) if row["scheduler"] == "v4" and row["weights"]]
    except (OSError, KeyError, csv.Error) as error:
        raise BadInput(f"cannot read {path}: {error}", remedy="give the authors' table of plans") from error
    cases = []
    for at in range(0, len(rows), 3):
        group = rows[at : at + 3]
        kinds = {group[0]["gpu_hi"], group[0]["gpu_lo"]}
        cluster = next((name for name in clusters if set(CLUSTERS[name][0]) == kinds), None)
        if cluster is None:
            continue
        weights = [float(weight) for weight in group[0]["weights"].split("-")]
        demands = tuple(
            Demand(networks[row["dnn"]], float(row["slo_us"]) / 1e6, weight) for row, weight in zip(group, weights)
        )
        margin = float(group[0]["slo_margin_us"]) / float(group[0]["slo_us"])
        cases.append(Case(cluster, demands, margin, _their_plan(group, demands)))
    return cases


def _their_plan(rows: Sequence[Mapping[str, str]], demands: Sequence[Demand]) -> PoolPlan:
    made = []
    for row in rows:
        for rate, given in json.loads(row["pipelines"]):
            latency_s = sum(stage[6] + stage[7] for stage in given) / 1e6
            stages = tuple(
                PlannedStage(first, end, gpu, parts, batch, round(gpus))
                for first, end, gpu, parts, batch, gpus, *_ in given
            )
            made.append(PlannedPipeline(row["dnn"], rate, latency_s, stages))
    rates = {row["dnn"]: float(row["xput_rps"]) for row in rows}
    return PoolPlan(min(rates[one.network.name] / one.weight for one in demands), tuple(made), rates)


def _five_times(network: BlockProfile) -> float:
    """The authors' deadline: five times the latency of one frame on the fastest class."""
    return 5 * min(float(shares[1][:, 0].sum()) for shares in network.latency_s.values() if 1 in shares)


def cluster_of(name: str, link_share: float) -> Cluster:
    """A cluster of 100 GPUs by its name."""
    per_machine, rate = CLUSTERS[name]
    return Cluster(dict(zip(per_machine, COUNTS)), rate, per_machine, link_share)


Serve = Callable[[Dict[str, Any]], simulate.LoadOutcome]


def _measure_case(
    case: Case, networks: Mapping[str, BlockProfile], args: argparse.Namespace, single: bool
) -> Dict[str, Any]:
    full, careful = cluster_of(case.cluster, 1.0), cluster_of(case.cluster, 0.8)
    stages = _max_stages(single)
    started_at = time.process_time()
    plans = {
        "pooled": plan_steady(case.group, careful, case.margin, stages),
        "pooled_links_1": plan_most(case.group, full, case.margin, stages),
        "whole": plan_undivided(case.group, full, case.margin),
    }
    if not single:
        plans["paired"] = plan_pairs(case.group, full, case.margin)
        if case.authors is not None:
            plans["authors"] = case.authors
    planned_s = time.process_time() - started_at
    slo_s = {demand.network.name: demand.slo_s for demand in case.group}
    best = plans["pooled_links_1"]
    rates = {demand.network.name: best.objective * demand.weight for demand in case.group}

    def serve_plan(plan: PoolPlan) -> Serve:
        return lambda arrivals: simulate.simulate_load(plan, networks, full, slo_s, arrivals)

    systems: Dict[str, Any] = {}
    step = SINGLE_STEP if single else STEP
    seconds = min(args.seconds, SINGLE_REQUESTS / sum(rates.values())) if single else args.seconds
    for name, plan in plans.items():
        same = next((one for one in systems if plans[one].pipelines == plan.pipelines), None)
        outcome = systems[same] if same else _find_load(rates, serve_plan(plan), full, args.seed, seconds, step)
        systems[name] = {**outcome, "plan": plan.objective / best.objective}
    return {
        "cluster": case.cluster, "networks": list(slo_s), "margin": case.margin, "planned_s": planned_s,
        "unit": best.objective, "systems": systems,
    }  # fmt: skip


def _find_load(
    rates: Mapping[str, float], serve: Serve, cluster: Cluster, seed: int, seconds: float, step: float
) -> Dict[str, Any]:
    """The largest load at which 99 % is held, by every network and by each; how busy GPUs are at the former."""
    seen: Dict[int, simulate.LoadOutcome] = {}

    def load_outcome(load: float) -> simulate.LoadOutcome:
        steps = round(load / step)
        if steps not in seen:
            source = np.random.default_rng([seed, steps])
            arrivals = {name: simulate.poisson_arrivals(rate * load, seconds, source) for name, rate in rates.items()}
            seen[steps] = serve(arrivals)
        return seen[steps]

    def attained_share(name: str) -> Callable[[float], float]:
        return lambda load: load_outcome(load).attainment[name]

    loads = {name: load_factor(attained_share(name), 0.99, step, MOST) for name in rates}
    load = min(loads.values())
    busy = load_outcome(load).utilisation if load else {}
    return {"load": load, "loads": loads, "busy": {gpu: round(busy.get(gpu, 0.0), 4) for gpu in cluster.gpus}}


def summarise_record(record: Mapping[str, Any]) -> Dict[str, Any]:
    """The figures of the chapter's text, from a record."""
    made: Dict[str, Any] = {}
    groups = record["groups"]
    if groups:
        names = list(groups[0]["systems"])
        for cluster in dict.fromkeys(row["cluster"] for row in groups):
            rows = [row for row in groups if row["cluster"] == cluster]
            mean = {name: _mean_load(rows, name) for name in names}
            made[f"{cluster}: mean load factor"] = {name: round(value, 3) for name, value in mean.items()}
            made[f"{cluster}: gain over whole"] = {
                name: round(value / mean["whole"] - 1, 3) for name, value in mean.items() if name != "whole"
            }
        made["low class busy"] = {
            name: round(float(np.mean([list(row["systems"][name]["busy"].values())[1] for row in groups])), 3)
            for name in names
        }  # fmt: skip
        for name in ("pooled", "pooled_links_1"):
            shares = np.array([load / row["systems"][name]["plan"] for row in groups for load in _loads_of(row, name)])
            made[f"{name}: share of its plan that a network holds"] = {
                "least": round(float(shares.min()), 3),
                "mean": round(float(np.minimum(shares, 1.0).mean()), 3),
            }
        made["least of a group, over whole's"] = {"pooled": round(_least_over_undivided(groups, "pooled"), 3)}
    if record["alone"]:
        made["alone, over whole"] = {
            name: round(_least_over_undivided(record["alone"], name), 3) for name in ("pooled", "pooled_links_1")
        }
    return made


def _loads_of(row: Mapping[str, Any], name: str) -> List[float]:
    return list(row["systems"][name]["loads"].values())


def _least_over_undivided(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    """The least, over groups, of the load that all of a group hold, as a share of what they hold undivided."""
    return min(
        float(row["systems"][name]["load"]) / max(float(row["systems"]["whole"]["load"]), SINGLE_STEP / 2)
        for row in rows
    )


def _mean_load(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return float(np.mean([load for row in rows for load in _loads_of(row, name)]))


def _shorten_name(name: str) -> str:
    return name.split("_")[0].split("-")[0]


def _draw_record(path: pathlib.Path, record: Mapping[str, Any]) -> None:
    from edge_offload_benchmarks.plotting import open_panels

    rows = record["groups"]
    clusters = list(dict.fromkeys(row["cluster"] for row in rows))
    names = list(rows[0]["systems"])
    with open_panels(path, 1, 1, (8, 3.6)) as grid:
        axes = grid[0, 0]
        for place, name in enumerate(names):
            heights = [_mean_load([row for row in rows if row["cluster"] == cluster], name) for cluster in clusters]
            axes.bar(np.arange(len(clusters)) + place * 0.8 / len(names), heights, 0.8 / len(names), label=name)
        axes.set_xticks(np.arange(len(clusters)) + 0.35, clusters)
        axes.set_ylabel("largest load with 99 % in time")
        axes.set_ylim(0, 1.25)
        axes.legend(fontsize=8, ncol=3)
