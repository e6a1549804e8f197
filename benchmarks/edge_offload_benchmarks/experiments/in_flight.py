"""Frames in flight: results per second and latency with one frame under way at a time, and with two, in turns.

Robot and server are processes of this machine, each with a core of its own where there are two, joined by the emulated
link of 93 Mbit/s; people of the sample video are found and tracked in one mode, as kapao_node does it. Blocks of
some seconds with one frame in flight and with two follow each other in turns, so that both meet the same machine.

  edge-offload bench in-flight                      8 pairs at twice the rate that one in flight reaches, 4 at 10 Hz
  edge-offload bench in-flight --mode replay        inputs of a frame go ahead while the one before is computed
  edge-offload bench in-flight --json in_flight.json

fast: the camera gives twice as many frames as the block with one in flight before it had results. camera: 10 frames a
second. latency: from a frame's arrival to its result. fell back: frames computed on the robot, since the server's
result was late or did not come. ratio: of two in flight to one, all blocks together.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
from typing import Any, Dict, List, Sequence

from edge_offload.outputs import add_output

MODEL, LINK, SLOWDOWN = "kapao_vtest", "wifi_93mbps", 4.0
#: Frames per second of the camera; and what is offered at first to learn what one in flight reaches.
CAMERA_HZ, MOST_HZ = 10.0, 30.0
#: What is held, two in flight to one: results a second, latency of each kind, share of superseded frames at 10 Hz.
FASTER, LATER, CAMERA_LATER, SUPERSEDED = 1.25, 1.3, 1.05, 0.02


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--pairs", type=int, default=8, metavar="N", help="pairs of blocks at twice the rate (8)")
    parser.add_argument("--camera-pairs", type=int, default=4, metavar="N", help=f"at {CAMERA_HZ:g} Hz (4)")
    parser.add_argument("--seconds", type=float, default=8.0, metavar="S", help="of a block (8)")
    parser.add_argument("--model", default=MODEL, metavar="NAME", help=f"network ({MODEL})")
    parser.add_argument("--mode", choices=("server", "replay"), default="server", help="mode of all frames (server)")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the record in_flight_bench here")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload import records
    from edge_offload.errors import BadInput

    if args.pairs < 1 or args.camera_pairs < 1 or args.seconds < 2:
        raise BadInput("--pairs and --camera-pairs are at least 1, --seconds 2")
    record = measure_blocks(args.model, args.mode, args.pairs, args.camera_pairs, args.seconds)
    for kind in ("fast", "camera"):
        for name, side in (("1 in flight", "one"), ("2 in flight", "two")):
            row = record[kind][side]
            print(f"{kind:6} {name}: {row['results_per_s']:5.2f} results/s, mean {row['latency_s']['mean'] * 1e3:4.0f} "
                  f"ms, p99 {row['latency_s']['p99'] * 1e3:4.0f} ms, {row['fell_back']} of {row['results']} fell back, "
                  f"{row['superseded_share']:.1%} superseded, behind own frames "
                  f"{row['behind_s'] * 1e3:.0f} ms")  # fmt: skip
    for bar in record["bars"]:
        print(f"  {'met    ' if bar['met'] else 'NOT MET'} {bar['name']}: {bar['value']}")
    if args.json is not None:
        records.write(args.json, "in_flight_bench", record)
        print(f"wrote {args.json}", file=sys.stderr)
    return 0


def measure_blocks(model: str, mode: str, pairs: int, camera_pairs: int, seconds: float) -> Dict[str, Any]:
    """Run server, link and robot, and the blocks."""
    from edge_offload_benchmarks.processes import ONE_THREAD, Process, Server, edge_offload, two_cores
    from edge_offload_research.emulate.emulator import Emulator
    from edge_offload_research.emulate.trace import named_link

    first, second = two_cores()
    with tempfile.TemporaryDirectory() as keys, Server(
        "--keys", keys, environment=ONE_THREAD, cores=[second]
    ) as server:
        address = server.address[len("tcp://") :]
        with Emulator("127.0.0.1:0", address, named_link(LINK)) as emulator:
            link = ["--server", emulator.address, "--keys", keys]
            command = [sys.executable, "-m", "edge_offload_benchmarks.in_flight_robot", *link, "--mode", mode]
            command += ["--model", model, "--slowdown", str(SLOWDOWN)]
            if mode == "replay":
                command = [*edge_offload("exec", "--absent", "later", *link, "--"), *command]
            with Process(command, ONE_THREAD, cores=[first]) as robot:

                def run_block(in_flight: int, rate: float) -> Dict[str, Any]:
                    return robot.request_answer({"in_flight": in_flight, "rate": rate, "seconds": seconds})

                run_block(2, MOST_HZ)  # both sides settle
                reached = run_block(1, MOST_HZ)
                fast: List[Dict[str, Any]] = []
                for number in range(pairs):
                    rate = 2 * max(reached["results"] / reached["seconds"], 0.5)
                    blocks = {many: run_block(many, rate) for many in ((1, 2) if number % 2 else (2, 1))}
                    reached = blocks[1]
                    fast.append({"rate": rate, "one": blocks[1], "two": blocks[2]})
                camera = []
                for number in range(camera_pairs):
                    blocks = {many: run_block(many, CAMERA_HZ) for many in ((1, 2) if number % 2 else (2, 1))}
                    camera.append({"rate": CAMERA_HZ, "one": blocks[1], "two": blocks[2]})
                robot.end()
    return judge_pairs(model, mode, seconds, fast, camera, os.getloadavg()[0])


def judge_pairs(
    model: str, mode: str, seconds: float, fast: Sequence[Dict[str, Any]], camera: Sequence[Dict[str, Any]], load: float
) -> Dict[str, Any]:
    """The record of pairs of blocks."""
    record: Dict[str, Any] = {
        "model": model,
        "mode": mode,
        "link": LINK,
        "slowdown": SLOWDOWN,
        "seconds": seconds,
        "cores": os.cpu_count(),
        "load_average": load,
        "fast": _summarise_pairs(fast),
        "camera": _summarise_pairs(camera),
    }
    record["bars"] = _judge_bars(record, [pair[side] for pair in (*fast, *camera) for side in ("one", "two")])
    return record


def _summarise_pairs(pairs: Sequence[Dict[str, Any]]) -> Dict[str, Any]:
    one, two = (_summarise_blocks([pair[side] for pair in pairs]) for side in ("one", "two"))
    return {
        "rates": [pair["rate"] for pair in pairs],
        "one": one,
        "two": two,
        "results_ratio": two["results_per_s"] / max(one["results_per_s"], 1e-9),
        "results_ratios": [
            (pair["two"]["results"] / pair["two"]["seconds"])
            / max(pair["one"]["results"] / pair["one"]["seconds"], 1e-9)
            for pair in pairs
        ],
        "latency_ratio": two["latency_s"]["mean"] / one["latency_s"]["mean"],
    }


def _summarise_blocks(blocks: Sequence[Dict[str, Any]]) -> Dict[str, Any]:
    from edge_offload import records
    from edge_offload.errors import RemoteError

    results = sum(block["results"] for block in blocks)
    if not results:
        failed = [each for block in blocks for each in block["failed"]][:1]
        raise RemoteError(f"there was no result ({''.join(failed) or 'none in time'}); give it more --seconds")
    superseded, offered = (sum(block[name] for block in blocks) for name in ("superseded", "offered"))
    return {
        "results": results,
        "results_per_s": results / sum(block["seconds"] for block in blocks),
        "latency_s": records.latency_summary([each for block in blocks for each in block["latency_s"]]),
        "behind_s": statistics.fmean(each for block in blocks for each in block["behind_s"]),
        "part_s": statistics.fmean(each for block in blocks for each in block["part_s"]),
        "fell_back": sum(block["fell_back"] for block in blocks),
        "hedged": sum(block["hedged"] for block in blocks),
        "superseded_share": superseded / max(1, offered),
    }


def _judge_bars(record: Dict[str, Any], blocks: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
    fast, camera = record["fast"], record["camera"]
    one, two = fast["one"], fast["two"]
    complete = [
        block
        for block in blocks
        if block["drained"] and not block["failed"] and block["in_order"] and block["taken"] == block["all_results"]
    ]
    shares = [side["fell_back"] / side["results"] for side in (one, two)]
    bars = [
        (
            "results = frames taken, in their order",
            f"in {len(complete)} of {len(blocks)} blocks",
            len(complete) == len(blocks),
        ),
        (f"results a second >= {FASTER:g} x", f"{fast['results_ratio']:.2f} x", fast["results_ratio"] >= FASTER),
        (f"mean latency <= {LATER:g} x", f"{fast['latency_ratio']:.2f} x", fast["latency_ratio"] <= LATER),
        ("no larger share falls back", f"{shares[1]:.1%}, with one {shares[0]:.1%}", shares[1] <= shares[0]),
        (
            f"superseded at {CAMERA_HZ:g} Hz <= {SUPERSEDED:.0%}",
            f"{camera['two']['superseded_share']:.1%}, with one {camera['one']['superseded_share']:.1%}",
            camera["two"]["superseded_share"] <= SUPERSEDED,
        ),
        (
            f"mean latency at {CAMERA_HZ:g} Hz <= {CAMERA_LATER:g} x",
            f"{camera['latency_ratio']:.2f} x",
            camera["latency_ratio"] <= CAMERA_LATER,
        ),
    ]
    return [{"name": name, "value": value, "met": met} for name, value, met in bars]
