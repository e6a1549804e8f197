"""The server's door: who gets in, how many, and how much of a message libzmq may gather before it is delivered.

libzmq assembles a whole multipart message in memory before the application sees any of it, and its own bound
(``ZMQ_MAXMSGSIZE``) counts one part only: an authenticated peer could fill the memory with parts of 1 MB. The gate
compares what the kernel has received on each connection with what was delivered to the application, and breaks a
connection whose difference passes the bound. It runs on a thread of its own: a slow handler does not open the door.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Dict, NamedTuple, Optional, Tuple

import zmq
from zmq.utils import z85

from edge_offload.errors import BadInput
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.sockets import descriptors
from edge_offload.link.sockets.sparingly import Sparingly

log = logging.getLogger(__name__)
rare = Sparingly(log)

# least time until the next look
TICK_S = 0.01
REFRESH_S = 0.25


@dataclass(frozen=True)
class Bounds:
    """Bounds on what peers may use.

    Attributes:
        peer_timeout_s: a peer that sends nothing (not even heartbeats) for so long is gone: the lease of what it holds.
        hello_timeout_s: it says hello in so long.
        connections: TCP connections at once, of robots and of strangers.
        connections_per_robot: of which one robot may have so many, told by its key; more are refused with "full".
        open_requests: requests of one peer that may wait for an answer; more are refused with "full".
        open_bytes: bytes of such requests; None: a little more than the largest message. The client is told and keeps
            to it, so that only a hostile one is ever cut for having too much under way.
    """

    peer_timeout_s: float = 3.0
    hello_timeout_s: float = 5.0
    connections: int = 128
    connections_per_robot: int = 32
    open_requests: int = 64
    open_bytes: Optional[int] = None


@dataclass
class _Door:
    """One accepted connection."""

    tcp: descriptors.Connection
    opened_s: float
    user: Optional[str] = None  # unknown until its first message is delivered
    received: int = 0
    received_s: float = 0.0


class _ZapRequest(NamedTuple):
    """A request of ZeroMQ's authentication protocol (RFC 27)."""

    version: bytes
    request_id: bytes
    domain: bytes
    address: bytes
    routing_id: bytes
    mechanism: bytes
    key: bytes


@dataclass
class _Entrant:
    """One successful handshake."""

    key: str
    name: str
    entered_s: float
    door: Optional[_Door] = None  # unknown until its first message is delivered
    descriptor: Optional[int] = None  # of that message's connection
    delivered: int = 0


class AllowList:
    """Names of robots by their public keys. Changes on disk are seen without a restart.

    Args:
        keys: where it is.
        loopback: also let in the client pair of the same directory.
    """

    def __init__(self, keys: KeyStore, loopback: bool) -> None:
        self._keys, self._loopback = keys, loopback
        self.names: Dict[str, str] = {}
        self._stamp: Optional[Tuple[object, ...]] = None

    def reload_keys(self) -> None:
        """Read it again if it has changed."""
        stamp = self._keys.allow_list_stamp()
        if stamp == self._stamp:
            return
        try:
            allowed = self._keys.clients()
            own_pair = self._keys.pair("client") if self._loopback else None
        except BadInput as error:
            # half-edited by hand: keep what was valid, say so once per change
            log.error("link: allow-list not re-read: %s", error)
            self._stamp = stamp
            return
        if own_pair is not None:
            allowed.setdefault(own_pair.public, "this machine")
        self._stamp, self.names = stamp, allowed


