"""Results carried along: how good they are some frames later, beside held ones and constant velocity; what that costs.

  edge-offload bench carry --json carry.json
  edge-offload bench carry --only people --video F --frames 600:900 --labels L.json --model movenet

People: every frame of --frames goes through --model and the tracker, and what was tracked is carried 0 to 12 frames on.
A box is right when it overlaps a labelled person by an intersection over union of 0.5; partly hidden people are
don't-cares. Intervals are 95 %, by bootstrap over ten runs of consecutive frames.

Scenes: a sensor drives (1.5 m/s; 0.6 in a room), turns (0.8 rad/s) and stands, at 10 sweeps a second, in streets and
rooms that training never shows, with kinds of objects that occur in no other world; people walk. Completion IoU of the
network's grid of 4 and 8 sweeps ago, held and carried, of the fresh one, and of column fill, which needs no network;
`closed` is the part of the distance between held and fresh that carrying closes.

Cost: processor time in ms of one image or sweep (taking it in, and one step of carrying), and of catching up 8; bytes
in the ring over 10,000 frames.
"""

from __future__ import annotations

import argparse
import pathlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Sequence, Tuple

from edge_offload import subcommands
from edge_offload.arrays import Array
from edge_offload.outputs import add_output
from edge_offload_benchmarks.experiments.people import BLOCKS, LABELS, read_labels
from edge_offload_training.targets.kapao import frame_range

if TYPE_CHECKING:
    from edge_offload.models.people import People
    from edge_offload.models.scenes.lidar import Lidar, SensorPose
    from edge_offload.models.scenes.world import World
    from edge_offload.models.voxels import VoxelGrid
    from edge_offload.perception.tracking import TrackedPerson

FRAMES = (0, 2, 4, 8, 12)
SWEEPS = (4, 8)
BEFORE = 20
"""Frames that the tracker sees before the first of --frames."""

PERIOD_NS = 100_000_000
FIRST_WORLD = 7000
MOTIONS = {"driving": (1.0, 0.0), "turning": (0.3, 0.8), "standing": (0.0, 0.0)}
"""Share of the full speed, and rad/s."""

