"""Multi-person tracking: from detections to people with stable ids.

A Kalman filter predicts each tracked box. Detections are assigned to predictions by overlap, distance and pose
(Hungarian method): confident ones first, weak ones only to people seen in the last frame (the two stages of ByteTrack).
Times are those of the frames, which may be irregular. :class:`edge_offload.perception.timeline.Timeline` corrects
faulty stamps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import List, Optional, Sequence, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.models.people import People
from edge_offload.perception.assignment import assign_pairs, iou_matrix
from edge_offload.perception.geometry import Position
from edge_offload.perception.kalman import BoxFilter
from edge_offload.perception.timeline import BACK_S


@dataclass(frozen=True)
class TrackerConfig:
    """Parameters of the tracker.

    Attributes:
        high_score: detections at or above this may start a track.
        low_score: detections below this are ignored; those in between only continue tracks.
        min_hits: detections needed before a person is reported (1 in the first frame).
        max_lost_s: the track of a person not seen for longer is removed; a new id follows when they return.
        coast_s: a person not seen for up to this long is still reported, at the predicted place, as ``coasting``.
        keypoint_score: keypoints below this are ignored when poses are compared.
        duplicate_iou: a detection that overlaps a tracked person's by this much starts no track.
        back_step_s: stamps that go back by more than this show a restarted recording: all tracks are removed.
        max_tracks: most tracks at a time.
    """

    high_score: float = 0.25
    low_score: float = 0.1
    min_hits: int = 2
    max_lost_s: float = 2.0
    coast_s: float = 0.6
    keypoint_score: float = 0.2
    duplicate_iou: float = 0.6
    back_step_s: float = BACK_S
    max_tracks: int = 100

    def __post_init__(self) -> None:
        if not 0 <= self.low_score <= self.high_score <= 1:
            raise BadInput(f"tracker: scores must be 0 <= low ({self.low_score}) <= high ({self.high_score}) <= 1")
        if self.min_hits < 1 or self.max_tracks < 1:
            raise BadInput("tracker: min_hits and max_tracks must be at least 1")
        if not 0 <= self.coast_s <= self.max_lost_s:
            raise BadInput(f"tracker: coast_s ({self.coast_s}) must be from 0 to max_lost_s ({self.max_lost_s})")


@dataclass(frozen=True, eq=False)
class TrackedPerson:
    """One person in one frame.

    Attributes:
        id: positive, never reused by a tracker.
        box: float32 [4], x1 y1 x2 y2 px: as detected, or as predicted when ``coasting``.
        score: of the newest detection.
        keypoints: float32 [17, 3] (x px, y px, score): as detected, or moved with the prediction.
        velocity: float32 [2], px/s of the box centre.
        age_s: seconds since first seen.
        missed_s: seconds since last seen; 0 when seen in this frame.
        coasting: not seen in this frame.
        position: position in space; None: unknown.
    """

    id: int
    box: Array
    score: float
    keypoints: Array
    velocity: Array
    age_s: float
    missed_s: float
    coasting: bool
    position: Optional[Position] = None

    @property
    def height(self) -> float:
        """Height of the box, px."""
        return float(self.box[3] - self.box[1])

    def with_position(self, position: Optional[Position]) -> TrackedPerson:
        """Return a copy with ``position``."""
        return replace(self, position=position)


def match_people(detected: People, tracked: Sequence[TrackedPerson]) -> List[TrackedPerson]:
    """Return the tracked people that another network detected in the same frame, updated by it, in order of id.

    Detections of others are dropped, because only a tracker assigns ids; so are tracked people without a detection.
    """
    if not len(detected) or not tracked:
        return []
    overlap = iou_matrix(detected.boxes, np.stack([person.box for person in tracked]))
    pairs, _, _ = assign_pairs(1 - overlap, 0.7)  # from an overlap of 0.3 on it is the same person
    people = [
        replace(
            tracked[j],
            box=detected.boxes[i].astype(np.float32),
            score=float(detected.scores[i]),
            keypoints=detected.keypoints[i].astype(np.float32),
            missed_s=0.0,
            coasting=False,
            position=None,
        )
        for i, j in pairs
    ]
    return sorted(people, key=lambda person: person.id)


class _Track:
    """State of one person between frames."""

    def __init__(self, box: Array, score: float, keypoints: Array, stamp_s: float, frame: int) -> None:
        self.id = 0
        self.filter = BoxFilter(box)
        self.box = box
        self.score = score
        self.keypoints = keypoints
        self.first_s = self.seen_s = stamp_s
        self.frame = frame
        self.hits = 1

    def add_detection(self, box: Array, score: float, keypoints: Array, stamp_s: float, frame: int) -> None:
        self.filter.update(box)
        self.box, self.score, self.keypoints = box, score, keypoints
        self.seen_s = stamp_s
        self.frame = frame
        self.hits += 1

    def moved_keypoints(self) -> Array:
        """Keypoints of the newest detection, moved with the predicted box."""
        box = self.filter.box
        shift = (box[:2] + box[2:] - self.box[:2] - self.box[2:]) / 2
        moved = self.keypoints.copy()
        moved[:, :2] += shift
        return moved

    def to_person(self, stamp_s: float, frame: int) -> TrackedPerson:
        coasting = self.frame < frame
        return TrackedPerson(
            id=self.id,
            box=self.filter.box if coasting else self.box.copy(),
            score=float(self.score),
            keypoints=self.moved_keypoints() if coasting else self.keypoints.copy(),
            velocity=self.filter.rate[:2].astype(np.float32),
            age_s=max(0.0, stamp_s - self.first_s),
            missed_s=max(0.0, stamp_s - self.seen_s),
            coasting=coasting,
        )


class Tracker:
    """Tracker of people in a stream of detections. Deterministic: equal frames give equal ids."""

    def __init__(self, config: Optional[TrackerConfig] = None) -> None:
        self.config = config or TrackerConfig()
        self._tracks: List[_Track] = []
        self._next_id = 1
        self._stamp_s: Optional[float] = None
        self._frame = 0

    def reset(self) -> None:
        """Remove all tracks. Ids continue, so that no id means two people."""
        self._tracks = []
        self._stamp_s = None

    def update(
        self,
        people: People,
        stamp_s: float,
        image_size: Optional[Tuple[int, int]] = None,
        carried: Sequence[TrackedPerson] = (),
    ) -> List[TrackedPerson]:
        """Update the tracks with the detections of one frame.

        Args:
            people: the detections; boxes without area are ignored.
            stamp_s: the frame's stamp, seconds.
            image_size: width and height, px; tracks that leave the image are then removed at once.
            carried: people of the last update, carried to this frame. They improve the prediction, and do not count
                as detections.

        Returns:
            The reported people, in order of id.

        Raises:
            BadInput: the stamp is not finite.
        """
        if not math.isfinite(stamp_s):
            raise BadInput(f"tracker: frame stamp is {stamp_s}")
        first = self._predict_tracks(stamp_s, carried, image_size)
        sides = people.boxes[:, 2:] - people.boxes[:, :2]
        usable = (sides > 0).all(axis=1) & (people.scores >= self.config.low_score)
        people = people.select(np.flatnonzero(usable))
        strong = np.flatnonzero(people.scores >= self.config.high_score)
        weak = np.flatnonzero(people.scores < self.config.high_score)

        confirmed = [track for track in self._tracks if track.id]
        tentative = [track for track in self._tracks if not track.id]
        unseen, unmatched_strong = self._match_tracks(confirmed, people, strong, stamp_s, limit=0.85)
        recent = [track for track in unseen if track.frame == self._frame - 1]
        self._match_tracks(recent, people, weak, stamp_s, limit=0.6)
        dropped, unmatched_strong = self._match_tracks(tentative, people, unmatched_strong, stamp_s, limit=0.7)
        for track in dropped:
            self._tracks.remove(track)
        self._start_tracks(people, unmatched_strong, stamp_s, confirmed=first)
        for track in self._tracks:
            if not track.id and track.hits >= self.config.min_hits:
                self._confirm_track(track)
        self._drop_doubles()
        reported = [t for t in self._tracks if t.id and stamp_s - t.seen_s <= self.config.coast_s]
        return [track.to_person(stamp_s, self._frame) for track in sorted(reported, key=lambda track: track.id)]

    def _predict_tracks(
        self, stamp_s: float, carried: Sequence[TrackedPerson], image_size: Optional[Tuple[int, int]]
    ) -> bool:
        """Predict all tracks to ``stamp_s`` and remove lost ones; return whether this is the first frame."""
        if self._stamp_s is not None and stamp_s < self._stamp_s - self.config.back_step_s:
            self.reset()
        first = self._stamp_s is None
        step_s = 0.0 if self._stamp_s is None else max(0.0, stamp_s - self._stamp_s)
        self._stamp_s = stamp_s
        self._frame += 1
        self._tracks = [t for t in self._tracks if stamp_s - t.seen_s <= self.config.max_lost_s]
        for track in self._tracks:
            track.filter.predict(step_s, hold_size=track.frame < self._frame - 1)
        followed = {person.id: person.box for person in carried if not person.coasting}
        for track in self._tracks:
            if track.id in followed:
                track.filter.update(followed[track.id], 2.0)  # twice a detection's error
        if image_size is not None:
            self._tracks = [track for track in self._tracks if _is_inside(track.filter.mean[:2], image_size)]
        return first

    def _match_tracks(
        self, tracks: Sequence[_Track], people: People, indices: Array, stamp_s: float, limit: float
    ) -> Tuple[List[_Track], Array]:
        """Assign detections ``indices`` to ``tracks`` at costs below ``limit``; return the unmatched of both."""
        cost = self._match_cost(tracks, people.select(indices))
        pairs, unmatched_tracks, unmatched = assign_pairs(cost, limit)
        for row, column in pairs:
            index = indices[column]
            tracks[row].add_detection(
                people.boxes[index], people.scores[index], people.keypoints[index], stamp_s, self._frame
            )
        return [tracks[row] for row in unmatched_tracks], indices[unmatched]

    def _match_cost(self, tracks: Sequence[_Track], people: People) -> Array:
        """Cost [tracks, people] from 0 (equal) to 1, infinite for impossible pairs."""
        cost = np.full((len(tracks), len(people)), math.inf)
        if not cost.size:
            return cost
        overlap = iou_matrix(np.stack([track.filter.box for track in tracks]), people.boxes)
        centres = (people.boxes[:, :2] + people.boxes[:, 2:]) / 2
        heights = people.boxes[:, 3] - people.boxes[:, 1]
        for row, track in enumerate(tracks):
            offset = centres - track.filter.mean[:2]
            spread = np.array(track.filter.centre_spread)
            deviations = np.sqrt(((offset / spread) ** 2).sum(axis=1))
            height = track.filter.mean[3]
            near = (overlap[row] > 0.05) | (np.hypot(offset[:, 0], offset[:, 1]) < 0.6 * height)
            alike = (heights < 2.0 * height) & (heights > 0.5 * height)
            allowed = near & alike & (deviations < _GATE)
            offset_cost = np.minimum(deviations / _GATE, 1.0)
            pose_cost = self._pose_distance(track.moved_keypoints(), people.keypoints, height)
            pose_cost = np.where(np.isnan(pose_cost), 1 - overlap[row], pose_cost)
            cost[row, allowed] = (0.5 * (1 - overlap[row]) + 0.25 * offset_cost + 0.25 * pose_cost)[allowed]
        return cost

    def _pose_distance(self, pose: Array, others: Array, height: float) -> Array:
        """Mean distance [people] of keypoints confident in both, in quarters of ``height``, at most 1; NaN: too few."""
        sure = (pose[None, :, 2] >= self.config.keypoint_score) & (others[:, :, 2] >= self.config.keypoint_score)
        count = sure.sum(axis=1)
        distance = np.hypot(others[:, :, 0] - pose[None, :, 0], others[:, :, 1] - pose[None, :, 1])
        mean = (distance * sure).sum(axis=1) / np.maximum(count, 1)
        return np.where(count >= 4, np.minimum(mean / (0.25 * height), 1.0), math.nan)

    def _start_tracks(self, people: People, indices: Array, stamp_s: float, confirmed: bool) -> None:
        for index in indices:
            if len(self._tracks) >= self.config.max_tracks:
                return
            box = people.boxes[index]
            seen = [track.box for track in self._tracks if track.frame == self._frame]
            if seen and iou_matrix(box, np.stack(seen)).max() >= self.config.duplicate_iou:
                continue
            track = _Track(box, people.scores[index], people.keypoints[index], stamp_s, self._frame)
            self._tracks.append(track)
            if confirmed:
                self._confirm_track(track)

    def _confirm_track(self, track: _Track) -> None:
        track.id = self._next_id
        self._next_id += 1

    def _drop_doubles(self) -> None:
        """Remove unseen tracks that coincide with a seen one, which is the same person."""
        seen = [track for track in self._tracks if track.frame == self._frame]
        if not seen or len(seen) == len(self._tracks):
            return
        boxes = np.stack([track.box for track in seen])
        first_seen_s = np.array([track.first_s for track in seen])
        tracks = []
        for track in self._tracks:
            if track.frame == self._frame:
                tracks.append(track)
                continue
            overlap = iou_matrix(track.filter.box, boxes)[0]
            # the seen track started after this one was last seen, in its place
            same = (overlap > 0.85) & (first_seen_s > track.seen_s)
            if not same.any():
                tracks.append(track)
        self._tracks = tracks


_GATE = 4.0
"""Standard deviations of the centre beyond which a detection does not match a track."""


def _is_inside(centre: Array, image_size: Tuple[int, int]) -> bool:
    return bool(0 <= centre[0] <= image_size[0] and 0 <= centre[1] <= image_size[1])
