"""A user-space TCP relay that behaves like a radio link: bandwidth and delay each way, from constants or a trace.

It needs no root and no kernel module. It ends TCP on both sides, so what a radio does to single packets (loss,
reordering) does not show; it shows as the stalls that TCP makes of it. Buffers are bounded: at most
:data:`~edge_offload.link.emulate.lane.QUEUE_BYTES` wait per connection and direction, plus what the kernel's receive
buffer (set to :data:`KERNEL_BUFFER`) holds: a full link adds tens of milliseconds at 93 Mbps, not seconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import select
import socket
import struct
import threading
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from edge_offload.errors import BadInput
from edge_offload.link.emulate.lane import Flow, Lane
from edge_offload.link.emulate.trace import BYTES_PER_MBIT, Link, Trace
from edge_offload.link.security.keys import join_address, split_address
from edge_offload.link.sockets.descriptors import Wakeup
from edge_offload.link.sockets.lookup import socket_addresses

log = logging.getLogger(__name__)

# the kernel doubles what is asked for, to pay for its own bookkeeping
KERNEL_BUFFER = 32 << 10
# like Wi-Fi; the loopback's 64 KB segments would fill such a small buffer one at a time, with pauses
SEGMENT_BYTES = 1448
CUTS = ("reset", "refuse", "blackhole", "half_open")


class _Pipe:
    """One connection: the robot's socket, the server's socket, a flow each way."""

    def __init__(self, robot: socket.socket, server: socket.socket) -> None:
        self.robot = robot
        self.server: Optional[socket.socket] = server
        self.connecting = True
        self.up = Flow()
        self.down = Flow()
        self.ended: Set[int] = set()  # id() of flows whose source has closed


class Emulator:
    """Relays ``listen`` to ``to`` over ``link``, on a thread of its own.

    Args:
        listen: host:port for robots; port 0 takes a free one (see :attr:`address`).
        to: host:port of the server.
        link: what to emulate.
        queue_bytes: what may wait per connection and direction.
    """

    commands = ("set", "cut", "restore", "corrupt", "replay", "stalls")

    def __init__(self, listen: str, to: str, link: Link, queue_bytes: Optional[int] = None, seed: int = 0) -> None:
        self.link_name = link.name
        self._to = split_address(to)
        host, port = split_address(listen)
        try:
            family, here = socket_addresses(host, port)[0]
        except OSError as error:
            remedy = "give an address of this machine"
            raise BadInput(f"cannot listen on {listen}: {error.strerror}", remedy=remedy) from error
        self._listening = socket.socket(family, socket.SOCK_STREAM)
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._shrink(self._listening)
        try:
            self._listening.bind(here)
        except OSError as error:
            self._listening.close()
            raise BadInput(f"cannot listen on {listen}: {error.strerror}", remedy="choose another port") from error
        self._listening.listen(64)
        self._listening.setblocking(False)
        bound = self._listening.getsockname()
        self.address = f"tcp://{join_address(bound[0], bound[1])}"
        now = time.monotonic()
        extra: Dict[str, Any] = {} if queue_bytes is None else {"queue_bytes": queue_bytes}
        self._up = Lane(link.up, link.up_delay_s, now, seed=seed, **extra)
        self._down = Lane(link.down, link.down_delay_s, now, seed=seed + 1, **extra)
        self._began = now
        self._pipes: List[_Pipe] = []
        self._accepted = 0
        self._corrupt = 0
        self._replay = 0
        self._cut = ""
        self._lock = threading.RLock()
        self._wakeup = Wakeup()
        self._stop = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def start(self) -> Emulator:
        """Begin to relay."""
        self._thread = threading.Thread(target=self._run, name="edge_offload-emulator", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop and break every connection."""
        self._stop.set()
        self._wakeup.wake()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._listening.close()

    def __enter__(self) -> Emulator:
        return self.start()

    def __exit__(self, *_: Any) -> None:
        self.close()

    # ------------------------------------------------------------------ control, from any thread

    def set_link(self, link: Link) -> None:
        """Change everything at once; a trace begins at its beginning."""
        with self._change() as now:
            self.link_name = link.name
            self._up.set(now, link.up, link.up_delay_s)
            self._down.set(now, link.down, link.down_delay_s)

    def set(self, mbps: Optional[float] = None, rtt_s: Optional[float] = None, direction: str = "both") -> None:
        """Set a constant bandwidth (0 is an outage) and/or round trip time, for ``up``, ``down`` or ``both``."""
        if direction not in ("up", "down", "both"):
            raise BadInput(f"no direction {direction!r}", remedy="directions: up, down, both")
        for value, what in ((mbps, "mbps"), (rtt_s, "rtt_s")):
            if value is not None and not (0 <= value < math.inf):
                raise BadInput(f"{what} must be a number of at least 0, not {value!r}")
        trace = None if mbps is None else Trace.constant(mbps * BYTES_PER_MBIT)
        with self._change() as now:
            self.link_name = "custom"
            for lane, name in ((self._up, "up"), (self._down, "down")):
                if direction in (name, "both"):
                    lane.set(now, trace, None if rtt_s is None else rtt_s / 2)

    def cut(self, how: str) -> None:
        """Break the link until :meth:`restore`.

        ``reset``: every connection is reset; new ones are let through (nothing to restore). ``refuse``: the same, and
        new ones are reset too. ``blackhole``: nothing passes either way, nobody is told; what waits passes after.
        ``half_open``: the server's side of every connection is reset, the robot's side is not told.
        """
        if how not in CUTS:
            raise BadInput(f"no cut {how!r}", remedy=f"cuts: {', '.join(CUTS)}")
        with self._change() as now:
            self._cut = "" if how == "reset" else how
            if how in ("reset", "refuse"):
                for pipe in list(self._pipes):
                    self._drop(pipe)
            elif how == "blackhole":
                self._up.pause(now, True)
                self._down.pause(now, True)
            else:
                for pipe in self._pipes:
                    if pipe.server is not None:
                        _reset(pipe.server)
                        pipe.server = None
                    self._up.remove(pipe.up)
                    self._down.remove(pipe.down)

    def restore(self) -> None:
        """End a cut. Half-open connections are reset."""
        with self._change() as now:
            self._cut = ""
            self._up.pause(now, False)
            self._down.pause(now, False)
            for pipe in list(self._pipes):
                if pipe.server is None:
                    self._drop(pipe)

    def corrupt(self, chunks: int) -> None:
        """Flip one byte in each of the next ``chunks`` chunks upwards."""
        with self._change():
            self._corrupt = chunks

    def replay(self, chunks: int) -> None:
        """Send each of the next ``chunks`` chunks upwards twice, as one does who has recorded them."""
        with self._change():
            self._replay = chunks

    def stalls(self, fraction: float, stall_s: float) -> None:
        """Let this fraction of chunks hold up the lane for ``stall_s``, as lost packets do until TCP repeats them."""
        with self._change():
            for lane in (self._up, self._down):
                lane.stall_fraction, lane.stall_s = fraction, stall_s

    def stats(self) -> Dict[str, Any]:
        """What was carried and what the link is now: the independent count and the truth for estimators."""
        with self._lock:
            now = time.monotonic()
            return {
                "link": self.link_name,
                "level": "tcp",
                "t_s": now - self._began,
                "cut": self._cut,
                "connections": len(self._pipes),
                "accepted": self._accepted,
                "bytes_up": self._up.carried,
                "bytes_down": self._down.carried,
                "queued_up": self._up.queued(),
                "queued_down": self._down.queued(),
                "bytes_per_s_up": self._up.rate(now),
                "bytes_per_s_down": self._down.rate(now),
                "delay_s_up": self._up.delay(now),
                "delay_s_down": self._down.delay(now),
            }

    @contextlib.contextmanager
    def _change(self) -> Any:
        with self._lock:
            yield time.monotonic()
        self._wakeup.wake()

    # ------------------------------------------------------------------ the relay's thread

    def _run(self) -> None:
        _sharpen_timers()
        try:
            while not self._stop.is_set():
                with self._lock:
                    readers, writers, due = self._interest()
                timeout = None if due == math.inf else max(0.0, due - time.monotonic())
                # select, not epoll: its timeout counts microseconds
                try:
                    readable, writable, _ = select.select(readers, writers, [], timeout)
                except (OSError, ValueError):
                    continue  # a cut has just closed one of them: look again at what there is
                self._wakeup.clear()
                with self._lock:
                    self._step(set(readable), set(writable))
        finally:
            with self._lock:
                for pipe in list(self._pipes):
                    self._drop(pipe)

    def _interest(self) -> Tuple[List[Any], List[Any], float]:
        now = time.monotonic()
        self._up.advance(now)  # a receiver may just have made room
        self._down.advance(now)
        readers: List[Any] = [self._wakeup.descriptor, self._listening]
        writers: List[Any] = []
        for pipe in self._pipes:
            if pipe.server is None:
                readers.append(pipe.robot)
                continue
            if pipe.connecting:
                writers.append(pipe.server)
                continue
            for source, sink, flow, lane in self._ways(pipe):
                if id(flow) not in pipe.ended and lane.room(flow):
                    readers.append(source)
                if flow.blocked:
                    writers.append(sink)
        return readers, writers, min(self._up.next_s(), self._down.next_s())

    def _ways(self, pipe: _Pipe) -> Tuple[Tuple[socket.socket, socket.socket, Flow, Lane], ...]:
        assert pipe.server is not None
        return (pipe.robot, pipe.server, pipe.up, self._up), (pipe.server, pipe.robot, pipe.down, self._down)

    def _step(self, readable: Set[Any], writable: Set[Any]) -> None:
        if self._listening in readable:
            self._accept()
        now = time.monotonic()
        self._up.advance(now)
        self._down.advance(now)
        for pipe in list(self._pipes):
            try:
                if pipe.server is None:
                    self._swallow(pipe, readable)
                elif pipe.connecting:
                    if pipe.server in writable:
                        self._connected(pipe)
                else:
                    self._relay(pipe, readable, now)
            except OSError:
                self._drop(pipe)

    def _accept(self) -> None:
        try:
            robot, _ = self._listening.accept()
        except OSError:
            return
        self._accepted += 1
        if self._cut == "refuse":
            _reset(robot)
            return
        robot.setblocking(False)
        robot.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            family, there = socket_addresses(*self._to)[0]
        except OSError as error:
            log.warning("link emulator: cannot reach %s: %s", join_address(*self._to), error.strerror)
            _reset(robot)
            return
        server = socket.socket(family, socket.SOCK_STREAM)
        server.setblocking(False)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._shrink(server)
        with contextlib.suppress(BlockingIOError):
            try:
                server.connect(there)
            except BlockingIOError:
                raise
            except OSError as error:
                log.warning("link emulator: cannot reach %s: %s", join_address(*self._to), error)
                _reset(robot)
                server.close()
                return
        self._pipes.append(_Pipe(robot, server))

    def _connected(self, pipe: _Pipe) -> None:
        assert pipe.server is not None
        error = pipe.server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, "cannot reach the server")
        pipe.connecting = False
        self._up.add(pipe.up)
        self._down.add(pipe.down)

    def _relay(self, pipe: _Pipe, readable: Set[Any], now: float) -> None:
        for source, sink, flow, lane in self._ways(pipe):
            if not lane.paused:
                self._deliver(sink, flow, now)
            if source in readable:
                room = lane.room(flow)
                while room > 0:
                    try:
                        data = source.recv(min(room, lane.chunk(now)))
                    except BlockingIOError:
                        break
                    if not data:
                        pipe.ended.add(id(flow))
                        break
                    if self._corrupt and lane is self._up:
                        self._corrupt -= 1
                        data = data[:-1] + bytes([data[-1] ^ 0x55])
                    lane.offer(flow, data, now)
                    if self._replay and lane is self._up:
                        self._replay -= 1
                        lane.offer(flow, data, now)
                    room = lane.room(flow)
            if id(flow) in pipe.ended and flow.empty:
                self._drop(pipe, gently=True)
                return

    @staticmethod
    def _deliver(sink: socket.socket, flow: Flow, now: float) -> None:
        flow.blocked = False
        while flow.flying and flow.flying[0][0] <= now:
            due, data = flow.flying[0]
            try:
                sent = sink.send(data)
            except BlockingIOError:
                sent = 0
            if sent < len(data):
                flow.flying[0] = due, data[sent:]
                flow.blocked = True
                return
            flow.flying.popleft()

    @staticmethod
    def _swallow(pipe: _Pipe, readable: Set[Any]) -> None:
        """A half-open connection takes what the robot sends, for a while, like a peer that has lost its memory."""
        if pipe.robot in readable and not pipe.robot.recv(65536):
            raise OSError("closed")

    def _drop(self, pipe: _Pipe, gently: bool = False) -> None:
        for end in (pipe.robot, pipe.server):
            if end is not None:
                if gently:
                    end.close()
                else:
                    _reset(end)
        self._up.remove(pipe.up)
        self._down.remove(pipe.down)
        if pipe in self._pipes:
            self._pipes.remove(pipe)

    @staticmethod
    def _shrink(end: socket.socket) -> None:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BUFFER)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)


def _sharpen_timers() -> None:
    """Let the kernel wake this thread on time instead of up to 50 us late (prctl PR_SET_TIMERSLACK, in ns)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(29, ctypes.c_ulong(1), 0, 0, 0)


def _reset(end: socket.socket) -> None:
    """Close with a reset rather than a farewell."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()
