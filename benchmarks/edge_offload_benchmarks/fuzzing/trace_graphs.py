"""Hostile trace graphs for bench fuzz: what the server is to run ahead by itself, tampered with.

Each round defines the nodes of a program whose sizes depend on data (``nonzero``, then calls on as many numbers as were
found), tampers with one of them more often than not, and has the server run along them a few times with fresh numbers:
from the second time on it is the C++ runner that does it, where there is one.
"""

from __future__ import annotations

import random
import struct
from typing import Any, List, Sequence, Tuple

import msgpack

from edge_offload.ir.trace.segments import SegmentStep
from edge_offload.ir.trace.symbols import Formula
from edge_offload.ir.trace.trace_graph import FROM_START, FROM_STEP, Edge, Patch, TraceGraph, TraceStep
from edge_offload.protocol.messages import DeviceMessage
from edge_offload_benchmarks.fuzzing.calls import Hostile, make_entry, mangle_buffers, replace_value, tensor_item

#: Numbers that are uploaded, and how many of them calls are defined with.
SIZE, MATCHES = 8, 4
FLOAT, LONG = 6, 4
FIND, COMPUTE, CHAIN = 10, 11, 12
#: Runs along one definition.
RUNS = 4
#: Rounds in one session.
ROUNDS = 100
#: Numbers of storages that a message may use.
STORAGES = 64


#: (factor, constant) of a vector's size: factor times how many were found, plus the constant.
Size = Tuple[int, int]


class Calls:
    """Writes the calls of a node on vectors whose sizes follow from how many numbers were found.

    Attributes:
        entries: definitions of the calls, of which ``first`` is the first one's number.
        words, patches: of the node.
        values: what there is to compute with, at first what existed before: storage, size, dtype.
    """

    def __init__(self, values: Sequence[Tuple[int, Size, int]], first: int = 0) -> None:
        self.entries: List[Any] = []
        self.codes: List[int] = []
        self.patches: List[Patch] = []
        self.values = list(values)
        self._first = first

    def call(self, name: str, *parts: Any) -> None:
        """``parts``: bytes, index of a value, (index, size that it is looked at with), or a list of those."""
        key, call = b"", len(self.entries)
        storages: List[int] = []
        used: List[int] = []

        def add(part: Any) -> None:
            nonlocal key
            if isinstance(part, bytes):
                key += part
            elif isinstance(part, list):
                key += b"L" + struct.pack("<I", len(part))
                for item in part:
                    add(item)
            else:
                index, size = part if isinstance(part, tuple) else (part, None)
                storage, recorded_size, dtype = self.values[index]
                factor, constant = size or recorded_size
                if storage not in storages:
                    storages.append(storage)
                used.append(storage)
                if factor:
                    self.patches.append(Patch(call, len(key) + 4, times_matches(factor, constant)))
                key += tensor_item([factor * MATCHES + constant], None, dtype, storages.index(storage))

        for part in parts:
            add(part)
        self.entries.append(make_entry(name, key))
        self.codes += [self._first + call, *used]

    def add_value(self, size: Size, dtype: int = FLOAT) -> None:
        """The call before made a vector of ``size``."""
        self.values.append((max(number for number, _, _ in self.values) + 1, size, dtype))

    def extend_calls(self, draw: random.Random) -> None:
        """One more call, of a kind that real programs make."""
        index = draw.choice([i for i, (_, _, dtype) in enumerate(self.values) if dtype == FLOAT])
        _, size, _ = self.values[index]
        alike = [i for i, (_, other, dtype) in enumerate(self.values) if dtype == FLOAT and other == size]
        what = draw.randrange(6)
        if what == 0:
            self.call("aten::mul.Tensor", index, draw.choice(alike))
            self.add_value(size)
        elif what == 1:
            self.call("aten::add_.Tensor", index, draw.choice(alike), integer_item(1))
        elif what == 2:
            other = draw.choice(alike)
            self.call("aten::cat", [index, other], integer_item(0))
            self.add_value((2 * size[0], 2 * size[1]))
        elif what == 3:
            self.call("aten::sort", index, integer_item(-1), b"B\1")
            self.add_value(size)
            self.add_value(size, LONG)
        elif what == 4:
            self.patches.append(Patch(len(self.entries), 1, times_matches(4 * size[0], 4 * size[1])))
            self.call("edge::alloc", integer_item(4 * (size[0] * MATCHES + size[1])))
            self.add_value(size)
            self.call("aten::zero_", len(self.values) - 1)
        else:
            self.call("aten::index.Tensor", 0, [1])
            self.add_value((1, 0))

    def make_node(self, draw: random.Random) -> TraceStep:
        """All of them as one."""
        new = range(2, 1 + max(number for number, _, _ in self.values))
        dead = tuple(number for number in new if draw.random() < 0.4)
        live = ((0, FROM_START, 0), (1, FROM_STEP, -1))
        return TraceStep(None, tuple(self.codes), tuple(self.patches), live, dead, b"", (), False)


