"""Drawing of tracked people, and of the run's state, on an image."""

from __future__ import annotations

import colorsys
import pathlib
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

import cv2
import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.mode import Mode
from edge_offload.models.people import SKELETON
from edge_offload.perception.tracking import TrackedPerson

Colour = Tuple[int, int, int]

_FONT = cv2.FONT_HERSHEY_SIMPLEX
_WHITE: Colour = (245, 245, 245)
_GREY: Colour = (170, 170, 170)
DARK: Colour = (28, 26, 24)
_TARGET: Colour = (60, 220, 255)
_MODE_COLOURS: Dict[Mode, Colour] = {
    Mode.LOCAL: (60, 140, 240),
    Mode.SERVER: (110, 180, 60),
    Mode.REPLAY: (200, 150, 50),
    Mode.SPLIT: (200, 90, 170),
}
_OTHER_MODE: Colour = (140, 140, 140)


@dataclass(frozen=True)
class Status:
    """Contents of the status bar; None: omitted.

    Attributes:
        mode: the mode that produced the result.
        model: name of the model; of a file only its name is shown.
        latency_s: from the frame's arrival to its result, seconds.
        bytes_up, bytes_down: for this frame.
        joules: energy of this frame.
        note: a remark, such as the reason of a fallback.
        carried_s: age of a result that was carried to this frame, seconds.
    """

    mode: Mode
    model: str
    latency_s: Optional[float] = None
    bytes_up: Optional[int] = None
    bytes_down: Optional[int] = None
    joules: Optional[float] = None
    note: str = ""
    carried_s: Optional[float] = None


def colour_of(person_id: int) -> Colour:
    """Return the BGR colour of an id; neighbouring ids differ much (golden-ratio hues)."""
    hue = (person_id * 0.618033988749895) % 1.0
    lightness = (0.60, 0.68, 0.54)[person_id % 3]
    red, green, blue = colorsys.hls_to_rgb(hue, lightness, 0.85)
    return round(blue * 255), round(green * 255), round(red * 255)


def draw_people(
    bgr: Array,
    people: Sequence[TrackedPerson],
    status: Optional[Status] = None,
    target_id: Optional[int] = None,
    keypoint_score: float = 0.25,
) -> Array:
    """Copy ``bgr`` and draw boxes, ids, scores and skeletons, the target's mark, and a status bar.

    Args:
        bgr: uint8 [h, w, 3].
        people: from the tracker; coasting ones are drawn dashed.
        status: the bar's text; None: no bar.
        target_id: id of the marked person; None: none.
        keypoint_score: keypoints below this are not drawn.

    Raises:
        BadInput: not a uint8 colour image.
    """
    image, scale = make_canvas(bgr)
    ordered = sorted(people, key=lambda person: (person.id == target_id, person.box[3]))
    for person in ordered:
        _draw_skeleton(image, person, scale, keypoint_score)
    for person in ordered:
        _draw_box(image, person, scale, person.id == target_id)
    top = 0 if status is None else bar_height(status, scale)
    taken: List[Tuple[int, int, int, int]] = []
    for person in reversed(ordered):
        _draw_label(image, person, scale, person.id == target_id, taken, top=top)
    if status is not None:
        seen = sum(not person.coasting for person in people)
        counts = [(str(seen), "person" if seen == 1 else "people")]
        draw_bar(image, status, counts + ([] if target_id is None else [(f"#{target_id}", "target")]), scale)
    return image


def make_canvas(bgr: Array) -> Tuple[Array, float]:
    """Copy an image to draw on, and return the scale of lines and letters, too (1 at 768 x 576 pixels).

    Raises:
        BadInput: not a uint8 colour image.
    """
    if bgr.dtype != np.uint8 or bgr.ndim != 3 or bgr.shape[2] != 3 or not bgr.size:
        raise BadInput(f"overlay: {bgr.dtype} {bgr.shape} is not a uint8 BGR image")
    image = np.ascontiguousarray(bgr).copy()
    return image, max(0.6, min(image.shape[0] / 576, image.shape[1] / 768))


def _line_width(scale: float, width: float) -> int:
    return max(1, round(width * scale))


def _to_pixel(x: float, y: float) -> Tuple[int, int]:
    # cv2 takes 32-bit integers only; far outside the image nothing is visible
    return int(np.clip(x, -1e5, 1e5)), int(np.clip(y, -1e5, 1e5))


def _draw_skeleton(image: Array, person: TrackedPerson, scale: float, keypoint_score: float) -> None:
    colour = colour_of(person.id)
    seen = person.keypoints[:, 2] >= keypoint_score
    points = [_to_pixel(x, y) for x, y, _ in person.keypoints]
    small = person.height < 150 * scale
    limb = _line_width(scale, 1.0 if person.coasting or small else 2.0)
    limbs = [(points[a], points[b]) for a, b in SKELETON if seen[a] and seen[b]]
    for a, b in limbs:
        cv2.line(image, a, b, DARK, limb + (1 if small else 2), cv2.LINE_AA)
    for a, b in limbs:
        cv2.line(image, a, b, colour, limb, cv2.LINE_AA)
    if not person.coasting:
        radius = 0 if small else _line_width(scale, 2.0)
        for index in np.flatnonzero(seen):
            cv2.circle(image, points[index], radius, _WHITE, -1, cv2.LINE_AA)


