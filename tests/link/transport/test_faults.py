"""Faults: servers killed, links cut. What is pending fails at once, and the link heals by itself."""

import concurrent.futures
import threading
import time
from dataclasses import replace

import pytest

from edge_offload.errors import EdgeOffloadError, LinkLost
from edge_offload.link.transport.client import LinkState, Timings
from edge_offload_research.emulate.emulator import Emulator
from edge_offload_research.emulate.trace import BYTES_PER_MBIT, Link, Trace
from tests.link.conftest import PATIENT

pytestmark = pytest.mark.process

PATIENCE_S = 60.0


@pytest.fixture
def emulate():
    running = []

    def start(to, mbps=2000.0, rtt_s=0.0):
        link = Link.of("test", Trace.constant_trace(mbps * BYTES_PER_MBIT), rtt_s)
        running.append(Emulator("127.0.0.1:0", to, link).start())
        return running[-1]

    yield start
    for emulator in running:
        emulator.close()


def test_killed_server_fails_what_is_pending_and_a_new_one_is_connected(server_process, connect, until_state):
    server = server_process()
    greetings = []

    def hello():
        greetings.append(len(greetings))
        return {"n": len(greetings)}

    client = connect(server.address, hello=hello)
    client.wait_ready(PATIENCE_S)
    session = client.session
    pending = [client.request("ignore", timeout_s=3600) for _ in range(5)]
    server.kill()
    for future in pending:
        with pytest.raises(LinkLost):
            future.result(PATIENCE_S)
    until_state(client, LinkState.LOST)
    with pytest.raises(LinkLost, match="no connection"):
        client.request("echo", timeout_s=3600).result(0)
    server_process("--bind", server.address)
    until_state(client, LinkState.READY)
    assert client.request("echo", {"a": 1}).result(PATIENCE_S).body == {"a": 1}
    assert client.session == session, "the session outlives the connection: the server may resume it"
    assert greetings[-1] >= 1, "hello is made anew for every connection"


def test_every_future_completes_exactly_once_while_the_server_is_killed(server_process, connect, until_state):
    server = server_process()
    client = connect(server.address)
    client.wait_ready(PATIENCE_S)
    outcomes = []
    stop = threading.Event()

    def request_repeatedly():
        made = done = 0
        while not stop.is_set():
            calls, called = [], threading.Event()

            def count_call(future, calls=calls, called=called):
                calls.append(future)
                called.set()

            future = client.request("echo", {}, [bytes(100_000)], timeout_s=PATIENCE_S)
            future.add_done_callback(count_call)
            made += 1
            try:
                future.result(PATIENCE_S)
            except LinkLost:
                time.sleep(0.01)
            called.wait(PATIENCE_S)  # who waits for the result is woken before callbacks run
            done += len(calls)
        outcomes.append((made, done))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(request_repeatedly) for _ in range(4)]
        try:
            for _ in range(3):
                time.sleep(0.2)
                server.kill()
                server = server_process("--bind", server.address)
                until_state(client, LinkState.READY)
            time.sleep(0.2)
        finally:
            stop.set()
        for future in asking:
            future.result(PATIENCE_S)
    assert all(made == done for made, done in outcomes)
    assert not client.busy, "a request is still waited for"


def test_server_that_is_absent_at_start_is_connected_later(server_process, connect, until_state):
    address = server_process().address
    client = connect(address.replace(address.rsplit(":", 1)[1], "1"))
    with pytest.raises(LinkLost, match="edge-offload serve"):
        client.wait_ready(0.3)
    assert client.state in (LinkState.LOST, LinkState.CONNECTING)


@pytest.mark.parametrize("how", ["reset", "refuse", "blackhole", "half_open"])
def test_cut_link_is_noticed_and_heals(serve, connect, emulate, until, until_state, how, disconnects):
    listener = serve(bounds=replace(PATIENT, peer_timeout_s=1.0), on_gone=disconnects)
    emulator = emulate(listener.address)
    client = connect(emulator.address, timings=Timings())
    client.wait_ready(PATIENCE_S)
    pending = client.request("ignore", timeout_s=3600)
    emulator.cut(how)
    with pytest.raises(LinkLost):
        pending.result(PATIENCE_S)
    until(lambda: disconnects.reasons, "the server notices, too: the lease ends")
    if how != "reset":
        assert client.state is not LinkState.READY
        emulator.restore()
    until_state(client, LinkState.READY)
    assert client.request("echo", {"a": 1}).result(PATIENCE_S).body == {"a": 1}
    assert client.counters["connections"] >= 2


