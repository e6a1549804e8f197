"""Each result says what computed it, on the robot and on a server."""

from __future__ import annotations

import time

import pytest
import torch

from edge_offload.execute.engines import cache as engines_cache
from edge_offload.execute.engines.base import EAGER
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.mode import Mode
from edge_offload.models import cache as models_cache
from edge_offload.runtime.module import OffloadedModule
from edge_offload.server.server import OffloadServer
from tests.server.small_nets import slow

NET = "tests.server.small_nets:slow"
AT_ONCE = {"seconds": 0.0}


@pytest.mark.process
def test_an_answer_names_torch_until_an_engine_has_taken_over_and_then_the_engine(
    engine, tmp_path, monkeypatch
):
    # native libraries are where they always are; engines alone have a cache of the test's own
    for module in (models_cache, engines_cache):
        monkeypatch.setattr(module, "cache_dir", lambda: tmp_path)
    monkeypatch.delenv("EDGE_OFFLOAD_CACHE")
    keys, own = KeyStore(tmp_path / "server"), KeyStore(tmp_path / "robot")
    public = keys.new_pair("server").public
    keys.trust_client("robot", own.new_pair("client").public)
    with OffloadServer(keys=keys, device="cpu", threads=1, allow=[NET], engine=engine) as server:
        own.trust_server(server.address, public)
        assert server.engine.startswith(f"{engine} ")
        with Client(server.address, keys=own) as client:
            client.wait_ready(60.0)
            module = OffloadedModule(NET, slow(**AT_ONCE), client, options=AT_ONCE)
            ends, named = time.monotonic() + 60.0, []
            while EAGER in named[-1:] or not named:
                assert time.monotonic() < ends, named[-5:]
                _, report = module.run([torch.rand(3, 8)], Mode.SERVER)
                if report.mode is Mode.SERVER:
                    named.append(report.engine)
                else:
                    time.sleep(0.05)
            assert named[0] == EAGER
            assert named[-1].startswith(server.engine)
            _, report = module.run([torch.rand(3, 8)], Mode.LOCAL)
            assert report.engine == EAGER
