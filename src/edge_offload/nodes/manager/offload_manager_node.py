"""decides where the networks run, and says why.

Publishes:
  offload/mode       edge_offload_msgs/OffloadMode, latched: the mode in force, published when it changes

Subscribes:
  offload/bandwidth  edge_offload_msgs/Bandwidth: what the link carries; forecasts are put on it, and reasons name it
  battery            sensor_msgs/BatteryState, if there is one: hours left per mode are told on /diagnostics
  offload/forecast   edge_offload_msgs/Forecast: what the next frame would cost in each mode
  offload/latency    edge_offload_msgs/Latency: which mode really ran; a difference is told on /diagnostics
  offload/mode       to find out whether another manager publishes it, too

Services:
  offload/set_mode   edge_offload_msgs/SetMode: put another mode or policy in force; one that cannot run is refused

With ~mode auto (the same as latency) the mode that is expected to finish first is chosen, frame by frame; with energy
the one that takes the least energy among those that meet the deadline. The node that computes falls back to local by
itself whenever the mode in force cannot run.

Of offload/bandwidth and the frames' own transfers the newer measurement counts. Where both are of now and contradict
each other, and where the topic is silent for 3 s, the transfers count, and /diagnostics says so.

A power budget rules out modes whose frames draw more on average, as long as others are left. Above ~max_temperature of
the hottest thermal zone that the kernel shows, ~hot_budget holds instead, until it is 5 degrees cooler.

~margin, ~frames, ~sigmas, ~power_budget, ~max_temperature, ~hot_budget and ~dry_run can be turned while it runs:
  rosrun dynamic_reconfigure dynparam set offload_manager_node margin 0.2
"""

from __future__ import annotations

import math
import threading
import time
from typing import Any, ClassVar, Dict, Optional, Tuple

import rospy
from sensor_msgs.msg import BatteryState

from edge_offload.errors import BadInput
from edge_offload.manager.bandwidth import Heard, informed
from edge_offload.manager.battery import Battery
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
from edge_offload.mode import AUTO, TABLE, Mode, names
from edge_offload.nodes.common import reconfigure
from edge_offload.nodes.common.base import Node
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.inference.compose import mode_message, reading_of, situation_of
from edge_offload.power.thermal import HeatGuard, hottest_celsius
from edge_offload_msgs.msg import Bandwidth, Forecast, Latency, OffloadMode
from edge_offload_msgs.srv import SetMode, SetModeResponse

#: Seconds between two looks at the temperature.
TEMPERATURE_S = 1.0


