"""A cache of the test's own, one compute thread, and stand-ins for engines."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch
from torch import nn

from edge_offload import cache as user_cache
from edge_offload.execute.engines import cache as engines_cache
from edge_offload.execute.engines import table
from edge_offload.execute.engines.base import CLOSE, CPU, Built
from edge_offload.execute.threads import pin
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.server.server import OffloadServer
from edge_offload.server.settings import Compute, Models


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGE_OFFLOAD_CACHE", str(tmp_path))
    before = torch.get_num_threads()
    pin(threads=1)
    yield tmp_path / "engines"
    pin(threads=before)


@pytest.fixture(
    params=[
        one.name for one in table.BACKENDS if one.device == CPU and one.accuracy == CLOSE and isinstance(one, Built)
    ]
)
def engine(request):
    """The name of each real engine of class ``close`` on the CPU that is installed."""
    chosen = {one.name: one for one in table.list_engines()}[request.param]
    if not chosen.present:
        pytest.skip(f"{chosen.detail}; {chosen.remedy}")
    return request.param


class Doubling(nn.Module):
    """One weight, 2; ``factor`` is a plain attribute."""

    def __init__(self, weight: float = 2.0, factor: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * self.factor


class StandIn(Built):
    """A backend that doubles its input, whose faults the test chooses. It is no engine of anybody's."""

    name, distributions = "stand-in", ("numpy",)

    def __init__(self) -> None:
        self.factor = 2.0
        self.builds = 0
        self.may_build = threading.Event()
        self.may_build.set()
        self.may_run = threading.Event()
        self.may_run.set()
        self.fails = False

    def build(self, onnx: bytes, threads: int) -> bytes:
        assert self.may_build.wait(60)
        self.builds += 1
        return b"built" + onnx

    def load(self, built: bytes, threads: int):
        assert built.startswith(b"built")
        return self

    def run(self, inputs):
        assert self.may_run.wait(60)
        if self.fails:
            raise RuntimeError("the driver is gone")
        return [inputs[0] * self.factor]

    def close(self) -> None:
        pass


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Makes a server in this process, and its client, for a network of the tests and an engine."""
    # native libraries are where they always are; engines alone have a cache of the test's own
    for module in (user_cache, engines_cache):
        monkeypatch.setattr(module, "cache_dir", lambda: tmp_path)
    monkeypatch.delenv("EDGE_OFFLOAD_CACHE")
    keys, robot_keys = KeyStore(tmp_path / "server"), KeyStore(tmp_path / "robot")
    public = keys.new_pair("server").public
    keys.trust_client("robot", robot_keys.new_pair("client").public)
    with contextlib.ExitStack() as stack:

        def serve(engine: str, *allow: str) -> Client:
            compute = Compute("cpu", engine, 1)
            server = stack.enter_context(OffloadServer(keys=keys, compute=compute, models=Models(allow)))
            robot_keys.trust_server(server.address, public)
            client = stack.enter_context(Client(server.address, keys=robot_keys))
            client.wait_ready(60.0)
            client.server = server
            return client

        yield serve


@pytest.fixture
def stand_in(monkeypatch):
    pytest.importorskip("onnx", reason="networks are exported with the package onnx")
    made = StandIn()
    monkeypatch.setattr(table, "BACKENDS", (made,))
    return made
