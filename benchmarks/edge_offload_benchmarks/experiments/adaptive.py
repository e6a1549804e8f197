"""Choosing the mode per frame, over a whole bandwidth trace: auto against every mode and plan held, and an oracle.

What a frame costs is measured here, between a robot's process and a server's, on frames of a video, one thread each,
over an emulated link of the trace's mean rate:
the network on the robot times --slowdown; a request to the server without its time on the link; a frame in mode replay
of a process on the virtual device, likewise. Plans of mode split are simulated from the times of the operators,
measured as well, and corrected by what the simulation of a whole request is off. The trace is then run through in
*virtual time*, frame after frame without a pause: estimator, probes,
forecasts, policy and hedging are those of the running system and see the link only through their own transfers. What
is held is the running system, too: it falls back, and hedges when a result is late by its forecast. To begin sooner,
because the link is seen to have stopped, and to join a server that comes back, is the policy's. The oracle knows what
every mode and plan will take.

  edge-offload bench adaptive                                          the synthetic indoor trace
  edge-offload bench adaptive --trace bandwidth_indoors.csv            a trace of yours
  edge-offload bench adaptive --trace bandwidth_indoors.csv --outages  and again with outages and weak spots put in
  edge-offload bench adaptive --outages --seeds 6                      chance moves a mean by some tenths of a percent:
                                                                       "strictly below" is judged over pairs of runs
  edge-offload bench adaptive --slowdown 2 4                           robots half and a quarter as fast as this machine
  edge-offload bench adaptive --workload costs.json                    components of your own instead of measured ones
  edge-offload bench adaptive --launch --json adaptive_launch.json     in real time: the launch file as it is started by
                                                                       default, against every mode held, three turns
  edge-offload bench adaptive --launch link=wifi_93mbps model=movenet  with arguments of the launch file
  edge-offload bench adaptive --launch link=wifi_93mbps --held server --lead 0 --seconds 20 --turns 6
                                                                       frames while modes are learnt and plans made
  edge-offload bench adaptive --launch --busy 2                        on a machine whose processors others want, too

regret: mean latency / the oracle's mean latency - 1. remote when faster: share of the frames for which a remote mode
was forecast to be faster that went there. in outages: frames that begin while the link is dead. Below each table stands
what auto is held to, and whether it is met. A workload is a list of {mode, robot_s, server_s,
bytes_up, bytes_down, pauses_s}.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import pathlib
import statistics
import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

from edge_offload.outputs import Kept, add_output

if TYPE_CHECKING:
    from edge_offload.manager.policy import Policy
    from edge_offload_benchmarks.simulation.closed_loop import ModeCost, Run
    from edge_offload_benchmarks.simulation.planned_cost import PlannedCost
    from edge_offload_research.emulate.trace import Trace

#: With --outages, in every period of so many seconds ...
OUTAGE_PERIOD_S = 30.0
#: ... the link is dead for so long, and later weak for so long, with so many bytes per second.
DEAD_S, WEAK_S, WEAK = 4.0, 5.0, 0.25e6
#: What auto is held to: shares, and seconds above the local 99th percentile.
OF_ORACLE, OF_BEST, HEDGED, REMOTE, OUTAGE_S = 0.10, 0.02, 0.05, 0.95, 0.02


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--trace", type=pathlib.Path, metavar="CSV", help="a trace (default: the link wifi_indoors)")
    parser.add_argument("--outages", action="store_true", help="also with outages and weak spots put into the trace")
    parser.add_argument("--seconds", type=float, metavar="S", help="of the trace (default: all of it, once)")
    parser.add_argument("--rtt-ms", type=float, default=2.6, metavar="D", help="round trip time of the link (2.6)")
    parser.add_argument("--model", default="kapao_vtest", help="whose frames are measured (kapao_vtest)")
    parser.add_argument(
        "--slowdown", type=float, nargs="+", default=[4.0], metavar="K", help="of the robot against this machine (4)"
    )
    parser.add_argument("--frames", type=int, default=24, metavar="N", help="frames that are measured (24)")
    parser.add_argument("--no-split", action="store_true", help="leave mode split and its plans out")
    parser.add_argument("--workload", type=pathlib.Path, metavar="JSON", help="components instead of measured ones")
    add_output(parser, "--save-workload", type=pathlib.Path, metavar="JSON", help="write the measured components")
    parser.add_argument("--policy", default="auto", help="what is compared: auto, energy, package.module:Class")
    parser.add_argument("--deadline", type=float, default=0.0, metavar="S", help="of a frame; 0: none")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn (0)")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="pool so many runs of policy and modes (1)")
    parser.add_argument("--launch", nargs="*", metavar="ARG=VALUE", help="real processes, with these arguments of "
                        "kapao_tracking.launch; in a shell with ROS")  # fmt: skip
    parser.add_argument("--turns", type=int, default=3, metavar="N", help="with --launch: of all modes (3)")
    parser.add_argument("--lead", type=float, default=120.0, metavar="S", help="with --launch: of learning, not judged "
                        "but against server; 0: it is all that is (120)")  # fmt: skip
    parser.add_argument("--held", nargs="+", default=["server", "local", "replay", "split"], metavar="MODE",
                        help="with --launch: modes that are held (all)")  # fmt: skip
    parser.add_argument("--busy", type=int, default=0, metavar="N",
                        help="with --launch: processes beside it that use a processor all the time (0)")  # fmt: skip
    parser.add_argument("--keep", type=pathlib.Path, metavar="FOLDER", help="with --launch: keep what each run did "
                        "here, and go on behind those that are there")  # fmt: skip
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the record adaptive_bench here")
    add_output(parser, "--plot", type=pathlib.Path, metavar="PNG", help="draw the mean latencies")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload import records
    from edge_offload.errors import BadInput
    from edge_offload_benchmarks.simulation import workload
    from edge_offload_research.emulate.trace import load_trace, named_link

    if args.launch is not None:
        return _run_launches(args)
    if min(args.slowdown) < 1 or args.frames < 2 or args.seeds < 1 or args.deadline < 0 or args.rtt_ms < 0:
        raise BadInput("--slowdown and --seeds are at least 1, --frames at least 2, --deadline and --rtt-ms at least 0")
    trace = load_trace(args.trace) if args.trace is not None else named_link("wifi_indoors").up
    traces = {args.trace.stem if args.trace is not None else "wifi_indoors": trace}
    if args.outages:
        traces.update({f"{name} with outages": with_outages(item) for name, item in list(traces.items())})
    if args.workload:
        loads: List[workload.Workload] = [(workload.load_workload(args.workload), None)]
        source = args.workload.name
    else:
        loads = workload.measure(args.model, args.slowdown, args.frames, not args.no_split, trace.mean_rate())
        source = f"{args.model}, measured"
    saver = Kept()
    if args.save_workload:
        saver("workload", lambda: workload.save_workload(args.save_workload, loads[0][0]))
    experiments = []
    for slowdown, (costs, planned) in zip(args.slowdown, loads):
        for name, item in traces.items():
            seconds = args.seconds or item.period_s
            rows = compare_policies(
                costs,
                item,
                seconds,
                args.rtt_ms / 1e3,
                args.policy,
                args.deadline or None,
                args.seed,
                planned,
                args.seeds,
            )
            experiment = {
                "trace": name, "seconds": seconds, "slowdown": slowdown, "workload": workload.describe(costs),
                "rows": rows, "bars": judge_bars(rows, args.policy, bool(dead_times(item))),
            }  # fmt: skip
            experiments.append(experiment)
            show_experiment(experiment)
    record = {"source": source, "load_average": os.getloadavg()[0], "experiments": experiments}
    if args.json is not None:
        saver("json", lambda: records.write(args.json, "adaptive_bench", record))
    if args.plot is not None:
        draw_bars(experiments, args.plot)
        print(f"wrote {args.plot}", file=sys.stderr)
    saver.settle()
    return 0


def _run_launches(args: argparse.Namespace) -> int:
    """Real processes: see :mod:`edge_offload_benchmarks.launched`."""
    import shutil

    from edge_offload import records
    from edge_offload.errors import BadInput, Unsupported
    from edge_offload_benchmarks import launched
    from edge_offload_research.emulate.trace import named_link

    if shutil.which("roslaunch") is None:
        raise Unsupported("there is no roslaunch here", remedy="source devel/setup.bash")
    if args.turns < 1 or args.lead < 0 or args.busy < 0 or not all("=" in item for item in args.launch):
        raise BadInput("--turns is at least 1, --lead and --busy at least 0, arguments are NAME=VALUE")
    if "server" not in args.held or not set(args.held) <= set(launched.FIXED_MODES):
        raise BadInput(f"--held takes server, and others of {', '.join(launched.FIXED_MODES)}")
    arguments = {"link": "wifi_indoors", **dict(item.replace(":=", "=").split("=", 1) for item in args.launch)}
    if args.trace is not None:
        arguments["link"] = str(args.trace.resolve())
    constant = arguments["link"] in ("wifi_93mbps", "wifi_73mbps")
    truth = named_link(arguments["link"]).up.mean_rate() if constant else 0.0
    others = [] if args.json is None else records.read_list(args.json, "adaptive_launch")  # before hours of runs
    record = launched.compare_modes(args.turns, args.lead, args.seconds or 300.0, arguments, truth, folder=args.keep,
                              modes=args.held, busy=args.busy)  # fmt: skip
    for bar in record["bars"]:
        print(f"  {'met    ' if bar['met'] else 'NOT MET'} {bar['name']}: {bar['value']}")
    if args.json is not None:
        others = [item for item in others if any(item.get(name) != record[name] for name in ("arguments", "busy"))]
        records.write(args.json, "adaptive_launch", [*others, record])
    return 0


def show_experiment(experiment: Dict[str, Any]) -> None:
    """One table, and what of it is held to something."""
    print(f"\n{experiment['trace']}, {experiment['seconds']:.0f} s, robot slowed {experiment['slowdown']:g} times")
    print(f"a frame: {experiment['workload']}")
    heads = ("", "frames", "mean ms", "p50", "p99", "missed", "J/frame", "switches", "regret", "hedged", "remote")
    print("{:>26} {:>7} {:>8} {:>8} {:>8} {:>7} {:>7} {:>8} {:>8} {:>8} {:>7}".format(*heads))
    for row in experiment["rows"]:
        missed = "-" if row["missed"] is None else f"{row['missed']:.1%}"
        latency = row["latency_s"]
        print(
            f"{row['policy']:>26} {row['frames']:7d} {latency['mean'] * 1e3:8.1f} {latency['p50'] * 1e3:8.1f} "
            f"{latency['p99'] * 1e3:8.1f} {missed:>7} {row['energy_j']:7.3f} {row['switches']:8d} {row['regret']:8.1%} "
            f"{row['hedge_rate']:8.1%} {row['remote_share']:7.1%}"
        )
    for bar in experiment["bars"]:
        print(f"  {'met    ' if bar['met'] else 'NOT MET'} {bar['name']}: {bar['value']}")


def compare_policies(
    costs: Sequence[ModeCost],
    trace: Trace,
    seconds: float,
    rtt_s: float,
    policy: str = "auto",
    deadline_s: Optional[float] = None,
    seed: int = 0,
    planned: Optional[PlannedCost] = None,
    seeds: int = 1,
) -> List[Dict[str, Any]]:
    """Rows: the policy, every mode of ``costs`` and every plan of ``planned`` held, the oracle.

    The policy and the modes are run with ``seeds`` seeds and pooled: what is drawn moves a mean by a few tenths of a
    percent. Plans and the oracle are run with the first.
    """
    from edge_offload.manager.policy import FixedPolicy, make_policy
    from edge_offload.mode import Mode
    from edge_offload_benchmarks.simulation.closed_loop import VirtualRobot
    from edge_offload_benchmarks.simulation.oracle import OraclePolicy

    def drive(make: Callable[[], Policy], plans: Optional[PlannedCost], times: int = seeds) -> List[Run]:
        return [VirtualRobot(costs, trace, make(), rtt_s, deadline_s, seed + k, plans).run(seconds)
                for k in range(times)]  # fmt: skip

    runs: Dict[str, List[Run]] = {policy: drive(lambda: make_policy(policy), planned)}
    for cost in costs:
        runs[cost.mode.value] = drive(functools.partial(FixedPolicy, cost.mode), None)
    if planned is not None:
        holding = functools.partial(FixedPolicy, Mode.SPLIT)
        runs[Mode.SPLIT.value] = drive(holding, planned)
        for number in planned.all_plans():
            if not planned.is_local(number):
                runs[f"plan {number}: {planned.names[number]}"] = drive(holding, planned.of_plan(number), 1)
    oracle = OraclePolicy(lambda now: {})
    knowing = VirtualRobot(costs, trace, oracle, rtt_s, deadline_s, seed, planned)
    oracle.latencies_s = knowing.latencies
    runs["oracle"] = [knowing.run(seconds)]
    best = statistics.mean(runs["oracle"][0].latencies_s)
    return [_row_of(name, result, best, deadline_s, trace) for name, result in runs.items()]


def _row_of(name: str, runs: Sequence[Run], best_s: float, deadline_s: Optional[float], trace: Trace) -> Dict[str, Any]:
    from edge_offload import records

    latencies = [seconds for run in runs for seconds in run.latencies_s]
    frames = len(latencies)
    latency = records.latency_summary(latencies)
    missed = None if deadline_s is None else sum(s > deadline_s for s in latencies) / frames
    dead = dead_times(trace)
    cut_off: List[float] = []
    waited: Dict[Any, int] = {}
    for number, run in enumerate(runs):
        for frame_s, seconds, in_vain in zip(run.started_s, run.latencies_s, run.waited):
            outage = next((first for first, last in dead if first <= frame_s % trace.period_s < last), None)
            if outage is not None and in_vain:
                which = (number, frame_s // trace.period_s, outage)
                waited[which] = waited.get(which, 0) + 1
            elif outage is not None:
                cut_off.append(seconds)
    faster = sum(run.faster_remote for run in runs)
    return {
        "policy": name,
        "seeds": len(runs),
        "seed_means_s": [statistics.mean(run.latencies_s) for run in runs],
        "frames": frames,
        "latency_s": latency,
        "outage_waited": max(waited.values(), default=0),
        "outage_p99_s": records.latency_summary(cut_off)["p99"] if cut_off else None,
        "missed": missed,
        "energy_j": sum(joules for run in runs for joules in run.energies_j) / frames,
        "switches": round(sum(run.switches for run in runs) / len(runs)),
        "regret": latency["mean"] / best_s - 1,
        "hedge_rate": sum(run.hedges for run in runs) / frames,
        "vain_hedge_rate": sum(run.vain_hedges for run in runs) / frames,
        "remote_share": sum(run.remote for run in runs) / frames,
        "remote_when_faster": sum(run.chosen_remote for run in runs) / faster if faster else None,
    }


def dead_times(trace: Trace) -> List[Any]:
    """(first, last) seconds of every stretch of a second or more without any bandwidth."""
    outages: List[Any] = []
    since = math.nan
    for start, rate in [*zip(trace.starts_s, trace.bytes_per_s), (trace.period_s, math.inf)]:
        if rate <= 0 and math.isnan(since):
            since = start
        elif rate > 0 and not math.isnan(since):
            if start - since >= 1.0:
                outages.append((since, start))
            since = math.nan
    return outages


def judge_bars(rows: Sequence[Dict[str, Any]], policy: str, outages: bool) -> List[Dict[str, Any]]:
    """Judge the policy on this trace: name, measured value as text, and whether the bar is met."""
    by_name = {row["policy"]: row for row in rows}
    policy_row, oracle, local = by_name[policy], by_name["oracle"], by_name["local"]
    other_means = {name: row["latency_s"]["mean"] for name, row in by_name.items() if name not in (policy, "oracle")}
    mean = policy_row["latency_s"]["mean"]
    best = min(other_means, key=lambda name: other_means[name])
    results = []

    def add_bar(name: str, value: str, met: bool) -> None:
        results.append({"name": name, "value": value, "met": met})

    above = mean / oracle["latency_s"]["mean"] - 1
    versus = f"{mean * 1e3:.1f} ms against {other_means[best] * 1e3:.1f} ms ({best})"
    if outages:
        distances, chance = zip(*(mean_difference(policy_row, by_name[name]) for name in other_means))
        closest = max(range(len(distances)), key=lambda place: distances[place] + chance[place])
        margin = f"{distances[closest] * 1e3:+.2f} ms to {list(other_means)[closest]}"
        if policy_row.get("seeds", 1) < 2:
            margin += ", one seed, so chance is not told (--seeds 6)"
        else:
            margin += f", 95 % within {chance[closest] * 1e3:.2f} ms of that over {policy_row['seeds']} seeds"
        below = all(mean_s + error_s < 0 for mean_s, error_s in zip(distances, chance))
        add_bar("mean strictly below everything that is held, beyond chance", f"{versus}; {margin}", below)
        waited = policy_row["outage_waited"]
        add_bar("at most one frame per outage waits in vain, the one that finds out", str(waited), waited <= 1)
        extra = policy_row["outage_p99_s"] - local["latency_s"]["p99"]
        add_bar(
            f"p99 of all others in outages at most {OUTAGE_S * 1e3:.0f} ms above local p99",
            f"{extra * 1e3:+.1f} ms",
            extra <= OUTAGE_S,
        )
    else:
        add_bar(f"mean within {OF_ORACLE:.0%} of the oracle's", f"{above:+.1%}", above <= OF_ORACLE)
        add_bar(
            f"mean at most {OF_BEST:.0%} above the best that is held", versus, mean <= (1 + OF_BEST) * other_means[best]
        )
        plans = {name: seconds for name, seconds in other_means.items() if name.startswith("plan ")}
        if plans:
            best = min(plans, key=lambda name: plans[name])
            versus = f"{mean * 1e3:.1f} ms against {plans[best] * 1e3:.1f} ms ({best})"
            add_bar("mean below every plan that is held", versus, mean < plans[best])
        add_bar(
            f"at most {HEDGED:.0%} of the frames hedged",
            f"{policy_row['hedge_rate']:.1%}",
            policy_row["hedge_rate"] <= HEDGED,
        )
    share = policy_row["remote_when_faster"]
    if share is not None:
        add_bar(
            f"{REMOTE:.0%} of the frames that are forecast to be faster remotely go there",
            f"{share:.1%}",
            share >= REMOTE,
        )
    return results


def mean_difference(one_row: Dict[str, Any], other: Dict[str, Any]) -> Tuple[float, float]:
    """Mean of a row minus that of another (seconds), and how far chance may have moved it.

    Runs of the same seed are paired; the second number is then half of the 95 % confidence interval of the mean of
    their differences (Student). A row of fewer seeds is compared on those alone, within the spread of the other's.
    """
    mine, theirs = one_row.get("seed_means_s", []), other.get("seed_means_s", [])
    if len(mine) < 2:
        return one_row["latency_s"]["mean"] - other["latency_s"]["mean"], 0.0
    if len(theirs) < len(mine):
        return statistics.mean(mine) - statistics.mean(theirs), max(mine) - statistics.mean(mine)
    from scipy.stats import t

    differences = [one - another for one, another in zip(mine, theirs)]
    half = t.ppf(0.975, len(differences) - 1) * statistics.stdev(differences) / math.sqrt(len(differences))
    return statistics.mean(differences), float(half)


def with_outages(trace: Trace) -> Trace:
    """``trace`` with a dead and a weak stretch in every :data:`OUTAGE_PERIOD_S` seconds."""
    from edge_offload_research.emulate.trace import Trace

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


def draw_bars(experiments: Sequence[Dict[str, Any]], path: pathlib.Path) -> None:
    """Mean and 99th percentile of every row, a panel per experiment."""
    from edge_offload_benchmarks.plotting import open_panels

    with open_panels(path, len(experiments), 1, (8, 0.6 + 2.6 * len(experiments))) as grid:
        for panel, experiment in zip(grid[:, 0], experiments):
            rows = experiment["rows"][::-1]
            names = [row["policy"] for row in rows]
            means = [row["latency_s"]["mean"] * 1e3 for row in rows]
            tails = [row["latency_s"]["p99"] * 1e3 for row in rows]
            panel.barh(names, tails, color="#d5dbe3", label="p99")
            colors = ["#c2410c" if name not in compared_names(names) else "#3b6ea5" for name in names]
            panel.barh(names, means, height=0.5, color=colors, label="mean")
            for place, mean in enumerate(means):
                panel.text(mean, place, f" {mean:.0f}", va="center", fontsize=8)
            panel.set_title(
                f"{experiment['trace']}, robot slowed {experiment['slowdown']:g} times", fontsize=9, loc="left"
            )
            panel.tick_params(labelsize=8)
        grid[-1, 0].set_xlabel(
            "latency, ms: mean (narrow) and 99th percentile (wide); auto and oracle in red", fontsize=8
        )


def compared_names(names: Sequence[str]) -> List[str]:
    """Rows in which something was held, rather than chosen per frame."""
    from edge_offload.mode import names as modes

    return [name for name in names if name in modes() or name.startswith("plan ")]