def _draw_box(image: Array, person: TrackedPerson, scale: float, is_target: bool) -> None:
    a, b = _to_pixel(*person.box[:2]), _to_pixel(*person.box[2:])
    colour = colour_of(person.id)
    if person.coasting:
        _draw_dashed(image, a, b, colour, max(4, round(7 * scale)))
        return
    draw_box(image, person.box, colour, scale)
    if is_target:
        _draw_corners(image, a, b, _line_width(scale, 3.0))


def draw_box(image: Array, box: Array, colour: Colour, scale: float) -> None:
    """Draw a box float [4] x1 y1 x2 y2 pixels, with a dark edge; ``scale`` of :func:`make_canvas`."""
    a, b = _to_pixel(*box[:2]), _to_pixel(*box[2:])
    cv2.rectangle(image, a, b, DARK, _line_width(scale, 3.0), cv2.LINE_AA)
    cv2.rectangle(image, a, b, colour, _line_width(scale, 1.4), cv2.LINE_AA)


def _draw_corners(image: Array, a: Tuple[int, int], b: Tuple[int, int], thickness: int) -> None:
    """Draw brackets around the target."""
    gap = 2 * thickness
    length = max(6, min(b[0] - a[0], b[1] - a[1]) // 3)
    for x, dx in ((a[0] - gap, 1), (b[0] + gap, -1)):
        for y, dy in ((a[1] - gap, 1), (b[1] + gap, -1)):
            for end in ((x + dx * length, y), (x, y + dy * length)):
                cv2.line(image, (x, y), end, DARK, thickness + 2, cv2.LINE_AA)
            for end in ((x + dx * length, y), (x, y + dy * length)):
                cv2.line(image, (x, y), end, _TARGET, thickness, cv2.LINE_AA)


def _draw_dashed(image: Array, a: Tuple[int, int], b: Tuple[int, int], colour: Colour, dash: int) -> None:
    corners = [a, (b[0], a[1]), b, (a[0], b[1])]
    for start, end in zip(corners, corners[1:] + corners[:1]):
        length = max(abs(end[0] - start[0]), abs(end[1] - start[1]))
        if length > 4 * max(image.shape):  # a diverged box would take a million dashes
            continue
        for begin in range(0, length, 2 * dash):
            stop = min(begin + dash, length)
            from_, to = (
                (start[0] + (end[0] - start[0]) * t // length, start[1] + (end[1] - start[1]) * t // length)
                for t in (begin, stop)
            )
            cv2.line(image, from_, to, colour, 1, cv2.LINE_AA)


def _draw_label(
    image: Array,
    person: TrackedPerson,
    scale: float,
    is_target: bool,
    taken: List[Tuple[int, int, int, int]],
    top: int,
) -> None:
    """Draw id, score and distance above the box."""
    text = f"{person.id}" if person.coasting else f"{person.id} {person.score * 100:.0f}%"
    if person.position is not None:
        text += f" {person.position.distance:.0f}m"
    if is_target:
        text = f"TARGET {text}"
    background = _TARGET if is_target else colour_of(person.id)
    if person.coasting:
        background = tuple(value // 2 for value in background)  # type: ignore[assignment]
    ink = _WHITE if person.coasting else DARK
    lift = 4 * _line_width(scale, 3.0) if is_target else 0
    draw_label(image, text, person.box, (background, ink), scale, taken, top, lift)


def draw_label(
    image: Array, text: str, box: Array, colours: Tuple[Colour, Colour], scale: float,
    taken: List[Tuple[int, int, int, int]], top: int, lift: int = 0,
) -> None:  # fmt: skip
    """Draw a label above a box, moved up where another label is.

    Args:
        image: image to draw on.
        text: of the label.
        box: float [4], x1 y1 x2 y2 in pixels.
        colours: of the background and of the letters.
        scale: of :func:`make_canvas`.
        taken: rectangles of labels, to which this one is added.
        top: pixels at the top without labels.
        lift: pixels between label and box.
    """
    size = 0.38 * scale
    (width, height), base = cv2.getTextSize(text, _FONT, size, 1)
    pad = _line_width(scale, 3.0)
    x_min, bottom = _to_pixel(float(box[0]), float(box[1]))
    x_min = int(np.clip(x_min, 0, max(0, image.shape[1] - width - 2 * pad)))
    box_height = height + base + pad
    x_max = x_min + width + 2 * pad
    above = [bottom - lift - box_height * (1 + step) for step in range(4)]
    places = [y for y in above if y >= top] or [max(top, bottom)]
    y = next((y for y in places if not _overlaps_any((x_min, y, x_max, y + box_height), taken)), places[0])
    y = int(min(y, max(0, image.shape[0] - box_height)))
    taken.append((x_min, y, x_max, y + box_height))
    cv2.rectangle(image, (x_min, y), (x_max, y + box_height), colours[0], -1)
    cv2.putText(image, text, (x_min + pad, y + height + pad // 2 + 1), _FONT, size, colours[1], 1, cv2.LINE_AA)


def _overlaps_any(area: Tuple[int, int, int, int], others: Sequence[Tuple[int, int, int, int]]) -> bool:
    x_min, y_min, x_max, y_max = area
    return any(x_min < x2 and x_max > x1 and y_min < y2 and y_max > y1 for x1, y1, x2, y2 in others)


def bar_height(status: Status, scale: float) -> int:
    """Pixels that :func:`draw_bar` takes at the top."""
    return _bar_height(scale) * (2 if status.note else 1)


def _bar_height(scale: float) -> int:
    return round(30 * scale)


def draw_bar(image: Array, status: Status, counts: Sequence[Tuple[str, str]], scale: float) -> None:
    """Draw a dark strip along the top: the mode, then figures, a note below.

    Args:
        image: image to draw on.
        status: contents of the bar.
        counts: numbers of objects, pairs of a value and its name.
        scale: of :func:`make_canvas`.
    """
    height = min(_bar_height(scale), image.shape[0])
    strip = image[:height]
    cv2.addWeighted(strip, 0.22, np.full_like(strip, 24), 0.78, 0, strip)
    size, base = 0.45 * scale, round(20 * scale)
    pad = round(9 * scale)
    name = str(status.mode).upper()
    (width, _), _ = cv2.getTextSize(name, _FONT, size, _line_width(scale, 1.0))
    cv2.rectangle(
        image, (0, 0), (width + 2 * pad, height - 1), _MODE_COLOURS.get(status.mode, _OTHER_MODE), -1
    )  # fmt: skip
    cv2.putText(image, name, (pad, base), _FONT, size, _WHITE, _line_width(scale, 1.0), cv2.LINE_AA)
    x = width + 4 * pad
    figures, gaps, smaller = _fit_figures(
        [*_status_figures(status), *counts], len(counts), image.shape[1] - pad - x, size, scale
    )
    for text, unit in figures:
        for part, colour in ((text, _WHITE), (unit, _GREY)):
            if part:
                cv2.putText(image, part, (x, base), _FONT, smaller, colour, 1, cv2.LINE_AA)
                x += cv2.getTextSize(part, _FONT, smaller, 1)[0][0] + gaps[0]
        x += gaps[1]
    if status.note:
        room = image.shape[1] - pad
        note = _shorten_text(status.note, room - pad, size)
        y = height + base
        note_strip = image[height : 2 * height]
        cv2.addWeighted(note_strip, 0.3, np.full_like(note_strip, 24), 0.7, 0, note_strip)
        cv2.putText(image, note, (pad, y), _FONT, size, _MODE_COLOURS[Mode.LOCAL], 1, cv2.LINE_AA)


def _fit_figures(
    figures: List[Tuple[str, str]], last: int, room: int, size: float, scale: float
) -> Tuple[List[Tuple[str, str]], Tuple[int, int], float]:
    """Return figures, gaps in and behind each of them (pixels), and letter size that fit into ``room`` pixels.

    Letters shrink by up to a quarter; then figures before the ``last`` ones are omitted, from the right.
    """
    while True:
        for factor in (1.0, 0.875, 0.75):
            within, behind = round(4 * scale * factor), round(14 * scale * factor)
            parts = [part for figure in figures for part in figure if part]
            wide = sum(cv2.getTextSize(part, _FONT, size * factor, 1)[0][0] + within for part in parts)
            if wide + behind * (len(figures) - 1) <= room or (factor == 0.75 and len(figures) <= max(1, last)):
                return figures, (within, behind), size * factor
        del figures[-last - 1]


def _status_figures(status: Status) -> List[Tuple[str, str]]:
    """Return the figures of the frame's cost, as pairs of a value and its unit or meaning."""
    figures = [(pathlib.PurePath(status.model).name, "")]
    if status.carried_s is not None:
        figures.append((f"{status.carried_s * 1e3:.0f}", "ms carried"))
    if status.latency_s is not None:
        figures.append((f"{status.latency_s * 1e3:.0f}", "ms"))
    if status.bytes_up is not None:
        figures.append((_format_bytes(status.bytes_up), "up"))
    if status.bytes_down is not None:
        figures.append((_format_bytes(status.bytes_down), "down"))
    if status.joules is not None:
        figures.append((f"{status.joules:.2f}", "J"))
    return figures


def _format_bytes(count: int) -> str:
    if count < 1000:
        return f"{count} B"
    return f"{count / 1e3:.0f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"


def _shorten_text(text: str, room: int, size: float) -> str:
    """Cut ``text`` to ``room`` pixels; the font has ASCII only."""
    text = text.encode("ascii", "replace").decode("ascii")
    while len(text) > 4 and cv2.getTextSize(text, _FONT, size, 1)[0][0] > room:
        text = text[:-4] + "..."
    return text
