"""decides in which mode each network of the robot runs, and says why.

Publishes:
  offload/mode       edge_offload_msgs/OffloadMode, latched: the mode in force, when it changes and when the first
                     forecast confirms it
  offload/mode/TASK  the same for each task that takes turns
  offload/turn       edge_offload_msgs/Turn, latched: the network that sends the next frame, and why (only if nodes
                     take turns)

Subscribes:
  offload/bandwidth  edge_offload_msgs/Bandwidth: rates of the link (bytes/s), to which forecasts are converted
  battery            sensor_msgs/BatteryState, if published: remaining hours per mode, on /diagnostics
  offload/forecast   edge_offload_msgs/Forecast: expected cost of the next frame in each mode
  offload/turn_taken edge_offload_msgs/Turn: a turn was taken, or has ended
  offload/drop       edge_offload_msgs/Drop: accuracy that a task's results lose with staleness
  offload/latency    edge_offload_msgs/Latency: the mode that ran; a difference is reported on /diagnostics
  offload/mode       to detect another manager that publishes it

Services:
  offload/set_mode   edge_offload_msgs/SetMode: puts another mode or policy in force; refused if it cannot run. It is
                     written to ~mode, so that a restarted manager continues with it, but a new launch does not

With ~mode auto (the same as latency) each frame runs in the mode with the least expected latency. With energy it is the
mode with the least energy among those that meet the deadline. The node that computes falls back to local by itself if
the mode in force cannot run.

The bandwidth is the later measurement of offload/bandwidth and the transfers of frames. If both are recent and differ,
or the topic is silent for 3 s, the transfers are used, and /diagnostics says so.

If several networks of a robot share a server (nodes with ~turns), each has a policy of its own. The next turn goes to
the task that gains most accuracy per second of the server's time, times ~weights. A turn that is not taken within a
frame interval goes to another task. A task whose policy chose the robot gets a turn at intervals, to measure the
server.

~power_budget (W) excludes modes whose frames draw more on average, unless no mode is left. While the hottest thermal
zone is above ~max_temperature (degrees Celsius), ~hot_budget (W) applies instead, until it is 5 degrees cooler.

~margin, ~sigmas, ~power_budget, ~max_temperature, ~hot_budget, ~weights, ~max_run and ~dry_run can be changed
while it runs:
  rosrun dynamic_reconfigure dynparam set offload_manager_node margin 0.2
"""

from __future__ import annotations

import math
import threading
import time
from typing import Any, ClassVar, Dict, NamedTuple, Optional, Sequence, Tuple

import rospy
from sensor_msgs.msg import BatteryState

from edge_offload.errors import BadInput
from edge_offload.manager.bandwidth import TopicReading, apply_topic_reading
from edge_offload.manager.policy import (
    POLICIES,
    SERVICE,
    Decision,
    FixedPolicy,
    Knobs,
    Manager,
    Situation,
    chooses,
    make_policy,
)
from edge_offload.manager.tuning import FRAMES
from edge_offload.manager.turn_giver import Rules
from edge_offload.mode import AUTO, TABLE, Mode, names
from edge_offload.nodes.common import reconfigure
from edge_offload.nodes.common.base import Node
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.common.topic_types import await_topic
from edge_offload.nodes.inference.compose import mode_message, reading_of, situation_of
from edge_offload.nodes.inference.turns import task_name
from edge_offload.nodes.manager.turn_giving import TurnGiving, weights_of
from edge_offload.power.battery import BatteryReader
from edge_offload.power.thermal import HeatGuard, hottest_celsius
from edge_offload_msgs.msg import Bandwidth, Forecast, Latency, OffloadMode
from edge_offload_msgs.srv import SetMode, SetModeResponse

_FIRST_REASON = "no forecast yet"


class _Deciding:
    """State of one task: its newest situation and announced decision. Without turns there is one task, with no name."""

    def __init__(self, task: str, policy: Any) -> None:
        self.task = task
        topic = f"offload/mode/{task}" if task else "offload/mode"
        self.publisher = rospy.Publisher(topic, OffloadMode, queue_size=1, latch=True)
        self.manager = Manager(policy)
        self.situation: Optional[Situation] = None
        self.announced: Optional[Decision] = None
        #: Forecasts in a row for which the robot was chosen, since the last turn.
        self.local_frames = 0

    def should_explore(self, decision: Decision) -> bool:
        """Tell whether the task's frames go to the server, or one should, to explore.

        Only frames at a server show that it is fast again. Without them a policy would avoid it for ever.
        """
        if TABLE[decision.mode].needs_link:
            self.local_frames = 0
            return True
        self.local_frames += 1
        forecasts = {} if self.situation is None else self.situation.forecasts
        remote = any(TABLE[mode].needs_link and not forecast.unavailable_reason for mode, forecast in forecasts.items())
        return remote and chooses(decision.policy) and self.local_frames > FRAMES

    def diagnostics_key(self, what: str) -> str:
        return f"{what} of {self.task}" if self.task else what


