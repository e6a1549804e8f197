"""Transparent offloading: the same networks in every mode, over emulated links, on this machine.

A server process and a robot process, each on a core of its own, and between them the link emulator. The robot's process
was started by 'edge-offload exec' and runs ordinary PyTorch; mode server is the whole model on a replica.

  edge-offload bench transparent --json transparent.json --plot transparent.png
  edge-offload bench transparent --models movenet,resnet50 --links wifi_93mbps --pairs 100
  edge-offload bench transparent --json transparent.json --resume --for 450     in pieces: what is still missing
  edge-offload bench transparent --app detect.py        any program of yours, unmodified, in every mode
  edge-offload bench transparent --bits 20              bit for bit against the robot's own, from the first inference on
  edge-offload bench transparent --device cuda --reference cuda     a server on a GPU, compared with plain CUDA there
  edge-offload bench transparent --memory               memory of both sides over many inferences

server and replay are measured in turn, inference by inference; local, lazy, cached and per_op, --slow times each, after
them. Every mode's result is compared with the robot's own or plain CUDA's, bit for bit. Beside per_op stands what the
model (N*RTT + upload + compute) / (RTT + upload + compute) says of its ratio to replay. energy_j comes from the state
model: the robot computes while its thread does, and communicates for the rest. The calls of Cricket are a synthetic
record.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Tuple

from edge_offload.outputs import Kept, add_output
from edge_offload_benchmarks.processes import ONE_THREAD, Process, Server, describe_machine, edge_offload

if TYPE_CHECKING:
    from edge_offload_research.emulate.emulator import Emulator

LINKS = ("wifi_93mbps", "wifi_73mbps")
PAIRED = ("server", "replay")
SLOW = ("local", "lazy", "cached", "per_op")


@dataclass(frozen=True)
class Places:
    """Devices of the server and of the reference (``cpu``: the robot's own, or ``cuda``)."""

    device: str = "cpu"
    reference: str = "cpu"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument(
        "--models", metavar="NAMES", help="networks, by commas (default: all; --models help lists them)"
    )
    parser.add_argument("--links", default=",".join(LINKS), metavar="NAMES", help="emulated links (%(default)s)")
    parser.add_argument("--pairs", type=int, default=100, metavar="N", help="inferences of server and replay (100)")
    parser.add_argument("--slow", type=int, default=5, metavar="N", help="inferences of the other modes (5)")
    parser.add_argument("--app", type=pathlib.Path, metavar="SCRIPT", help="measure this program instead")
    parser.add_argument("--memory", action="store_true", help="measure memory over many inferences instead")
    parser.add_argument("--bits", type=int, metavar="N",
                        help="instead compare N inferences of each network in replay with the robot's own")  # fmt: skip
    parser.add_argument("--device", default="cpu", help="of the server: cpu, cuda or auto (%(default)s)")
    parser.add_argument("--reference", choices=("cpu", "cuda"), default="cpu",
                        help="whose results are wanted: the robot's own or plain CUDA's (%(default)s)")  # fmt: skip
    parser.add_argument("--scale", type=float, default=1.0, metavar="X", help="of --memory's inferences (%(default)g)")
    parser.add_argument("--resume", action="store_true", help="go on from the record in --json: measure what it lacks")
    parser.add_argument("--for", type=float, default=0.0, dest="for_s", metavar="S",
                        help="begin nothing after so many seconds (default: no limit)")  # fmt: skip
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the record transparent_bench here")
    add_output(parser, "--plot", type=pathlib.Path, metavar="FILE", help="draw latencies (needs matplotlib)")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload.errors import BadInput
    from edge_offload_benchmarks.transparent import tables as transparent_tables
    from edge_offload_benchmarks.transparent.models import cases
    from edge_offload_research import cricket
    from edge_offload_research.emulate.trace import named_link

    all_names = [case.name for case in cases()]
    names = args.models.split(",") if args.models else all_names
    if any(name not in all_names for name in names):
        raise BadInput(f"--models {args.models}", remedy=f"networks: {', '.join(all_names)}")
    if args.pairs < 2 or args.slow < 1:
        raise BadInput("--pairs is at least 2, --slow at least 1")
    record: Dict[str, Any] = {
        "machine": describe_machine(), "load_average": list(os.getloadavg()), "pairs": args.pairs, "slow": args.slow,
        "records": [], "checks": [], "failures": [], "cricket": cricket.make_record(),
    }  # fmt: skip
    for link in args.links.split(","):
        named_link(link)  # or it raises
    if args.app is not None and not os.path.isfile(args.app):
        raise BadInput(f"no program {args.app}", remedy="name a Python file")
    places = _make_places(args)
    if args.memory:
        return measure_memory(args.json, args.scale, places)
    if args.resume and args.json is not None and args.json.exists():
        record = {**record, **json.loads(args.json.read_text(encoding="utf-8")), "failures": []}
        before = Places(record.get("device", "cpu"), record.get("reference", "cpu"))
        if before != places:
            raise BadInput(
                f"{args.json} is of --device {before.device} --reference {before.reference}", remedy="name another file"
            )
    if places != Places():
        record.update(device=places.device, reference=places.reference)
    saver = Kept()
    if args.app is not None:
        record["apps"] = measure_app(args.app, args.links.split(","), places)
    elif args.bits is not None:
        for _ in measure_bits(names, args.bits, record, args.for_s, places):
            saver("json", lambda: save_record(record, args.json))
    else:
        links = args.links.split(",")
        for _ in measure_models(names, links, args.pairs, args.slow, record, args.for_s, places):
            saver(
                "json", lambda: save_record(record, args.json)
            )  # a long experiment that is cut short leaves what it has
        missing_count = sum(map(len, list_missing(names, links, record).values()))
        if missing_count:
            total = len(names) * len(links)
            print(
                f"{missing_count} of {total} networks and links are left: --resume goes on with them", file=sys.stderr
            )
    record["load_average_end"] = list(os.getloadavg())
    transparent_tables.show(record)
    saver("json", lambda: save_record(record, args.json))
    if args.plot is not None and record["records"]:
        transparent_tables.plot(record, args.plot)
    saver.settle()
    differ = any(item["equal"] < item["inferences"] for item in record.get("bits", ()))
    return 1 if record["failures"] or differ else 0


def _make_places(args: argparse.Namespace) -> Places:
    """Make the devices of the command line.

    Raises:
        BadInput: nothing would be compared with the reference.
        Unsupported: there is no GPU.
    """
    from edge_offload.errors import BadInput
    from edge_offload.execute import devices, heap

    if args.reference == "cuda":
        if args.memory or args.app is not None:
            raise BadInput("--memory and --app compare nothing with --reference", remedy="leave one of them out")
        if not heap.LAUNCHER:
            devices.pick_device("cuda")
    return Places(args.device, args.reference)


def save_record(record: Dict[str, Any], path: Optional[pathlib.Path]) -> None:
    """Write the record, if it is wanted."""
    from edge_offload import records

    record["load_average_end"] = list(os.getloadavg())
    if path is not None:
        records.write(path, "transparent_bench", record)


def list_missing(names: Sequence[str], links: Sequence[str], record: Dict[str, Any]) -> Dict[str, List[str]]:
    """List for each network the links over which the record lacks it."""
    done = {(item["model"], item["link"]) for item in record["checks"]}
    return {name: [link for link in links if (name, link) not in done] for name in names}


def measure_models(
    names: Sequence[str], links: Sequence[str], pairs: int, slow: int, record: Dict[str, Any], for_s: float = 0.0,
    places: Places = Places(),
) -> Iterator[None]:  # fmt: skip
    """Fill ``record`` with a line for every network, mode and link; yields after each network and link.

    What is in the record is not measured again, and nothing is begun after ``for_s`` seconds (0: no limit).
    """
    from edge_offload_benchmarks.transparent import tables as transparent_tables
    from edge_offload_research.emulate.trace import named_link

    started_s = time.monotonic()
    todo = list_missing(names, links, record)
    cores = sorted(os.sched_getaffinity(0))
    if transparent_tables.KERNEL not in record:
        with _start_rig(cores, places) as (_, robot, _), _survive_death(record):
            answer = robot.request_answer({"do": "kernel"})
            if "error" in answer:
                record["failures"].append({"model": "", "link": "", "modes": [], **answer})
            else:
                record[transparent_tables.KERNEL] = answer
    with _start_rig(cores, places) as (emulator, robot, _), _survive_death(record):
        for name in [name for name in names if todo[name]]:
            if for_s and time.monotonic() - started_s > for_s:
                break
            emulator.set(mbps=100000.0, rtt_s=0.0)  # loading is not what is measured
            answer = robot.request_answer({"do": "load", "model": name})
            for link in todo[name] if "error" not in answer else ():
                if for_s and time.monotonic() - started_s > for_s:
                    break
                emulator.set_link(named_link(link))
                time.sleep(0.3)
                load_average = os.getloadavg()[0]
                for modes, count in ((PAIRED, pairs), *(((mode,), slow) for mode in SLOW)):
                    answer = robot.request_answer({"do": "run", "modes": list(modes), "count": count})
                    if "error" in answer:
                        record["failures"].append({"model": name, "link": link, "modes": list(modes), **answer})
                        continue
                    lines = [summarise_samples(name, link, mode, answer) for mode in modes]
                    record["records"] += lines
                    for line in lines:
                        print(transparent_tables.row(line), file=sys.stderr, flush=True)
                outcome = check_ratios(name, link, record["records"], named_link(link))
                record["checks"].append({**outcome, "load_average": load_average})
                yield
            if "error" in answer:
                record["failures"].append({"model": name, "link": "", "modes": [], **answer})


def measure_bits(
    names: Sequence[str], count: int, record: Dict[str, Any], for_s: float = 0.0, places: Places = Places()
) -> Iterator[None]:
    """Fill ``record["bits"]``: how many of the first ``count`` inferences have the reference's result, bit for bit.

    Each network in mode replay, with fresh inputs. Yields after each network; those in the record are left out.
    """
    from edge_offload_benchmarks.transparent import tables as transparent_tables

    started_s = time.monotonic()
    bits = record.setdefault("bits", [])
    done = {item["model"] for item in bits}
    with _start_rig(sorted(os.sched_getaffinity(0)), places) as (_, robot, _), _survive_death(record):
        for name in [name for name in names if name not in done]:
            if for_s and time.monotonic() - started_s > for_s:
                break
            answer = robot.request_answer({"do": "steady", "model": name})
            if "error" not in answer:
                answer = robot.request_answer({"do": "repeat", "count": count, "compared": count})
            if "error" in answer:
                record["failures"].append({"model": name, "link": "", "modes": ["replay"], **answer})
                continue
            bits.append({"model": name, **answer})
            whose = transparent_tables.WHOSE[places.reference]
            print(transparent_tables.bits_row(bits[-1], whose), file=sys.stderr, flush=True)
            yield


def measure_memory(path: Optional[pathlib.Path], scale: float, places: Places = Places()) -> int:
    """Print and write the memory of both sides; 1 if one of them goes on growing."""
    from edge_offload import records
    from edge_offload_benchmarks.transparent import memory as transparent_memory

    with _start_rig(sorted(os.sched_getaffinity(0)), places) as (emulator, robot, server_pid):
        emulator.set(mbps=100000.0, rtt_s=0.0)
        outcomes = transparent_memory.measure(robot, server_pid, list(transparent_memory.PLANS), scale)
    transparent_memory.show(outcomes)
    if path is not None:
        records.write(path, "transparent_memory", outcomes)
    return 0 if all(item["robot_plateau"] and item["server_plateau"] and item["equal"] for item in outcomes) else 1


@contextlib.contextmanager
def _survive_death(record: Dict[str, Any]) -> Iterator[None]:
    """A robot that dies ends the experiment, not what was measured before."""
    from edge_offload.errors import RemoteError

    try:
        yield
    except RemoteError as error:
        record["failures"].append({"model": "", "link": "", "modes": [], "error": str(error)})


def summarise_samples(name: str, link: str, mode: str, answer: Dict[str, Any]) -> Dict[str, Any]:
    """One record from the samples of one network, link and mode."""
    from edge_offload import records
    from edge_offload.power.states import StatePowers

    samples = answer["samples"][mode]

    def mean_of(key: str) -> float:
        return statistics.fmean(item[key] for item in samples)

    powers = StatePowers()
    latency, walk = mean_of("latency_s"), mean_of("walk_s")
    busy = latency if mode == "local" else min(walk, latency)
    return {
        "model": name, "input": answer["input"], "mode": mode, "link": link,
        "latency_s": records.latency_summary([item["latency_s"] for item in samples]),
        "round_trips": mean_of("round_trips"), "rpcs": mean_of("rpcs"),
        "bytes_up": mean_of("bytes_up"), "bytes_down": mean_of("bytes_down"), "ops": mean_of("ops"),
        "client_us_per_op": walk / mean_of("ops") * 1e6 if mean_of("ops") else None,
        "client_walk_s": walk,
        "energy_j": powers.inference * busy + powers.communication * (latency - busy),
        "samples": len(samples), "bit_equal": answer["equal"][mode],
        "stages_s": {stage: statistics.median(item["stages_s"][stage] for item in samples)
                     for stage in samples[0].get("stages_s", ())},
    }  # fmt: skip


def check_ratios(name: str, link: str, lines: Sequence[Dict[str, Any]], emulated: Any) -> Dict[str, Any]:
    """The ratios that matter, beside what the model of per-operator offloading says."""
    by_mode = {line["mode"]: line for line in lines if line["model"] == name and line["link"] == link}
    p50 = {mode: line["latency_s"]["p50"] for mode, line in by_mode.items()}
    outcome: Dict[str, Any] = {"model": name, "link": link, "replay_over_server": None, "per_op_over_replay": None,
                             "modelled": None}  # fmt: skip
    if "replay" in p50 and "server" in p50:
        outcome["replay_over_server"] = p50["replay"] / p50["server"]
    if "replay" in p50 and "per_op" in p50:
        rtt = emulated.up_delay_s + emulated.down_delay_s
        upload = by_mode["replay"]["bytes_up"] / emulated.up.mean()
        compute = max(p50["replay"] - rtt - upload, 0.0)
        trips = by_mode["per_op"]["round_trips"]
        outcome["per_op_over_replay"] = p50["per_op"] / p50["replay"]
        outcome["modelled"] = (trips * rtt + upload + compute) / (rtt + upload + compute)
    return outcome


@contextlib.contextmanager
def _start_link(cores: Sequence[int], places: Places) -> Iterator[Tuple[Emulator, Server]]:
    """A server process, and an emulated link to it."""
    from edge_offload_benchmarks.transparent import models as transparent_models
    from edge_offload_research.emulate.emulator import Emulator
    from edge_offload_research.emulate.trace import named_link

    module_name = transparent_models.__name__
    options = ["--device", places.device, "--max-models", "2"]
    options += ["--allow", f"{module_name}:segmenter", "--allow", f"{module_name}:detector"]
    options += ["--cores", str(cores[1])] if len(cores) > 1 else []
    with contextlib.ExitStack() as stack:
        options += ["--weights-cache", stack.enter_context(tempfile.TemporaryDirectory())]
        server = stack.enter_context(Server(*options, environment=ONE_THREAD))
        yield stack.enter_context(Emulator("127.0.0.1:0", server.address, named_link(LINKS[0]))), server


@contextlib.contextmanager
def _start_rig(cores: Sequence[int], places: Places) -> Iterator[Tuple[Emulator, Process, int]]:
    """A link, the robot's process, and the server's process number."""
    from edge_offload.execute import heap

    with _start_link(cores, places) as (emulator, server):
        environment = {**ONE_THREAD, "EDGE_OFFLOAD_BENCH_CORES": str(cores[0])} if len(cores) > 1 else ONE_THREAD
        program = [sys.executable, "-m", "edge_offload_benchmarks.transparent.robot", emulator.address]
        program += [places.reference, json.dumps(heap.LAUNCHER)]
        command = edge_offload("exec", "--server", emulator.address, "--wait", "30", "--", *program)
        with Process(command, environment) as robot:
            yield emulator, robot, server.pid
            robot.end(30.0)


def measure_app(script: pathlib.Path, links: Sequence[str], places: Places = Places()) -> List[Dict[str, Any]]:
    """Run a program as it is, here and in every mode over every link; seconds and traffic of the whole run."""
    from edge_offload_research.emulate.trace import named_link

    lines: List[Dict[str, Any]] = []
    cores = sorted(os.sched_getaffinity(0))
    with _start_link(cores, places) as (emulator, _), tempfile.TemporaryDirectory() as folder:
        for link in links:
            emulator.set_link(named_link(link))
            for mode in ("local", "replay", "lazy", "cached", "per_op"):
                tally = pathlib.Path(folder, f"{link}-{mode}.json")
                command = [sys.executable, str(script)]
                if mode != "local":
                    options = ["--server", emulator.address, "--mode", mode, "--tally", str(tally), "--", *command]
                    command = edge_offload("exec", *options)
                started_at = time.monotonic()
                done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
                line: Dict[str, Any] = {
                    "app": script.name,
                    "mode": mode,
                    "link": link,
                    "wall_s": time.monotonic() - started_at,
                    "exit_code": done.returncode,
                }
                line.update(json.loads(tally.read_text()) if tally.exists() else {})
                lines.append(line)
    return lines
