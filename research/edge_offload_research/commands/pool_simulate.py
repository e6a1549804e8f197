"""Plan a pool, and serve it random requests in virtual time.

  edge-offload pool simulate --profiles DIR --cluster 25xL4,75xP4 --network kapao_s --slo 0.2 --at 0.5 0.9 1

It says how many requests are answered in time at shares of the plan's rate (--at). The plan is the one that
'edge-offload pool plan' makes with the same arguments. --scheduler deadlines is what serves robots: a queue before each
stage; reserved: batches reserve workers and links before they are let in (IPIPE, Algorithms 3 and 4).
"""

from __future__ import annotations

import argparse
import json
from typing import Any, Callable

from edge_offload.errors import BadInput
from edge_offload_research.commands import pool_plan
from edge_offload_research.commands.pool_plan import as_dict, solve_plan


def add_arguments(simulated: argparse.ArgumentParser) -> None:
    """See :mod:`edge_offload.commands`."""
    pool_plan.add_arguments(simulated)
    simulated.add_argument(
        "--at",
        type=float,
        nargs="+",
        default=[0.5, 0.9, 1.0],
        metavar="F",
        help="shares of the planned rate (0.5 0.9 1)",
    )
    simulated.add_argument("--scheduler", choices=("deadlines", "reserved"), default="deadlines", help="(deadlines)")
    simulated.add_argument("--seconds", type=float, default=10.0, help="of virtual time for each (10)")
    simulated.add_argument("--seed", type=int, default=0, help="of the arrivals (0)")
    simulated.add_argument(
        "--spread", type=float, default=0.0, metavar="X", help="stages take up to this share longer or shorter (0)"
    )


def run(args: argparse.Namespace) -> int:
    """See :mod:`edge_offload.commands`."""
    import numpy as np

    from edge_offload.server.pool import simulate
    from edge_offload_research.server.pool import reserved

    if args.seconds <= 0 or not 0 <= args.spread < 1 or any(not 0 < share < 10 for share in args.at):
        raise BadInput("--seconds is above 0, --spread 0 to below 1, --at above 0 and below 10")
    made, demands, cluster = solve_plan(args)
    networks = {one.network.name: one.network for one in demands}
    slo_s = {one.network.name: one.slo_s for one in demands}
    serve = reserved.run if args.scheduler == "reserved" else simulate.simulate_load
    rows = []
    for share in args.at:
        source = np.random.default_rng([args.seed, round(share * 1000)])
        arrivals = {
            name: simulate.poisson_arrivals(rate * share, args.seconds, source) for name, rate in made.rates.items()
        }
        factors = _draw_factors(args.spread, source) if args.spread else None
        outcome = serve(made, networks, cluster, slo_s, arrivals, factors)
        rows.append({"at": share, **vars(outcome)})
        if not args.json:
            shown = ", ".join(f"{name} {100 * value:.2f} %" for name, value in outcome.attainment.items())
            busy = ", ".join(f"{gpu} {100 * value:.0f} %" for gpu, value in outcome.utilisation.items())
            print(f"{share:5.2f} of the plan: in time {shown}; busy {busy}")
    if args.json:
        print(json.dumps({**as_dict(made), "loads": rows}, indent=1))
    return 0


def _draw_factors(spread: float, source: Any) -> Callable[[], float]:
    return lambda: 1 + spread * float(source.uniform(-1, 1))
