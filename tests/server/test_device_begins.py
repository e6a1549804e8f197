"""A program's executor starts when the program has connected, not at its first call."""

from __future__ import annotations

import os
import pathlib
import time

import pytest

from edge_offload.device.connect import Settings, connect
from edge_offload.link.security.keys import KeyStore
from edge_offload.server.server import OffloadServer
from edge_offload.server.settings import Compute

pytestmark = pytest.mark.process


def children() -> set:
    """Processes that this one has started."""
    return {
        int(number)
        for path in pathlib.Path(f"/proc/{os.getpid()}/task").glob("*/children")
        for number in path.read_text().split()
    }


def test_the_executor_is_there_before_the_first_call(tmp_path):
    with OffloadServer(keys=KeyStore(tmp_path), compute=Compute("cpu", threads=1)) as server:
        before, remote = children(), connect(Settings(server=server.address, keys=str(tmp_path), wait_s=60.0))
        try:
            end_s = time.monotonic() + 60.0
            while not children() - before and time.monotonic() < end_s:
                time.sleep(0.05)
            assert children() - before
            assert remote.messages == 0
        finally:
            remote.close()
