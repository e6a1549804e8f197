"""Messages about people: ``PersonArray`` and markers, with positions and velocities in the world."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Dict, Optional, Sequence, Tuple

import numpy as np
import rospy
from geometry_msgs.msg import Point, Vector3
from std_msgs.msg import ColorRGBA
from visualization_msgs.msg import Marker, MarkerArray

from edge_offload.arrays import Array
from edge_offload.nodes.inference.compose import copy_header, origin_message
from edge_offload.perception.geometry import Position
from edge_offload.perception.locator import DEPTH, GROUND, LIDAR, Locator
from edge_offload.perception.overlay import colour_of
from edge_offload.perception.tracking import TrackedPerson
from edge_offload.runtime.carrying import Along
from edge_offload.timing import InferenceReport
from edge_offload_msgs.msg import Keypoint, Person, PersonArray

_SOURCES = {DEPTH: Person.DEPTH, LIDAR: Person.LIDAR, GROUND: Person.GROUND}


@dataclass(frozen=True)
class Placed:
    """Position and velocity of a person, in the position's frame; metres and m/s."""

    position: Position
    velocity: Array


class Motion:
    """Velocities of people from their positions, smoothed over ``time_constant_s``."""

    def __init__(self, time_constant_s: float = 0.7, expiry_s: float = 2.0) -> None:
        self._time_constant_s = time_constant_s
        self._expiry_s = expiry_s
        self._states: Dict[Tuple[int, str], Tuple[float, Position, Array]] = {}

    def update(self, person_id: int, position: Position, stamp_s: float) -> Array:
        """Take in a position; the velocity [3] in m/s, zero until there are two in one frame, from one source.

        A position by depth image or LiDAR is on the torso, one on the ground at the feet: from the one to the other
        nobody has moved.
        """
        self._states = {
            key: state for key, state in self._states.items() if 0 <= stamp_s - state[0] <= self._expiry_s
        }  # fmt: skip
        velocity = np.zeros(3)
        before = self._states.get((person_id, position.frame))
        if before is not None:
            velocity = before[2]
            if stamp_s > before[0] and position.source == before[1].source:
                step = stamp_s - before[0]
                weight = 1.0 - math.exp(-step / self._time_constant_s)
                velocity = velocity + weight * ((position.xyz - before[1].xyz) / step - velocity)
        self._states[(person_id, position.frame)] = (stamp_s, position, velocity)
        return velocity


def place_people(
    people: Sequence[TrackedPerson], locator: Optional[Locator], motion: Motion, stamp_s: float
) -> Dict[int, Placed]:
    """Positions by id: in the world frame where the camera's pose is known, else in the camera's own frame."""
    placed = {}
    for person in people:
        if person.position is not None and locator is not None:
            position = locator.to_world(person.position)
            placed[person.id] = Placed(position, motion.update(person.id, position, stamp_s))
    return placed


def people_message(
    header: Any,
    report: InferenceReport,
    size: Tuple[int, int],
    people: Sequence[TrackedPerson] = (),
    placed: Optional[Dict[int, Placed]] = None,
    target_id: Optional[int] = None,
    along: Optional[Along[Any]] = None,
) -> PersonArray:
    """The people in one frame; ``size``: width and height of the image, px; ``along``: unless they are fresh."""
    placed = placed or {}
    return PersonArray(
        header=copy_header(header),
        frame_seq=header.seq,
        model=report.model,
        mode=report.mode.value,
        result=origin_message(header, along),
        image_width=size[0],
        image_height=size[1],
        people=[_person_message(person, placed.get(person.id), person.id == target_id) for person in people],
    )


def _person_message(person: TrackedPerson, placed: Optional[Placed], target: bool) -> Person:
    x_min, y_min, x_max, y_max = person.box.tolist()
    message = Person(
        id=person.id,
        observed=not person.coasting,
        target=target,
        score=person.score,
        x_min=x_min,
        y_min=y_min,
        x_max=x_max,
        y_max=y_max,
        keypoints=[Keypoint(*point) for point in person.keypoints.tolist()],
    )
    if placed is not None:
        message.position_source = _SOURCES[placed.position.source]
        message.position_frame = placed.position.frame
        message.position = Point(*placed.position.xyz.tolist())
        message.velocity = Vector3(*placed.velocity.tolist())
        message.position_covariance = placed.position.covariance.ravel().tolist()
    return message


def marker_message(header: Any, placed: Dict[int, Placed], target_id: Optional[int]) -> MarkerArray:
    """A column and a label for everyone whose position is known; what was shown before is removed."""
    markers = [Marker(header=copy_header(header), action=Marker.DELETEALL)]
    height_m = 1.7
    for person_id, where in placed.items():
        blue, green, red = colour_of(person_id)
        x, y, z = where.position.xyz.tolist()
        upright = where.position.source == GROUND
        for namespace, kind in (("people", Marker.CYLINDER), ("labels", Marker.TEXT_VIEW_FACING)):
            marker = Marker(ns=namespace, id=person_id, type=kind, action=Marker.ADD)
            marker.header.stamp, marker.header.frame_id = header.stamp, where.position.frame
            marker.pose.orientation.w = 1.0
            above = height_m / 2 if kind == Marker.CYLINDER else height_m + 0.2
            # a point on the ground is that of the feet; one by depth image or LiDAR is on the torso already
            marker.pose.position = Point(x, y, z + (above if upright else 0.0))
            marker.scale = Vector3(0.5, 0.5, height_m) if kind == Marker.CYLINDER else Vector3(0.0, 0.0, 0.4)
            marker.color = ColorRGBA(red / 255, green / 255, blue / 255, 0.8)
            marker.text = f"{person_id}{' target' if person_id == target_id else ''}"
            marker.lifetime = rospy.Duration(2)
            markers.append(marker)
    return MarkerArray(markers=markers)
