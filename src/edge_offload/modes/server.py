"""Mode ``server`` as the robot sees it: open the model in the background, ask per frame, never wait for the dead."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Protocol, Sequence, Tuple

import torch

from edge_offload import background
from edge_offload.errors import BadInput, EdgeOffloadError, LinkLost, ProtocolError, Refused
from edge_offload.execute.engines.base import EAGER, ENGINE
from edge_offload.execute.fingerprint import exactness_refusal, list_differences, two_torches
from edge_offload.execute.tensors import Specs, pack_tensors, specs_of, unpack_tensors
from edge_offload.link.estimate.estimator import Transfer
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.replies import LinkState, Reply
from edge_offload.manager.lateness import Budget
from edge_offload.manager.tuning import GIVE_UP_S
from edge_offload.mode import Mode
from edge_offload.models.entry import Scalar
from edge_offload.modes.remote import Handles, Progress
from edge_offload.modes.runner import Attempt, FailedAttempt, Runner

#: Characters in the name of an engine.
MAX_ENGINE = 200

_log = logging.getLogger(__name__)


#: In a call's facts (``meta``): when its frame was captured, on this machine's monotonic clock (seconds).
CAPTURED = "captured_s"


class Follower(Protocol):
    """Follows turns that a server gives: told of what is sent in them, and how long it travelled."""

    def describe_slot(self, captured: float) -> Dict[str, Any]:
        """Return what to add to the request with the frame ``captured`` then."""

    def add_transfer_times(self, captured: float, transfer: Transfer) -> None:
        """Take in the transfer of its result."""


@dataclass(frozen=True)
class _Packed:
    """Encoded inputs, how long encoding took (seconds), and what the link carries back (bytes/s; 0: unknown)."""

    descriptors: List[Dict[str, Any]]
    buffers: List[Any]
    encode_s: float
    downlink: float

    @property
    def nbytes(self) -> int:
        return sum(memoryview(part).nbytes for part in self.buffers)


class _EarlierRequests:
    """Transfers of the robot's latest requests, behind which later ones waited. Thread-safe."""

    def __init__(self) -> None:
        self._transfers: Deque[Transfer] = deque(maxlen=8)  # requests that this one may have waited behind
        self._lock = threading.Lock()

    def add_finished(self, done: Future[Any]) -> None:
        """Take in a request that has ended, on the link's thread; one without a reply held nothing up."""
        if not done.cancelled() and done.exception() is None:
            with self._lock:
                self._transfers.append(done.result().transfer)

    def behind_s(self, own: Transfer, queue_s: float) -> Dict[str, float]:
        """Return the seconds of each stage that a request spent behind the robot's own earlier ones."""
        with self._lock:
            before = [each for each in self._transfers if each.sent_s < own.sent_s]
        if not before:
            return {}
        # replies come in the order of the requests
        last = max(before, key=lambda each: each.sent_s)
        stages = {
            "uplink": (last.server_received_s - own.sent_s, own.uplink_s),
            "queue": (last.server_sent_s - own.server_received_s, queue_s),
            "downlink": (last.received_s - own.server_sent_s, own.downlink_s),
        }
        return {stage: min(behind_s, all_s) for stage, (behind_s, all_s) in stages.items() if behind_s > 0}


class _Equality:
    """Compares what computes on the robot and on the server: whether results have the same bits.

    Args:
        client: the link, whose handshake states the server's fingerprint.
        own_fingerprint: the robot's.
        own_engine: returns the engine that computed last on the robot.

    Attributes:
        opened_engine: the engine that the server stated when it opened the model; None: it stated none.
        last_engine: the engine of the server's last reply.
    """

    def __init__(self, client: Client, own_fingerprint: Mapping[str, Any], own_engine: Callable[[], str]) -> None:
        self._client, self._own_fingerprint, self._own_engine = client, own_fingerprint, own_engine
        self.opened_engine: Optional[str] = None
        self.last_engine = EAGER
        self._reported = ""

    def find_differences(self) -> List[str]:
        """Describe how the server's fingerprint differs from the robot's; empty when results are bit-equal."""
        ours, theirs = self.fingerprints()
        if theirs is None:
            return ["it is not known"]
        different = list_differences(ours, theirs)
        own = self._own_engine()
        if not different and self._engine() != EAGER and own != self.last_engine:
            # the same engine: one that is not in force yet or any more, or that was built of another graph
            different = [f"computed last: by {own} here, {self.last_engine} there"]
        return different

    def fingerprints(self) -> Tuple[Dict[str, Any], Optional[Dict[str, Any]]]:
        """Return the robot's and the server's, each with its engine; None: the server has not stated it."""
        theirs = self._client.welcome.get("fingerprint")
        stated = {**theirs, ENGINE: self._engine()} if isinstance(theirs, Mapping) else None
        return {ENGINE: EAGER, **self._own_fingerprint}, stated

    def _engine(self) -> str:
        """Return what is to compute on the server: ``eager``, or an engine."""
        theirs = self._client.welcome.get("fingerprint")
        stated = theirs.get(ENGINE, EAGER) if isinstance(theirs, Mapping) else EAGER
        return str(stated)[:MAX_ENGINE] if self.opened_engine is None else self.opened_engine

    def torches(self) -> str:
        """Return the remedy for another release of torch on the server, in one line; empty: none is needed."""
        return two_torches(self._own_fingerprint, self._client.welcome.get("fingerprint"))

    def warn_of_torch(self) -> None:
        """Log :meth:`torches` once."""
        torches = self.torches()
        if torches and torches != self._reported:
            _log.warning("%s", torches)
        self._reported = torches


