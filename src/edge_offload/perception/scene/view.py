"""Picture of a completed scene from above, with obstacles, the path, and a bar of figures."""

from __future__ import annotations

from typing import Optional, Sequence, Tuple

import cv2
import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.perception.scene.planning import OCCUPIED, UNKNOWN, Cell

_FONT = cv2.FONT_HERSHEY_SIMPLEX


def from_above(labels: Array, colours: Array, top: Optional[int] = None) -> Array:
    """Draw the highest full voxel of each column below index ``top``, in its label's colour, brighter with height.

    Args:
        labels: uint8 [x, y, z]; values beyond ``colours`` are not drawn.
        colours: uint8 [labels, 3] RGB.
        top: index of the first voxel layer that is not drawn; None: all are drawn.

    Returns:
        uint8 [x, y, 3] BGR, black in empty columns.
    """
    shown = labels[:, :, :top]
    full = (shown > 0) & (shown < len(colours))
    highest = shown.shape[2] - 1 - full[:, :, ::-1].argmax(axis=2)
    label = np.take_along_axis(shown, highest[:, :, None], axis=2)[:, :, 0]
    label = np.where(full.any(axis=2), label, 0)
    light = 0.55 + 0.45 * highest / max(1, shown.shape[2] - 1)
    picture: Array = (colours[label] * light[:, :, None]).astype(np.uint8)[:, :, ::-1]
    return np.where(full.any(axis=2)[:, :, None], picture, 0).astype(np.uint8)


def to_picture_rows(cells: Array) -> Array:
    """Convert an array [x, y, ...] to picture rows: forward is up, left is left."""
    return np.ascontiguousarray(cells[::-1, ::-1])


def draw_scene(
    labels: Array,
    colours: Array,
    occupancy: Array,
    slice_map: Array,
    path: Optional[Array],
    robot: Optional[Cell],
    goal: Optional[Cell],
    lines: Sequence[str],
    scale: int = 2,
    top: Optional[int] = None,
) -> Array:
    """Draw three views under a bar of text: hits of the sweep, the completed scene, the slice with the path.

    Args:
        labels: uint8 [x, y, z].
        colours: uint8 [labels, 3] RGB.
        occupancy: uint8 [x, y, z].
        slice_map: int8 [x, y] from :func:`edge_offload.perception.scene.planning.occupancy_slice`.
        path: int [n, 2] cells, or None.
        robot: its cell, or None.
        goal: its cell, or None.
        lines: text, one bar each.
        scale: pixels per cell.
        top: index of the first voxel layer that is not drawn (a ceiling would hide the room).

    Returns:
        uint8 BGR.

    Raises:
        BadInput: grids of different sizes.
    """
    if labels.shape != occupancy.shape or slice_map.shape != labels.shape[:2]:
        raise BadInput(f"labels {labels.shape}, occupancy {occupancy.shape} and slice {slice_map.shape} do not fit")
    hits = np.where(occupancy[:, :, :top].any(axis=2)[:, :, None], 225, 18).astype(np.uint8)
    panels = [np.broadcast_to(hits, (*slice_map.shape, 3)), from_above(labels, colours, top), _colour_slice(slice_map)]
    views = [_enlarge_picture(to_picture_rows(panel), scale) for panel in panels]
    for view in views[1:]:
        _draw_marks(view, slice_map.shape, path, robot, goal, scale)
    gap = np.full((views[0].shape[0], 4, 3), 90, dtype=np.uint8)
    picture = np.hstack([views[0], gap, views[1], gap, views[2]])
    bar_px = 22
    bars = np.full((bar_px * len(lines), picture.shape[1], 3), 28, dtype=np.uint8)
    for row, line in enumerate(lines):
        place = (8, bar_px * row + 16)
        cv2.putText(bars, line, place, _FONT, 0.45, (245, 245, 245), 1, cv2.LINE_AA)
    return np.vstack([bars, picture])


def _colour_slice(slice_map: Array) -> Array:
    picture = np.full((*slice_map.shape, 3), 205, dtype=np.uint8)
    picture[slice_map == OCCUPIED] = (40, 30, 30)
    picture[slice_map == UNKNOWN] = (120, 115, 110)
    return picture


def _enlarge_picture(picture: Array, scale: int) -> Array:
    size = (picture.shape[1] * scale, picture.shape[0] * scale)
    return np.ascontiguousarray(cv2.resize(picture, size, interpolation=cv2.INTER_NEAREST))


def _draw_marks(
    view: Array,
    shape: Tuple[int, ...],
    path: Optional[Array],
    robot: Optional[Cell],
    goal: Optional[Cell],
    scale: int,
) -> None:
    def to_pixel(cell: Sequence[float]) -> Tuple[int, int]:
        return int((shape[1] - 0.5 - cell[1]) * scale), int((shape[0] - 0.5 - cell[0]) * scale)

    if path is not None and len(path) > 1:
        points = np.array([to_pixel(cell) for cell in path], dtype=np.int32)
        cv2.polylines(view, [points], False, (20, 20, 20), 4, cv2.LINE_AA)
        cv2.polylines(view, [points], False, (60, 220, 255), 2, cv2.LINE_AA)
    if robot is not None:
        cv2.circle(view, to_pixel(robot), 5, (255, 160, 40), -1, cv2.LINE_AA)
    if goal is not None:
        cv2.drawMarker(view, to_pixel(goal), (60, 60, 255), cv2.MARKER_TILTED_CROSS, 12, 2, cv2.LINE_AA)
