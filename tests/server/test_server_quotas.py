"""What one robot may hold on a server, over all of its connections: the others get theirs."""

import argparse
import contextlib
import signal

import pytest

from edge_offload.commands import serve
from edge_offload.errors import LinkLost, ProtocolError, Refused
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.peers import Peer
from edge_offload.server.quota import DeviceQuota
from edge_offload.server.server import OffloadServer
from edge_offload.server.services.device import service
from edge_offload.server.services.device.executor import ExecutorProcess
from edge_offload.server.services.device.service import DeviceService
from edge_offload.server.services.device.session import DeviceSession
from edge_offload.server.services.device.staging import ENTRY_BYTES, StagedBuffers, assemble_buffers
from edge_offload.server.services.replica.service import RobotQuota
from edge_offload.server.settings import Compute, Limits, Models
from tests.server.server_rig import TIMINGS

NET = "tests.server.small_nets:net"


@pytest.fixture
def two_robots(tmp_path):
    """A server, and a way to connect as one of two robots."""
    keys = KeyStore(tmp_path / "server")
    public = keys.new_pair("server").public
    with contextlib.ExitStack() as stack:
        quota = RobotQuota(max_open=3, max_models=2)
        server = stack.enter_context(
            OffloadServer(
                keys=keys, compute=Compute("cpu", threads=1), models=Models([NET]), limits=Limits(robot=quota)
            )
        )

        def connect(name):
            store = KeyStore(tmp_path / name)
            if store.pair("client") is None:
                keys.trust_client(name, store.new_pair("client").public)
                store.trust_server(server.address, public)
            client = stack.enter_context(Client(server.address, keys=store, timings=TIMINGS))
            client.wait_ready(60.0)
            return client

        connect.robots = server.robots
        yield connect


def open_model(client, seed):
    body = {"name": NET, "options": {"seed": seed}, "inputs": []}
    return client.request("open_model", body, timeout_s=60.0).result(61.0).body["handle"]


@pytest.fixture(autouse=True)
def any_input(monkeypatch):
    """Models are opened without inputs here; a first run would need some."""
    monkeypatch.setattr("edge_offload.server.services.replica.replicas.Replica.warm_up", lambda self, specs: 0.0)


def test_models_are_counted_over_all_connections_of_a_robot(two_robots):
    first, second, other = two_robots("greedy"), two_robots("greedy"), two_robots("other")
    assert sorted(two_robots.robots()) == ["greedy", "other"]
    handle = open_model(first, 1)
    open_model(second, 1)
    open_model(second, 2)
    with pytest.raises(Refused, match="3 models open"):
        open_model(first, 1)
    open_model(other, 1)
    first.request("close_model", {"handle": handle}, timeout_s=60.0).result(61.0)
    with pytest.raises(Refused, match="2 different models open"):
        open_model(first, 3)
    open_model(first, 2)
    open_model(other, 3)


class Idle:
    """Stands for a session, whose executor process takes seconds to start."""

    def __init__(self, peer, *_):
        self.end_reason, self.detached_s = "", None

    def attach_peer(self, peer):
        self.detached_s = None

    def run_message(self, request):
        self.end_reason = "it crashed" if request.body.get("crash") else ""

    def close(self, reason):
        self.end_reason = reason


class Request:
    kind = "device.run"

    def __init__(self, peer, number, **body):
        self.peer, self.body = peer, {"session": bytes([number]) * 16, **body}


def test_devices_are_counted_per_robot_and_those_that_ended_make_room(monkeypatch, tmp_path):
    monkeypatch.setattr(service, "DeviceSession", Idle)
    devices = DeviceService(quota=DeviceQuota(sessions=3, sessions_per_robot=2))
    greedy, other = Peer("greedy", "G"), Peer("other", "O")
    try:
        run = devices.handlers["device.run"]
        run(Request(greedy, 1))
        run(Request(greedy, 2))
        with pytest.raises(Refused, match=r"2 programs of this robot .*; .*--devices-per-robot"):
            run(Request(greedy, 3))
        run(Request(other, 1))
        with pytest.raises(Refused, match=r"3 programs have a device.*; .*--max-devices"):
            run(Request(other, 2))
        run(Request(greedy, 2, crash=True))
        run(Request(greedy, 3))
        assert len(devices._sessions) == 3
    finally:
        devices.close()


def test_how_many_programs_one_robot_may_have_is_an_option(monkeypatch):
    class Made(Exception):
        """With these quotas."""

    def make(*_, limits, **__):
        raise Made(limits.devices.sessions, limits.devices.sessions_per_robot)

    monkeypatch.setattr("edge_offload.server.server.OffloadServer", make)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    for options, quotas in (([], (8, 4)), (["--max-devices", "20", "--devices-per-robot", "16"], (20, 16))):
        with pytest.raises(Made) as made:
            serve.run(parser.parse_args(options))
        assert made.value.args == quotas