def test_an_idle_link_beats_rarely_and_one_that_waits_as_often_as_ever(serve, connect, emulate):
    emulator = emulate(serve().address)
    timings = Timings(connect_s=10.0, handshake_s=30.0, heartbeat_s=0.05, idle_s=3600.0, silence_s=0.3)
    client = connect(emulator.address, timings=timings)
    client.wait_ready(PATIENCE_S)
    client.request("echo", {}, timeout_s=PATIENCE_S).result(PATIENCE_S)
    time.sleep(0.3)  # the first heartbeats come quickly all the same
    emulator.cut("blackhole")
    time.sleep(1.0)
    assert client.state is LinkState.READY, "nothing was sent that could have been answered"
    with pytest.raises(LinkLost, match="nothing heard"):
        client.request("echo", {}, timeout_s=3600).result(PATIENCE_S)


def test_corrupted_bytes_never_become_a_reply(serve, connect, emulate, until, until_state):
    listener = serve()
    emulator = emulate(listener.address)
    client = connect(emulator.address)
    client.wait_ready(PATIENCE_S)
    emulator.corrupt(1)
    payload = bytes(range(256)) * 400
    with pytest.raises(LinkLost):
        client.request("echo", {}, [payload], timeout_s=PATIENCE_S).result(PATIENCE_S)
    until_state(client, LinkState.READY)
    assert bytes(client.request("echo", {}, [payload]).result(PATIENCE_S).buffers[0]) == payload


def test_what_is_resent_is_never_taken_twice(serve, connect, emulate, until_state):
    taken = []

    def handle(request):
        taken.append(request.body["number"])
        request.reply(request.body)

    emulator = emulate(serve(handle=handle).address)
    client = connect(emulator.address)
    for number in range(8):
        client.wait_ready(PATIENCE_S)
        emulator.replay(1)
        try:
            reply = client.request("echo", {"number": number}, timeout_s=PATIENCE_S).result(PATIENCE_S)
            assert reply.body == {"number": number}
        except LinkLost:
            until_state(client, LinkState.READY)
    assert client.request("echo", {"number": 8}, timeout_s=PATIENCE_S).result(PATIENCE_S).body == {"number": 8}
    assert len(set(taken)) == len(taken), "a message was taken twice"
    assert client.counters["connections"] > 1, "a repeated chunk breaks the connection"


def test_long_upload_is_no_sign_of_death(serve, connect, emulate):
    # 1.5 s of upload, in one message, with a patience of 0.8 s: the heartbeats wait behind it
    emulator = emulate(serve().address, mbps=16)
    client = connect(emulator.address, timings=Timings(silence_s=0.8, heartbeat_s=0.1))
    client.wait_ready(PATIENCE_S)
    reply = client.request("echo", {}, [bytes(3_000_000)], timeout_s=PATIENCE_S).result(PATIENCE_S)
    assert len(reply.buffers[0]) == 3_000_000
    assert client.counters["connections"] == 1


def test_link_that_dies_in_mid_upload_is_noticed(serve, connect, emulate):
    emulator = emulate(serve().address, mbps=8)
    client = connect(emulator.address, timings=Timings(silence_s=0.4, heartbeat_s=0.1))
    client.wait_ready(PATIENCE_S)
    future = client.request("echo", {}, [bytes(30_000_000)], timeout_s=3600)
    time.sleep(0.3)
    emulator.cut("blackhole")
    with pytest.raises(LinkLost, match="nothing heard"):
        future.result(PATIENCE_S)


def test_closing_fails_what_is_pending(serve, connect):
    client = connect(serve().address)
    client.wait_ready(PATIENCE_S)
    future = client.request("ignore", timeout_s=3600)
    client.close()
    with pytest.raises(LinkLost, match="closed"):
        future.result(0)
    assert client.state is LinkState.CLOSED
    with pytest.raises(LinkLost):
        client.request("echo").result(0)


def test_states_are_reported_in_order_with_causes(server_process, connect, until_state):
    states = []
    server = server_process()
    client = connect(server.address, on_state=lambda state, cause: states.append((state, cause)))
    client.wait_ready(PATIENCE_S)
    server.kill()
    until_state(client, LinkState.LOST)
    client.close()
    names = [state for state, _ in states]
    assert names[0] is LinkState.READY
    assert LinkState.LOST in names
    assert names[-1] is LinkState.CLOSED
    assert all(cause for _, cause in states)


def test_failing_callbacks_do_not_harm_the_link(serve, connect):
    def broken(*_):
        raise ValueError("a bug in the application")

    listener = serve(on_gone=broken)
    client = connect(listener.address, on_state=broken, on_notify=broken)
    client.wait_ready(PATIENCE_S)
    listener.notify(listener.peers()[0], "x")
    future = client.request("echo")
    future.add_done_callback(broken)
    assert future.result(PATIENCE_S).body == {}
    assert client.request("echo").result(PATIENCE_S).body == {}


def test_errors_are_ours(serve, connect):
    client = connect(serve().address)
    client.wait_ready(PATIENCE_S)
    with pytest.raises(EdgeOffloadError):
        client.request("fail").result(PATIENCE_S)