class Gate:
    """Answers ZAP requests from the allow-list and bounds connections (see the module).

    Args:
        context: the listener's own context (ZAP has one handler per context).
        router: the bound ROUTER socket; its monitor is opened here, before bind.
        allow: who may come in; revoked peers are cut.
        bounds: on connections.
        max_undelivered_bytes: bound on bytes received from one peer and not yet delivered.
        counters: what happened, by reason; shared with the listener.
    """

    def __init__(
        self, context: zmq.Context[Any], router: zmq.Socket[Any], allow: AllowList, bounds: Bounds,
        max_undelivered_bytes: int, counters: Counter[Any],
    ) -> None:  # fmt: skip
        self._allow = allow
        self._bounds = bounds
        self._most_bytes = max_undelivered_bytes + (8 << 20)  # on their way through buffers of the kernel and libzmq
        self._counters = counters
        self._lock = threading.Lock()
        self._doors: Dict[int, _Door] = {}
        self._entrants: Dict[str, _Entrant] = {}
        self._serial = itertools.count(1)
        self._monitor: zmq.Socket[Any] = router.get_monitor_socket(
            zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
        )
        self._zap: zmq.Socket[Any] = context.socket(zmq.REP)
        self._zap.linger = 0
        self._zap.bind("inproc://zeromq.zap.01")
        self._stop = threading.Event()
        self._wakeup = descriptors.Wakeup()
        self._thread = threading.Thread(target=self._run_gate, name="edge_offload-gate", daemon=True)

    def start(self) -> None:
        """Begin to answer; nobody gets in before."""
        self._allow.reload_keys()
        self._read_events()
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and close its sockets."""
        self._stop.set()
        self._wakeup.wake_thread()
        if self._thread.is_alive():
            self._thread.join()
        self._wakeup.close()
        with self._lock:
            self._monitor.close(0)
            self._zap.close(0)

    def mark_delivered(self, user: str, descriptor: int, wire_bytes: int) -> None:
        """Note that a message of ``user`` (ZAP's id of the handshake) reached the application."""
        with self._lock:
            entrant = self._entrants.get(user)
            if entrant is None:
                return
            entrant.delivered += wire_bytes
            if entrant.door is None:
                entrant.descriptor = descriptor
                # As a rule its ACCEPTED event was queued before any of its messages. On a busy machine it may come
                # later, since libzmq hands a connection to its reader first; _accepted() opens the door then.
                self._read_events()
                self._match_entrant(entrant, user)

    def identify_peer(self, user: str) -> Optional[Tuple[str, str]]:
        """Public key and name of the peer behind a handshake; None if it is not in any more."""
        with self._lock:
            entrant = self._entrants.get(user)
            return (entrant.key, entrant.name) if entrant else None

    def quiet_s(self, user: str) -> Optional[float]:
        """Return the seconds since bytes last arrived from ``user``; None if its connection is gone."""
        with self._lock:
            entrant = self._entrants.get(user)
            if entrant is None:
                return None
            if entrant.door is None:
                # its connection is not known yet: see delivered()
                return time.monotonic() - entrant.entered_s
            if self._doors.get(entrant.door.tcp.descriptor) is not entrant.door:
                return None
            return time.monotonic() - entrant.door.received_s

    def cut_connection(self, user: str, reason: str) -> None:
        """Break the connection of ``user``."""
        with self._lock:
            entrant = self._entrants.get(user)
            if entrant and entrant.door:
                self._break_connection(entrant.door, reason)

    def _run_gate(self) -> None:
        poller = zmq.Poller()
        poller.register(self._zap, zmq.POLLIN)
        # its descriptor, not the socket: the listener's thread reads it, too, under the lock
        poller.register(self._monitor.getsockopt(zmq.FD), zmq.POLLIN)
        poller.register(self._wakeup.descriptor, zmq.POLLIN)
        looked_s = refreshed_s = 0.0
        wait_s = TICK_S
        while not self._stop.is_set():
            ready = dict(poller.poll(int(wait_s * 1e3)))
            now = time.monotonic()
            if self._zap in ready:
                if now - refreshed_s >= REFRESH_S:  # it may have slept for longer
                    with self._lock:
                        self._allow.reload_keys()
                self._answer_zap()
            if ready or now - looked_s >= TICK_S:
                looked_s = now
                with self._lock:
                    self._read_events()
                    wait_s = self._check_bounds(now)
                    if now - refreshed_s >= REFRESH_S:
                        refreshed_s = now
                        self._allow.reload_keys()
                        self._turn_out(now)

    def _read_events(self) -> None:
        while True:
            try:
                event, _ = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            kind, descriptor = struct.unpack("=hi", event)
            if kind == zmq.EVENT_LISTENING:
                with contextlib.suppress(OSError):
                    descriptors.Connection(descriptor).avoid_pacing()  # those that it accepts inherit that
            elif kind == zmq.EVENT_ACCEPTED:
                self._on_accepted(descriptor)
            elif kind in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED):
                self._drop_descriptor(descriptor)

    def _on_accepted(self, descriptor: int) -> None:
        now = time.monotonic()
        self._drop_descriptor(descriptor)
        try:
            door = _Door(descriptors.Connection(descriptor), now, received_s=now)
        except OSError:
            return  # came and went
        self._doors[descriptor] = door
        self._counters["connections"] += 1
        if len(self._doors) > self._bounds.connections:
            self._break_connection(door, "too many connections")
            return
        for user, entrant in self._entrants.items():
            if entrant.door is None and entrant.descriptor == descriptor:
                self._match_entrant(entrant, user)
                return

    def _match_entrant(self, entrant: _Entrant, user: str) -> None:
        """Handshake and connection are one, once both are known."""
        door = None if entrant.descriptor is None else self._doors.get(entrant.descriptor)
        if entrant.door is None and door is not None and door.user is None:
            door.user, entrant.door = user, door

    def _drop_descriptor(self, descriptor: int) -> None:
        door = self._doors.pop(descriptor, None)
        if door is not None and door.user is not None:
            self._entrants.pop(door.user, None)

    def _break_connection(self, door: _Door, reason: str) -> None:
        name = self._entrants[door.user].name if door.user in self._entrants else "a peer that has not said hello"
        if door.tcp.break_connection():
            self._counters[f"cut: {reason}"] += 1
            rare.warning("link: cut the connection of %s: %s", name, reason)
        self._drop_descriptor(door.tcp.descriptor)

    def _check_bounds(self, now: float) -> float:
        """Break connections that are over a bound; returns the seconds until the next could be."""
        wait_s = 0.1 if self._doors else 1.0  # until the next look
        for door in list(self._doors.values()):
            counters = door.tcp.read_counters()
            if counters is None:
                # closed by libzmq, its event is on the way
                continue
            if counters.received != door.received:
                door.received, door.received_s = counters.received, now
            if door.user is None:
                if counters.received > 256 << 10:  # greeting, handshake and hello
                    self._break_connection(door, "too many bytes before hello")
                elif now - door.opened_s > self._bounds.hello_timeout_s:
                    self._break_connection(door, "no hello in time")
                wait_s = TICK_S
            else:
                remaining = self._most_bytes - (counters.received - self._entrants[door.user].delivered)
                if remaining < 0:
                    self._break_connection(door, "message over the size limit")
                wait_s = min(wait_s, max(TICK_S, remaining / 2e9))  # bytes/s of the fastest peer
        return wait_s

    def _turn_out(self, now: float) -> None:
        """Cut peers whose key was revoked; forget handshakes that led to nothing."""
        for user, entrant in list(self._entrants.items()):
            if entrant.door is None:
                if now - entrant.entered_s > 2 * self._bounds.hello_timeout_s:
                    del self._entrants[user]
            elif entrant.key not in self._allow.names:
                self._break_connection(entrant.door, "key revoked")

    def _answer_zap(self) -> None:
        """Answer one ZAP request."""
        frames = self._zap.recv_multipart()
        request_id = frames[1] if len(frames) > 1 else b""
        status, text, user = b"400", b"not understood", ""
        request = _ZapRequest(*frames) if len(frames) == len(_ZapRequest._fields) else None
        if request and request.version == b"1.0" and request.mechanism == b"CURVE" and len(request.key) == 32:
            self._allow.reload_keys()
            key = z85.encode(request.key).decode("ascii")
            name = self._allow.names.get(key)
            if name is None:
                text = b"key not on the allow-list"
                self._counters["refused: unknown key"] += 1
                where = request.address.decode("ascii", "replace")
                rare.warning("link: refused a peer at %s with unknown key %s", where, key)
            elif self._handshakes_of(key) >= self._bounds.connections_per_robot + 8:  # some are refused with a reason
                status, text = b"300", b"too many connections"  # RFC 27: try again later
                self._counters["refused: too many of one key"] += 1
                rare.warning("link: %s connects too often", name)
            else:
                status, text, user = b"200", b"welcome", f"{next(self._serial)}"
                with self._lock:
                    self._entrants[user] = _Entrant(key, name, time.monotonic())
        self._zap.send_multipart([b"1.0", request_id, status, text, user.encode("ascii"), b""])

    def _handshakes_of(self, key: str) -> int:
        with self._lock:
            return sum(entrant.key == key for entrant in self._entrants.values())
