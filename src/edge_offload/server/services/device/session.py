"""One program's device on the server: its executor process, its messages in order, and answers until acknowledged."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import OrderedDict
from typing import Dict, Optional, Tuple

from edge_offload.errors import EdgeOffloadError, LinkLost, ProtocolError, RemoteError
from edge_offload.execute.session.note import wait_until_ready
from edge_offload.link.transport.peers import Peer, Request
from edge_offload.protocol.channel import Channel
from edge_offload.server import blobs
from edge_offload.server.quota import DeviceQuota
from edge_offload.server.services.device.answers import Answer, KeptAnswers
from edge_offload.server.services.device.executor import Executor
from edge_offload.server.services.device.staging import Staging, assemble

_log = logging.getLogger(__name__)


class Session:
    """Numbered messages of one program. The public methods run on the link's thread and return at once.

    A message whose number was seen before is not run again: it gets the answer that the first one got or gets.
    """

    def __init__(
        self, peer: Peer, device: str, threads: int, cores: Tuple[int, ...], quota: DeviceQuota, store: blobs.BlobStore
    ) -> None:
        self._executor = Executor([
            "--device", device, "--threads", str(threads), "--cores", ",".join(map(str, cores)),
            "--storage-bytes", str(quota.storage_bytes), "--storages", str(quota.storages),
            "--segments", str(quota.segments),
        ])  # fmt: skip
        self._quota = quota
        self._store = store
        self._peer: Optional[Peer] = peer
        self.detached_s: Optional[float] = None
        self.over = ""
        self._lock = threading.Lock()
        self._last = 0
        self._waiting: OrderedDict[int, Request] = OrderedDict()
        self._began_s: Dict[int, float] = {}
        self._answers = KeptAnswers()
        self._staged = Staging(quota.staged_bytes)
        self._inbox: queue.Queue[Optional[Tuple[str, Request]]] = queue.Queue()
        self._thread = threading.Thread(target=self._feed, name="edge_offload-device", daemon=True)
        self._thread.start()

    # -- the connection that it belongs to

    def attach(self, peer: Peer) -> None:
        """Receive messages from this connection from now on."""
        with self._lock:
            self._peer, self.detached_s = peer, None

    def detach(self, peer: Peer) -> None:
        """Detach a closed connection, if it is this session's latest."""
        with self._lock:
            if self._peer is peer:
                self._peer, self.detached_s = None, time.monotonic()

    # -- requests

    def run(self, request: Request) -> None:
        """``{number, answered, parts, coded, codec, downlink, ahead}`` and buffers → what the executor answers.

        With ``ahead``, what it has computed early comes as numbered parts of the answer, ahead of the rest.
        """
        number, answered = _count(request, "number"), _count(request, "answered")
        with self._lock:
            self._answers.acknowledge(answered)
            kept = self._answers.answer(number)
            if kept is not None:
                self._repeat(request)
                return request.reply(*kept)
            if number <= self._last:
                earlier = self._waiting.get(number)
                if earlier is None:
                    raise ProtocolError(f"message {number} was answered and acknowledged")
                self._waiting[number] = request
                self._repeat(request)
                return earlier.fail(ProtocolError(f"message {number} was sent again"))
            if number != self._last + 1:
                raise ProtocolError(f"message {number} came after message {self._last}")
            if self.over:
                raise RemoteError(self.over)
            self._last = number
            self._waiting[number] = request
        self._inbox.put(("run", request))
        return None

    def _repeat(self, request: Request) -> None:
        """Send the parts of an answer again that went over an earlier connection; the caller holds the lock."""
        for part in self._answers.parts(request.body["number"]):
            request.part(*part)

    def stage(self, request: Request) -> None:
        """Stage ``{number, index, offset, total}``: a piece of a large buffer, ahead of its message."""
        number, index = _count(request, "number"), _count(request, "index")
        offset, total = _count(request, "offset"), _count(request, "total")
        piece = b"".join(request.buffers)
        with self._lock:
            if number <= self._last:  # sent again after a break, though its message had arrived
                return request.reply({})
            self._staged.add_piece(number, index, offset, total, piece)
        return request.reply({})

    def have(self, request: Request) -> None:
        """Answer ``{number, names}`` with ``{missing}``: positions of the blobs that are not here."""
        blobs.checksums(request.body.get("names"))
        _count(request, "number")
        self._inbox.put(("have", request))

    def put(self, request: Request) -> None:
        """Store the blob of ``{number, name}``; the answer is ``{}``."""
        blobs.checksums([request.body.get("name")])
        _count(request, "number")
        self._inbox.put(("put", request))

    def check_time(self, now: float) -> None:
        """End the session if its oldest message exceeds its limit."""
        with self._lock:
            oldest = next(iter(self._waiting), None)
            began_s = self._began_s.get(oldest, now) if oldest is not None else now
        if now - began_s > self._quota.message_s:
            self.close(f"a message took longer than {self._quota.message_s:g} s{self._executor.running()}")

    def close(self, reason: str) -> None:
        """End the executor."""
        self._end(reason, clean=True)
        self._inbox.put(None)
        self._executor.end()

    # -- the session's thread

    def _start(self) -> None:
        channel = self._executor.start()
        with self._lock:
            over = self.over
        if over:
            self._executor.end()
            raise LinkLost(over)
        wait_until_ready(channel)
        threading.Thread(target=self._answer, args=(channel,), name="edge_offload-answers", daemon=True).start()

    def _feed(self) -> None:
        try:
            self._start()
        except (EdgeOffloadError, OSError) as error:
            self._end(f"the executor process did not start: {error}")
        while True:
            item = self._inbox.get()
            if item is None:
                return
            what, request = item
            try:
                if what == "have":
                    self._look_up(request)
                elif what == "put":
                    self._take_blob(request)
                else:
                    self._forward(request)
            except LinkLost as error:
                self._end(str(error))
            except EdgeOffloadError as error:
                self._refuse(request, error)

    def _look_up(self, request: Request) -> None:
        missing, found = blobs.look_up(self._store, request)
        for name, data in found.items():
            self._stage_blob(request.body["number"], name, data)
        request.reply({"missing": missing})

    def _take_blob(self, request: Request) -> None:
        name, data = blobs.keep(self._store, request)
        self._stage_blob(request.body["number"], name, data)
        request.reply({})

    def _stage_blob(self, number: int, name: bytes, data: bytes) -> None:
        with self._lock:
            self._staged.add_blob(number, name, data)

    def _forward(self, request: Request) -> None:
        body = request.body
        number = body["number"]
        with self._lock:
            staged = self._staged.take(number)
            channel, over = self._executor.channel, self.over
            self._began_s[number] = time.monotonic()
        if over or channel is None:
            raise RemoteError(over)
        buffers = assemble(body.get("parts"), list(request.buffers), staged)
        codec = body.get("codec", "auto")
        if not isinstance(codec, str):
            raise ProtocolError("codec is a string")
        facts = {"codec": codec, "downlink": request.downlink, "parts": body.get("ahead") is True}
        channel.send({"id": number, "coded": body.get("coded"), **facts}, buffers)

    def _refuse(self, request: Request, error: EdgeOffloadError) -> None:
        """Fail a message that cannot be run, and the session: later messages build upon it."""
        number = request.body["number"]
        with self._lock:
            mine = self._waiting.get(number)
            if mine is request:
                del self._waiting[number]
        if not request.answered:
            request.fail(error)
        if mine is request and not self.over:
            self._end(f"message {number} could not be run: {error}")

    # -- the executor's answers

    def _answer(self, channel: Channel) -> None:
        try:
            while True:
                header, buffers = channel.receive()
                number = header["id"]
                if "part" in header:
                    self._part(number, ({"coded": header.get("coded"), "part": header["part"]}, list(buffers)))
                    continue
                counts = {"parts": header.get("parts", 0), "compute_s": header.get("compute_s", 0.0)}
                answer: Answer = ({"coded": header.get("coded"), **counts}, list(buffers))
                with self._lock:
                    request = self._waiting.pop(number)
                    self._began_s.pop(number, None)
                    following = next(iter(self._waiting), None)
                    if following is not None and following in self._began_s:
                        self._began_s[following] = time.monotonic()
                    self._answers.add(number, answer)
                try:
                    request.reply(*answer)
                except EdgeOffloadError as error:
                    _log.warning("an answer of a device could not be sent: %s", error)
        except (LinkLost, ProtocolError, KeyError) as error:
            self._end(str(error))

    def _part(self, number: int, part: Answer) -> None:
        with self._lock:
            self._answers.add_part(number, part)
            try:
                self._waiting[number].part(*part)
            except EdgeOffloadError as error:
                _log.warning("a part of a device's answer could not be sent: %s", error)

    def _end(self, reason: str, clean: bool = False) -> None:
        """End the session once, and fail all waiting requests."""
        with self._lock:
            if not self.over and not clean:
                reason = f"{reason}{self._executor.epitaph()}"
            self.over = self.over or f"the executor process of this session ended: {reason}"
            waiting, self._waiting = list(self._waiting.values()), OrderedDict()
            self._answers.clear()
            self._staged.clear()
        for request in waiting:
            if not request.answered:
                request.fail(RemoteError(self.over))


def _count(request: Request, name: str) -> int:
    value = request.body.get(name)
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ProtocolError(f"a request for a device needs the number {name}")
    return value
