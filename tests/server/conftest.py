"""Fixtures: a shared server process, servers that a test may kill, robots, one compute thread."""

from __future__ import annotations

import signal
from typing import Any, List, Optional, Sequence

import pytest
import torch

from edge_offload.execute.threads import pin
from edge_offload_benchmarks.ports import lasting_port
from tests.server.server_rig import Robot, ServerProcess


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    pin(threads=1)
    yield
    pin(threads=before)


@pytest.fixture(scope="session")
def keys(tmp_path_factory):
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="session")
def server(keys):
    process = ServerProcess(keys)
    yield process
    assert process.stop() == 0, "the server must end cleanly on SIGTERM"


@pytest.fixture
def killable_server(keys):
    """Servers that a test may kill: ``killable_server(bind=…, extra=[…])``."""
    started: List[ServerProcess] = []

    def start(bind: str = "", extra: Sequence[str] = ()) -> ServerProcess:
        started.append(ServerProcess(keys, bind or f"tcp://127.0.0.1:{lasting_port()}", extra))
        return started[-1]

    yield start
    for process in started:
        process.stop(signal.SIGKILL)


@pytest.fixture
def robot(keys):
    """Robots: ``robot(address, "net", seed=3)``; closed at the end."""
    made: List[Robot] = []

    def make(address: str, factory: str, example: Optional[Sequence[torch.Tensor]] = None, **options: Any) -> Robot:
        made.append(Robot(address, keys, factory, example, **options))
        return made[-1]

    yield make
    for item in made:
        item.client.close()