class _Request(NamedTuple):
    """The mode or policy that was requested, why, and whether the service requested it."""

    name: str
    reason: str = "set by the parameter ~mode"
    by_service: bool = False


class OffloadManagerNode(Node):
    """See the module's docstring."""

    name = "offload_manager_node"
    knobs: ClassVar[Tuple[Param, ...]] = (
        Param(
            "margin",
            Knobs.margin,
            "relative difference by which a mode has to be worse to be replaced",
            low=0.0,
            high=5.0,
        ),
        Param(
            "sigmas",
            Knobs.sigmas,
            "standard deviations of a latency that have to fit before the deadline",
            low=0,
            high=10,
        ),
        Param("power_budget", 0.0, "W that the robot may draw while it computes a frame; 0: no bound", low=0.0),
        Param(
            "max_temperature", 0.0, "degrees Celsius above which hot_budget applies; 0: no bound", low=0.0, high=150.0
        ),
        Param("hot_budget", 6.0, "W that the robot may draw while it computes a frame above max_temperature", low=0.0),
        Param("weights", "", "weights of tasks' drops in accuracy, such as 'people: 2, scene: 1'; 1 for others"),
        Param("max_run", Rules.max_run, "most turns of one task in a row", low=1, high=100),
        Param("dry_run", False, "keep the mode in force and only report the choice"),
    )
    declared = (
        Param(
            "mode",
            AUTO,
            f"mode in force at the start ({', '.join(names())}), or a policy that chooses: {', '.join(POLICIES)}, "
            "or package.module:Class",
        ),
        Param("in_flight", 1, "most frames of all tasks in flight at the server at once", low=1, high=8),
        *knobs,
    )
    written = ("asked",)

    def start(self) -> None:
        self._lock = threading.Lock()
        self._values = {knob.name: self.params[knob.name] for knob in self.knobs}
        self._reading: Optional[TopicReading] = None
        self._started_s = time.monotonic()
        self._heat, self._temperature = HeatGuard(), (math.nan, -math.inf)  # degrees Celsius, and when they were read
        self._request = _Request(self.params["mode"])
        before = rospy.get_param("~asked", {})
        if isinstance(before, dict) and before.get("mode") == self._request.name:
            self._request = _Request(self._request.name, str(before.get("reason")), True)
        self._tasks: Dict[str, _Deciding] = {}
        self._battery = BatteryReader()
        self._deciding_for("")
        params = self.params
        rules = Rules(weights_of(params["weights"]), params["max_run"], in_flight=params["in_flight"])
        self._turns = TurnGiving(self, rules, self._on_turn_taken)
        self._apply_values(self._values)
        self._server = reconfigure.serve(self.knobs, self._values, self._apply_values)
        self._battery_news = await_topic("battery", BatteryState, "battery state", "check its driver", 30.0)
        self.health.watch("battery", self._check_battery)
        self._batteries = rospy.Subscriber("battery", BatteryState, self.callback(self._on_battery), queue_size=4)
        rospy.Subscriber("offload/bandwidth", Bandwidth, self.callback(self._on_bandwidth), queue_size=4)
        rospy.Subscriber("offload/forecast", Forecast, self.callback(self._on_forecast), queue_size=100)
        rospy.Subscriber("offload/latency", Latency, self.callback(self._on_latency), queue_size=100)
        rospy.Subscriber("offload/mode", OffloadMode, self.callback(self._on_mode), queue_size=10)
        self._service = rospy.Service("offload/set_mode", SetMode, self._set_mode)

    def stop(self) -> None:
        if hasattr(self, "_service"):
            self._service.shutdown()
        if hasattr(self, "_turns"):
            self._turns.close()

    def refresh(self) -> None:
        if hasattr(self, "_turns"):
            self._turns.refresh()

    def _deciding_for(self, task: str) -> _Deciding:
        """Return the state of a task, which its first message creates.

        Raises:
            BadInput: there are too many tasks, or the name has other characters than letters, digits and _.
        """
        entry = self._tasks.get(task)
        if entry is None:
            if len(self._tasks) > Rules.most_tasks:
                raise BadInput(f"more than {Rules.most_tasks} tasks", remedy="start fewer nodes with ~turns")
            entry = self._tasks[task] = _Deciding(
                task_name(task) if task else "", self._make_policy(self._request.name, self._request.reason)
            )
            if isinstance(entry.manager.policy, FixedPolicy):
                self._announce_decision(entry, entry.manager.decide(Situation(time.monotonic(), {})))
            else:
                # until the first forecast comes: while the server cannot run, the node falls back to local
                self._announce_decision(entry, Decision(Mode.SERVER, _FIRST_REASON, entry.manager.policy.name))
        return entry

    def _make_policy(self, name: str, reason: str) -> Any:
        knobs = Knobs(self._values["margin"], self._values["sigmas"])
        policy = make_policy(name, knobs)
        if not isinstance(policy, FixedPolicy):
            return policy
        return FixedPolicy(policy.mode, reason, SERVICE if self._request.by_service else FixedPolicy.name)

    def _apply_values(self, values: Dict[str, Any]) -> None:
        with self._lock:
            self._values = values
            for deciding in self._tasks.values():
                policy, announced = deciding.manager.policy, deciding.announced
                if hasattr(policy, "turn"):
                    policy.turn(Knobs(values["margin"], values["sigmas"]))
                in_force = announced.mode if announced is not None else Mode.SERVER
                deciding.manager.dry_run = in_force if values["dry_run"] else None
        try:
            self._turns.change_rules(weights=weights_of(values["weights"]), max_run=values["max_run"])
            self.health.clear("weights")
        except BadInput as error:
            self.health.warn("weights", f"{error}; those of before hold")

    def _check_battery(self) -> str:
        """Return why the battery is silent; empty where its topic is neither published nor remapped."""
        default = rospy.names.ns_join(rospy.get_namespace(), "battery")
        published = self._battery_news.has_arrived or self._batteries.get_num_connections() > 0
        return self._battery_news.explain_silence() if published or rospy.resolve_name("battery") != default else ""

    def _on_battery(self, message: Any) -> None:
        self._battery_news.note_arrival()
        fields = (message.percentage, message.charge, message.capacity, message.design_capacity, message.voltage)
        battery = self._battery.read(*map(float, fields))
        with self._lock:
            situations = [deciding.situation for deciding in self._tasks.values() if deciding.situation is not None]
        self.health.value("battery", battery.words(situations[-1].forecasts if situations else {}))

    def _on_bandwidth(self, message: Any) -> None:
        reading = TopicReading(reading_of(message), time.monotonic())
        with self._lock:
            self._reading = reading

    def _on_forecast(self, message: Any) -> None:
        with self._lock:
            situation = situation_of(message, time.monotonic(), self._frame_budget())
            deciding = self._deciding_for(message.task)
            deciding.situation, problem = apply_topic_reading(situation, self._reading, self._started_s)
            if problem:
                self.health.warn("bandwidth", problem)
            else:
                self.health.clear("bandwidth")
            if message.mode or deciding.announced is None:
                decision = deciding.manager.decide(deciding.situation)
                self._announce_decision(deciding, decision)
            else:
                decision = deciding.announced  # a request for the first turn, without forecasts
            forecast, explores = deciding.situation.forecasts.get(decision.mode), deciding.should_explore(decision)
        if message.task:
            node = message._connection_header["callerid"]
            if explores:
                self._turns.request_turn(node, message.task, math.nan if forecast is None else forecast.latency_s)
            else:
                self._turns.release_node(node)

    def _on_turn_taken(self, task: str) -> None:
        with self._lock:
            if task in self._tasks:
                self._tasks[task].local_frames = 0

    def _frame_budget(self) -> float:
        """Return the mean W that a frame may draw now; inf if there is no bound."""
        now = time.monotonic()
        if now - self._temperature[1] >= 1.0:
            self._temperature = (hottest_celsius(), now)
        celsius, _ = self._temperature
        budget = float(self._values["power_budget"] or math.inf)
        if not self._heat.step(celsius, self._values["max_temperature"]):
            self.health.clear("heat")
            return budget
        self.health.warn("heat", f"{celsius:.0f} degrees Celsius: frames may draw less")
        return min(budget, float(self._values["hot_budget"]))

    def _announce_decision(self, deciding: _Deciding, decision: Decision) -> None:
        """Publish a change of mode or policy; the reason on /diagnostics is always the latest."""
        announced, deciding.announced = deciding.announced, decision
        for what, value in (("mode", decision.mode), ("policy", decision.policy), ("reason", decision.reason),
                            ("switches", deciding.manager.switches)):  # fmt: skip
            self.health.value(deciding.diagnostics_key(what), value)
        confirmed = announced is not None and announced.reason == _FIRST_REASON != decision.reason
        if confirmed or announced is None or (announced.mode, announced.policy) != (decision.mode, decision.policy):
            deciding.publisher.publish(mode_message(decision.mode, decision.policy, decision.reason))
            rospy.loginfo(f"{deciding.diagnostics_key('mode')} {decision.mode} ({decision.policy}): {decision.reason}")

    def _set_mode(self, request: Any) -> Any:
        caller = request._connection_header.get("callerid", "somebody")
        requested = request.mode.strip().lower()
        try:
            if requested not in (*names(), *POLICIES):
                # package.module:Class is refused: a request from the network must not import code
                remedy = f"use one of: {', '.join((*names(), *POLICIES))}"
                raise BadInput(f"unknown mode or policy {requested!r}", remedy)
            policy = make_policy(requested)
        except BadInput as error:
            return SetModeResponse(False, str(error))
        with self._lock:
            # those of tasks with a name, which take turns; else the one without
            deciders = [one for one in self._tasks.values() if one.task] or list(self._tasks.values())
            if isinstance(policy, FixedPolicy):
                for deciding in deciders:
                    absent = {} if deciding.situation is None else deciding.situation.absent
                    if policy.mode in absent:
                        stays = f"{deciding.announced.mode if deciding.announced else Mode.LOCAL} stays in force"
                        why = f"mode {policy.mode} cannot run here: {absent[policy.mode]}; {stays}"
                        return SetModeResponse(False, why)
            self._request = _Request(requested, f"asked for by {caller} through offload/set_mode", True)
            modes = sorted({str(one.announced.mode) for one in deciders if one.announced is not None})
            before = ", ".join(modes) or str(Mode.LOCAL)
            for deciding in self._tasks.values():
                deciding.manager.policy = self._make_policy(requested, self._request.reason)
                situation = deciding.situation or Situation(time.monotonic(), {})
                if situation.forecasts or isinstance(policy, FixedPolicy):
                    self._announce_decision(deciding, deciding.manager.decide(situation))
                else:
                    in_force = deciding.announced.mode if deciding.announced is not None else Mode.LOCAL
                    cause = f"{requested} was asked for by {caller}"
                    self._announce_decision(deciding, Decision(in_force, cause, deciding.manager.policy.name))
            doubt = self._describe_doubt(policy, deciders)
        self._write_down()
        return SetModeResponse(True, f"{requested} is in force; it was {before}{doubt}")

    def _write_down(self) -> None:
        """Set the parameters ~mode and ~asked, so that a restarted manager continues with the requested mode."""
        try:
            rospy.set_param("~asked", {"mode": self._request.name, "reason": self._request.reason})
            rospy.set_param("~mode", self._request.name)
        except OSError as error:
            name = self._request.name
            self.health.warn("master", f"ROS master: {error}; this manager forgets mode {name} when it ends")

    def _describe_doubt(self, policy: Any, deciders: Sequence[_Deciding]) -> str:
        """Return a note for a mode in force in which frames do not run now."""
        if not isinstance(policy, FixedPolicy) or policy.mode is Mode.LOCAL:
            return ""
        situations = [deciding.situation for deciding in deciders if deciding.situation is not None]
        if not situations:
            return "; no node has told yet whether it can run it"
        for situation in situations:
            forecast = situation.forecasts.get(policy.mode)
            if forecast is not None and forecast.unavailable_reason:
                return f"; for now frames run locally: {forecast.unavailable_reason}"
        return ""

    def _on_mode(self, message: Any) -> None:
        sender = message._connection_header.get("callerid", "")
        if sender != rospy.get_name():
            self.health.error("manager", f"{sender} decides on the mode, too: there must be one manager only")

    def _on_latency(self, message: Any) -> None:
        # with turns the nodes of several tasks report what ran, and the message does not name the task
        announced = self._tasks[""].announced if len(self._tasks) == 1 else None
        self.health.value("mode that ran", message.mode)
        if announced is None or message.mode == announced.mode.value:
            self.health.clear("mode")
            return
        cause = message.fallback_reason or "the change has not reached the node yet"
        # a policy looks for another mode by itself; only a requested mode that does not run is worth a warning
        if not chooses(announced.policy) or (TABLE[announced.mode].needs_link and message.fallback_reason):
            self.health.warn("mode", f"{announced.mode} is in force, {message.mode} ran: {cause}")


NODE = OffloadManagerNode
