"""The product beside its peers on a CPU: the same programs, in one run, in turns.

  edge-offload bench peers                                  everything (over an hour; the first run installs the peers)
  edge-offload bench peers --link loopback --pairs 60 --starts 10 --json peers.json

Programs on a device: exec --mode replay beside rgpu, rgpu with whole graphs, and SkyTorch. A network that the server
has: mode server beside gRPC and LitServe with raw tensors. Peers are installed by pinned versions into environments
below the cache, with this Python's torch. What cannot be installed is named with its reason.

steady: an inference back to back; robot_cpu, server_cpu: processor time of both sides for it. first: the first
inference of a program whose weights are on the device, and which the server has run before. start: from the start of a
program to its first result. answers: answers per second of several clients on loopback. ratio: median over the rounds
of ours over the best peer's, with the 95 % interval of that median; behind: over 1.02, of answers below 0.98. All
compute with one thread; robot and server have a core each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import sys
import tempfile
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from edge_offload.outputs import add_output
from edge_offload_benchmarks.experiments.modes import ratio_interval
from edge_offload_benchmarks.experiments.start import LINKS, emulated
from edge_offload_benchmarks.peers import ways
from edge_offload_benchmarks.peers.rounds import Failures, Served, Values, measure_many, measure_starts, measure_steady
from edge_offload_benchmarks.processes import introduce_robots

PROGRAMS, TINY_PROGRAMS = ("resnet18", "transformer"), ("tiny",)
SERVED_NETWORK = "mobilenet_v3_large"
#: Ratios from which on the product is behind, or ahead.
BEHIND = 1.02
#: Rounds of several clients, and their seconds.
MANY_ROUNDS, MANY_S = 10, 4.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--link", action="append", choices=sorted(LINKS), help="only this one (loopback, wifi_93)")
    parser.add_argument(
        "--program", action="append", help="a network of the GPU kit, or transformer (resnet18, transformer)"
    )
    parser.add_argument("--way", action="append", choices=[way.name for way in ways.WAYS if not way.own],
                        help="only this peer (may be repeated)")  # fmt: skip
    parser.add_argument("--pairs", type=int, default=30, metavar="N", help="rounds of inferences (30)")
    parser.add_argument("--starts", type=int, default=30, metavar="N", help="rounds of starts (30)")
    parser.add_argument("--clients", type=int, default=10, metavar="N", help="at once, of a served network (10)")
    parser.add_argument("--tiny", action="store_true", help="two rounds of everything, with a small program")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the record peers_bench here")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload.errors import BadInput

    if args.tiny:
        args.pairs, args.starts, args.clients = 2, 1, 2
    if min(args.pairs, args.starts, args.clients) < 1:
        raise BadInput("--pairs, --starts and --clients must be at least 1")
    chosen, absent = install_peers(args.way)
    record: Dict[str, Any] = {"absent": absent, "failed": {}, "rows": [], "load_average": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as folder:
        for kind in (ways.DEVICE, ways.SERVED):
            of_kind = [way for way in chosen if way.kind == kind]
            if len(of_kind) > 1:
                measure_kind(of_kind, pathlib.Path(folder) / kind, args, record)
    for line in format_gaps(record):
        print(line, file=sys.stderr)
    print(json.dumps(record))
    return 0


def install_peers(names: Sequence[str]) -> Tuple[List[ways.Way], Dict[str, str]]:
    """The product's ways and those of the peers that are there; of the others, why not."""
    chosen, absent = [], {}
    for way in ways.WAYS:
        if way.environment is not None and names and way.name not in names:
            continue
        reason = way.environment.install() if way.environment is not None else ""
        if reason:
            absent[way.name] = reason
        else:
            chosen.append(way)
    return chosen, absent


def measure_kind(
    chosen: Sequence[ways.Way], folder: pathlib.Path, args: argparse.Namespace, record: Dict[str, Any]
) -> None:
    """Measure ways of one kind beside each other, and add their rows."""
    served_kind = chosen[0].kind == ways.SERVED
    folder.mkdir()
    if served_kind:
        save_inputs(folder / ways.INPUTS_FILE)
    programs = [SERVED_NETWORK] if served_kind else args.program or (TINY_PROGRAMS if args.tiny else PROGRAMS)
    public, robots = introduce_robots(folder, [f"robot{number}" for number in range(args.clients)])
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(serve(way, folder)) for way in chosen]
        failures = Failures()
        for each in started:
            with failures.note(each.way.name):
                each.await_port()
        served = [each for each in started if each.way.name not in failures.reasons]
        record["failed"].update(failures.reasons)
        for program in programs:
            for link in args.link or ("loopback", "wifi_93"):
                case, failures = {"program": program, "link": link}, Failures()
                with contextlib.ExitStack() as links:
                    addresses = {each.way.name: links.enter_context(join(each.address, link)) for each in served}
                    started_values = measure_starts(served, program, addresses, args.starts, failures)
                    steady = measure_steady(served, program, addresses, args.pairs, failures)
                add_rows(record, case, {name: {**started_values[name], **steady[name]} for name in steady}, failures)
                save_record(record, args.json)
        if served_kind:
            failures = Failures()
            seconds, rounds = (0.5, 2) if args.tiny else (MANY_S, MANY_ROUNDS)
            for store in robots.values():
                store.trust_server(f"tcp://{served[0].address}", public)
            values = measure_many(served, SERVED_NETWORK, list(robots), rounds, seconds, failures)
            add_rows(record, {"program": SERVED_NETWORK, "link": f"loopback, {args.clients} clients"}, values, failures)
            save_record(record, args.json)


