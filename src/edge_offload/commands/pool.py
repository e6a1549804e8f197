"""Plan what runs where on a pool of unlike GPUs, and try the plan in virtual time: profiles do, no cluster is needed.

  edge-offload pool head                      on one machine; prints what to type on the others
  edge-offload pool join ADDRESS --class P4 --gpus 2
  edge-offload pool status ADDRESS
  edge-offload serve --pool ADDRESS --model kapao_s --slo 0.2 --profiles DIR
  edge-offload pool profile kapao_s --input 'uint8[3,448,640]' --class L4 --batches 8 --out DIR
                                              cut it into blocks, and measure these here; once for each class of GPU

  edge-offload pool plan --profiles DIR --cluster 25xL4,75xP4 --network kapao_s --slo 0.2 --bandwidth 6
  edge-offload pool plan … --network a:2 --network b --slo a=0.2 --slo b=0.1        a gets twice the rate of b
  edge-offload pool plan … --load 500         fewest GPUs for 500 frames per second (times each network's weight)
  edge-offload pool plan … --planner whole    without partitions, to compare with (paired: pairs of unlike GPUs)
  edge-offload pool plan … --planner steady   as a server plans: undivided where that answers more in time
  edge-offload pool simulate … --at 0.5 0.9 1     that plan at these shares of its rate: how many are answered in time

DIR holds block_latency_us.csv (dnn, gpu, vgpu_denom, block, batch, latency_us) and cut_bytes.csv (dnn, cut_after_block,
bytes_batch1). A network is cut into at most --partitions stages at its blocks, every stage on GPUs of one class, all
stages of a pipeline at one batch size; what nothing waits for is answered within SLO * (1 - margin), and no stage fills
its machines' links beyond --link-share. The plan is the best there is (IPIPE, 4.B, whole GPUs for each stage).
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import pathlib
import sys
import threading
from dataclasses import replace
from typing import Any, Callable, Dict, List, Mapping, Tuple

from edge_offload.errors import BadInput

#: Seconds until Ray's processes are begun again that have ended.
AGAIN_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`edge_offload.commands`."""
    kinds = parser.add_subparsers(dest="what", required=True, metavar="head|join|status|profile|plan|simulate")
    _add_members(kinds)
    _add_profile(kinds.add_parser("profile", help="what blocks of a model take on this machine",
                                  description="Cut a model into blocks and measure them on this machine."))  # fmt: skip
    plan = kinds.add_parser(
        "plan", help="stages, classes, batch sizes and GPUs for networks", description="Plan a pool."
    )
    _add_plan(plan)
    simulated = kinds.add_parser(
        "simulate",
        help="that plan under load, in virtual time",
        description="Plan a pool, and serve it random requests.",
    )
    _add_plan(simulated)
    simulated.add_argument(
        "--at",
        type=float,
        nargs="+",
        default=[0.5, 0.9, 1.0],
        metavar="F",
        help="shares of the planned rate (0.5 0.9 1)",
    )
    simulated.add_argument("--seconds", type=float, default=10.0, help="of virtual time for each (10)")
    simulated.add_argument("--seed", type=int, default=0, help="of the arrivals (0)")
    simulated.add_argument(
        "--spread", type=float, default=0.0, metavar="X", help="stages take up to this share longer or shorter (0)"
    )


