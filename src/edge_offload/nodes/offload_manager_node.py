"""decides where the networks run, and says why.

Publishes:
  offload/mode       edge_offload_msgs/OffloadMode, latched: the mode in force, published when it changes

Subscribes:
  offload/latency    edge_offload_msgs/Latency: which mode really ran; a difference is told on /diagnostics

Services:
  offload/set_mode   edge_offload_msgs/SetMode: put another mode in force
"""

from __future__ import annotations

from typing import Any

import rospy

from edge_offload.errors import BadInput
from edge_offload.manager.policy import FixedPolicy, ModeHolder
from edge_offload.modes import Mode, names, parse_mode
from edge_offload.nodes.base import Node
from edge_offload.nodes.compose import mode_message
from edge_offload.nodes.params import Param
from edge_offload_msgs.msg import Latency, OffloadMode
from edge_offload_msgs.srv import SetMode, SetModeResponse


class OffloadManagerNode(Node):
    """See the module's docstring."""

    name = "offload_manager_node"
    declared = (Param("mode", Mode.SERVER.value, "mode in force at the start", choices=names()),)

    def start(self) -> None:
        mode = parse_mode(self.params["mode"])
        self._holder = ModeHolder(FixedPolicy(mode, "set by the parameter ~mode"))
        self._policy = "fixed"
        self._publisher = rospy.Publisher("offload/mode", OffloadMode, queue_size=1, latch=True)
        self._announce()
        rospy.Subscriber("offload/latency", Latency, self.callback(self._on_latency), queue_size=100)
        self._service = rospy.Service("offload/set_mode", SetMode, self._set_mode)

    def stop(self) -> None:
        if hasattr(self, "_service"):
            self._service.shutdown()

    def _announce(self) -> None:
        decision = self._holder.decide()
        self.health.value("mode", decision.mode)
        self.health.value("reason", decision.reason)
        self._publisher.publish(mode_message(decision.mode, self._policy, decision.reason))
        rospy.loginfo(f"mode {decision.mode}: {decision.reason}")

    def _set_mode(self, request: Any) -> Any:
        try:
            mode = parse_mode(request.mode)
        except BadInput as error:
            return SetModeResponse(False, str(error))
        before = self._holder.decide().mode
        caller = request._connection_header.get("callerid", "somebody")
        self._holder.set(FixedPolicy(mode, f"asked for by {caller} through offload/set_mode"))
        self._policy = "service"
        self._announce()
        return SetModeResponse(True, f"{mode} is in force; it was {before}")

    def _on_latency(self, message: Any) -> None:
        wanted = self._holder.decide().mode
        self.health.value("mode that ran", message.mode)
        if message.mode == wanted.value:
            self.health.clear("mode")
            return
        cause = message.fallback_reason or "the change has not reached the node yet"
        self.health.warn("mode", f"{wanted} is in force, {message.mode} ran: {cause}")


NODE = OffloadManagerNode