LONG = 10_000
"""Frames for which the ring has to stay as small."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--only", choices=("people", "scenes", "cost"), help="one part alone")
    parser.add_argument("--model", default="kapao_vtest", help="people's network (kapao_vtest)")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the model")
    parser.add_argument("--video", type=pathlib.Path, metavar="FILE", help="default: the sample video")
    parser.add_argument(
        "--frames", type=frame_range, default=range(601, 795), metavar="A:B", help="frames to judge on (601:795)"
    )
    parser.add_argument("--labels", type=pathlib.Path, metavar="JSON", help="people by hand (default: sample video's)")
    parser.add_argument("--worlds", type=int, default=2, metavar="N", help="streets, and as many rooms (2)")
    parser.add_argument("--first-world", type=int, default=FIRST_WORLD, metavar="N", help=f"its seed ({FIRST_WORLD})")
    parser.add_argument("--cells", type=int, default=64, metavar="N", help="voxels along x and y of a grid (64)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="processor threads (1)")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the record carry_bench here")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    import cv2
    import torch

    from edge_offload import records

    torch.set_num_threads(max(1, args.threads))
    cv2.setNumThreads(max(1, args.threads))
    parts: Dict[str, Callable[[argparse.Namespace], Any]] = {
        "people": _measure_people,
        "scenes": _measure_scenes,
        "cost": _measure_cost,
    }
    record = {name: part(args) for name, part in parts.items() if args.only in (None, name)}
    if args.json:
        records.write(args.json, "carry_bench", record)
    return 0


def _measure_people(args: argparse.Namespace) -> Dict[str, Any]:
    from edge_offload.errors import BadInput
    from edge_offload.models.registry import build_estimator
    from edge_offload.models.video import Video
    from edge_offload.perception.carry.flow import FlowCarrier
    from edge_offload.perception.tracking import Tracker
    from edge_offload_training import evaluation

    labelled = {number: truth for number, truth in read_labels(args.labels or LABELS).items() if number in args.frames}
    if not labelled:
        raise BadInput("no frame of --frames is labelled", remedy="give --frames or --labels others")
    first = max(0, args.frames.start - BEFORE)
    estimator = build_estimator(args.model, **subcommands.options(args.option))
    tracker, flow = Tracker(), FlowCarrier()
    video = Video(args.video)
    results: Dict[int, List[TrackedPerson]] = {}
    carried: Dict[Tuple[str, int], Dict[int, List[TrackedPerson]]] = {}
    for number, (_, bgr) in enumerate(video.frames(args.frames.stop)):
        if number < first:
            continue
        now = round(number / video.fps * 1e9)
        flow.add_frame(now, bgr)
        results[number] = tracker.update(estimator.infer(bgr), now / 1e9, (bgr.shape[1], bgr.shape[0]))
        for late in FRAMES:
            source = number - late
            if number in labelled and source >= args.frames.start:
                result, then = results[source], round(source / video.fps * 1e9)
                carried.setdefault(("held", late), {})[number] = result
                carried.setdefault(("velocity", late), {})[number] = [_extrapolate(p, late / video.fps) for p in result]
                carried.setdefault(("carried", late), {})[number] = flow.carry(result, then, now)
    rows: List[Dict[str, Any]] = []
    for (method, late), frames in carried.items():
        people = [_as_people(frames[number]) for number in frames]
        figures = evaluation.figures(people, [labelled[number] for number in frames], 0.0, BLOCKS, False)
        columns = ("frames", "people", "recall", "precision", "f1", "f1_interval")
        rows.append({"method": method, "late": late, **{name: figures[name] for name in columns}})
    for row in rows:
        low_high = "[{:.3f}, {:.3f}]".format(*row["f1_interval"])
        print(f"people, {row['late']:>2} frames old, {row['method']:<9} F1 {row['f1']:.3f} {low_high}")
    return {
        "model": args.model,
        "video": pathlib.Path(video.path).name,
        "frames": [args.frames.start, args.frames.stop],
        "rows": rows,
    }


def _extrapolate(person: TrackedPerson, seconds: float) -> TrackedPerson:
    import numpy as np

    return replace(person, box=person.box + np.tile(person.velocity * seconds, 2))


def _as_people(people: Sequence[TrackedPerson]) -> People:
    import numpy as np

    from edge_offload.models.people import People

    return People(
        np.array([person.box for person in people]).reshape(-1, 4),
        np.array([person.score for person in people]),
        np.array([person.keypoints for person in people]).reshape(-1, 17, 3),
    )


def _measure_scenes(args: argparse.Namespace) -> Dict[str, Any]:
    import torch

    from edge_offload.models.sconet.baselines import fill_columns
    from edge_offload.models.sconet.completer import SceneCompleter
    from edge_offload.perception.carry.odometry import SceneCarrier
    from edge_offload_training.sconet.metrics import Confusion
    from edge_offload_training.sconet.samples import make_scene_pair

    completer = SceneCompleter()
    counts: Dict[Tuple[str, int, str], Confusion] = {}
    for seed in range(args.first_world, args.first_world + args.worlds):
        for kind in ("street", "room"):
            for motion in MOTIONS:
                carrier, labels = None, {}
                for number, (world, pose, lidar, grid) in enumerate(_drive_world(kind, motion, seed, args.cells)):
                    if number % min(SWEEPS):
                        continue  # scenes are carried at once, not from sweep to sweep
                    pair = make_scene_pair(world, pose, lidar, grid, 1000 * seed + number)
                    carrier = carrier or SceneCarrier(grid)
                    carrier.add_frame(number * PERIOD_NS, pair.occupancy, _odometry_of(world, pose, lidar))
                    occupancy = torch.from_numpy(pair.occupancy)
                    with torch.inference_mode():
                        labels[number] = completer.interpret(completer.module(occupancy), occupancy)
                    for late in SWEEPS:
                        source = number - late
                        if number < max(SWEEPS):
                            continue
                        grids = {
                            "held": labels[source],
                            "carried": carrier.carry(labels[source], source * PERIOD_NS, number * PERIOD_NS),
                            "fresh": labels[number],
                            "local": fill_columns(pair.occupancy),
                        }
                        for method, predicted in grids.items():
                            counts.setdefault((motion, late, method), Confusion()).add(predicted, pair.labels)
    rows = []
    for motion in MOTIONS:
        for late in SWEEPS:
            iou = {name: counts[motion, late, name].completion_iou for name in ("held", "carried", "fresh", "local")}
            gap = iou["fresh"] - iou["held"]
            closed = (iou["carried"] - iou["held"]) / gap if gap > 0 else None
            rows.append({"motion": motion, "late": late, **iou, "closed": closed})
            closed_text = "-" if closed is None else f"{100 * closed:.0f} %"
            print(
                f"scenes, {motion:<8} {late} sweeps old: held {iou['held']:.3f}, carried {iou['carried']:.3f}, "
                f"fresh {iou['fresh']:.3f}, column fill {iou['local']:.3f}; closed {closed_text}"
            )
    return {"worlds": args.worlds, "first_world": args.first_world, "cells": args.cells, "rows": rows}


def _drive_world(
    kind: str, motion: str, seed: int, cells: int, sweeps: int = 21
) -> Iterator[Tuple[World, SensorPose, Lidar, VoxelGrid]]:
    """The world, sensor and grid at every sweep of a drive through a held-out world."""
    import numpy as np

    from edge_offload.models.scenes.lidar import Lidar, SensorPose
    from edge_offload.models.scenes.world import Street, make_room
    from edge_offload.models.voxels import grid_around

    random = np.random.default_rng((seed, 77))
    share, turn = MOTIONS[motion]
    street_seed = 2 * seed + 1
    if kind == "street":
        street = Street(street_seed, True)
        x, y = float(random.uniform(-300, 300)), float(random.uniform(-0.4, 0.4)) * street.road
        yaw, speed, lidar = float(random.normal(0, 0.1)), 1.5 * share, Lidar(high=0.1, columns=1200)
        world = street.world_around(x)
    else:
        x, y, yaw, speed = -1.0, 0.0, float(random.uniform(-3, 3)), 0.6 * share
        world, lidar = make_room(street_seed, True), Lidar(low=-0.35, high=0.3, columns=1200, height=0.6)
    for number in range(sweeps):
        yield world, SensorPose(x, y, yaw, 3.0 + 0.1 * number), lidar, grid_around(lidar.height, cells=cells)
        x, y = x + 0.1 * speed * float(np.cos(yaw)), y + 0.1 * speed * float(np.sin(yaw))
        yaw += 0.1 * turn


def _odometry_of(world: World, pose: SensorPose, lidar: Lidar) -> Any:
    """Return the sensor's place with the error of odometry."""
    import numpy as np

    from edge_offload.models.scenes.lidar import ground_height
    from edge_offload.perception.geometry import Transform

    up = ground_height(world, pose) + lidar.height
    half = pose.yaw / 2
    return Transform.from_quaternion((pose.x, pose.y, up), (0.0, 0.0, float(np.sin(half)), float(np.cos(half))))