def _add_members(kinds: Any) -> None:
    head = kinds.add_parser("head", help="begin a pool on this machine",
                            description="Begin a pool; ends on Ctrl-C or SIGTERM.")  # fmt: skip
    head.add_argument("--port", type=int, default=5790, help="for members and servers (5790)")
    head.add_argument("--host", default="127.0.0.1", metavar="ADDRESS",
                      help="of this machine, as members reach it; off loopback with TLS (127.0.0.1)")  # fmt: skip
    join = kinds.add_parser("join", help="bring this machine's GPUs into a pool",
                            description="Join a pool; ends on Ctrl-C or SIGTERM.")  # fmt: skip
    join.add_argument("address", metavar="ADDRESS", help="HOST:PORT that 'edge-offload pool head' printed")
    join.add_argument("--class", dest="gpu", required=True, metavar="CLASS", help="as profiles call these GPUs: P4")
    join.add_argument("--gpus", type=int, default=1, metavar="N", help="how many (1)")
    _add_device(join, True)
    join.add_argument("--share-gpu", action="store_true",
                      help="members may share a GPU without CUDA MPS: they take turns, for tests")  # fmt: skip
    join.add_argument("--emulated", default="", metavar="DIR",
                      help="emulate them: take the times of this folder of profiles, compute nothing")  # fmt: skip
    join.add_argument("--times", type=float, default=1.0, metavar="X", help="emulated: so many times as long (1)")
    status = kinds.add_parser("status", help="members, plan, load, what was in time",
                              description="What a pool's head and its servers say.")  # fmt: skip
    status.add_argument("address", metavar="ADDRESS", help="HOST:PORT that 'edge-offload pool head' printed")
    status.add_argument("--json", action="store_true", help="print JSON")
    for each in (head, join):
        each.add_argument("--store-mb", type=int, default=256, metavar="MB", help="of shared memory for tensors (256)")
    for each in (head, join, status):
        each.add_argument("--pool-keys", default="", metavar="DIR", help="folder with the pool's token (the user's)")


def _add_device(parser: argparse.ArgumentParser, members: bool = False) -> None:
    cuda = "cuda (a GPU for each member)" if members else "cuda"
    parser.add_argument("--device", default="auto", metavar="DEVICE",
                        help=f"what computes: auto (a GPU if there is one), cpu, {cuda} or cuda:n (auto)")  # fmt: skip


def _claims(args: argparse.Namespace) -> Any:
    """The devices of the members that join here, as taken.

    Raises:
        BadInput, Unsupported: no such devices, or others have them.
    """
    from edge_offload.server.pool import accelerators

    found = accelerators.survey(args.device)
    return accelerators.Claims(found, args.gpus, args.share_gpu or accelerators.mps_runs())


def _member(args: argparse.Namespace) -> int:
    """Begin a head or a member, and stay with it."""
    import signal

    from edge_offload.server.pool import cluster

    if not 1 <= getattr(args, "gpus", 1) <= 1024 or not 80 <= args.store_mb <= 1 << 20:
        raise BadInput("--gpus is 1 to 1024, --store-mb at least 80")
    if not 0 < getattr(args, "times", 1.0) < math.inf:
        raise BadInput("--times is a positive number")
    cluster.check_available()
    folder = _keys(args)
    stop = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())
    if args.what == "head":
        machine = cluster.Machine(store_mb=args.store_mb)
        begin = functools.partial(cluster.start_head, args.port, machine, folder, args.host)
        started = begin()
        print(f"pool on port {args.port} pid {started.pid}; its token is {folder / 'token'}", flush=True)
        if args.host != cluster.LOOPBACK:
            print(f"on other machines, first copy {folder} there: token and certificates", flush=True)
        print(f"then: edge-offload pool join {args.host}:{args.port} --class CLASS --gpus N", flush=True)
    else:
        if args.emulated:
            from edge_offload.server.pool import profile

            known = profile.load(pathlib.Path(args.emulated))
            if not any(args.gpu in network.latency_s for network in known.values()):
                raise BadInput(f"{args.emulated} has no class {args.gpu}")
            machine = cluster.Machine(args.gpu, args.gpus, args.emulated, args.times, args.store_mb)
        else:
            claims = _claims(args)  # until this process ends
            machine = cluster.Machine(
                args.gpu, args.gpus, "", 1.0, args.store_mb, tuple(claims.names), claims.label, claims.shares
            )
        begin = functools.partial(cluster.start_member, args.address, machine, folder)
        started = begin()
        try:
            cluster.check_head(args.address, folder)
        except BaseException:
            started.close()
            raise
        kind = (
            f"emulated {args.gpu}, {args.times:g} times as long" if args.emulated else f"{args.gpu} on {machine.label}"
        )
        print(f"joined {args.address} with {args.gpus} {kind} pid {started.pid}", flush=True)
    try:
        while not stop.is_set():
            if not started.wait(0.2):
                started.close()
                print("Ray has ended; it is begun again", file=sys.stderr, flush=True)
                started = _again(begin, stop) or started
    finally:
        started.close()
    return 0