def test_what_goes_ahead_of_its_message_is_bounded_even_if_it_is_empty(monkeypatch):
    monkeypatch.setattr(DeviceSession, "_feed_executor", lambda self: None)
    session = DeviceSession(Peer("r", "K"), ExecutorProcess(()), DeviceQuota(staged_bytes=1 << 20), store=None)

    class Stage:
        buffers = ()

        def __init__(self, number, total):
            self.body = {"number": number, "index": 0, "offset": 0, "total": total}

        def reply(self, body):
            pass

    with pytest.raises(ProtocolError, match="too many bytes"):
        session.stage_piece(Stage(1, 1 << 40))
    room = (1 << 20) // ENTRY_BYTES
    for number in range(1, room + 1):
        session.stage_piece(Stage(number, 0))
    with pytest.raises(ProtocolError, match="too many bytes"):
        session.stage_piece(Stage(room + 1, 0))


class Inputs:
    """A request with the inputs of an inference, ahead of its message."""

    def __init__(self, number, *buffers):
        self.body, self.buffers = {"number": number}, buffers

    def reply(self, body):
        pass


class Referring:
    """A message that refers to the first buffer of the inputs ``ahead_number``."""

    buffers, kind = (), "device.run"

    def __init__(self, number, ahead_number, nbytes, position=0):
        self.body = {"number": number, "answered": 0, "ahead_number": ahead_number, "parts": [[nbytes, position]]}


def test_inputs_ahead_replace_those_that_no_message_refers_to_and_are_bounded(monkeypatch):
    monkeypatch.setattr(DeviceSession, "_feed_executor", lambda self: None)
    session = DeviceSession(Peer("r", "K"), ExecutorProcess(()), DeviceQuota(staged_bytes=1 << 20), store=None)
    for number in range(20):
        session.stage_inputs(Inputs(number, bytes(1 << 19)))
    with pytest.raises(ProtocolError, match="too many bytes"):
        session.stage_inputs(Inputs(20, bytes(1 << 19), bytes(1 << 19)))
    with pytest.raises(ProtocolError, match="did not arrive"):
        session.run_message(Referring(1, 19, 1 << 19))
    session.stage_inputs(Inputs(21, bytes(1 << 19)))
    session.run_message(Referring(1, 21, 1 << 19))
    with pytest.raises(ProtocolError, match="too many bytes"):
        session.stage_inputs(Inputs(22, bytes(1 << 19)))  # the message has not been forwarded


@pytest.mark.parametrize(("number", "nbytes", "position"), [(1, 7, 0), (1, 8, 1), (1, 8, -1), (1, 8, 1 << 70)])
def test_a_message_that_refers_to_other_inputs_is_refused(number, nbytes, position):
    staged = StagedBuffers(1 << 20)
    staged.add_inputs(1, [bytearray(8)])
    staged.assign_inputs(1, number)
    with pytest.raises(ProtocolError):
        assemble_buffers([[nbytes, position]], [], staged.take_staged(number))


class Executor:
    """Answers each message with so many bytes."""

    def __init__(self, sizes):
        self.answers = iter(enumerate(sizes, 1))

    def receive(self):
        for number, size in self.answers:
            return {"id": number, "coded": []}, [bytes(size)]
        raise LinkLost("no more")


def test_unacknowledged_answers_are_stored_in_bounds(monkeypatch):
    monkeypatch.setattr(DeviceSession, "_feed_executor", lambda self: None)
    monkeypatch.setattr(DeviceSession, "_end_session", lambda self, reason: None)
    monkeypatch.setattr("edge_offload.server.services.device.answers.MAX_ANSWER_BYTES", 1 << 20)
    session = DeviceSession(Peer("r", "K"), ExecutorProcess(()), DeviceQuota(), store=None)
    numbers = []

    class Run:
        buffers = ()
        kind = "device.run"

        def __init__(self, number):
            self.body = {"number": number, "answered": 0}

        def reply(self, body, buffers=()):
            numbers.append(self.body["number"])

    sizes = [400_000, 400_000, 400_000, 5_000_000]
    for number in range(1, len(sizes) + 1):
        session.run_message(Run(number))
    session._send_answers(Executor(sizes[:3]))
    session.run_message(Run(3))
    session.run_message(Run(2))
    with pytest.raises(ProtocolError, match="message 1 was answered"):
        session.run_message(Run(1))
    assert numbers == [1, 2, 3, 3, 2]
    executor = Executor(sizes)
    for _ in range(3):
        executor.receive()
    session._send_answers(executor)
    session.run_message(Run(4))  # the latest, however large
    assert numbers[-1] == 4
    with pytest.raises(ProtocolError, match="message 3 was answered"):
        session.run_message(Run(3))
