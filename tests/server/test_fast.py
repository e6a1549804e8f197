"""``serve --compute fast``: a server that ends while it compiles."""

from __future__ import annotations

import os
import shutil

import psutil
import pytest
import torch

from edge_offload.mode import Mode
from tests.server.server_rig import until

pytestmark = [pytest.mark.process, pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ for TorchInductor")]


def test_a_server_that_ends_while_it_compiles_leaves_no_compiler_behind(
    killable_server, robot, tmp_path, monkeypatch
) -> None:
    # TorchInductor starts g++, which never ends here; our own libraries are built by c++
    compiler, started = tmp_path / "g++", tmp_path / "started"
    compiler.write_text(f"#!/bin/sh\nsleep 120 &\necho $$ $! > {started}.part\nmv {started}.part {started}\nwait\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    server = killable_server(extra=["--compute", "fast", "--allow", "tests.server.small_nets:dense"])
    asking, frame = robot(server.address, "dense"), [torch.rand(1, 3, 32, 32)]
    asking.wait_open(frame)
    asking.run(frame, Mode.SERVER)
    until(started.exists, 60)
    compilers = [psutil.Process(int(pid)) for pid in started.read_text().split()]
    server.process.terminate()
    server.process.wait(60)
    assert not [each for each in compilers if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
