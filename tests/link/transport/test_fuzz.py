"""Rubbish on the wire, from those who have a key and those who have none: nothing dies, everybody else is served."""

import random
import socket as plain_socket

import msgpack
import pytest
import zmq

from edge_offload.link.security.keys import split_address
from edge_offload.link.transport import messages
from edge_offload.link.transport.client import LinkState
from edge_offload.link.transport.messages import Message

pytestmark = pytest.mark.process

PATIENCE_S = 60.0
AUTHENTICATED = 10_000
CONNECTIONS = 300


def noise(rng, size):
    """Random bytes (random.randbytes came with Python 3.9)."""
    return bytes(rng.getrandbits(8) for _ in range(size))


def value(rng, depth=0):
    """A random msgpack value."""
    kind = rng.randrange(9 if depth < 4 else 6)
    if kind == 0:
        return None
    if kind == 1:
        return rng.choice([0, -1, 2**63 - 1, 2**64 - 1, -(2**63), rng.randrange(100)])
    if kind == 2:
        return rng.choice([0.0, float("nan"), float("inf"), -1e308, rng.random()])
    if kind == 3:
        return rng.choice(["", "echo", "edge_offload", "\x00", "x" * rng.randrange(2000)])
    if kind == 4:
        return bytes(rng.randrange(256) for _ in range(rng.randrange(20)))
    if kind == 5:
        return rng.random() < 0.5
    if kind == 6:
        return [value(rng, depth + 1) for _ in range(rng.randrange(5))]
    if kind == 7:
        return {str(i): value(rng, depth + 1) for i in range(rng.randrange(5))}
    return msgpack.ExtType(rng.randrange(127), b"ext")


def rubbish(rng):
    """The parts of one random message: noise, garbled, or well-formed with random content."""
    kind = rng.randrange(5)
    types = [*sorted(messages.TYPES), "shutdown"]
    if kind == 0:
        header = bytes(rng.randrange(256) for _ in range(rng.randrange(60)))
    elif kind == 1:
        raw = bytearray(messages.pack_header(Message(rng.choice(types), 5, rng.randrange(9), "echo", {"a": [1, "b"]})))
        for _ in range(rng.randrange(1, 5)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        header = bytes(raw)
    elif kind == 2:
        header = msgpack.packb([value(rng) for _ in range(rng.randrange(12))])
    elif kind == 3:
        fields = ["edge_offload", 1, rng.choice(types), 5, rng.randrange(9), "echo", {"a": 1}, [1.0]]
        fields[rng.randrange(8)] = value(rng)
        header = msgpack.packb(fields)
    else:
        body = {"app": value(rng), "session": value(rng)} if rng.random() < 0.3 else {"x": 1.5}
        header = messages.pack_header(Message(rng.choice(types), 5, rng.randrange(9), "", body, (1.0,)))
    return [header, *(bytes(rng.randrange(50)) for _ in range(rng.randrange(4)))]


def test_rubbish_from_an_authenticated_peer(server_process, connect, raw_dealer):
    server = server_process()
    client = connect(server.address)
    client.wait_ready(PATIENCE_S)
    rng = random.Random(20)
    hostile = raw_dealer(server.address)
    hostile.send(messages.pack_header(Message("hello", 5, 0, "", {"app": {}, "session": "s"})))
    hostile.recv_multipart()
    hostile.rcvhwm = hostile.sndhwm = 0
    before = server.resident_bytes()
    for i in range(AUTHENTICATED):
        hostile.send_multipart(rubbish(rng))
        if i % 100 == 0:
            while hostile.poll(0):
                hostile.recv_multipart()
            assert client.request("echo", {"i": i}, timeout_s=PATIENCE_S).result(PATIENCE_S).body == {"i": i}
    counters = client.request("counters").result(PATIENCE_S).body["counters"]
    assert counters["malformed"] > AUTHENTICATED / 3
    assert client.counters["connections"] == 1
    assert client.state is LinkState.READY
    assert server.resident_bytes() - before < 64 << 20
    # and the one who sent it all is still served when it behaves
    hostile.send(messages.pack_header(Message("ping", 5, 77, "", {}, (3.0,))))
    deadline = 10_000
    while True:
        assert hostile.poll(PATIENCE_S * 1e3), "no answer"
        header = hostile.recv_multipart()[0]
        answer = messages.unpack_header(header)
        if answer.type == "pong" and answer.id == 77:
            break
        deadline -= 1
        assert deadline


def test_rubbish_from_outsiders(server_process, connect):
    server = server_process("--hello-timeout-s", 0.5)
    client = connect(server.address)
    client.wait_ready(PATIENCE_S)
    rng = random.Random(21)
    greeting = b"\xff" + b"\x00" * 7 + b"\x01\x7f\x03\x01CURVE" + b"\x00" * 15 + b"\x00" + b"\x00" * 31
    before = server.resident_bytes()
    for i in range(CONNECTIONS):
        with plain_socket.create_connection(split_address(server.address), timeout=PATIENCE_S) as outsider:
            try:
                start = rng.randrange(4)
                if start == 0:
                    outsider.sendall(greeting)
                elif start == 1:
                    outsider.sendall(greeting + b"\x04\xc8\x05HELLO" + noise(rng, rng.randrange(300)))
                elif start == 2:  # a command that claims to be enormous
                    outsider.sendall(greeting + b"\x06" + rng.choice([b"\xff" * 8, b"\x00\x00\x00\x01" + b"\x00" * 4]))
                outsider.sendall(noise(rng, rng.randrange(1, 3000)))
            except (BrokenPipeError, ConnectionResetError):
                pass
        if i % 20 == 0:
            assert client.request("echo", {"i": i}, timeout_s=PATIENCE_S).result(PATIENCE_S).body == {"i": i}
    assert client.counters["connections"] == 1
    assert server.resident_bytes() - before < 32 << 20


def test_rubbish_from_the_server_does_not_kill_the_robot(connect, keys, until):
    """A server with the right key that has gone mad."""
    received = []
    pair = keys.ensure_pair("server")
    context = zmq.Context()
    try:
        router = context.socket(zmq.ROUTER)
        router.linger = 0
        router.sndhwm = 0
        router.curve_server = True
        router.curve_publickey, router.curve_secretkey = pair.public.encode(), pair.secret.encode()
        port = router.bind_to_random_port("tcp://127.0.0.1")
        client = connect(f"tcp://127.0.0.1:{port}", on_notify=lambda kind, body, buffers: received.append(kind))
        assert router.poll(PATIENCE_S * 1e3)
        robot, header = router.recv_multipart()
        epoch = messages.unpack_header(header).epoch
        router.send_multipart([robot, messages.pack_header(Message("welcome", epoch, 0, "", {"app": {}}))])
        rng = random.Random(22)
        for _ in range(3000):
            parts = rubbish(rng)
            if b"refused" not in parts[0]:  # being refused is understood, and ends the connection
                router.send_multipart([robot, *parts])
        router.send_multipart([robot, messages.pack_header(Message("notify", epoch, 0, "end"))])
        until(lambda: "end" in received, "the robot has lived through it")
        assert client.counters["connections"] == 1
    finally:
        context.destroy(linger=0)
