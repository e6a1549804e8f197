"""Hostile messages against a server of its own: it lives, other sessions compute on, strangers are refused.

Three kinds, by turns drawn from --seed: raw bytes on the TCP port; messages of a robot that is trusted but talks
nonsense (broken headers, bodies and device messages); and calls that fit their operator's schema, with arguments that
need not make sense, run by the session's executor process. A second, honest robot computes meanwhile and checks every
result, and the front process must answer.

  edge-offload bench fuzz                       2,000 messages, about a minute
  edge-offload bench fuzz --full                100,000 messages
  edge-offload bench fuzz --seed 7 --json fuzz.json

An executor that a call crashes ends its own session, with an error that names the operator; the crashes are listed.
"""

from __future__ import annotations

import argparse
import collections
import os
import pathlib
import random
import re
import socket
import struct
import sys
import tempfile
import time
from concurrent.futures import Future
from typing import Any, Callable, Counter, Dict, List, Optional, Sequence, Tuple

FULL = 100_000
#: Share of each kind of message.
SHARES = (("bytes", 0.45), ("messages", 0.45), ("calls", 0.10))
CHECK_EVERY = 100
CALL_S = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--messages", type=int, default=2000, metavar="N", help="how many (2000)")
    parser.add_argument("--full", action="store_true", help=f"{FULL} messages")
    parser.add_argument("--seed", type=int, default=0, help="of what is sent (0)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the record fuzz here")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload import records

    record = fuzz(FULL if args.full else args.messages, args.seed)
    for key in ("messages", "seconds", "checks", "front_lives", "honest_session_lives", "stranger"):
        print(f"{key}: {record[key]}")
    for key in ("sent", "outcomes", "crashes"):
        print(f"{key}: " + ", ".join(f"{name} {count}" for name, count in record[key].items()))
    if args.json is not None:
        records.write(args.json, "fuzz", record)
    return 0 if record["front_lives"] and record["honest_session_lives"] and record["stranger"] == "refused" else 1


def fuzz(messages: int, seed: int) -> Dict[str, Any]:
    """Send so many messages; what came of them."""
    from edge_offload.link.client import Client, Timings
    from edge_offload.link.keys import KeyStore
    from edge_offload.server.server import OffloadServer

    generator = random.Random(seed)
    sent: Counter[str] = collections.Counter()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        from edge_offload.capture.blobs import BlobStore
        from edge_offload.capture.service import DeviceQuota

        keys = KeyStore(folder)
        quota = DeviceQuota(storage_bytes=256 << 20, message_s=CALL_S, lease_s=1.0, sessions=8, sessions_per_robot=8)
        server = OffloadServer(
            keys=keys, device="cpu", threads=1, device_quota=quota, blobs=BlobStore(pathlib.Path(folder, "blobs"))
        )
        # what is measured is not how fast a busy machine is
        patient = Timings(connect_s=30.0, handshake_s=60.0, silence_s=60.0)
        with server, Client(server.address, keys=keys, timings=patient) as honest, Client(
            server.address, keys=keys, timings=patient
        ) as hostile:
            honest.wait_ready(60.0)
            hostile.wait_ready(60.0)
            witness = Witness(honest)
            caller = Caller(hostile, generator)
            kinds: Dict[str, Callable[[], None]] = {
                "bytes": lambda: send_bytes(server.address, generator),
                "messages": lambda: caller.nonsense(),
                "calls": lambda: caller.call(),
            }
            for number in range(messages):
                (kind,) = generator.choices([name for name, _ in SHARES], [share for _, share in SHARES])
                kinds[kind]()
                sent[kind] += 1
                if number % CHECK_EVERY == 0:
                    witness.check()
            caller.drain()
            witness.check()
            lives = isinstance(honest.request("status", timeout_s=60.0).result(61.0).body, dict)
            refused = stranger(server.address)
        return {
            "messages": messages, "seed": seed, "seconds": time.monotonic() - began, "sent": dict(sent),
            "outcomes": dict(caller.outcomes), "crashes": dict(caller.crashes), "checks": witness.checks,
            "front_lives": lives, "honest_session_lives": not witness.wrong, "stranger": refused,
        }  # fmt: skip


