"""The virtual device over the encrypted link: what the launcher uses with ``--server``."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

import torch

from edge_offload import background
from edge_offload.device.remotes.ahead import AheadSender
from edge_offload.device.remotes.executor import valid_facts
from edge_offload.device.remotes.sender import MessageSender, await_reply
from edge_offload.device.remotes.sent import SentMessage, TimeSpent, Weights
from edge_offload.errors import EdgeOffloadError, LinkLost, ProtocolError
from edge_offload.execute.fingerprint import two_torches
from edge_offload.ir.trace.calls import Buffer
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.replies import LinkState, Reply
from edge_offload.protocol import payloads
from edge_offload.protocol.arriving import PendingAnswer
from edge_offload.protocol.messages import Answer, parse_answer
from edge_offload.protocol.remote import END, RESUME, Remote, SessionLost

#: Seconds that a program may wait, before it goes on, for its message to leave.
MAX_SEND_WAIT_S = 0.02
#: Most bytes of a decoded answer.
MAX_ANSWER_BYTES = 4 << 30


class LinkRemote(Remote):
    """Sends the device's messages through a :class:`~edge_offload.link.transport.client.Client`.

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
        self, client: Client, timeout_s: float = 120.0, resume_s: float = 30.0, codec: str = "auto",
        on_weights: Optional[Callable[[Weights], None]] = None, owns_client: bool = True,
        refused: Optional[Mapping[str, str]] = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.client = client
        self.timeout_s = timeout_s
        self.resume_s = resume_s
        self.codec = codec
        self.resumed = self.parts = 0
        self.weights = Weights()
        self.spent = TimeSpent()
        self.refused = refused or {}
        self.facts = valid_facts(client.welcome.get("gpu"))
        self.renewable = resume_s > 0.0
        self._owns_client = owns_client
        self._on_weights = on_weights
        self._lock = threading.Lock()
        self._unanswered: OrderedDict[int, SentMessage] = OrderedDict()
        self._lost: Optional[LinkLost] = None
        self._resuming = False
        self._closed = False
        self._connection = client.counters["connections"]
        self._fingerprint = client.welcome.get("fingerprint")
        self._open_session()

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
            ahead = None if reusable else self._ahead.usable_inputs()
            find = ahead.find_encoding if ahead is not None else lambda _array: None
            coded, plain = ([], list(buffers)) if reusable else payloads.encode(buffers, self.codec, uplink, find)
            self.spent.encode_s += time.monotonic() - started_s
            self.messages += 1
            sent = SentMessage(self.messages, plain, coded, reusable, time.monotonic() + self.timeout_s)
            if ahead is not None and ahead.is_used:
                sent.ahead = self._ahead.take_inputs()
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
        if self._lost is not None or self._resuming or self._closed:
            return
        encoded = self._ahead.encode_inputs(inputs)
        if encoded is not None:
            with self._lock, contextlib.suppress(EdgeOffloadError):
                self.bytes_up += self._ahead.send_inputs(encoded)

    def can_renew(self) -> bool:
        return self._lost is not None and self.client.state is LinkState.READY

    def renew(self) -> None:
        with self._lock:
            if self.client.welcome.get("fingerprint") != self._fingerprint:
                raise LinkLost("the server that came back computes with another torch, processor or thread count")
            self._end_session(LinkLost("this session is over"))
            self.messages, self._lost = 0, None
            self._open_session()
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

    def _transmit_message(self, sent: SentMessage) -> None:
        sent.attempt += 1
        attempt = sent.attempt

        def on_part(part: Dict[str, Any], buffers: Sequence[Buffer], size: int) -> None:
            self._receive_part(sent, attempt, part, buffers, size)

        future = self._sender.send_message(sent, next(iter(self._unanswered)) - 1, on_part)
        future.add_done_callback(lambda done: self._receive_answer(sent, attempt, done))

    def _open_session(self) -> None:
        """Begin a session that the server does not know yet."""
        self.session = os.urandom(16)
        self._sender = MessageSender(
            self.client, self.session, self.codec, self.timeout_s, self.weights, self._on_weights, self._count_bytes
        )
        self._ahead = AheadSender(self.client, self.session, self.codec, self.timeout_s)

    # -- answers; the link's thread

    def _count_bytes(self, done: Future[Any]) -> None:
        if done.exception() is None:
            transfer = done.result().transfer
            self.bytes_up += transfer.bytes_up
            self.bytes_down += transfer.bytes_down

    def _receive_part(
        self, sent: SentMessage, attempt: int, body: Dict[str, Any], buffers: Sequence[Buffer], size: int
    ) -> None:
        """Receives a part of an answer, computed early; after a break it may come again."""
        if sent.attempt != attempt or sent.answer.done():
            return
        self.bytes_down += size
        if body.get("part") != sent.parts:
            return  # of one that lacks a part, the answer says how many there were
        try:
            answer = _decode_answer(body, buffers, self.spent)
        except EdgeOffloadError as malformed:
            self._unanswered.pop(sent.number, None)
            sent.answer.set_exception(malformed)
            return
        sent.parts += 1
        self.parts += 1
        sent.answer.add_part(answer)

    def _receive_answer(self, sent: SentMessage, attempt: int, done: Future[Any]) -> None:
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
        self.spent.add_reply(reply, sent.ahead)
        if sent.ahead is not None:
            self.bytes_up += sent.ahead.bytes_up()
        try:
            if reply.body.get("parts", 0) != sent.parts:
                raise ProtocolError("a part of an answer is missing")
            sent.answer.complete_answer(_decode_answer(reply.body, reply.buffers, self.spent))
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
                except SessionLost:
                    raise
                except LinkLost:
                    time.sleep(0.05)
            raise LinkLost(
                f"{error.cause}; the connection did not come back within {self.resume_s:g} s ({self.client.cause})",
                remedy="start the program again when there is a server, or let it wait longer (exec --resume)",
            )
        except EdgeOffloadError as fatal:
            self._end_session(
                fatal if isinstance(fatal, LinkLost) else LinkLost(f"{error.cause}; {fatal.cause}", remedy=fatal.remedy)
            )
        finally:
            self._resuming = False

    def _resend_all(self) -> None:
        """Sends everything that was not answered over a new connection."""
        self._sender.drop_in_flight()
        connection = self.client.counters["connections"]
        resumed = self.client.request(RESUME, {"session": self.session}, timeout_s=self.timeout_s)
        reply = await_reply(resumed, self.timeout_s)
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
        waiting, self._unanswered = list(self._unanswered.values()), OrderedDict()
        for sent in waiting:
            if not sent.answer.done():
                sent.answer.set_exception(error)


def _decode_answer(body: Dict[str, Any], buffers: Sequence[Buffer], spent: TimeSpent) -> Answer:
    started_s = time.monotonic()
    answer = parse_answer(payloads.decode(body.get("coded"), buffers, MAX_ANSWER_BYTES))
    spent.decode_s += time.monotonic() - started_s
    return answer
