"""Propagation of people by sparse optical flow inside each box, frame by frame (OpenCV's pyramidal Lucas-Kanade)."""

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
from edge_offload.perception.carry.ring import LIMIT_BYTES, LIMIT_FRAMES, FrameRing
from edge_offload.perception.tracking import TrackedPerson


@dataclass(frozen=True)
class FlowConfig:
    """Parameters of the flow.

    Attributes:
        points: most points tracked in a box.
        least: points that must agree; with fewer the person moves at the last velocity.
        agree: share of the box's height (at least 1 px) by which a point may depart from the median.
        back_px: largest error of tracking a point forward and backward, px.
        side: long side of the images on which flow is computed, px; larger ones are scaled down.
        window: side of a point's neighbourhood, px.
        levels: number of levels of the pyramid above the image.
        hops: most frames that a catch-up visits; others are skipped.
        lost_s: seconds without flow until a person is removed.
        limit_bytes: limit of the stored images.
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
    """Grey image uint8 [h, w] for the flow; its ``scale`` to the original, whose width and height are ``size``."""

    pixels: Array
    scale: float
    size: Tuple[int, int]


class FlowCarrier:
    """Carrier of people: ``add_frame`` stores each frame, ``carry`` moves people to a later one. Not thread-safe.

    People who leave the image are removed. A person without flow, or ``coasting`` in the network's result, moves at
    the last velocity, is ``coasting``, and is removed after ``lost_s``. Ids, scores and labels do not change.

    A later call for the same result continues from the frame that an earlier call reached.

    Attributes:
        degraded: reason why the last result was carried without flow, or not at all; empty: neither.
        hops: number of flow computations between two images so far.
    """

    def __init__(self, config: Optional[FlowConfig] = None) -> None:
        self.config = config or FlowConfig()
        self.degraded = ""
        self.hops = 0
        self._ring: FrameRing[_Grey] = FrameRing(self.config.limit_bytes)
        self._size: Optional[Tuple[int, int]] = None
        self._first = 0
        self._paths: List[Tuple[Sequence[TrackedPerson], _FlowPath]] = []

    def add_frame(self, stamp: int, bgr: Array) -> bool:
        """Store a frame.

        Args:
            stamp: ns, of the frame or on a timeline. A stamp that goes back removes all earlier frames, as another
                size does.
            bgr: uint8 [h, w, 3].

        Returns:
            Whether earlier frames are still stored.

        Raises:
            BadInput: not a colour image.
        """
        grey = _to_grey(bgr, self.config.side)
        changed = self._size is not None and grey.size != self._size
        if changed:
            self._ring.clear()
        self._size = grey.size
        follows = self._ring.put(stamp, grey, grey.pixels.nbytes) and not changed
        if not follows or len(self._ring) == 1:
            self._paths, self._first = [], stamp
        return follows

    def clear_frames(self) -> None:
        """Remove all frames, because the images have restarted."""
        self._ring.clear()
        self._paths = []

    def carry(self, result: Sequence[TrackedPerson], source: int, target: int) -> List[TrackedPerson]:
        """Return people of frame ``source`` moved to frame ``target`` (stamps, ns), as a new list.

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
        return self._find_path(result, source, target).people_at(target, self._size)

    def steps(self, result: Sequence[TrackedPerson], source: int, target: int) -> Iterator[None]:
        """Do the work of :meth:`carry`, one frame per step."""
        if not self._first <= source < target:
            return
        path = self._find_path(result, source, target)
        if target in path.states:
            return
        stamps = self._ring.stamps_between(path.stamp, target)
        stride = max(1, math.ceil(len(stamps) / self.config.hops))
        for stamp in stamps[::-1][::stride][::-1]:
            # the path may have advanced, or frames have been removed, between two steps
            if stamp > path.stamp:
                self._advance_path(path, stamp)
                yield
        if path.stamp < target:
            self._advance_path(path, target)
            yield

    def _find_path(self, result: Sequence[TrackedPerson], source: int, target: int) -> _FlowPath:
        candidates = [
            path for carried_result, path in self._paths if carried_result is result and path.source == source
        ]
        # one that visited the frame comes first: another may have skipped it
        path = next((each for each in candidates if target in each.states), None)
        path = path or next((each for each in candidates if each.stamp <= target), None)
        path = path or _FlowPath(result, source, self.config)
        # two others stay: of the previous result, with which a new one is compared, and of the local algorithm's
        others = [each for each in self._paths if each[1] is not path]
        self._paths = [*others[-2:], (result, path)]
        return path

    def _advance_path(self, path: _FlowPath, stamp: int) -> None:
        before, after = self._ring.get(path.stamp), self._ring.get(stamp)
        if before is None or after is None:
            self.degraded = "the frame that the network saw, or this one, is not held any more"
        self.hops += 1
        path.advance_to(before, after, stamp)


