"""Engines against eager on the device, and buffers of pycuda in the context that torch uses."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from typing import Any, List

from edge_offload_benchmarks.gpu.processes import cli_command
from edge_offload_benchmarks.gpu.results import Phase

MODELS = ("kapao_vtest", "movenet", "mobilenet_v3_large")


def run(phase: Phase) -> None:
    """Record what engines are present, compare them, and run the tests that need hardware."""
    with phase.guard_errors("engines"):
        record_output(phase, "engines", cli_command("engines"), 40)
    with phase.guard_errors("eager+graph"):
        if phase.settings.cuda:
            check_engine(phase, "eager+graph")
    with phase.guard_errors("onnxruntime:cuda"):
        if phase.settings.cuda and has_onnx_cuda():
            check_engine(phase, "onnxruntime:cuda")
        else:
            phase.record("onnxruntime:cuda", skipped="no GPU, or no ONNX Runtime for CUDA")
    check_pycuda(phase)
    if phase.settings.cuda:
        with phase.guard_errors("tests on hardware"):
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-p",
                "no:cacheprovider",
                "-m",
                "gpu",
                "tests/execute/engines/test_on_hardware.py",
            ]
            record_output(phase, "tests on hardware", command, 60, NVIDIA_TF32_OVERRIDE="0")


def record_output(phase: Phase, name: str, command: List[str], most_s: float, **more: str) -> None:
    """Run a command, and record its last lines."""
    started_at = time.monotonic()
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=min(most_s, max(5.0, phase.remaining_s())),
        env={**os.environ, **more},
    )
    print(done.stdout, flush=True)
    phase.record(
        name, code=done.returncode, seconds=time.monotonic() - started_at, lines=done.stdout.splitlines()[-40:]
    )


def has_onnx_cuda() -> bool:
    """Return whether ONNX Runtime is installed with its CUDA provider."""
    try:
        import onnxruntime
    except ImportError:
        return False
    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def check_engine(phase: Phase, engine: str) -> None:
    """Compare an engine with eager torch (``edge-offload engines check``)."""
    path = phase.settings.folder / f"engine_{engine.replace(':', '_')}.json"
    command = cli_command(
        "engines", "check", *MODELS, "--frames", "20", "--seconds", "8", "--engine", engine, "--json", str(path)
    )
    record_output(phase, engine, command, 60)
    if path.exists():
        phase.record(f"{engine} results", document=json.loads(path.read_text(encoding="utf-8")))


def check_pycuda(phase: Phase) -> None:
    """Allocate, upload and download by pycuda and by torch in three threads at once."""
    if not phase.settings.cuda or importlib.util.find_spec("pycuda") is None:
        phase.record("pycuda", skipped="no GPU, or no pycuda")
        return
    import torch

    from edge_offload.execute.engines import buffers

    torch_buffer = torch.arange(1000, device="cuda")
    for library in ("pycuda", "torch"):
        with phase.guard_errors(f"buffers of {library}"):
            phase.record(f"{library} gpu", **buffers.gpu_facts(library))
            equal: List[bool] = []
            threads = [threading.Thread(target=use_buffers, args=(library, equal)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            phase.record(
                f"buffers of {library}", equal=f"{sum(equal)} of 60", torch_after=int((torch_buffer + 1).sum())
            )


def use_buffers(library: str, equal: List[bool]) -> None:
    """Send 20 tensors there and back, and compare."""
    import numpy as np
    import torch

    from edge_offload.execute.engines import buffers

    made: Any = buffers.make_buffers(library)
    with made.use_gpu():
        for name in ("a", "b"):
            made.allocate(name, (3, 640, 480), np.dtype(np.float32))
        for _ in range(20):
            x = torch.rand(3, 640, 480)
            made.upload("a", x)
            made.upload("b", x + 1)
            a, b = made.download_tensors(["a", "b"])
            equal.append(torch.equal(a.cpu(), x) and torch.equal(b.cpu(), x + 1))
    made.release()
