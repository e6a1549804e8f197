"""Hostile peers for bench fuzz, below the device: strangers without a key, and robots with one that talk nonsense."""

from __future__ import annotations

import collections
import contextlib
import random
import socket
import struct
import time
from concurrent.futures import Future
from typing import Any, Counter, Dict, List, Optional

import zmq

from edge_offload.errors import ProtocolError
from edge_offload.link.security.keys import KeyPair, split_address
from edge_offload.link.transport import messages
from edge_offload.link.transport.messages import Message
from edge_offload_benchmarks.fuzzing.calls import draw_noise, mangle_buffers

WAIT_S = 60.0
#: A message that finds no connection for so long never will: one that was cut is not dialled again.
CUT_S = 5.0
#: What ZMTP and CURVE say to anybody: greeting, welcome, and the error that turns a key away.
HANDSHAKE_BYTES = 64 + 170 + 32
GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0CURVE" + bytes(47)
#: Messages of a robot that talks nonsense between two signs that the server has read them.
BATCH = 200
OUTSTANDING = 16


class Strangers:
    """Connections of peers whose key the server does not know.

    Attributes:
        let_in: how many got through the handshake; none should.
        most_bytes: most that one was told on a TCP connection.
    """

    def __init__(self, address: str, server_public: str, draw: random.Random) -> None:
        self.admitted = self.most_bytes = 0
        self.kinds: Counter[str] = collections.Counter()
        self._address = address
        self._server_public = server_public
        self._draw = draw
        self._context = zmq.Context()

    def connect(self) -> None:
        """One connection."""
        (kind,) = self._draw.choices(["bytes", "unknown key", "no key"], [0.90, 0.08, 0.02])
        self.kinds[kind] += 1
        if kind == "bytes":
            self._send_bytes()
        else:
            self._shake_hands(kind == "unknown key")

    def close(self) -> None:
        """Free what it holds."""
        self._context.destroy(linger=0)

    def _send_bytes(self) -> None:
        """Something other than ZMTP, or ZMTP that goes wrong."""
        draw = self._draw
        start = draw.choice([b"", GREETING[:10], GREETING[:12], GREETING, b"GET / HTTP/1.1\r\n", b"\x80\x04\x95"])
        with socket.create_connection(split_address(self._address), WAIT_S) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(OSError):  # hung up on: what it deserves
                connection.sendall(start + draw_noise(draw, draw.choice([0, 1, 7, 64, 500])))
                if draw.random() < 0.02:
                    self._read_greeting(connection)

    def _read_greeting(self, connection: socket.socket) -> None:
        received = 0
        connection.settimeout(0.2)
        with contextlib.suppress(OSError):
            while True:
                data = connection.recv(1 << 16)
                received += len(data)
                self.most_bytes = max(self.most_bytes, received)
                if not data:
                    return

    def _shake_hands(self, curve: bool) -> None:
        peer: zmq.Socket[Any] = self._context.socket(zmq.DEALER)
        peer.linger = 0
        peer.reconnect_ivl = -1
        if curve:
            public, secret = zmq.curve_keypair()
            peer.curve_serverkey, peer.curve_publickey = self._server_public.encode(), public
            peer.curve_secretkey = secret
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
        events |= zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        monitor: zmq.Socket[Any] = peer.get_monitor_socket(events | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
        try:
            peer.connect(self._address)
            with contextlib.suppress(zmq.ZMQError):
                peer.send(b"let me in", zmq.NOBLOCK)
            if monitor.poll(int(WAIT_S * 1e3)):
                (kind,) = struct.unpack("=h", monitor.recv_multipart()[0][:2])
                self.admitted += kind == zmq.EVENT_HANDSHAKE_SUCCEEDED
        finally:
            peer.disable_monitor()
            monitor.close(0)
            peer.close(0)


class Babbler:
    """A trusted robot that sends multipart messages of its own making, without the client.

    Attributes:
        read: messages that the server is known to have read: a heartbeat sent after them was answered.
        cut: batches during which the server broke the connection.
    """

    def __init__(self, address: str, server_public: str, pair: KeyPair, draw: random.Random) -> None:
        self.sent = self.read = self.cut = 0
        self._address = address
        self._server_public = server_public
        self._pair = pair
        self._draw = draw
        self._context = zmq.Context()

    def send_batch(self, count: int = BATCH) -> int:
        """Send ``count`` messages on a fresh connection until it is cut; return their number."""
        peer: zmq.Socket[Any] = self._context.socket(zmq.DEALER)
        peer.linger = 0
        peer.reconnect_ivl = -1
        peer.sndhwm = 0
        peer.sndtimeo = int(CUT_S * 1e3)
        peer.curve_serverkey = self._server_public.encode()
        peer.curve_publickey, peer.curve_secretkey = self._pair.public.encode(), self._pair.secret.encode()
        epoch = self._draw.randrange(1, 1 << 62)
        before = self.sent
        try:
            peer.connect(self._address)
            greeted = self._draw.random() < 0.8
            if greeted:
                self._send_hello(peer, epoch)
            for number in range(count):
                peer.send_multipart(self._make_nonsense(epoch, number + 1))
                self.sent += 1
            if not greeted:
                self._send_hello(peer, epoch)
            peer.send(messages.pack_header(Message("ping", epoch, 7, "", {}, (time.monotonic(),))))
            if self._await_answer(peer, epoch):
                self.read += count
            else:
                self.cut += 1
        except zmq.ZMQError:
            self.cut += 1
        finally:
            peer.close(0)
        return self.sent - before

    def close(self) -> None:
        """Free what it holds."""
        self._context.destroy(linger=0)

    def _send_hello(self, peer: zmq.Socket[Any], epoch: int) -> None:
        body = {"app": {}, "session": "babbler"}
        peer.send(messages.pack_header(Message("hello", epoch, 0, "", body, (time.monotonic(),))))

    def _await_answer(self, peer: zmq.Socket[Any], epoch: int) -> bool:
        ends = time.monotonic() + WAIT_S
        # a connection that was cut is not dialled again: then nothing comes for a while, and nothing will
        while time.monotonic() < ends and peer.poll(int(CUT_S * 1e3)):
            with contextlib.suppress(ProtocolError):
                header = messages.unpack_header(peer.recv_multipart()[0])
                if header.type == "pong" and header.epoch == epoch:
                    return True
        return False

    def _make_nonsense(self, epoch: int, number: int) -> List[bytes]:
        draw = self._draw
        kind = draw.randrange(6)
        parts = [bytearray(draw_noise(draw, draw.choice([0, 1, 9, 300]))) for _ in range(draw.choice([0, 0, 1, 2, 5]))]
        if kind == 0:  # no header at all
            return [draw_noise(draw, draw.choice([0, 1, 20, 2000])), *map(bytes, parts)]
        if kind == 1:  # what claims to be large, or nests deeply
            bombs = [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 5000]
            return [b"\x98\xac" + messages.MAGIC.encode() + b"\x01" + draw.choice(bombs), *map(bytes, parts)]
        if kind == 2 and draw.random() < 0.05:  # too many parts
            parts = [bytearray(1) for _ in range(1500)]
        name = draw.choice(["infer", "status", "open_model", "device.run", "report", "x"])
        type_ = draw.choice(sorted(messages.TYPES - {"hello"}) + ["request"] * 8 + ["notify"] * 4)
        body = {"handle": draw.randrange(-3, 3), "inputs": [], "session": draw_noise(draw, 16), "number": 2}
        peer_epoch = draw.choice([epoch, epoch, epoch, 0, epoch + 1])
        times = (time.monotonic(),) if type_ == "ping" else ()
        named = name if type_ in ("request", "notify") else ""
        buffers = [bytearray(messages.pack_header(Message(type_, peer_epoch, number, named, body, times))), *parts]
        if kind != 5:
            mangle_buffers(buffers, draw)
        return [bytes(buffer) for buffer in buffers or [bytearray()]]


class Requester:
    """A trusted robot whose requests have good headers and bodies that no robot would send.

    Attributes:
        outcomes: what became of them.
    """

    KINDS = (
        "device.run", "device.run", "device.stage", "device.put", "device.have", "device.resume", "device.end",
        "open_model", "close_model", "report", "status", "no.such", "link.probe", "split.run",
        "promise", "give_back",
    )  # fmt: skip
    FIELDS = (
        "session", "number", "answered", "index", "offset", "total", "name", "names", "parts", "coded", "codec",
        "handle", "inputs", "options", "state_hash", "meta", "wait_s", "model", "down",
        "bound", "frame", "frame_interval", "slope", "age", "batched",
    )  # fmt: skip

    def __init__(self, client: Any, model: str, picture: Any, draw: random.Random) -> None:
        from edge_offload.link import codecs

        self.outcomes: Counter[str] = collections.Counter()
        self._client = client
        self._draw = draw
        self._waiting: List[Future[Any]] = []
        self._spec = {"dtype": str(picture.dtype), "shape": list(picture.shape)}
        self._coded = codecs.encode(picture)
        self._model = model
        self._handle: Optional[int] = None

    def send_nonsense(self) -> None:
        """A request of any kind."""
        draw = self._draw
        body = {name: self._draw_junk(2) for name in draw.sample(self.FIELDS, draw.randrange(len(self.FIELDS)))}
        if draw.random() < 0.6:
            # few sessions: each costs a process, and one that was spoilt stays so
            body["session"] = bytes([draw.randrange(2)]) * 16
            body["number"] = draw.choice([1, 1, 2, 0, 1 << 40])
            body["answered"] = draw.choice([0, 1, 1 << 40])
        kind = draw.choice(self.KINDS)
        if kind == "promise" and self._handle is not None and draw.random() < 0.7:
            body = self._draw_promise()
        if kind == "device.end" and draw.random() < 0.99:
            body["session"] = draw_noise(draw, 16)
        buffers = [draw_noise(draw, draw.choice([0, 1, 8, 100, 5000])) for _ in range(draw.randrange(4))]
        self._request(kind, body, buffers)

    def infer(self) -> None:
        """A picture for a model that is open, with a description or a payload that was tampered with."""
        draw = self._draw
        if self._handle is None:
            opened = self._client.request("open_model", {"name": self._model, "inputs": [self._spec]}, timeout_s=WAIT_S)
            self._handle = opened.result(WAIT_S + 1).body["handle"]
        buffers = [bytearray(memoryview(buffer).cast("B")) for buffer in self._coded.buffers]
        descriptor = {**self._spec, "payload": self._coded.descriptor, "parts": len(buffers)}
        body: Dict[str, Any] = {"handle": self._handle, "codec": "auto", "wait_s": None, "meta": {}}
        if draw.random() < 0.5:
            body["turn"] = {"frame": draw.randrange(-50, 50), **self._draw_estimates()}
            if draw.random() < 0.5:
                body["turn"][draw.choice(sorted(body["turn"]))] = self._draw_junk(1)
        what = draw.randrange(5)
        if what <= 1:
            mangle_buffers(buffers, draw)
        elif what == 2:
            descriptor[draw.choice(sorted(descriptor))] = self._draw_junk(2)
        elif what == 3 and isinstance(self._coded.descriptor, dict):
            payload = dict(self._coded.descriptor)
            payload[draw.choice(sorted(payload))] = self._draw_junk(1)
            descriptor["payload"] = payload
        body["inputs"] = [descriptor]
        if what == 4:
            body[draw.choice(sorted(body))] = self._draw_junk(2)
        self._request("infer", body, [bytes(buffer) for buffer in buffers])

    def drain(self) -> None:
        """Wait for everything."""
        while self._waiting:
            self._settle_answers()

    def _draw_promise(self) -> Dict[str, Any]:
        """A promise that could be asked for, mostly but for one number."""
        draw = self._draw
        body = {
            "handle": self._handle, "bound": draw.choice([0.05, 1.0, 1e-300, 1e-9]), "batched": draw.random() < 0.5,
            "frame_interval": draw.choice([1 / 250, 0.1, 10.0]), "frame": draw.choice([0, 2**52, -(2**52)]),
            "age": draw.choice([0.0, 10.0]), **self._draw_estimates(),
        }  # fmt: skip
        if draw.random() < 0.7:
            body[draw.choice(sorted(body))] = draw.choice([self._draw_junk(1), -1e-9, float("inf"), 1e308, 5e-324])
        return body

    def _draw_estimates(self) -> Dict[str, Any]:
        """Draw estimates of a robot, absurd or not."""
        draw = self._draw
        ways, shares = [0.0, 1e-300, 0.02, 10.0], [0.0, 5e-324, 0.01, 1.0]
        return {
            **{name: draw.choice(ways) for name in ("up", "down", "usual")},
            **{name: draw.choice(shares) for name in ("slope", "slope_error", "flicker", "noise")},
        }

    def _request(self, kind: str, body: Dict[str, Any], buffers: List[bytes]) -> None:
        self._waiting.append(self._client.request(kind, body, buffers, timeout_s=WAIT_S))
        if len(self._waiting) >= OUTSTANDING:
            self._settle_answers()

    def _settle_answers(self) -> None:
        error = self._waiting.pop(0).exception(WAIT_S + 1)
        self.outcomes["answered" if error is None else type(error).__name__] += 1

    def _draw_junk(self, depth: int) -> Any:
        draw = self._draw
        simple = [
            None,
            True,
            0,
            -1,
            1 << 62,
            1.5,
            float("nan"),
            "",
            "x" * 300,
            b"",
            draw_noise(draw, 16),
            draw_noise(draw, 32),
        ]
        kind = draw.randrange(len(simple) + (3 if depth else 0))
        if kind < len(simple):
            return simple[kind]
        if kind == len(simple):
            return {str(draw.randrange(9)): self._draw_junk(depth - 1) for _ in range(draw.randrange(4))}
        return [self._draw_junk(depth - 1) for _ in range(draw.randrange(5))]
