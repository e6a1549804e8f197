"""Frames of a map and buffers over a local socket, between a process and the executor process that it started.

A frame is ``u32 header length, u32 number of buffers, u64 length of each, header (msgpack), buffers``.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Any, Dict, List, Sequence, Tuple

import msgpack

from edge_offload.errors import LinkLost, ProtocolError
from edge_offload.ir.trace.calls import Buffer


class Channel:
    """One end of a connected stream socket. Sending is thread-safe; receiving belongs to one thread.

    The socket blocks without a limit until it is given a timeout. rospy gives every new socket of its process one
    (``socket.setdefaulttimeout``), with which an inherited end would fail with EAGAIN.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        self._socket = connection
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """Return the socket's file descriptor, for selectors."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection; the peer's receive fails."""
        with contextlib.suppress(OSError):  # the peer closed it first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def send(self, header: Dict[str, Any], buffers: Sequence[Buffer] = ()) -> int:
        """Send one frame; returns its bytes.

        Raises:
            LinkLost: the peer has closed the connection.
        """
        packed = msgpack.packb(header, use_bin_type=True)
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        sizes = [len(view) for view in views]
        head = struct.pack(f"<II{len(sizes)}Q", len(packed), len(sizes), *sizes) + packed
        try:
            with self._sending:
                self._send_all([memoryview(head), *views])
        except OSError as error:
            raise LinkLost(f"the executor process is gone ({error})") from None
        return len(head) + sum(sizes)

    def _send_all(self, views: List[memoryview]) -> None:
        """Send all bytes with few system calls, because each wakes the peer."""
        waiting = [view for view in views if len(view)]
        first = 0
        while first < len(waiting):
            sent = self._socket.sendmsg(waiting[first : first + 512])  # of IOV_MAX: 1,024 buffers on Linux
            while sent and sent >= len(waiting[first]):
                sent -= len(waiting[first])
                first += 1
            if sent:
                waiting[first] = waiting[first][sent:]

    def receive(self) -> Tuple[Dict[str, Any], List[bytearray]]:
        """Wait for one frame.

        Raises:
            LinkLost: the peer has closed the connection.
            ProtocolError: the frame is malformed or too large.
        """
        header_size, count = struct.unpack("<II", self._receive_exactly(8))
        if header_size > 256 << 20 or count > 1 << 20:
            raise ProtocolError("a frame's header is too large")
        head = self._receive_exactly(8 * count + header_size)
        sizes = struct.unpack_from(f"<{count}Q", head)
        if sum(sizes) > 8 << 30:
            raise ProtocolError("a frame is too large")
        header = msgpack.unpackb(memoryview(head)[8 * count :], raw=False, strict_map_key=False)
        if not isinstance(header, dict):
            raise ProtocolError("a frame's header is not a map")
        return header, [self._receive_exactly(size) for size in sizes]

    def _receive_exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view, done = memoryview(data), 0
        while done < size:
            try:
                received = self._socket.recv_into(view[done:])
            except OSError as error:
                raise LinkLost(f"the executor process is gone ({error})") from None
            if not received:
                raise LinkLost("the executor process is gone")
            done += received
        return data
