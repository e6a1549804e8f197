"""Per-frame results on the server, for whoever watches there: a ROS node, a dashboard."""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Callable, Deque, List, Mapping, Sequence, Tuple

import torch

from edge_offload.errors import EdgeOffloadError, ProtocolError
from edge_offload.execute.tensors import MAX_REPORT_BYTES, check_descriptors, unpack_tensors
from edge_offload.mode import Mode, parse_mode

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerFrameResult:
    """What the network found in one frame, wherever it was computed.

    Attributes:
        peer: name of the robot.
        model: name of the model.
        mode: where it was computed.
        meta: what the robot's program says of the frame (stamp, sequence number, letterbox…); plain values.
        outputs: the network's outputs.
        cost: the robot's figures (``total_s``, ``bytes_up``…); empty in mode ``server``, where the server does not
            know them yet when it has the outputs.
    """

    peer: str
    model: str
    mode: Mode
    meta: Mapping[str, Any]
    outputs: Tuple[torch.Tensor, ...]
    cost: Mapping[str, Any] = field(default_factory=dict)


Watcher = Callable[[ServerFrameResult], None]


class ResultFeed:
    """Hands results to watchers in a thread of its own, so that a slow watcher delays no inference."""

    def __init__(self) -> None:
        self._watchers: List[Watcher] = []
        # older results that wait for slow watchers are dropped
        self._waiting: Deque[Callable[[], ServerFrameResult]] = deque(maxlen=16)
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._call_watchers, name="edge-offload-results", daemon=True)

    def add_watcher(self, watcher: Watcher) -> None:
        """Call ``watcher`` with every result from now on (not in the caller's thread)."""
        with self._changed:
            self._watchers.append(watcher)

    def start(self) -> None:
        """Start calling the watchers."""
        self._thread.start()

    def close(self) -> None:
        """Stop; waiting results are dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(5.0)

    def add_computed(self, result: ServerFrameResult) -> None:
        """Add a result that was computed here."""
        self._queue_result(lambda: result)

    def add_reported(self, peer: str, body: Mapping[str, Any], buffers: Sequence[Any]) -> None:
        """Add a result that a robot reports; decoded later, in the feed's thread.

        Raises:
            ProtocolError, BadInput: the report is malformed or too large.
        """
        model, meta, cost = body.get("model"), body.get("meta", {}), body.get("cost", {})
        if not isinstance(model, str) or not isinstance(meta, Mapping) or not isinstance(cost, Mapping):
            raise ProtocolError("a report names a model and holds maps meta and cost")
        mode = parse_mode(str(body.get("mode")))
        check_descriptors(body.get("outputs"), len(buffers), max_bytes=MAX_REPORT_BYTES)
        if sum(memoryview(part).nbytes for part in buffers) > 2 * MAX_REPORT_BYTES:
            raise ProtocolError(f"a report carries at most {MAX_REPORT_BYTES} bytes")

        def decode_result() -> ServerFrameResult:
            outputs = unpack_tensors(body["outputs"], buffers, max_bytes=MAX_REPORT_BYTES)
            return ServerFrameResult(peer, model, mode, meta, outputs, cost)

        self._queue_result(decode_result)

    def _queue_result(self, make: Callable[[], ServerFrameResult]) -> None:
        with self._changed:
            if self._watchers and not self._closed:
                self._waiting.append(make)
                self._changed.notify()

    def _call_watchers(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                make = self._waiting.popleft()
                watchers = list(self._watchers)
            try:
                result = make()
            except EdgeOffloadError as error:
                _log.warning("a robot's report cannot be read: %s", error)
                continue
            for watcher in watchers:
                try:
                    watcher(result)
                except Exception:
                    _log.exception("a watcher of results failed")
