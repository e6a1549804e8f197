"""KAPAO: people with keypoints, from a video that another network labels, or from a COCO-keypoints file.

  edge-offload train kapao --video walk.avi --train 0:550 --validate 601:795     a teacher labels the frames
  edge-offload train kapao --coco person_keypoints.json --images DIR --moving-camera

An interrupted run is resumed by the same command. The folder --out holds last.safetensors (the state of the run),
log.csv (a line per epoch) and weights.safetensors (the moving average of the weights, usable after every epoch):

  edge-offload track walk.avi --model kapao_n --option checkpoint=RUN/weights.safetensors --option size=512

At the end the confidence from which a find counts is chosen on training frames and stored with the weights; frames of
--validate are only ever looked at, never trained on. --epochs may be changed on resuming: the learning rate then falls
towards the new end. Frames are numbered from 0, A:B means A to B - 1.
"""

from __future__ import annotations

import argparse
import pathlib
from typing import TYPE_CHECKING, Callable, List, Optional, Sequence, Tuple

from edge_offload.arrays import Array
from edge_offload.outputs import add_output
from edge_offload.subcommands import positive, some

if TYPE_CHECKING:
    from edge_offload_training.evaluation import Matched
    from edge_offload_training.kapao.distil import Finds
    from edge_offload_training.kapao.recipe import Settings
    from edge_offload_training.kapao.samples import Dataset

CHECKED = 60
"""Training frames that the confidence is chosen on."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    data = parser.add_argument_group("data: one of --video and --coco")
    data.add_argument("--video", type=pathlib.Path, metavar="FILE", help="video whose frames a teacher labels")
    data.add_argument("--teacher", default="movenet", help="network that labels (movenet, at 768 pixels, uncapped)")
    data.add_argument(
        "--train", dest="frames", type=frame_range, metavar="A:B", help="frames to train on (default: all)"
    )
    data.add_argument("--validate", type=frame_range, metavar="A:B", help="frames to report on, never trained on")
    data.add_argument("--coco", type=pathlib.Path, metavar="JSON", help="COCO-keypoints file")
    data.add_argument("--images", type=pathlib.Path, metavar="DIR", help="folder of the images that --coco names")
    data.add_argument(
        "--moving-camera", action="store_true", help="the images are not all from one camera that does not move"
    )
    add_output(
        parser, "--out", folder=True, type=pathlib.Path, metavar="DIR", help="folder of the run (default: in the cache)"
    )
    parser.add_argument("--resume", action="store_true", help="fail unless there is a run in --out to go on with")
    parser.add_argument("--epochs", type=some, default=70, metavar="N", help="passes over the data (70)")
    parser.add_argument("--batch", type=some, default=8, metavar="N", help="images per step (8)")
    parser.add_argument("--size", type=some, default=512, metavar="PX", help="long side of the images, pixels (512)")
    parser.add_argument(
        "--window", type=window, default=(256, 384), metavar="HxW", help="what is trained on at a time (256x384)"
    )
    parser.add_argument("--width", type=positive, default=0.25, metavar="F", help="share of KAPAO-l's channels (0.25)")
    parser.add_argument("--depth", type=positive, default=0.33, metavar="F", help="share of KAPAO-l's blocks (0.33)")
    parser.add_argument("--learning-rate", type=positive, default=2e-3, metavar="F", help="its highest value (0.002)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of everything random (0)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="processor threads (default: torch's)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (cpu)")


def frame_range(text: str) -> range:
    """``A:B`` as the frames A to B - 1."""
    first, colon, end = text.partition(":")
    if not colon or not first.isdigit() or not end.isdigit() or int(first) >= int(end):
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B with A < B")
    return range(int(first), int(end))


def window(text: str) -> Tuple[int, int]:
    """``HxW`` as two multiples of 64."""
    height, cross, width = text.partition("x")
    if not cross or not height.isdigit() or not width.isdigit() or int(height) % 64 or int(width) % 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not HxW with both multiples of 64")
    if not int(height) or not int(width):
        raise argparse.ArgumentTypeError("a window has a size")
    return int(height), int(width)


def run(args: argparse.Namespace) -> int:
    """See the module."""
    import time

    import cv2
    import torch

    from edge_offload.cache import cache_dir
    from edge_offload.errors import BadInput
    from edge_offload.execute.threads import pin
    from edge_offload_training import evaluation  # noqa: F401 - what is missing is said before the training
    from edge_offload_training.kapao import recipe

    settings = _settings(args)
    out = args.out or cache_dir() / "training" / f"kapao_{args.width:g}"
    if args.resume and not (out / "last.safetensors").exists():
        raise BadInput(f"there is no run in {out}", remedy="leave out --resume to start one")
    if args.threads:
        pin(args.threads)
        cv2.setNumThreads(args.threads)
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        raise BadInput("no CUDA device here", remedy="use --device cpu")
    dataset, finds = _data(args)
    trainer = recipe.prepare(settings, dataset, out, args.device)
    print(f"{len(dataset)} images, {len(dataset.boxes_wh())} people; epoch {trainer.epoch}/{args.epochs}; {out}")
    show = recipe.progress(args.epochs, trainer.epoch, time.monotonic, lambda line: print(line, flush=True))

    def store(**facts: float) -> None:
        recipe.export(trainer.average, settings, out / recipe.WEIGHTS_FILE, **facts)

    def after_epoch(row: recipe.Row) -> None:
        store()
        show(row)

    trainer.run(after_epoch)
    store()  # a run that had ended already, too
    _finish(args, settings, dataset, finds, out, lambda conf: store(conf=conf))
    return 0


def _settings(args: argparse.Namespace) -> Settings:
    from edge_offload.errors import BadInput
    from edge_offload.models.kapao.network import Scale
    from edge_offload_training.kapao.recipe import Settings

    if (args.video is None) == (args.coco is None) or (args.coco is None) != (args.images is None):
        raise BadInput("nothing to train on", remedy="give --video FILE, or --coco JSON with --images DIR")
    if args.video is None and (args.frames or args.validate):
        raise BadInput("--train and --validate are frames of a --video")
    if args.validate and args.frames is None:
        raise BadInput("--validate without --train", remedy="say which frames to train on: --train A:B")
    if args.validate and set(args.frames) & set(args.validate):
        raise BadInput("--validate holds frames of --train", remedy="keep them apart, best with a gap between them")
    if min(args.epochs, args.batch) < 1 or not 64 <= args.size <= 4096:
        raise BadInput("--epochs and --batch are at least 1, --size is 64 to 4096")
    if not 0 < args.width <= 2 or not 0 < args.depth <= 2 or not 0 < args.learning_rate < 1:
        raise BadInput("--width and --depth are above 0 and up to 2, --learning-rate is between 0 and 1")
    return Settings(
        scale=Scale(args.depth, args.width),
        size=args.size,
        window=args.window,
        epochs=args.epochs,
        batch=args.batch,
        learning_rate=args.learning_rate,
        seed=args.seed,
        fixed_camera=not args.moving_camera,
    )


def _data(args: argparse.Namespace) -> Tuple[Dataset, Optional[Finds]]:
    """The samples, and for a video the teacher's finds in the training frames."""
    from edge_offload.models.video import Video, read_frames
    from edge_offload_training.kapao import distil
    from edge_offload_training.kapao.samples import Dataset, load_coco

    if args.coco is not None:
        return load_coco(args.coco, args.images, args.size), None
    numbers = list(args.frames or range(sum(1 for _ in Video(args.video).frames())))
    finds = label(args.video, args.teacher, numbers)
    frames = read_frames(args.video, numbers)
    bridged = finds if args.moving_camera else distil.bridge_gaps(finds)
    return Dataset([frames[number] for number in numbers], distil.samples_of(bridged), args.size), finds


