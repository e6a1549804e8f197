"""Messages about detected objects: ``ObjectArray`` and markers, with positions in space."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

import rospy
from geometry_msgs.msg import Point, Vector3
from std_msgs.msg import ColorRGBA
from visualization_msgs.msg import Marker, MarkerArray

from edge_offload.models.detections import Detections
from edge_offload.nodes.inference.compose import copy_header
from edge_offload.nodes.inference.vision import Place, rectangle_pose
from edge_offload.perception.locator import DEPTH, GROUND, LIDAR
from edge_offload.perception.overlay import colour_of
from edge_offload.timing import InferenceReport
from edge_offload_msgs.msg import Object, ObjectArray

_SOURCES = {DEPTH: Object.DEPTH, LIDAR: Object.LIDAR, GROUND: Object.GROUND}

_SHAPES = (("objects", Marker.CUBE), ("positions", Marker.SPHERE), ("labels", Marker.TEXT_VIEW_FACING))
"""Namespaces of markers in RViz, and the shape of the markers in each."""


def objects_message(
    header: Any,
    report: InferenceReport,
    size: Tuple[int, int],
    detections: Detections,
    labels: Sequence[str] = (),
    places: Sequence[Optional[Place]] = (),
) -> ObjectArray:
    """Make the message of the objects in one frame.

    Args:
        header: of the frame.
        report: of its inference.
        size: width and height of the image, px.
        detections: the objects.
        labels: name of the class of each.
        places: position and rectangle in space of each; None: unknown.
    """
    rows = zip(detections.classes.tolist(), labels, detections.scores.tolist(), detections.boxes.tolist(), places)
    return ObjectArray(
        header=copy_header(header),
        frame_seq=header.seq,
        model=report.model,
        mode=report.mode.value,
        image_width=size[0],
        image_height=size[1],
        objects=[_object_message(number, label, score, box, place) for number, label, score, box, place in rows],
    )


def _object_message(number: int, label: str, score: float, box: Sequence[float], place: Optional[Place]) -> Object:
    x_min, y_min, x_max, y_max = box
    message = Object(
        class_id=number, label=label, score=score, x_min=x_min, y_min=y_min, x_max=x_max, y_max=y_max
    )  # fmt: skip
    if place is not None:
        position, _ = place
        message.position_source = _SOURCES[position.source]
        message.position_frame = position.frame
        message.position = Point(*position.xyz.tolist())
        message.position_covariance = position.covariance.ravel().tolist()
    return message


def markers_message(
    header: Any, detections: Detections, labels: Sequence[str], places: Sequence[Optional[Place]]
) -> MarkerArray:
    """Make a plate, a ball and a label for each object whose position is known; earlier markers are removed.

    The plate is the box of the object at its distance, the ball its position. The label names the position's source.
    """
    markers = [Marker(header=copy_header(header), action=Marker.DELETEALL)]
    letter_m = 0.25
    for index, (number, label, place) in enumerate(zip(detections.classes.tolist(), labels, places)):
        if place is None:
            continue
        position, extent = place
        blue, green, red = colour_of(number)
        for namespace, kind in _SHAPES:
            marker = Marker(ns=namespace, id=index, type=kind, action=Marker.ADD, pose=rectangle_pose(extent))
            marker.header.stamp, marker.header.frame_id = header.stamp, position.frame
            marker.color = ColorRGBA(red / 255, green / 255, blue / 255, 0.5 if kind == Marker.CUBE else 1.0)
            marker.lifetime = rospy.Duration(2)
            if kind == Marker.CUBE:
                marker.scale = Vector3(extent.width, extent.height, 0.04)  # depth is unknown
            elif kind == Marker.SPHERE:
                marker.pose.position, marker.scale = Point(*position.xyz.tolist()), Vector3(0.1, 0.1, 0.1)
            else:
                above = extent.centre - extent.rotation[:, 1] * (extent.height / 2 + letter_m)
                marker.pose.position, marker.scale = Point(*above.tolist()), Vector3(0.0, 0.0, letter_m)
                marker.text = f"{label} ({position.source})"
            markers.append(marker)
    return MarkerArray(markers=markers)
