"""tells what the link carries, from the transfers of the inferences.

Publishes:
  offload/bandwidth   edge_offload_msgs/Bandwidth: rates of the recent transfers; 0 when there were none

Subscribes:
  offload/latency     edge_offload_msgs/Latency: bytes and durations of every transfer, round trip and clock offset
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Deque, NamedTuple, Optional

import rospy
from std_msgs.msg import Header

from edge_offload.link.clock import WARN_S
from edge_offload.nodes.base import Node
from edge_offload.nodes.compose import duration
from edge_offload.nodes.params import Param
from edge_offload.nodes.ticker import Ticker
from edge_offload_msgs.msg import Bandwidth, Latency


class Rate(NamedTuple):
    """Bytes that took so many seconds in one direction."""

    bytes: int
    seconds: float


class TransferWindow:
    """The transfers of the last seconds, and the rates that they had."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._transfers: Deque = deque()

    def add(self, now: float, up: Rate, down: Rate) -> None:
        """Note a transfer that ended ``now``."""
        self._transfers.append((now, up, down))

    def forget(self, now: float) -> None:
        """Drop what is older than the window."""
        while self._transfers and now - self._transfers[0][0] > self._window_s:
            self._transfers.popleft()

    def __len__(self) -> int:
        return len(self._transfers)

    @property
    def uplink(self) -> float:
        """Bytes/s, robot to server."""
        return self._rate([up for _, up, _ in self._transfers])

    @property
    def downlink(self) -> float:
        """Bytes/s, server to robot."""
        return self._rate([down for _, _, down in self._transfers])

    @property
    def last(self) -> Optional[float]:
        """When the newest transfer ended."""
        return self._transfers[-1][0] if self._transfers else None

    @staticmethod
    def _rate(rates: Any) -> float:
        """The large transfers decide: a small one measures the delay of the link, not its rate."""
        seconds = sum(rate.seconds for rate in rates)
        return sum(rate.bytes for rate in rates) / seconds if seconds > 0 else 0.0


class BandwidthMonitorNode(Node):
    """See the module's docstring."""

    name = "bandwidth_monitor_node"
    declared = (
        Param("rate", 2.0, "messages per second", low=0.1, high=100.0),
        Param("window", 2.0, "s of transfers that count", low=0.1, high=600.0),
        Param("peer", "", "address of the server, as it is shown"),
    )

    def start(self) -> None:
        self._lock = threading.Lock()
        self._window = TransferWindow(self.params["window"])
        self._latest: Optional[Any] = None
        self._publisher = rospy.Publisher("offload/bandwidth", Bandwidth, queue_size=10)
        rospy.Subscriber("offload/latency", Latency, self.callback(self._on_latency), queue_size=100)
        self._ticker = Ticker(1.0 / self.params["rate"], self._tick, self.fault)
        self._ticker.start()

    def stop(self) -> None:
        if hasattr(self, "_ticker"):
            self._ticker.close()

    def _on_latency(self, message: Any) -> None:
        with self._lock:
            self._latest = message
            if message.bytes_up and message.uplink.to_sec() > 0:
                up = Rate(message.bytes_up, message.uplink.to_sec())
                down = Rate(message.bytes_down, message.downlink.to_sec())
                self._window.add(time.monotonic(), up, down)
        error = message.clock_error.to_sec()
        if message.connected and error > WARN_S:
            self.health.warn(
                "clock", f"clock offset is known only to {error * 1e3:.0f} ms: one-way times are unreliable"
            )
        else:
            self.health.clear("clock")

    def _tick(self) -> None:
        now = time.monotonic()
        with self._lock:
            self._window.forget(now)
            latest = self._latest
            message = Bandwidth(header=Header(stamp=rospy.Time.now()), peer=self.params["peer"])
            message.samples = len(self._window)
            if message.samples:
                message.source = Bandwidth.PASSIVE
                message.uplink, message.downlink = self._window.uplink, self._window.downlink
                message.age = duration(now - (self._window.last or now))
        if latest is not None:
            message.connected = latest.connected
            message.round_trip = latest.link_round_trip
            message.clock_offset, message.clock_error = latest.clock_offset, latest.clock_error
        self.health.value("uplink MB/s", message.uplink / 1e6)
        self.health.value("downlink MB/s", message.downlink / 1e6)
        self._publisher.publish(message)


NODE = BandwidthMonitorNode
