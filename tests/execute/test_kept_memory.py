"""A process that keeps what tensors give back takes the memory of one inference from the kernel only once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edge_offload.execute import heap

pytestmark = pytest.mark.process


CHILD = """
import resource, threading, torch
from edge_offload.execute.heap import retain_freed_memory

def use():
    for _ in range(5):
        torch.ones(80 << 20, dtype=torch.uint8)

def faults(in_a_thread):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    if in_a_thread:
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
    else:
        use()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
before = faults(False)
told = retain_freed_memory()
# it takes some rounds until blocks find their place
print(int(told), before, *(min(faults(where) for _ in range(10)) for where in (False, True)))
"""


def test_returned_memory_is_reused_without_page_faults() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=600, check=True)
    uses_jemalloc, before, *after = map(int, done.stdout.split())
    if not uses_jemalloc:
        pytest.skip("this C library's allocator cannot be told")
    assert before > 10_000, "80 MiB that are mapped anew are 20,480 pages"
    assert max(after) < before / 20, "in the main thread, and in others"


def test_an_executor_gets_jemalloc_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    inherited = {"PATH": "/bin", "EDGE_OFFLOAD_EXEC_MODE": "replay"}
    monkeypatch.setattr(heap, "find_jemalloc", lambda: None)
    assert heap.executor_environment(inherited) == {"PATH": "/bin"}
    monkeypatch.setattr(heap, "find_jemalloc", lambda: "/lib/libjemalloc.so.2")
    made = heap.executor_environment(inherited)
    assert (made["LD_PRELOAD"], made["PATH"]) == ("/lib/libjemalloc.so.2", "/bin")
    variables = {"LD_PRELOAD": "/mine.so", "MALLOC_CONF": "x"}
    assert heap.executor_environment(variables) == variables, "the user's choice stands"


def test_jemalloc_serves_the_executor() -> None:
    if heap.find_jemalloc() is None:
        pytest.skip("jemalloc is not installed: apt install libjemalloc2")
    code = "import torch; torch.ones(8 << 20); print('jemalloc' in open('/proc/self/maps').read())"
    made = heap.executor_environment({"PATH": "/usr/bin"})
    done = subprocess.run([sys.executable, "-c", code], env=made, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
    assert not done.stderr, "it complains of its options"
