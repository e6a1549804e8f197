"""A real server process, and robots that split a small network with it."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
import torch

from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client, Timings
from edge_offload.manager.lateness import TimeoutLimits
from edge_offload.mode import Mode
from edge_offload.runtime.module import OffloadedModule
from tests.modes.split import split_nets
from tests.modes.split.waiting import until
from tests.on_device import DEVICE, LAUNCHER


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Server:
    """``edge-offload serve`` in a process of its own."""

    def __init__(self, keys):
        path = os.pathsep.join([str(pathlib.Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
        command = [*LAUNCHER, sys.executable, "-m", "edge_offload.cli", "serve", "--bind", "tcp://127.0.0.1:0",
                   "--threads", "1", "--device", DEVICE, "--keys", str(keys),
                   "--weights-cache", str(pathlib.Path(keys) / "blobs"),
                   "--allow", f"{NETS}:pictures", "--allow", f"{NETS}:listed"]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
        )
        line = self.process.stdout.readline()
        assert line.startswith("listening on "), line
        self.address = line.split()[2]

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(120)


@pytest.fixture(scope="session")
def keys(tmp_path_factory):
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="session")
def server(keys):
    process = Server(keys)
    yield process
    assert process.stop() == 0


@pytest.fixture
def killable_server(keys):
    process = Server(keys)
    yield process
    process.stop(signal.SIGKILL)


UNHURRIED = TimeoutLimits(floor_s=30.0, cap_s=60.0, first_s=60.0)
"""For tests of anything but patience: a machine that stalls for a second must not turn a frame local, ..."""
NETS = split_nets.__name__
TIMINGS = Timings(connect_s=10.0, handshake_s=30.0, silence_s=30.0)
"""... nor break the connection."""


class Robot:
    def __init__(self, address, keys, factory="pictures", **options):
        self.client = Client(address, keys=KeyStore(keys), timings=TIMINGS)
        self.module = getattr(split_nets, factory)(**options).eval()
        self.offloaded = OffloadedModule(f"{NETS}:{factory}", self.module, self.client, options=options,
                                         hedging=False, patience=UNHURRIED, device=DEVICE)  # fmt: skip
        self.client.start()
        self.client.wait_ready(60.0)

    @property
    def runner(self):
        return self.offloaded.runners.by_mode[Mode.SPLIT]

    def open(self, image, timeout_s=400.0):
        until(lambda: self.offloaded.unavailable_reason(Mode.SPLIT, [image]) is None, timeout_s,
              lambda: str(self.offloaded.state()))  # fmt: skip
        return self.runner.planned([image])


@pytest.fixture(scope="module")
def bot(server, keys):
    """One robot with an open split of ``pictures``, for tests that harm nothing."""
    made = Robot(server.address, keys)
    made.open(torch.zeros(3, 48, 64, dtype=torch.uint8))
    yield made
    made.client.close()
    made.offloaded.close()


@pytest.fixture
def robot(keys):
    made = []

    def make(address, factory="pictures", **options):
        made.append(Robot(address, keys, factory, **options))
        return made[-1]

    yield make
    for item in made:
        item.client.close()
        item.offloaded.close()


@pytest.fixture(scope="session")
def outputs_of(server, keys):
    """told_by(script) -> what a program under ``exec --mode split`` printed, a line of JSON each, by situation."""

    def run(script):
        program = [sys.executable, str(pathlib.Path(__file__).with_name(script))]
        command = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "split", "--server", server.address,
                   "--keys", str(keys), "--", *program]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment)
        assert done.returncode == 0
        return {item["situation"]: item for item in map(json.loads, done.stdout.splitlines())}

    return run
