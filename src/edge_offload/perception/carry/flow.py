"""People carried along by sparse optical flow inside each box, frame by frame (OpenCV's pyramidal Lucas-Kanade)."""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Iterator, List, Optional, Sequence, Tuple

import cv2
import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.perception.carry.ring import LIMIT_BYTES, LIMIT_FRAMES, Ring
from edge_offload.perception.tracking import TrackedPerson

_OTHERS = 2
"""Results on their way beside the newest one."""

_LEAST_STEP_S = 0.004
"""Between two images over which a velocity can be measured: over less, it is noise."""


@dataclass(frozen=True)
class FlowConfig:
    """Knobs of the flow.

    Attributes:
        points: followed in a box, at most.
        least: points that have to agree; with fewer the person goes on at the velocity known.
        agree: share of the box's height (at least 1 px) by which a point may depart from the median.
        back_px: px, by which a point may miss its place when it is followed forth and back.
        side: px, long side of the images that flow is computed on; larger ones are made smaller.
        window: px, of a point's neighbourhood.
        levels: of the pyramid above the image.
        hops: of a catch-up at most: over more frames than that, some are left out.
        lost_s: seconds without flow until a person is removed.
        limit_bytes: of the images kept.
    """

    points: int = 16
    least: int = 3
    agree: float = 0.03
    back_px: float = 0.5
    side: int = 768
    window: int = 15
    levels: int = 3
    hops: int = 10
    lost_s: float = 1.0
    limit_bytes: int = LIMIT_BYTES


@dataclass(frozen=True, eq=False)
class _Grey:
    """An image as flow sees it, uint8 [h, w]; its pixels per pixel of the original, which is ``size`` wide and high."""

    pixels: Array
    scale: float
    size: Tuple[int, int]


class FlowCarrier:
    """Carries people along: ``see`` takes every frame in, ``carry`` moves people to a later one.

    People who leave the picture are removed. Whoever has no flow, or was hidden (``coasting``) when the network looked,
    goes on at the velocity known, is ``coasting``, and is removed after a while. Ids, scores and labels are kept.

    A result that was carried to one frame goes on from there when it is asked for in a later one. Not thread-safe.

    Attributes:
        degraded: why the last result was carried without flow, or not at all; empty: neither.
        hops: made so far, from one image to another.
    """

    def __init__(self, config: Optional[FlowConfig] = None) -> None:
        self.config = config or FlowConfig()
        self.degraded = ""
        self.hops = 0
        self._ring: Ring[_Grey] = Ring(self.config.limit_bytes)
        self._size: Optional[Tuple[int, int]] = None
        self._first = 0
        self._courses: List[Tuple[Sequence[TrackedPerson], _Course]] = []

    def see(self, stamp: int, bgr: Array) -> bool:
        """Take a frame in.

        Args:
            stamp: ns, of the frame or on a timeline. One that goes back begins anew: what was before is forgotten. So
                does another size.
            bgr: uint8 [h, w, 3].

        Returns:
            Whether earlier frames are still known.

        Raises:
            BadInput: not a colour image.
        """
        grey = _grey(bgr, self.config.side)
        changed = self._size is not None and grey.size != self._size
        if changed:
            self._ring.clear()
        self._size = grey.size
        follows = self._ring.put(stamp, grey, grey.pixels.nbytes) and not changed
        if not follows or len(self._ring) == 1:
            self._courses, self._first = [], stamp
        return follows

    def forget(self) -> None:
        """Nothing of before is of use any more: images have begun anew."""
        self._ring.clear()
        self._courses = []

    @property
    def bytes_held(self) -> int:
        """Of the frames in the ring."""
        return self._ring.size

    def carry(self, result: Sequence[TrackedPerson], source: int, target: int) -> List[TrackedPerson]:
        """People of the frame ``source`` as they are in the frame ``target`` (stamps, ns), as a new list.

        Raises:
            BadInput: the target is before the source.
        """
        if target < source:
            raise BadInput("a result cannot be carried back in time")
        self.degraded = ""
        if target == source:
            return list(result)
        if source < self._first:
            self.degraded = "the images have changed their size, or begun anew, since the network saw one"
            return []
        for _ in self.steps(result, source, target):
            pass
        return self._course(result, source, target).people_at(target, self._size)

    def steps(self, result: Sequence[TrackedPerson], source: int, target: int) -> Iterator[None]:
        """What :meth:`carry` does, a hop at a time."""
        if not self._first <= source < target:
            return
        course = self._course(result, source, target)
        if target in course.passed:
            return
        stamps = self._ring.stamps(course.at, target)
        stride = max(1, math.ceil(len(stamps) / self.config.hops))
        for stamp in stamps[::-1][::stride][::-1]:
            # other frames may have been passed, or forgotten, between two steps
            if stamp > course.at:
                self._hop(course, stamp)
                yield
        if course.at < target:
            self._hop(course, target)
            yield

    def _course(self, result: Sequence[TrackedPerson], source: int, target: int) -> _Course:
        its = [course for known, course in self._courses if known is result and course.source == source]
        # one that has been there comes first: another may have left the frame out
        course = next((each for each in its if target in each.passed), None)
        course = course or next((each for each in its if each.at <= target), None)
        course = course or _Course(result, source, self.config)
        # others stay: of the result before, with which what came is compared, and of the local algorithm's
        others = [each for each in self._courses if each[1] is not course]
        self._courses = [*others[-_OTHERS:], (result, course)]
        return course

    def _hop(self, course: _Course, stamp: int) -> None:
        before, after = self._ring.get(course.at), self._ring.get(stamp)
        if before is None or after is None:
            self.degraded = "the frame that the network saw, or this one, is not held any more"
        self.hops += 1
        course.hop(before, after, stamp)


