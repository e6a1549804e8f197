"""Requests and replies over a real connection: every Future completes once, with the right thing."""

import concurrent.futures
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from edge_offload.errors import BadInput, LinkLost, ProtocolError, Refused, RemoteError
from edge_offload.link.transport import messages
from edge_offload.link.transport.client import LinkState
from edge_offload.link.transport.connection import Terms
from edge_offload.link.transport.gate import Gate
from edge_offload.link.transport.messages import Limits, Message, unpack_header
from tests.link.conftest import PATIENT

PATIENCE_S = 60.0


@pytest.fixture
def link(serve, connect):
    listener = serve()
    client = connect(listener.address)
    client.wait_ready(PATIENCE_S)
    return client, listener


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 480, 640), (1 << 20,)])
def test_tensors_return_bit_for_bit(link, shape):
    client, _ = link
    array = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)
    reply = client.request("echo", {"shape": list(shape)}, [array, b"tail"]).result(PATIENCE_S)
    assert reply.body == {"shape": list(shape)}
    assert np.array_equal(np.frombuffer(reply.buffers[0], np.uint8).reshape(shape), array)
    assert bytes(reply.buffers[1]) == b"tail"


def test_times_are_in_order_and_bytes_are_those_on_the_wire(link):
    client, _ = link
    array = np.zeros(200_000, np.uint8)
    transfer = client.request("echo", {}, [array]).result(PATIENCE_S).transfer
    assert transfer.queued_s <= transfer.sent_s <= transfer.received_s <= time.monotonic()
    assert transfer.server_received_s <= transfer.server_sent_s
    error = transfer.clock_error_s
    assert transfer.sent_s - error <= transfer.server_received_s
    assert transfer.server_sent_s <= transfer.received_s + error
    assert array.nbytes < transfer.bytes_up < array.nbytes + 300
    assert array.nbytes < transfer.bytes_down < array.nbytes + 300


def test_a_released_message_is_sent_while_its_sender_computes(link):
    client, _ = link
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(PATIENCE_S)  # whoever computes keeps the interpreter: the link's thread would wait for it
    try:
        future = client.request("echo", {}, [bytes(100_000)])
        client.let_go(PATIENCE_S)
        computed_s = time.monotonic()
    finally:
        sys.setswitchinterval(interval_s)
    assert future.result(PATIENCE_S).transfer.sent_s <= computed_s


def test_many_threads_get_matching_replies(link):
    client, _ = link

    def request_numbers(i):
        return [client.request("echo", {"i": [i, j]}).result(PATIENCE_S).body["i"] for j in range(50)]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for i, answers in enumerate(pool.map(request_numbers, range(8))):
            assert answers == [[i, j] for j in range(50)]


def test_replies_may_arrive_in_any_order(serve, connect):
    pending = []

    def handle(request):
        pending.append(request)
        if len(pending) == 3:
            for waiting in reversed(pending):
                waiting.reply({"n": waiting.body["n"]})

    client = connect(serve(handle=handle).address)
    client.wait_ready(PATIENCE_S)
    futures = [client.request("echo", {"n": n}) for n in range(3)]
    assert [future.result(PATIENCE_S).body["n"] for future in futures] == [0, 1, 2]


def test_handler_that_fails_fails_its_request_only(link):
    client, _ = link
    with pytest.raises(RemoteError, match="as asked"):
        client.request("fail").result(PATIENCE_S)
    assert client.request("echo", {"a": 1}).result(PATIENCE_S).body == {"a": 1}


def test_errors_of_the_server_preserve_their_kind(serve, connect):
    client = connect(serve(handle=lambda request: request.fail(Refused("no such model", remedy="use movenet"))).address)
    client.wait_ready(PATIENCE_S)
    with pytest.raises(Refused, match="use movenet"):
        client.request("open").result(PATIENCE_S)


def test_answering_twice_is_an_error_of_the_server(serve, connect):
    problems = []

    def handle(request):
        request.reply({"first": True})
        with pytest.raises(BadInput):
            request.reply({"second": True})
        problems.append("noticed")

    client = connect(serve(handle=handle).address)
    client.wait_ready(PATIENCE_S)
    assert client.request("echo").result(PATIENCE_S).body == {"first": True}
    assert client.request("echo").result(PATIENCE_S).body == {"first": True}
    assert problems


def test_reply_that_cannot_be_sent_is_reported_to_the_robot(serve, connect):
    def handle(request):
        with pytest.raises(BadInput):
            request.reply({"a": object()})

    client = connect(serve(handle=handle).address)
    client.wait_ready(PATIENCE_S)
    with pytest.raises(BadInput, match="cannot be sent"):
        client.request("echo").result(PATIENCE_S)


