"""One program's device on the server: its executor process, its messages in order, and answers until acknowledged."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import OrderedDict
from typing import Dict, List, Optional, Tuple, Type, Union

from edge_offload.errors import DeviceLost, EdgeOffloadError, LinkLost, ProtocolError, RemoteError
from edge_offload.execute.session.note import wait_until_ready
from edge_offload.link.transport.peers import Peer, Request
from edge_offload.protocol.channel import Channel
from edge_offload.protocol.remote import HAVE, PUT, RUN
from edge_offload.server import blobs
from edge_offload.server.quota import DeviceQuota
from edge_offload.server.services.device.answers import Answer, AnswerStore
from edge_offload.server.services.device.executor import ExecutorProcess
from edge_offload.server.services.device.staging import NoRoom, StagedBuffers, assemble_buffers

_log = logging.getLogger(__name__)

#: What the thread of a session gets besides requests: its executor has started, or could not; the session has ended.
STARTED, ENDED = "started", "ended"
_Item = Tuple[str, Request]


class DeviceSession:
    """Numbered messages of one program. The public methods run on the link's thread and return at once.

    A message whose number was seen before is not run again: it gets the answer that the first one got or gets.
    Weights are taken in while the executor starts.

    Args:
        peer: the connection that it belongs to.
        executor: what runs the messages, started or not.
        quota: what it may take.
        store: weights on disk.
    """

    def __init__(self, peer: Peer, executor: ExecutorProcess, quota: DeviceQuota, store: blobs.BlobStore) -> None:
        self._executor = executor
        self._quota = quota
        self._store = store
        self._peer: Optional[Peer] = peer
        self.detached_s: Optional[float] = None
        self.end_reason = ""
        self._end_kind: Type[EdgeOffloadError] = RemoteError
        self._lock = threading.Lock()
        self._last = 0
        self._waiting: OrderedDict[int, Request] = OrderedDict()
        self._started_s: Dict[int, float] = {}
        self._answers = AnswerStore()
        self._staged = StagedBuffers(quota.staged_bytes)
        self._inbox: queue.Queue[Union[str, _Item]] = queue.Queue()
        threading.Thread(None, self._feed_executor, "edge_offload-device", daemon=True).start()

    # -- the connection that it belongs to

    def attach_peer(self, peer: Peer) -> None:
        """Receive messages from this connection from now on."""
        with self._lock:
            self._peer, self.detached_s = peer, None

    def detach_peer(self, peer: Peer) -> None:
        """Detach a closed connection, if it is this session's latest."""
        with self._lock:
            if self._peer is peer:
                self._peer, self.detached_s = None, time.monotonic()

    # -- requests

    def run_message(self, request: Request) -> None:
        """``{number, answered, parts, coded, codec, downlink, ahead}`` and buffers → what the executor answers.

        With ``ahead``, what it has computed early comes as numbered parts of the answer, ahead of the rest. With
        ``ahead_number``, its ``parts`` refer to the buffers that :meth:`stage_inputs` got under that number.
        """
        number, answered = _read_number(request, "number"), _read_number(request, "answered")
        with self._lock:
            self._answers.remove_acknowledged(answered)
            stored = self._answers.answer_to(number)
            if stored is not None:
                self._repeat_parts(request)
                return request.reply(*stored)
            if number <= self._last:
                earlier = self._waiting.get(number)
                if earlier is None:
                    raise ProtocolError(f"message {number} was answered and acknowledged")
                self._waiting[number] = request
                self._repeat_parts(request)
                return earlier.fail(ProtocolError(f"message {number} was sent again"))
            if number != self._last + 1:
                raise ProtocolError(f"message {number} came after message {self._last}")
            if self.end_reason:
                raise self._end_kind(self.end_reason)
            if request.body.get("ahead_number") is not None:
                self._staged.assign_inputs(_read_number(request, "ahead_number"), number)
            self._last = number
            self._waiting[number] = request
        self._inbox.put((RUN, request))
        return None

    def _repeat_parts(self, request: Request) -> None:
        """Send the parts of an answer again that went over an earlier connection; the caller holds the lock."""
        for part in self._answers.parts_of(request.body["number"]):
            request.part(*part)

    def stage_piece(self, request: Request) -> None:
        """Stage ``{number, index, offset, total}``: a piece of a large buffer, ahead of its message."""
        number, index = _read_number(request, "number"), _read_number(request, "index")
        offset, total = _read_number(request, "offset"), _read_number(request, "total")
        piece = b"".join(request.buffers)
        with self._lock:
            if number <= self._last:  # sent again after a break, though its message had arrived
                return request.reply({})
            self._staged.add_piece(number, index, offset, total, piece)
        return request.reply({})

    def stage_inputs(self, request: Request) -> None:
        """Stage the buffers of ``{number}``, to which a later message refers; the answer is ``{}``."""
        number = _read_number(request, "number")
        with self._lock:
            self._staged.add_inputs(number, request.buffers)
        request.reply({})

    def find_missing(self, request: Request) -> None:
        """Answer ``{number, names}`` with ``{missing}``: positions of the blobs that are not here."""
        blobs.check_names(request.body.get("names"))
        _read_number(request, "number")
        self._inbox.put((HAVE, request))

    def put_blob(self, request: Request) -> None:
        """Store the blob of ``{number, name}``; the answer is ``{}``."""
        blobs.check_names([request.body.get("name")])
        _read_number(request, "number")
        self._inbox.put((PUT, request))

    def check_time(self, now: float) -> None:
        """End the session if its oldest message exceeds its limit."""
        with self._lock:
            oldest = next(iter(self._waiting), None)
            started_s = self._started_s.get(oldest, now) if oldest is not None else now
        if now - started_s > self._quota.message_s:
            self.close(f"a message took longer than {self._quota.message_s:g} s{self._executor.describe_operator()}")

    def close(self, reason: str) -> None:
        """End the executor."""
        self._end_session(reason, clean=True)
        self._inbox.put(ENDED)
        self._executor.kill_process()

    # -- the session's thread

    def _feed_executor(self) -> None:
        try:
            channel = self._executor.start()
            threading.Thread(None, self._await_executor, "edge_offload-answers", (channel,), daemon=True).start()
        except OSError as error:
            self._end_unstarted(error)
            self._inbox.put(STARTED)
        postponed: Optional[List[_Item]] = []  # None: the executor has started
        for item in iter(self._inbox.get, ENDED):
            if isinstance(item, str):
                for earlier in postponed or ():
                    self._do_request(*earlier)
                postponed = None
            elif postponed is None:
                self._do_request(*item)
            elif item[0] == RUN or not self._do_request(*item, early=True):
                postponed.append(item)

    def _do_request(self, kind: str, request: Request, early: bool = False) -> bool:
        """Do what a request asks for; ``early``: the executor has not started, and False says that there is no room."""
        try:
            if kind == HAVE:
                self._answer_missing(request)
            elif kind == PUT:
                self._store_blob(request)
            else:
                self._forward_message(request)
        except LinkLost as error:
            self._end_session(str(error))
        except EdgeOffloadError as error:
            if early and isinstance(error, NoRoom):
                return False
            self._refuse_message(request, error)
        return True

    def _answer_missing(self, request: Request) -> None:
        missing, present = blobs.find_blobs(self._store, request)
        self._stage_blobs(request, present)
        request.reply({"missing": missing})

    def _store_blob(self, request: Request) -> None:
        self._stage_blobs(request, dict([blobs.store_blob(self._store, request)]))
        request.reply({})

    def _stage_blobs(self, request: Request, present: Dict[bytes, bytes]) -> None:
        with self._lock:
            for name, data in present.items():
                self._staged.add_blob(request.body["number"], name, data)

    def _forward_message(self, request: Request) -> None:
        body = request.body
        number = body["number"]
        with self._lock:
            staged = self._staged.take_staged(number)
            channel, reason = self._executor.channel, self.end_reason
            self._started_s[number] = time.monotonic()
        if reason or channel is None:
            raise self._end_kind(reason)
        buffers = assemble_buffers(body.get("parts"), list(request.buffers), staged)
        codec = body.get("codec", "auto")
        if not isinstance(codec, str):
            raise ProtocolError("codec is a string")
        facts = {"codec": codec, "downlink": request.downlink, "parts": body.get("ahead") is True}
        channel.send({"id": number, "coded": body.get("coded"), **facts}, buffers)

    def _refuse_message(self, request: Request, error: EdgeOffloadError) -> None:
        """Fail a message that cannot be run, and the session: later messages build upon it."""
        number = request.body["number"]
        with self._lock:
            waiting = self._waiting.get(number)
            if waiting is request:
                del self._waiting[number]
        if not request.answered:
            request.fail(error)
        if waiting is request and not self.end_reason:
            self._end_session(f"message {number} could not be run: {error}")

    # -- the executor's answers

    def _await_executor(self, channel: Channel) -> None:
        try:
            wait_until_ready(channel)
        except (LinkLost, ProtocolError) as error:
            self._end_unstarted(error)
            return
        finally:
            self._inbox.put(STARTED)
        self._send_answers(channel)

    def _send_answers(self, channel: Channel) -> None:
        try:
            while True:
                header, buffers = channel.receive()
                number = header["id"]
                if "part" in header:
                    self._send_part(number, ({"coded": header.get("coded"), "part": header["part"]}, list(buffers)))
                    continue
                counts = {"parts": header.get("parts", 0), "compute_s": header.get("compute_s", 0.0)}
                answer: Answer = ({"coded": header.get("coded"), **counts}, list(buffers))
                with self._lock:
                    request = self._waiting.pop(number)
                    self._started_s.pop(number, None)
                    following = next(iter(self._waiting), None)
                    if following is not None and following in self._started_s:
                        self._started_s[following] = time.monotonic()
                    self._answers.add_answer(number, answer)
                try:
                    request.reply(*answer)
                except EdgeOffloadError as error:
                    _log.warning("an answer of a device could not be sent: %s", error)
        except (LinkLost, ProtocolError, KeyError) as error:
            self._end_session(str(error))

    def _send_part(self, number: int, part: Answer) -> None:
        with self._lock:
            self._answers.add_part(number, part)
            try:
                self._waiting[number].part(*part)
            except EdgeOffloadError as error:
                _log.warning("a part of a device's answer could not be sent: %s", error)

    def _end_unstarted(self, error: Exception) -> None:
        """End a session whose executor did not start: it holds nothing, so its program goes on elsewhere."""
        self._end_session(f"the executor process did not start: {error}", kind=DeviceLost)

    def _end_session(self, reason: str, clean: bool = False, kind: Type[EdgeOffloadError] = RemoteError) -> None:
        """End the session once, and fail all waiting requests by an error of this kind."""
        with self._lock:
            if not self.end_reason:
                self._end_kind = kind
            if not self.end_reason and not clean:
                reason = f"{reason}{self._executor.explain_exit()}"
            self.end_reason = self.end_reason or f"the executor process of this session ended: {reason}"
            waiting, self._waiting = list(self._waiting.values()), OrderedDict()
            self._answers.clear()
            self._staged.clear()
        for request in waiting:
            if not request.answered:
                request.fail(self._end_kind(self.end_reason))


def _read_number(request: Request, name: str) -> int:
    value = request.body.get(name)
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ProtocolError(f"a request for a device needs the number {name}")
    return value
