"""The virtual device over the encrypted link: what the launcher uses with ``--server``."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import torch

from edge_offload import background
from edge_offload.device.ahead import InputsAhead
from edge_offload.device.remote import valid_facts
from edge_offload.errors import EdgeOffloadError, LinkLost, ProtocolError
from edge_offload.execute.fingerprint import two_torches
from edge_offload.ir.trace.calls import Buffer
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.replies import LinkState, OnPart, Reply
from edge_offload.protocol import payloads
from edge_offload.protocol.arriving import PendingAnswer
from edge_offload.protocol.blobs import MAX_BLOB_BYTES, NamedBlobs, digest, find_missing, split_blobs
from edge_offload.protocol.messages import Answer, parse_answer
from edge_offload.protocol.remote import AHEAD, END, HAVE, PUT, RESUME, RUN, STAGE, Remote, SessionLost

#: Buffers that are likely to come again are looked for on the server from this size on.
MIN_BLOB_BYTES = 16 << 10
#: Bytes on the way at once; the server tells clients what it takes, and it takes more than this.
MAX_IN_FLIGHT_BYTES = 40 << 20
#: Seconds that a program may wait, before it goes on, for its message to leave.
MAX_SEND_WAIT_S = 0.02
#: Most bytes of a decoded answer.
MAX_ANSWER_BYTES = 4 << 30


@dataclass
class _Sent:
    """A message that has not been answered: enough to send it again."""

    number: int
    buffers: List[Buffer]
    coded: List[payloads.Coded]
    retain: bool
    give_up_s: float
    answer: PendingAnswer = field(default_factory=PendingAnswer)
    attempt: int = 0
    parts: int = 0
    ahead: Optional[InputsAhead] = None


@dataclass
class Weights:
    """Transfer of the buffers that are likely to come again (bytes)."""

    sent: int = 0
    cached: int = 0
    started_s: float = 0.0
    ended_s: float = 0.0


@dataclass
class TimeSpent:
    """Seconds since the last :meth:`reset`, over all messages; the two ways are off by at most ``clock_error_s``.

    Of ``server_s``, ``compute_s`` is what the session took to run the messages, without codecs and queues. Of
    ``encode_s`` and ``uplink_s``, ``ahead_s`` passed before the message was submitted (:meth:`LinkRemote.send_ahead`).
    """

    encode_s: float = 0.0
    uplink_s: float = 0.0
    server_s: float = 0.0
    compute_s: float = 0.0
    downlink_s: float = 0.0
    decode_s: float = 0.0
    ahead_s: float = 0.0
    clock_error_s: float = 0.0

    def reset(self) -> None:
        """Count from here."""
        self.encode_s = self.uplink_s = self.server_s = self.compute_s = 0.0
        self.downlink_s = self.decode_s = self.ahead_s = self.clock_error_s = 0.0


class LinkRemote(Remote):
    """Sends the device's messages through a :class:`~edge_offload.link.transport.client.Client`.

    Arrays are coded without loss, weights are sent once in the server's life, and buffers of more than 8 MiB
    go ahead in pieces, since a message of the link is bounded.

    When the connection breaks, the session goes on over the next one: messages are numbered, the server keeps the
    answers that were not acknowledged, and what it did not get is sent again, so every message takes effect exactly
    once. If that cannot be done within ``resume_s``, every later call raises LinkLost: what the program holds on the
    device is gone. If the server has forgotten the session every later call raises SessionLost, until :meth:`renew`.

    Args:
        client: started.
        timeout_s: longest wait for one answer.
        resume_s: how long a broken connection may take to come back; 0 gives the session up at once.
        codec: payload codec, both ways; ``auto`` is lossless.
        on_weights: called after every upload of weights.
        owns_client: whether :meth:`close` closes it.
        refused: operators that are others on the server, each with the reason.
    """

    def __init__(
        self,
        client: Client,
        timeout_s: float = 120.0,
        resume_s: float = 30.0,
        codec: str = "auto",
        on_weights: Optional[Callable[[Weights], None]] = None,
        owns_client: bool = True,
        refused: Optional[Mapping[str, str]] = None,
    ) -> None:
        super().__init__()
        self.client = client
        self.timeout_s = timeout_s
        self.resume_s = resume_s
        self.codec = codec
        self.resumed = self.parts = 0
        self.weights = Weights()
        self.spent = TimeSpent()
        self.session = os.urandom(16)
        self.refused = refused or {}
        self.facts = valid_facts(client.welcome.get("gpu"))
        self.renewable = resume_s > 0.0
        self._owns_client = owns_client
        self._on_weights = on_weights
        self._lock = threading.Lock()
        self._in_flight: Dict[Future[Any], int] = {}
        self._unanswered: OrderedDict[int, _Sent] = OrderedDict()
        self._ahead: Optional[InputsAhead] = None
        self._takes_ahead: Optional[bool] = None  # None: the server has not answered yet
        self._sent_ahead = 0
        self._lost: Optional[LinkLost] = None
        self._resuming = False
        self._closed = False
        self._connection = client.counters["connections"]
        self._fingerprint = client.welcome.get("fingerprint")

    @property
    def torches(self) -> str:
        """Remedy for another release of torch on the server, in one line; empty: the same release."""
        return two_torches({"torch": torch.__version__}, self._fingerprint)

    @property
    def unanswered(self) -> int:
        """Messages whose answer is not complete."""
        return len(self._unanswered)

    def submit(self, buffers: Sequence[Buffer], reusable: bool = False) -> PendingAnswer:
        background.give_way()  # a model that is learnt here in the background
        with self._lock:
            if self._lost is not None:
                raise self._lost
            started_s = time.monotonic()
            uplink = self.client.estimator.current.uplink or None
            ahead = None if reusable else self._usable_ahead()
            find = ahead.find_encoding if ahead is not None else lambda _array: None
            coded, plain = ([], list(buffers)) if reusable else payloads.encode(buffers, self.codec, uplink, find)
            self.spent.encode_s += time.monotonic() - started_s
            self.messages += 1
            sent = _Sent(self.messages, plain, coded, reusable, time.monotonic() + self.timeout_s)
            if ahead is not None and ahead.is_used:
                sent.ahead, self._ahead = ahead, None
            self._unanswered[sent.number] = sent
            if not self._resuming:
                try:
                    if self.resume_s and self._connection != self.client.counters["connections"]:
                        raise LinkLost("the connection broke")  # it came back: is the session still there?
                    self._transmit_message(sent)
                except LinkLost as error:
                    self._resume_or_end(error)
            if self._lost is not None:
                raise self._lost
        self.client.let_go(MAX_SEND_WAIT_S)
        return sent.answer

    def send_ahead(self, inputs: Sequence[Buffer]) -> None:
        if self._lost is not None or self._resuming or self._closed or self._takes_ahead is False:
            return
        ahead = InputsAhead(self._sent_ahead + 1, inputs, self.codec, self.client.estimator.current.uplink or None)
        if not 0 < sum(memoryview(buffer).nbytes for buffer in ahead.buffers) <= MAX_BLOB_BYTES:
            return
        with self._lock, contextlib.suppress(EdgeOffloadError):
            body = {"session": self.session, "number": ahead.number}
            ahead.acknowledged = self.client.request(AHEAD, body, ahead.buffers, timeout_s=self.timeout_s)
            if self._ahead is not None:
                self.bytes_up += self._ahead.bytes_up()  # no message contained them
            self._sent_ahead, self._ahead = ahead.number, ahead

    def can_renew(self) -> bool:
        return self._lost is not None and self.client.state is LinkState.READY

    def renew(self) -> None:
        with self._lock:
            if self.client.welcome.get("fingerprint") != self._fingerprint:
                raise LinkLost("the server that came back computes with another torch, processor or thread count")
            self._end_session(LinkLost("this session is over"))
            self.session, self.messages, self._lost = os.urandom(16), 0, None
            self._ahead = None
            self._in_flight.clear()
            self._connection = self.client.counters["connections"]

    def close(self) -> None:
        """End the session and the connection."""
        self._closed = True
        if self.client.state is LinkState.READY:
            ended = self.client.request(END, {"session": self.session}, timeout_s=1.0)
            if self._owns_client:
                with contextlib.suppress(EdgeOffloadError, FutureTimeout):
                    ended.result(1.0)
        if self._owns_client:
            self.client.close()

    # -- sending; the lock is held

    def _usable_ahead(self) -> Optional[InputsAhead]:
        """Return the inputs sent ahead, if the server has them by the time of the next message; else None."""
        ahead = self._ahead
        if ahead is not None and ahead.is_answered():
            self._takes_ahead = not ahead.is_refused()
        return ahead if self._takes_ahead else None

    def _transmit_message(self, sent: _Sent) -> None:
        sent.attempt += 1
        parts: List[Any] = []
        direct: List[Buffer] = []
        blobs: List[memoryview] = []
        named: List[bytes] = []
        offered: List[bytes] = []
        ahead = sent.ahead
        for index, buffer in enumerate(sent.buffers):
            position = None if ahead is None else ahead.position_of(buffer)
            if position is not None:
                parts.append([memoryview(buffer).nbytes, position])
                continue
            if isinstance(buffer, NamedBlobs):
                parts.append([buffer.nbytes, list(buffer.names)])
                named += buffer.names
                continue
            view = memoryview(buffer).cast("B")
            if sent.retain and view.nbytes >= MIN_BLOB_BYTES:
                pieces = split_blobs(view)
                digests = [digest(piece) for piece in pieces]
                parts.append([view.nbytes, digests])
                offered += digests
                blobs += pieces
            elif view.nbytes > MAX_BLOB_BYTES:
                parts.append([view.nbytes, None])
                for number, piece in enumerate(split_blobs(view)):
                    where = {"index": index, "offset": number * MAX_BLOB_BYTES, "total": view.nbytes}
                    self._request(STAGE, sent, where, [piece])
            else:
                parts.append(None)
                direct.append(view)
        if blobs:
            self._send_missing(sent, blobs, offered)
        if any(missing for _, missing in find_missing(named, lambda names: self._missing_on_server(sent, names))):
            raise ProtocolError("weights that were on the server's disk are not there any more")
        body: Dict[str, Any] = {"codec": self.codec, "coded": [list(item) for item in sent.coded], "ahead": True}
        downlink = self.client.estimator.current.downlink
        if downlink:
            body["downlink"] = downlink
        if any(part is not None for part in parts):
            body["parts"] = parts
        if ahead is not None:
            body["ahead_number"] = ahead.number
        body["answered"] = next(iter(self._unanswered)) - 1
        attempt = sent.attempt

        def on_part(part: Dict[str, Any], buffers: Sequence[Buffer], size: int) -> None:
            self._receive_part(sent, attempt, part, buffers, size)

        self._request(RUN, sent, body, direct, on_part).add_done_callback(
            lambda done: self._receive_answer(sent, attempt, done)
        )

    def _send_missing(self, sent: _Sent, blobs: List[memoryview], names: List[bytes]) -> None:
        """Send those blobs that the server does not have."""
        weights = self.weights
        weights.started_s = weights.started_s or time.monotonic()
        for indices, missing in find_missing(names, lambda names: self._missing_on_server(sent, names)):
            for index in indices:
                if index in missing:
                    self._request(PUT, sent, {"name": names[index]}, [blobs[index]])
                    weights.sent += blobs[index].nbytes
                else:
                    weights.cached += blobs[index].nbytes
                weights.ended_s = time.monotonic()
                if self._on_weights is not None:
                    self._on_weights(weights)

    def _missing_on_server(self, sent: _Sent, names: List[bytes]) -> Any:
        """Requests which of those blobs the server lacks."""
        return _await_reply(self._request(HAVE, sent, {"names": names}, []), self.timeout_s).body.get("missing")

    def _request(
        self, kind: str, sent: _Sent, body: Dict[str, Any], buffers: Sequence[Buffer], on_part: Optional[OnPart] = None
    ) -> Future[Any]:
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        while self._in_flight and sum(self._in_flight.values()) + size > MAX_IN_FLIGHT_BYTES:
            done, _ = wait(list(self._in_flight), self.timeout_s, FIRST_COMPLETED)
            if not done:
                raise LinkLost(f"the server took nothing for {self.timeout_s:g} s")
            self._remove_finished(done)
        body = {**body, "session": self.session, "number": sent.number}
        future = self.client.request(kind, body, buffers, timeout_s=self.timeout_s, on_part=on_part)
        self._in_flight[future] = size
        if kind in (STAGE, PUT):
            future.add_done_callback(self._count_bytes)
        self._remove_finished([item for item in self._in_flight if item.done() and item is not future])
        return future

    def _remove_finished(self, finished: Any) -> None:
        for item in finished:
            self._in_flight.pop(item)

    # -- answers; the link's thread

    def _count_bytes(self, done: Future[Any]) -> None:
        if done.exception() is None:
            transfer = done.result().transfer
            self.bytes_up += transfer.bytes_up
            self.bytes_down += transfer.bytes_down

    def _receive_part(
        self, sent: _Sent, attempt: int, body: Dict[str, Any], buffers: Sequence[Buffer], size: int
    ) -> None:
        """Receives a part of an answer, computed early; after a break it may come again."""
        if sent.attempt != attempt or sent.answer.done():
            return
        self.bytes_down += size
        if body.get("part") != sent.parts:
            return  # of one that lacks a part, the answer says how many there were
        try:
            answer = self._decode_answer(body, buffers)
        except EdgeOffloadError as malformed:
            self._unanswered.pop(sent.number, None)
            sent.answer.set_exception(malformed)
            return
        sent.parts += 1
        self.parts += 1
        sent.answer.add_part(answer)

    def _decode_answer(self, body: Dict[str, Any], buffers: Sequence[Buffer]) -> Answer:
        started_s = time.monotonic()
        answer = parse_answer(payloads.decode(body.get("coded"), buffers, MAX_ANSWER_BYTES))
        self.spent.decode_s += time.monotonic() - started_s
        return answer

    def _receive_answer(self, sent: _Sent, attempt: int, done: Future[Any]) -> None:
        if sent.attempt != attempt or sent.answer.done():
            return
        error = done.exception()
        if isinstance(error, LinkLost):
            # in a thread of its own: the lock may be held by whoever waits for this very thread
            background.start("edge_offload-resume", self._resume_in_thread, error)
            return
        self._unanswered.pop(sent.number, None)
        if error is not None:
            sent.answer.set_exception(error)
            return
        self._count_bytes(done)
        reply: Reply = done.result()
        spent, transfer = self.spent, reply.transfer
        spent.uplink_s += transfer.uplink_s
        spent.server_s += max(0.0, transfer.server_sent_s - transfer.server_received_s)
        compute_s = reply.body.get("compute_s", 0.0)
        spent.compute_s += compute_s if isinstance(compute_s, float) and 0 <= compute_s < 1e6 else 0.0
        spent.downlink_s += transfer.downlink_s
        if sent.ahead is not None:
            spent.encode_s += sent.ahead.encode_s
            spent.uplink_s += sent.ahead.uplink_s()
            spent.ahead_s += sent.ahead.ahead_s()
            self.bytes_up += sent.ahead.bytes_up()
        spent.clock_error_s = max(spent.clock_error_s, transfer.clock_error_s)
        try:
            if reply.body.get("parts", 0) != sent.parts:
                raise ProtocolError("a part of an answer is missing")
            sent.answer.complete_answer(self._decode_answer(reply.body, reply.buffers))
        except EdgeOffloadError as malformed:
            sent.answer.set_exception(malformed)

    # -- a connection that broke

    def _resume_in_thread(self, error: LinkLost) -> None:
        with self._lock:
            self._resume_or_end(error)

    def _resume_or_end(self, error: LinkLost) -> None:
        """Resumes over the next connection, or ends the session; the lock is held, and released while waiting."""
        if self._resuming or self._lost is not None:
            return
        if not self.resume_s or self._closed:
            return self._end_session(error)
        self._resuming = True
        deadline_s = time.monotonic() + self.resume_s
        try:
            while time.monotonic() < deadline_s and not self._closed:
                try:
                    self._lock.release()
                    try:
                        self.client.wait_ready(max(0.01, deadline_s - time.monotonic()))
                    finally:
                        self._lock.acquire()
                    self._resend_all()
                    self.resumed += 1
                    return
                except SessionLost as lost:
                    return self._end_session(lost)
                except LinkLost:
                    time.sleep(0.05)
            self._end_session(
                LinkLost(
                    f"{error.cause}; the connection did not come back within {self.resume_s:g} s ({self.client.cause})",
                    remedy="start the program again when there is a server, or let it wait longer (exec --resume)",
                )
            )
        except EdgeOffloadError as fatal:
            self._end_session(
                fatal if isinstance(fatal, LinkLost) else LinkLost(f"{error.cause}; {fatal.cause}", remedy=fatal.remedy)
            )
        finally:
            self._resuming = False

    def _resend_all(self) -> None:
        """Sends everything that was not answered over a new connection."""
        self._in_flight.clear()
        connection = self.client.counters["connections"]
        reply = _await_reply(
            self.client.request(RESUME, {"session": self.session}, timeout_s=self.timeout_s), self.timeout_s
        )
        if not reply.body.get("known") and self.messages > len(self._unanswered):
            raise SessionLost(
                "the server was restarted or has given this session up, and has forgotten it: "
                "what the program had on the device is gone",
                remedy="start the program again: its weights are on the server's disk and are not sent again",
            )
        self._connection = connection
        for sent in list(self._unanswered.values()):
            if time.monotonic() > sent.give_up_s:
                raise ProtocolError(f"no answer within {self.timeout_s:g} s")
            sent.ahead = None  # the connection that broke may have lost them
            self._transmit_message(sent)

    def _end_session(self, error: LinkLost) -> None:
        self._lost = error
        waiting = list(self._unanswered.values())
        self._unanswered.clear()
        for sent in waiting:
            if not sent.answer.done():
                sent.answer.set_exception(error)


def _await_reply(future: Future[Any], timeout_s: float) -> Reply:
    try:
        reply: Reply = future.result(timeout_s + 1.0)
    except FutureTimeout:
        raise LinkLost(f"no answer within {timeout_s:g} s") from None
    return reply
