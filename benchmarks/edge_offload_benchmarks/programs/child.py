"""One program of the corpus in this process: ``python -m ….programs.child NAME DEVICE COUNT FILE``.

Prints one JSON line per inference: a digest of what came back, seconds, processor seconds of this process, and, on the
virtual device, round trips; FILE gets the results themselves. What a program says goes to standard error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import time
from typing import Any, Iterator

import torch

from edge_offload.ir.torchvision_package import torchvision_package
from edge_offload_benchmarks.programs.catalogue import catalogue


def main() -> int:
    """Run it."""
    name, device, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    print_line, kept = sys.stdout, []
    with contextlib.redirect_stdout(sys.stderr):
        torchvision_package()  # many import it, and fail where its wheel does not fit torch
        infer = catalogue()[name].make(device)
        for number in range(count):
            trips, began, busy = _trips(), time.perf_counter(), time.process_time()
            found = list(_tensors(infer(number)))
            line = {
                "digest": _digest(found),
                "seconds": time.perf_counter() - began,
                "busy_s": time.process_time() - busy,
                "trips": _trips() - trips,
            }
            print(json.dumps(line), file=print_line, flush=True)
            kept.append(found)
    torch.save(kept, sys.argv[4])
    return 0


def _tensors(found: Any) -> Iterator[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        yield found
    else:
        for item in found:
            yield from _tensors(item)


def _digest(found: Any) -> str:
    """Of dtype, sizes and bytes of all results."""
    digest = hashlib.sha256()
    for tensor in found:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


def _trips() -> int:
    module = sys.modules.get("edge_offload.device.installation")
    installed = module.installed() if module is not None else None
    return int(installed.recorder.counters.round_trips) if installed is not None else 0


if __name__ == "__main__":
    sys.exit(main())
