"""What every node does whose network runs here or on a server: obey the mode, run, and tell what a frame cost."""

from __future__ import annotations

import math
import time
from typing import Any, ClassVar, Dict, Mapping, Sequence, Tuple

import rospy
from std_msgs.msg import Header

from edge_offload.errors import BadInput
from edge_offload.manager.policy import POLICIES, chooses
from edge_offload.mode import TABLE, Mode, names, parse_mode
from edge_offload.nodes.common.base import Node
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.inference.compose import duration, forecast_message, latency_message, reading_of
from edge_offload.nodes.inference.intake import Frame
from edge_offload.nodes.inference.latest_frame_queue import LatestFrameQueue, Worker
from edge_offload.nodes.inference.network import Network
from edge_offload.power.detect import CHOICES, open_meter
from edge_offload.power.source import MEASURED
from edge_offload.power.states import COMPUTE, WATTS, StateTimeline
from edge_offload.timing import InferenceReport
from edge_offload_msgs.msg import Bandwidth, Forecast, Latency, OffloadMode, Power


class OffloadedNode(Node):
    """A node with a network that is told by offload/mode where to run.

    A subclass calls :meth:`begin` first and :meth:`listen` when it is ready for frames, lets :meth:`infer` run the
    network, and :meth:`account` for every result.
    """

    computes = True
    #: Seconds that a frame may still take after the end was asked for.
    drain_s: ClassVar[float] = 10.0
    shared: ClassVar[Tuple[Param, ...]] = (
        Param("mode", Mode.LOCAL.value, "mode until offload/mode says another", choices=(*names(), *POLICIES)),
        Param("server_wait", 0.0, "s that the start waits for the server, so that it gets the first frames", low=0.0),
        Param("deadline", 0.0, "s from the arrival of a frame to its result; 0: none", low=0.0),
        Param("power_source", "auto", "what the energy per frame is read from", choices=CHOICES),
        Param("power", {}, f"{', '.join(WATTS)} of this machine; none: what no sensor measures is NaN"),
    )

    def begin(self, network: Network) -> None:
        """Take over the network, and say which weights it has."""
        params = self.params
        # a policy is the manager's: until it speaks, whatever cannot run on the server runs here
        first = Mode.SERVER if params["server"] else Mode.LOCAL
        self._mode = first if params["mode"] in POLICIES else parse_mode(params["mode"])
        self._mode_reason, self._chosen = "parameter ~mode", chooses(params["mode"])
        self._results = 0
        self._network = network
        network.aim(params["mode"], params["deadline"])
        if self._mode in network.absent:
            raise BadInput(f"mode {self._mode} cannot run here: {network.absent[self._mode]}")
        rospy.set_param("~weights_sha256", network.weights_sha256)
        self._timeline = StateTimeline()
        self._meter = open_meter(self._timeline, params["power_source"], network.powers)
        self._latency = rospy.Publisher("offload/latency", Latency, queue_size=100)
        self._forecast = rospy.Publisher("offload/forecast", Forecast, queue_size=10, latch=True)

    def listen(self) -> None:
        """Obey offload/mode and offload/bandwidth from now on."""
        rospy.Subscriber("offload/mode", OffloadMode, self.callback(self._on_mode), queue_size=4)
        rospy.Subscriber("offload/bandwidth", Bandwidth, self.callback(self._on_bandwidth), queue_size=4)

    def end(self, workers: Mapping[str, Worker[Any]]) -> None:
        """Let what is worked on finish, then disconnect; whatever of the start did not happen is left out."""
        for what, worker in workers.items():
            if not worker.drain(self.drain_s):
                self.health.warn("drain", f"{what}: a frame was still worked on {self.drain_s:g} s after the end")
        for attribute in ("_network", "_meter"):
            if hasattr(self, attribute):
                getattr(self, attribute).close()

    def _on_mode(self, message: Any) -> None:
        mode = parse_mode(message.mode)
        if mode is not self._mode:
            rospy.loginfo(f"mode {mode} from now on: {message.reason}")
        self._mode, self._mode_reason, self._chosen = mode, message.reason, chooses(message.policy)
        self._network.aim(message.policy, self.params["deadline"])

    def _on_bandwidth(self, message: Any) -> None:
        if message.source == Bandwidth.ACTIVE:
            self._network.adopt(reading_of(message))

    def infer(self, frame: Frame, inputs: Any, **meta: Any) -> Any:
        """Run the network for ``frame``, within what is left of the deadline since the frame arrived."""
        deadline = self.params["deadline"]
        left = max(0.0, deadline - (time.monotonic() - frame.received_s)) if deadline else None
        header = frame.message.header
        told: Dict[str, Any] = {"stamp_ns": header.stamp.to_nsec(), "seq": header.seq, **meta}
        return self._network.module.run(inputs, self._mode, left, told, refresh=self._chosen)

    def account(
        self, header: Any, inputs: Sequence[Any], report: InferenceReport, energy: float, measured: bool
    ) -> None:
        """Tell what a frame with these ``inputs`` cost, and what the next one would in each mode."""
        self.publish_latency(header, report, energy, measured)
        self.publish_forecast(inputs, header)
        self._network.note(report)

    def publish_forecast(self, inputs: Sequence[Any], header: Header) -> None:
        """What such inputs would cost in each mode. Latched: a manager that starts later knows at once."""
        situation = self._network.situation(inputs, self.params["deadline"] or None, self._chosen)
        self._forecast.publish(forecast_message(situation, header))

    def publish_latency(
        self, header: Any, report: InferenceReport, energy: float, measured: bool, error: str = ""
    ) -> None:
        """The one offload/latency of a frame."""
        message = latency_message(report, header)
        message.error = error
        deadline = self.params["deadline"]
        message.deadline = duration(deadline)
        message.deadline_met = not deadline or report.total_s <= deadline
        message.energy = energy
        message.energy_source = Power.MEASURED if measured else Power.MODEL if math.isfinite(energy) else Power.UNKNOWN
        self._network.describe_link(message)
        self._latency.publish(message)
        self._results += 1

    def energy(self, frame: Frame, report: InferenceReport) -> Tuple[float, bool]:
        """Joules from taking the frame up to its result, and whether they were measured."""
        self._timeline.add_report(report, frame.received_s)
        ended = frame.received_s + report.total_s
        self._timeline.add(COMPUTE, ended, ended + report.wasted_s)
        began = frame.received_s + report.stages_s["queue"]
        energy = self._meter.energy_between(began, max(began, ended))
        return energy.joules, energy.source == MEASURED

    def refresh_network(self, slot: LatestFrameQueue[Frame], what: str) -> None:
        """Say on /diagnostics how many frames came, which mode was asked for and how the link stands."""
        counts = slot.counts
        for name in ("offered", "taken", "superseded", "waiting"):
            self.health.value(f"{what} {name}", getattr(counts, name))
        self.health.value("results", self._results)
        self.health.value("mode asked for", f"{self._mode} ({self._mode_reason})")
        # a policy that makes do without the server still misses it
        missed = TABLE[self._mode].needs_link or (self._chosen and bool(self.params["server"]))
        self._network.refresh(missed, held=not self._chosen)
