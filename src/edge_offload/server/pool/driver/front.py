"""A driver's end of the socket to its front: receives requests, sends answers and the pool's state."""

from __future__ import annotations

import time
from typing import Any, Dict, Iterator, Sequence, Tuple

import numpy as np
import zmq

from edge_offload.errors import Refused
from edge_offload.link.transport import messages
from edge_offload.link.transport.messages import Message
from edge_offload.server.pool.settings import PoolSettings


class FrontSocket:
    """Socket of one driver, on its thread.

    Args:
        settings: of the front.

    Attributes:
        socket: to be polled.
        received_s: time of the last message.
        ended: the front has told the driver to end.
        counts: requests received, answered, answered in time, and refused.
    """

    def __init__(self, settings: PoolSettings) -> None:
        self.received_s, self.ended = time.monotonic(), False
        self.counts = {"requests": 0, "answered": 0, "in_time": 0, "refused": 0}
        self._slo_s = settings.slo_s
        self._deadlines: Dict[int, float] = {}
        context: zmq.Context[Any] = zmq.Context.instance()
        self.socket: zmq.Socket[Any] = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.sndhwm = 0
        self.socket.connect(settings.endpoint)

    def receive(self) -> Iterator[Tuple[int, Any, float]]:
        """Yield received requests: number, inputs, deadline."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self.received_s = time.monotonic()
            message = messages.unpack_header(frames[0].buffer)
            self.ended = self.ended or message.type == "notify"
            if message.type == "request":
                yield self._read_request(message, frames[1:])

    def _read_request(self, message: Message, parts: Sequence[Any]) -> Tuple[int, Any, float]:
        inputs = [
            (str(spec["dtype"]), tuple(spec["shape"]), tuple(range(len(spec["shape"]))), np.frombuffer(part, np.uint8))
            for spec, part in zip(message.body["inputs"], parts)
        ]
        self.counts["requests"] += 1
        deadline = self._deadlines[message.id] = time.monotonic() + self._slo_s
        return message.id, inputs, deadline

    def answer(self, requests: Tuple[int, ...], payload: Any, emulated: bool) -> None:
        """Send the outputs of a batch's requests; an emulated pool has none."""
        now = time.monotonic()
        count = len(payload) // len(requests)
        for place, request in enumerate(requests):
            outputs = [] if emulated else payload[place * count : (place + 1) * count]
            self.counts["answered"] += 1
            self.counts["in_time"] += now <= self._deadlines.pop(request, 0.0)
            body = {
                "outputs": [
                    {"dtype": dtype, "shape": list(shape), "order": list(order)} for dtype, shape, order, _ in outputs
                ],
                "batch": len(requests), "emulated": emulated,
            }  # fmt: skip
            self.send(Message("reply", 0, request, "", body), [raw for _, _, _, raw in outputs])

    def refuse(self, requests: Sequence[int], reason: str) -> None:
        """Answer requests with a refusal."""
        for request in requests:
            self.counts["refused"] += 1
            self._deadlines.pop(request, None)
            self.send(Message("error", 0, request, "", messages.error_body(Refused(reason))))

    def send(self, message: Message, buffers: Sequence[Any] = ()) -> None:
        """Send a message to the front."""
        self.socket.send_multipart([messages.pack_header(message), *messages.byte_views(buffers)], copy=True)
