"""The server's front for virtual devices: a session for each program, and the rules that all of them keep."""

from __future__ import annotations

import functools
import logging
import threading
import time
from typing import Callable, Dict, List, Optional, Tuple

from edge_offload.errors import ProtocolError, Refused
from edge_offload.link.transport.peers import Peer, Request
from edge_offload.native.libraries import NODES
from edge_offload.native.loader import Library
from edge_offload.protocol.remote import AHEAD, END, HAVE, PUT, RESUME, RUN, SCHEMAS, STAGE
from edge_offload.server.blobs import BlobStore
from edge_offload.server.quota import DeviceQuota
from edge_offload.server.services.device.session import DeviceSession
from edge_offload.server.services.device.supply import ExecutorSupply

_log = logging.getLogger(__name__)


class DeviceService:
    """Answers the ``device.…`` requests. Its methods run on the link's thread and return at once.

    A session is an executor process of its own. It outlives a broken connection by its lease: the program goes on over
    the next one.

    Args:
        device: ``cpu`` or ``cuda``.
        threads: torch threads of each executor; 0 leaves torch's choice.
        cores: CPU cores of the executors; empty leaves them.
        quota: what devices may take.
        blobs: weights on disk.
    """

    def __init__(
        self,
        device: str = "cpu",
        threads: int = 0,
        cores: Tuple[int, ...] = (),
        quota: Optional[DeviceQuota] = None,
        blobs: Optional[BlobStore] = None,
    ) -> None:
        self.quota = quota = quota or DeviceQuota()
        self._executors = ExecutorSupply([
            "--device", device, "--threads", str(threads), "--cores", ",".join(map(str, cores)),
            "--storage-bytes", str(quota.storage_bytes), "--storages", str(quota.storages),
            "--segments", str(quota.segments),
        ])  # fmt: skip
        self._blobs = blobs or BlobStore()
        self._sessions: Dict[Tuple[str, bytes], DeviceSession] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._reaper = threading.Thread(target=self._close_expired, name="edge_offload-leases", daemon=True)
        self._reaper.start()
        self._runner = Library(NODES)
        self._runner.start()

    @property
    def handlers(self) -> Dict[str, Callable[[Request], None]]:
        """Handlers by the request's kind."""
        return {
            RUN: lambda request: self._find_session(request).run_message(request),
            STAGE: lambda request: self._find_session(request).stage_piece(request),
            AHEAD: lambda request: self._find_session(request).stage_inputs(request),
            HAVE: lambda request: self._find_session(request).find_missing(request),
            PUT: lambda request: self._find_session(request).put_blob(request),
            RESUME: self.resume_session,
            END: self.end_session,
            SCHEMAS: self.answer_schemas,
        }

    def prepare_executor(self, peer: Peer) -> None:
        """Start an executor for a program that has connected, unless it has a session already, or will get none."""
        with self._lock:
            robots = [key[0] for key in self._sessions]
            returns = any(
                key[0] == peer.key and session.detached_s is not None for key, session in self._sessions.items()
            )
        if not returns and len(robots) < self.quota.sessions and robots.count(peer.key) < self.quota.sessions_per_robot:
            self._executors.prepare_executor(peer)

    def resume_session(self, request: Request) -> None:
        """``{session}`` → ``{known}``: whether the session of an earlier connection goes on."""
        with self._lock:
            session = self._sessions.get(_session_key(request))
        if session is not None:
            session.attach_peer(request.peer)
        request.reply({"known": session is not None})

    def end_session(self, request: Request) -> None:
        """Answer ``{session}`` with ``{}``: the program has ended."""
        with self._lock:
            session = self._sessions.pop(_session_key(request), None)
        if session is not None:
            session.close("the program ended its session")
        request.reply({})

    def answer_schemas(self, request: Request) -> None:
        """``{}`` → the checksum of every operator's schema, for a robot with another torch.

        ``{older}``, operators with how many arguments they have there → their checksums with so many alone.
        """
        older = request.body.get("older")
        request.reply({}, [_packed_schemas() if older is None else _packed_prefixes(older)])

    def detach_peer(self, peer: Peer) -> None:
        """Detach sessions of a closed connection; they wait for the next one, for their lease."""
        self._executors.discard_executor(peer)
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            session.detach_peer(peer)

    def close(self) -> None:
        """End all sessions."""
        self._stop.set()
        self._runner.stop()
        self._executors.close()
        with self._lock:
            sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            session.close("the server is stopping")

    def _find_session(self, request: Request) -> DeviceSession:
        key = _session_key(request)
        with self._lock:
            session = self._sessions.get(key)
            if session is None:
                self._make_room(request.peer)
                executor = self._executors.take_executor(request.peer)
                session = self._sessions[key] = DeviceSession(request.peer, executor, self.quota, self._blobs)
                _log.info("robot %s has a device, the %d. of %d", request.peer.name, len(self._sessions),
                          self.quota.sessions)  # fmt: skip
        session.attach_peer(request.peer)
        return session

    def _make_room(self, peer: Peer) -> None:
        """Sessions that have ended, or wait for their robot's return, make room for one that is here."""
        for per_robot, limit in ((True, self.quota.sessions_per_robot), (False, self.quota.sessions)):
            keys = [key for key in self._sessions if not per_robot or key[0] == peer.key]
            if len(keys) < limit:
                continue
            entries = ((key, self._sessions[key]) for key in keys)
            waiting = [key for key, session in entries if session.end_reason or session.detached_s is not None]
            if not waiting:
                option = "--devices-per-robot" if per_robot else "--max-devices"
                raise Refused(
                    f"full: {limit} programs {'of this robot ' if per_robot else ''}have a device here",
                    remedy=f"end one, or start the server with a larger {option}",
                )
            oldest = min(waiting, key=lambda key: self._sessions[key].detached_s or 0.0)
            session = self._sessions.pop(oldest)
            threading.Thread(target=session.close, args=("another program took its place",), daemon=True).start()

    def _close_expired(self) -> None:
        while not self._stop.wait(0.5):
            now = time.monotonic()
            expired: List[DeviceSession] = []
            with self._lock:
                for key, session in list(self._sessions.items()):
                    detached_s = session.detached_s
                    if detached_s is not None and (now - detached_s > self.quota.lease_s or session.end_reason):
                        expired.append(self._sessions.pop(key))
                sessions = list(self._sessions.values())
            for session in expired:
                session.close("its robot did not come back")
            for session in sessions:
                session.check_time(now)


@functools.lru_cache(maxsize=1)
def _packed_schemas() -> bytes:
    from edge_offload.ir.trace import checksums

    return checksums.pack_table(checksums.checksum_table())


def _packed_prefixes(older: object) -> bytes:
    from edge_offload.ir.trace import checksums

    return checksums.pack_table(checksums.prefix_checksums(older))


def _session_key(request: Request) -> Tuple[str, bytes]:
    session = request.body.get("session")
    if not isinstance(session, bytes) or len(session) != 16:
        raise ProtocolError("a request for a device without its session")
    return request.peer.key, session
