"""Operators that plain CUDA dispatches to against those that the virtual device records, for PyTorch's own samples.

A GPU server computes what the virtual device recorded. Where plain CUDA has a kernel of its own (cuDNN's, fused ones,
efficient attention) and the device recorded something else, results differ in last digits from those of plain CUDA.
Samples of torch's op_db and a few networks (float32 and float16, forward) run on fake tensors of "cuda", and on the
virtual device with an executor on the CPU. Of every operator that has a kernel for CUDA and none for a CPU this says:

  recorded   the device records it, too
  whole      the device records what it is a part of, which a GPU server divides as plain CUDA does
  explained  something else is recorded, for a reason that this command states
  other      something else is recorded: the exit code is 1

  edge-offload bench kernels --json kernels.json                  all, some five minutes
  edge-offload bench kernels --entries 'nn.functional.*norm'      some entries

Needs a build of torch with CUDA (no GPU and no driver), a C++ compiler and the package expecttest. What cannot be run
on fake tensors or is refused by the device is listed as not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Mapping, Sequence

from edge_offload.outputs import add_output

LIMIT = 6
LONGEST_S = 3600.0
RECORDED, COMPOSITE, EXPLAINED, OTHER = "recorded", "whole", "explained", "other"
#: Operators of plain CUDA in whose place something else is recorded, and why that is right.
REASONS: Mapping[str, str] = {
    "aten::cudnn_batch_norm": "batch_norm and instance_norm are recorded whole for a GPU, and this executor is a CPU",
    "aten::cudnn_grid_sampler": "grid_sampler is recorded whole for a GPU, and this executor is a CPU",
}
#: By entry of op_db: ``operators`` with those that each is a part of, how many ``samples`` ran, why one ``failed``.
Observations = Dict[str, Dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--entries", nargs="+", metavar="GLOB", default=["*"], help="names of entries (all)")
    parser.add_argument("--limit", type=int, default=LIMIT, metavar="N", help=f"samples per entry and dtype ({LIMIT})")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the record `kernels` here")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload import records

    record = measure_kernels(args.entries, args.limit)
    for item in record["kernels"]:
        why = f": {item['reason']}" if item["reason"] else ""
        instead = f", recorded: {' '.join(item['recorded'])}" if item["verdict"] in (EXPLAINED, OTHER) else ""
        print(f"{item['verdict']:9} {item['operator']} in {item['entry']}{instead}{why}")
    for name in record["unused"]:
        print(f"unused    {name}: nothing else is recorded for it any more; remove its reason")
    count = len(record["not_judged"])
    print(f"{record['judged']} entries judged, {count} not" + (" (see --json)" if count else ""))
    if args.json is not None:
        records.write(args.json, "kernels", record)
    return 1 if any(item["verdict"] == OTHER for item in record["kernels"]) else 0


def measure_kernels(entries: Sequence[str] = ("*",), limit: int = LIMIT) -> Dict[str, Any]:
    """The record ``kernels`` on the entries of op_db whose names are like one of ``entries``.

    Args:
        entries: patterns of names.
        limit: samples per entry and dtype.

    Raises:
        Unsupported: this torch is no build with CUDA, or there is no compiler.
        BadInput: no entry has such a name.
        EdgeOffloadError: a process died.
    """
    import torch

    from edge_offload.errors import BadInput, Unsupported
    from edge_offload.native.torch_facts import built_with_cuda
    from edge_offload_benchmarks.processes import edge_offload

    if not built_with_cuda():
        raise Unsupported(
            f"torch {torch.__version__} is no build with CUDA, which tells what plain CUDA does",
            remedy="install torch without +cpu; no GPU is needed",
        )
    child = [sys.executable, "-m", "edge_offload_benchmarks.dispatched", "--limit", str(limit), "--entries", *entries]
    virtual = edge_offload("exec", "--mode", "lazy", "--threads", "1", "--")
    with ThreadPoolExecutor(2) as pool:
        fake, recorded = pool.map(observe_command, ([*child, "--way", "fake"], [*virtual, *child, "--way", "recorded"]))
    if not fake:
        raise BadInput(f"no entry of op_db is like {' or '.join(entries)}", remedy="see 'edge-offload conformance'")
    return {"torch": torch.__version__, "limit": limit, **compare_observations(fake, recorded, REASONS)}


def compare_observations(fake: Observations, recorded: Observations, reasons: Mapping[str, str]) -> Dict[str, Any]:
    """The verdicts, what was not judged and why, and which ``reasons`` were of no use."""
    kernels: List[Dict[str, Any]] = []
    not_judged: Dict[str, str] = {}
    for entry, plain in fake.items():
        virtual = recorded.get(entry, {"operators": {}, "samples": 0, "failed": "it was not run on the virtual device"})
        if not plain["samples"] or not virtual["samples"]:
            not_judged[entry] = plain["failed"] if not plain["samples"] else virtual["failed"]
            continue
        names = set(virtual["operators"])
        for operator, parents in plain["operators"].items():
            verdict = RECORDED if operator in names else COMPOSITE if names.intersection(parents) else OTHER
            if verdict == OTHER and operator in reasons:
                verdict = EXPLAINED
            instead = sorted(name for name in names if not name.startswith("edge::"))
            reason = reasons[operator] if verdict == EXPLAINED else ""
            kernels.append({"entry": entry, "operator": operator, "verdict": verdict, "parts_of": parents,
                            "recorded": instead, "reason": reason})  # fmt: skip
    used = {item["operator"] for item in kernels if item["verdict"] == EXPLAINED}
    reached = {item["operator"] for item in kernels}
    unused = sorted(name for name in reasons if name in reached and name not in used)
    return {"judged": len(fake) - len(not_judged), "kernels": kernels, "not_judged": not_judged, "unused": unused}


def observe_command(command: Sequence[str]) -> Observations:
    """Run :mod:`edge_offload_benchmarks.dispatched` in a process; return its observations by entry."""
    from edge_offload.device import visible
    from edge_offload.errors import EdgeOffloadError
    from edge_offload_benchmarks.dispatched import MARK

    hidden = {visible.VARIABLE: "", visible.LOCAL_GPU: visible.HIDDEN}
    environment = {**os.environ, **hidden, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST_S, env=environment)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no words"])[-1][:300]
        raise EdgeOffloadError(f"exit code {done.returncode}: {last}", remedy=f"run {' '.join(command)}")
    observations: Observations = {}
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            one = json.loads(line[len(MARK) :])
            merged = observations.setdefault(one["entry"], {"operators": {}, "samples": 0, "failed": ""})
            merged["samples"] += one["samples"]
            merged["failed"] = merged["failed"] or one["failed"]
            for operator, parents in one["operators"].items():
                merged["operators"][operator] = sorted({*merged["operators"].get(operator, ()), *parents})
    return observations
