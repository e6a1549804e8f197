"""Labels from a teacher: another network finds the people in a video, its finds become what KAPAO is trained on."""

from __future__ import annotations

import hashlib
import pathlib
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from edge_offload.arrays import Array
from edge_offload.cache import cache_dir, write_atomic
from edge_offload.errors import BadInput
from edge_offload.models.base import PersonEstimator
from edge_offload.models.people import People
from edge_offload.models.video import read_frames

TEACHERS: Dict[str, Dict[str, Union[int, float]]] = {"movenet": {"size": 768, "people": 20, "score": 0.2}}
"""Networks that can teach, with their options: uncapped, at the size of the video, so that few people are missed."""

VISIBLE = 0.25
"""Least score of a teacher's keypoint to be labelled."""

LONGEST_GAP = 9
"""A person whom the teacher loses for at most this many frames was there all the while."""

MIN_OVERLAP = 0.3
"""Least intersection over union of a find with where a person is expected, to be the same person."""

Finds = Dict[int, People]


def label_video(
    video: pathlib.Path,
    teacher: PersonEstimator,
    options: Mapping[str, object],
    frames: Sequence[int],
    report: Optional[Callable[[int, int], None]] = None,
) -> Finds:
    """People that ``teacher`` finds in ``frames`` of ``video``, by frame number.

    Finds are kept in the cache under a key of the video's bytes, the teacher's weights and ``options``, and only
    frames that are not there yet are looked at.

    Args:
        video: its file.
        teacher: the network that labels.
        options: of the teacher, which its finds depend on.
        frames: numbers of frames.
        report: called with the number of frames done and to do.

    Raises:
        BadInput: the video cannot be read or is too short.
    """
    from edge_offload.models.registry import state_hash

    facts = f"{_file_hash(video)}\n{state_hash(teacher.module)}\n{sorted(options.items())}"
    path = cache_dir() / "teacher" / f"{hashlib.sha256(facts.encode()).hexdigest()[:32]}.safetensors"
    labelled = _read_finds(path)
    missing = [number for number in frames if number not in labelled]
    for start in range(0, len(missing), 100):
        # in portions: neither the frames of a long video nor an hour's work are held only in memory
        portion = missing[start : start + 100]
        images = read_frames(video, portion)
        labelled.update({number: teacher.infer(images[number]) for number in portion})
        _write_finds(path, labelled)
        if report is not None:
            report(start + len(portion), len(missing))
    return {number: labelled[number] for number in frames}


def bridge_gaps(finds: Finds, longest: int = LONGEST_GAP) -> Finds:
    """``finds`` with people added, by interpolation, where the teacher lost them for at most ``longest`` frames.

    People are joined from frame to frame by overlap with where they are expected; frames must be consecutive for a
    gap to mean anything, so numbers that are missing count as frames without anybody.
    """
    tracks = _link_tracks(finds, longest)
    added: Dict[int, List[Tuple[Array, float, Array]]] = {}
    for track in tracks:
        for (first, a), (last, b) in zip(track, track[1:]):
            for number in range(first + 1, last):
                if number not in finds:
                    continue
                share = (number - first) / (last - first)
                keypoints = (1 - share) * a.keypoints[0] + share * b.keypoints[0]
                keypoints[:, 2] = np.minimum(a.keypoints[0, :, 2], b.keypoints[0, :, 2])
                box = (1 - share) * a.boxes[0] + share * b.boxes[0]
                added.setdefault(number, []).append((box, float(min(a.scores[0], b.scores[0])), keypoints))
    bridged = dict(finds)
    for number, people in added.items():
        old = finds[number]
        bridged[number] = People(
            np.concatenate([old.boxes, [box for box, _, _ in people]]),
            np.concatenate([old.scores, [score for _, score, _ in people]]),
            np.concatenate([old.keypoints, [keypoints for _, _, keypoints in people]]),
        )
    return bridged


Track = List[Tuple[int, People]]


def _link_tracks(finds: Finds, longest: int) -> List[Track]:
    from scipy.optimize import linear_sum_assignment

    tracks: List[Track] = []
    for number in sorted(finds):
        people = finds[number]
        live = [track for track in tracks if number - track[-1][0] <= longest + 1]
        free = set(range(len(people)))
        if live and len(people):
            expected = np.stack([_expected_box(track, number) for track in live])
            overlaps = iou(expected, people.boxes)
            for which, index in zip(*linear_sum_assignment(-overlaps)):
                if overlaps[which, index] > MIN_OVERLAP:
                    live[which].append((number, people.select(np.array([index]))))
                    free.discard(int(index))
        tracks += [[(number, people.select(np.array([index])))] for index in sorted(free)]
    return tracks


def _expected_box(track: Track, number: int, memory: int = 6) -> Array:
    """Box in frame ``number`` if the person goes on as in the last ``memory`` finds."""
    last, people = track[-1]
    box: Array = people.boxes[0]
    if len(track) < memory:
        return box
    earlier, before = track[-memory]
    velocity = (box - before.boxes[0]) / (last - earlier)
    moved: Array = box + np.tile((velocity[:2] + velocity[2:]) / 2, 2) * (number - last)
    return moved


def iou(first: Array, second: Array) -> Array:
    """Intersection over union of boxes x1 y1 x2 y2: [n, 4] and [m, 4] to [n, m]."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = (high - low).clip(0).prod(2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).clip(0).prod(1) for boxes in (first, second)]
    ratios: Array = shared / (areas[0][:, None] + areas[1][None] - shared).clip(1e-9)
    return ratios


def _file_hash(path: pathlib.Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            for block in iter(lambda: stream.read(1 << 20), b""):
                digest.update(block)
    except OSError as error:
        raise BadInput(f"cannot read video {path}: {error.strerror}") from error
    return digest.hexdigest()


def _write_finds(path: pathlib.Path, finds: Finds) -> None:
    from safetensors.numpy import save

    numbers = sorted(finds)
    tensors = {
        "frames": np.array(numbers, dtype=np.int64),
        "counts": np.array([len(finds[number]) for number in numbers], dtype=np.int64),
        "boxes": np.concatenate([finds[number].boxes for number in numbers]),
        "scores": np.concatenate([finds[number].scores for number in numbers]),
        "keypoints": np.concatenate([finds[number].keypoints for number in numbers]),
    }
    write_atomic(path, save({name: np.ascontiguousarray(array) for name, array in tensors.items()}))


def _read_finds(path: pathlib.Path) -> Finds:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if not path.exists():
        return {}
    try:
        tensors = load_file(str(path))
        ends = np.cumsum(tensors["counts"])
        return {
            int(number): People(*(tensors[name][end - count : end] for name in ("boxes", "scores", "keypoints")))
            for number, count, end in zip(tensors["frames"], tensors["counts"], ends)
        }
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise BadInput(f"the teacher's labels {path} are damaged: {error}", remedy="remove the file") from error


def samples_of(finds: Finds) -> List[Tuple[Array, Array]]:
    """Boxes [n, 4] and keypoints [n, 17, 3] (third: 2 if labelled, else 0) per frame, in order of the numbers."""
    labelled = []
    for number in sorted(finds):
        keypoints = finds[number].keypoints.copy()
        keypoints[..., 2] = 2 * (keypoints[..., 2] >= VISIBLE)
        labelled.append((finds[number].boxes, keypoints))
    return labelled
