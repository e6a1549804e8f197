"""A robot without a GPU: frames in each mode on a server, timed; started by ``edge-offload exec``.

Usage: python -m edge_offload_benchmarks.gpu.speed_client --server ADDR --keys DIR --models A B --modes replay server
Prints lines of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any, Callable, Dict, List, Mapping, Sequence

import torch

from edge_offload.device.installation import current_installation
from edge_offload.execute.fingerprint import fingerprint_of
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.manager.lateness import Budget
from edge_offload.mode import Mode
from edge_offload.models import registry
from edge_offload.modes.server import ServerRunner
from edge_offload_benchmarks.gpu.networks import build_network, make_inputs, outputs_of
from edge_offload_benchmarks.gpu.results import spread_ms
from edge_offload_benchmarks.gpu.served import wire_name

PATIENT = Budget(120.0, 120.0)
#: Frames of modes that take a round trip for many of their calls.
FEW = {"per_op": 2, "cached": 2, "lazy": 12}
#: Frames before those that are timed, and seconds of one network in one mode at most.
WARM_UP, MODE_S = 14, 12.0
#: Frames of networks that are not among the main ones.
OTHERS = {"movenet": 60}


def main() -> None:
    """Measure each network in each mode."""
    parser = argparse.ArgumentParser()
    for name in ("--server", "--keys"):
        parser.add_argument(name, required=True)
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--modes", nargs="+", required=True)
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=100.0)
    args = parser.parse_args()
    ends = time.monotonic() + args.seconds
    for name in args.models:
        given = make_inputs(name, 8)
        module: Any = None
        for mode in args.modes:
            facts: Dict[str, Any] = {"model": name, "mode": mode}
            count = min(FEW.get(mode, args.frames), OTHERS.get(name, args.frames))
            try:
                if time.monotonic() > ends:
                    facts["skipped"] = "out of time"
                elif mode == "server":
                    facts.update(by_server(name, given, args, count, ends))
                else:
                    module = build_network(name).to("cuda") if module is None else module
                    facts.update(by_device(module, given, mode, count, ends))
            except Exception as error:
                facts["failed"] = f"{type(error).__name__}: {str(error)[:400]}"
            print(json.dumps(facts), flush=True)


def by_server(name: str, given: List[Any], args: Any, count: int, ends: float) -> Dict[str, Any]:
    """Facts of mode ``server``."""
    started_at = time.monotonic()
    local = build_network(name)
    with Client(args.server, keys=KeyStore(args.keys)) as client:
        client.wait_ready(30.0)
        runner = ServerRunner(wire_name(name), {}, client, lambda: registry.state_hash(local), fingerprint_of("cpu"))
        while (why := runner.unavailable_reason(given[0])) is not None and time.monotonic() < min(
            started_at + 120, ends
        ):
            time.sleep(0.02)
        if why is not None:
            raise RuntimeError(why)
        ready_s = time.monotonic() - started_at
        for frame in given:  # an engine is compared on the first ones
            runner.attempt_inference(frame, {}, PATIENT)
        return {"ready_s": ready_s, **measure_frames(lambda frame: frame_by_server(runner, frame), given, count, ends)}


def frame_by_server(runner: ServerRunner, frame: List[torch.Tensor]) -> Dict[str, Any]:
    """Facts of a frame in mode ``server``; times in seconds."""
    attempt = runner.attempt_inference(frame, {}, PATIENT)
    stages = attempt.stages_s
    return {
        "trips": 1,
        "up": attempt.bytes_up,
        "down": attempt.bytes_down,
        "server_s": stages["compute_server"],
        "uplink_s": stages["uplink"],
        "downlink_s": stages["downlink"],
        "codec_s": stages["encode"] + stages["decode"],
        "queue_s": stages["queue"],
        "engine": attempt.engine,
    }


def by_device(network: Any, given: List[Any], mode: str, count: int, ends: float) -> Dict[str, Any]:
    """Facts of a mode of the virtual device."""
    device: Any = current_installation()
    started_at = time.monotonic()
    device.switch_mode(Mode(mode))
    learning = (given * 3)[: 1 if mode in FEW else WARM_UP]
    trips = [frame_by_device(network, frame, device)["trips"] for frame in learning]
    ready_s = time.monotonic() - started_at
    facts = measure_frames(lambda frame: frame_by_device(network, frame, device), given, count, ends)
    return {"learning_trips": trips, "ready_s": ready_s, **facts}


@torch.no_grad()
def frame_by_device(network: Any, frame: List[torch.Tensor], device: Any) -> Dict[str, Any]:
    """Facts of a frame on the virtual device; times in seconds."""
    remote, counters = device.remote, device.recorder.counters
    before = counters.round_trips, remote.bytes_up, remote.bytes_down, counters.undone
    remote.spent.reset()
    started_at = time.thread_time()
    for each in outputs_of(network(*[each.to("cuda") for each in frame])):
        each.cpu()
    spent = remote.spent
    return {
        "trips": counters.round_trips - before[0],
        "up": remote.bytes_up - before[1],
        "down": remote.bytes_down - before[2],
        "undone": counters.undone - before[3],
        "server_s": spent.server_s,
        "compute_s": spent.compute_s,
        "uplink_s": spent.uplink_s,
        "downlink_s": spent.downlink_s,
        "codec_s": spent.encode_s + spent.decode_s,
        "robot_s": time.thread_time() - started_at,
    }


def measure_frames(call: Callable[[Any], Dict[str, Any]], given: List[Any], count: int, ends: float) -> Dict[str, Any]:
    """The spread of frame times, and medians of the frames' facts."""
    seconds: List[float] = []
    every: List[Dict[str, Any]] = []
    window = time.monotonic()
    for number in range(count):
        started_at = time.perf_counter()
        every.append(call(given[number % len(given)]))
        seconds.append(time.perf_counter() - started_at)
        if time.monotonic() > min(ends, window + MODE_S):
            break
    facts: Dict[str, Any] = {"wall": spread_ms(seconds), "from_s": window, "to_s": time.monotonic()}
    facts.update(median_facts(every))
    facts["engine"] = every[-1].get("engine", "")
    return facts


def median_facts(every: Sequence[Mapping[str, Any]]) -> Dict[str, float]:
    """Medians of the numbers among the frames' facts."""
    medians: Dict[str, float] = {}
    for key in every[0]:
        values = sorted(one[key] for one in every if isinstance(one[key], (int, float)))
        if values:
            medians[key] = values[len(values) // 2]
    return medians


if __name__ == "__main__":
    main()
