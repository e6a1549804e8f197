"""Buffers of a device's messages that go ahead of them: pieces of large ones, and weights by name."""

from __future__ import annotations

from typing import Any, Collection, Dict, List

from edge_offload.errors import ProtocolError
from edge_offload.ir.trace.calls import Buffer

#: What a piece takes besides its bytes: even empty ones are not gathered without end.
ENTRY_BYTES = 512
#: Key of the inputs of a message that went ahead of it, with their position.
INPUT = "input"


class NoRoom(ProtocolError):
    """Too many bytes wait for their message."""


class StagedBuffers:
    """Buffers by the number of the message that they belong to. The caller holds a lock.

    Args:
        most: bytes that may wait for their messages.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: Dict[int, Dict[Any, bytearray]] = {}
        self._bytes = self._last_number = 0
        self._inputs_number = -1
        self._inputs: List[bytearray] = []

    def add_piece(self, number: int, index: int, offset: int, total: int, piece: bytes) -> None:
        """Copy a piece into the message's buffer ``index``, which has ``total`` bytes.

        Raises:
            ProtocolError: it does not fit, or too much waits.
        """
        buffer = self._waiting.get(number, {}).get(index)
        if buffer is None:
            buffer = self._reserve_room(number, index, total)
        if len(buffer) != total or offset + len(piece) > total:
            raise ProtocolError("a piece of a buffer does not fit")
        buffer[offset : offset + len(piece)] = piece

    def add_blob(self, number: int, name: bytes, data: bytes) -> None:
        """Keep a blob for a message that has not been forwarded.

        Raises:
            NoRoom: too much waits.
        """
        if number > self._last_number and name not in self._waiting.get(number, {}):
            self._reserve_room(number, name, len(data))[:] = data

    def add_inputs(self, number: int, buffers: Collection[Buffer]) -> None:
        """Copy the buffers of one inference's inputs, in place of those that no message has referred to.

        Raises:
            NoRoom: too much waits.
        """
        self._bytes -= _total_bytes(self._inputs)
        self._inputs_number, self._inputs = -1, []
        total = _total_bytes(buffers)
        if self._bytes + total > self._most:
            raise NoRoom("too many bytes wait for their message")
        self._bytes += total
        self._inputs_number, self._inputs = number, [bytearray(buffer) for buffer in buffers]

    def assign_inputs(self, inputs_number: int, number: int) -> None:
        """Make the inputs ``inputs_number`` buffers of message ``number``.

        Raises:
            ProtocolError: they are not here.
        """
        if inputs_number != self._inputs_number:
            raise ProtocolError("the inputs of a message did not arrive before it")
        positions = {(INPUT, position): buffer for position, buffer in enumerate(self._inputs)}
        self._waiting.setdefault(number, {}).update(positions)
        self._inputs_number, self._inputs = -1, []

    def take_staged(self, number: int) -> Dict[Any, bytearray]:
        """Return and remove the buffers for message ``number``, which is forwarded now, and for earlier ones."""
        staged: Dict[Any, bytearray] = {}
        for old in sorted(item for item in self._waiting if item <= number):
            pieces = self._waiting.pop(old)
            self._bytes -= _total_bytes(pieces.values())
            staged.update(pieces)
        self._last_number = number
        return staged

    def clear(self) -> None:
        """Remove all buffers: no message will be forwarded any more."""
        self._waiting.clear()
        self._inputs_number, self._inputs = -1, []

    def _reserve_room(self, number: int, name: Any, size: int) -> bytearray:
        if self._bytes + size + ENTRY_BYTES > self._most:
            raise NoRoom("too many bytes wait for their message")
        self._bytes += size + ENTRY_BYTES
        room = self._waiting.setdefault(number, {})[name] = bytearray(size)
        return room


def _total_bytes(buffers: Collection[Buffer]) -> int:
    return sum(memoryview(buffer).nbytes + ENTRY_BYTES for buffer in buffers)


def assemble_buffers(parts: Any, direct: List[Buffer], staged: Dict[Any, bytearray]) -> List[Buffer]:
    """The buffers of a message, in order: what came with it, and what went ahead.

    Raises:
        ProtocolError: they are not what the message says.
    """
    if parts is None:
        return direct
    if not isinstance(parts, list) or len(parts) > 1 << 16:
        raise ProtocolError("the parts of a message are a list")
    buffers: List[Buffer] = []
    for index, part in enumerate(parts):
        if part is None:
            if not direct:
                raise ProtocolError("a message has fewer buffers than it says")
            buffers.append(direct.pop(0))
            continue
        if not isinstance(part, list) or len(part) != 2:
            raise ProtocolError("a part of a message is malformed")
        total, names = part
        try:
            if names is None or type(names) is int:
                buffer: Buffer = staged[index if names is None else (INPUT, names)]
            else:
                buffer = b"".join(staged[name] for name in names)
        except (KeyError, TypeError):
            raise ProtocolError("a large buffer did not arrive before its message") from None
        if len(buffer) != total:
            raise ProtocolError("a large buffer has another size than its message says")
        buffers.append(buffer)
    if direct:
        raise ProtocolError("a message has more buffers than it says")
    return buffers
