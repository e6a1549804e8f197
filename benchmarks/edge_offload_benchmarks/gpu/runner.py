"""Runs phases one after another, each within its time, and brings results back after each and during each."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Set

from edge_offload.parent import with_parent
from edge_offload_benchmarks.gpu import results
from edge_offload_benchmarks.gpu.settings import Settings
from edge_offload_benchmarks.gpu.table import PHASES, entry_of, list_members

#: Files besides results.json and log.txt that come back, if a phase wrote them.
EXTRA = ("conformance.jsonl", "shapes_counts.json", "tests.txt")
#: Bytes of the log that come back, and seconds between two deliveries while a phase runs.
LOG_BYTES = 8 << 20
DELIVER_S = 5.0
#: Seconds that a phase has to end by itself once it is asked to.
GRACE_S = 4.0


class Runner:
    """One call of ``scripts/gpu run``.

    Args:
        settings: of the run.
        out: folder for what comes back.
        limit_s: for all phases together.
        again: repeat phases that are done.
    """

    def __init__(self, settings: Settings, out: pathlib.Path, limit_s: float, repeat: bool = False) -> None:
        self.settings, self.out, self.repeat = settings, out, repeat
        self._ends, self._started_at = time.monotonic() + limit_s, time.monotonic()
        self._children: Dict[str, subprocess.Popen[str]] = {}
        self._open: Set[str] = set()
        settings.results.mkdir(parents=True, exist_ok=True)
        self._log = (settings.results / "log.txt").open("a", encoding="utf-8")
        self._writing = threading.Lock()
        self._delivered = 0.0

    def run(self, names: Sequence[str]) -> int:
        """Run the phases; 0 if none failed."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        failed = 0
        try:
            for name in names:
                failed += not self._run_phase(name)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._kill_children()
            self._list_failures()
            self.log_line(f"== all: {time.monotonic() - self._started_at:.0f} s; results in {self.out}")
            self.deliver_results()
        return 1 if failed else 0

    def _list_failures(self) -> None:
        """Write a line per record that failed, of all phases there are."""
        for name, document in results.merge_phases(self.settings, list(PHASES))["phases"].items():
            for record in document.get("records", []):
                if record.get("failed"):
                    self.log_line(f"failed: {name}: {record['name']}: {str(record['failed'])[:160]}")

    def log_line(self, line: str) -> None:
        """Write a line to the terminal and to the log."""
        with self._writing:
            self._log.write(line + "\n")
            self._log.flush()
            with contextlib.suppress(OSError):
                print(line, flush=True)

    def deliver_results(self) -> None:
        """Copy what there is to the output folder."""
        self.out.mkdir(parents=True, exist_ok=True)
        results.write_json(self.out / "results.json", results.merge_phases(self.settings, list(PHASES)))
        with (self.settings.results / "log.txt").open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - LOG_BYTES))
            (self.out / "log.txt").write_bytes(stream.read())
        for name in EXTRA:
            if (self.settings.results / name).exists():
                shutil.copyfile(self.settings.results / name, self.out / name)
        self._delivered = time.monotonic()

    def _run_phase(self, name: str) -> bool:
        """Run one phase, or several at once; whether none of them failed."""
        entry = entry_of(name)
        todo = [part for part in list_members(name) if self.repeat or results.status(self.settings, part) != "done"]
        if not todo:
            self.log_line(f"== {name}: done before")
            return True
        room = self._ends - time.monotonic()
        most = entry.tiny_s if self.settings.tiny else entry.seconds
        if room < most / 2:
            self.log_line(f"== {name}: not begun: {room:.0f} s are left, it takes {most / 2:.0f} to {most:.0f} s")
            return True
        most = min(most, room)
        started_at = time.monotonic()
        self.log_line(f"== {name} (at most {most:.0f} s; {started_at - self._started_at:.0f} s are over)")
        for part in todo:
            limit = min(most, PHASES[part].tiny_s if self.settings.tiny else PHASES[part].seconds)
            self._start_phase(part, limit)
        fine = True
        waiting = dict(self._children)
        while waiting:
            for part, child in list(waiting.items()):
                spent = time.monotonic() - started_at
                limit = min(most, PHASES[part].tiny_s if self.settings.tiny else PHASES[part].seconds)
                status = _describe_end(child.poll(), spent > limit)
                if status:
                    self._end_phase(part)
                    del waiting[part]
                    results.finish_phase(self.settings, part, status, spent)
                    self._open.discard(part)
                    self.log_line(f"== {part}: {status}, {spent:.0f} s")
                    fine &= status == "done"
            if time.monotonic() - self._delivered > DELIVER_S:
                self.deliver_results()
            time.sleep(0.05)
        self.deliver_results()
        return fine

    def _start_phase(self, name: str, seconds: float) -> None:
        self._open.add(name)
        results.begin_phase(self.settings, name)
        command = [sys.executable, "-m", "edge_offload_benchmarks.gpu", "phase", name, "--seconds", f"{seconds:g}"]
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **self.settings.make_environment()},
            start_new_session=True,
            preexec_fn=with_parent(),
        )
        self._children[name] = child
        threading.Thread(target=self._read, args=(child,), daemon=True).start()

    def _read(self, child: Any) -> None:
        for line in child.stdout:
            self.log_line(line.rstrip("\n"))

    def _end_phase(self, name: str) -> None:
        """End a phase's process, and what it left in its session."""
        child = self._children.pop(name)
        if child.poll() is None:
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(GRACE_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()

    def _kill_children(self) -> None:
        for name in list(self._children):
            self._end_phase(name)
        for name in self._open:
            results.finish_phase(self.settings, name, "killed with the run", time.monotonic() - self._started_at)


def _describe_end(code: Optional[int], late: bool) -> str:
    """Describe the end of a phase; empty while it runs."""
    if code is None:
        return "killed at its time limit" if late else ""
    return "done" if code == 0 else f"failed with exit code {code}"


def list_unknown(names: Sequence[str]) -> List[str]:
    """Names that are no phases."""
    missing = []
    for several in names:
        try:
            entry_of(several)
        except (KeyError, ValueError):
            missing.append(several)
    return missing
