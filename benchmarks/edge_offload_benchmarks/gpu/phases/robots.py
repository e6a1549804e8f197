"""Robots with keys of their own that share the device, frame after frame, in mode ``server``."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any, Dict, List

from edge_offload_benchmarks.gpu.power import Power
from edge_offload_benchmarks.gpu.processes import BLIND, Process, Server, module_command
from edge_offload_benchmarks.gpu.results import Phase, spread_ms
from edge_offload_benchmarks.gpu.served import allow_options

COUNTS = (1, 4, 16, 64)
#: Robots of a process, and seconds of load.
EACH, LOAD_S = 8, 4.0


def run(phase: Phase) -> None:
    """Measure throughput and latency by number of robots."""
    tiny = phase.settings.tiny
    for count in (1, 2) if tiny else COUNTS:
        if not phase.fits_in_time(LOAD_S + 8):
            phase.record(f"{count} robots", skipped="out of time")
            continue
        with phase.guard_errors(f"{count} robots"):
            measure_robots(phase, count, "tiny" if tiny else "mobilenet_v3_large", 1.0 if tiny else LOAD_S)


def measure_robots(phase: Phase, count: int, model: str, load_s: float) -> None:
    """Load a server by ``count`` robots."""
    from edge_offload_benchmarks.processes import introduce_robots

    settings = phase.settings
    root = settings.folder / f"robots{count}.{time.monotonic_ns()}"
    names = [f"robot{number}" for number in range(count)]
    public, robots = introduce_robots(root, names)
    processes: List[Process] = []
    with Server(settings, *allow_options([model]), keys=root / "server") as server:
        try:
            for store in robots.values():
                store.trust_server(server.address, public)
            for first in range(0, count, EACH):
                command = module_command(
                    "robots_process",
                    "--address",
                    server.address,
                    "--root",
                    str(root),
                    "--model",
                    model,
                    "--names",
                    ",".join(names[first : first + EACH]),
                    "--seconds",
                    str(load_s),
                )
                processes.append(Process(settings, f"robots{first}", command, settings.client_cores, **BLIND))
            for process in processes:
                process.wait_line("ready", min(90.0, phase.remaining_s()))
            power, started_at = Power(), time.monotonic()
            joules, cpu = power.read_joules(), cpu_s(server.process.pid)
            for process in processes:
                process.write("go\n")
            facts_by_robot: Dict[str, Any] = {}
            for process in processes:
                facts_by_robot.update(json.loads(process.wait_line("{", load_s + 30)))
            wall_s = time.monotonic() - started_at
            joules, cpu = power.read_joules() - joules, cpu_s(server.process.pid) - cpu
        finally:
            for process in processes:
                process.stop()
    seconds = [one for facts in facts_by_robot.values() for one in facts["seconds"]]
    server_s = [one for facts in facts_by_robot.values() for one in facts["server_s"]]
    served = [len(facts["seconds"]) for facts in facts_by_robot.values()]
    failed: Counter[str] = Counter()
    for facts in facts_by_robot.values():
        failed.update(facts["failed"])
    phase.record(
        f"{count} robots {model}",
        frames_per_s=len(seconds) / load_s,
        latency=spread_ms(seconds),
        compute=spread_ms(server_s),
        least=min(served),
        most=max(served),
        failed=failed,
        busy=sum(server_s) / load_s,
        server_cores=cpu / wall_s,
        J_per_frame=joules / max(1, len(seconds)),
        watts=joules / wall_s,
    )


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and its children."""
    import psutil

    parent = psutil.Process(pid)
    return float(sum(sum(one.cpu_times()[:2]) for one in [parent, *parent.children(recursive=True)]))
