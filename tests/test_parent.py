"""Processes that end with the one that began them."""

from __future__ import annotations

import subprocess
import sys
import threading

import psutil
import pytest

from edge_offload.parent import with_parent

STARTER = (
    "import subprocess, sys, time; from edge_offload.parent import with_parent; "
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], preexec_fn=with_parent()); "
    "print(child.pid, flush=True); time.sleep(600)"
)


@pytest.mark.process
def test_a_child_ends_when_its_parent_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    _, alive = psutil.wait_procs([child], timeout=30)
    for each in alive:
        each.kill()
    assert not alive


@pytest.mark.unit
def test_a_child_of_another_thread_is_not_bound_to_its_parent():
    prepared = []
    thread = threading.Thread(target=lambda: prepared.append(with_parent()))
    thread.start()
    thread.join()
    assert prepared == [None]