def _again(begin: Callable[[], Any], stop: threading.Event) -> Any:
    """Begin Ray's processes until they run, or ``stop``."""
    said = ""
    while not stop.wait(AGAIN_S):
        try:
            return begin()
        except BadInput as error:
            if str(error) != said:
                said = str(error)
                print(said, file=sys.stderr, flush=True)
    return None


def _status(args: argparse.Namespace) -> int:
    from edge_offload.server.pool import cluster

    folder = _keys(args)
    ray = cluster.connect(args.address, folder)
    nodes = cluster.nodes(ray)
    ray.shutdown()
    fronts = cluster.told(folder, args.address)
    if args.json:
        print(json.dumps({"nodes": [vars(node) for node in nodes], "servers": fronts}, indent=1))
        return 0
    problems = {of["id"]: of["problem"] for front in fronts for of in front.get("nodes", ()) if of["problem"]}
    for node in nodes:
        kind = f"emulated, {node.times:g} times as long" if node.times else f"computes on {node.device}"
        print(f"{node.name[:8]}  {node.gpus} {node.gpu}  {node.problem or problems.get(node.name[:8]) or kind}")
    for front in fronts:
        print("\n".join(_front(front)))
    print(f"{len(nodes)} members, {len(fronts)} servers")
    return 0


def _front(told: Mapping[str, Any]) -> List[str]:
    """What a server's driver says, in lines."""
    in_time = told["in_time"] / max(told["answered"] + told["refused"], 1)
    lines = [
        f"{told['model']} within {told['slo_s']:g} s: plan for {told['rate']:.1f} /s; {told['why']}",
        f"  {told['requests']} requests, {100 * in_time:.2f} % answered in time, {told['refused']} refused",
    ]
    if told["passed_over"]:
        lines.append(f"  {passed_over(told['passed_over'], told['rate'])}")
    if told["moved"]:
        lines.append(
            f"  {told['moved']} could not go on where they were; {told['moved_in_time']} of them were in time elsewhere"
        )
    for stage in told["stages"]:
        share = f" / {round(1 / stage['share'])}" if stage["share"] < 1 else ""
        lines.append(
            f"  blocks {stage['blocks'][0]}-{stage['blocks'][1] - 1} on {stage['gpus']} {stage['class']}{share}, "
            f"batches of {stage['batch']}: {stage['workers_there']} of {stage['workers']} there, "
            f"busy {100 * stage['busy']:.0f} %"
        )
    return lines


def _keys(args: argparse.Namespace) -> pathlib.Path:
    from edge_offload.server.pool import cluster

    return pathlib.Path(args.pool_keys).resolve() if args.pool_keys else cluster.default_folder()


def _add_profile(profile: argparse.ArgumentParser) -> None:
    profile.add_argument("model", metavar="MODEL", help="of 'edge-offload models list', or package.module:factory")
    profile.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="of the model (repeatable)"
    )
    profile.add_argument("--input", required=True, metavar="SPEC", help="what one frame is: 'uint8[3,448,640]'")
    profile.add_argument(
        "--class", dest="gpu", required=True, metavar="CLASS", help="what this machine's device is called"
    )
    profile.add_argument("--batches", type=int, default=4, metavar="N", help="measure batches of 1 to N (4)")
    profile.add_argument(
        "--blocks", type=int, default=10, metavar="N", help="blocks of a model that was not cut yet (10)"
    )
    _add_device(profile)
    profile.add_argument("--threads", type=int, default=1, metavar="N", help="compute threads, as members have (1)")
    profile.add_argument("--out", required=True, metavar="DIR", help="folder of profiles; what it has of others stays")


