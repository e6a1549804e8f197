"""The survey of ``edge_offload_research.device.conformance.shapes`` with an executor on the device.

It tells of which operators a client works out the results' shapes as the device does, so that a GPU server's first
inference need not ask at every distinct call. Writes shapes_counts.json, every few seconds: what was counted so far.
``python -m edge_offload_research.device.conformance.shapes --counts shapes_counts.json`` makes the table of it.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List, Sequence

from edge_offload_benchmarks.gpu.processes import cli_command
from edge_offload_benchmarks.gpu.results import Phase, write_json

JOBS = 8
#: Ends of a job's process after which it is not started again.
MOST_DEATHS = 20
#: Seconds for the first samples of an operator and dtype, and for its others.
LONGEST_S = 1.0
#: Seconds between two versions of the file; for the processes to end; for the records behind them.
WRITE_S, END_S, RECORD_S = 4.0, 3.0, 5.0
#: Entries of op_db, those first that networks are made of: a survey that runs out of time has seen them.
ENTRIES = (
    "nn.functional.conv*", "nn.functional.*norm", "nn.functional.*pool*", "nn.functional.linear",
    "nn.functional.*attention", "nn.functional.interpolate", "nn.functional.upsample*", "nn.functional.*relu*",
    "add", "sub", "mul", "div", "cat", "stack", "sigmoid", "tanh", "softmax", "exp", "clamp*", "*matmul", "bmm",
    "addmm", "mean", "sum", "amax", "max*", "min*", "arg*", "sort", "topk", "where", "index*", "gather",
    "nn.functional.*", "to", "clone", "contiguous", "copy*", "expand*", "repeat*", "*like", "ne", "eq", "gt", "ge",
    "lt", "le", "floor*", "round", "sqrt", "rsqrt", "pow", "abs", "neg", "*",
)  # fmt: skip
TINY = ("nn.functional.relu", "add", "nn.functional.batch_norm")


class Survey:
    """Counts of the parts so far.

    Args:
        path: of the file.
        facts: of the device.
    """

    def __init__(self, path: pathlib.Path, facts: Dict[str, Any]) -> None:
        from edge_offload_research.device.conformance.shapes import Counts

        self.path, self.facts = path, facts
        self.counts: Counts = {}
        self.covered = self.skipped = 0
        self.entries: Dict[int, int] = {}
        self.errors: List[str] = []
        self._lock = threading.Lock()

    def add_rows(self, rows: Sequence[Any]) -> None:
        """Add what one entry has counted."""
        from edge_offload_research.device.conformance.shapes import add_counts

        with self._lock:
            self.covered += 1
            add_counts(self.counts, {(name, layout, way): (agree, differ) for name, layout, way, agree, differ in rows})

    def skip_entry(self, error: str) -> None:
        """Note an entry that ended its process."""
        with self._lock:
            self.skipped += 1
            self.errors.append(error)

    def make_document(self) -> Dict[str, Any]:
        """The content of the file."""
        with self._lock:
            share = {"covered": self.covered, "of": sum(self.entries.values()), "skipped": self.skipped}
            return {**self.facts, "entries": share, "counts": [[*key, *value] for key, value in self.counts.items()]}


def run(phase: Phase) -> None:
    """Run the survey in parts at once, and write what they count."""
    from edge_offload.device.shapes import HOW
    from edge_offload_research.device.conformance.shapes import table_of

    tiny = phase.settings.tiny
    jobs, entries = (2, TINY) if tiny else (JOBS, ENTRIES)
    ends = time.monotonic() + max(5.0, phase.remaining_s() - END_S - RECORD_S)
    command = cli_command("exec", "--mode", "lazy", "--device", phase.settings.device, "--threads", "1", "--")
    command += [sys.executable, "-m", "edge_offload_research.device.conformance.shapes", "--jobs", str(jobs)]
    command += ["--longest", str(LONGEST_S), "--entries", *entries]
    survey = Survey(phase.settings.results / "shapes_counts.json", facts_of(phase.settings.device))
    parts = [threading.Thread(target=run_part, args=(command, n, ends, survey), daemon=True) for n in range(jobs)]
    for part in parts:
        part.start()
    while any(part.is_alive() for part in parts) and time.monotonic() < ends + END_S:
        write_json(survey.path, survey.make_document())
        parts[0].join(WRITE_S if parts[0].is_alive() else 0.2)
    finished = not any(part.is_alive() for part in parts) and time.monotonic() < ends
    document = survey.make_document()
    write_json(survey.path, document)
    table = table_of([document])
    phase.record(
        "shapes",
        **document["entries"],
        finished=finished,
        operators={how: len(table[how]) for how in HOW},
        differ=sorted({key[0] for key, (_, differ) in survey.counts.items() if differ})[:400],
        asked=table["asked"],
        calls=len(document["counts"]),
        errors=survey.errors[:2],
    )


def facts_of(device: str) -> Dict[str, Any]:
    """Return the facts of a table: torch, device, a GPU's compute capability."""
    import torch

    facts: Dict[str, Any] = {"torch": torch.__version__.split("+")[0], "device": device}
    if device.startswith("cuda"):
        facts["device"] = torch.cuda.get_device_name(device)
        facts["capability"] = list(torch.cuda.get_device_capability(device))
    return facts


def run_part(command: List[str], number: int, ends: float, survey: Survey) -> None:
    """Run one part until it ends or is out of time; the entry that ended its process is skipped."""
    from edge_offload_research.device.conformance.shapes import ALL, MARK

    start = deaths = 0
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
        reader = threading.Thread(
            target=lambda stream=process.stderr, into=errors: into.append(stream.read()), daemon=True
        )
        reader.start()
        for line in process.stdout:
            if line.startswith(ALL):
                survey.entries[number] = int(line[len(ALL) :])
            elif line.startswith(MARK):
                start += 1
                survey.add_rows(json.loads(line[len(MARK) :]))
        code = process.wait()
        timer.cancel()
        reader.join(5)
        if code == 0 or time.monotonic() >= ends:
            return
        survey.skip_entry("".join(errors)[-300:])
        deaths, start = deaths + 1, start + 1
