"""Two schedulers of a pool on the same plans, arrivals and links: a queue before each stage, and reservations.

deadlines: what serves robots. Before each stage of a pipeline is a queue in the order of deadlines; a batch is formed
when a worker becomes free, and dropped when it can no longer be in time. reserved: a batch reserves all of its way,
workers and links, before it is let in (IPIPE, Algorithms 3 and 4).

  edge-offload bench pool-schedulers --profiles DIR --plans reference_plans.csv --json pool_schedulers.json
  edge-offload bench pool-schedulers --profiles DIR --cluster HC4 --json pool_schedulers.json --update

Clusters and groups of networks are those of 'bench pool'; plans: shipped (what a server takes, 0.8 of the links) and
links_1 (the greatest rate, all of the links). A machine's transfers go one after the other, up and down. Requests come
at random (Poisson), at shares of the rate of the plan itself; each seed gives both schedulers the same arrivals.
Attainment is the share of requests that are answered in time, the mean over the networks of a group. With --spread
stages take longer or shorter than the profile says. Nothing is computed.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.outputs import add_output
from edge_offload.server.pool import profile, simulate
from edge_offload.server.pool.choose import plan_steady
from edge_offload.server.pool.plan import PoolPlan, plan_most
from edge_offload.server.pool.profile import BlockProfile
from edge_offload_benchmarks.experiments.pool import CLUSTERS, Case, cases_of, cluster_of
from edge_offload_research.server.pool import reserved

SCHEDULERS = {"deadlines": simulate.simulate_load, "reserved": reserved.run}
#: Stages of a pipeline, at most.
STAGES = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--profiles", type=pathlib.Path, metavar="DIR", required=True, help="as for 'pool plan'")
    parser.add_argument("--plans", type=pathlib.Path, metavar="CSV", help="the authors' groups, weights and deadlines")
    parser.add_argument("--cluster", action="append", choices=list(CLUSTERS), help="only this one (may be repeated)")
    parser.add_argument("--groups", type=int, metavar="N", help="groups of each cluster, at most (default: all)")
    parser.add_argument(
        "--at", type=float, nargs="+", default=[0.95, 1.0], metavar="F", help="shares of the plan's rate (0.95 1)"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="of virtual time (30)")
    parser.add_argument("--seeds", type=int, default=10, help="of arrivals, from 0 (10)")
    parser.add_argument(
        "--spread", type=float, default=0.0, metavar="X", help="stages take up to this share longer or shorter (0)"
    )
    parser.add_argument("--update", action="store_true", help="keep what --json has of other clusters")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the record here")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    if args.seconds <= 0 or args.seeds < 2 or not 0 <= args.spread < 1 or any(not 0 < at < 10 for at in args.at):
        raise BadInput("--seconds is above 0, --seeds at least 2, --spread 0 to below 1, --at above 0 and below 10")
    if args.groups is not None and args.groups < 1:
        raise BadInput("--groups is at least 1")
    networks = profile.load_profiles(args.profiles)
    clusters = args.cluster or list(CLUSTERS)
    before = json.loads(args.json.read_text(encoding="utf-8"))["rows"] if args.update and args.json.exists() else []
    rows: List[Dict[str, Any]] = [row for row in before if row["cluster"] not in clusters]
    for case in cases_of(args.plans, networks, clusters, args.groups, 0):
        for row in _measure_case(case, networks, args):
            rows.append(row)
            shown = ", ".join(f"{name} {row[name]['mean']:.4f} ± {row[name]['spread']:.4f}" for name in SCHEDULERS)
            print(f"{row['cluster']}, {row['plan']} at {row['at']:g}: {shown}", flush=True)
        record = {
            "seconds": args.seconds,
            "seeds": args.seeds,
            "spread": args.spread,
            "summary": summarise_rows(rows),
            "rows": rows,
        }
        if args.json:  # after each, so that a run that is stopped has something to show
            args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summarise_rows(rows), indent=1))
    return 0


def _measure_case(case: Case, networks: Mapping[str, BlockProfile], args: argparse.Namespace) -> List[Dict[str, Any]]:
    full = cluster_of(case.cluster, 1.0)
    plans = {
        "shipped": plan_steady(case.group, cluster_of(case.cluster, 0.8), case.margin, STAGES),
        "links_1": plan_most(case.group, full, case.margin, STAGES),
    }
    slo_s = {demand.network.name: demand.slo_s for demand in case.group}

    def attained_share(plan: PoolPlan, at: float, seed: int) -> Tuple[float, ...]:
        source = np.random.default_rng([seed, round(at * 1000)])
        arrivals = {
            demand.network.name: simulate.poisson_arrivals(plan.objective * demand.weight * at, args.seconds, source)
            for demand in case.group
        }
        shares = []
        for serve in SCHEDULERS.values():
            factors = np.random.default_rng([seed, 1])
            stretch = (lambda: 1 + args.spread * float(factors.uniform(-1, 1))) if args.spread else None  # noqa: B023
            outcome = serve(plan, networks, full, slo_s, arrivals, stretch)
            shares.append(float(np.mean(list(outcome.attainment.values()))))
        return tuple(shares)

    rows = []
    for name, plan in plans.items():
        for at in args.at:
            shares = np.array([attained_share(plan, at, seed) for seed in range(args.seeds)])
            row = {"cluster": case.cluster, "networks": list(slo_s), "plan": name, "rate": plan.objective, "at": at}
            for place, scheduler in enumerate(SCHEDULERS):
                row[scheduler] = spread_of(shares[:, place])
            rows.append({**row, "gain": spread_of(shares[:, 0] - shares[:, 1])})
    return rows


def spread_of(values: Array) -> Dict[str, float]:
    """Mean and standard deviation over seeds."""
    return {"mean": round(float(np.mean(values)), 5), "spread": round(float(np.std(values, ddof=1)), 5)}


def summarise_rows(rows: Sequence[Mapping[str, Any]]) -> List[Dict[str, Any]]:
    """Summarise by cluster, plan and load: the mean over groups of each scheduler, and the least gain of a group."""
    keys = dict.fromkeys((row["cluster"], row["plan"], row["at"]) for row in rows)
    made = []
    for key in keys:
        of = [row for row in rows if (row["cluster"], row["plan"], row["at"]) == key]
        means = {name: round(float(np.mean([row[name]["mean"] for row in of])), 4) for name in (*SCHEDULERS, "gain")}
        least = min(row["gain"]["mean"] for row in of)
        made.append({
            "cluster": key[0], "plan": key[1], "at": key[2], "groups": len(of), **means, "least_gain": round(least, 4)
        })  # fmt: skip
    return made