def _profile(args: argparse.Namespace) -> int:
    import torch

    from edge_offload.execute import devices
    from edge_offload.models import registry
    from edge_offload.server.pool import accelerators, measuring, profile, stages
    from edge_offload.subcommands import options

    if not 1 <= args.batches <= stages.MAX_BATCH or not 1 <= args.blocks <= 100 or args.threads < 1:
        raise BadInput(f"--batches is 1 to {stages.MAX_BATCH}, --blocks 1 to 100, --threads at least 1")
    device = devices.settle(devices.pick(args.device))
    devices.select(device)
    torch.set_num_threads(args.threads)
    given = dict(options(args.option, form="NAME=VALUE"))
    module = registry.build_module(args.model, **given)
    network = stages.BatchedNetwork(module, stages.inputs_of(args.input), device)
    folder = pathlib.Path(args.out)
    models = stages.load_models(folder) if (folder / stages.CUTS_FILE).exists() else {}
    known = profile.load(folder) if (folder / profile.LATENCIES).exists() else {}
    found, state_hash = models.get(args.model), registry.state_hash(module)
    if found is None or found.state_hash != state_hash or found.cuts.inputs != network.inputs:
        known.pop(args.model, None)
        found = stages.Model(args.model, given, state_hash, measuring.cut(network, args.blocks))
    taken, crossing = measuring.measure(network, found.cuts, args.batches, print)
    latency_s = dict(known[args.model].latency_s) if args.model in known else {}
    latency_s[args.gpu] = {1: taken}
    profile.save(folder, {**known, args.model: profile.Network(args.model, latency_s, crossing)})
    label = accelerators.label_of(args.device)
    found = replace(found, devices={**found.devices, args.gpu: label})
    stages.save_models(folder, {**models, args.model: found})
    print(f"{found.cuts.blocks} blocks of {args.model} on {args.gpu} ({label}): {folder}")
    return 0


def _add_plan(plan: argparse.ArgumentParser) -> None:
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
    if args.what in ("head", "join"):
        return _member(args)
    if args.what in ("profile", "status"):
        return _profile(args) if args.what == "profile" else _status(args)
    from edge_offload.server.pool import profile
    from edge_offload.server.pool.choose import PLANNERS, steady
    from edge_offload.server.pool.columns import Cluster, Demand
    from edge_offload.server.pool.plan import fewest

    if not 0 <= args.margin < 1:
        raise BadInput(f"--margin {args.margin}", remedy="0 to below 1")
    if not 1 <= args.partitions <= 4:
        raise BadInput(f"--partitions {args.partitions}", remedy="1 to 4")
    if args.load is not None and (args.planner != "pooled" or not 0 < args.load < math.inf):
        raise BadInput("--load is a positive number, and for the pooled planner alone")
    gpus = counts(args.cluster)
    weights = networks(args.network)
    known = profile.load(pathlib.Path(args.profiles))
    for name in weights:
        if name not in known:
            raise BadInput(f"{args.profiles} has no network {name}", remedy=f"it has {', '.join(sorted(known))}")
    slo_s = deadlines(args.slo, weights)
    demands = [Demand(known[name], slo_s[name], weight) for name, weight in weights.items()]
    cluster = Cluster(gpus, args.bandwidth * 1e9 / 8, per_machine(args.per_machine, gpus), args.link_share)
    if args.load is not None:
        made = fewest(demands, args.load, cluster, args.margin, args.partitions)
    else:
        made = PLANNERS[args.planner](demands, cluster, args.margin, args.partitions)
    if args.what == "simulate":
        return _simulate(args, made, known, cluster, slo_s)
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
    used = ", ".join(f"{made.gpus.get(gpu, 0)} of {count} {gpu}" for gpu, count in gpus.items())
    print(f"GPUs in use: {used}")
    if args.load is None and args.planner == "pooled":
        taken = steady(demands, cluster, args.margin, args.partitions)
        if taken.passed_over:
            print(f"a server takes another plan (--planner steady): {passed_over(taken.passed_over, taken.objective)}")
    elif made.passed_over:
        print(passed_over(made.passed_over, made.objective))
    return 0


def passed_over(promised: float, taken: float) -> str:
    """Why a plan is not divided that would promise more."""
    more = 100 * (promised / taken - 1)
    return f"undivided; in stages it would promise {more:.1f} % more, and answer less in time"


