"""A program in mode ``split`` ends with its own exit code, whatever runs in the background or is not there."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from edge_offload.native import libraries

pytestmark = pytest.mark.process

FOLDER = pathlib.Path(__file__).parent
needs_compiler = pytest.mark.skipif(
    not libraries.device_is_possible(), reason="no C++ compiler: the native device cannot be built"
)

COMPUTING = """
import sys, threading
import torch
from edge_offload import background
begun = threading.Event()
def work():
    while True:
        begun.set()
        torch.randn(1500, 1500) @ torch.randn(1500, 1500)
        background.check()
background.start("work", work)
begun.wait()
"""


@needs_compiler
def test_a_program_ends_whatever_is_under_way(killable_server, keys):
    for inferences, how, code in ((4, "exit", 3), (14, "raise", 1), (22, "end", 0)):
        command = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "split", "--slowdown", "4", "--server",
                   killable_server.address, "--keys", str(keys), "--", sys.executable, str(FOLDER / "ending_app.py"),
                   str(inferences), how]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
                              timeout=300, check=False)  # fmt: skip
        assert done.returncode == code, done.stderr
        assert "terminate" not in done.stderr
        assert done.stderr.count("Traceback") == (how == "raise"), done.stderr


@pytest.mark.parametrize(("last", "code"), [("", 0), ("sys.exit(5)", 5), ("raise KeyError", 1)])
def test_a_thread_that_is_inside_torch_does_not_take_the_process_with_it(last, code):
    command = [sys.executable, "-c", COMPUTING + last]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    assert "terminate" not in done.stderr


@needs_compiler
def test_a_program_without_its_server_says_why_it_computes_alone(keys):
    command = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "split", "--server", "tcp://127.0.0.1:1",
               "--keys", str(keys), "--", sys.executable, "-c", "import sys, torch; sys.stdin.read()"]  # fmt: skip
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stderr=pipe, text=True) as program:
        line = next((line for line in program.stderr if "alone" in line), "")
        program.stdin.close()
    assert "since tcp://127.0.0.1:1 is not connected: connection refused" in line
