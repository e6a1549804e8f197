"""A running link at the packet level, steered as the proxy is (:mod:`edge_offload_research.emulate.control`)."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from typing import Any, Dict, Optional

from edge_offload.errors import BadInput
from edge_offload.link.security.keys import is_loopback, join_address, split_address
from edge_offload_research.emulate.trace import Link, constant_trace
from edge_offload_research.testbed.packets import impairments
from edge_offload_research.testbed.packets.forwarder import DOWN, UP, Forwarder
from edge_offload_research.testbed.packets.network import FLIP, Network

log = logging.getLogger(__name__)

DIRECTIONS = {"up": UP, "down": DOWN}
CUTS = ("blackhole", "reset", "half_open")
#: Seconds in which resets are on their way, and lost.
RESET_S = 0.05


class PacketEmulator:
    """Leads packets from ``listen`` to ``to`` over ``link``, on a thread of its own.

    Args:
        listen: host:port for robots, a loopback address that :class:`Network` can use; port 0: the server's.
        to: host:port of the server, on loopback.
        link: bandwidth and delay.
        pair: impairments up and down; default: those that the link has by its name.
        namespaces: see :class:`Network`; ``to`` is an address in the server's then.

    Raises:
        BadInput: an address cannot be used.
        Unsupported: this process may make no network devices, or there is no compiler.
    """

    commands = ("set", "cut", "restore", "impair", "roam", "corrupt", "replay", "stalls")

    def __init__(
        self, listen: str, to: str, link: Link, pair: Optional[impairments.Pair] = None, seed: int = 0,
        namespaces: bool = False,
    ) -> None:  # fmt: skip
        self._far, self._to = split_address(listen), split_address(to)
        if not is_loopback(self._to[0]) or self._to[0].count(".") != 3:
            remedy = "give 127.0.0.1:PORT as its address"
            raise BadInput(f"packets cannot be led to {to}: the server must be on this machine", remedy=remedy)
        if not self._far[1]:
            self._far = self._far[0], self._to[1]
        self._started_at = time.monotonic()
        self._forwarder = Forwarder(self._started_at, seed)
        self._pair = pair or impairments.of_link(link)
        self._link = link
        self._cut = False
        self._lock = threading.RLock()
        try:
            self._apply_link(link, self._pair, True)
            self.network = Network(self._far[0], namespaces)
        except BaseException:
            self._forwarder.close()
            raise
        self._set_translation()
        self._control, self._order = (os.fdopen(end, mode, 0) for end, mode in zip(os.pipe(), ("rb", "wb")))
        self._thread: Optional[threading.Thread] = None
        self.address = f"tcp://{join_address(*self._far)}"

    def start(self) -> PacketEmulator:
        """Begin to forward."""
        self._thread = threading.Thread(target=self._run, name="edge_offload-packets", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop, and remove devices, routes and namespaces."""
        if self._thread is not None:
            self._order.write(b"q")
            self._thread.join()
            self._thread = None
        self.network.close()
        self._forwarder.close()
        self._control.close()
        self._order.close()

    def __enter__(self) -> PacketEmulator:
        return self.start()

    def __exit__(self, *_: Any) -> None:
        self.close()

    # ------------------------------------------------------------------ control, from any thread

    def set_link(self, link: Link) -> None:
        """Change everything at once; a trace begins at its beginning."""
        self._apply_link(link, impairments.of_link(link), True)

    def set(self, mbps: Optional[float] = None, rtt_s: Optional[float] = None, direction: str = "both") -> None:
        """Set a constant bandwidth (0: nothing is served) and/or round trip time, for ``up``, ``down`` or ``both``."""
        trace = constant_trace(mbps, rtt_s, direction)
        up, down = direction != "down", direction != "up"
        with self._lock:
            now = self._link
            link = Link(
                "custom",
                trace if trace is not None and up else now.up,
                trace if trace is not None and down else now.down,
                rtt_s / 2 if rtt_s is not None and up else now.up_delay_s,
                rtt_s / 2 if rtt_s is not None and down else now.down_delay_s,
            )
            self._apply_link(link, self._pair, trace is not None)

    def impair(self, **values: Any) -> None:
        """Change impairments, ``loss=0.01`` of both directions or ``up.loss`` of one."""
        with self._lock:
            self._apply_link(self._link, impairments.change_impairments(self._pair, values), False)

    def cut(self, how: str) -> None:
        """Break the link until :meth:`restore`.

        ``blackhole``: every packet is lost. ``reset``: the server's kernel resets every connection (nothing to
        restore). ``half_open``: the same while no packet passes, so that the robot learns it from its next one.
        """
        if how not in CUTS:
            raise BadInput(f"no cut {how!r} at the packet level", remedy=f"cuts: {', '.join(CUTS)}")
        self._set_blackhole(how != "reset")
        if how != "blackhole":
            self.network.abort_connections(self._to[1])
        if how == "half_open":
            time.sleep(RESET_S)
            self._set_blackhole(False)

    def restore(self) -> None:
        """End a cut."""
        self._set_blackhole(False)

    def stalls(self, fraction: float, _stall_s: float) -> None:
        """Lose this fraction of packets; TCP makes the stalls of it that the proxy imitates."""
        self.impair(loss=fraction)

    def corrupt(self, packets: int) -> None:
        """Flip bits in each of the next ``packets`` upwards."""
        self._forwarder.spoil(UP, corrupt=packets)

    def replay(self, packets: int) -> None:
        """Send each of the next ``packets`` upwards twice."""
        self._forwarder.spoil(UP, repeat=packets)

    def roam(self) -> None:
        """Give the robot another address; packets from and to the old one are lost from now on."""
        with self._lock:
            self.network.roam()
            self._set_translation()

    def stats(self) -> Dict[str, Any]:
        """Return the counts of carried traffic and the state of the link: the truth for estimators."""
        now = time.monotonic()
        up, down = (self._forwarder.counts(direction, now) for direction in (UP, DOWN))
        stats: Dict[str, Any] = {
            "link": self._link.name, "level": "packet", "t_s": now - self._started_at,
            "cut": "blackhole" if self._cut else "", "late_s": self._forwarder.late_s(),
        }  # fmt: skip
        for name, key in (("bytes", "carried_bytes"), ("queued", "queued_bytes"), ("bytes_per_s", "bytes_per_s"),
                          ("delay_s", "delay_s"), ("packets", "offered"), ("dropped", "dropped"),
                          ("lost", "lost")):  # fmt: skip
            stats[f"{name}_up"], stats[f"{name}_down"] = up[key], down[key]
        return stats

    # ------------------------------------------------------------------ inside

    def _apply_link(self, link: Link, pair: impairments.Pair, traced: bool) -> None:
        ways = ((UP, link.up, link.up_delay_s, pair[0]), (DOWN, link.down, link.down_delay_s, pair[1]))
        for _, trace, delay_s, terms in ways:
            terms.check(min(trace.delays_s, default=delay_s))
        with self._lock:
            now = time.monotonic()
            for direction, trace, delay_s, terms in ways:
                self._forwarder.set(direction, now, delay_s, terms, trace if traced else None)
            self._link, self._pair = link, pair
            if getattr(self, "_thread", None) is not None:
                self._order.write(b"c")

    def _set_blackhole(self, on: bool) -> None:
        self._cut = on
        self._forwarder.blackhole(on)

    def _set_translation(self) -> None:
        self._forwarder.translate(self.network.robot, self._far, self._to, FLIP)

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # a radio needs no processor of the robot's
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        failed = self._forwarder.run(*self.network.descriptors, self._control.fileno())
        if failed:
            log.error("packet emulator: %s; the link is gone", os.strerror(failed))
