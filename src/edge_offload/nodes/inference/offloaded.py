"""Base class of nodes with a network that runs on the robot or on a server: follows the mode, runs, reports costs."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import replace
from typing import Any, Callable, ClassVar, List, Mapping, Optional, Protocol, Sequence, Tuple

import rospy
from std_msgs.msg import Header

from edge_offload.errors import BadInput
from edge_offload.execute.collector import Collector
from edge_offload.manager.policy import POLICIES, chooses
from edge_offload.manager.tuning import MOST_IN_FLIGHT
from edge_offload.mode import TABLE, Mode, names, parse_mode
from edge_offload.modes.server import CAPTURED
from edge_offload.nodes.common.base import Node
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.inference.carry import CarryThread
from edge_offload.nodes.inference.compose import forecast_message, latency_message, reading_of, ros_duration
from edge_offload.nodes.inference.intake import Frame
from edge_offload.nodes.inference.latest_frame_queue import FramePipeline, LatestFrameQueue, QueueCounts
from edge_offload.nodes.inference.link_watch import NetworkHealth
from edge_offload.nodes.inference.network import Network
from edge_offload.nodes.inference.sharing import ServerSharing
from edge_offload.nodes.inference.turns import task_name
from edge_offload.power.detect import CHOICES
from edge_offload.power.frame_energy import FrameEnergy
from edge_offload.power.states import WATTS
from edge_offload.timing import InferenceReport
from edge_offload_msgs.msg import Bandwidth, Forecast, Latency, OffloadMode, Power


class SensorStages(Protocol):
    """Interface: the work on a frame of one sensor. :class:`FrameStagesBySensor` calls it for the frame pipeline."""

    def prepare_inputs(self, frame: Frame) -> Any:
        """Make the inputs of the network."""

    def infer_inputs(self, frame: Frame, prepared: Any) -> Any:
        """Run the network, by :meth:`OffloadedNode.run_network`."""

    def publish_result(self, frame: Frame, prepared: Any, inferred: Any) -> None:
        """Publish the one result of the frame.

        Raises:
            EdgeOffloadError: the frame could not be used; nothing of it was published.
        """


class _Drained(Protocol):
    """A worker on frames."""

    def drain(self, timeout_s: float) -> bool:
        """Take no more, and finish."""


class OffloadedNode(Node):
    """A node with a network that is told by offload/mode where to run.

    A subclass calls :meth:`begin_offloading` and :meth:`subscribe_control`; then :meth:`run_network` and
    :meth:`account_frame` per result.
    """

    computes = True
    #: What it does, in a word, unless ~task says another.
    task: ClassVar[str] = "network"
    #: Give every frame its result at once, each those of one sensor; none: its result is the network's own.
    carries: Sequence[CarryThread[Any]] = ()
    #: Seconds that a frame may still take after the end was asked for.
    drain_s: ClassVar[float] = 10.0
    written: ClassVar[Tuple[str, ...]] = ("weights_sha256",)
    shared: ClassVar[Tuple[Param, ...]] = (
        Param("mode", Mode.LOCAL.value, "mode before the first message on offload/mode", choices=(*names(), *POLICIES)),
        Param("server_wait", 0.0, "s to wait for the server at the start, so that it gets the first frames", low=0.0),
        Param(
            "in_flight",
            2,
            "frames in flight at once while they go to the server; 1 while the robot computes",
            low=1,
            high=MOST_IN_FLIGHT,
        ),
        Param("deadline", 0.0, "s from the arrival of a frame to its result; 0: none", low=0.0),
        Param("turns", False, "take turns at the server with other networks of this robot"),
        Param(
            "accuracy",
            0.0,
            "with ~carry: accuracy that sharing the server may cost, 0 to 1; 0: no promise is requested",
            low=0.0,
            high=1.0,
        ),
        Param("batched", False, "with ~accuracy: results may differ in the last digits from frames computed alone"),
        Param("task", "", "with ~turns: name of this node's task; none: people, scene or objects"),
        Param("power_source", "auto", "sensor for the energy per frame", choices=CHOICES),
        Param("power", {}, f"{', '.join(WATTS)} of this machine; none: energy without a sensor is NaN"),
    )

    def begin_offloading(self, network: Network) -> None:
        """Take over the network, and say which weights it has."""
        params = self.params
        self.collector = Collector()
        # a policy is the manager's: until it speaks, whatever cannot run on the server runs here
        first = Mode.SERVER if params["server"] else Mode.LOCAL
        self._mode = first if params["mode"] in POLICIES else parse_mode(params["mode"])
        self._mode_reason, self._chosen = "parameter ~mode", chooses(params["mode"])
        #: Of the network, by camera.
        self.results: Counter[str] = Counter()
        self._sharing: Optional[ServerSharing] = None
        self._network = network
        self._link_health = NetworkHealth(network.module, network.client, self.health)
        network.aim_plans(params["mode"], params["deadline"])
        if self._mode in network.absent:
            raise BadInput(f"mode {self._mode} cannot run here: {network.absent[self._mode]}")
        rospy.set_param("~weights_sha256", network.weights_sha256)
        self._energy = FrameEnergy(params["power_source"], network.powers)
        self._latency = rospy.Publisher("offload/latency", Latency, queue_size=100)
        self._forecast = rospy.Publisher("offload/forecast", Forecast, queue_size=10, latch=True)

    def subscribe_control(self, queue: LatestFrameQueue[Frame]) -> None:
        """Obey offload/mode and offload/bandwidth from now on, and offload/turn with the frames of ``queue``."""
        topic = "offload/mode"
        task = task_name(self.params["task"] or self.task)
        if self.params["turns"]:
            # a manager may have asked for it before there are turns
            self._asking = Forecast(task=task)
            topic = f"{topic}/{task}"
        if self.params["turns"] or self.params["accuracy"] or self.carries:
            self._sharing = ServerSharing(
                self, self._network, self.carries, task, queue.wake_takers, self._publish_expected
            )
        if self.params["turns"]:
            self._publish_expected()
        rospy.Subscriber(topic, OffloadMode, self.callback(self._on_mode), queue_size=4)
        rospy.Subscriber("offload/bandwidth", Bandwidth, self.callback(self._on_bandwidth), queue_size=4)

    def admit_frame(self, frame: Frame) -> bool:
        """Return whether ``frame`` may wait to be taken up (sharing may leave it out), and note its arrival.

        With ``every_frame`` the queue sets the pace of arrivals, which then say nothing of the camera.
        """
        admitted = self._sharing is None or self._sharing.wants_frame(frame)
        if admitted and not self.params.get("every_frame", False):
            self._network.module.frames.record_frame_arrival(frame.received_s)
        return admitted

    def make_pipeline(
        self,
        queue: LatestFrameQueue[Frame],
        stages: Mapping[str, SensorStages],
        fail: Callable[[Frame, BaseException], None],
    ) -> FramePipeline[Frame]:
        """Make the pipeline of the frames of ``queue``: as many at once as the mode in force allows.

        Args:
            queue: frames that wait.
            stages: of the work on a frame, by camera.
            fail: called with a frame and what a stage raised.
        """
        frames = self._network.module.frames

        def wait_s(taken_s: List[float]) -> float:
            shared_s = None
            if self._sharing is not None:
                shared_s = self._sharing.shared_wait_s(TABLE[self._mode].needs_link, taken_s)
            return frames.frame_wait_s(time.monotonic(), self._mode, taken_s) if shared_s is None else shared_s

        many, pin = self.params["in_flight"], self._network.pin_threads
        return FramePipeline(queue, FrameStagesBySensor(self, stages, fail), frames, wait_s, many, "network", pin)

    def end_offloading(self, workers: Mapping[str, _Drained]) -> None:
        """Let what is worked on finish, then disconnect; whatever of the start did not happen is left out."""
        for what, worker in workers.items():
            if not worker.drain(self.drain_s):
                self.health.warn("drain", f"{what}: a frame was still worked on {self.drain_s:g} s after the end")
        if hasattr(self, "collector"):
            self.collector.stop()
        for attribute in ("_network", "_energy"):
            if hasattr(self, attribute):
                getattr(self, attribute).close()

    def _on_mode(self, message: Any) -> None:
        mode = Mode.LOCAL if message.mode in self._network.absent else parse_mode(message.mode)
        if mode is not self._mode and not rospy.core.is_shutdown_requested():  # else the server goes, too
            rospy.loginfo(f"mode {mode} from now on: {message.reason}")
        self._mode, self._mode_reason, self._chosen = mode, message.reason, chooses(message.policy)
        self._network.aim_plans(message.policy, self.params["deadline"])

    def _on_bandwidth(self, message: Any) -> None:
        if message.source == Bandwidth.ACTIVE:
            self._network.adopt_reading(reading_of(message))

    def run_network(self, frame: Frame, inputs: Any, **meta: Any) -> Tuple[Any, InferenceReport]:
        """Run the network for ``frame``, within what is left of the deadline since the frame arrived."""
        deadline = self.params["deadline"]
        remaining = max(0.0, deadline - (time.monotonic() - frame.received_s)) if deadline else None
        header, mode, refresh = frame.message.header, self._mode, self._chosen
        meta = {"stamp_ns": header.stamp.to_nsec(), "seq": header.seq, **meta}
        if frame.camera:
            meta["camera"] = frame.camera
        if self._sharing is not None:
            if self._sharing.has_promise:
                meta[CAPTURED] = frame.received_s
            mode, refresh = self._sharing.choose_mode(frame, mode, refresh)
        try:
            module = self._network.module
            return module.run_inference(inputs, mode, remaining, meta, refresh=refresh, ticket=frame.ticket)
        finally:
            self.leave_turn(frame)

    def take_turn(self, frame: Frame) -> None:
        """Begin a turn with this frame, if nodes take turns and it goes to the server or a policy may explore."""
        if self._sharing is not None and (TABLE[self._mode].needs_link or self._chosen):
            self._sharing.take_turn(frame, TABLE[self._mode].needs_link)

    def leave_turn(self, frame: Frame) -> None:
        """End the frame's turn: its result has come, or will never come. Idempotent."""
        if self._sharing is not None:
            self._sharing.leave_turn(frame)

    def compare_result(self, frame: Frame, result: Any, drop: Callable[[Any, Any], float]) -> None:
        """Measure the accuracy that an earlier result had lost by this frame, where the server is shared.

        Args:
            frame: the newer frame.
            result: the network's result for it.
            drop: of two results for the same frame, 0 to 1.
        """
        if self._sharing is not None:
            self._sharing.compare_result(frame, result, drop)

    def account_frame(
        self, frame: Frame, inputs: Sequence[Any], report: InferenceReport, energy: float, measured: bool
    ) -> None:
        """Tell what a frame with these ``inputs`` cost, and what the next one would in each mode."""
        self._network.module.frames.learn_costs(report)
        self.publish_latency(frame, report, energy, measured)
        self.publish_forecast(inputs, frame.message.header)
        if report.fallback_reason:
            self.health.count("frames that fell back to local")
            self.health.warn("fallback", report.fallback_reason)
        else:
            self.health.clear("fallback")

    def publish_forecast(self, inputs: Sequence[Any], header: Header) -> None:
        """Publish the forecasts for such inputs, latched for managers that start later."""
        situation = self._network.module.situation(inputs, self.params["deadline"] or None, self._chosen)
        task = "" if self._sharing is None else self._sharing.task
        self._asking = forecast_message(replace(situation, absent=self._network.absent), header, task)
        self._publish_expected()

    def _publish_expected(self) -> None:
        """Say what is expected of the next frame, which asks for a turn where there are turns."""
        self._forecast.publish(self._asking)

    def publish_latency(
        self, frame: Frame, report: InferenceReport, energy: float, measured: bool, error: str = ""
    ) -> None:
        message = latency_message(report, frame.message.header, frame.camera, self._network.client)
        message.error = error
        deadline = self.params["deadline"]
        message.deadline = ros_duration(deadline)
        message.deadline_met = not deadline or report.total_s <= deadline
        message.energy = energy
        message.energy_source = Power.MEASURED if measured else Power.MODEL if math.isfinite(energy) else Power.UNKNOWN
        self._latency.publish(message)
        self.results[frame.camera] += 1

    def measure_energy(self, frame: Frame, report: InferenceReport) -> Tuple[float, bool]:
        """Joules from taking the frame up to its result, and whether they were measured."""
        return self._energy.measure_frame(frame.received_s, report)

    def refresh_network(self, queue: LatestFrameQueue[Frame], what: str) -> None:
        """Say on /diagnostics how many frames came, which mode was asked for and how the link stands."""
        self.collector.collect_new()
        counts = QueueCounts.sum_counts([carry.counts for carry in self.carries] or [queue.counts])
        for name in ("offered", "taken", "superseded", "waiting"):
            self.health.value(f"{what} {name}", getattr(counts, name))
        for carry in self.carries:
            carry.refresh(what)
        self.health.value("inferences" if self.carries else "results", sum(self.results.values()))
        self.health.value("in flight", self._network.module.frames.describe())
        if self._sharing is not None:
            self._sharing.refresh()
        self.health.value("mode asked for", f"{self._mode} ({self._mode_reason})")
        # a policy that makes do without the server still misses it
        missed = TABLE[self._mode].needs_link or (self._chosen and bool(self.params["server"]))
        self._link_health.refresh(missed, fixed=not self._chosen)


class FrameStagesBySensor:
    """Passes each frame of the pipeline to the :class:`SensorStages` of its sensor."""

    def __init__(
        self, node: OffloadedNode, stages: Mapping[str, SensorStages], fail: Callable[[Frame, BaseException], None]
    ) -> None:
        self._node, self._stages, self.fail_frame = node, stages, fail

    def prepare_frame(self, frame: Frame, ticket: int) -> Any:
        """Implement :class:`.FrameStages`."""
        frame.ticket = ticket
        self._node.take_turn(frame)
        return self._stages[frame.camera].prepare_inputs(frame)

    def infer_frame(self, frame: Frame, prepared: Any) -> Any:
        """Implement :class:`.FrameStages`."""
        return self._stages[frame.camera].infer_inputs(frame, prepared)

    def finish_frame(self, frame: Frame, prepared: Any, inferred: Any) -> None:
        """Implement :class:`.FrameStages`."""
        self._stages[frame.camera].publish_result(frame, prepared, inferred)
