"""The virtual device over the encrypted link: what the launcher uses with ``--server``."""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Dict, List, Sequence, Tuple

from edge_offload.capture.entries import Buffer
from edge_offload.capture.messages import parse_answer
from edge_offload.errors import LinkLost
from edge_offload.link.client import Client
from edge_offload.link.replies import Reply

RUN, STAGE = "device.run", "device.stage"
PIECE = 8 << 20
#: Bytes on the way at once; the server tells clients what it takes, and it takes more than this.
MOST_UNDER_WAY = 40 << 20


class LinkRemote:
    """Sends the device's messages through a :class:`~edge_offload.link.client.Client` that is ready.

    Buffers of more than :data:`PIECE` bytes go ahead in pieces, since a message of the link is bounded.

    The session lives as long as the connection. When it breaks, every later call raises LinkLost: what the program
    holds on the device is gone with it, and nothing is silently computed anew.
    """

    def __init__(self, client: Client, timeout_s: float = 120.0) -> None:
        self.client = client
        self.timeout_s = timeout_s
        self.bytes_up = self.bytes_down = self.messages = 0
        self._lock = threading.Lock()
        self._under_way: Dict[Future, int] = {}

    def submit(self, buffers: Sequence[Buffer]) -> Future:
        """See :class:`~edge_offload.capture.remote.Remote`."""
        staged: List[Tuple[int, int]] = []
        direct: List[Buffer] = []
        for index, buffer in enumerate(buffers):
            view = memoryview(buffer).cast("B")
            if view.nbytes <= PIECE:
                direct.append(buffer)
                continue
            staged.append((index, view.nbytes))
            for start in range(0, view.nbytes, PIECE):
                self._request(STAGE, {"index": index, "total": view.nbytes}, [view[start : start + PIECE]])
        answer: Future = Future()
        self.messages += 1
        self._request(RUN, {"staged": [list(item) for item in staged]}, direct).add_done_callback(
            lambda done: self._finish(done, answer)
        )
        return answer

    def close(self) -> None:
        self.client.close()

    def _request(self, kind: str, body: Dict[str, Any], buffers: Sequence[Buffer]) -> Future:
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        with self._lock:
            while self._under_way and sum(self._under_way.values()) + size > MOST_UNDER_WAY:
                done, _ = wait(list(self._under_way), self.timeout_s, FIRST_COMPLETED)
                if not done:
                    raise LinkLost(f"the server took nothing for {self.timeout_s:g} s")
                for future in done:
                    self._under_way.pop(future)
                    if kind == STAGE:
                        future.result()
            future = self.client.request(kind, body, buffers, timeout_s=self.timeout_s)
            self._under_way[future] = size
            for finished in [item for item in self._under_way if item.done() and item is not future]:
                self._under_way.pop(finished)
        return future

    def _finish(self, done: Future, answer: Future) -> None:
        try:
            reply: Reply = done.result()
            self.bytes_up += reply.transfer.bytes_up
            self.bytes_down += reply.transfer.bytes_down
            answer.set_result(parse_answer(reply.buffers))
        except Exception as error:
            answer.set_exception(error)
