"""``packets.c``: queue, bandwidth, delay and losses of both directions, for any clock or between two descriptors."""

from __future__ import annotations

import ctypes
import pathlib
import socket
import struct
from dataclasses import astuple
from typing import Any, Dict, Optional, Tuple

from edge_offload.native.recipe import Recipe
from edge_offload_research.emulate.trace import Trace
from edge_offload_research.testbed.packets.impairments import Impairments

RECIPE = Recipe(
    "edge_offload_packets", "the packet emulator", pathlib.Path(__file__).with_name("packets.c"),
    ("-O2",), language="C", extension=False,
)  # fmt: skip
MOST_BYTES = 2048
UP, DOWN = 0, 1


#: What is counted of a direction, in the order of ``packets.c``: packets, bytes, and what the link is now.
COUNTS: Dict[str, Any] = {
    **dict.fromkeys(("offered", "dropped", "lost", "delivered", "duplicated", "reordered", "refused"), ctypes.c_int64),
    **dict.fromkeys(("queued_bytes", "carried_bytes"), ctypes.c_int64),
    **dict.fromkeys(("bytes_per_s", "delay_s"), ctypes.c_double),
}


class _Step(ctypes.Structure):
    _fields_ = [(name, ctypes.c_double) for name in ("start_s", "bytes_per_s", "delay_s")]


class _Terms(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_double) for name in (
            "delay_s", "jitter_s", "knot_s", "loss", "to_bad", "to_good", "loss_bad", "reorder", "reorder_s",
            "duplicate", "outage_every_s", "outage_s",
        )),
        ("queue_bytes", ctypes.c_int64),
    ]  # fmt: skip


class _Counts(ctypes.Structure):
    _fields_ = list(COUNTS.items())


class Forwarder:
    """A link in both directions; times are seconds of one monotonic clock.

    Raises:
        Unsupported: there is no C compiler.
    """

    def __init__(self, now: float, seed: int = 0) -> None:
        self._library: Any = ctypes.CDLL(str(RECIPE.build()))
        self._library.link_new.restype = ctypes.c_void_p
        self._library.link_late_s.restype = ctypes.c_double
        self._library.link_free.restype = None
        link = self._library.link_new(ctypes.c_double(now), ctypes.c_uint64(seed))
        if not link:
            raise MemoryError
        self._link = ctypes.c_void_p(link)

    def set(self, direction: int, now: float, delay_s: float, terms: Impairments, trace: Optional[Trace]) -> None:
        """Change one direction, also for the packet in service; without a trace the present one goes on."""
        jitter_s, _, *others = astuple(terms)
        values = _Terms(delay_s, jitter_s, terms.knots_s, *others)
        steps, count, period_s = None, 0, 0.0
        if trace is not None:
            delays = trace.delays_s or (-1.0,) * len(trace.starts_s)
            rows = zip(trace.starts_s, trace.bytes_per_s, delays)
            count, period_s = len(trace.starts_s), trace.period_s
            steps = (_Step * count)(*(_Step(*row) for row in rows))
        done = self._library.link_set(
            self._link, direction, ctypes.c_double(now), steps, count, ctypes.c_double(period_s), ctypes.byref(values)
        )
        if not done:
            raise MemoryError

    def offer(self, direction: int, now: float, packet: bytes) -> None:
        """Let a packet arrive."""
        self._library.link_offer(self._link, direction, ctypes.c_double(now), packet, len(packet))

    def take(self, direction: int, now: float) -> Optional[Tuple[float, bytes]]:
        """The next packet that is due by ``now``, with the time at which it was due; None where there is none."""
        data, due = ctypes.create_string_buffer(MOST_BYTES), ctypes.c_double()
        size = self._library.link_take(self._link, direction, ctypes.c_double(now), data, ctypes.byref(due))
        return None if size < 0 else (due.value, data.raw[:size])

    def blackhole(self, on: bool) -> None:
        """Lose every packet, or no longer."""
        self._library.link_blackhole(self._link, int(on))

    def spoil(self, direction: int, corrupt: int = 0, repeat: int = 0) -> None:
        """Flip bits in the next ``corrupt`` packets, deliver the next ``repeat`` twice."""
        self._library.link_spoil(self._link, direction, corrupt, repeat)

    def translate(self, robot: str, far: Tuple[str, int], server: Tuple[str, int], flip: str) -> None:
        """Send what ``robot`` sends to ``far`` to ``server``, from its address with the bits of ``flip`` turned."""
        addresses = (socket.inet_aton(address) for address in (robot, far[0], server[0], flip))
        ports = (struct.pack("!H", port) for _, port in (far, server))
        self._library.link_translate(self._link, b"".join((*addresses, *ports)))

    def rename(self, direction: int, packet: bytes) -> Optional[bytes]:
        """The packet with the addresses of the other end, None if it belongs nowhere."""
        data = ctypes.create_string_buffer(packet, len(packet))
        return data.raw if self._library.link_rename(self._link, direction, data, len(packet)) else None

    def counts(self, direction: int, now: float) -> Dict[str, Any]:
        """Packets and bytes of one direction, and its present bandwidth and delay."""
        counts = _Counts()
        self._library.link_counts(self._link, direction, ctypes.c_double(now), ctypes.byref(counts))
        return {name: getattr(counts, name) for name in COUNTS}

    def late_s(self) -> float:
        """The longest time by which a packet was delivered too late, because the process had no processor."""
        return float(self._library.link_late_s(self._link))

    def run(self, robot: int, server: int, control: int) -> int:
        """Forward between two TUN descriptors until ``control`` gives b"q"; other bytes: a change. 0, or an errno."""
        return int(self._library.link_run(self._link, robot, server, control))

    def close(self) -> None:
        """Give the memory back; nothing may follow."""
        link, self._link = self._link, ctypes.c_void_p()
        self._library.link_free(link)
