"""The executor process of a program without a server: how it ended is told, and what it was running."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from edge_offload.device.remotes.executor import WorkerRemote
from edge_offload.execute.session.note import CrashNote
from edge_offload.native import libraries

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not libraries.device_is_possible(), reason="no C++ compiler, no virtual device"),
]
PROGRAM = """
import os, signal, torch
from edge_offload.device.installation import current_installation
x = torch.ones(3).cuda()
assert torch.sort(x)[0].tolist() == [1.0, 1.0, 1.0]
os.kill(current_installation().recorder.remote.process.pid, signal.SIGSEGV)
try:
    print((x * 2).tolist())
except RuntimeError as error:
    print(type(error).__name__, error)
"""


def test_one_that_crashes_names_the_operator() -> None:
    command = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "lazy", "--threads", "1", "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=200, check=True
    )
    assert re.match(r"LinkLost the executor process is gone.*, signal 11, while running edge::download", done.stdout)


def test_a_closed_one_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that frees tensors while Python ends would abort the program."""
    describe_end = CrashNote.describe_end

    def describe_slowly(note: CrashNote, process: Any) -> str:
        time.sleep(0.5)
        return describe_end(note, process)

    monkeypatch.setattr(CrashNote, "describe_end", describe_slowly)
    before = threading.enumerate()
    remote = WorkerRemote("cpu", 1)
    assert len(threading.enumerate()) > len(before)
    remote.process.kill()
    remote.close()
    assert set(threading.enumerate()) <= set(before)
