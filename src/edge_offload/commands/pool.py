"""Serve a model with GPUs of several machines and kinds: join machines, measure blocks of the model (ms), make plans.

  edge-offload pool head                      on one machine; prints the command for the others
  edge-offload pool join ADDRESS --class P4 --gpus 2
  edge-offload pool status ADDRESS
  edge-offload serve --pool ADDRESS --model kapao_s --slo 0.2 --profiles DIR
  edge-offload pool profile kapao_s --input 'uint8[3,448,640]' --class L4 --batches 8 --out DIR
                                              divide it into blocks and measure them on this machine; once per class

'plan' prints the GPU of each block, 'simulate' runs that plan in virtual time. Both need only profiles.
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
from typing import Any, Callable, List, Mapping

from edge_offload import beside, places, subcommands
from edge_offload.errors import BadInput

#: Actions that another distribution brings, and what they do.
RESEARCH = {
    "plan": "Stages, classes, batch sizes and GPUs for networks on a pool of unlike GPUs.",
    "simulate": "Plan a pool, and serve it random requests in virtual time.",
}
PACKAGE = "edge_offload_research"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`edge_offload.commands`."""
    kinds = parser.add_subparsers(dest="what", required=True, metavar="head|join|status|profile|plan|simulate")
    _add_members(kinds)
    _add_profile(kinds.add_parser("profile", help="measure the blocks of a model on this machine (ms)",
                                  description="Cut a model into blocks and measure them on this machine."))  # fmt: skip
    actions = beside.commands(beside.ACTIONS)
    modules = {name: actions[f"pool-{name}"] for name in RESEARCH if f"pool-{name}" in actions}
    subcommands.add_parsers(kinds, modules, "action", RESEARCH)


def _add_members(kinds: Any) -> None:
    head = kinds.add_parser("head", help="start a pool on this machine",
                            description="Begin a pool; ends on Ctrl-C or SIGTERM.")  # fmt: skip
    head.add_argument("--port", type=int, default=5790, help="TCP port for members and servers (5790)")
    head.add_argument("--host", default="127.0.0.1", metavar="ADDRESS",
                      help="address of this machine for members; TLS unless loopback (127.0.0.1)")  # fmt: skip
    join = kinds.add_parser("join", help="add this machine's GPUs to a pool",
                            description="Join a pool; ends on Ctrl-C or SIGTERM.")  # fmt: skip
    join.add_argument("address", metavar="ADDRESS", help="HOST:PORT that 'edge-offload pool head' printed")
    join.add_argument(
        "--class", dest="gpu", required=True, metavar="CLASS", help="class of these GPUs in profiles, such as P4"
    )
    join.add_argument("--gpus", type=int, default=1, metavar="N", help="number of GPUs (1)")
    _add_device(join, True)
    join.add_argument("--share-gpu", action="store_true",
                      help="members may share a GPU without CUDA MPS: they take turns, for tests")  # fmt: skip
    join.add_argument("--emulated", default="", metavar="DIR",
                      help="emulate the GPUs: use the times of this folder of profiles, compute nothing")  # fmt: skip
    join.add_argument("--times", type=float, default=1.0, metavar="X", help="emulated GPUs: factor on all times (1)")
    status = kinds.add_parser("status", help="print members, plan, load, and the share of answers in time",
                              description="What a pool's head and its servers say.")  # fmt: skip
    status.add_argument("address", metavar="ADDRESS", help="HOST:PORT that 'edge-offload pool head' printed")
    status.add_argument("--json", action="store_true", help="print JSON")
    for each in (head, join):
        each.add_argument(
            "--store-mb", type=int, default=256, metavar="MB", help="MB of shared memory for tensors (256)"
        )
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

    devices = accelerators.survey_devices(args.device)
    return accelerators.Claims(devices, args.gpus, args.share_gpu or accelerators.mps_runs())


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

            profiles = profile.load_profiles(pathlib.Path(args.emulated))
            if not any(args.gpu in network.latency_s for network in profiles.values()):
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
                started = _retry_begin(begin, stop) or started
    finally:
        started.close()
    return 0


def _retry_begin(begin: Callable[[], Any], stop: threading.Event) -> Any:
    """Begin Ray's processes until they run, or ``stop``."""
    reported = ""
    while not stop.wait(1.0):
        try:
            return begin()
        except BadInput as error:
            if str(error) != reported:
                reported = str(error)
                print(reported, file=sys.stderr, flush=True)
    return None


def _status(args: argparse.Namespace) -> int:
    from edge_offload.server.pool import cluster

    folder = _keys(args)
    ray = cluster.connect_ray(args.address, folder)
    nodes = cluster.list_nodes(ray)
    ray.shutdown()
    fronts = cluster.read_statuses(folder, args.address)
    if args.json:
        print(json.dumps({"nodes": [vars(node) for node in nodes], "servers": fronts}, indent=1))
        return 0
    problems = {of["id"]: of["problem"] for front in fronts for of in front.get("nodes", ()) if of["problem"]}
    for node in nodes:
        kind = f"emulated, {node.times:g} times as long" if node.times else f"computes on {node.device}"
        print(f"{node.name[:8]}  {node.gpus} {node.gpu}  {node.problem or problems.get(node.name[:8]) or kind}")
    for front in fronts:
        print("\n".join(_describe_driver(front)))
    print(f"{len(nodes)} members, {len(fronts)} servers")
    return 0


