"""drives the robot after the target person; it stops if the target is lost or its position is uncertain.

Subscribes:
  kapao/people    edge_offload_msgs/PersonArray: the target with its position
  /tf, /tf_static pose of the position's frame in ~base_frame (x forward, y left)

Publishes:
  cmd_vel         geometry_msgs/Twist at ~rate (Hz): m/s and rad/s; zero when the target is lost or results are stale

Off by default; robot.launch starts it with follow:=true.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Any, Optional, Tuple

import numpy as np
import rospy
from geometry_msgs.msg import Twist, Vector3

from edge_offload.nodes.common.base import Node
from edge_offload.nodes.common.health import Losses
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.common.poses import TF_WAIT, Interval, PoseLookup, Poses, waits_until
from edge_offload.nodes.common.ticker import Ticker
from edge_offload.nodes.common.topic_types import await_topic
from edge_offload.perception.follower import FollowerConfig, PersonFollower
from edge_offload.perception.timeline import AHEAD_S
from edge_offload_msgs.msg import Person, PersonArray

_LIMITS = FollowerConfig()


class FollowerNode(Node):
    """See the module's docstring."""

    name = "follower_node"
    declared = (
        Param("base_frame", "base_link", "tf frame of the robot's base"),
        Param("rate", 20.0, "commands per second", low=1.0, high=200.0),
        Param("distance", _LIMITS.distance, "m between robot and person", low=0.3),
        Param("max_linear", _LIMITS.max_linear, "highest speed, m/s", low=0.0),
        Param("max_angular", _LIMITS.max_angular, "highest turning rate, rad/s", low=0.0),
        Param(
            "target_timeout", _LIMITS.target_timeout_s, "s without a detection of the target until it stops", low=0.05
        ),
        TF_WAIT,
        Param("result_timeout", _LIMITS.result_timeout_s, "s without a result until it stops", low=0.05),
    )

    def start(self) -> None:
        params = self.params
        self._lock = threading.Lock()
        self._follower = PersonFollower(
            FollowerConfig(
                distance=params["distance"],
                max_linear=params["max_linear"],
                max_angular=params["max_angular"],
                target_timeout_s=params["target_timeout"],
                result_timeout_s=params["result_timeout"],
            )
        )
        self._interval = Interval()
        self._lookup = PoseLookup(Poses(), "~base_frame")
        self._losses = Losses("sights of the target without a place to drive to")
        remedy = "start kapao_node, or remap the topic; the robot stands"
        self._people = await_topic("kapao/people", PersonArray, "people", remedy, after_s=3.0)
        self.health.watch("position", self._losses.describe_losses)
        self.health.watch("people", self._people.explain_silence)
        self._publisher = rospy.Publisher("cmd_vel", Twist, queue_size=1)
        rospy.Subscriber("kapao/people", PersonArray, self.callback(self._on_people), queue_size=4)
        self._ticker = Ticker(1.0 / params["rate"], self._publish_command, self.fault)
        self._ticker.start()

    def stop(self) -> None:
        if hasattr(self, "_ticker"):
            self._ticker.close()
            # whatever drives must not go on with the last command
            self._publisher.publish(Twist())

    def _on_people(self, message: Any) -> None:
        # the age is taken on the ROS clock, on which the stamp is, and the rest is timed by the monotonic one
        received_s = time.monotonic()
        self._people.note_arrival()
        until_s = waits_until(received_s, self._interval.update_interval(received_s), self.params)
        age_s = self._age_s(message.header.stamp)
        target = next((person for person in message.people if person.target and person.observed), None)
        place = None if target is None else self._in_base(target, message.header.stamp, received_s, until_s)
        with self._lock:
            self._follower.add_sighting(place, received_s - age_s)

    def _age_s(self, stamp: rospy.Time) -> float:
        """Return the seconds since the image was taken; infinity where its stamp is not valid."""
        age_s: float = (rospy.Time.now() - stamp).to_sec()
        if not stamp:
            cause = "people have stamp 0, so their age is not known; have the camera's driver write the time of capture"
        elif age_s < -AHEAD_S:
            cause = f"people are {-age_s:.1f} s ahead of the clock of this machine; set both clocks by NTP (chrony)"
        elif age_s > self.params["result_timeout"]:
            cause = f"people are {age_s:.1f} s old by their stamps; results are late, or clocks differ (use NTP)"
        else:
            self.health.clear("stamps")
            return max(0.0, age_s)
        self.health.warn("stamps", f"the robot stands: {cause}")
        return max(age_s, 0.0) if stamp and age_s > 0 else math.inf

    def _in_base(
        self, person: Any, stamp: rospy.Time, received_s: float, until_s: float
    ) -> Optional[Tuple[float, float]]:
        """Locate the target in the base's frame, m; waits for a pose that comes late."""
        if person.position_source == Person.UNKNOWN:
            self._losses.note_loss(
                "the target's position is unknown; /diagnostics of the node that finds people says why"
            )
            return None
        pose = self._lookup.look_up(self.params["base_frame"], person.position_frame, stamp, received_s, until_s)
        transform = pose.settle_transform()
        self._losses.note_loss(pose.cause)
        if transform is None:
            return None
        place = person.position
        x, y, _ = transform.map_points(np.array([place.x, place.y, place.z])).tolist()
        return x, y

    def _publish_command(self) -> None:
        with self._lock:
            command = self._follower.compute_command()
        self.health.value("doing", command.reason)
        self._publisher.publish(Twist(linear=Vector3(x=command.linear), angular=Vector3(z=command.angular)))


NODE = FollowerNode