class _Course:
    """A result on its way through the frames. Boxes and points are in pixels of the original."""

    def __init__(self, people: Sequence[TrackedPerson], source: int, config: FlowConfig) -> None:
        n = len(people)
        self.source = self.at = source
        #: Boxes [n, 4], velocities [n, 2] (px/s) and seconds without flow [n] by stamp.
        self.passed: OrderedDict[int, Tuple[Array, Array, Array]] = OrderedDict()
        self._people = list(people)
        self._config = config
        self._boxes = np.array([person.box for person in people], dtype=np.float64).reshape(n, 4)
        self._start = self._boxes
        self._velocity = np.array([person.velocity for person in people], dtype=np.float64).reshape(n, 2)
        self._unseen_s = np.array([person.missed_s for person in people], dtype=np.float64)
        # flow in the box of somebody hidden is that of whoever stands before them
        self._hidden = np.array([person.coasting for person in people], dtype=bool)
        self._points = np.zeros((n, config.points, 2), dtype=np.float32)
        self._alive = np.zeros((n, config.points), dtype=bool)
        self._followed = False

    def hop(self, before: Optional[_Grey], after: Optional[_Grey], stamp: int) -> None:
        """Move on to the frame of ``stamp``; without both images at the velocity known."""
        step_s = (stamp - self.at) / 1e9
        shift, scale = self._velocity * step_s, np.ones(len(self._people))
        seen = np.zeros(len(self._people), dtype=bool)
        if before is None or after is None:
            self._alive[:] = False
        else:
            self._refill(before)
            if self._alive.any():
                shift, scale, seen = self._flow(before, after, shift)
        middle = (self._boxes[:, :2] + self._boxes[:, 2:]) / 2 + shift
        half = (self._boxes[:, 2:] - self._boxes[:, :2]) / 2 * scale[:, None]
        self._boxes = np.concatenate([middle - half, middle + half], axis=1)
        # the tracker's velocity is that of now, and smoothed: the first of the flow replaces it
        weight = 0.5 if self._followed else 1.0
        if step_s >= _LEAST_STEP_S:
            self._velocity = np.where(
                seen[:, None], self._velocity + weight * (shift / step_s - self._velocity), self._velocity
            )
        self._followed |= bool(seen.any())
        self._unseen_s = np.where(seen, 0.0, self._unseen_s + step_s)
        self.at = stamp
        self.passed[stamp] = (self._boxes, self._velocity, self._unseen_s)
        if len(self.passed) > LIMIT_FRAMES:
            self.passed.popitem(last=False)

    def _refill(self, grey: _Grey) -> None:
        """New points for whoever has few: corners in the middle of the box, where there is little but the person."""
        few = ~self._hidden & (self._alive.sum(axis=1) < self._config.points // 2)
        margin = self._config.window // 2
        edge_y, edge_x = (side - margin for side in grey.pixels.shape)
        for index in np.flatnonzero(few):
            x1, y1, x2, y2 = (self._boxes[index] * grey.scale).tolist()
            width, height = x2 - x1, y2 - y1
            left, top = max(margin, int(x1 + 0.2 * width)), max(margin, int(y1 + 0.1 * height))
            right, bottom = min(edge_x, int(x2 - 0.2 * width)), min(edge_y, int(y2 - 0.25 * height))
            part = grey.pixels[top : max(top, bottom), left : max(left, right)]
            self._alive[index] = False
            found = cv2.goodFeaturesToTrack(part, self._config.points, 0.01, 3) if min(part.shape) >= 5 else None
            if found is not None:
                corners = found[:, 0] + np.array([left, top], dtype=np.float32)
                self._points[index, : len(corners)] = corners / np.float32(grey.scale)
                self._alive[index, : len(corners)] = True

    def _flow(self, before: _Grey, after: _Grey, guess: Array) -> Tuple[Array, Array, Array]:
        """Shift [n, 2] (px), growth [n], and bool [n] whose points were followed; ``guess`` is the others' shift."""
        config = self._config
        starts = self._points[self._alive] * np.float32(before.scale)
        follow = functools.partial(
            cv2.calcOpticalFlowPyrLK, winSize=(config.window, config.window), maxLevel=config.levels
        )
        ends, there, _ = follow(before.pixels, after.pixels, starts[:, None], None)
        # and back again: whoever does not return has been hidden, or followed something else
        back, again, _ = follow(after.pixels, before.pixels, ends, None)
        returned = np.abs(back[:, 0] - starts).max(axis=1) < config.back_px
        # a point whose neighbourhood is cut by the border is held back there
        margin = config.window // 2
        far = np.array(after.pixels.shape[::-1]) - margin
        within = ((ends[:, 0] >= margin) & (ends[:, 0] < far)).all(axis=1)
        now, good = self._points.copy(), self._alive.copy()
        now[self._alive] = ends[:, 0] / np.float32(after.scale)
        good[self._alive] = (there[:, 0] == 1) & (again[:, 0] == 1) & returned & within
        offset = now - self._points
        height = self._boxes[:, 3] - self._boxes[:, 1]
        allowed = np.maximum(1.0, config.agree * height)
        good &= np.abs(offset - masked_median(offset, good)[:, None]).max(axis=2) <= allowed[:, None]
        seen = good.sum(axis=1) >= config.least
        good &= seen[:, None]
        shift = np.where(seen[:, None], masked_median(offset, good), guess)
        scale = _growth(self._points, now, good, 0.1 * height)
        self._points, self._alive = now, good
        return shift, scale, seen

    def people_at(self, stamp: int, size: Optional[Tuple[int, int]]) -> List[TrackedPerson]:
        """Everyone who is still there in a frame passed, of an image ``size`` (width, height)."""
        boxes, velocities, unseen_s = self.passed[stamp]
        passed_s = (stamp - self.source) / 1e9
        there = []
        for person, start, box, velocity, without_s in zip(self._people, self._start, boxes, velocities, unseen_s):
            if without_s > self._config.lost_s or (size is not None and not _inside(box, size)):
                continue
            keypoints = person.keypoints.copy()
            growth = (box[2:] - box[:2]) / np.maximum(start[2:] - start[:2], 1e-6)
            keypoints[:, :2] = box[:2] + (keypoints[:, :2] - start[:2]) * growth
            there.append(
                replace(
                    person,
                    box=box.astype(np.float32),
                    keypoints=keypoints.astype(np.float32),
                    velocity=velocity.astype(np.float32),
                    age_s=person.age_s + passed_s,
                    missed_s=person.missed_s + passed_s,
                    coasting=bool(without_s > 0),
                    position=None,
                )
            )
        return there


def masked_median(values: Array, mask: Array) -> Array:
    """Median of ``values`` [n, p, d] over p where ``mask`` [n, p] holds: [n, d]; 0 where there is nothing."""
    count = mask.sum(axis=1)
    ordered = np.sort(np.where(mask[:, :, None], values, np.inf), axis=1)
    rows = np.arange(len(values))
    low = ordered[rows, np.maximum(count - 1, 0) // 2]
    high = ordered[rows, np.minimum(count // 2, mask.shape[1] - 1)]
    middle: Array = np.where(count[:, None] > 0, (low + high) / 2, 0.0)
    return middle


def _growth(before: Array, now: Array, good: Array, least: Array) -> Array:
    """By how much each person grows [n]: the median of how far the points are from their middle, now by before.

    Points [n, p, 2] nearer to it than ``least`` [n] (px) say nothing; with fewer than six others nobody grows. At most
    by a twentieth from frame to frame.
    """
    near = np.linalg.norm(before - masked_median(before, good)[:, None], axis=2)
    far = np.linalg.norm(now - masked_median(now, good)[:, None], axis=2)
    telling = good & (near > least[:, None])
    ratio = far / np.maximum(near, 1e-6)
    scale = np.where(telling.sum(axis=1) >= 6, masked_median(ratio[:, :, None], telling)[:, 0], 1.0)
    return np.clip(scale, 0.95, 1.05)


def _grey(bgr: Array, side: int) -> _Grey:
    if bgr.ndim != 3 or bgr.shape[2] != 3 or bgr.dtype != np.uint8 or not bgr.size:
        raise BadInput(f"a picture of shape {bgr.shape} and {bgr.dtype}", remedy="give uint8 [h, w, 3]")
    height, width = bgr.shape[:2]
    scale = min(1.0, side / max(height, width))
    pixels = cv2.cvtColor(bgr, cv2.COLOR_BGR2GRAY)
    if scale < 1:
        smaller = (max(1, round(width * scale)), max(1, round(height * scale)))
        pixels = cv2.resize(pixels, smaller, interpolation=cv2.INTER_AREA)
    return _Grey(pixels, scale, (width, height))


def _inside(box: Array, size: Tuple[int, int]) -> bool:
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    return bool(0 <= x <= size[0] and 0 <= y <= size[1])
