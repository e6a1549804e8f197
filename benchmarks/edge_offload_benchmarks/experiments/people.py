"""How well networks find people: recall, precision and average precision against labels, beside plain baselines.

  edge-offload bench people --model kapao_vtest                            on the sample video, its validation frames
  edge-offload bench people --model kapao_n --option checkpoint=RUN/weights.safetensors --option size=512
  edge-offload bench people --video F --frames 600:900 --labels L.json --tune 0:550 --model movenet

Two references: the teacher's finds in every frame of --frames (MoveNet at 768 pixels, uncapped; boxes and keypoints),
and the people of --labels, by hand (boxes; partly hidden people are don't-cares). Three finders: --model, MoveNet at
its defaults, and background subtraction (MOG2 of OpenCV, fed with the video from its start; blobs as boxes). The score
from which a find of --model counts, and the smallest blob that counts, are those with the best F1 against the teacher
on --tune frames, which must be apart from --frames. A find is right when it overlaps a labelled person by an
intersection over union of 0.5. Intervals are 95 %, by bootstrap over ten runs of consecutive frames.

Where the labels say who is who, people are followed too: the tracker with its defaults sees each network's finds in
all of --frames and is scored on the labelled ones (MOTA, identity switches, fragmentation: Bernardin and Stiefelhagen,
2008).
"""

from __future__ import annotations

import argparse
import json
import pathlib
from typing import TYPE_CHECKING, Any, Dict, List, Sequence, Tuple

from edge_offload import subcommands
from edge_offload.arrays import Array
from edge_offload.outputs import add_output
from edge_offload_training.targets.kapao import frame_range, label

if TYPE_CHECKING:
    from edge_offload.models.people import People
    from edge_offload_training.evaluation import Truth

LABELS = pathlib.Path(__file__).parents[1] / "data" / "vtest_people.json"
TUNED = 60
"""Frames of --tune that thresholds are chosen on."""

BLOCKS = 10
LOWEST = 0.01
"""Least score asked of --model, so that its average precision sees the weak finds."""

