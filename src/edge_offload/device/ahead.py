"""Inputs of an inference that go to the server while the inference before it is computed.

The message that contains them refers to them then, and its upload is over when its turn comes.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any, List, Optional, Sequence

import numpy as np

from edge_offload.arrays import Array
from edge_offload.ir.trace.calls import Buffer
from edge_offload.link import codecs
from edge_offload.link.transport.replies import Reply
from edge_offload.protocol.payloads import is_coded


class InputsAhead:
    """Encoded copies of one inference's inputs. A message refers to them only if it contains equal bytes.

    Args:
        number: by which the message refers to them.
        inputs: of the inference; small ones travel with the message.
        codec: payload codec.
        link_bytes_per_s: rate of the link, for the choice of a codec; None: unknown.

    Attributes:
        buffers: to send, in the order of their positions.
        encode_s: time that encoding took (seconds).
        acknowledged: the server's reply, once they are sent.
    """

    def __init__(self, number: int, inputs: Sequence[Buffer], codec: str, link_bytes_per_s: Optional[float]) -> None:
        self.number = number
        self._started_s = time.monotonic()
        # copies: the program may write to its inputs before the message is made
        self._arrays: List[Array] = [np.array(each) for each in inputs if is_coded(memoryview(each))]
        self._encodings = [codecs.encode(array, codec, link_bytes_per_s=link_bytes_per_s) for array in self._arrays]
        self.buffers: List[Buffer] = [buffer for encoding in self._encodings for buffer in encoding.buffers]
        self.encode_s = time.monotonic() - self._started_s
        self.acknowledged: Optional[Future[Any]] = None
        self._used_s = 0.0

    def find_encoding(self, array: Array) -> Optional[codecs.Encoded]:
        """Return the encoding of an input with the same bytes; None: there is none."""
        for own, encoding in zip(self._arrays, self._encodings):
            if own.shape == array.shape and own.dtype == array.dtype and np.array_equal(_bytes(own), _bytes(array)):
                self._used_s = time.monotonic()
                return encoding
        return None

    def position_of(self, buffer: Buffer) -> Optional[int]:
        """Return the position of a buffer among those sent; None: it was not sent."""
        return next((position for position, own in enumerate(self.buffers) if own is buffer), None)

    def uplink_s(self) -> float:
        """Return the time that their upload took (seconds); 0 if it is not acknowledged."""
        reply = self._reply()
        return 0.0 if reply is None else reply.transfer.uplink_s

    def bytes_up(self) -> int:
        """Return the bytes of their upload; 0 if it is not acknowledged."""
        reply = self._reply()
        return 0 if reply is None else reply.transfer.bytes_up

    def ahead_s(self) -> float:
        """Return the time of encoding and upload that passed before the message needed them (seconds)."""
        return min(self._used_s - self._started_s, self.encode_s + self.uplink_s())

    @property
    def is_used(self) -> bool:
        """Tell whether a message contains them."""
        return self._used_s > 0.0

    def is_answered(self) -> bool:
        """Tell whether the server has answered."""
        return self.acknowledged is not None and self.acknowledged.done()

    def is_refused(self) -> bool:
        """Tell whether the server has answered and does not have them."""
        return self.is_answered() and self._reply() is None

    def _reply(self) -> Optional[Reply]:
        future = self.acknowledged
        if future is None or not future.done() or future.exception() is not None:
            return None
        reply: Reply = future.result()
        return reply


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
