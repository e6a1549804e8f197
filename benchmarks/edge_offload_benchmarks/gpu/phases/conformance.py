"""Samples of op_db on plain torch on the device (twice) and through a server on it, compared bit for bit.

``edge-offload conformance`` compares with the CPU, whose bits a GPU does not have: here the GPU is its own reference.
"""

from __future__ import annotations

import json
import pathlib
from collections import Counter
from typing import Any, Dict, List, Sequence, Tuple

from edge_offload_benchmarks.gpu.phases.bits import by_size
from edge_offload_benchmarks.gpu.processes import BLIND, Process, Server, end_all, module_command
from edge_offload_benchmarks.gpu.results import Phase

#: Runs of each entry by mode: replay needs some to learn from.
RUNS = {"lazy": 2, "replay": 4}
#: Parts of op_db that run at once.
JOBS = 3
ORDER = ("bits", "strides", "error differs", "close", "tf32", "FAR", "shapes", "count", "refused", "raised")


def run(phase: Phase) -> None:
    """Run all parts at once, and compare."""
    import torch

    settings = phase.settings
    folder = settings.folder / "conformance"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.pt"):
        old.unlink()
    jobs = 1 if settings.tiny else JOBS
    with Server(settings) as server:
        # the rest is for imports, which take as long as some calls, and for the comparison
        seconds = max(5.0, 0.5 * phase.remaining_s() if settings.tiny else phase.remaining_s() - 30)
        children: Dict[str, Tuple[Process, pathlib.Path]] = {}
        for part in range(jobs):
            common = ["--part", str(part), "--parts", str(jobs), "--seconds", f"{seconds:g}"]
            common += ["--entries", "8"] if settings.tiny else []
            for name in ("plain", "replay") if settings.tiny else ("plain", "again", *RUNS):
                out = folder / f"{name}{part}.pt"
                runs = RUNS.get(name, max(RUNS.values()) if name == "plain" else 1)
                command = module_command("conformance_child", "--out", str(out), "--runs", str(runs), *common)
                if name in RUNS:
                    process = Process(settings, out.stem, [*server.exec_command("--mode", name), *command], **BLIND)
                else:
                    command += ["--device", settings.device]
                    process = Process(settings, out.stem, command, OMP_NUM_THREADS="1")
                children[f"{name}{part}"] = process, out
        end_all((process for process, _ in children.values()), phase.remaining_s() - 12)
        outcomes: Dict[str, Dict[Any, Any]] = {}
        for name, (process, out) in children.items():
            with phase.guard_errors(name):
                code = process.end(5)
                if code != 0:
                    phase.record(name, failed=f"exit code {code}", log=process.read_tail(1500))
                if out.exists():
                    outcomes.setdefault(name.rstrip("0123456789"), {}).update(torch.load(out, weights_only=False))
    record_verdicts(phase, outcomes)


def worst_verdict(want: Sequence[Any], have: Sequence[Any]) -> str:
    """The worst difference between the results of a call's samples."""
    if len(want) != len(have):
        return "count"
    return max((of_sample(a, b) for a, b in zip(want, have)), key=ORDER.index, default="bits")


def of_sample(a: Any, b: Any) -> str:
    """The difference between two outcomes: lists of values, or a tuple for an error."""
    if isinstance(b, tuple):
        if isinstance(a, tuple):
            return "bits" if a[1] == b[1] else "error differs"
        return "refused" if "edge_offload" in b[2] or b[1] in ("NotImplementedError", "Unsupported") else "raised"
    if isinstance(a, tuple):
        return "error differs"
    if len(a) != len(b):
        return "shapes"
    return max((of_value(x, y) for x, y in zip(a, b)), key=ORDER.index, default="bits")


def of_value(x: Any, y: Any) -> str:
    """The difference between two values: ("t", type, shape, strides, tensor) or ("v", text)."""
    if x[0] != y[0]:
        return "shapes"
    if x[0] == "v":
        return "bits" if x == y or "device" in x[1] else "shapes"
    if x[1:3] != y[1:3]:
        return "shapes"
    one, right = x[4], y[4]
    if bool(((one == right) | ((one != one) & (right != right))).all()):
        expected, strides = ([s for n, s in zip(z[2], z[3]) if n > 1] for z in (x, y))
        return "bits" if expected == strides or not one.numel() else "strides"
    scale = float(one.double().abs().nan_to_num(0, 0, 0).max()) or 1.0
    return by_size(float((one.double() - right.double()).abs().nan_to_num(0, 0, 0).max()) / scale)


def record_verdicts(phase: Phase, outcomes: Dict[str, Dict[Any, Any]]) -> None:
    """Record counts of verdicts by mode and what is in each; the whole list goes to conformance.jsonl."""
    plain, repeated = outcomes.get("plain", {}), outcomes.get("again", {})
    unsteady = {
        key[:2] for key, value in repeated.items() if key in plain and worst_verdict(plain[key], value) != "bits"
    }
    errors = sum(isinstance(one, tuple) for value in plain.values() for one in value)
    phase.record(
        "plain",
        calls=len(plain),
        unsteady=len(unsteady),
        which=sorted({name for name, _ in unsteady})[:60],
        errors=errors,
    )
    lines: List[str] = []
    for mode in (name for name in RUNS if name in outcomes):
        counts: Counter[str] = Counter()
        listed: Dict[str, List[List[Any]]] = {}
        for key, value in outcomes.get(mode, {}).items():
            if key not in plain:
                continue
            name = worst_verdict(plain[key], value)
            name = "unsteady" if name != "bits" and key[:2] in unsteady else name
            counts[name] += 1
            if name not in ("bits", "unsteady"):
                text = next((f"{one[1]}: {one[2]}" for one in value if isinstance(one, tuple)), "")
                listed.setdefault(name, []).append([*key, text[:160]])
        phase.record(mode, calls=sum(counts.values()), **counts)
        for name, items in listed.items():
            lines.append(json.dumps({"mode": mode, "verdict": name, "entries": items}))
            phase.record(f"{mode} {name}", entries=sorted({item[0] for item in items})[:40], example=items[0])
    (phase.settings.results / "conformance.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