class ServerRunner(Runner):
    """Runs inferences on the server's replica of a model.

    Args:
        name, options: of the model in the registry of the server.
        client: the link; started and closed by its owner.
        state_hash: makes the hash of the robot's weights; called once, in the background.
        own_fingerprint: the robot's, to say in words whether results are bit-equal.
        codec: payload codec, both ways.
        exact: do not use a server whose results may have other bits.
        own_engine: says what computed last on the robot.
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
        exact: bool = False,
        own_engine: Callable[[], str] = lambda: EAGER,
    ) -> None:
        self._name = name
        self._options = dict(options)
        self._client = client
        self._state_hash = state_hash
        self._hash: Optional[str] = None
        self._codec = codec
        self._exact = exact
        self._equality = _Equality(client, own_fingerprint, own_engine)
        self._earlier = _EarlierRequests()
        self._follower: Optional[Follower] = None
        self._handles: Handles[Specs, int] = Handles(
            client, f"model {name!r}", close=lambda handle: client.request("close_model", {"handle": handle})
        )
        self._full = 0

    def prepare(self, specs: Specs) -> None:
        """Open the model for these inputs as soon as the link allows; returns at once."""
        self._handles.unavailable_reason(specs, lambda: functools.partial(self._open, specs))

    def follow(self, follower: Follower) -> None:
        """Send frames in the server's slots, as ``follower`` says, from now on."""
        self._follower = follower

    def handle(self, specs: Specs) -> Optional[int]:
        """Return the handle of the open model for these inputs; None: it is not open."""
        return self._handles.get_handle(specs)

    def link_changed(self, state: LinkState, _cause: str) -> None:
        """Open again what was open before the connection broke. For the client's ``on_state``; returns at once."""
        self._handles.link_changed(state)

    def unavailable_reason(self, inputs: Sequence[torch.Tensor]) -> Optional[str]:
        """Implement :class:`~edge_offload.modes.runner.Runner`."""
        specs = specs_of(inputs)
        reason = self._handles.unavailable_reason(specs, lambda: functools.partial(self._open, specs))
        if reason is None and self._exact:
            reason = exactness_refusal(*self._equality.fingerprints()) or None
        return reason

    def attempt_inference(self, inputs: Sequence[torch.Tensor], meta: Mapping[str, Any], budget: Budget) -> Attempt:
        """Implement :class:`~edge_offload.modes.runner.Runner`."""
        specs = specs_of(inputs)
        handle = self._handles.get_handle(specs)
        if handle is None:
            raise LinkLost(f"model {self._name!r} is not open on the server")
        started_s = time.monotonic()
        packed = self._pack(inputs)
        try:
            return self._request_inference(handle, packed, budget, meta)
        except EdgeOffloadError as error:
            if isinstance(error, Refused):
                self._handles.pause(0.2, "the server was full a moment ago")  # seconds
                self._full += 1
                if self._full >= 5 and self._client.leave("it is full"):  # times in a row
                    self._full = 0
            elif isinstance(error, BadInput):
                self._handles.forget(specs, handle)  # it, or its shapes, are not known there (any more)
            raise FailedAttempt(error, time.monotonic() - started_s, packed.nbytes) from error

    def state(self) -> str:
        """The link, what is open on the server, and whether results are bit-equal to local ones."""
        why, is_open = self._handles.state()
        if why or not is_open:
            return why
        different = self.different()
        equality = f"may differ in the last digits ({'; '.join(different)})" if different else "are bit-equal to local"
        return f"{self._client.cause}; model {self._name!r} is open; results {equality}"

    def different(self) -> List[str]:
        """Describe how the server's fingerprint differs from the robot's; empty when results are bit-equal."""
        return self._equality.find_differences()

    def torches(self) -> str:
        """Return the remedy for another release of torch on the server, in one line; empty: none is needed."""
        return self._equality.torches()

    def _open(self, specs: Specs, _progress: Progress) -> int:
        """Open, and have one inference computed: the first one pays for the start."""
        self._equality.warn_of_torch()
        if self._hash is None:
            self._hash = self._state_hash()
        body = {
            "name": self._name,
            "options": self._options,
            "state_hash": self._hash,
            "inputs": [spec.to_dict() for spec in specs],
        }
        timeout_s = 300.0  # for building the model and its first run
        future = self._client.request("open_model", body, timeout_s=timeout_s)
        opened = background.result(future, timeout_s + 1.0).body
        handle = opened.get("handle")
        if type(handle) is not int:
            raise ProtocolError("the server opened the model without a handle")
        self._equality.opened_engine = _engine(opened) if "engine" in opened else None
        probe = self._pack([spec.zeros() for spec in specs])
        try:
            self._request_inference(handle, probe, Budget(GIVE_UP_S, GIVE_UP_S), {"probe": True})
        except EdgeOffloadError:
            self._client.request("close_model", {"handle": handle})  # another attempt opens another one
            raise
        return handle

    def _pack(self, inputs: Sequence[torch.Tensor]) -> _Packed:
        started_s = time.monotonic()
        link = self._client.estimator.current
        descriptors, buffers = pack_tensors(inputs, self._codec, link.uplink or None)
        return _Packed(descriptors, buffers, time.monotonic() - started_s, link.downlink)

    def _request_inference(self, handle: int, packed: _Packed, budget: Budget, meta: Mapping[str, Any]) -> Attempt:
        body = {
            "handle": handle,
            "inputs": packed.descriptors,
            "codec": self._codec,
            "wait_s": budget.use_s,
            "meta": {key: value for key, value in meta.items() if key != CAPTURED},
        }
        if packed.downlink:
            body["downlink"] = packed.downlink
        captured = meta.get(CAPTURED)
        if self._follower is not None and captured is not None:
            body.update(self._follower.describe_slot(captured))
        future = self._client.request("infer", body, packed.buffers, timeout_s=budget.give_up_s)
        # on the link's thread: it is there before the reply to the next request is
        future.add_done_callback(self._earlier.add_finished)
        try:
            reply: Reply = future.result(budget.give_up_s)
        except FutureTimeout:
            raise LinkLost(f"the server did not answer within {budget.give_up_s:.3f} s") from None
        attempt = self._make_attempt(reply, packed.encode_s, time.monotonic())
        self._equality.last_engine = attempt.engine
        self._full = 0
        if self._follower is not None and captured is not None:
            self._follower.add_transfer_times(captured, reply.transfer)
        return attempt

    def _make_attempt(self, reply: Reply, encode_s: float, arrived: float) -> Attempt:
        body, transfer = reply.body, reply.transfer
        outputs = unpack_tensors(body.get("outputs"), reply.buffers, max_bytes=1 << 30)  # of all outputs
        stages = {key: _seconds(body, key) for key in ("decode_s", "queue_s", "compute_s", "encode_s")}
        behind_s = self._earlier.behind_s(transfer, stages["queue_s"])
        parts = {"uplink": transfer.uplink_s, "queue": sum(stages.values()), "downlink": transfer.downlink_s}
        return Attempt(
            outputs=outputs,
            stages_s={
                "encode": encode_s + stages["encode_s"],
                "queue": max(transfer.sent_s - transfer.queued_s, 0.0) + stages["queue_s"],
                "uplink": transfer.uplink_s,
                "compute_server": stages["compute_s"],
                "downlink": transfer.downlink_s,
                "decode": time.monotonic() - arrived + stages["decode_s"],
            },
            bytes_up=transfer.bytes_up,
            bytes_down=transfer.bytes_down,
            round_trips=1,
            clock_error_s=transfer.clock_error_s,
            engine=_engine(body),
            behind_s=behind_s,
            part_s=max(seconds - behind_s.get(stage, 0.0) for stage, seconds in parts.items()),
        )


def _engine(body: Mapping[str, Any]) -> str:
    """Return what computed, as the server states; one without engines states nothing: torch."""
    engine = body.get("engine", EAGER)
    if not isinstance(engine, str) or len(engine) > MAX_ENGINE:
        raise ProtocolError("the server's reply names no engine")
    return engine


def _seconds(body: Mapping[str, Any], key: str) -> float:
    value = body.get(key)
    if not isinstance(value, float) or not 0.0 <= value < 1e6:
        raise ProtocolError(f"the server's reply holds no seconds under {key}")
    return value