@pytest.mark.process
def test_no_answer_in_time_is_link_lost_and_the_late_one_is_dropped(serve, connect, until):
    pending = []
    client = connect(serve(handle=pending.append).address)
    client.wait_ready(PATIENCE_S)
    with pytest.raises(LinkLost, match="did not answer"):
        client.request("slow", timeout_s=0.05).result(PATIENCE_S)
    pending[0].reply({})
    until(lambda: client.counters["dropped: late"], "the late reply is counted")
    assert client.state is LinkState.READY


@pytest.mark.process
def test_cancelled_future_harms_nothing(serve, connect, until):
    pending = []
    client = connect(serve(handle=pending.append).address)
    client.wait_ready(PATIENCE_S)
    first, second = client.request("a"), client.request("b")
    assert first.cancel()
    until(lambda: len(pending) == 2, "both arrive")
    for request in pending:
        request.reply({"kind": request.kind})
    assert second.result(PATIENCE_S).body == {"kind": "b"}


def test_too_many_waiting_fails_at_once(serve, connect):
    client = connect(serve(handle=lambda request: None).address, max_pending=4)
    client.wait_ready(PATIENCE_S)
    waiting = [client.request("slow") for _ in range(4)]
    with pytest.raises(LinkLost, match="wait"):
        client.request("slow").result(0)
    client.close()
    for future in waiting:
        with pytest.raises(LinkLost):
            future.result(0)


def test_full_server_refuses_instead_of_queueing(serve, connect):
    listener = serve(handle=lambda request: None, bounds=replace(PATIENT, open_requests=2, open_bytes=1000))
    client = connect(listener.address)
    client.wait_ready(PATIENCE_S)
    client._status.terms = Terms()  # a client that does not keep to what it was told
    client.request("slow")
    with pytest.raises(Refused, match="full"):
        client.request("slow", {}, [b"x" * 2000]).result(PATIENCE_S)
    client.request("slow")
    with pytest.raises(Refused, match="full"):
        client.request("slow").result(PATIENCE_S)


def test_client_keeps_to_what_the_server_can_take(serve, connect):
    bounds, limits = replace(PATIENT, open_requests=2), Limits(max_message_bytes=10_000)
    listener = serve(handle=lambda request: None, bounds=bounds, limits=limits)
    client = connect(listener.address)
    client.wait_ready(PATIENCE_S)
    with pytest.raises(BadInput, match="in pieces"):
        client.request("slow", {}, [bytes(20_000)])
    first, second = client.request("slow", {}, [bytes(5000)]), client.request("slow")
    with pytest.raises(LinkLost, match="2 requests"):
        client.request("slow").result(0)
    assert not first.done()
    assert not second.done()
    assert not listener.counters["refused: full"]


def test_bursts_of_an_honest_robot_are_never_cut(serve, connect):
    listener = serve(limits=Limits(max_message_bytes=8 << 20))
    client = connect(listener.address)
    client.wait_ready(PATIENCE_S)
    chunk, sent, waiting = bytes(1 << 20), 0, []
    while sent < 60:
        future = client.request("echo", {}, [chunk], timeout_s=PATIENCE_S)
        if future.done() and future.exception():
            waiting.pop(0).result(PATIENCE_S)
        else:
            waiting.append(future)
            sent += 1
    for future in waiting:
        assert len(future.result(PATIENCE_S).buffers[0]) == 1 << 20
    assert client.counters["connections"] == 1


AT_EXIT = """
import atexit, zmq
import edge_offload.link.transport.connection
context = zmq.Context()
one, other = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
one.bind("inproc://x")
other.connect("inproc://x")
def send():
    one.send(bytes(64 << 10), copy=False)
    return len(other.recv())
atexit.register(lambda: (print(send() == 64 << 10), context.destroy(0)))
send()
"""


@pytest.mark.process
def test_what_a_program_still_sends_while_it_ends_is_sent():
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_too_large_is_reported_before_it_is_sent(serve, connect):
    client = connect(serve().address, limits=Limits(max_message_bytes=10_000, max_parts=3))
    client.wait_ready(PATIENCE_S)
    with pytest.raises(BadInput, match="in pieces"):
        client.request("echo", {}, [bytes(20_000)])
    with pytest.raises(BadInput, match="4 payload parts"):
        client.request("echo", {}, [b""] * 4)
    with pytest.raises(BadInput, match="name"):
        client.request("Echo!")