def _measure_cost(args: argparse.Namespace) -> List[Dict[str, Any]]:
    """Medians and 99th percentiles of what a frame takes, and what the ring holds."""
    rows = [_people_cost(args), _scene_cost(args)]
    for row in rows:
        print(
            f"{row['what']}: a frame {row['step_ms']['p50']:.2f} ms (p99 {row['step_ms']['p99']:.2f}), 8 caught up "
            f"{row['catch_up_ms']['p50']:.1f} ms (p99 {row['catch_up_ms']['p99']:.1f}), ring of at most "
            f"{row['ring_bytes'] / 1e6:.1f} MB over {LONG} frames"
        )
    return rows


def _people_cost(args: argparse.Namespace) -> Dict[str, Any]:
    from edge_offload.models.registry import build_estimator
    from edge_offload.models.video import Video
    from edge_offload.perception.carry.flow import FlowCarrier
    from edge_offload.perception.tracking import Tracker

    estimator, tracker = build_estimator(args.model, **subcommands.options(args.option)), Tracker()
    frames = [bgr for _, bgr in Video(args.video).frames(160)]
    flow, steps, catch_ups = FlowCarrier(), [], []
    for begin in range(0, len(frames) - 8, 8):
        people = tracker.update(estimator.infer(frames[begin]), begin / 10)
        fresh = list(people)
        for number in range(begin + (begin > 0), begin + 9):
            started_at = time.thread_time()
            flow.add_frame(number * PERIOD_NS, frames[number])
            flow.carry(people, begin * PERIOD_NS, number * PERIOD_NS)
            steps.append(time.thread_time() - started_at)
        started_at = time.thread_time()
        flow.carry(fresh, begin * PERIOD_NS, (begin + 8) * PERIOD_NS)
        catch_ups.append(time.thread_time() - started_at)
    ring = FlowCarrier()
    return {
        "what": f"people, {frames[0].shape[1]}x{frames[0].shape[0]} pixels",
        **_summarise_times(steps, catch_ups),
        "ring_bytes": max(_retained_bytes(ring, number, frames[number % 160]) for number in range(LONG)),
    }


