"""``bench robots --mode``: robots with a real network in one mode, together on one server, a process each."""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Callable, Dict, List, Sequence

from edge_offload.errors import RemoteError
from edge_offload_benchmarks.chaos.usage import read_usage
from edge_offload_benchmarks.processes import ONE_THREAD, Process, Server, introduce_robots, modes_robot

#: Seconds in which a robot learns and plans, with all the others.
PREPARE_S = 600.0
#: A result of mode split may be off by so much, as a share of the largest value: sums are taken in another order.
TOLERANCE = 1e-4
#: What a plan is that leaves all to the robot.
DEVICE_ONLY = "device-only"
#: Most served over least served robot.
MAX_RATIO = 1.2


def load_together(mode: str, model: str, robots: int, seconds: float, reference: str = "cpu") -> Dict[str, Any]:
    """The record ``held_robots``: so many robots, each frame after frame, for so long.

    Args:
        mode: that they are held in.
        model: of every robot.
        robots: how many.
        seconds: of load.
        reference: whose results theirs are compared with: the robot's own (``cpu``), or plain CUDA's (``cuda``).

    Raises:
        RemoteError: a robot could not be made ready for the mode.
    """
    from edge_offload import records
    from edge_offload.execute import heap

    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        root = pathlib.Path(directory)
        public, stores = introduce_robots(root, [f"robot{number}" for number in range(robots)])
        rooms = ["--max-devices", str(robots + 1), "--max-models", "64"]
        server = stack.enter_context(Server("--keys", str(root / "server"), *rooms))
        for store in stores.values():
            store.trust_server(server.address, public)
        programs = [
            stack.enter_context(Process(modes_robot(server.address, str(root / name), model), ONE_THREAD))
            for name in stores
        ]
        begin = read_usage(server.pid)
        for answer in _request_all(programs, {"prepare": mode}, PREPARE_S):
            if mode in answer["lacks"]:
                raise RemoteError(f"a robot cannot run mode {mode}: {answer['lacks'][mode]}")
        prepared = read_usage(server.pid)
        loads = _request_all(programs, {"hold": mode, "seconds": seconds}, seconds + PREPARE_S)
        end = read_usage(server.pid)
        checked = _request_all(programs, {"check": {"reference": reference, "launcher": heap.LAUNCHER}}, PREPARE_S)
        for program in programs:
            program.end()
    return judge_load(mode, model, seconds, loads, checked, [begin["memory"], prepared["memory"], end["memory"]],
                 records.latency_summary)  # fmt: skip


def judge_load(
    mode: str, model: str, seconds: float, loads: Sequence[Dict[str, Any]], checked: Sequence[Dict[str, Any]],
    memory: Sequence[int], summary: Callable[[List[float]], Dict[str, float]],
) -> Dict[str, Any]:  # fmt: skip
    """The record of what the robots told."""
    frames = [len(each["seconds"]) for each in loads]
    fell_back: Counter[str] = Counter()
    for each in loads:
        fell_back.update(each["fell_back"])
    # a robot whose plan leaves all to itself is not served
    served = [len(each["seconds"]) for each in loads if each["plan"] != DEVICE_ONLY] or frames
    ratio = max(served) / max(1, min(served))
    difference = max(each["difference"] for each in checked)
    results, equal = (sum(each[name] for each in checked) for name in ("checked", "equal"))
    exact = difference <= TOLERANCE if mode == "split" else equal == results
    return {
        "mode": mode,
        "model": model,
        "robots": len(loads),
        "seconds": seconds,
        "cores": os.cpu_count() or 1,
        "load_average": os.getloadavg()[0],
        "frames": frames,
        "frames_per_s": sum(frames) / seconds,
        "latency_s": summary([value for each in loads for value in each["seconds"]]),
        "ratio": ratio,
        "fell_back": dict(fell_back),
        "plans": sorted({each["plan"] for each in loads if each["plan"]}),
        "checked": results,
        "equal": equal,
        "difference": difference,
        "memory": list(memory),
        "passed": exact and results > 0 and ratio <= MAX_RATIO and not fell_back,
    }


def show_record(record: Dict[str, Any]) -> None:
    """Some lines for people."""
    latency, memory = record["latency_s"], record["memory"]
    print(f"{record['robots']} robots, {record['model']} in {record['mode']}: {record['frames_per_s']:.1f} frames/s, "
          f"{min(record['frames'])} to {max(record['frames'])} each (most / least {record['ratio']:.2f}); "
          f"latency p50 {latency['p50'] * 1e3:.0f} ms, p99 {latency['p99'] * 1e3:.0f} ms\n"
          f"  {record['equal']} of {record['checked']} results bit-equal to the reference's, largest difference "
          f"{record['difference']:.1e}; server memory {memory[0] / 1e6:.0f}, {memory[1] / 1e6:.0f} learnt, "
          f"{memory[2] / 1e6:.0f} MB at the end", flush=True)  # fmt: skip
    for reason, count in record["fell_back"].items():
        print(f"  {count} computed on the robot: {reason}")


def _request_all(programs: Sequence[Process], request: Dict[str, Any], timeout_s: float) -> List[Dict[str, Any]]:
    """The same of all at once."""
    with ThreadPoolExecutor(len(programs)) as threads:
        return list(threads.map(lambda program: program.request_answer(request, timeout_s), programs))
