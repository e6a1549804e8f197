"""What an authenticated robot with bad intentions can do to the server's memory: not much."""

import contextlib
import socket as plain_socket
import time

import pytest
import zmq

from edge_offload.link.security.keys import split_address
from edge_offload.link.transport import messages
from edge_offload.link.transport.client import LinkState
from edge_offload.link.transport.messages import Message, unpack_header

pytestmark = pytest.mark.process

PATIENCE_S = 60.0
MIB = 1 << 20


def hello(socket, epoch=5):
    socket.send(messages.pack_header(Message("hello", epoch, 0, "", {"app": {}, "session": "s"})))
    assert unpack_header(socket.recv_multipart()[0]).type == "welcome"


def count_requests(client):
    """Requests that the honest client has made."""
    return client.counters["asked"]


def counters(client):
    client.counters["asked"] += 1
    return client.request("counters", timeout_s=PATIENCE_S).result(PATIENCE_S).body["counters"]


def test_endless_multipart_does_not_fill_the_memory(server_process, connect, raw_dealer, until):
    server = server_process("--max-message-mib", 64)
    client = connect(server.address)
    client.wait_ready(PATIENCE_S)
    hostile = raw_dealer(server.address)
    hello(hostile)
    before = peak = server.resident_bytes()
    flood(hostile, 1500)
    answered = 0
    deadline = time.monotonic() + PATIENCE_S
    while "cut: message over the size limit" not in counters(client):
        answered += 1
        peak = max(peak, server.resident_bytes())
        assert time.monotonic() < deadline, "the connection was not cut"
    peak = max(peak, server.resident_bytes())
    # 1.5 GB were offered; allowed is the largest message, slack, and what a tick of the gate lets through
    print(f"the server grew by {(peak - before) / MIB:.0f} MiB and answered {answered} requests meanwhile")
    assert peak - before < 3 * 64 * MIB, f"grew by {(peak - before) / MIB:.0f} MiB"
    assert client.state is LinkState.READY
    assert client.counters["connections"] == 1, "other robots must not notice"


def flood(socket, parts):
    """One message of so many parts of 1 MiB, without holding it in this process."""
    part = bytes(MIB)
    for _ in range(parts):
        socket.send(part, zmq.SNDMORE, copy=False)
    socket.send(part, copy=False)


def test_honest_traffic_of_any_size_is_never_cut(server_process, connect):
    # the gate's account must not drift: bytes of many thousand messages of every framing size, through a small bound
    server = server_process("--max-message-mib", 1)
    client = connect(server.address)
    client.wait_ready(PATIENCE_S)
    body = bytes(900_000)
    for size in (0, 1, 200, 222, 223, 300, 5000):
        for _ in range(40):
            client.request("echo", {}, [body[:size]] * 8, timeout_s=PATIENCE_S).result(PATIENCE_S)
    for _ in range(60):
        client.notify("ignore", {}, [body])
        client.request("echo", {}, [body], timeout_s=PATIENCE_S).result(PATIENCE_S)
    assert client.counters["connections"] == 1
    assert not [reason for reason in counters(client) if reason.startswith("cut")]


def test_bytes_before_hello_are_bounded_tighter(server_process, connect, raw_dealer, until):
    server = server_process()
    client = connect(server.address)
    client.wait_ready(PATIENCE_S)
    hostile = raw_dealer(server.address)
    flood(hostile, 64)
    until(lambda: "cut: too many bytes before hello" in counters(client), "it is cut")
    assert client.counters["connections"] == 1, "who said hello is not cut with it"


def test_connections_are_bounded_and_silent_ones_are_closed(server_process, connect, until):
    server = server_process("--max-connections", 8, "--hello-timeout-s", 0.5)
    client = connect(server.address)
    client.wait_ready(PATIENCE_S)
    idle = [plain_socket.create_connection(split_address(server.address)) for _ in range(30)]
    try:
        until(lambda: counters(client).get("cut: too many connections", 0) >= 20, "the surplus is cut")
        for sock in idle:
            sock.settimeout(PATIENCE_S)
            try:
                while sock.recv(4096):  # a greeting, then the end
                    pass
            except ConnectionResetError:
                pass
    finally:
        for sock in idle:
            sock.close()
    assert client.counters["connections"] == 1


def test_robot_that_reads_no_replies_is_cut(server_process, connect, raw_dealer, until):
    server = server_process("--max-message-mib", 2)
    client = connect(server.address)
    client.wait_ready(PATIENCE_S)
    hostile = raw_dealer(server.address)
    hello(hostile)
    hostile.rcvhwm = 1
    before = server.resident_bytes()
    body = bytes(MIB)
    hostile.sndtimeo = 50
    sent = 0
    deadline = time.monotonic() + PATIENCE_S
    while True:
        seen = counters(client)
        if "cut: does not read its replies" in seen:
            break
        assert time.monotonic() < deadline, f"never cut ({sent} requests): {seen}"
        if seen["request"] - count_requests(client) < sent:
            continue  # not too fast: that is another offence
        sent += 1
        with contextlib.suppress(zmq.Again):
            hostile.send_multipart([messages.pack_header(Message("request", 5, sent, "echo")), body])
    assert server.resident_bytes() - before < 64 * MIB


@pytest.mark.parametrize("how", ["one part", "header"])
def test_one_oversized_part_ends_the_connection_only(server_process, connect, raw_dealer, until, how):
    server = server_process("--max-message-mib", 1)
    client = connect(server.address)
    client.wait_ready(PATIENCE_S)
    hostile = raw_dealer(server.address)
    hello(hostile)
    before = server.resident_bytes()
    if how == "one part":
        hostile.send(bytes(64 * MIB))
    else:
        hostile.send(bytes(MIB - 100))
        assert unpack_header(hostile.recv_multipart()[0]).type == "error"
    client.request("echo", timeout_s=PATIENCE_S).result(PATIENCE_S)
    assert server.resident_bytes() - before < 30 * MIB


def test_account_of_bytes_is_exact(serve, connect, until):
    # what is received beyond what is delivered is the handshake, and never grows: no drift can ever cut an honest robot
    listener = serve()
    client = connect(listener.address)
    client.wait_ready(PATIENCE_S)

    def beyond():
        (door,) = listener._gate._doors.values()
        return door.tcp.read_counters().received - listener._gate._entrants[door.user].delivered

    until(lambda: len(client.clock.warning) == 0 and client.clock.rtt_s > 0, "a few pings have passed")
    client.request("echo").result(PATIENCE_S)
    before = min(beyond() for _ in range(100))  # a ping may be on its way now and then
    assert 0 < before < 1000
    for size in (0, 1, 32, 33, 200, 221, 222, 223, 300, 5000, 300_000):
        for _ in range(20):
            client.request("echo", {}, [bytes(size)] * 9, timeout_s=PATIENCE_S).result(PATIENCE_S)
    until(lambda: beyond() == before, f"the account is level again ({beyond()}, it was {before})")
