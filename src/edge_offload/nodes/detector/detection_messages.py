"""Messages about detected objects."""

from __future__ import annotations

from typing import Any, Sequence, Tuple

from edge_offload.models.detections import Detections
from edge_offload.nodes.inference.compose import copy_header
from edge_offload.timing import InferenceReport
from edge_offload_msgs.msg import Object, ObjectArray


def objects_message(
    header: Any, report: InferenceReport, size: Tuple[int, int], found: Detections, labels: Sequence[str] = ()
) -> ObjectArray:
    """The objects in one frame; ``size`` is width and height of the image in pixels, ``labels`` one per object."""
    rows = zip(found.classes.tolist(), labels, found.scores.tolist(), found.boxes.tolist())
    return ObjectArray(
        header=copy_header(header),
        frame_seq=header.seq,
        model=report.model,
        mode=report.mode.value,
        image_width=size[0],
        image_height=size[1],
        objects=[Object(number, label, score, *box) for number, label, score, box in rows],
    )
