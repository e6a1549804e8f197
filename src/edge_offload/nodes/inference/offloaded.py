"""What every node does whose network runs here or on a server: obey the mode, run, and tell what a frame cost."""

from __future__ import annotations

import functools
import math
import time
from collections import Counter
from typing import Any, Callable, ClassVar, Dict, List, Mapping, Optional, Protocol, Sequence, Tuple

import rospy
from std_msgs.msg import Header

from edge_offload.errors import BadInput
from edge_offload.execute.collector import Collector
from edge_offload.manager.in_flight import MOST
from edge_offload.manager.policy import POLICIES, chooses
from edge_offload.manager.promise import HABITS, UNKNOWN, PromisePolicy
from edge_offload.mode import TABLE, Mode, names, parse_mode
from edge_offload.modes.server import CAPTURED
from edge_offload.nodes.common.base import Node
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.inference.carry import CarryThread
from edge_offload.nodes.inference.compose import duration, forecast_message, latency_message, reading_of
from edge_offload.nodes.inference.drops import Drops
from edge_offload.nodes.inference.intake import Frame
from edge_offload.nodes.inference.latest_frame_queue import Lanes, LatestFrameQueue, SlotCounts, Steps
from edge_offload.nodes.inference.network import Network
from edge_offload.nodes.inference.turns import Turns, task_name
from edge_offload.power.detect import CHOICES
from edge_offload.power.frame_energy import FrameEnergy
from edge_offload.power.states import WATTS
from edge_offload.runtime.promise import Promise
from edge_offload.timing import InferenceReport
from edge_offload_msgs.msg import Bandwidth, Forecast, Latency, OffloadMode, Power


class _Drained(Protocol):
    """What works on frames."""

    def drain(self, timeout_s: float) -> bool:
        """Take no more, and finish."""


