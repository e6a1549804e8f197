"""What one robot may take of the link, whatever it asks for: the others still get in."""

import contextlib
import threading
import time
from dataclasses import replace

import pytest
import zmq

from edge_offload.errors import Refused
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.sockets.descriptors import Connection
from edge_offload.link.transport.client import Client
from tests.link.conftest import PATIENT

pytestmark = pytest.mark.process

PATIENCE_S = 60.0


@pytest.fixture
def robots(keys, tmp_path):
    """robots(name, address) -> the keys of a robot that the server trusts, and that knows the server."""

    def make(name, address):
        store = KeyStore(tmp_path / name)
        keys.trust_client(name, store.new_pair("client").public)
        store.trust_server(address, keys.pair("server").public)
        return store

    return make


def test_one_robot_does_not_take_all_connections(serve, robots, until):
    listener = serve(bounds=replace(PATIENT, connections_per_robot=3))
    greedy, other = (robots(name, listener.address) for name in ("greedy", "other"))
    with contextlib.ExitStack() as stack:
        connect = lambda own: stack.enter_context(Client(listener.address, keys=own))  # noqa: E731
        clients = [connect(greedy) for _ in range(3)]
        for client in clients:
            client.wait_ready(PATIENCE_S)
        # it must not go on trying: it would take the place that becomes free below
        with Client(listener.address, keys=greedy) as fourth, pytest.raises(Refused, match="this robot has 3 conn"):
            fourth.wait_ready(PATIENCE_S)
        connect(other).wait_ready(PATIENCE_S)
        clients[0].close()
        until(lambda: len(listener.peers()) <= 3, "the server notices that one has gone")
        connect(greedy).wait_ready(PATIENCE_S)


def test_silent_handshakes_are_bounded_per_robot(serve, robots, raw_dealer, until):
    listener = serve(bounds=replace(PATIENT, connections_per_robot=2))
    greedy, other = (robots(name, listener.address) for name in ("greedy", "other"))
    silent = [raw_dealer(listener.address, pair=greedy.pair("client")) for _ in range(30)]
    until(lambda: listener.counters["refused: too many of one key"] >= 5, "the server has enough of it")
    with Client(listener.address, keys=other) as client:
        client.wait_ready(PATIENCE_S)
        assert client.request("echo", {"a": 1}).result(PATIENCE_S).body == {"a": 1}
    assert not any(peer.poll(0, zmq.POLLIN) for peer in silent)


def test_a_quiet_robot_is_looked_at_seldom(serve, keys, monkeypatch):
    reads = 0
    counters = Connection.read_counters

    def counted(self):
        nonlocal reads
        reads += threading.current_thread().name == "edge_offload-gate"
        return counters(self)

    listener = serve()
    with Client(listener.address, keys=keys) as client:
        client.wait_ready(PATIENCE_S)
        client.request("echo", {}).result(PATIENCE_S)
        monkeypatch.setattr(Connection, "read_counters", counted)
        time.sleep(1.0)
        assert client.request("echo", {"a": 1}).result(PATIENCE_S).body == {"a": 1}
    assert 2 <= reads <= 40, "every 10 ms would be 100"
