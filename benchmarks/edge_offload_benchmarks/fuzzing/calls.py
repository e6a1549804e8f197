"""Hostile virtual devices for bench fuzz: calls that fit their operator's schema, and messages with bits flipped.

A session of the device is spoken to message by message, below everything that an honest robot's program goes through.
"""

from __future__ import annotations

import collections
import os
import random
import re
import struct
from concurrent.futures import Future
from typing import Any, Counter, List, Optional, Sequence, Tuple

CALL_S = 60.0
#: Calls on their way at once: when one ends the session, those behind it are refused and test nothing.
MOST_WAITING = 4
JUNK: List[Any] = [
    None,
    True,
    -1,
    1 << 40,
    1 << 62,
    1.5,
    "",
    "aten::mul.Tensor",
    b"",
    b"12345678",
    [],
    [[]],
    {},
    {"a": 1},
]


class DeviceWitness:
    """An honest session: computes x*x on the device, again and again, and knows what that is."""

    def __init__(self, client: Any) -> None:
        self.checks = 0
        self._device = RawDevice(client)
        self._defined = False

    def check_answer(self) -> List[str]:
        """One computation with fresh numbers; what was wrong with the answer."""
        from edge_offload.errors import EdgeOffloadError
        from edge_offload.ir.trace.segments import SegmentStep
        from edge_offload.protocol.messages import DeviceMessage

        self.checks += 1
        values = [float(self.checks), -0.5, 3.25, 1e-3 * self.checks]
        message = DeviceMessage()
        if not self._defined:
            item = tensor_item([4])
            message.entries = [
                ("edge::alloc", b"I" + struct.pack("<q", 16), None, 0),
                ("edge::upload", item + b"P" + struct.pack("<BBq", 6, 1, 4), None, 0),
                make_entry("aten::mul.Tensor", item + item),
                ("edge::download", item, None, 0),
            ]
            message.segments = [(0, struct.pack("<8I", 0, 1, 0, 2, 0, 0, 3, 1))]
            self._defined = True
        base = 1 + 2 * self.checks
        message.freed = [base, base + 1]
        message.steps = [SegmentStep(0, base, [], [], b"", [struct.pack("<4f", *values)])]
        message.speculative_from = 1
        try:
            answer = self._device.send(message).result(CALL_S + 1)
        except EdgeOffloadError as error:
            return [f"the honest session failed: {error}"]
        tensor = answer.outcomes[0].tensor if answer.outcomes else None
        got = tensor.tolist() if tensor is not None else answer.error
        expected = [_round_float32(_round_float32(value) * _round_float32(value)) for value in values]
        return [] if got == expected else [f"the honest session got {got} instead of {expected}"]


def _round_float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


