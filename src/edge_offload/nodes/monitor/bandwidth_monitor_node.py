"""measures the link: from the transfers of inferences, and by its own probes when there are none.

Publishes:
  offload/bandwidth   edge_offload_msgs/Bandwidth: the estimate (bytes/s), its uncertainty and age (s); 0: unknown

Subscribes:
  offload/forecast    edge_offload_msgs/Forecast: the link, as measured by the transfers of the inferences
  offload/latency     edge_offload_msgs/Latency: round trip and clock offset; of frames with one transfer each way (mode
                      server), also bytes and durations

With ~server it has its own connection, over which it probes while no inference uses the link. Probes use about 2 % of
the link. Without ~server it measures only transfers.

Example:
  rosrun edge_offload bandwidth_monitor_node _server:=tcp://gpu:5700
"""

from __future__ import annotations

import math
import threading
import time
from typing import Any, Optional

import rospy
from std_msgs.msg import Header

from edge_offload.link.estimate.clock import WARN_S
from edge_offload.link.estimate.estimator import ACTIVE, NONE, LinkEstimator
from edge_offload.link.estimate.scheduling import describe_waits as of_machine
from edge_offload.link.estimate.wireless import Wireless
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.prober import Prober
from edge_offload.link.transport.replies import LinkState
from edge_offload.mode import Mode
from edge_offload.nodes.common.base import Node
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.common.ticker import Ticker
from edge_offload.nodes.inference.compose import link_of, ros_duration
from edge_offload_msgs.msg import Bandwidth, Forecast, Latency


class BandwidthMonitorNode(Node):
    """See the module's docstring."""

    name = "bandwidth_monitor_node"
    declared = (
        Param("rate", 5.0, "messages per second", low=0.1, high=100.0),
        Param("window", 10.0, "s after which a measurement is not used any more", low=0.1, high=600.0),
        Param("peer", "", "address of the server in messages"),
        Param("server", "", "address of the server to probe, tcp://host:port, several with commas; none: no probes"),
        Param("keys", "", "key directory; none: the user's"),
        Param("probe_interval", 0.25, "s without transfers before the link is probed", low=0.05, high=60.0),
        Param("probe_share", 0.02, "most of the link's capacity that probes may use, 0 to 1", low=0.0, high=0.5),
    )

    def start(self) -> None:
        self._lock = threading.Lock()
        self._latest: Optional[Any] = None
        self._estimator = LinkEstimator()
        self._wireless = Wireless()
        self._client: Optional[Client] = None
        if self.params["server"]:
            keys = KeyStore(self.params["keys"]) if self.params["keys"] else None
            self._client = Client(self.params["server"], keys=keys).start()
            self._estimator = self._client.estimator
            self._prober = Prober(self._client, self.params["probe_interval"], self.params["probe_share"]).start()
        self._publisher = rospy.Publisher("offload/bandwidth", Bandwidth, queue_size=10)
        rospy.Subscriber("offload/forecast", Forecast, self.callback(self._on_forecast), queue_size=100)
        rospy.Subscriber("offload/latency", Latency, self.callback(self._on_latency), queue_size=100)
        self._ticker = Ticker(1.0 / self.params["rate"], self._publish_state, self.fault)
        self._ticker.start()

    def stop(self) -> None:
        for attribute in ("_ticker", "_prober", "_wireless"):
            if hasattr(self, attribute):
                getattr(self, attribute).close()
        if getattr(self, "_client", None) is not None:
            self._client.close()  # type: ignore[union-attr]

    def _on_forecast(self, message: Any) -> None:
        """Take forecasts: outside mode ``server`` stages overlap, and only the node measured each transfer."""
        reading = link_of(message)
        if reading.uplink > 0:
            self._estimator.adopt_reading(time.monotonic(), reading)

    def _on_latency(self, message: Any) -> None:
        with self._lock:
            self._latest = message
        error = message.clock_error.to_sec()
        sequential = message.mode == Mode.SERVER.value and not message.fallback_reason
        if sequential and message.bytes_up and message.uplink.to_sec() > 0:
            up, down = message.uplink.to_sec(), message.downlink.to_sec()
            now = time.monotonic()
            if self._client is None:
                self._estimator.round_trip(now, message.link_round_trip.to_sec())
            self._estimator.sample(now, message.bytes_up, up, message.bytes_down, down, error)
        if message.connected and error > WARN_S:
            self.health.warn(
                "clock", f"clock offset is known only to {error * 1e3:.0f} ms: one-way times are unreliable"
            )
        else:
            self.health.clear("clock")

    def _publish_state(self) -> None:
        reading = self._estimator.make_reading(time.monotonic())
        with self._lock:
            latest = self._latest
        message = Bandwidth(header=Header(stamp=rospy.Time.now()), peer=self.params["peer"] or self.params["server"])
        if reading.source != NONE and reading.age_s <= self.params["window"]:
            message.source = Bandwidth.ACTIVE if reading.source == ACTIVE else Bandwidth.PASSIVE
            message.uplink, message.downlink = reading.uplink, reading.downlink
            message.uplink_error, message.downlink_error = (
                _finite_or_nan(reading.uplink_error),
                _finite_or_nan(reading.downlink_error),
            )
            message.samples, message.age = reading.samples, ros_duration(reading.age_s)
        if self._client is not None:
            clock = self._client.clock
            message.connected = self._client.state is LinkState.READY
            message.round_trip = ros_duration(reading.rtt_s)
            if message.connected:
                message.clock_offset, message.clock_error = ros_duration(clock.offset_s), ros_duration(clock.error_s)
            self.health.value("probes", self._prober.sent)
            self.health.value("machine", of_machine(*self._client.scheduling_s))
        elif latest is not None:
            message.connected = latest.connected
            message.round_trip = latest.link_round_trip
            message.clock_offset, message.clock_error = latest.clock_offset, latest.clock_error
        signal = self._wireless.read_signal()
        message.wifi_interface = signal.interface if signal is not None else ""
        message.wifi_signal = signal.level_dbm if signal is not None else math.nan
        message.wifi_rate = signal.rate if signal is not None else 0.0
        self.health.value("uplink MB/s", message.uplink / 1e6)
        self.health.value("downlink MB/s", message.downlink / 1e6)
        self._publisher.publish(message)


def _finite_or_nan(value: float) -> float:
    return value if math.isfinite(value) else 0.0


NODE = BandwidthMonitorNode
