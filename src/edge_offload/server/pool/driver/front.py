"""A driver's end of the socket to its front: requests come, answers and the pool's state go."""

from __future__ import annotations

import time
from typing import Any, Dict, Iterator, Sequence, Tuple

import numpy as np
import zmq

from edge_offload.errors import Refused
from edge_offload.link.transport import messages
from edge_offload.link.transport.messages import Message
from edge_offload.server.pool.settings import Settings


class Front:
    """Of one driver, on its thread.

    Args:
        settings: of the front.

    Attributes:
        socket: where something comes.
        heard_s: when something did last.
        ended: whether the front has said that the driver is to end.
        counts: requests that came, were answered, in time, and refused.
    """

    def __init__(self, settings: Settings) -> None:
        self.heard_s, self.ended = time.monotonic(), False
        self.counts = {"requests": 0, "answered": 0, "in_time": 0, "refused": 0}
        self._slo_s = settings.slo_s
        self._deadlines: Dict[int, float] = {}
        context: zmq.Context[Any] = zmq.Context.instance()
        self.socket: zmq.Socket[Any] = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.sndhwm = 0
        self.socket.connect(settings.endpoint)

    def receive(self) -> Iterator[Tuple[int, Any, float]]:
        """Requests that have come: number, inputs, deadline."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self.heard_s = time.monotonic()
            message = messages.unpack_header(frames[0].buffer)
            self.ended = self.ended or message.type == "notify"
            if message.type == "request":
                yield self._take(message, frames[1:])

    def _take(self, message: Message, parts: Sequence[Any]) -> Tuple[int, Any, float]:
        inputs = [
            (str(spec["dtype"]), tuple(spec["shape"]), tuple(range(len(spec["shape"]))), np.frombuffer(part, np.uint8))
            for spec, part in zip(message.body["inputs"], parts)
        ]
        self.counts["requests"] += 1
        deadline = self._deadlines[message.id] = time.monotonic() + self._slo_s
        return message.id, inputs, deadline

    def answer(self, requests: Tuple[int, ...], payload: Any, emulated: bool) -> None:
        """The outputs of a batch's requests; of an emulated pool there are none."""
        now = time.monotonic()
        each = len(payload) // len(requests)
        for place, request in enumerate(requests):
            outputs = [] if emulated else payload[place * each : (place + 1) * each]
            self.counts["answered"] += 1
            self.counts["in_time"] += now <= self._deadlines.pop(request, 0.0)
            body = {
                "outputs": [
                    {"dtype": dtype, "shape": list(shape), "order": list(order)} for dtype, shape, order, _ in outputs
                ],
                "batch": len(requests), "emulated": emulated,
            }  # fmt: skip
            self.send(Message("reply", 0, request, "", body), [raw for _, _, _, raw in outputs])

    def refuse(self, requests: Sequence[int], why: str) -> None:
        """They are not computed."""
        for request in requests:
            self.counts["refused"] += 1
            self._deadlines.pop(request, None)
            self.send(Message("error", 0, request, "", messages.error_body(Refused(why))))

    def send(self, message: Message, buffers: Sequence[Any] = ()) -> None:
        """Say something to the front."""
        self.socket.send_multipart([messages.pack_header(message), *messages.byte_views(buffers)], copy=True)
