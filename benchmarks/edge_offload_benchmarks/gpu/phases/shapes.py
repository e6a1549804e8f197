"""The survey of ``edge_offload.device.conformance.shapes`` with an executor on the device.

It tells of which operators a client works out the results' shapes as the device does, so that a GPU server's first
inference need not ask at every distinct call. Writes shapes.json: the content of a table for this release of torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Tuple

from edge_offload_benchmarks.gpu.processes import cli
from edge_offload_benchmarks.gpu.results import Phase

JOBS = 8
#: Ends of a job's process after which it is not started again.
MOST_DEATHS = 20
Counts = Dict[Tuple[str, int, int], Tuple[int, int]]


def run(phase: Phase) -> None:
    """Run the survey in parts at once, and write the table."""
    import torch

    from edge_offload.device.conformance.shapes import exact

    tiny = phase.settings.tiny
    jobs = 1 if tiny else JOBS
    entries = ["add", "matmul", "nn.functional.relu"] if tiny else ["*"]
    ends = time.monotonic() + max(5.0, phase.left() - 8)
    command = cli("exec", "--mode", "lazy", "--device", phase.settings.device, "--threads", "1", "--")
    command += [
        sys.executable,
        "-m",
        "edge_offload.device.conformance.shapes",
        "--jobs",
        str(jobs),
        "--entries",
        *entries,
    ]
    counts: Counts = {}
    with ThreadPoolExecutor(jobs) as pool:
        parts = list(pool.map(lambda number: survey(command, number, ends), range(jobs)))
    for total, _, _ in parts:
        add(counts, total)
    table = {"torch": torch.__version__.split("+")[0], "device": phase.settings.device, **exact(counts)}
    (phase.settings.results / "shapes.json").write_text(json.dumps(table, indent=0), encoding="utf-8")
    phase.record(
        "shapes",
        operators={how: len(table[how]) for how in ("meta", "rules", "numbers")},
        calls=len(counts),
        deaths=sum(deaths for _, deaths, _ in parts),
        errors=[last for _, _, last in parts if last][:2],
    )


def add(counts: Counts, more: Counts) -> None:
    """Add counts to counts."""
    for key, (agree, differ) in more.items():
        before = counts.get(key, (0, 0))
        counts[key] = before[0] + agree, before[1] + differ


def survey(command: List[str], number: int, ends: float) -> Tuple[Counts, int, str]:
    """One part: counts, how often its process ended early, and its last error. The entry that ended it is skipped."""
    from edge_offload.device.conformance.shapes import MARK

    total: Counts = {}
    start, deaths, last = 0, 0, ""
    while time.monotonic() < ends and deaths < MOST_DEATHS:
        process: Any = subprocess.Popen(
            [*command, "--part", str(number), "--start", str(start)],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(os.environ),
        )
        timer = threading.Timer(max(1.0, ends - time.monotonic()), process.terminate)
        timer.start()
        errors: List[str] = []
        reader = threading.Thread(target=lambda stream=process.stderr, into=errors: into.append(stream.read()))
        reader.start()
        for line in process.stdout:
            if line.startswith(MARK):
                start += 1
                rows = json.loads(line[len(MARK) :])
                add(total, {(name, layout, how): (agree, differ) for name, layout, how, agree, differ in rows})
        code = process.wait()
        timer.cancel()
        reader.join(5)
        if code == 0:
            break
        last = "".join(errors)[-300:]
        deaths, start = deaths + 1, start + 1
    return total, deaths, last