class TraceGraphSender(Hostile):
    """Has the server run along nodes that were tampered with.

    Attributes:
        ran: nodes that ran ahead.
    """

    def __init__(self, client: Any, generator: random.Random) -> None:
        super().__init__(client, generator)
        self.ran = 0
        self._rounds = self._runs = 0
        self._names: List[str] = []
        self._base = 1

    def send(self) -> None:
        """The next message."""
        if self._is_lost or (not self._runs and self._rounds >= ROUNDS):
            self._open_session()
            self._rounds = self._runs = 0
        draw = self._generator
        if not self._runs:
            self._rounds += 1
            self._runs = draw.randrange(2, RUNS + 1)
            message = self._send_definitions()
            self._names = [name for name, *_ in message.entries]
            buffers = tamper_message(message, draw, "nodes") if draw.random() < 0.7 else message.to_wire()
        else:
            self._runs -= 1
            message = self._send_run()
            buffers = tamper_message(message, draw, "course", "steps") if draw.random() < 0.3 else message.to_wire()
        self._send(self._names, buffers)

    def _send_definitions(self) -> DeviceMessage:
        """A new program in place of the one before."""
        draw = self._generator
        message = DeviceMessage(reset_tables=True, accepted=0, freed=list(range(1, self._base + STORAGES)))
        self._base = 1
        vector = tensor_item([SIZE])
        definitions = [
            ("edge::alloc", integer_item(4 * SIZE), None, 0),
            ("edge::upload", vector + b"P" + struct.pack("<BBq", FLOAT, 1, SIZE), None, 0),
            make_entry("aten::nonzero", vector),
            make_entry("aten::relu_", vector),
        ]
        calls = Calls([(0, (0, SIZE), FLOAT), (1, (1, 0), LONG)], len(definitions))
        calls.call("aten::index_select", 0, integer_item(0), 1)
        calls.add_value((1, 0))
        for _ in range(draw.randrange(8)):
            calls.extend_calls(draw)
        calls.call("edge::download", len(calls.values) - 1)
        message.entries = [*definitions, *calls.entries]
        message.segments = [(0, struct.pack("<3I", 0, 1, 0)), (1, struct.pack("<2I", 3, 0))]
        message.nodes = [
            (FIND, TraceStep(None, (2, 0), (), ((0, FROM_START, 0),), (), b"", (), True)),
            (COMPUTE, calls.make_node(draw)),
            (CHAIN, TraceStep(1, (), (), ((0, FROM_START, 0),), (), b"", (), False)),
        ]
        return message

    def _send_run(self) -> DeviceMessage:
        """Fresh numbers, and along the nodes."""
        draw = self._generator
        message = DeviceMessage(accepted=draw.choice([0, 0, 0, 0, 1, 2]), freed=list(range(1, self._base)))
        numbers = [draw.choice([0.0, 0.0, 1.0, -2.5, 1e30]) for _ in range(SIZE)]
        message.steps = [SegmentStep(0, self._base, [], [], b"", [struct.pack(f"<{SIZE}f", *numbers)])]
        message.speculative_from = draw.choice([1, 1, 1, 0])
        around: List[Edge] = draw.choice([[], [], [(None, 0)], [((2, 1), 2)]])
        message.graph = TraceGraph(
            [(CHAIN, [(None, 1)]), (FIND, [((0, 1), 0), (None, 2)]), (COMPUTE, around)],
            [(None, draw.choice([0, 1]))], None, self._base,
        )  # fmt: skip
        self._base += STORAGES
        return message

    def _answered(self, answer: Any) -> None:
        super()._answered(answer)
        self.ran += len(answer.ran)


def tamper_message(message: DeviceMessage, draw: random.Random, *fields: str) -> List[bytearray]:
    """The buffers of a message with values in one of ``fields`` replaced, or bits of any flipped."""
    facts, *payloads = message.to_wire()
    if draw.random() < 0.85:
        facts_map = msgpack.unpackb(facts, strict_map_key=False)
        for _ in range(draw.choice([1, 1, 1, 2, 4])):
            field = draw.choice(fields)
            facts_map[field] = replace_value(facts_map[field], draw)
        return [bytearray(msgpack.packb(facts_map)), *map(bytearray, payloads)]
    buffers = [bytearray(facts), *map(bytearray, payloads)]
    mangle_buffers(buffers, draw)
    return buffers


def times_matches(factor: int, constant: int) -> Formula:
    """Return the formula ``factor`` times the number of matches plus ``constant``."""
    return Formula(factor, constant, ((1, 0, 0),))


def integer_item(value: int) -> bytes:
    """Encode an integer argument of a call."""
    return b"I" + struct.pack("<q", value)
