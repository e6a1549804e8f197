"""Networks and small programs in every mode of ``exec`` with a server on the device, against plain torch.

All children run at once: bits count, not times. ``plain`` computes as a server does: TF32 off, and no algorithms by
timing. It runs twice: what differs there differs by itself. ``plain native_bn`` has torch's own batch normalisation in
cuDNN's place, which tells that cause of a difference from others. ``plain tf32`` tells what TF32 changes.
"""

from __future__ import annotations

import json
import pathlib
from collections import Counter
from typing import Any, Dict, Sequence

from edge_offload_benchmarks.gpu.processes import BLIND, Process, Server, cli_command, end_all, module_command
from edge_offload_benchmarks.gpu.results import Phase

MODELS = ("resnet18", "mobilenet_v3_large", "kapao_vtest", "movenet", "vit_s")
TINY_PROGRAMS = ("random_seeded", "convolutions", "batch_norm", "sizes_by_data")
#: Of every program: a step is a CUDA graph from about the eleventh on.
FRAMES = 16
MODES = ("replay", "lazy", "cached", "per_op")
#: From equal to different; what is not here is worse.
ORDER = ("bits", "close", "tf32", "FAR", "shapes")


def run(phase: Phase) -> None:
    """Run all children at once, and compare what they gave."""
    import torch

    settings, tiny = phase.settings, phase.settings.tiny
    models = ["tiny"] if tiny else list(MODELS)
    base = {"frames": 3 if tiny else FRAMES, "programs": list(TINY_PROGRAMS) if tiny else None, "models": models}
    plain = {**base, "device": settings.device}
    away = {**base, "device": "cuda"}
    few = {**away, "models": models[:1], "frames": 2}
    with Server(settings) as server:
        phase.record("server", start_s=server.start_s)
        children = {
            "plain": start_child(phase, "plain", [], plain),
        }
        if not tiny:
            children["plain again"] = start_child(phase, "plain again", [], plain)
            children["plain native_bn"] = start_child(phase, "plain native_bn", [], {**plain, "native_bn": True})
            children["plain tf32"] = start_child(phase, "plain tf32", [], {**plain, "tf32": True})
        for mode in MODES[:1] if tiny else MODES:
            # one round trip per call: a part of it
            config = few if mode in ("per_op", "cached") else away
            children[mode] = start_child(phase, mode, server.exec_command("--mode", mode), config, **BLIND)
        if settings.cuda:
            # without a server: an executor process beside the program owns the GPU
            local = cli_command("exec", "--mode", "local", "--device", "cuda", "--")
            children["local cuda"] = start_child(phase, "local cuda", local, {**away, "models": models[:1]})
        end_all(children.values(), phase.remaining_s() - 12)
        phase.record("steps without a graph", lines=server.graph_lines())
        runs: Dict[str, Any] = {}
        for name, process in children.items():
            with phase.guard_errors(f"child {name}"):
                code = process.end(5)
                if code != 0:
                    phase.record(f"child {name}", failed=f"exit code {code}", log=process.read_tail(3000))
                path = result_path(phase, name)
                if path.exists():
                    runs[name] = torch.load(path, weights_only=False)
    record_verdicts(phase, runs)


def result_path(phase: Phase, name: str) -> pathlib.Path:
    """Return the path of a child's results."""
    return phase.settings.folder / "bits" / f"{name.replace(' ', '_')}.pt"


def start_child(phase: Phase, name: str, prefix: Sequence[str], config: Dict[str, Any], **more: str) -> Process:
    """Start a child (:mod:`edge_offload_benchmarks.gpu.bits_child`)."""
    out = result_path(phase, name)
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.exists():
        out.unlink()
    path = out.with_suffix(".json")
    path.write_text(json.dumps({**config, "out": str(out)}), encoding="utf-8")
    return Process(phase.settings, f"bits_{out.stem}", [*prefix, *module_command("bits_child", str(path))], **more)


def compare_frames(want: Any, have: Any) -> Dict[str, Any]:
    """Compare two lists of frames of results."""
    import torch

    if len(want) != len(have):
        return {"verdict": f"{len(have)} frames of {len(want)}"}
    worst, equal, strides, first, shapes = 0.0, True, True, "", True
    for turn, (frame, other) in enumerate(zip(want, have)):
        if len(frame) != len(other):
            return {"verdict": f"{len(other)} results of {len(frame)}"}
        for number, ((a, a_strides), (b, b_strides)) in enumerate(zip(frame, other)):
            if a.shape != b.shape or a.dtype != b.dtype:
                shapes = False
                first = first or f"turn {turn} result {number}: {list(b.shape)} {b.dtype} not {list(a.shape)} {a.dtype}"
                continue
            strides_of_a = [s for n, s in zip(a.shape, a_strides) if n > 1]
            strides &= strides_of_a == [s for n, s in zip(b.shape, b_strides) if n > 1] or not a.numel()
            if not (torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())):
                equal = False
                scale = float(a.double().abs().max()) or 1.0
                difference = float((a.double() - b.double()).abs().max()) / scale
                worst = max(worst, difference if difference == difference else float("inf"))
                first = first or f"turn {turn} result {number}"
    verdict = "shapes" if not shapes else "bits" if equal else by_size(worst)
    return {"verdict": verdict, "worst": worst, "strides": strides, **({"first": first} if first else {})}


def by_size(difference: float) -> str:
    """A verdict on a difference relative to the largest value."""
    return "close" if difference < 1e-5 else "tf32" if difference < 5e-3 else "FAR"


def record_verdicts(phase: Phase, runs: Dict[str, Any]) -> None:
    """Record every program that differs from ``plain``, every network, and counts of verdicts by child."""
    table: Dict[str, Counter[str]] = {}
    for name, programs in runs.items():
        counts = table.setdefault(name, Counter())
        for program, (results, facts) in programs.items():
            if "error" in facts:
                phase.record(f"{name}: {program}", verdict="error", error=facts["error"])
                counts["error"] += 1
                continue
            away = not name.startswith("plain")
            verdicts = {
                against: compare_frames(runs[against][program][0][: len(results)], results)
                for against in (["plain", "plain native_bn"] if away else ["plain"])
                if against != name and runs.get(against, {}).get(program, ([],))[0]
            }
            if "plain" not in verdicts:
                continue
            verdict = verdicts["plain"]["verdict"]
            if verdict == "bits":
                verdicts.pop("plain native_bn", None)
            counts[verdict if verdict in ORDER else "count"] += 1
            if verdict != "bits" or not verdicts["plain"].get("strides", True) or program.startswith("net "):
                times = {"frame_s": facts["frame_s"]} if "frame_s" in facts else {}
                phase.record(
                    f"{name}: {program}",
                    trips=facts.get("trips"),
                    **times,
                    **{f"vs {key}": value for key, value in verdicts.items()},
                )
    for name, counts in table.items():
        phase.record(f"total {name}", programs=len(runs[name]), **counts)