def _simulate(args: argparse.Namespace, made: Any, known: Any, cluster: Any, slo_s: Mapping[str, float]) -> int:
    import numpy as np

    from edge_offload.server.pool import simulate

    if args.seconds <= 0 or not 0 <= args.spread < 1 or any(not 0 < share < 10 for share in args.at):
        raise BadInput("--seconds is above 0, --spread 0 to below 1, --at above 0 and below 10")
    rows = []
    for share in args.at:
        source = np.random.default_rng([args.seed, round(share * 1000)])
        arrivals = {name: simulate.poisson(rate * share, args.seconds, source) for name, rate in made.rates.items()}
        factors = _factors(args.spread, source) if args.spread else None
        outcome = simulate.run(made, known, cluster, slo_s, arrivals, factors)
        rows.append({"at": share, **vars(outcome)})
        if not args.json:
            shown = ", ".join(f"{name} {100 * value:.2f} %" for name, value in outcome.attainment.items())
            busy = ", ".join(f"{gpu} {100 * value:.0f} %" for gpu, value in outcome.utilisation.items())
            print(f"{share:5.2f} of the plan: in time {shown}; busy {busy}")
    if args.json:
        print(json.dumps({**as_dict(made), "loads": rows}, indent=1))
    return 0


def _factors(spread: float, source: Any) -> Callable[[], float]:
    return lambda: 1 + spread * float(source.uniform(-1, 1))


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


def counts(text: str) -> Dict[str, int]:
    """``25xL4,75xP4`` as numbers by class."""
    found: Dict[str, int] = {}
    for part in text.split(","):
        number, cross, gpu = part.strip().partition("x")
        if not cross or not number.isdigit() or int(number) < 1 or not gpu or gpu in found:
            raise BadInput(f"--cluster {text}: {part!r} is no number of GPUs of a class", remedy="write 25xL4,75xP4")
        found[gpu] = int(number)
    return found


def networks(texts: List[str]) -> Dict[str, float]:
    """``NAME[:WEIGHT]`` as weights by name."""
    found: Dict[str, float] = {}
    for text in texts:
        name, _, weight = text.rpartition(":") if ":" in text else (text, "", "1")
        if weight.isidentifier() and name.replace(".", "").isidentifier() and "." in name:
            name, weight = text, "1"  # a factory of the user's own
        value = _positive(weight, f"--network {text}: weight {weight!r}")
        if not name or name in found:
            raise BadInput(f"--network {text}: {'twice' if name else 'no name'}", remedy="write NAME or NAME:WEIGHT")
        found[name] = value
    return found


def deadlines(texts: List[str], names: Mapping[str, float]) -> Dict[str, float]:
    """``[NAME=]S`` as seconds by name."""
    every, own = _assigned(texts, "--slo")
    unknown = [name for name in own if name not in names]
    missing = [name for name in names if name not in own]
    if unknown:
        raise BadInput(f"--slo {unknown[0]}: no such --network", remedy=f"there are {', '.join(names)}")
    if missing and every is None:
        raise BadInput(f"no --slo for {missing[0]}", remedy="give one for all, or NAME=S")
    return {name: own[name] if name in own else float(every or 0) for name in names}


def per_machine(text: str, gpus: Mapping[str, int]) -> Dict[str, int]:
    """``L4=4,T4=2`` as numbers by class."""
    found = {}
    for part in filter(None, text.split(",")):
        gpu, _, number = part.strip().partition("=")
        if gpu not in gpus or not number.isdigit() or int(number) < 1:
            raise BadInput(f"--per-machine {part!r}", remedy=f"write CLASS=N, with a class of {', '.join(gpus)}")
        found[gpu] = int(number)
    return found


def _assigned(texts: List[str], option: str) -> Tuple[Any, Dict[str, float]]:
    every, own = None, {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        value = _positive(number, f"{option} {text}")
        if equals:
            own[name] = value
        else:
            every = value
    return every, own


def _positive(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise BadInput(what, remedy="give a positive number")
    return value