def label(video: pathlib.Path, teacher: str, numbers: Sequence[int]) -> Finds:
    """Return the finds of ``teacher`` in frames of ``video``, from the cache where possible."""
    from edge_offload.errors import BadInput
    from edge_offload.models.registry import build_estimator
    from edge_offload_training.kapao import distil

    if teacher not in distil.TEACHERS:
        raise BadInput(f"no teacher {teacher!r}", remedy=f"use one of {', '.join(distil.TEACHERS)}")
    options = distil.TEACHERS[teacher]
    return distil.label_video(
        video,
        build_estimator(teacher, **options),
        {"teacher": teacher, **options},
        numbers,
        lambda done, of: print(f"{teacher} has labelled {done} of {of} frames", flush=True),
    )


def _finish(
    args: argparse.Namespace,
    settings: Settings,
    dataset: Dataset,
    finds: Optional[Finds],
    out: pathlib.Path,
    store: Callable[[float], None],
) -> None:
    """Choose the confidence on training frames, store it with the weights, report on the validation frames."""
    import numpy as np

    from edge_offload.models.kapao.estimator import DEFAULTS, KapaoEstimator
    from edge_offload.models.video import read_frames
    from edge_offload_training import evaluation
    from edge_offload_training.kapao import distil, recipe

    options = {**DEFAULTS, "checkpoint": str(out / recipe.WEIGHTS_FILE), "size": settings.size, "conf": 0.01}
    estimator = KapaoEstimator("n", **options)

    def matches(images: Sequence[Array], truths: Sequence[evaluation.Truth]) -> List[Matched]:
        return evaluation.match([estimator.infer(image) for image in images], truths)

    chosen = recipe.spread(range(len(dataset)), CHECKED)
    if finds is None:
        samples = [dataset[index] for index in chosen]
        truths = [evaluation.Truth(s.boxes, np.zeros(len(s.boxes), dtype=bool), s.keypoints) for s in samples]
        matched = matches([sample.image for sample in samples], truths)
    else:
        numbers = [sorted(finds)[index] for index in chosen]
        frames = read_frames(args.video, numbers)
        matched = matches(
            [frames[n] for n in numbers], [evaluation.truth_of(finds[n], distil.VISIBLE) for n in numbers]
        )
    conf = evaluation.best_threshold(matched)
    store(conf)
    print(f"confidence {conf:.2f} (best on {len(matched)} training images); {_line(matched, conf)}")
    if args.validate:
        seen = label(args.video, args.teacher, args.validate)
        frames = read_frames(args.video, args.validate)
        truths = [evaluation.truth_of(seen[n], distil.VISIBLE) for n in args.validate]
        matched = matches([frames[n] for n in args.validate], truths)
        print(f"validation, {len(matched)} frames against {args.teacher}: {_line(matched, conf)}")
    print(out / recipe.WEIGHTS_FILE)


def _line(matched: Sequence[Matched], conf: float) -> str:
    from edge_offload_training.evaluation import at_threshold, average_precision

    recall, precision, _ = at_threshold(matched, conf)
    return f"recall {recall:.3f}, precision {precision:.3f}, box AP50 {average_precision(matched):.3f}"
