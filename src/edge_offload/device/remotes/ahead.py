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
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.replies import Reply
from edge_offload.protocol.blobs import MAX_BLOB_BYTES
from edge_offload.protocol.payloads import is_coded
from edge_offload.protocol.remote import AHEAD


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


class AheadSender:
    """Sends inputs of one session ahead, and keeps the latest until a message contains them.

    Args:
        client: started.
        session: name of the session.
        codec: payload codec.
        timeout_s: longest wait for an answer.
    """

    def __init__(self, client: Client, session: bytes, codec: str, timeout_s: float) -> None:
        self._client = client
        self._session = session
        self._codec = codec
        self._timeout_s = timeout_s
        self._latest: Optional[InputsAhead] = None
        self._sent = 0
        self._is_refused: Optional[bool] = None  # None: the server has not answered yet

    def encode_inputs(self, inputs: Sequence[Buffer]) -> Optional[InputsAhead]:
        """Encode inputs to be sent; None: the server takes none, or they are too large, or small enough as they are."""
        if self._is_refused:
            return None
        uplink = self._client.estimator.current.uplink or None
        encoded = InputsAhead(self._sent + 1, inputs, self._codec, uplink)
        size = sum(memoryview(buffer).nbytes for buffer in encoded.buffers)
        return encoded if 0 < size <= MAX_BLOB_BYTES else None

    def send_inputs(self, encoded: InputsAhead) -> int:
        """Send inputs; return the bytes of those before, if no message contained them.

        Raises:
            LinkLost: there is no connection.
        """
        body = {"session": self._session, "number": encoded.number}
        encoded.acknowledged = self._client.request(AHEAD, body, encoded.buffers, timeout_s=self._timeout_s)
        wasted = self._latest.bytes_up() if self._latest is not None else 0
        self._sent, self._latest = encoded.number, encoded
        return wasted

    def usable_inputs(self) -> Optional[InputsAhead]:
        """Return the inputs that the server has by the time of the next message; None: there are none."""
        latest = self._latest
        if latest is not None and latest.is_answered():
            self._is_refused = latest.is_refused()
        return latest if self._is_refused is False else None

    def take_inputs(self) -> Optional[InputsAhead]:
        """Return the latest inputs, which a message contains; they are not sent for another."""
        latest, self._latest = self._latest, None
        return latest
