"""Records of a phase: one JSON file per phase, whole after every record, merged into one file for the way back."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pathlib
import statistics
import threading
import time
import traceback
from typing import Any, Dict, Iterator, List, Mapping, Sequence

from edge_offload_benchmarks.gpu.settings import Settings


def write_json(path: pathlib.Path, value: Any) -> None:
    """Replace a file at once, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(_finite_or_null(value), default=str, indent=1), encoding="utf-8")
    os.replace(str(partial), str(path))


def _finite_or_null(value: Any) -> Any:
    """The value with null for what JSON has no number for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite_or_null(one) for key, one in value.items()}
    return [_finite_or_null(one) for one in value] if isinstance(value, (list, tuple)) else value


def read_json(path: pathlib.Path) -> Dict[str, Any]:
    """The document of a phase; an empty one if there is none."""
    try:
        document: Dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document


def spread_ms(seconds: Sequence[float]) -> Dict[str, float]:
    """Median, 95th and 99th percentile, interquartile range, mean and least of durations, in milliseconds."""
    if not seconds:
        return {"n": 0}
    ordered = sorted(seconds)

    def percentile_ms(part: float) -> float:
        return 1e3 * ordered[min(len(ordered) - 1, int(part * len(ordered)))]

    values = {
        "ms": 1e3 * statistics.median(ordered),
        "p95_ms": percentile_ms(0.95),
        "p99_ms": percentile_ms(0.99),
        "iqr_ms": percentile_ms(0.75) - percentile_ms(0.25),
        "mean_ms": 1e3 * statistics.fmean(ordered),
        "min_ms": 1e3 * ordered[0],
    }
    return {"n": len(ordered), **{name: round(value, 4) for name, value in values.items()}}


class Phase:
    """One phase while it runs: its time box and its records.

    Args:
        name: of the phase, and of its file in the results folder.
        settings: of the run.
        seconds: that it may take.
    """

    def __init__(self, name: str, settings: Settings, seconds: float) -> None:
        self.name, self.settings, self.seconds = name, settings, seconds
        self.path = settings.results / f"{name}.json"
        self._started_at = time.monotonic()
        self.records: List[Dict[str, Any]] = []
        self._writing = threading.Lock()

    def record(self, name: str, **facts: Any) -> None:
        """Add a record to the phase's file, and print it in short. Thread-safe."""
        with self._writing:
            self.records.append({"name": name, "at_s": round(time.monotonic() - self._started_at, 2), **facts})
            write_json(self.path, {**read_json(self.path), "phase": self.name, "records": self.records})
        short = ", ".join(f"{key}={_shorten(value)}" for key, value in facts.items())
        print(f"[{self.name}] {name}: {short}"[:600], flush=True)

    @contextlib.contextmanager
    def guard_errors(self, name: str) -> Iterator[None]:
        """Turn an error inside into a record, so that the phase goes on."""
        try:
            yield
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{pathlib.Path(last.filename).name}:{last.lineno}"
            self.record(name, failed=f"{type(error).__name__}: {str(error)[:1500]}", where=where)

    def remaining_s(self) -> float:
        """Return the remaining seconds of the phase."""
        return self.seconds - (time.monotonic() - self._started_at)

    def fits_in_time(self, seconds: float) -> bool:
        """Return whether ``seconds`` remain."""
        return self.remaining_s() > seconds


def _shorten(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text if len(text) < 120 else text[:117] + "..."


def begin_phase(settings: Settings, name: str) -> None:
    """Start a phase's file; records of an earlier attempt stay in it under ``earlier``."""
    path = settings.results / f"{name}.json"
    before = read_json(path)
    earlier = before.pop("earlier", [])
    write_json(path, {"phase": name, "status": "running", "earlier": [*earlier, before] if before else []})


def finish_phase(settings: Settings, name: str, status: str, seconds: float) -> None:
    """Note how a phase ended (``done``, ``failed ...`` or ``killed ...``) and what it took."""
    path = settings.results / f"{name}.json"
    write_json(path, {**read_json(path), "phase": name, "status": status, "seconds": round(seconds, 1)})


def status(settings: Settings, name: str) -> str:
    """Return the status of a phase; empty if it has not started."""
    return str(read_json(settings.results / f"{name}.json").get("status", ""))


def merge_phases(settings: Settings, order: Sequence[str]) -> Dict[str, Any]:
    """All phases in one document, the machine's facts first."""
    phases: Dict[str, Any] = {}
    for name in ["facts", *order]:
        document = read_json(settings.results / f"{name}.json")
        if document:
            phases.setdefault(name, document)
    facts: Mapping[str, Any] = phases.get("facts", {})
    machine = [record for record in facts.get("records", []) if record.get("name") in ("machine", "gpu", "nvml")]
    return {"machine": machine, "device": settings.device, "tiny": settings.tiny, "phases": phases}
