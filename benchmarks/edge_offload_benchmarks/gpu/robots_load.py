"""The robots of phase ``robots`` as processes, and what they and the server say of one row."""

from __future__ import annotations

import json
import pathlib
import statistics
import threading
import time
from collections import Counter
from typing import Any, Dict, List, Sequence, Tuple

from edge_offload_benchmarks.gpu.power import Power
from edge_offload_benchmarks.gpu.processes import BLIND, Process, Server, module_command
from edge_offload_benchmarks.gpu.results import spread_ms
from edge_offload_benchmarks.gpu.served import wire_name
from edge_offload_benchmarks.gpu.settings import Settings

#: Seconds between two looks at the GPU.
LOOK_S = 0.1
#: What the answer to a frame says of it, behind its batch.
PARTS = ("up", "queue", "decode", "compute", "encode")


def write_frames(folder: pathlib.Path, model: str, count: int) -> None:
    """Write packed frames of a model, and what it is opened with, for processes without torch."""
    from edge_offload.execute.tensors import pack_tensors, specs_of
    from edge_offload_benchmarks.gpu.networks import make_inputs

    folder.mkdir(parents=True)
    given = make_inputs(model, count)
    opened: Dict[str, Any] = {
        "name": wire_name(model), "options": {}, "state_hash": None,
        "inputs": [spec.to_dict() for spec in specs_of(given[0])],
    }  # fmt: skip
    frames = []
    with (folder / "frames.bin").open("wb") as stream:
        for frame in given:
            descriptors, buffers = pack_tensors(frame, "raw")
            frames.append([descriptors, [stream.write(memoryview(part).cast("B")) for part in buffers]])
    (folder / "frames.json").write_text(json.dumps({"opened": opened, "frames": frames}), encoding="utf-8")


