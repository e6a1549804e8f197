"""A user-space TCP relay that behaves like a radio link: bandwidth and delay each way, from constants or a trace.

It needs no root and no kernel module. It ends TCP on both sides, so what a radio does to single packets (loss,
reordering) does not show; it shows as the stalls that TCP makes of it. Buffers are bounded: at most
:data:`~.lane.QUEUE_BYTES` wait per connection and direction, plus what the kernel's receive buffer (set to
:data:`~.relay.KERNEL_BUFFER`) holds: a full link adds tens of milliseconds at 93 Mbps, not seconds.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any, Dict, Optional

from edge_offload.errors import BadInput
from edge_offload.link.security.keys import join_address, split_address
from edge_offload.link.sockets.lookup import socket_addresses
from edge_offload_research.emulate.lane import Lane
from edge_offload_research.emulate.relay import Relay, reset_socket, shrink_buffers
from edge_offload_research.emulate.trace import Link, constant_trace

CUTS = ("reset", "refuse", "blackhole", "half_open")


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
        to_address = split_address(to)
        host, port = split_address(listen)
        try:
            family, bind_address = socket_addresses(host, port)[0]
        except OSError as error:
            remedy = "give an address of this machine"
            raise BadInput(f"cannot listen on {listen}: {error.strerror}", remedy=remedy) from error
        self._listening = socket.socket(family, socket.SOCK_STREAM)
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        shrink_buffers(self._listening)
        try:
            self._listening.bind(bind_address)
        except OSError as error:
            self._listening.close()
            raise BadInput(f"cannot listen on {listen}: {error.strerror}", remedy="choose another port") from error
        self._listening.listen(64)
        self._listening.setblocking(False)
        bound = self._listening.getsockname()
        self.address = f"tcp://{join_address(bound[0], bound[1])}"
        now = time.monotonic()
        extra: Dict[str, Any] = {} if queue_bytes is None else {"queue_bytes": queue_bytes}
        up = Lane(link.up, link.up_delay_s, now, seed=seed, **extra)
        down = Lane(link.down, link.down_delay_s, now, seed=seed + 1, **extra)
        self._relay = Relay(self._listening, to_address, up, down)
        self._started_at = now
        self._thread: Optional[threading.Thread] = None

    def start(self) -> Emulator:
        """Begin to relay."""
        self._thread = threading.Thread(target=self._relay.run, name="edge_offload-emulator", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop and break every connection."""
        self._relay.stop()
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
        with self._apply_change() as now:
            self.link_name = link.name
            self._relay.up.set(now, link.up, link.up_delay_s)
            self._relay.down.set(now, link.down, link.down_delay_s)

    def set(self, mbps: Optional[float] = None, rtt_s: Optional[float] = None, direction: str = "both") -> None:
        """Set a constant bandwidth (0 is an outage) and/or round trip time, for ``up``, ``down`` or ``both``."""
        trace = constant_trace(mbps, rtt_s, direction)
        with self._apply_change() as now:
            self.link_name = "custom"
            for lane, name in ((self._relay.up, "up"), (self._relay.down, "down")):
                if direction in (name, "both"):
                    lane.set(now, trace, None if rtt_s is None else rtt_s / 2)

    def cut(self, how: str) -> None:
        """Break the link until :meth:`restore`.

        ``reset``: every connection is reset; new ones are let through (nothing to restore). ``refuse``: the same, and
        new ones are reset too. ``blackhole``: nothing passes either way, no packet is answered; what waits passes
        after.
        ``half_open``: the server's side of every connection is reset, the robot's side is not told.
        """
        if how not in CUTS:
            raise BadInput(f"no cut {how!r}", remedy=f"cuts: {', '.join(CUTS)}")
        with self._apply_change() as now:
            self._relay.cut = "" if how == "reset" else how
            if how in ("reset", "refuse"):
                for pipe in list(self._relay.pipes):
                    self._relay.drop_pipe(pipe)
            elif how == "blackhole":
                self._relay.set_deaf(True)
                self._relay.up.set_paused(now, True)
                self._relay.down.set_paused(now, True)
            else:
                for pipe in self._relay.pipes:
                    if pipe.server is not None:
                        reset_socket(pipe.server)
                        pipe.server = None
                    self._relay.up.remove(pipe.up)
                    self._relay.down.remove(pipe.down)

    def restore(self) -> None:
        """End a cut. Half-open connections are reset."""
        with self._apply_change() as now:
            self._relay.cut = ""
            self._relay.set_deaf(False)
            self._relay.up.set_paused(now, False)
            self._relay.down.set_paused(now, False)
            for pipe in list(self._relay.pipes):
                if pipe.server is None:
                    self._relay.drop_pipe(pipe)

    def corrupt(self, chunks: int) -> None:
        """Flip one byte in each of the next ``chunks`` chunks upwards."""
        with self._apply_change():
            self._relay.corrupt = chunks

    def replay(self, chunks: int) -> None:
        """Send each of the next ``chunks`` chunks upwards twice, as one does who has recorded them."""
        with self._apply_change():
            self._relay.replay = chunks

    def stalls(self, fraction: float, stall_s: float) -> None:
        """Let this fraction of chunks hold up the lane for ``stall_s``, as lost packets do until TCP repeats them."""
        with self._apply_change():
            for lane in (self._relay.up, self._relay.down):
                lane.stall_fraction, lane.stall_s = fraction, stall_s

    def stats(self) -> Dict[str, Any]:
        """Return the counts of carried traffic and the state of the link: the truth for estimators."""
        with self._relay.lock:
            now = time.monotonic()
            return {
                "link": self.link_name,
                "level": "tcp",
                "t_s": now - self._started_at,
                "cut": self._relay.cut,
                "connections": len(self._relay.pipes),
                "accepted": self._relay.accepted,
                "bytes_up": self._relay.up.carried,
                "bytes_down": self._relay.down.carried,
                "queued_up": self._relay.up.count_queued(),
                "queued_down": self._relay.down.count_queued(),
                "bytes_per_s_up": self._relay.up.current_rate(now),
                "bytes_per_s_down": self._relay.down.current_rate(now),
                "delay_s_up": self._relay.up.current_delay(now),
                "delay_s_down": self._relay.down.current_delay(now),
            }

    @contextlib.contextmanager
    def _apply_change(self) -> Any:
        with self._relay.lock:
            yield time.monotonic()
        self._relay.wakeup.wake_thread()
