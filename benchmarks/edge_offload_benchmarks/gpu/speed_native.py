"""Frames in one process without a link: torch operator by operator, a CUDA graph, and the time of the kernels.

Usage: python -m edge_offload_benchmarks.gpu.speed_native --models A B --frames N [--tf32]. Prints lines of JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from typing import Any, Callable, Dict, List, Tuple

import torch

from edge_offload_benchmarks.gpu.networks import build_network, fix_numerics, make_inputs, outputs_of
from edge_offload_benchmarks.gpu.power import Power
from edge_offload_benchmarks.gpu.results import spread_ms

Frame = List[torch.Tensor]
#: Seconds after which fewer frames must do.
MEASURE_S = 6.0
#: Seconds between two frames of a robot, in which the GPU and the processor's caches grow cold.
PAUSE_S = 5e-3


def measure_frames(
    call: Callable[[Frame], Any], given: List[Frame], count: int, pause_s: float = 0.0
) -> Dict[str, float]:
    """The spread of the durations of ``count`` frames, or of as many as fit, with a pause before each."""
    seconds: List[float] = []
    for number in range(count):
        frame = given[number % len(given)]
        time.sleep(pause_s)
        started_at = time.perf_counter()
        call(frame)
        seconds.append(time.perf_counter() - started_at)
        if sum(seconds) > MEASURE_S:
            break
    return spread_ms(seconds)


def profile_kernels(call: Callable[[Frame], Any], given: List[Frame]) -> Dict[str, Any]:
    """Microseconds of kernels and of copies of a frame, and the number of kernels, by torch's profiler."""
    from torch.autograd import DeviceType  # type: ignore[attr-defined]
    from torch.profiler import ProfilerActivity, profile

    count = 5
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for number in range(count):
            call(given[number % len(given)])
        torch.cuda.synchronize()
    every: List[Any] = list(profiler.events() or [])
    events = [(one.name, one.time_range.elapsed_us()) for one in every if one.device_type == DeviceType.CUDA]
    copies = [us for name, us in events if name.startswith("Mem")]
    rest = [(name, us) for name, us in events if not name.startswith("Mem")]
    total: Dict[str, float] = {}
    for name, us in rest:
        total[name] = total.get(name, 0.0) + us / count
    longest = sorted(total.items(), key=lambda item: -item[1])[:8]
    return {
        "kernel_us": sum(us for _, us in rest) / count,
        "copy_us": sum(copies) / count,
        "kernels": len(rest) / count,
        "longest": [(name[:60], round(us, 1)) for name, us in longest],
    }


@torch.inference_mode()
def measure_graphed(network: Any, given: List[Frame], frames: int, eager: Callable[[Frame], Any]) -> Dict[str, Any]:
    """Times of pinned copies and one graph: what a frame can take in one process."""
    fixed = [each.to("cuda") for each in given[0]]
    pinned = [each.pin_memory() for each in given[0]]
    stream: Any = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            network(*fixed)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = outputs_of(network(*fixed))
    back = [torch.empty(one.shape, dtype=one.dtype, pin_memory=True) for one in results]

    def run(frame: Frame) -> Any:
        with torch.cuda.stream(stream):
            for one, locked, static in zip(frame, pinned, fixed):
                locked.copy_(one)
                static.copy_(locked, non_blocking=True)
            graph.replay()
            for one, static in zip(back, results):
                one.copy_(static, non_blocking=True)
        stream.synchronize()
        return back

    for frame in given[:4]:
        run(frame)
    equal = all(torch.equal(a, b) for frame in given for a, b in zip(run(frame), eager(frame)))
    return {
        "graph": measure_frames(run, given, frames),
        "graph_after_pauses": measure_frames(run, given, frames, PAUSE_S),
        "graph_equal": equal,
        "graph_gpu": profile_kernels(run, given),
    }


def of_network(name: str, frames: int, device: str, power: Power) -> Dict[str, Any]:
    """Facts of a network; parts that fail are facts."""
    facts: Dict[str, Any] = {}
    network, given = build_network(name).to(device), make_inputs(name, 8)

    @torch.inference_mode()
    def run_eager(frame: Frame) -> Any:
        return [one.cpu() for one in outputs_of(network(*[each.to(device) for each in frame]))]

    for frame in given[:4]:
        run_eager(frame)
    joules, started_at = power.read_joules(), time.perf_counter()
    facts["eager"] = measure_frames(run_eager, given, frames)
    joules = power.read_joules() - joules
    if not math.isnan(joules):
        facts.update(eager_J=joules / facts["eager"]["n"], eager_W=joules / (time.perf_counter() - started_at))
    if device == "cuda":
        parts: Tuple[Tuple[str, Callable[[], Dict[str, Any]]], ...] = (
            ("eager_gpu", lambda: {"eager_gpu": profile_kernels(run_eager, given)}),
            # last: a capture that fails may leave the context unusable
            ("graph", lambda: measure_graphed(network, given, frames, run_eager)),
        )
        for part, call in parts:
            try:
                facts.update(call())
            except Exception as error:
                facts[f"{part}_failed"] = f"{type(error).__name__}: {str(error)[:300]}"
    return facts


def main() -> None:
    """Print a line of JSON per network."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tf32", action="store_true")
    args = parser.parse_args()
    fix_numerics(args.tf32)
    if args.device == "cpu":
        torch.set_num_threads(1)
    power = Power()
    for name in args.models:
        facts: Dict[str, Any] = {"model": name, "tf32": args.tf32}
        try:
            facts.update(of_network(name, args.frames, args.device, power))
        except Exception as error:
            facts["failed"] = f"{type(error).__name__}: {str(error)[:400]}"
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