class RawDevice:
    """A session of the device, spoken to message by message."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.session = os.urandom(16)
        self.number = 0
        self.lost = False

    def send(self, message: Any) -> Future[Any]:
        """The Future of its :class:`~edge_offload.protocol.messages.Answer`; ``message`` may be its buffers, too."""
        from edge_offload.protocol.messages import parse_answer

        answer: Future[Any] = Future()

        def finish(done: Future[Any]) -> None:
            try:
                answer.set_result(parse_answer(done.result().buffers))
            except Exception as error:
                answer.set_exception(error)

        self.number += 1
        body = {"session": self.session, "number": self.number, "answered": self.number - 1, "codec": "plain"}
        buffers = message if isinstance(message, list) else message.to_wire()
        self.client.request("device.run", body, buffers, timeout_s=CALL_S).add_done_callback(finish)
        return answer


class Hostile:
    """A trusted robot that means no good, on the virtual device.

    Attributes:
        outcomes: what became of its messages.
        crashes: executors that ended, by the operator that the error names.
        unnamed: errors of executors that ended without naming the operator of one of the calls.
        failed: what went wrong in executors' own code; nothing should.
    """

    def __init__(self, client: Any, generator: random.Random) -> None:
        self.outcomes: Counter[str] = collections.Counter()
        self.crashes: Counter[str] = collections.Counter()
        self.unnamed: List[str] = []
        self.failed: List[str] = []
        self._client = client
        self._generator = generator
        self._device: Optional[RawDevice] = None
        self._waiting: List[Future[Any]] = []
        self._called_names: collections.deque[str] = collections.deque(maxlen=64)

    def drain(self) -> None:
        """Wait for everything and end the session."""
        self._close()

    @property
    def _is_lost(self) -> bool:
        return self._device is None or self._device.lost

    def _open_session(self) -> None:
        """A new session in place of the one before."""
        self._close()
        self._device = RawDevice(self._client)

    def _send(self, names: Sequence[str], message: Any) -> None:
        """Send what calls ``names``: a message, or its buffers."""
        assert self._device is not None
        self._called_names.extend(names)
        device = self._device
        answer = device.send(message)
        answer.add_done_callback(lambda done: self._note_called(device, done))
        self._waiting.append(answer)
        if len(self._waiting) >= MOST_WAITING:
            self._settle_answer(self._waiting.pop(0))

    def _settle_answer(self, answer: Future[Any]) -> None:
        answer.exception(CALL_S + 1)

    def _note_called(self, device: RawDevice, done: Future[Any]) -> None:
        error = done.exception()
        if error is None:
            self._answered(done.result())
            return
        self.outcomes[type(error).__name__] += 1
        lost, device.lost = device.lost, True  # what follows would be refused: it builds upon this one
        if lost or "executor process of this session ended" not in str(error):
            return
        match = re.search(r"while running (\S+)", str(error))
        # the note may hold what the session's own bookkeeping ran last
        if match and (match.group(1) in self._called_names or match.group(1).startswith("edge::")):
            self.crashes[match.group(1)] += 1
        else:
            self.unnamed.append(str(error)[:300])

    def _answered(self, answer: Any) -> None:
        self.outcomes["ran" if answer.error is None else type(answer.error).__name__] += 1
        if "the executor failed" in str(answer.error):
            self.failed.append(str(answer.error)[:300])

    def _close(self) -> None:
        while self._waiting:
            self._settle_answer(self._waiting.pop(0))
        if self._device is not None:
            ended = self._client.request("device.end", {"session": self._device.session}, timeout_s=CALL_S)
            ended.exception(CALL_S + 1)
            self._device = None


class Caller(Hostile):
    """Makes calls that fit their operator's schema, with arguments that need not make sense."""

    STORAGES = 6

    def __init__(self, client: Any, generator: random.Random) -> None:
        super().__init__(client, generator)
        self._schemas = list(_list_schemas())
        self._entries = 0
        self._base = 0

    def send_call(self) -> None:
        """A call that fits the schema of an operator."""
        name, message = self._make_message()
        self._send([name], message)

    def send_garbled(self) -> None:
        """A message of the device, cut or with bits flipped; then one that brings the session to order again."""
        name, message = self._make_message()
        buffers = [bytearray(buffer) for buffer in message.to_wire()]
        mangle_buffers(buffers, self._generator)
        self._send([name], buffers)
        self._reset_session()

    def _make_message(self) -> Tuple[str, Any]:
        from edge_offload.ir.trace.segments import SegmentStep
        from edge_offload.protocol.messages import DeviceMessage

        if self._is_lost:
            self._open_session()
        elif self._entries >= 5000:
            self._reset_session()
        name, arguments = self._generator.choice(self._schemas)
        key, references = self._make_key(arguments)
        message = DeviceMessage(entries=[make_entry(name, key)], first_entry=self._entries)
        message.segments = [(self._entries, struct.pack(f"<{1 + len(references)}I", self._entries, *references))]
        live = sorted(set(references))
        # canonical number and storage number are the same: those that exist from the beginning
        message.steps = [SegmentStep(self._entries, self._base, [(n, n + 1) for n in live], [], b"", [], True)]
        message.freed = list(range(self._base, self._base + 16))
        message.speculative_from = 1
        self._entries += 1
        self._base += 16
        return name, message

    def _open_session(self) -> None:
        """A session with storages of several sizes, numbered from 1."""
        super()._open_session()
        self._define_operator()

    def _define_operator(self) -> None:
        from edge_offload.ir.trace.segments import SegmentStep
        from edge_offload.protocol.messages import DeviceMessage

        message = DeviceMessage()
        for n in range(self.STORAGES):
            message.entries.append(("edge::alloc", b"I" + struct.pack("<q", 64 << (2 * n)), None, 0))
        message.segments = [(0, struct.pack(f"<{self.STORAGES}I", *range(self.STORAGES)))]
        message.steps, message.speculative_from = [SegmentStep(0, 1, [], [], b"", [])], 1
        self._send(["edge::alloc"], message)
        self._entries, self._base = self.STORAGES, 1000

    def _reset_session(self) -> None:
        from edge_offload.protocol.messages import DeviceMessage

        last = self._base + 16
        self._send(
            ["edge::alloc"], DeviceMessage(reset_tables=True, freed=[*range(1, self.STORAGES + 1), *range(1000, last)])
        )
        self._define_operator()

    def _make_key(self, arguments: Sequence[str]) -> Tuple[bytes, List[int]]:
        references: List[int] = []
        return b"".join(self._make_item(kind, references) for kind in arguments), references

    def _make_item(self, kind: str, references: List[int]) -> bytes:
        draw = self._generator
        if kind.endswith("?"):
            if draw.random() < 0.5:
                return b"N"
            kind = kind[:-1]
        if kind == "Tensor":
            return self._draw_tensor(references)
        if kind.startswith(("List[Tensor", "List[Optional[Tensor")):
            count = draw.randrange(4)
            return b"L" + struct.pack("<I", count) + b"".join(self._draw_tensor(references) for _ in range(count))
        if kind in ("int", "SymInt"):
            return b"I" + struct.pack("<q", self._draw_integer())
        if kind in ("float", "number", "Scalar"):
            return b"F" + struct.pack("<d", draw.choice([0.0, 1.0, -1.5, 1e30, float("nan"), float("inf")]))
        if kind == "bool":
            return b"B" + bytes([draw.randrange(2)])
        if kind in ("List[int]", "List[SymInt]"):
            count = draw.randrange(5)
            return b"V" + struct.pack(f"<I{count}q", count, *(self._draw_integer() for _ in range(count)))
        if kind == "str":
            text = draw.choice(["mean", "sum", "none", "floor", "tanh", "ij", "", "reflect"]).encode()
            return b"X" + struct.pack("<I", len(text)) + text
        return b"N"

    def _draw_integer(self) -> int:
        draw = self._generator
        return draw.choice([0, 1, 2, 3, 4, 7, -1, -2, 16, draw.randrange(-8, 64), (1 << 31) - 1, -(1 << 63)])

    def _draw_tensor(self, references: List[int]) -> bytes:
        draw = self._generator
        storage = draw.randrange(self.STORAGES)
        sizes = [draw.choice([0, 1, 1, 2, 3, 4, 5]) for _ in range(draw.choice([0, 1, 2, 2, 3, 4]))]
        strides = None
        if draw.random() < 0.05:  # a layout that may not lie in its storage
            strides = [draw.choice([0, 1, 5, 1 << 40]) for _ in sizes]
        references.append(storage)
        number = list(dict.fromkeys(references)).index(storage)  # storages of a call count from 0, in order
        return tensor_item(sizes, strides, draw.choice([6, 6, 6, 4, 3, 0, 11, 5, 9]), number)


