"""Transforms between tf's messages and the library's own type."""

from __future__ import annotations

from typing import Any

from geometry_msgs.msg import Quaternion, TransformStamped, Vector3
from scipy.spatial.transform import Rotation
from std_msgs.msg import Header

from edge_offload.perception.geometry import Transform


def transform_of(message: Any) -> Transform:
    """The transform in a ``TransformStamped``: maps its child frame into its parent.

    Raises:
        BadInput: it is no rotation and translation.
    """
    place, turn = message.transform.translation, message.transform.rotation
    return Transform.from_quaternion((place.x, place.y, place.z), (turn.x, turn.y, turn.z, turn.w))


def transform_message(transform: Transform, stamp: Any, parent: str, child: str) -> TransformStamped:
    """A ``TransformStamped`` that maps ``child`` into ``parent``."""
    message = TransformStamped(header=Header(stamp=stamp, frame_id=parent), child_frame_id=child)
    message.transform.translation = Vector3(*transform.translation.tolist())
    message.transform.rotation = Quaternion(*Rotation.from_matrix(transform.rotation).as_quat().tolist())
    return message
