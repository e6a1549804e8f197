"""Mode ``server`` as the robot sees it: open the model in the background, ask per frame, never wait for the dead."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from edge_offload.errors import BadInput, EdgeOffloadError, LinkLost, ProtocolError, Refused
from edge_offload.execute.fingerprint import differences, two_torches
from edge_offload.execute.tensors import TensorSpec, pack, unpack
from edge_offload.link.replies import LinkState, Reply
from edge_offload.link.transport.client import Client
from edge_offload.mode import Mode
from edge_offload.models.entry import Scalar
from edge_offload.modes.runner import Attempt, FailedAttempt
from edge_offload.modes.timeouts import TimeoutLimits, TimeoutPolicy

Specs = Tuple[TensorSpec, ...]

#: Seconds that building a model and its first run may take on the server.
OPEN_TIMEOUT_S = 300.0
#: Seconds between attempts to open a model that the server refused.
REOPEN_S = 2.0
#: Seconds without requests after the server said "full".
FULL_PAUSE_S = 0.2
#: Seconds after which a reply that never came is given up.
GIVE_UP_S = 10.0
#: Input shapes that are kept open at once.
MAX_SHAPES = 8
#: Bytes of all outputs of one inference.
MAX_OUTPUT_BYTES = 1 << 30

_log = logging.getLogger(__name__)


@dataclass
class _Opening:
    """A model on its way to being open, or open, for one set of input shapes on one connection."""

    connection: int
    handle: Optional[int] = None
    problem: str = ""
    retry_s: float = 0.0


@dataclass(frozen=True)
class _Packed:
    """Encoded inputs, when encoding began and how long it took (seconds)."""

    descriptors: List[Dict[str, Any]]
    buffers: List[Any]
    began_s: float
    encode_s: float

    @property
    def nbytes(self) -> int:
        return sum(memoryview(part).nbytes for part in self.buffers)


class ServerRunner:
    """Runs inferences on the server's replica of a model.

    Args:
        name, options: of the model in the registry of the server.
        client: the link; started and closed by its owner.
        state_hash: makes the hash of the robot's weights; called once, in the background.
        own_fingerprint: the robot's, to say in words whether results are bit-equal.
        codec: payload codec, both ways.
        limits: bounds on the wait for a reply.
    """

    mode = Mode.SERVER

    def __init__(
        self,
        name: str,
        options: Mapping[str, Scalar],
        client: Client,
        state_hash: Callable[[], str],
        own_fingerprint: Mapping[str, Any],
        codec: str = "auto",
        limits: Optional[TimeoutLimits] = None,
    ) -> None:
        self._name = name
        self._options = dict(options)
        self._client = client
        self._state_hash = state_hash
        self._hash: Optional[str] = None
        self._own_fingerprint = own_fingerprint
        self._codec = codec
        self.patience = TimeoutPolicy(limits)
        self._openings: Dict[Specs, _Opening] = {}
        self._overdue: Optional[Future[Any]] = None
        self._overdue_s = 0.0
        self._pause_until_s = 0.0
        self._lock = threading.Lock()
        self._told = ""

    def prepare(self, specs: Specs) -> None:
        """Open the model for these inputs as soon as the link allows; returns at once."""
        self._opening_obstacle(specs)

    def link_changed(self, state: LinkState, _cause: str) -> None:
        """Open again what was open before the connection broke. For the client's ``on_state``; returns at once."""
        if state is LinkState.READY:
            with self._lock:
                known = list(self._openings)
            for specs in known:
                self._opening_obstacle(specs)

    def unavailable_reason(self, inputs: Sequence[torch.Tensor]) -> Optional[str]:
        """See :class:`~edge_offload.modes.runner.Runner`."""
        reason = self._opening_obstacle(tuple(TensorSpec.of(tensor) for tensor in inputs))
        if reason is not None:
            return reason
        with self._lock:
            now = time.monotonic()
            if self._overdue is not None:
                return f"the server has not answered for {now - self._overdue_s:.2f} s"
            if now < self._pause_until_s:
                return "the server was full a moment ago"
        return None

    def run(
        self, inputs: Sequence[torch.Tensor], deadline_s: Optional[float], local_s: float, meta: Mapping[str, Any]
    ) -> Attempt:
        """See :class:`~edge_offload.modes.runner.Runner`."""
        specs = tuple(TensorSpec.of(tensor) for tensor in inputs)
        with self._lock:
            opening = self._openings.get(specs)
        if opening is None or opening.handle is None:
            raise LinkLost(f"model {self._name!r} is not open on the server")
        wait_s = self.patience.wait_s(deadline_s, local_s)
        began = time.monotonic()
        packed = self._pack(inputs)
        try:
            return self._ask(opening.handle, packed, wait_s, meta)
        except EdgeOffloadError as error:
            with self._lock:
                if isinstance(error, Refused):
                    self._pause_until_s = time.monotonic() + FULL_PAUSE_S
                elif isinstance(error, BadInput) and self._openings.get(specs) is opening:
                    # the handle or its shapes are not known there (any more): open again
                    del self._openings[specs]
            raise FailedAttempt(error, time.monotonic() - began, packed.nbytes) from error

    def state(self) -> str:
        """The link, what is open on the server, and whether results are bit-equal to local ones."""
        if self._client.state is not LinkState.READY:
            return f"no server: {self._client.cause}"
        with self._lock:
            openings = list(self._openings.values())
        problems = [opening.problem for opening in openings if opening.problem]
        if problems:
            return problems[0]
        if not any(opening.handle is not None for opening in openings):
            return f"{self._client.cause}; model {self._name!r} is not open yet"
        return f"{self._client.cause}; model {self._name!r} is open; {self._equality()}"

    def different(self) -> List[str]:
        """How the server's fingerprint differs from the robot's, in words; empty when results are bit-equal."""
        theirs = self._client.welcome.get("fingerprint")
        return differences(self._own_fingerprint, theirs) if isinstance(theirs, Mapping) else ["it is not known"]

    def torches(self) -> str:
        """What to do about another release of torch on the server, in one line; empty while there is nothing to do."""
        return two_torches(self._own_fingerprint, self._client.welcome.get("fingerprint"))

    def _equality(self) -> str:
        found = self.different()
        return (
            f"results may differ in the last digits ({'; '.join(found)})" if found else "results are bit-equal to local"
        )

    def _opening_obstacle(self, specs: Specs) -> Optional[str]:
        connection = self._client.counters["connections"]
        if self._client.state is not LinkState.READY:
            with self._lock:
                self._openings.setdefault(specs, _Opening(connection=-1))
            return f"no server: {self._client.cause}"
        with self._lock:
            opening = self._openings.get(specs)
            stale = opening is None or opening.connection != connection
            if stale or (opening is not None and opening.problem and time.monotonic() >= opening.retry_s):
                if stale:
                    # what was overdue belongs to the connection that broke
                    self._overdue = None
                opening = self._openings[specs] = _Opening(connection)
                self._close_oldest(connection)
                threading.Thread(
                    target=self._open, args=(specs, opening), name="edge-offload-open", daemon=True
                ).start()
            if opening is not None and opening.problem:
                return opening.problem
            if opening is None or opening.handle is None:
                return f"model {self._name!r} is being opened on the server"
        return None

    def _close_oldest(self, connection: int) -> None:
        """Keep few shapes open, so that a model whose inputs vary in size does not meet the server's quota."""
        while len(self._openings) > MAX_SHAPES:
            oldest = self._openings.pop(next(iter(self._openings)))
            if oldest.handle is not None and oldest.connection == connection:
                self._client.request("close_model", {"handle": oldest.handle})

    def _open(self, specs: Specs, opening: _Opening) -> None:
        """In a thread of its own: open, and time one inference so that the first frame's wait is known."""
        torches = self.torches()
        if torches and torches != self._told:
            _log.warning("%s", torches)
        self._told = torches
        try:
            if self._hash is None:
                self._hash = self._state_hash()
            body = {
                "name": self._name,
                "options": self._options,
                "state_hash": self._hash,
                "inputs": [spec.to_dict() for spec in specs],
            }
            future = self._client.request("open_model", body, timeout_s=OPEN_TIMEOUT_S)
            handle = future.result(OPEN_TIMEOUT_S + 1.0).body.get("handle")
            if type(handle) is not int:
                raise ProtocolError("the server opened the model without a handle")
            probe = self._pack([spec.zeros() for spec in specs])
            self._ask(handle, probe, GIVE_UP_S, {"probe": True})
            opening.handle = handle
        except (EdgeOffloadError, FutureTimeout) as error:
            opening.retry_s = time.monotonic() + REOPEN_S
            opening.problem = f"the server did not open model {self._name!r}: {error}"
            _log.warning("%s", opening.problem)

    def _pack(self, inputs: Sequence[torch.Tensor]) -> _Packed:
        began = time.monotonic()
        descriptors, buffers = pack(inputs, self._codec)
        return _Packed(descriptors, buffers, began, time.monotonic() - began)

    def _ask(self, handle: int, packed: _Packed, wait_s: float, meta: Mapping[str, Any]) -> Attempt:
        body = {
            "handle": handle,
            "inputs": packed.descriptors,
            "codec": self._codec,
            "wait_s": wait_s,
            "meta": dict(meta),
        }
        future = self._client.request("infer", body, packed.buffers, timeout_s=max(GIVE_UP_S, 2 * wait_s))
        try:
            reply: Reply = future.result(wait_s)
        except FutureTimeout:
            self._late(future, packed.began_s)
            raise LinkLost(f"the server did not answer within {wait_s:.3f} s") from None
        attempt = self._attempt(reply, packed.encode_s, time.monotonic())
        self.patience.note(time.monotonic() - packed.began_s)
        return attempt

    def _late(self, future: Future[Any], began: float) -> None:
        """Until this reply has come or is given up, no further frame waits; its result is dropped."""
        with self._lock:
            self._overdue, self._overdue_s = future, began

        def settled(done: Future[Any]) -> None:
            with self._lock:
                if self._overdue is done:
                    self._overdue = None
            if done.exception() is None:
                self.patience.note(time.monotonic() - began)

        future.add_done_callback(settled)

    def _attempt(self, reply: Reply, encode_s: float, arrived: float) -> Attempt:
        body, transfer = reply.body, reply.transfer
        outputs = unpack(body.get("outputs"), reply.buffers, max_bytes=MAX_OUTPUT_BYTES)
        return Attempt(
            outputs=outputs,
            stages_s={
                "encode": encode_s + _seconds(body, "encode_s"),
                "queue": max(transfer.sent_s - transfer.queued_s, 0.0) + _seconds(body, "queue_s"),
                "uplink": transfer.uplink_s,
                "compute_server": _seconds(body, "compute_s"),
                "downlink": transfer.downlink_s,
                "decode": time.monotonic() - arrived + _seconds(body, "decode_s"),
            },
            bytes_up=transfer.bytes_up,
            bytes_down=transfer.bytes_down,
            round_trips=1,
            clock_error_s=transfer.clock_error_s,
        )


def _seconds(body: Mapping[str, Any], key: str) -> float:
    value = body.get(key)
    if not isinstance(value, float) or not 0.0 <= value < 1e6:
        raise ProtocolError(f"the server's reply holds no seconds under {key}")
    return value