def make_entry(name: str, key: bytes) -> Tuple[str, bytes, None, int]:
    """A definition that the server accepts: with the checksum of the schema."""
    from edge_offload.ir.trace.checksums import schema_checksum

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


def draw_noise(draw: random.Random, size: int) -> bytes:
    """Draw ``size`` random bytes."""
    return draw.getrandbits(8 * size).to_bytes(size, "little") if size else b""


def mangle_buffers(buffers: List[bytearray], draw: random.Random) -> None:
    """Cut, lengthen or change some of the bytes, or drop a whole buffer, in place."""
    for _ in range(draw.choice([1, 1, 2, 8])):
        victim = draw.choice([buffer for buffer in buffers if buffer] or [bytearray(1)])
        place = draw.randrange(len(victim))
        kind = draw.randrange(5)
        if kind <= 1:
            victim[place] ^= 1 << draw.randrange(8)
        elif kind == 2:
            victim[place : place + draw.randrange(1, 9)] = draw_noise(draw, draw.randrange(9))
        elif kind == 3:
            del victim[place:]
            victim += bytes(not victim)
        else:
            victim += draw_noise(draw, draw.randrange(1, 40))
    if draw.random() < 0.05:
        del buffers[draw.randrange(len(buffers))]


def replace_value(facts: Any, draw: random.Random) -> Any:
    """Facts, as they were read off the wire, with one value somewhere in them replaced."""
    if isinstance(facts, dict) and facts and draw.random() < 0.9:
        key = draw.choice(sorted(facts))
        return {**facts, key: replace_value(facts[key], draw)}
    if isinstance(facts, (list, tuple)) and facts and draw.random() < 0.9:
        place = draw.randrange(len(facts))
        return [*facts[:place], replace_value(facts[place], draw), *facts[place + 1 :]]
    if type(facts) is int and draw.random() < 0.7:
        value = draw.choice([facts - 1, facts + 1, 2 * facts, -facts, facts + 8, draw.randrange(16), (1 << 61) - 1])
        return max(-(1 << 63), min((1 << 64) - 1, value))  # what msgpack can say
    if isinstance(facts, bytes) and facts and draw.random() < 0.7:
        changed = bytearray(facts)
        mangle_buffers([changed], draw)
        return bytes(changed)
    return draw.choice(JUNK)


def _list_schemas() -> Any:
    """Name and argument types of every operator that the server runs."""
    import torch

    from edge_offload.errors import Unsupported
    from edge_offload.ir.trace.allowlist import resolve_operator

    for name in sorted(torch._C._dispatch_get_all_op_names()):
        if not name.startswith("aten::"):
            continue
        try:
            schema = resolve_operator(name)._schema
        except Unsupported:
            continue
        yield name, [_type_name(argument.type) for argument in schema.arguments]


def _type_name(kind: Any) -> str:
    text = str(kind)
    match = re.fullmatch(r"Optional\[(.*)\]", text)
    return f"{match.group(1)}?" if match else text