class OffloadedNode(Node):
    """A node with a network that is told by offload/mode where to run.

    A subclass calls :meth:`begin` first, :meth:`listen` when ready, :meth:`infer`, and :meth:`account` per result.
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
        Param("mode", Mode.LOCAL.value, "mode until offload/mode says another", choices=(*names(), *POLICIES)),
        Param("server_wait", 0.0, "s that the start waits for the server, so that it gets the first frames", low=0.0),
        Param(
            "in_flight",
            2,
            "frames under way at once while they go to the server; 1 while they are computed here",
            low=1,
            high=MOST,
        ),
        Param("deadline", 0.0, "s from the arrival of a frame to its result; 0: none", low=0.0),
        Param(
            "turns", False, "other networks of this robot use the server, too: a frame goes when it is this one's turn"
        ),
        Param(
            "accuracy",
            0.0,
            "with ~carry: accuracy that sharing the server may cost, of 1; 0: nothing is promised",
            low=0.0,
            high=1.0,
        ),
        Param("batched", False, "with ~accuracy: results may differ in the last digits from frames computed alone"),
        Param("task", "", "name of what this node does, where there are turns; none: people, scene or objects"),
        Param("power_source", "auto", "what the energy per frame is read from", choices=CHOICES),
        Param("power", {}, f"{', '.join(WATTS)} of this machine; none: what no sensor measures is NaN"),
    )

    def begin(self, network: Network) -> None:
        """Take over the network, and say which weights it has."""
        params = self.params
        self.collector = Collector()
        # a policy is the manager's: until it speaks, whatever cannot run on the server runs here
        first = Mode.SERVER if params["server"] else Mode.LOCAL
        self._mode = first if params["mode"] in POLICIES else parse_mode(params["mode"])
        self._mode_reason, self._chosen = "parameter ~mode", chooses(params["mode"])
        #: Of the network, by camera.
        self.results: Counter[str] = Counter()
        self._turns: Optional[Turns] = None
        self._drops: List[Drops] = []
        self._promise: Optional[Promise] = None
        self._network = network
        network.aim(params["mode"], params["deadline"])
        if self._mode in network.absent:
            raise BadInput(f"mode {self._mode} cannot run here: {network.absent[self._mode]}")
        rospy.set_param("~weights_sha256", network.weights_sha256)
        self._energy = FrameEnergy(params["power_source"], network.powers)
        self._latency = rospy.Publisher("offload/latency", Latency, queue_size=100)
        self._forecast = rospy.Publisher("offload/forecast", Forecast, queue_size=10, latch=True)

    def listen(self, slot: LatestFrameQueue[Frame]) -> None:
        """Obey offload/mode and offload/bandwidth from now on, and offload/turn with the frames of ``slot``."""
        topic = "offload/mode"
        task = task_name(self.params["task"] or self.task)
        if self.params["turns"]:
            # a manager may have asked for it before Turns is made
            self._asking = Forecast(task=task)
            turns = self._turns = Turns(self, task, slot.wake, self._ask)
            if not self.carries:
                self._drops = [Drops(task, self.health, lambda: turns.interval_s)]
            topic = f"{topic}/{task}"
            self._ask()
        if self.params["accuracy"]:
            if not self.carries:
                raise BadInput(
                    "~accuracy is promised for results that are carried along", remedy="start with carry:=true"
                )  # fmt: skip
            self._promise = self._network.promised(
                PromisePolicy(self.params["accuracy"], self.params["batched"], habits=HABITS.get(task, UNKNOWN))
            )
            slot.wanted = self._wanted
        for carry in self.carries:
            self._begin_carry(carry, task)
        rospy.Subscriber(topic, OffloadMode, self.callback(self._on_mode), queue_size=4)
        rospy.Subscriber("offload/bandwidth", Bandwidth, self.callback(self._on_bandwidth), queue_size=4)

    def _begin_carry(self, carry: CarryThread[Any], task: str) -> None:
        drops = Drops(task, carry.health, lambda: carry.loop.interval_s)
        self._drops.append(drops)
        carry.start(functools.partial(self._compared, drops))

    def _wanted(self, frame: Frame) -> bool:
        """Whether a frame is one of those that the server's turns ask for."""
        return self._promise is None or self._promise.wants(frame.received_s)

    def _compared(self, drops: Drops, *told: Any) -> None:
        """What was carried along has been compared with the network's own."""
        drops.tell(*told)
        if self._promise is not None:
            _, stale_s, drop, _ = told
            self._promise.compared(stale_s, drop)

    def _follows(self) -> bool:
        """Whether frames go to the server in the turns that it gives."""
        return self._promise is not None and not self._promise.alone

    def lanes(
        self,
        slot: LatestFrameQueue[Frame],
        look: Mapping[str, Callable[[Frame], Steps]],
        on_error: Callable[[Frame, BaseException], None],
    ) -> Lanes[Frame]:
        """What works on the frames of ``slot``: as many at once as the mode in force allows.

        Args:
            slot: frames that wait.
            look: makes and publishes the one result of a frame, by camera: prepares it, yields, runs the network,
                yields, publishes.
            on_error: as that of :class:`Lanes`.
        """
        module = self._network.module

        def work(frame: Frame, place: int) -> Steps:
            frame.place = place
            self.take_turn(frame)
            yield from look[frame.camera](frame)

        def wait_s(taken_s: List[float]) -> float:
            if self._follows():
                return 0.0
            if self._turns is not None and TABLE[self._mode].needs_link:
                # a turn is one frame's
                return math.inf if taken_s else self._turns.wait_s()
            return module.pace.wait_s(time.monotonic(), self._mode, taken_s)

        many = self.params["in_flight"]
        return Lanes(slot, work, on_error, module.row, wait_s, many, "network", self._network.pin)

    def end(self, workers: Mapping[str, _Drained]) -> None:
        """Let what is worked on finish, then disconnect; whatever of the start did not happen is left out."""
        for what, worker in workers.items():
            if not worker.drain(self.drain_s):
                self.health.warn("drain", f"{what}: a frame was still worked on {self.drain_s:g} s after the end")
        if hasattr(self, "collector"):
            self.collector.end()
        for attribute in ("_network", "_energy"):
            if hasattr(self, attribute):
                getattr(self, attribute).close()

    def _on_mode(self, message: Any) -> None:
        mode = Mode.LOCAL if message.mode in self._network.absent else parse_mode(message.mode)
        if mode is not self._mode and not rospy.core.is_shutdown_requested():  # else the server goes, too
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
        header, mode, refresh = frame.message.header, self._mode, self._chosen
        captured = {} if self._promise is None else {CAPTURED: frame.received_s}
        camera = {"camera": frame.camera} if frame.camera else {}
        told: Dict[str, Any] = {"stamp_ns": header.stamp.to_nsec(), "seq": header.seq, **camera, **meta, **captured}
        if self._follows():
            mode, refresh = Mode.SERVER, False
        elif self._turns is not None and frame.claim is None:
            # nothing goes to the server without a turn, not even to see how it is
            mode, refresh = Mode.LOCAL, False
        elif mode is Mode.LOCAL and frame.claim is not None:
            self._network.module.explorer.allow()
        try:
            return self._network.module.run(inputs, mode, left, told, refresh=refresh, place=frame.place)
        finally:
            self.leave_turn(frame)

    def take_turn(self, frame: Frame) -> None:
        """This frame goes to the server, where there are turns; or may ask it, too, where a policy chose the robot."""
        if self._turns is not None and (TABLE[self._mode].needs_link or self._chosen):
            frame.claim = self._turns.begin(frame, TABLE[self._mode].needs_link)

    def leave_turn(self, frame: Frame) -> None:
        """Its result is there, or there will be none; more than once is as good as once."""
        claim, frame.claim = frame.claim, None
        if self._turns is not None and claim is not None:
            self._turns.end(claim, frame.message.header)

    def compare(self, frame: Frame, found: Any, drop: Callable[[Any, Any], float]) -> None:
        """What a result that is held from frame to frame had lost by this frame; where there are turns.

        Args:
            frame: it.
            found: the network's result for it.
            drop: of two results for the same frame, 0 to 1.
        """
        for drops in self._drops:
            drops.held(frame, found, drop)

    def account(
        self, frame: Frame, inputs: Sequence[Any], report: InferenceReport, energy: float, measured: bool
    ) -> None:
        """Tell what a frame with these ``inputs`` cost, and what the next one would in each mode."""
        self._network.module.pace.note(report)
        self.publish_latency(frame, report, energy, measured)
        self.publish_forecast(inputs, frame.message.header)
        self._network.note(report)

    def publish_forecast(self, inputs: Sequence[Any], header: Header) -> None:
        """What such inputs would cost in each mode. Latched: a manager that starts later knows at once."""
        situation = self._network.situation(inputs, self.params["deadline"] or None, self._chosen)
        self._asking = forecast_message(situation, header, self._turns.task if self._turns is not None else "")
        self._ask()

    def _ask(self) -> None:
        """Say what is expected of the next frame, which asks for a turn where there are turns."""
        self._forecast.publish(self._asking)

    def publish_latency(
        self, frame: Frame, report: InferenceReport, energy: float, measured: bool, error: str = ""
    ) -> None:
        """The one offload/latency of a frame."""
        message = latency_message(report, frame.message.header, frame.camera)
        message.error = error
        deadline = self.params["deadline"]
        message.deadline = duration(deadline)
        message.deadline_met = not deadline or report.total_s <= deadline
        message.energy = energy
        message.energy_source = Power.MEASURED if measured else Power.MODEL if math.isfinite(energy) else Power.UNKNOWN
        self._network.describe_link(message)
        self._latency.publish(message)
        self.results[frame.camera] += 1

    def energy(self, frame: Frame, report: InferenceReport) -> Tuple[float, bool]:
        """Joules from taking the frame up to its result, and whether they were measured."""
        return self._energy.of(frame.received_s, report)

    def refresh_network(self, slot: LatestFrameQueue[Frame], what: str) -> None:
        """Say on /diagnostics how many frames came, which mode was asked for and how the link stands."""
        self.collector.look()
        counts = SlotCounts.total([carry.counts for carry in self.carries] or [slot.counts])
        for name in ("offered", "taken", "superseded", "waiting"):
            self.health.value(f"{what} {name}", getattr(counts, name))
        for carry in self.carries:
            carry.refresh(what)
        self.health.value("inferences" if self.carries else "results", sum(self.results.values()))
        self.health.value("in flight", self._network.module.pace.words())
        if self._turns is not None:
            self._turns.refresh()
        for drops in self._drops:
            drops.refresh()
        if self._promise is not None:
            words = self._promise.words()
            self.health.value("promise", words)
            if self._promise.alone:
                self.health.warn("promise", words)
            else:
                self.health.clear("promise")
        self.health.value("mode asked for", f"{self._mode} ({self._mode_reason})")
        # a policy that makes do without the server still misses it
        missed = TABLE[self._mode].needs_link or (self._chosen and bool(self.params["server"]))
        self._network.refresh(missed, held=not self._chosen)
