"""The server's front for virtual devices: one executor process per robot, started when it first asks."""

from __future__ import annotations

import logging
import os
import queue
import socket
import subprocess
import sys
import threading
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from edge_offload.capture.channel import Channel
from edge_offload.capture.link_remote import RUN, STAGE
from edge_offload.errors import EdgeOffloadError, LinkLost, ProtocolError, Refused, RemoteError
from edge_offload.link.peers import Peer, Request

_log = logging.getLogger(__name__)
MAX_STAGED = 64


class DeviceService:
    """Answers ``device.run`` and ``device.stage``. Its methods run on the link's thread and return at once.

    Args:
        device: ``cpu`` or ``cuda``.
        threads: torch threads of each executor; 0 leaves torch's choice.
        max_sessions: robots that may have a device at once.
        storage_bytes: most bytes that one robot's tensors may hold.
    """

    def __init__(
        self, device: str = "cpu", threads: int = 0, max_sessions: int = 4, storage_bytes: int = 4 << 30
    ) -> None:
        self._device = device
        self._threads = threads
        self._max_sessions = max_sessions
        self._storage_bytes = storage_bytes
        self._sessions: Dict[Peer, _Session] = {}
        self._lock = threading.Lock()

    @property
    def handlers(self) -> Dict[str, Callable[[Request], None]]:
        """What it answers, by the request's kind."""
        return {RUN: self.run, STAGE: self.stage}

    def run(self, request: Request) -> None:
        """Hand a message to the robot's executor; the answer comes from there."""
        self._session(request.peer).submit(request)

    def stage(self, request: Request) -> None:
        """Keep a piece of a large buffer for the next message."""
        self._session(request.peer).stage(request)

    def forget(self, peer: Peer) -> None:
        """End the executor of a robot that has gone."""
        with self._lock:
            session = self._sessions.pop(peer, None)
        if session is not None:
            session.close()

    def close(self) -> None:
        """End all executors."""
        with self._lock:
            sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            session.close()

    def _session(self, peer: Peer) -> _Session:
        with self._lock:
            found = self._sessions.get(peer)
            if found is None:
                if len(self._sessions) >= self._max_sessions:
                    raise Refused(
                        f"full: {self._max_sessions} robots have a device here", remedy="raise the server's limit"
                    )
                found = self._sessions[peer] = _Session(self._device, self._threads, self._storage_bytes)
            return found


class _Session:
    """One executor process and the thread that starts it and feeds it."""

    def __init__(self, device: str, threads: int, storage_bytes: int) -> None:
        self._options = ["--device", device, "--threads", str(threads), "--storage-bytes", str(storage_bytes)]
        self._limit = storage_bytes
        self._inbox: queue.Queue[Optional[Tuple[Request, List[Any]]]] = queue.Queue()
        self._staged: Dict[int, bytearray] = {}
        self._waiting: Deque[Request] = deque()
        self._lock = threading.Lock()
        self._over = ""
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._channel: Optional[Channel] = None
        self._thread = threading.Thread(target=self._feed, name="edge_offload-device", daemon=True)
        self._thread.start()

    def stage(self, request: Request) -> None:
        index, total = request.body.get("index"), request.body.get("total")
        if not isinstance(index, int) or not isinstance(total, int) or not 0 < total <= self._limit:
            raise ProtocolError("a piece of a buffer without its place and size")
        if index not in self._staged and len(self._staged) >= MAX_STAGED:
            raise ProtocolError("too many large buffers in one message")
        staged = self._staged.setdefault(index, bytearray())
        piece = b"".join(request.buffers)
        if len(staged) + len(piece) > total:
            raise ProtocolError("a buffer is longer than announced")
        staged += piece
        request.reply({})

    def submit(self, request: Request) -> None:
        buffers: List[Any] = list(request.buffers)
        staged, self._staged = self._staged, {}
        for index, total in request.body.get("staged", ()):
            piece = staged.pop(index, None)
            if piece is None or len(piece) != total or not 0 <= index <= len(buffers):
                raise ProtocolError("a large buffer did not arrive before its message")
            buffers.insert(index, piece)
        self._inbox.put((request, buffers))

    def close(self) -> None:
        self._inbox.put(None)
        with self._lock:
            self._over = self._over or "the session was closed"
            channel, process = self._channel, self._process
        if channel is not None:
            channel.close()
        if process is not None:
            process.kill()
            process.wait()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "edge_offload.capture.worker", str(theirs.fileno()), *self._options]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("EDGE_OFFLOAD_EXEC")}
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL)
        theirs.close()
        channel = Channel(ours)
        with self._lock:
            self._process, self._channel = process, channel
            over = self._over
        if over:
            channel.close()
            process.kill()
            process.wait()
            raise LinkLost(over)
        channel.receive()
        threading.Thread(target=self._answer, args=(channel,), name="edge_offload-answers", daemon=True).start()

    def _feed(self) -> None:
        try:
            self._start()
        except EdgeOffloadError as error:
            self._end(f"the executor process did not start: {error}")
        while True:
            item = self._inbox.get()
            if item is None:
                return
            request, buffers = item
            with self._lock:
                over, channel = self._over, self._channel
                if not over:
                    self._waiting.append(request)
            if over or channel is None:
                request.fail(RemoteError(over))
                continue
            try:
                channel.send({"id": 0}, buffers)
            except LinkLost as error:
                self._end(str(error))

    def _answer(self, channel: Channel) -> None:
        try:
            while True:
                _, buffers = channel.receive()
                with self._lock:
                    request = self._waiting.popleft()
                try:
                    request.reply({}, buffers)
                except EdgeOffloadError as error:
                    _log.warning("an answer of a device could not be sent: %s", error)
        except (LinkLost, ProtocolError) as error:
            self._end(str(error))

    def _end(self, reason: str) -> None:
        """The executor is no more: tell whoever waits, once."""
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                reason = f"{reason}, exit code {self._process.returncode}"
            self._over = self._over or reason
            waiting, self._waiting = list(self._waiting), deque()
        for request in waiting:
            request.fail(RemoteError(f"the executor process of this session ended: {self._over}"))