class RobotsLoad:
    """Robots in processes, robot 0 in the first, robot 1 in the second, and so on.

    Args:
        settings: of the run.
        root: folder of their keys and of the frames.
        address: of the server.
        names: of the robots, which have keys.
        processes: that they share.
    """

    def __init__(
        self, settings: Settings, root: pathlib.Path, address: str, names: Sequence[str], processes: int
    ) -> None:
        self._processes: List[Process] = []
        self._requests: Counter[Process] = Counter()
        for first in range(min(processes, len(names))):
            shares = [f"{name}:{place / len(names):.4f}" for place, name in enumerate(names)][first::processes]
            command = module_command(
                "robots_process", "--address", address, "--root", str(root), "--names", ",".join(shares)
            )
            self._processes.append(Process(settings, f"robots{first}", command, settings.client_cores, **BLIND))

    def __enter__(self) -> RobotsLoad:
        return self

    def __exit__(self, *_: object) -> None:
        stopping = [threading.Thread(target=process.stop) for process in self._processes]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join()

    def share_robots(self, count: int) -> List[Tuple[Process, int]]:
        """The processes of the first ``count`` robots, and how many of these each has."""
        size = len(self._processes)
        shares = [(process, (count + size - 1 - place) // size) for place, process in enumerate(self._processes)]
        return [(process, robots) for process, robots in shares if robots]

    def ask(self, process: Process, order: Dict[str, Any]) -> int:
        """Write an order to a process; the number of its answer."""
        process.write(json.dumps(order) + "\n")
        self._requests[process] += 1
        return self._requests[process] - 1

    def read_answer(self, process: Process, number: int, timeout_s: float) -> Dict[str, Any]:
        """Wait for an answer.

        Raises:
            RuntimeError: the process says an error, or nothing.
        """
        start = f"answer {number} "
        answer: Dict[str, Any] = json.loads(process.wait_line(start, timeout_s)[len(start) :])
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def ask_all(self, count: int, order: Dict[str, Any], timeout_s: float) -> Dict[str, Any]:
        """Have the first ``count`` robots do something, and merge their answers."""
        requests = [(one, self.ask(one, {**order, "robots": robots})) for one, robots in self.share_robots(count)]
        merged: Dict[str, Any] = {}
        for process, number in requests:
            merged.update(self.read_answer(process, number, timeout_s))
        return merged

    def prepare_batches(self, model: str, timeout_s: float) -> Dict[str, Any]:
        """Have the server measure its batches of a model that the first robot has open."""
        number = self.ask(self._processes[0], {"prepare": model})
        return self.read_answer(self._processes[0], number, timeout_s)


class Watch:
    """What the server and the GPU use between two moments."""

    def __init__(self, server: Server) -> None:
        self._pid, self._power = server.process.pid, Power()
        self._busy: List[float] = []
        self._started_at = time.monotonic()
        self._joules, self._threads = self._power.read_joules(), thread_seconds(self._pid)

    def wait_until(self, ends_s: float) -> Dict[str, Any]:
        """Look until then: cores, busiest threads of the server, share of time with a kernel, joules."""
        while time.monotonic() < ends_s:
            self._busy.append(self._power.read_utilisation())
            time.sleep(LOOK_S)
        wall_s = time.monotonic() - self._started_at
        threads = thread_seconds(self._pid)
        used = {key: (seconds - self._threads.get(key, 0.0)) / wall_s for key, seconds in threads.items()}
        busiest = sorted(used.items(), key=lambda item: -item[1])[:4]
        return {
            "joules": self._power.read_joules() - self._joules,
            "watts": (self._power.read_joules() - self._joules) / wall_s,
            "gpu_busy": statistics.fmean(self._busy),
            "server_cores": sum(used.values()),
            "threads": {key: round(share, 3) for key, share in busiest},
        }


def thread_seconds(pid: int) -> Dict[str, float]:
    """CPU seconds of a process by thread, and of its children by process."""
    import psutil

    parent = psutil.Process(pid)
    seconds: Dict[str, float] = {}
    for thread in parent.threads():
        try:
            name = pathlib.Path(f"/proc/{pid}/task/{thread.id}/comm").read_text("utf-8").strip()
        except OSError:
            continue
        seconds[f"{name} {thread.id}"] = thread.user_time + thread.system_time
    for child in parent.children(recursive=True):
        seconds[f"process {child.pid}"] = sum(child.cpu_times()[:2])
    return seconds


def summarize_row(facts_by_robot: Dict[str, Any], seconds: float, use: Dict[str, Any]) -> Dict[str, Any]:
    """The record of a row, from what its robots counted and the server used."""
    every = list(facts_by_robot.values())
    served = [len(facts["seconds"]) for facts in every]
    answers = [answer for facts in every for answer in facts["server"]]
    failed: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    for facts in every:
        refusals.update(facts["refusals"])
        failed.update(facts["failed"])
    # seconds of the device's thread: those of a batch count once
    device_s = sum((parts[4] + parts[0] * (parts[3] + parts[5])) / parts[0] for parts in answers)
    facts = {key: value for key, value in use.items() if key != "joules"}
    return {
        "frames_per_s": sum(served) / seconds,
        "captured_per_s": sum(facts["captured"] for facts in every) / seconds,
        "latency": spread_ms([one for facts in every for one in facts["seconds"]]),
        "least": min(served),
        "most": max(served),
        "jain": jain_index(served),
        "batch": sum(parts[0] for parts in answers) / len(answers) if answers else None,
        "refused": sum(facts["refused"] for facts in every),
        "alone": sum(facts["alone"] for facts in every),
        "missed": sum(facts.get("missed", 0) for facts in every),
        "bounds": sorted({round(facts["bound"], 5) for facts in every if "bound" in facts})[:: max(1, len(every) - 1)],
        "refusals": dict(refusals.most_common(5)),
        "failed": failed,
        "busy": device_s / seconds,
        **{
            f"{part}_ms": round(1e3 * statistics.median(parts[place] for parts in answers), 3)
            for place, part in enumerate(PARTS, 1)
            if answers
        },
        "J_per_frame": use["joules"] / max(1, sum(served)),
        **facts,
    }


def jain_index(counts: Sequence[float]) -> float:
    """Jain's index of fairness: 1 if all have the same, 1/n if one has everything."""
    squares = len(counts) * sum(one * one for one in counts)
    return sum(counts) ** 2 / squares if squares else 0.0