BLOB_AREAS = (50, 100, 150, 200, 300, 400, 600, 800, 1000, 1300, 1600, 2000)
"""Smallest blobs tried, pixels."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--model", default="kapao_vtest", help="the network in question (kapao_vtest)")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the model")
    parser.add_argument("--video", type=pathlib.Path, metavar="FILE", help="default: the sample video")
    parser.add_argument(
        "--frames", type=frame_range, default=range(601, 795), metavar="A:B", help="frames to judge on (601:795)"
    )
    parser.add_argument(
        "--tune", type=frame_range, default=range(0, 550), metavar="A:B", help="frames for thresholds (0:550)"
    )
    parser.add_argument("--labels", type=pathlib.Path, metavar="JSON", help="people by hand (default: sample video's)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="processor threads (1)")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the record people_bench here")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    import torch

    from edge_offload import records
    from edge_offload.errors import BadInput
    from edge_offload.models.movenet.estimator import DEFAULTS as MOVENET
    from edge_offload.models.video import Video, sample_video
    from edge_offload_benchmarks.people_tracking import read_identities, tracking_figures
    from edge_offload_training import evaluation
    from edge_offload_training.kapao import distil, recipe

    options = subcommands.options(args.option)
    if set(args.frames) & set(args.tune):
        raise BadInput("--tune holds frames of --frames", remedy="keep them apart")
    torch.set_num_threads(max(1, args.threads))
    video = args.video or sample_video()
    by_hand = {
        number: truth
        for number, truth in read_labels(args.labels or LABELS).items()
        if number in args.frames and (args.labels or not args.video)
    }
    tune = recipe.spread(args.tune, TUNED)
    seen = label(video, "movenet", sorted({*tune, *args.frames}))
    teacher = {number: evaluation.truth_of(people, distil.VISIBLE) for number, people in seen.items()}
    numbers = list(args.frames)
    finders: List[Tuple[str, List[People], float]] = [
        _find_people(args.model, options, video, numbers, tune, teacher),
        ("movenet", _infer_frames("movenet", {"score": LOWEST}, video, numbers), float(MOVENET["score"])),
        _find_blobs(video, numbers, tune, teacher),
    ]
    rows = []
    for name, finds, score in finders:
        for reference, truths in (("teacher", teacher), ("hand", by_hand)):
            chosen = [index for index, number in enumerate(numbers) if number in truths]
            if chosen:
                figures = evaluation.figures(
                    [finds[index] for index in chosen],
                    [truths[numbers[index]] for index in chosen],
                    score,
                    BLOCKS,
                    with_keypoints=reference == "teacher" and name != "background",
                )
                rows.append({"finder": name, "reference": reference, **figures})
    identities = {} if not by_hand else read_identities(args.labels or LABELS)
    identities = {number: ids for number, ids in identities.items() if number in by_hand}
    tracking = [
        {"finder": name, **tracking_figures(scored, numbers, by_hand, identities, score, Video(video).fps)}
        for name, scored, score in finders
        if identities and name != "background"
    ]
    record = {
        "model": args.model,
        "options": options,
        "video": video.name,
        "frames": [args.frames.start, args.frames.stop],
        "tune": [args.tune.start, args.tune.stop],
        "rows": rows,
        "tracking": tracking,
    }
    for row in rows:
        print(_format_row(row))
    for row in tracking:
        print(_tracking_line(row))
    if args.json:
        records.write(args.json, "people_bench", record)
    return 0


def read_labels(path: pathlib.Path) -> Dict[int, Truth]:
    """People by frame number from a file such as the one that comes with edge_offload.

    Raises:
        BadInput: the file is missing or is not what it should be.
    """
    import numpy as np

    from edge_offload.errors import BadInput
    from edge_offload_training.evaluation import Truth

    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return {
            int(frame["frame"]): Truth(
                np.array([person["box"] for person in frame["people"]], dtype=float).reshape(-1, 4),
                np.array([bool(person["partial"]) for person in frame["people"]], dtype=bool),
                np.zeros((len(frame["people"]), 17, 3)),
            )
            for frame in document["frames"]
        }
    except OSError as error:
        raise BadInput(f"cannot read labels {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"labels {path} are not as expected: {error}", remedy=f"write them like {LABELS.name}"
        ) from error


def _find_people(
    name: str,
    options: Dict[str, Any],
    video: pathlib.Path,
    numbers: Sequence[int],
    tune: Sequence[int],
    teacher: Dict[int, Truth],
) -> Tuple[str, List[People], float]:
    """The finds of a network down to a low score, and the score that is best on ``tune``."""
    from edge_offload.models.registry import entries
    from edge_offload_training import evaluation

    accepted = entries()[name].options if name in entries() else {}
    chosen = {**{key: LOWEST for key in ("conf", "score") if key in accepted}, **options}
    matched = evaluation.match(_infer_frames(name, chosen, video, tune), [teacher[number] for number in tune])
    return name, _infer_frames(name, chosen, video, numbers), evaluation.best_threshold(matched)


def _infer_frames(name: str, options: Dict[str, Any], video: pathlib.Path, numbers: Sequence[int]) -> List[People]:
    from edge_offload.models.registry import build_estimator
    from edge_offload.models.video import read_frames

    estimator = build_estimator(name, **options)
    frames = read_frames(video, numbers)
    return [estimator.infer(frames[number]) for number in numbers]


def _find_blobs(
    video: pathlib.Path, numbers: Sequence[int], tune: Sequence[int], teacher: Dict[int, Truth]
) -> Tuple[str, List[People], float]:
    """Blobs of MOG2, which has watched the video from its start; their score grows with their area.

    Nothing is found in the first frame. Returns also the score of the smallest blob that counts.
    """
    import cv2
    import numpy as np

    from edge_offload.models.video import Video
    from edge_offload_training import evaluation

    subtractor = cv2.createBackgroundSubtractorMOG2(history=500, varThreshold=16, detectShadows=True)
    people: Dict[int, People] = {}
    for number, (_, frame) in enumerate(Video(video).frames(max(*numbers, *tune) + 1)):
        mask = subtractor.apply(frame)
        if number in teacher:
            people[number] = extract_blobs((mask == 255).astype(np.uint8))
    matched = evaluation.match([people[number] for number in tune], [teacher[number] for number in tune])
    areas = [(evaluation.at_threshold(matched, area_score(area))[2], area) for area in BLOB_AREAS]
    return "background", [people[number] for number in numbers], area_score(max(areas)[1])


def area_score(area: float) -> float:
    """A score that grows with the area of a blob, 0 to 1."""
    return area / (area + 1000.0)


def extract_blobs(mask: Array) -> People:
    """Connected parts of a mask (uint8, above 0: foreground) as people without keypoints: holes closed, specks dropped.

    Scores grow with the area.
    """
    import cv2
    import numpy as np

    from edge_offload.models.people import People

    mask = cv2.morphologyEx(mask, cv2.MORPH_OPEN, np.ones((3, 3), np.uint8))
    mask = cv2.morphologyEx(mask, cv2.MORPH_CLOSE, np.ones((15, 7), np.uint8))
    _, _, stats, _ = cv2.connectedComponentsWithStats(mask)
    parts = stats[1:].astype(np.float32)
    parts = parts[parts[:, 4] >= BLOB_AREAS[0]]
    boxes = np.concatenate([parts[:, :2], parts[:, :2] + parts[:, 2:4]], axis=1)
    scores = np.array([area_score(area) for area in parts[:, 4]], dtype=np.float32)
    return People(boxes, scores, np.zeros((len(parts), 17, 3)))


def _format_row(row: Dict[str, Any]) -> str:
    def format_percent(key: str) -> str:
        low, high = row[f"{key}_interval"]
        return f"{row[key]:.3f} [{low:.3f}, {high:.3f}]"

    keypoints = f"  keypoint AP {row['keypoint_ap']:.3f}" if "keypoint_ap" in row else ""
    return (
        f"{row['finder']:<12} against {row['reference']:<8} ({row['people']} people, {row['frames']} frames): "
        f"recall {format_percent('recall')}  precision {format_percent('precision')}  F1 {format_percent('f1')}  "
        f"box AP50 {format_percent('box_ap50')}  AP {row['box_ap']:.3f}{keypoints}"
    )


def _tracking_line(row: Dict[str, Any]) -> str:
    return (
        f"{row['finder']:<12} followed ({row['identities']} people, {row['frames']} frames): MOTA {row['mota']:.3f}  "
        f"IDF1 {row['idf1']:.3f}  switches {row['switches']}  fragmentations {row['fragmentations']}  "
        f"misses {row['misses']}  false {row['false_positives']} of {row['people']}"
    )
