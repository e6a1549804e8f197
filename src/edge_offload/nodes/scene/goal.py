"""Goal of agrnav_node: the latest message of agrnav/goal, in the frame of a sweep."""

from __future__ import annotations

import math
from typing import Any, Optional, Tuple

import numpy as np
import rospy
from geometry_msgs.msg import PoseStamped

from edge_offload.nodes.common.base import Owner
from edge_offload.nodes.common.health import Losses
from edge_offload.nodes.common.poses import Pose, PoseLookup, Poses, frame_name
from edge_offload.nodes.inference.intake import Frame, tf_time


class GoalIntake:
    """Goal of a node: the latest message, before the first one the parameters ``goal_x`` and ``goal_y``.

    Args:
        node: its parameters and health.
        poses: lookup in tf.
    """

    def __init__(self, node: Owner, poses: Poses) -> None:
        self._params = node.params
        self._lookup = PoseLookup(poses, carried=bool(node.params.get("carry")))
        self._losses = Losses("sweeps without a path, as tf lacks the pose of the goal")
        self._goal: Optional[Any] = None
        node.health.watch("goal", self._losses.describe_losses)
        rospy.Subscriber("agrnav/goal", PoseStamped, node.callback(self._on_goal), queue_size=4)

    def _on_goal(self, message: Any) -> None:
        message.header.frame_id = frame_name(message.header.frame_id)
        self._goal = message

    def _look_up_pose(self, goal: Any, frame: Frame) -> Optional[Pose]:
        """Look up the pose of the goal's frame in the sensor's at the time of a sweep; None: equal frames."""
        header = frame.message.header
        if goal is None or goal.header.frame_id in ("", header.frame_id):
            return None
        at = tf_time(header, frame.instant)
        return self._lookup.look_up(header.frame_id, goal.header.frame_id, at, frame.received_s, frame.until_s)

    def waits_s(self, frame: Frame) -> float:
        """Return the time until which a sweep may wait for the goal's pose (monotonic seconds); -inf: not at all."""
        pose = self._look_up_pose(self._goal, frame)
        return -math.inf if pose is None else pose.waits_s

    def place_goal(self, frame: Frame, wait: bool) -> Optional[Tuple[float, float]]:
        """Locate the goal in the frame of a sweep, m ahead and to the left; None while tf lacks the pose.

        Args:
            frame: the sweep.
            wait: whether to wait for a late pose.
        """
        goal = self._goal
        pose = self._look_up_pose(goal, frame)
        if goal is None:
            return self._params["goal_x"], self._params["goal_y"]
        place = np.array([goal.pose.position.x, goal.pose.position.y, goal.pose.position.z])
        if pose is None:
            self._losses.clear()
        else:
            transform = pose.settle_transform(wait)
            self._losses.note_loss(pose.cause)
            if transform is None:
                return None
            place = transform.map_points(place)
        if not np.isfinite(place).all():
            self._losses.note_loss("the goal's place is not finite; publish another one on agrnav/goal")
            return None
        return float(place[0]), float(place[1])