class OffloadManagerNode(Node):
    """See the module's docstring."""

    name = "offload_manager_node"
    knobs: ClassVar[Tuple[Param, ...]] = (
        Param(
            "margin", Knobs.margin, "share by which another mode must be better to be switched to", low=0.0, high=5.0
        ),
        Param("frames", Knobs.frames, "forecasts in a row that must favour it", low=1, high=100),
        Param("sigmas", Knobs.sigmas, "standard deviations that a latency must leave to the deadline", low=0, high=10),
        Param("power_budget", 0.0, "W that the robot may draw while it computes a frame; 0: no bound", low=0.0),
        Param("max_temperature", 0.0, "degrees Celsius above which hot_budget holds; 0: no bound", low=0.0, high=150.0),
        Param("hot_budget", 6.0, "W that the robot may draw while it computes a frame when it is too hot", low=0.0),
        Param("dry_run", False, "keep the mode in force and only say what would be chosen"),
    )
    declared = (
        Param(
            "mode",
            AUTO,
            f"mode in force at the start ({', '.join(names())}), or a policy that chooses: {', '.join(POLICIES)}, "
            "or an own one as package.module:Class",
        ),
        *knobs,
    )

    def start(self) -> None:
        self._lock = threading.Lock()
        self._publisher = rospy.Publisher("offload/mode", OffloadMode, queue_size=1, latch=True)
        self._values = {knob.name: self.params[knob.name] for knob in self.knobs}
        self._situation: Optional[Situation] = None
        self._heard: Optional[Heard] = None
        self._began_s = time.monotonic()
        self._heat, self._temperature, self._looked_s = HeatGuard(), math.nan, -math.inf
        self._told: Optional[Decision] = None
        mode = self.params["mode"]
        self._manager = Manager(self._policy(mode, "set by the parameter ~mode"))
        if not isinstance(self._manager.policy, FixedPolicy):
            # until the first forecast comes: a mode that cannot run yet is answered locally anyway
            self._announce(Decision(Mode.SERVER, "nothing is known yet", self._manager.policy.name))
        else:
            self._announce(self._manager.decide(Situation(time.monotonic(), {})))
        self._turned(self._values)
        self._server = reconfigure.serve(self.knobs, self._values, self._turned)
        rospy.Subscriber("battery", BatteryState, self.callback(self._on_battery), queue_size=4)
        rospy.Subscriber("offload/bandwidth", Bandwidth, self.callback(self._on_bandwidth), queue_size=4)
        rospy.Subscriber("offload/forecast", Forecast, self.callback(self._on_forecast), queue_size=100)
        rospy.Subscriber("offload/latency", Latency, self.callback(self._on_latency), queue_size=100)
        rospy.Subscriber("offload/mode", OffloadMode, self.callback(self._on_mode), queue_size=10)
        self._service = rospy.Service("offload/set_mode", SetMode, self._set_mode)

    def stop(self) -> None:
        if hasattr(self, "_service"):
            self._service.shutdown()

    def _policy(self, name: str, reason: str) -> Any:
        knobs = Knobs(self._values["margin"], self._values["frames"], self._values["sigmas"])
        policy = make_policy(name, knobs)
        return FixedPolicy(policy.mode, reason) if isinstance(policy, FixedPolicy) else policy

    def _turned(self, values: Dict[str, Any]) -> None:
        with self._lock:
            self._values = values
            policy = self._manager.policy
            if hasattr(policy, "turn"):
                policy.turn(Knobs(values["margin"], values["frames"], values["sigmas"]))
            held = self._told.mode if self._told is not None else Mode.SERVER
            self._manager.dry_run = held if values["dry_run"] else None

    def _on_battery(self, message: Any) -> None:
        fields = (message.percentage, message.charge, message.capacity, message.design_capacity, message.voltage)
        battery = Battery.of(*map(float, fields))
        with self._lock:
            situation = self._situation
        self.health.value("battery", battery.words({} if situation is None else situation.forecasts))

    def _on_bandwidth(self, message: Any) -> None:
        heard = Heard(reading_of(message), time.monotonic())
        with self._lock:
            self._heard = heard

    def _on_forecast(self, message: Any) -> None:
        with self._lock:
            situation = situation_of(message, time.monotonic(), self._budget())
            self._situation, problem = informed(situation, self._heard, self._began_s)
            if problem:
                self.health.warn("bandwidth", problem)
            else:
                self.health.clear("bandwidth")
            self._announce(self._manager.decide(self._situation))

    def _budget(self) -> float:
        """W that a frame may draw now; inf if there is no bound."""
        now = time.monotonic()
        if now - self._looked_s >= TEMPERATURE_S:
            self._temperature, self._looked_s = hottest_celsius(), now
        budget = float(self._values["power_budget"] or math.inf)
        if not self._heat.step(self._temperature, self._values["max_temperature"]):
            self.health.clear("heat")
            return budget
        self.health.warn("heat", f"{self._temperature:.0f} degrees Celsius: frames may draw less")
        return min(budget, float(self._values["hot_budget"]))

    def _announce(self, decision: Decision) -> None:
        """Publish a change of mode or policy; the reason on /diagnostics is always the latest."""
        told, self._told = self._told, decision
        self.health.value("mode", decision.mode)
        self.health.value("policy", decision.policy)
        self.health.value("reason", decision.reason)
        self.health.value("switches", self._manager.switches)
        if told is None or (told.mode, told.policy) != (decision.mode, decision.policy):
            self._publisher.publish(mode_message(decision.mode, decision.policy, decision.reason))
            rospy.loginfo(f"mode {decision.mode} ({decision.policy}): {decision.reason}")

    def _set_mode(self, request: Any) -> Any:
        caller = request._connection_header.get("callerid", "somebody")
        wanted = request.mode.strip().lower()
        try:
            if wanted not in (*names(), *POLICIES):
                # nothing is imported because somebody on the network says so
                raise BadInput(f"unknown mode or policy {wanted!r}", f"use one of: {', '.join((*names(), *POLICIES))}")
            policy = self._policy(wanted, f"asked for by {caller} through offload/set_mode")
        except BadInput as error:
            return SetModeResponse(False, str(error))
        if isinstance(policy, FixedPolicy):
            policy.name = SERVICE
        with self._lock:
            before = self._told.mode if self._told is not None else Mode.LOCAL
            situation = self._situation or Situation(time.monotonic(), {})
            if isinstance(policy, FixedPolicy) and policy.mode in situation.absent:
                why = situation.absent[policy.mode]
                return SetModeResponse(False, f"mode {policy.mode} cannot run here: {why}; {before} stays in force")
            self._manager.policy = policy
            if situation.forecasts or isinstance(policy, FixedPolicy):
                self._announce(self._manager.decide(situation))
            else:
                self._announce(Decision(before, f"{wanted} was asked for by {caller}", policy.name))
        return SetModeResponse(True, f"{wanted} is in force; it was {before}{self._doubt(policy)}")

    def _doubt(self, policy: Any) -> str:
        """What is to be added when a mode is in force and frames do not run in it now."""
        if not isinstance(policy, FixedPolicy) or policy.mode is Mode.LOCAL:
            return ""
        if self._situation is None:
            return "; no node has told yet whether it can run it"
        forecast = self._situation.forecasts.get(policy.mode)
        return (
            f"; for now frames run locally: {forecast.unavailable_reason}"
            if forecast and forecast.unavailable_reason
            else ""
        )

    def _on_mode(self, message: Any) -> None:
        sender = message._connection_header.get("callerid", "")
        if sender != rospy.get_name():
            self.health.error("manager", f"{sender} decides on the mode, too: there must be one manager only")

    def _on_latency(self, message: Any) -> None:
        told = self._told
        self.health.value("mode that ran", message.mode)
        if told is None or message.mode == told.mode.value:
            self.health.clear("mode")
            return
        cause = message.fallback_reason or "the change has not reached the node yet"
        # a policy looks for another mode by itself; one that was asked for and does not run is worth a warning
        if not chooses(told.policy) or (TABLE[told.mode].needs_link and message.fallback_reason):
            self.health.warn("mode", f"{told.mode} is in force, {message.mode} ran: {cause}")


NODE = OffloadManagerNode
