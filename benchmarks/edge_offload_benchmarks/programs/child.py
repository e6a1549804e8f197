"""One program of the corpus in this process: ``python -m ….programs.child NAME DEVICE COUNT FILE``.

Prints one JSON line per inference: a digest of what came back, seconds, processor seconds of this process, and, on the
virtual device, round trips and processor seconds of learning; FILE gets the results themselves. Without COUNT and FILE
each line of standard input, ``{"number": N}``, asks for inference N. What a program says goes to standard error. With
``EDGE_OFFLOAD_BENCH_REFERENCE`` it is a reference on cuda: TF32 is off, cuDNN deterministic.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
import time
from typing import Any, Iterator

import torch

from edge_offload.ir.torchvision_package import torchvision_package
from edge_offload_benchmarks.programs.catalogue import load_catalogue

REFERENCE = "EDGE_OFFLOAD_BENCH_REFERENCE"
LEARNED = 7
"""Inference after which mode split gets :data:`PATIENCE_S` to have recorded what it has seen, and to have plans."""
PATIENCE_S = 30.0


def main() -> int:
    """Run it."""
    name, device = sys.argv[1:3]
    torch.set_num_threads(1)
    if os.environ.get(REFERENCE):
        from edge_offload.execute import devices
        from edge_offload_research.device.conformance.reference import set_reference_flags

        set_reference_flags(devices.pick_device("cuda"))
    out, results = sys.stdout, []
    with contextlib.redirect_stdout(sys.stderr):
        torchvision_package()  # many import it, and fail where its wheel does not fit torch
        infer = load_catalogue()[name].make(device)
        numbers = (json.loads(line)["number"] for line in sys.stdin)
        for number in range(int(sys.argv[3])) if len(sys.argv) > 3 else numbers:
            trips, learning_s, started_at, busy = (
                _count_trips(),
                _learning_s(),
                time.perf_counter(),
                time.process_time(),
            )
            tensors = list(_tensors(infer(number)))
            line = {
                "seconds": time.perf_counter() - started_at,
                "busy_s": time.process_time() - busy,
                "trips": _count_trips() - trips,
                "learning_s": _learning_s() - learning_s,
                "digest": _digest_of(tensors),
            }
            print(json.dumps(line), file=out, flush=True)
            if len(sys.argv) > 3:
                results.append(tensors)
                if number == LEARNED:
                    _wait_for_split()
    if len(sys.argv) > 3:
        torch.save(results, sys.argv[4])
    return 0


def _wait_for_split() -> None:
    installed = _current_device()
    strategy = getattr(getattr(installed, "recorder", None), "strategy", None)
    state = getattr(strategy, "state", None)
    until = time.monotonic() + PATIENCE_S
    while state is not None and time.monotonic() < until and re.search("being (recorded|opened)", state()):
        time.sleep(0.1)


def _tensors(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result
    else:
        for item in result:
            yield from _tensors(item)


def _digest_of(tensors: Any) -> str:
    """Return the digest of dtype, sizes and bytes of all results."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


def _count_trips() -> int:
    installed = _current_device()
    return int(installed.recorder.counters.round_trips) if installed is not None else 0


def _learning_s() -> float:
    installed = _current_device()
    return float(installed.recorder.learning_s) if installed is not None else 0.0


def _current_device() -> Any:
    module = sys.modules.get("edge_offload.device.installation")
    return module.current_installation() if module is not None else None


if __name__ == "__main__":
    sys.exit(main())
