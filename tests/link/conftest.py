"""Two ends of a link on loopback, each with its own keys; the server in this process or in one of its own."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest
import zmq

from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client, LinkState, Timings
from edge_offload.link.transport.gate import Bounds
from edge_offload.link.transport.listener import Listener

FOLDER = pathlib.Path(__file__).parent
PATIENCE_S = 60.0  # for what should take milliseconds; the machine may be busy
# for tests of anything but patience: a machine that stalls for a second breaks no connection
UNHURRIED = Timings(connect_s=10.0, handshake_s=30.0, silence_s=30.0)
PATIENT = Bounds(peer_timeout_s=60.0, hello_timeout_s=60.0)


@pytest.fixture
def keys(tmp_path):
    return KeyStore(tmp_path / "keys")


def echo(request):
    if request.kind == "fail":
        raise ValueError("as asked")
    if request.kind != "ignore":
        request.reply(request.body, request.buffers)


class Disconnects:
    """Collects (peer, reason) of lost peers."""

    def __init__(self):
        self.reasons = []
        self.happened = threading.Event()

    def __call__(self, peer, reason):
        self.reasons.append((peer.name, reason))
        self.happened.set()


@pytest.fixture
def serve(keys):
    """serve(**options) -> a started Listener that echoes; silent peers keep their place for long."""
    with contextlib.ExitStack() as stack:

        def start(**options):
            arguments = {"welcome": lambda peer, hello: {"you": hello}, "handle": echo, "keys": keys,
                         "bounds": PATIENT, **options}  # fmt: skip
            return stack.enter_context(Listener(arguments.pop("bind", "tcp://127.0.0.1:0"), **arguments))

        yield start


class PatientClient(Client):
    """Waits for its answers as long as the tests do."""

    def request(self, kind, body=None, buffers=(), timeout_s=PATIENCE_S, **more):
        return super().request(kind, body, buffers, timeout_s, **more)


@pytest.fixture
def connect(keys):
    """connect(address, **options) -> a started Client, patient unless ``timings`` says otherwise."""
    with contextlib.ExitStack() as stack:

        def start(address, **options):
            return stack.enter_context(PatientClient(address, **{"keys": keys, "timings": UNHURRIED, **options}))

        yield start


@pytest.fixture
def raw_dealer(keys):
    """raw_dealer(address, ...) -> an authenticated DEALER that sends what it likes."""
    context = zmq.Context()

    def dial(address, pair=None, server_public=None, routing_id=None):
        pair = pair or keys.ensure_pair("client")
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.curve_serverkey = (server_public or keys.ensure_pair("server").public).encode()
        socket.curve_publickey, socket.curve_secretkey = pair.public.encode(), pair.secret.encode()
        socket.rcvtimeo = int(PATIENCE_S * 1e3)
        if routing_id is not None:
            socket.routing_id = routing_id
        socket.connect(address)
        return socket

    yield dial
    context.destroy(linger=0)


class ServerProcess:
    """echo_server.py in a process of its own."""

    def __init__(self, keys, *options, prefix=()):
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(FOLDER / "echo_server.py"), *map(str, options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "EDGE_OFFLOAD_KEYS": str(keys.directory)},
            text=True,
        )
        line = self.process.stdout.readline()
        assert line, "the server process did not start"
        self.address = json.loads(line)["address"]

    def resident_bytes(self):
        pages = pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@pytest.fixture
def server_process(keys):
    started = []

    def start(*options, prefix=()):
        started.append(ServerProcess(keys, *options, prefix=prefix))
        return started[-1]

    yield start
    for server in started:
        server.close()


def until(condition, what):
    """Wait for ``condition()``; fails with ``what`` when it does not come true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.005)


def until_state(client, state):
    until(lambda: client.state is state, f"state {state} (it is {client.state}: {client.cause})")


@pytest.fixture(name="until")
def until_fixture():
    return until


@pytest.fixture(name="until_state")
def until_state_fixture():
    return until_state


@pytest.fixture
def disconnects():
    return Disconnects()


@pytest.fixture
def states():
    return LinkState