def _scene_cost(args: argparse.Namespace) -> Dict[str, Any]:
    from edge_offload.models.scenes.lidar import simulate_sweep
    from edge_offload.models.sconet.baselines import fill_columns
    from edge_offload.perception.carry.odometry import SceneCarrier

    steps, catch_ups, carrier, seen = [], [], None, []
    for number, (world, pose, lidar, grid) in enumerate(
        _drive_world("street", "driving", args.first_world, args.cells, 33)
    ):
        carrier = carrier or SceneCarrier(grid)
        occupancy, place = (
            grid.occupancy(simulate_sweep(world, pose, lidar, number)[0]),
            _odometry_of(world, pose, lidar),
        )
        if number % 8 == 0:
            labels, source = fill_columns(occupancy), number * PERIOD_NS
        seen.append(occupancy)
        started_at = time.thread_time()
        carrier.add_frame(number * PERIOD_NS, occupancy, place)
        carrier.carry(labels, source, number * PERIOD_NS)
        steps.append(time.thread_time() - started_at)
        if number % 8 == 7:
            started_at = time.thread_time()
            carrier.carry(labels, source, number * PERIOD_NS)
            catch_ups.append(time.thread_time() - started_at)
    assert carrier is not None
    ring = SceneCarrier(carrier.grid)
    return {
        "what": f"scenes, {args.cells}x{args.cells}x32 voxels",
        **_summarise_times(steps[1:], catch_ups),
        "ring_bytes": max(_retained_bytes(ring, number, seen[number % len(seen)]) for number in range(LONG)),
    }


def _retained_bytes(carrier: Any, number: int, frame: Array) -> int:
    """Bytes in a carrier's ring after one more frame."""
    carrier.add_frame(number * PERIOD_NS, frame)
    return int(carrier._ring.size)


def _summarise_times(steps: Sequence[float], catch_ups: Sequence[float]) -> Dict[str, Any]:
    import numpy as np

    return {
        name: {"p50": float(np.percentile(values, 50) * 1e3), "p99": float(np.percentile(values, 99) * 1e3)}
        for name, values in (("step_ms", steps), ("catch_up_ms", catch_ups))
    }