class _FlowPath:
    """State of a result that is carried through the frames. Boxes and points are in pixels of the original."""

    def __init__(self, people: Sequence[TrackedPerson], source: int, config: FlowConfig) -> None:
        n = len(people)
        self.source = self.stamp = source
        #: Boxes [n, 4], velocities [n, 2] (px/s) and seconds without flow [n] by stamp.
        self.states: OrderedDict[int, Tuple[Array, Array, Array]] = OrderedDict()
        self._people = list(people)
        self._config = config
        self._boxes = np.array([person.box for person in people], dtype=np.float64).reshape(n, 4)
        self._start = self._boxes
        self._velocity = np.array([person.velocity for person in people], dtype=np.float64).reshape(n, 2)
        self._unseen_s = np.array([person.missed_s for person in people], dtype=np.float64)
        # flow in a hidden person's box belongs to whoever stands in front
        self._hidden = np.array([person.coasting for person in people], dtype=bool)
        self._points = np.zeros((n, config.points, 2), dtype=np.float32)
        self._alive = np.zeros((n, config.points), dtype=bool)
        self._followed = False

    def advance_to(self, before: Optional[_Grey], after: Optional[_Grey], stamp: int) -> None:
        """Advance to frame ``stamp``, by flow if both images are given, else at the last velocity."""
        step_s = (stamp - self.stamp) / 1e9
        shift, scale = self._velocity * step_s, np.ones(len(self._people))
        seen = np.zeros(len(self._people), dtype=bool)
        if before is None or after is None:
            self._alive[:] = False
        else:
            self._refill_points(before)
            if self._alive.any():
                shift, scale, seen = self._track_points(before, after, shift)
        middle = (self._boxes[:, :2] + self._boxes[:, 2:]) / 2 + shift
        half = (self._boxes[:, 2:] - self._boxes[:, :2]) / 2 * scale[:, None]
        self._boxes = np.concatenate([middle - half, middle + half], axis=1)
        # the tracker's velocity is smoothed: the first one of the flow replaces it
        weight = 0.5 if self._followed else 1.0
        if step_s >= 0.004:  # over less time a velocity is noise
            self._velocity = np.where(
                seen[:, None], self._velocity + weight * (shift / step_s - self._velocity), self._velocity
            )
        self._followed |= bool(seen.any())
        self._unseen_s = np.where(seen, 0.0, self._unseen_s + step_s)
        self.stamp = stamp
        self.states[stamp] = (self._boxes, self._velocity, self._unseen_s)
        if len(self.states) > LIMIT_FRAMES:
            self.states.popitem(last=False)

    def _refill_points(self, grey: _Grey) -> None:
        """Detect new points for people with few: corners in the middle of the box, with little background."""
        few = ~self._hidden & (self._alive.sum(axis=1) < self._config.points // 2)
        margin = self._config.window // 2
        edge_y, edge_x = (side - margin for side in grey.pixels.shape)
        for index in np.flatnonzero(few):
            x1, y1, x2, y2 = (self._boxes[index] * grey.scale).tolist()
            width, height = x2 - x1, y2 - y1
            x_min, y_min = max(margin, int(x1 + 0.2 * width)), max(margin, int(y1 + 0.1 * height))
            x_max, y_max = min(edge_x, int(x2 - 0.2 * width)), min(edge_y, int(y2 - 0.25 * height))
            part = grey.pixels[y_min : max(y_min, y_max), x_min : max(x_min, x_max)]
            self._alive[index] = False
            features = cv2.goodFeaturesToTrack(part, self._config.points, 0.01, 3) if min(part.shape) >= 5 else None
            if features is not None:
                corners = features[:, 0] + np.array([x_min, y_min], dtype=np.float32)
                self._points[index, : len(corners)] = corners / np.float32(grey.scale)
                self._alive[index, : len(corners)] = True

    def _track_points(self, before: _Grey, after: _Grey, guess: Array) -> Tuple[Array, Array, Array]:
        """Return shift [n, 2] (px), growth [n], and bool [n] whose points were tracked; others shift by ``guess``."""
        config = self._config
        starts = self._points[self._alive] * np.float32(before.scale)
        follow = functools.partial(
            cv2.calcOpticalFlowPyrLK, winSize=(config.window, config.window), maxLevel=config.levels
        )
        ends, forward_status, _ = follow(before.pixels, after.pixels, starts[:, None], None)
        # a point that does not return when tracked backward was hidden, or is a wrong match
        back, backward_status, _ = follow(after.pixels, before.pixels, ends, None)
        returned = np.abs(back[:, 0] - starts).max(axis=1) < config.back_px
        # the flow of a point whose neighbourhood crosses the border is too short
        margin = config.window // 2
        far = np.array(after.pixels.shape[::-1]) - margin
        within = ((ends[:, 0] >= margin) & (ends[:, 0] < far)).all(axis=1)
        now, good = self._points.copy(), self._alive.copy()
        now[self._alive] = ends[:, 0] / np.float32(after.scale)
        good[self._alive] = (forward_status[:, 0] == 1) & (backward_status[:, 0] == 1) & returned & within
        offset = now - self._points
        height = self._boxes[:, 3] - self._boxes[:, 1]
        allowed = np.maximum(1.0, config.agree * height)
        good &= np.abs(offset - masked_median(offset, good)[:, None]).max(axis=2) <= allowed[:, None]
        seen = good.sum(axis=1) >= config.least
        good &= seen[:, None]
        shift = np.where(seen[:, None], masked_median(offset, good), guess)
        scale = _estimate_growth(self._points, now, good, 0.1 * height)
        self._points, self._alive = now, good
        return shift, scale, seen

    def people_at(self, stamp: int, size: Optional[Tuple[int, int]]) -> List[TrackedPerson]:
        """Return the people who remain at a visited frame, within an image of ``size`` (width, height)."""
        boxes, velocities, unseen_s = self.states[stamp]
        elapsed_s = (stamp - self.source) / 1e9
        people = []
        for person, start, box, velocity, without_s in zip(self._people, self._start, boxes, velocities, unseen_s):
            if without_s > self._config.lost_s or (size is not None and not _is_inside(box, size)):
                continue
            keypoints = person.keypoints.copy()
            growth = (box[2:] - box[:2]) / np.maximum(start[2:] - start[:2], 1e-6)
            keypoints[:, :2] = box[:2] + (keypoints[:, :2] - start[:2]) * growth
            people.append(
                replace(
                    person,
                    box=box.astype(np.float32),
                    keypoints=keypoints.astype(np.float32),
                    velocity=velocity.astype(np.float32),
                    age_s=person.age_s + elapsed_s,
                    missed_s=person.missed_s + elapsed_s,
                    coasting=bool(without_s > 0),
                    position=None,
                )
            )
        return people


def masked_median(values: Array, mask: Array) -> Array:
    """Median [n, d] of ``values`` [n, p, d] over p where ``mask`` [n, p] holds; 0 where it holds nowhere."""
    count = mask.sum(axis=1)
    ordered = np.sort(np.where(mask[:, :, None], values, np.inf), axis=1)
    rows = np.arange(len(values))
    low = ordered[rows, np.maximum(count - 1, 0) // 2]
    high = ordered[rows, np.minimum(count // 2, mask.shape[1] - 1)]
    middle: Array = np.where(count[:, None] > 0, (low + high) / 2, 0.0)
    return middle


def _estimate_growth(before: Array, now: Array, good: Array, least: Array) -> Array:
    """Growth factor [n] of each person: the median ratio of the points' distances from their middle.

    Points [n, p, 2] nearer to it than ``least`` [n] (px) are ignored; with fewer than six others the factor is 1. It
    is limited to 0.95 to 1.05 per frame.
    """
    near = np.linalg.norm(before - masked_median(before, good)[:, None], axis=2)
    far = np.linalg.norm(now - masked_median(now, good)[:, None], axis=2)
    telling = good & (near > least[:, None])
    ratio = far / np.maximum(near, 1e-6)
    scale = np.where(telling.sum(axis=1) >= 6, masked_median(ratio[:, :, None], telling)[:, 0], 1.0)
    return np.clip(scale, 0.95, 1.05)


def _to_grey(bgr: Array, side: int) -> _Grey:
    if bgr.ndim != 3 or bgr.shape[2] != 3 or bgr.dtype != np.uint8 or not bgr.size:
        raise BadInput(f"a picture of shape {bgr.shape} and {bgr.dtype}", remedy="give uint8 [h, w, 3]")
    height, width = bgr.shape[:2]
    scale = min(1.0, side / max(height, width))
    pixels = cv2.cvtColor(bgr, cv2.COLOR_BGR2GRAY)
    if scale < 1:
        smaller = (max(1, round(width * scale)), max(1, round(height * scale)))
        pixels = cv2.resize(pixels, smaller, interpolation=cv2.INTER_AREA)
    return _Grey(pixels, scale, (width, height))


def _is_inside(box: Array, size: Tuple[int, int]) -> bool:
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    return bool(0 <= x <= size[0] and 0 <= y <= size[1])