def test_server_may_speak_first(serve, connect):
    received = []
    happened = threading.Event()

    def on_notify(kind, body, buffers):
        received.append((kind, body, [bytes(view) for view in buffers]))
        happened.set()

    listener = serve()
    connect(listener.address, on_notify=on_notify).wait_ready(PATIENCE_S)
    listener.notify(listener.peers()[0], "status", {"load": 0.5}, [b"abc"])
    assert happened.wait(PATIENCE_S)
    assert received == [("status", {"load": 0.5}, [b"abc"])]


def test_notifications_arrive_before_the_request_that_follows(serve, connect):
    seen = []

    def handle(request):
        seen.append((request.kind, request.wants_reply, [bytes(view) for view in request.buffers]))
        request.reply({})

    client = connect(serve(handle=handle).address)
    client.wait_ready(PATIENCE_S)
    client.notify("upload", {}, [b"early"])
    client.request("run").result(PATIENCE_S)
    assert seen == [("upload", False, [b"early"]), ("run", True, [])]


def talk(socket, message):
    """Send one message by hand and return the answer."""
    socket.send(messages.pack_header(message))
    return unpack_header(socket.recv_multipart()[0])


def test_other_version_is_reported_with_both_versions(serve, raw_dealer):
    socket = raw_dealer(serve().address)
    socket.send(messages.pack_header(Message("hello", 5, 0, "", {"app": {}, "session": "s"}), version=99))
    answer = unpack_header(socket.recv_multipart()[0])
    assert answer.type == "refused"
    assert "version 99" in answer.body["cause"]
    assert f"version {messages.PROTOCOL_VERSION}" in answer.body["cause"]


def test_malformed_messages_are_counted_and_reported(serve, raw_dealer):
    listener = serve()
    socket = raw_dealer(listener.address)
    assert talk(socket, Message("request", 5, 1, "echo")).body["cause"] == "say hello first"
    assert talk(socket, Message("hello", 5, 0, "", {"app": {}, "session": "s"})).type == "welcome"
    assert talk(socket, Message("request", 6, 1, "echo")).type == "error", "a request of another epoch"
    assert talk(socket, Message("reply", 5, 1)).type == "error", "clients do not reply"
    socket.send(b"\xff\x00rubbish")
    assert messages.error_from(unpack_header(socket.recv_multipart()[0]).body).__class__ is ProtocolError
    assert listener.counters["malformed"] == 4
    assert talk(socket, Message("request", 5, 2, "echo", {"still": "served"})).body == {"still": "served"}


@pytest.mark.process
def test_peer_whose_connection_is_announced_late_stays(serve, raw_dealer, monkeypatch, until):
    """libzmq queues ACCEPTED after the connection works: on a busy machine messages can be delivered before it."""
    announced = threading.Event()
    read = Gate._read_events
    monkeypatch.setattr(Gate, "_read_events", lambda gate: read(gate) if announced.is_set() else None)
    reasons = []
    listener = serve(on_gone=lambda peer, reason: reasons.append(reason))
    socket = raw_dealer(listener.address)
    assert talk(socket, Message("hello", 5, 0, "", {"app": {}, "session": "s"})).type == "welcome"
    time.sleep(1.0)  # some sweeps
    assert talk(socket, Message("request", 5, 1, "echo", {"a": 1})).body == {"a": 1}
    announced.set()
    time.sleep(0.5)
    assert talk(socket, Message("request", 5, 2, "echo", {"a": 2})).body == {"a": 2}
    assert not reasons
    socket.close(0)
    until(lambda: reasons == ["disconnected"], "the peer is gone")


def test_message_of_too_many_parts_is_dropped_and_reported(serve, raw_dealer):
    socket = raw_dealer(serve(limits=Limits(max_parts=8)).address)
    assert talk(socket, Message("hello", 5, 0, "", {"app": {}, "session": "s"})).type == "welcome"
    socket.send_multipart([messages.pack_header(Message("request", 5, 1, "echo")), *[b"x"] * 50])
    assert "payload parts" in unpack_header(socket.recv_multipart()[0]).body["cause"]
    assert talk(socket, Message("request", 5, 2, "echo", {"a": 1})).body == {"a": 1}


@pytest.mark.process
def test_reply_of_an_earlier_epoch_never_completes_a_newer_request(serve, connect, until):
    listener = serve(handle=lambda request: None)
    client = connect(listener.address)
    client.wait_ready(PATIENCE_S)
    future = client.request("slow")
    until(lambda: listener.counters["request"], "the request arrives")
    peer = listener.peers()[0]
    forged = Message("reply", peer.epoch - 1, future_id(client), "", {"old": True}, (1.0,))
    listener._outgoing.post_message(peer, forged)
    until(lambda: client.counters["dropped: other epoch"], "the old reply is counted")
    assert not future.done()


def future_id(client):
    return next(iter(client._requests._unanswered))
