"""publishes the power (W) that this machine draws.

Publishes:
  offload/power     edge_offload_msgs/Power, measured by a sensor or from the state model; its source field says which.
                    Without a sensor and watts for this machine it is UNKNOWN, and the figures are NaN

Subscribes:
  offload/latency   edge_offload_msgs/Latency: the robot's activity, for the state model

The state model needs the watts of this machine: ~inference_watts, ~communication_watts and ~standby_watts
(config/power.yaml has those of a Jetson Xavier NX).

Sensors: INA3221 rails in sysfs and tegrastats (Jetson), RAPL (processor), NVML (NVIDIA GPU). Absent sensors are listed
on /diagnostics with the reason. If only part of a machine is measured (rails that do not add up, the GPU without the
processor), the power is UNKNOWN, and /diagnostics warns. A sensor that ~source names is read in any case. /diagnostics
has the nvpmodel mode and the fan of a Jetson, and warns while heat slows a machine (sysfs).

Example:
  rosrun edge_offload power_node _inference_watts:=13.35 _communication_watts:=4.25 _standby_watts:=4.04
"""

from __future__ import annotations

import math
import os
import time
from typing import Any

import rospy
from std_msgs.msg import Header

from edge_offload.errors import BadInput
from edge_offload.nodes.common.base import Node
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.common.ticker import Ticker
from edge_offload.nodes.inference.compose import report_of
from edge_offload.power.detect import CHOICES, detect
from edge_offload.power.meter import EnergyMeter
from edge_offload.power.source import MEASURED, MODEL, UNKNOWN
from edge_offload.power.states import COMMUNICATE, COMPUTE, WATTS, StateModel, StateTimeline, powers_of
from edge_offload.power.thermal import board_values, throttling
from edge_offload_msgs.msg import Latency, Power

#: Constants of the message.
SOURCES = {MEASURED: Power.MEASURED, MODEL: Power.MODEL, UNKNOWN: Power.UNKNOWN}


class PowerNode(Node):
    """See the module's docstring."""

    name = "power_node"
    declared = (
        Param("rate", 5.0, "messages per second", low=0.1, high=100.0),
        Param("source", "auto", "sensor to read", choices=CHOICES),
        Param("inference_watts", 0.0, "W of the state model while computing; 0: no state model", low=0.0),
        Param("communication_watts", 0.0, "W of the state model while transferring", low=0.0),
        Param("standby_watts", 0.0, "W of the state model otherwise", low=0.0),
    )

    def start(self) -> None:
        params = self.params
        self._timeline = StateTimeline()
        powers = powers_of(params)
        if powers is None and params["source"] == "model":
            raise BadInput("the state model was asked for, and there is none", f"give {', '.join(WATTS)}")
        meter = detect(params["source"])
        for name, why in meter.absent.items():
            self.health.value(f"{name} absent", why)
        if meter.parts and powers is None:
            self.health.warn("rails", f"what this machine draws is not known: {meter.parts}")
        model = None if powers is None else StateModel(self._timeline, powers)
        self._meter = EnergyMeter(meter.sources, model).start()
        why = f"unknown: {meter.parts or 'no sensor'}, and no table of watts for this machine"
        self.health.value("source", self._meter.name or why)
        self.health.watch("throttling", self._read_board)
        self._started = self._counted = time.monotonic()
        self._joules, self._measured = 0.0, False
        self._publisher = rospy.Publisher("offload/power", Power, queue_size=10)
        rospy.Subscriber("offload/latency", Latency, self.callback(self._on_latency), queue_size=100)
        self._ticker = Ticker(1.0 / params["rate"], self._publish_power, self.fault)
        self._ticker.start()

    def stop(self) -> None:
        if hasattr(self, "_ticker"):
            self._ticker.close()
            self._meter.close()

    def _read_board(self) -> str:
        """Set what the board shows of its mode and fan; why it is slowed, or nothing."""
        for name, text in board_values().items():
            self.health.value(name, text)
        return throttling()

    def _on_latency(self, message: Any) -> None:
        report = report_of(message)
        # the message is sent when the inference has ended
        self._timeline.add_report(report, time.monotonic() - report.total_s)

    def _publish_power(self) -> None:
        now = time.monotonic()
        # the model learns of an inference when it is over: count up to a moment that can still change
        settled = max(self._counted, now - 1.0)
        energy = self._meter.energy_between(self._counted, settled)
        self._counted = settled
        if math.isfinite(energy.joules):
            self._joules += energy.joules
            self._measured = True
        recent = self._meter.energy_between(settled, now)
        power = self._meter.read_power()
        if self._meter.problem:
            self.health.warn("sensor", self._meter.problem)
        else:
            self.health.clear("sensor")
        message = Power(header=Header(stamp=rospy.Time.now()), host=os.uname().nodename, sensor=power.name)
        message.source = SOURCES[power.source]
        # the model's power at this instant is that of standby between two messages: give the mean of the last second
        message.watts = power.watts if power.source == MEASURED else recent.joules / max(now - settled, 1e-9)
        measured = math.isfinite(recent.joules)
        message.joules = self._joules + (recent.joules if measured else 0.0) if measured or self._measured else math.nan
        message.state = self._state_between(settled, now)
        self._publisher.publish(message)

    def _state_between(self, begin: float, end: float) -> int:
        busy = self._timeline.busy_seconds(begin, end)
        if busy[COMPUTE] <= 0 and busy[COMMUNICATE] <= 0:
            state: int = Power.STANDBY
        elif busy[COMPUTE] >= busy[COMMUNICATE]:
            state = Power.INFERENCE
        else:
            state = Power.COMMUNICATION
        return state


NODE = PowerNode
