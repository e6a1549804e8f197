"""The relay of the emulated link: bytes of all connections through a lane each way, on one thread."""

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
from typing import Any, List, Optional, Set, Tuple

from edge_offload.link.security.keys import join_address
from edge_offload.link.sockets.descriptors import Wakeup
from edge_offload.link.sockets.lookup import socket_addresses
from edge_offload_research.emulate.lane import Flow, Lane

log = logging.getLogger(__name__)

# the kernel doubles what is asked for, to pay for its own bookkeeping
KERNEL_BUFFER = 32 << 10
# like Wi-Fi; the loopback's 64 KB segments would fill such a small buffer one at a time, with pauses
SEGMENT_BYTES = 1448
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27


class Pipe:
    """One connection: the robot's socket, the server's socket, a flow each way."""

    def __init__(self, robot: socket.socket, server: socket.socket) -> None:
        self.robot = robot
        self.server: Optional[socket.socket] = server
        self.connecting = True
        self.up = Flow()
        self.down = Flow()
        self.ended: Set[int] = set()  # id() of flows whose source has closed


class Relay:
    """Connections through the link, and the thread that relays them.

    Args:
        listening: socket on which robots connect.
        to: host and port of the server.
        up, down: the lanes.

    Attributes:
        lock: what changes anything from another thread has it.
        pipes: open connections.
        accepted: connections since the start.
        cut: the fault that is switched on, or empty.
        corrupt, replay: chunks upwards that are still to be changed, or sent twice.
        wakeup: has the thread look at what there is to do.
    """

    def __init__(self, listening: socket.socket, to: Tuple[str, int], up: Lane, down: Lane) -> None:
        self._listening, self._to = listening, to
        self.up, self.down = up, down
        self.lock = threading.RLock()
        self.pipes: List[Pipe] = []
        self.accepted = self.corrupt = self.replay = 0
        self.cut = ""
        self.wakeup = Wakeup()
        self._stop = threading.Event()

    def stop(self) -> None:
        """End :meth:`run`."""
        self._stop.set()
        self.wakeup.wake_thread()

    def set_deaf(self, deaf: bool) -> None:
        """Let no packet of either end have an answer, new connections included; or no longer."""
        for end in (self._listening, *(end for pipe in self.pipes for end in (pipe.robot, pipe.server) if end)):
            set_deaf(end, deaf)

    def run(self) -> None:
        """Relay until :meth:`stop`."""
        _sharpen_timers()
        try:
            while not self._stop.is_set():
                with self.lock:
                    readers, writers, due = self._update_interest()
                timeout = None if due == math.inf else max(0.0, due - time.monotonic())
                # select, not epoll: its timeout counts microseconds
                try:
                    readable, writable, _ = select.select(readers, writers, [], timeout)
                except (OSError, ValueError):
                    continue  # a cut has just closed one of them: look again at what there is
                self.wakeup.clear_wakeups()
                with self.lock:
                    self._relay_step(set(readable), set(writable))
        finally:
            with self.lock:
                for pipe in list(self.pipes):
                    self.drop_pipe(pipe)

    def _update_interest(self) -> Tuple[List[Any], List[Any], float]:
        now = time.monotonic()
        self.up.advance_to(now)  # a receiver may just have made room
        self.down.advance_to(now)
        readers: List[Any] = [self.wakeup.descriptor, self._listening]
        writers: List[Any] = []
        for pipe in self.pipes:
            if pipe.server is None:
                readers.append(pipe.robot)
                continue
            if pipe.connecting:
                writers.append(pipe.server)
                continue
            for source, sink, flow, lane in self._ways_of(pipe):
                if id(flow) not in pipe.ended and lane.free_bytes(flow):
                    readers.append(source)
                if flow.blocked:
                    writers.append(sink)
        return readers, writers, min(self.up.next_s(), self.down.next_s())

    def _ways_of(self, pipe: Pipe) -> Tuple[Tuple[socket.socket, socket.socket, Flow, Lane], ...]:
        assert pipe.server is not None
        return (pipe.robot, pipe.server, pipe.up, self.up), (pipe.server, pipe.robot, pipe.down, self.down)

    def _relay_step(self, readable: Set[Any], writable: Set[Any]) -> None:
        if self._listening in readable:
            self._accept_robot()
        now = time.monotonic()
        self.up.advance_to(now)
        self.down.advance_to(now)
        for pipe in list(self.pipes):
            try:
                if pipe.server is None:
                    self._swallow_bytes(pipe, readable)
                elif pipe.connecting:
                    if pipe.server in writable:
                        self._finish_connection(pipe)
                else:
                    self._relay_pipe(pipe, readable, now)
            except OSError:
                self.drop_pipe(pipe)

    def _accept_robot(self) -> None:
        try:
            robot, _ = self._listening.accept()
        except OSError:
            return
        self.accepted += 1
        if self.cut == "refuse":
            reset_socket(robot)
            return
        robot.setblocking(False)
        robot.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            family, to_address = socket_addresses(*self._to)[0]
        except OSError as error:
            log.warning("link emulator: cannot reach %s: %s", join_address(*self._to), error.strerror)
            reset_socket(robot)
            return
        server = socket.socket(family, socket.SOCK_STREAM)
        server.setblocking(False)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        shrink_buffers(server)
        with contextlib.suppress(BlockingIOError):
            try:
                server.connect(to_address)
            except BlockingIOError:
                raise
            except OSError as error:
                log.warning("link emulator: cannot reach %s: %s", join_address(*self._to), error)
                reset_socket(robot)
                server.close()
                return
        self.pipes.append(Pipe(robot, server))

    def _finish_connection(self, pipe: Pipe) -> None:
        assert pipe.server is not None
        error = pipe.server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, "cannot reach the server")
        pipe.connecting = False
        self.up.add(pipe.up)
        self.down.add(pipe.down)

    def _relay_pipe(self, pipe: Pipe, readable: Set[Any], now: float) -> None:
        for source, sink, flow, lane in self._ways_of(pipe):
            if not lane.paused:
                self._deliver_data(sink, flow, now)
            if source in readable:
                room = lane.free_bytes(flow)
                while room > 0:
                    try:
                        data = source.recv(min(room, lane.chunk_size(now)))
                    except BlockingIOError:
                        break
                    if not data:
                        pipe.ended.add(id(flow))
                        break
                    if self.corrupt and lane is self.up:
                        self.corrupt -= 1
                        data = data[:-1] + bytes([data[-1] ^ 0x55])
                    lane.offer_data(flow, data, now)
                    if self.replay and lane is self.up:
                        self.replay -= 1
                        lane.offer_data(flow, data, now)
                    room = lane.free_bytes(flow)
            if id(flow) in pipe.ended and flow.empty:
                self.drop_pipe(pipe, gently=True)
                return

    @staticmethod
    def _deliver_data(sink: socket.socket, flow: Flow, now: float) -> None:
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
    def _swallow_bytes(pipe: Pipe, readable: Set[Any]) -> None:
        """A half-open connection takes what the robot sends, for a while, like a peer that has lost its memory."""
        if pipe.robot in readable and not pipe.robot.recv(65536):
            raise OSError("closed")

    def drop_pipe(self, pipe: Pipe, gently: bool = False) -> None:
        """End a connection on both sides, with a reset unless ``gently``."""
        for end in (pipe.robot, pipe.server):
            if end is not None:
                if gently:
                    end.close()
                else:
                    reset_socket(end)
        self.up.remove(pipe.up)
        self.down.remove(pipe.down)
        if pipe in self.pipes:
            self.pipes.remove(pipe)


def shrink_buffers(end: socket.socket) -> None:
    """Let the kernel hold little for this socket."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BUFFER)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)


def set_deaf(end: socket.socket, deaf: bool) -> None:
    """Let the kernel drop, and not answer, what comes for this socket; or no longer."""
    drop = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # BPF: return 0
    program = struct.pack("HxxxxxxP", 1, ctypes.addressof(drop))
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER if deaf else SO_DETACH_FILTER, program)


def _sharpen_timers() -> None:
    """Let the kernel wake this thread on time instead of up to 50 us late (prctl PR_SET_TIMERSLACK, in ns)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(29, ctypes.c_ulong(1), 0, 0, 0)


def reset_socket(end: socket.socket) -> None:
    """Close with a reset rather than a farewell."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()