def _describe_driver(row: Mapping[str, Any]) -> List[str]:
    """Describe a server's driver, in lines."""
    in_time = row["in_time"] / max(row["answered"] + row["refused"], 1)
    lines = [
        f"{row['model']} within {row['slo_s']:g} s: plan for {row['rate']:.1f} /s; {row['why']}",
        f"  {row['requests']} requests, {100 * in_time:.2f} % answered in time, {row['refused']} refused",
    ]
    if row["passed_over"]:
        lines.append(f"  {explain_undivided(row['passed_over'], row['rate'])}")
    if row["moved"]:
        lines.append(
            f"  {row['moved']} could not go on where they were; {row['moved_in_time']} of them were in time elsewhere"
        )
    for stage in row["stages"]:
        share = f" / {round(1 / stage['share'])}" if stage["share"] < 1 else ""
        lines.append(
            f"  blocks {stage['blocks'][0]}-{stage['blocks'][1] - 1} on {stage['gpus']} {stage['class']}{share}, "
            f"batches of {stage['batch']}: {stage['workers_there']} of {stage['workers']} there, "
            f"busy {100 * stage['busy']:.0f} %"
        )
    return lines


def _keys(args: argparse.Namespace) -> pathlib.Path:
    return pathlib.Path(args.pool_keys).resolve() if args.pool_keys else places.pool_folder()


def _add_profile(profile: argparse.ArgumentParser) -> None:
    profile.add_argument(
        "model", metavar="MODEL", help="name from 'edge-offload models list', or package.module:factory"
    )
    profile.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="option of the model (repeatable)"
    )
    profile.add_argument(
        "--input", required=True, metavar="SPEC", help="type and shape of one frame: 'uint8[3,448,640]'"
    )
    profile.add_argument(
        "--class", dest="gpu", required=True, metavar="CLASS", help="class of this machine's device in profiles"
    )
    profile.add_argument("--batches", type=int, default=4, metavar="N", help="measure batches of 1 to N (4)")
    profile.add_argument(
        "--blocks",
        type=int,
        default=10,
        metavar="N",
        help="number of blocks, for a model that has not been divided yet (10)",
    )
    _add_device(profile)
    profile.add_argument("--threads", type=int, default=1, metavar="N", help="compute threads, as members have (1)")
    profile.add_argument(
        "--out", required=True, metavar="DIR", help="folder of profiles; those of other classes are kept"
    )


def _profile(args: argparse.Namespace) -> int:
    import torch

    from edge_offload.execute import devices
    from edge_offload.models import registry
    from edge_offload.server.pool import accelerators, measuring, profile, stages
    from edge_offload.subcommands import options

    if not 1 <= args.batches <= stages.MAX_BATCH or not 1 <= args.blocks <= 100 or args.threads < 1:
        raise BadInput(f"--batches is 1 to {stages.MAX_BATCH}, --blocks 1 to 100, --threads at least 1")
    device = devices.fix_kernel_choice(devices.pick_device(args.device))
    devices.select_device(device)
    torch.set_num_threads(args.threads)
    given = dict(options(args.option, form="NAME=VALUE"))
    module = registry.build_module(args.model, **given)
    network = stages.BatchedNetwork(module, stages.parse_inputs(args.input), device)
    folder = pathlib.Path(args.out)
    models = stages.load_models(folder) if (folder / stages.CUTS_FILE).exists() else {}
    measured = profile.load_profiles(folder) if (folder / profile.LATENCIES).exists() else {}
    pool_model, state_hash = models.get(args.model), registry.state_hash(module)
    if pool_model is None or pool_model.state_hash != state_hash or pool_model.cuts.inputs != network.inputs:
        measured.pop(args.model, None)
        pool_model = stages.PoolModel(args.model, given, state_hash, measuring.cut_network(network, args.blocks))
    taken, crossing = measuring.measure_blocks(network, pool_model.cuts, args.batches, print)
    latency_s = dict(measured[args.model].latency_s) if args.model in measured else {}
    latency_s[args.gpu] = {1: taken}
    profile.save_profiles(folder, {**measured, args.model: profile.BlockProfile(args.model, latency_s, crossing)})
    label = accelerators.label(args.device)
    pool_model = replace(pool_model, devices={**pool_model.devices, args.gpu: label})
    stages.save_models(folder, {**models, args.model: pool_model})
    print(f"{pool_model.cuts.block_count} blocks of {args.model} on {args.gpu} ({label}): {folder}")
    return 0


def run(args: argparse.Namespace) -> int:
    """See :mod:`edge_offload.commands`."""
    if args.what in RESEARCH:
        if args.action is None:
            raise beside.absent(PACKAGE) or AssertionError(PACKAGE)
        code: int = args.action(args)
        return code
    if args.what in ("head", "join"):
        return _member(args)
    return _profile(args) if args.what == "profile" else _status(args)


def explain_undivided(divided_rate: float, rate: float) -> str:
    """Explain why an undivided plan is in force although stages have a higher rate."""
    more = 100 * (divided_rate / rate - 1)
    return f"undivided; in stages it would promise {more:.1f} % more, and answer less in time"