def save_inputs(path: pathlib.Path) -> None:
    """Frames of the sample video, as the served network takes them."""
    import torch

    from edge_offload.models.video import read_frames, sample_video
    from edge_offload_benchmarks.peers.robot import INPUTS
    from edge_offload_research.networks import build_samples

    frames = list(read_frames(sample_video(), range(INPUTS)).values())
    torch.save([tensor for (tensor,) in build_samples(SERVED_NETWORK, {}, frames)[1]], path)


@contextlib.contextmanager
def serve(way: ways.Way, folder: pathlib.Path) -> Iterator[Served]:
    """Run a way's server, and end it with the processes that it started."""
    import psutil

    served = Served(way, SERVED_NETWORK, folder)
    with served.process:
        try:
            yield served
        finally:
            children = psutil.Process(served.process.pid).children(recursive=True) if served.process.alive else []
            served.process.stop()
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()


@contextlib.contextmanager
def join(address: str, link: str) -> Iterator[str]:
    """Put a link in front of a server; the address of its other end, without a scheme."""
    with emulated(f"tcp://{address}", LINKS[link]) as front:
        yield front.replace("tcp://", "")


def add_rows(record: Dict[str, Any], case: Dict[str, str], values: Mapping[str, Values], failures: Failures) -> None:
    """Add a row for each quantity: ours, every peer's, and the ratio to the best of them."""
    where = f"{case['program']}, {case['link']}"
    record["failed"].update({f"{name}: {where}": reason for name, reason in failures.reasons.items()})
    complete = {name: each for name, each in values.items() if name not in failures.reasons}
    own = next(iter(values))
    if own not in complete or len(complete) < 2:
        return
    differing = sorted(name for name, each in complete.items() if "differs" in each)
    for quantity in [name for name in complete[own] if name != "differs"]:
        row = {**case, **judge_quantity(quantity, own, complete), "differing": differing}
        record["rows"].append(row)
        print(format_row(row), file=sys.stderr, flush=True)


def judge_quantity(quantity: str, own: str, values: Mapping[str, Values]) -> Dict[str, Any]:
    """Ours against the best peer's, round by round."""
    import numpy as np

    medians = {name: float(np.median(each[quantity])) for name, each in values.items()}
    larger_is_better = quantity == "answers"
    peers = sorted((name for name in values if name != own), key=lambda name: medians[name], reverse=larger_is_better)
    ratio = ratio_interval(values[own][quantity], values[peers[0]][quantity])
    behind = ratio[0] < 1 / BEHIND if larger_is_better else ratio[0] > BEHIND
    rounded = {name: float(f"{value:.4g}") for name, value in medians.items()}
    return {
        "quantity": quantity, "rounds": len(values[own][quantity]), "own": own, "medians": rounded,
        "best": peers[0], "ratio": [round(value, 4) for value in ratio], "behind": behind,
    }  # fmt: skip


def save_record(record: Dict[str, Any], path: Optional[pathlib.Path]) -> None:
    """Write what has been measured so far."""
    from edge_offload import records

    record["load_average"] = max(record["load_average"], os.getloadavg()[0])
    if path is not None:
        records.write(path, "peers_bench", record)


def format_row(row: Dict[str, Any]) -> str:
    """A row as a line of the table."""
    scale, unit = (1.0, "/s") if row["quantity"] == "answers" else (1e3, "ms")
    values = ", ".join(f"{name} {value * scale:.1f}" for name, value in row["medians"].items())
    middle, low, high = row["ratio"]
    where = f"{row['program']:18} {row['link']:20} {row['quantity']:10}"
    ratio = f"{middle:.3f} [{low:.3f}, {high:.3f}] x {row['best']}"
    return f"{where} {values} {unit}; {ratio}{'  BEHIND' if row['behind'] else ''}"


def format_gaps(record: Dict[str, Any]) -> List[str]:
    """Lines of what could not be measured."""
    lines = [f"{name}: not installed: {reason}" for name, reason in record["absent"].items()]
    return lines + [f"{name}: failed: {reason}" for name, reason in record["failed"].items()]
