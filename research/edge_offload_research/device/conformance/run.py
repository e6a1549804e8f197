"""Judging many entries: processes that survive nothing, a parent that survives them, and a journal to go on from."""

from __future__ import annotations

import json
import os
import pathlib
import queue
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from edge_offload.errors import BadInput, EdgeOffloadError, Unsupported
from edge_offload.execute import heap
from edge_offload_research.device.conformance.child import MARK

#: Entries that one process judges before the next one takes over (what it keeps on the device would add up).
BATCH = 60
START_S = 900.0


@dataclass(frozen=True)
class Settings:
    """Settings of the run.

    Attributes:
        modes: execution modes.
        limit: samples per entry and dtype; 0 for all.
        timeout_s: longest time for one entry; then its process is killed and the entry is wrong.
        launcher: further options of ``edge-offload exec``.
        layouts: how the tensors of samples lie.
        reference: what results are compared with, ``cpu`` or ``cuda``.
    """

    modes: Sequence[str]
    limit: int = 0
    timeout_s: float = 900.0
    launcher: Sequence[str] = ()
    layouts: Sequence[str] = ("sampled",)
    reference: str = "cpu"


def command_of(settings: Settings) -> List[str]:
    """The command line of a judging process."""
    mode = "local" if "local" in settings.modes else "per_op"
    command = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", mode, "--threads", "1"]
    command += [*settings.launcher, "--", sys.executable, "-m", "edge_offload_research.device.conformance.child"]
    command += ["--modes", ",".join(settings.modes), "--limit", str(settings.limit)]
    command += ["--layouts", ",".join(settings.layouts), "--reference", settings.reference]
    return [*command, "--launcher", json.dumps(heap.LAUNCHER)]


class Child:
    """One judging process."""

    def __init__(self, settings: Settings) -> None:
        pipe, environment = subprocess.PIPE, {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command_of(settings), stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment
        )
        self.judged = 0
        self.last_error_line = ""
        self._lines: queue.Queue[Optional[str]] = queue.Queue()
        threading.Thread(target=self._read_output, daemon=True).start()
        threading.Thread(target=self._read_errors, daemon=True).start()

    def request_answer(self, line: str, timeout_s: float) -> Optional[Dict[str, Any]]:
        """The answer to ``line``; None if the process died or took longer than ``timeout_s``."""
        assert self.process.stdin is not None
        self.judged += 1
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            answer = self._lines.get(timeout=timeout_s)
        except (OSError, queue.Empty):
            return None
        if answer is None:
            return None
        record: Dict[str, Any] = json.loads(answer[len(MARK) :])
        return record

    def close(self) -> str:
        """End the process; says how it ended."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except OSError:
            self.process.kill()
        try:
            code = self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
            return "did not answer in time"
        return f"the process died with exit code {code}" + (f": {self.last_error_line}" if self.last_error_line else "")

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(MARK):
                self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.strip():
                self.last_error_line = line.strip()[:200]


def read_catalogue(child: Child) -> Dict[str, Any]:
    """``entries``: the names of all entries of op_db; ``torch``: whose version; ``dtypes``: those of the samples.

    Raises:
        EdgeOffloadError: the launcher does not start, or torch's test suite cannot be imported.
        Unsupported: there is no GPU for the reference.
    """
    answer = child.request_answer("list", START_S)
    if answer is None:
        ended = child.close()
        raise EdgeOffloadError(
            f"op_db cannot be listed on the virtual device: {ended}",
            remedy="pip install expecttest; see 'edge-offload doctor'",
        )
    if "problem" in answer:
        raise Unsupported(answer["problem"], remedy=answer["remedy"])
    return answer


class Journal:
    """One line of JSON per judged entry under a line of ``facts``, so that an interrupted run can go on.

    Raises:
        BadInput: the file is no journal, or one of a run with other facts.
    """

    def __init__(self, path: Optional[pathlib.Path], facts: Mapping[str, Any]) -> None:
        self.path = path
        self.records: Dict[str, Dict[str, Any]] = {}
        self._lock = threading.Lock()
        if path is None:
            return
        if not path.exists():
            path.write_text(json.dumps(facts) + "\n", encoding="utf-8")
            return
        try:
            header, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            self.records = {record["entry"]: record for record in lines}
        except (ValueError, KeyError, TypeError):
            raise BadInput(f"{path} is not a journal of this command", remedy="name another file") from None
        if header != facts:
            raise BadInput(f"{path} is the journal of a run with {header}", remedy="name another file")

    def add(self, record: Dict[str, Any]) -> None:
        """Remember a verdict."""
        with self._lock:
            self.records[record["entry"]] = record
            if self.path is not None:
                with self.path.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(record) + "\n")


def judge_all(
    names: Sequence[str],
    settings: Settings,
    journal: Journal,
    jobs: int,
    progress: Callable[[Dict[str, Any]], None],
    first: Optional[Child] = None,
) -> List[Dict[str, Any]]:
    """Judge the entries ``names`` that are not in the ``journal`` yet, in ``jobs`` processes at a time.

    An entry during which its process dies is judged again alone; if that dies too, it is wrong.
    ``first`` is a process to begin with.
    """
    idle = [first] if first is not None else []  # popped and put back by single operations, which are atomic

    def judge_entries(name: str) -> None:
        child = idle.pop() if idle else Child(settings)
        fresh = child.judged == 0
        record = child.request_answer(name, settings.timeout_s + (START_S if fresh else 0))
        if record is None and not fresh:
            child.close()
            child, fresh = Child(settings), True
            record = child.request_answer(name, settings.timeout_s + START_S)
        if record is None or child.process.poll() is not None or child.judged > BATCH:
            record = record or _crash_record(name, settings, child.close())
            child.close()
        else:
            idle.append(child)
        journal.add(record)
        progress(record)

    try:
        with ThreadPoolExecutor(max(1, jobs)) as pool:
            list(pool.map(judge_entries, [name for name in names if name not in journal.records]))
    finally:
        for child in idle:
            child.close()
    return [journal.records[name] for name in names]


def _crash_record(name: str, settings: Settings, how: str) -> Dict[str, Any]:
    return {
        "entry": name,
        "outcomes": dict.fromkeys(settings.modes, "wrong"),
        "reasons": dict.fromkeys(settings.modes, how),
        "samples": 0,
        "replayed": 0,
        "seconds": 0.0,
    }