def stranger(address: str) -> str:
    """What becomes of a robot whose key the server does not know: it has the server's public key and nothing else."""
    from edge_offload.errors import EdgeOffloadError
    from edge_offload.link.client import Client
    from edge_offload.link.keys import KeyStore

    with tempfile.TemporaryDirectory() as folder:
        try:
            with Client(address, keys=KeyStore(folder)) as client:
                client.wait_ready(10.0)
        except EdgeOffloadError:
            return "refused"
    return "let in"


def send_bytes(address: str, generator: random.Random) -> None:
    """One connection that says something other than ZMTP, or begins as ZMTP and goes wrong."""
    from edge_offload.link.keys import split_address

    greeting = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0CURVE" + bytes(47)
    start = generator.choice([b"", greeting[:10], greeting[:12], greeting, b"GET / HTTP/1.1\r\n", b"\x80\x04\x95"])
    with socket.create_connection(split_address(address), 30.0) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        try:
            connection.sendall(start + generator.randbytes(generator.choice([0, 1, 7, 64, 500])))
        except OSError:
            return  # hung up on: what it deserves


class Witness:
    """An honest session: computes x*x on the device, again and again, and knows what that is."""

    def __init__(self, client: Any) -> None:
        self.checks, self.wrong = 0, False
        self._device = RawDevice(client)
        self._defined = False

    def check(self) -> None:
        """One computation with fresh numbers."""
        from edge_offload.capture.executor import Step
        from edge_offload.capture.messages import Message

        self.checks += 1
        values = [float(self.checks), -0.5, 3.25, 1e-3 * self.checks]
        message = Message()
        if not self._defined:
            tensor = tensor_item([4])
            message.entries = [
                ("edge::alloc", b"I" + struct.pack("<q", 16), None, 0),
                ("edge::upload", tensor + b"P" + struct.pack("<BBq", 6, 1, 4), None, 0),
                entry("aten::mul.Tensor", tensor + tensor),
                ("edge::download", tensor, None, 0),
            ]
            message.segments = [(0, struct.pack("<8I", 0, 1, 0, 2, 0, 0, 3, 1))]
            # tensors of one call share a storage if their numbers say so
            self._defined = True
        base = 1 + 2 * self.checks
        message.freed = [base, base + 1]
        message.steps = [Step(0, base, [], [], b"", [struct.pack("<4f", *values)])]
        message.speculative_from = 1
        answer = self._device.send(message).result(CALL_S + 1)
        got = answer.outcomes[0].tensor.tolist() if answer.outcomes else answer.error
        wanted = [
            struct.unpack("<f", struct.pack("<f", v * v))[0] for v in struct.unpack("<4f", struct.pack("<4f", *values))
        ]
        if got != wanted:
            self.wrong = True
            print(f"the honest session got {got} instead of {wanted}", file=sys.stderr)


