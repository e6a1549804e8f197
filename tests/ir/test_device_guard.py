"""A CUDA build of torch without a driver traces in one thread after the other."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

from edge_offload.ir import device_guard

TWO_TRACES = """
import threading, torch
from edge_offload.ir.build import from_module

def trace():
    print(len(from_module(torch.nn.ReLU(), [torch.ones(3)]).sequence.operators))

for _ in range(2):
    thread = threading.Thread(target=trace)
    thread.start()
    thread.join()
"""


@pytest.fixture
def fresh():
    """The state of a process that has not traced yet; afterwards, too."""
    device_guard.keep_device_guard.cache_clear()
    yield
    device_guard.keep_device_guard.cache_clear()


def test_the_thread_that_replaces_the_guard_stays(fresh, monkeypatch):
    threads = []
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(
        torch._C, "_ensureCUDADeviceGuardSet", lambda: threads.append(threading.current_thread()), raising=False
    )
    for _ in range(2):
        tracing = threading.Thread(target=device_guard.keep_device_guard)
        tracing.start()
        tracing.join()
    assert len(threads) == 1
    assert threads[0].is_alive()
    assert threads[0].daemon


@pytest.mark.process
@pytest.mark.skipif(
    torch.version.cuda is None or torch.cuda.is_available(), reason="needs a CUDA build of torch, and no driver"
)
def test_two_threads_trace_in_turn_without_a_driver():
    done = subprocess.run([sys.executable, "-c", TWO_TRACES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "1"]
