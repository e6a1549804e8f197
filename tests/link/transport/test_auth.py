"""Who gets in: known keys only; whoever stays out learns why, if it may."""

import shlex
import threading

import pytest
import zmq

from edge_offload.errors import BadInput, LinkLost, Refused
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import LinkState

PATIENCE_S = 60.0


@pytest.fixture
def stranger(tmp_path, keys):
    """A robot with keys of its own that knows the server, but is not known there."""
    robot = KeyStore(tmp_path / "robot")
    robot.new_pair("client")

    def make_store(address):
        robot.trust_server(address, keys.ensure_pair("server").public)
        return robot

    return make_store


def test_same_user_on_loopback_needs_no_ceremony(serve, connect, keys):
    assert not keys.directory.exists()
    listener = serve()
    assert connect(listener.address, hello={"name": "r"}).wait_ready(PATIENCE_S) == {"you": {"name": "r"}}


def test_unknown_key_is_refused_with_the_remedy(serve, connect, stranger):
    listener = serve()
    robot = stranger(listener.address)
    client = connect(listener.address, keys=robot)
    with pytest.raises(Refused) as refusal:
        client.wait_ready(PATIENCE_S)
    assert "edge-offload keys trust" in refusal.value.remedy
    command = shlex.split(refusal.value.remedy)
    assert command[command.index("--") :] == ["--", "NAME", robot.pair("client").public], "a key may begin with a dash"
    assert client.state is LinkState.REFUSED
    with pytest.raises(LinkLost):
        client.request("echo").result(PATIENCE_S)
    assert listener.counters["refused: unknown key"] >= 1
    assert not listener.peers()


@pytest.mark.process
def test_allow_list_is_re_read_while_running(serve, connect, stranger, keys, until_state, disconnects, until):
    listener = serve(on_gone=disconnects)
    robot = stranger(listener.address)
    client = connect(listener.address, keys=robot)
    until_state(client, LinkState.REFUSED)
    keys.trust_client("robot1", robot.pair("client").public)
    until_state(client, LinkState.READY)
    assert [peer.name for peer in listener.peers()] == ["robot1"]
    keys.revoke_client("robot1")
    until_state(client, LinkState.REFUSED)
    until(lambda: disconnects.reasons, "the server notices")
    assert disconnects.reasons[0][0] == "robot1"


def test_broken_allow_list_keeps_the_last_good_one(serve, connect, keys, stranger):
    listener = serve()
    robot = stranger(listener.address)
    keys.trust_client("robot1", robot.pair("client").public)
    assert connect(listener.address, keys=robot).wait_ready(PATIENCE_S)
    (keys.directory / "clients.json").write_text("{half")
    assert connect(listener.address, keys=robot).wait_ready(PATIENCE_S)


@pytest.mark.process
def test_client_accepts_only_its_stored_server(serve, connect, stranger, tmp_path, keys, until):
    listener = serve()
    robot = stranger(listener.address)
    keys.trust_client("robot1", robot.pair("client").public)
    robot.trust_server(listener.address, KeyStore(tmp_path / "other").new_pair("server").public)
    client = connect(listener.address, keys=robot)
    until(lambda: client.state is LinkState.REFUSED, "the wrong server key is noticed")
    assert "key" in client.cause
    assert not listener.peers()


def test_without_a_key_nothing_gets_in(serve):
    handled = []
    listener = serve(handle=handled.append)
    context = zmq.Context()
    try:
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        monitor = socket.get_monitor_socket()
        socket.connect(listener.address)
        socket.send(b"hello?")
        seen = set()
        while not seen & {zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL}:
            assert monitor.poll(PATIENCE_S * 1e3), seen
            seen.add(int.from_bytes(monitor.recv_multipart()[0][:2], "little"))
        assert zmq.EVENT_HANDSHAKE_SUCCEEDED not in seen
    finally:
        context.destroy(linger=0)
    assert not handled
    assert not listener.peers()


def test_server_application_may_refuse_with_a_reason(serve, connect):
    def welcome(peer, hello):
        raise Refused("full: four robots are served", remedy="try again later")

    client = connect(serve(welcome=welcome).address)
    with pytest.raises(Refused, match="four robots") as refusal:
        client.wait_ready(PATIENCE_S)
    assert refusal.value.remedy == "try again later"


def test_failing_welcome_refuses_and_the_server_lives(serve, connect):
    greeted = threading.Event()

    def welcome(peer, hello):
        if not greeted.is_set():
            greeted.set()
            raise KeyError("a bug")
        return {"fine": True}

    client = connect(serve(welcome=welcome).address)
    greeted.wait(PATIENCE_S)
    with pytest.raises(Refused, match="KeyError"):
        client.wait_ready(PATIENCE_S)


@pytest.mark.process
def test_chosen_routing_id_is_cut(serve, raw_dealer, until, keys, connect):
    # it could be that of a robot that has just left, whose replies would go astray
    listener = serve()
    socket = raw_dealer(listener.address, routing_id=b"robot")
    socket.send(b"x")
    until(lambda: listener.counters["cut: routing id set by the peer"], "the connection is cut")
    socket.close()
    assert connect(listener.address).wait_ready(PATIENCE_S)


@pytest.mark.process
def test_a_robots_key_is_replaced_without_an_interruption_and_the_old_one_is_shut_out(tmp_path, serve, connect, until):
    server, robot = KeyStore(tmp_path / "server"), KeyStore(tmp_path / "robot")
    server.new_pair("server")
    old = robot.new_pair("client")
    server.trust_client("robot1", old.public)
    address = serve(keys=server).address
    robot.trust_server(address, server.pair("server").public)
    first = connect(address, keys=robot)
    first.wait_ready(60.0)
    coming = robot.next_pair("client")
    assert robot.next_pair("client") == coming, "asked twice, it is the same key"
    assert robot.pair("client").public == old.public
    server.trust_client("robot1", coming.public, also=True)
    assert robot.adopt_next("client") == robot.pair("client") == coming
    second = connect(address, keys=robot)
    second.wait_ready(60.0)
    assert first.state is LinkState.READY, "the connection with the old key lives on until it is shut out"
    server.trust_client("robot1", coming.public)
    until(lambda: first.state is not LinkState.READY, "the old key is shut out")
    assert second.request("echo", {"a": 1}).result(60.0).body == {"a": 1}


def test_nothing_to_rotate_is_reported(tmp_path):
    store = KeyStore(tmp_path / "keys")
    with pytest.raises(BadInput, match="keys new"):
        store.next_pair("client")
    store.new_pair("client")
    with pytest.raises(BadInput, match="keys rotate client"):
        store.adopt_next("client")