class RawDevice:
    """A session of the device, spoken to message by message."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.session = os.urandom(16)
        self.number = 0

    def send(self, message: Any) -> Future:
        """The Future of its :class:`~edge_offload.capture.messages.Answer`."""
        from edge_offload.capture.messages import parse_answer

        answer: Future = Future()

        def finish(done: Future) -> None:
            try:
                answer.set_result(parse_answer(done.result().buffers))
            except Exception as error:
                answer.set_exception(error)

        self.number += 1
        body = {"session": self.session, "number": self.number, "answered": self.number - 1, "codec": "plain"}
        self.client.request("device.run", body, message.to_wire(), timeout_s=CALL_S).add_done_callback(finish)
        return answer


class Caller:
    """A trusted robot that means no good."""

    STORAGES = 6

    def __init__(self, client: Any, generator: random.Random) -> None:
        self.outcomes: Counter[str] = collections.Counter()
        self.crashes: Counter[str] = collections.Counter()
        self._client = client
        self._generator = generator
        self._schemas = list(_schemas())
        self._device: Optional[RawDevice] = None
        self._entries = 0
        self._base = 0
        self._waiting: List[Future] = []

    def nonsense(self) -> None:
        """A request that no robot would send."""
        draw = self._generator
        kind = draw.choice(
            ["device.run", "device.run", "device.stage", "device.put", "device.have", "device.resume", "device.end",
             "infer", "open_model", "close_model", "report", "status", "no.such"]
        )  # fmt: skip
        names = ("session", "number", "answered", "index", "offset", "total", "name", "names", "parts", "coded",
                 "codec", "handle", "inputs", "options", "state_hash", "meta", "wait_s", "model")  # fmt: skip
        body = {name: self._junk(2) for name in draw.sample(names, draw.randrange(len(names)))}
        if draw.random() < 0.6:
            body["session"] = bytes([draw.randrange(3)]) * 16  # few sessions: each costs a process
            body["number"] = draw.choice([1, 1, 2, 0, 1 << 40])
            body["answered"] = draw.choice([0, 1, 1 << 40])
        buffers = [draw.randbytes(draw.choice([0, 1, 8, 100, 5000])) for _ in range(draw.randrange(4))]
        self._keep(self._client.request(kind, body, buffers, timeout_s=CALL_S))

    def call(self) -> None:
        """A call that fits the schema of an operator."""
        from edge_offload.capture.executor import Step
        from edge_offload.capture.messages import Message

        if self._device is None:
            self._open()
        assert self._device is not None
        name, arguments = self._generator.choice(self._schemas)
        key, references = self._key(arguments)
        message = Message(entries=[entry(name, key)], first_entry=self._entries)
        message.segments = [(self._entries, struct.pack(f"<{1 + len(references)}I", self._entries, *references))]
        live = sorted(set(references))
        # canonical number and storage number are the same: those that exist from the beginning
        message.steps = [Step(self._entries, self._base, [(n, n + 1) for n in live], [], b"", [], True)]
        message.freed = list(range(self._base, self._base + 16))
        message.speculative_from = 1
        self._entries += 1
        self._base += 16
        answer = self._device.send(message)
        answer.add_done_callback(lambda done: self._called(name, done))
        self._keep(answer)
        if self._entries >= 5000:
            self._close()

    def _called(self, name: str, done: Future) -> None:
        error = done.exception()
        if error is None:
            problem = done.result().error
            self.outcomes["call: " + ("ran" if problem is None else type(problem).__name__)] += 1
            return
        self.outcomes[f"call: {type(error).__name__}"] += 1
        found = re.search(r"while running (\S+)", str(error))
        if found and self._device is not None:
            self.crashes[found.group(1)] += 1
            self._device = None

    def drain(self) -> None:
        """Wait for everything."""
        for future in self._waiting:
            future.exception(CALL_S + 1)
        self._waiting.clear()
        self._close()

    def _keep(self, future: Future) -> None:
        self._waiting.append(future)
        if len(self._waiting) >= 16:
            first = self._waiting.pop(0)
            error = first.exception(CALL_S + 1)
            self.outcomes["answered" if error is None else type(error).__name__] += 1

    def _open(self) -> None:
        """A session with storages of several sizes, numbered from 1."""
        from edge_offload.capture.executor import Step
        from edge_offload.capture.messages import Message

        self._device = RawDevice(self._client)
        message = Message()
        for n in range(self.STORAGES):
            message.entries.append(("edge::alloc", b"I" + struct.pack("<q", 64 << (2 * n)), None, 0))
        message.segments = [(0, struct.pack(f"<{self.STORAGES}I", *range(self.STORAGES)))]
        message.steps, message.speculative_from = [Step(0, 1, [], [], b"", [])], 1
        self._device.send(message)
        self._entries, self._base = self.STORAGES, 1000

    def _close(self) -> None:
        if self._device is not None:
            self._client.request("device.end", {"session": self._device.session}, timeout_s=CALL_S).exception(CALL_S)
            self._device = None

    def _key(self, arguments: Sequence[str]) -> Tuple[bytes, List[int]]:
        references: List[int] = []
        return b"".join(self._item(kind, references) for kind in arguments), references

    def _item(self, kind: str, references: List[int]) -> bytes:
        draw = self._generator
        if kind.endswith("?"):
            if draw.random() < 0.5:
                return b"N"
            kind = kind[:-1]
        if kind == "Tensor":
            return self._tensor(references)
        if kind.startswith(("List[Tensor", "List[Optional[Tensor")):
            count = draw.randrange(4)
            return b"L" + struct.pack("<I", count) + b"".join(self._tensor(references) for _ in range(count))
        if kind in ("int", "SymInt"):
            return b"I" + struct.pack("<q", self._integer())
        if kind in ("float", "number", "Scalar"):
            return b"F" + struct.pack("<d", draw.choice([0.0, 1.0, -1.5, 1e30, float("nan"), float("inf")]))
        if kind == "bool":
            return b"B" + bytes([draw.randrange(2)])
        if kind in ("List[int]", "List[SymInt]"):
            count = draw.randrange(5)
            return b"V" + struct.pack(f"<I{count}q", count, *(self._integer() for _ in range(count)))
        if kind == "str":
            text = draw.choice(["mean", "sum", "none", "floor", "tanh", "ij", "", "reflect"]).encode()
            return b"X" + struct.pack("<I", len(text)) + text
        return b"N"

    def _integer(self) -> int:
        draw = self._generator
        return draw.choice([0, 1, 2, 3, 4, 7, -1, -2, 16, draw.randrange(-8, 64), (1 << 31) - 1, -(1 << 63)])

    def _tensor(self, references: List[int]) -> bytes:
        draw = self._generator
        storage = draw.randrange(self.STORAGES)
        sizes = [draw.choice([0, 1, 1, 2, 3, 4, 5]) for _ in range(draw.choice([0, 1, 2, 2, 3, 4]))]
        strides = None
        if draw.random() < 0.05:  # a layout that may not lie in its storage
            strides = [draw.choice([0, 1, 5, 1 << 40]) for _ in sizes]
        references.append(storage)
        number = list(dict.fromkeys(references)).index(storage)  # storages of a call count from 0, in order
        return tensor_item(sizes, strides, draw.choice([6, 6, 6, 4, 3, 0, 11, 5, 9]), number)

    def _junk(self, depth: int) -> Any:
        draw = self._generator
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
            draw.randbytes(16),
            draw.randbytes(32),
        ]
        kind = draw.randrange(len(simple) + (3 if depth else 0))
        if kind < len(simple):
            return simple[kind]
        if kind == len(simple):
            return {str(draw.randrange(9)): self._junk(depth - 1) for _ in range(draw.randrange(4))}
        return [self._junk(depth - 1) for _ in range(draw.randrange(5))]


def entry(name: str, key: bytes) -> Tuple[str, bytes, None, int]:
    """A definition that the server accepts: with the checksum of the schema."""
    from edge_offload.capture.entries import schema_checksum

    return name, key, None, schema_checksum(name)


def tensor_item(
    sizes: Sequence[int], strides: Optional[Sequence[int]] = None, dtype: int = 6, storage: int = 0
) -> bytes:
    """A tensor in a key: float32 unless told otherwise, contiguous unless strides are given."""
    if strides is None:
        strides, step = [], 1
        for size in reversed(sizes):
            strides.insert(0, step)
            step *= max(size, 1)
    count = len(sizes)
    return b"T" + struct.pack(f"<BBB{count}q{count}qqqB", dtype, 0, count, *sizes, *strides, 0, 0, storage)


def _schemas() -> Any:
    """Name and argument types of every operator that the server runs."""
    import torch

    from edge_offload.capture.allowlist import resolve
    from edge_offload.errors import Unsupported

    for name in sorted(torch._C._dispatch_get_all_op_names()):
        if not name.startswith("aten::"):
            continue
        try:
            schema = resolve(name)._schema
        except Unsupported:
            continue
        yield name, [_type(argument.type) for argument in schema.arguments]


def _type(kind: Any) -> str:
    text = str(kind)
    found = re.fullmatch(r"Optional\[(.*)\]", text)
    return f"{found.group(1)}?" if found else text
