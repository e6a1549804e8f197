"""Complete a LiDAR scan with SCONet, score SCONet against simple baselines, make synthetic scenes.

  edge-offload scene complete 000000.bin --picture scene.png          one scan of your own (.bin, .pcd)
  edge-offload scene evaluate --scenes 10 --runs 3 --json sconet.json  held-out synthetic scenes, with the spread
  edge-offload scene make --count 5 --out scenes/                     sweeps (.bin) with their complete labels (.npz)

The grid is 256x256x32 voxels of 0.2 m. Weights are those that come with edge_offload; --weights names others, such as
the checkpoint of 'edge-offload train sconet'. With neither, nothing is completed, and the command says so.
"""

from __future__ import annotations

import argparse
import atexit
import sys
from typing import TYPE_CHECKING, Any, Dict, List, Sequence

from edge_offload import places, subcommands
from edge_offload.outputs import add_output, write_bytes, write_each
from edge_offload.subcommands import signed, some

if TYPE_CHECKING:
    import torch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`edge_offload.commands`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    complete = actions.add_parser("complete", help="complete one scan", description="complete one scan")
    complete.add_argument("scan", help="a .bin (KITTI), .pcd.bin (nuScenes) or .pcd file")
    complete.add_argument(
        "--fields", default="auto", metavar="NAMES",
        help="of a point in a .bin file, each a float32: x,y,z,intensity,ring (default: by the file's name)",
    )  # fmt: skip
    add_output(
        complete, "--picture", metavar="FILE", default="scene.png", help="sweep, scene, slice (default: %(default)s)"
    )
    add_output(complete, "--labels", metavar="FILE.npz", help="write labels and the place of the grid too")
    complete.add_argument(
        "--sensor-height", type=float, default=1.73, metavar="M", help="of the LiDAR above the ground (default: 1.73)"
    )
    complete.add_argument("--extent", choices=("forward", "around"), default="forward", help="(default: %(default)s)")
    complete.add_argument("--goal", type=signed, nargs=2, metavar=("X", "Y"), help="m: draw a path to there")
    evaluate = actions.add_parser("evaluate", help="score on synthetic scenes", description="score on synthetic scenes")
    evaluate.add_argument("--scenes", type=some, default=10, help="scenes per run (default: %(default)s)")
    evaluate.add_argument("--runs", type=some, default=3, help="disjoint sets of scenes (default: %(default)s)")
    evaluate.add_argument("--skip", type=int, default=0, metavar="N", help="leave out the first N scenes (default: 0)")
    evaluate.add_argument(
        "--seen-kinds", action="store_true", help="kinds and sizes of objects as in training, in scenes that were not"
    )
    add_output(evaluate, "--json", metavar="FILE", help="write the figures (kind 'scene_scores')")
    for sub in (complete, evaluate):
        sub.add_argument("--weights", default="", metavar="FILE", help="safetensors; default: those that were shipped")
        sub.add_argument("--threads", type=int, default=0, help="compute threads (default: torch's)")
        sub.add_argument("--device", default="auto", help=subcommands.DEVICE)
    make = actions.add_parser("make", help="make synthetic scenes", description="make synthetic scenes")
    make.add_argument("--count", type=some, default=5, help="(default: %(default)s)")
    make.add_argument("--first", type=int, default=0, metavar="SEED", help="number of the first (default: 0)")
    make.add_argument("--held-out", action="store_true", help="with the kinds and sizes that training never sees")
    add_output(make, "--out", folder=True, required=True, metavar="FOLDER", help="where to write them")


def run(args: argparse.Namespace) -> int:
    """See :mod:`edge_offload.commands`."""
    return {"complete": _complete_scan, "evaluate": _evaluate_network, "make": _make_scenes}[args.action](args)


def completer_of(args: argparse.Namespace) -> Any:
    """SCONet with the weights that the arguments name."""
    from edge_offload.companion.module import CompanionModule
    from edge_offload.companion.process import choose_device
    from edge_offload.execute.module import ModuleExecutor
    from edge_offload.execute.threads import pin
    from edge_offload.models.sconet.completer import SceneCompleter

    pin(args.threads or None)
    completer = SceneCompleter(weights=args.weights)
    device, companion = choose_device(args.device, threads=args.threads)
    executor = (
        ModuleExecutor(completer.module, device, spare=True)
        if companion is None
        else CompanionModule(completer.module, companion, completer.name, {"weights": args.weights})
    )
    if companion is not None:
        atexit.register(executor.close)

    def run(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        execution = executor.run_module(inputs)
        if execution.note:
            print(execution.note)
        return execution.outputs

    completer.executor = run
    if not completer.trained:
        print("no trained weights: nothing is completed (give --weights, or train with 'edge-offload train sconet')")
    return completer


def _complete_scan(args: argparse.Namespace) -> int:
    import io
    import pathlib

    import cv2
    import numpy as np

    from edge_offload.errors import BadInput
    from edge_offload.models.scenes.labels import COLOURS, GROUND, LABELS
    from edge_offload.models.voxels import grid_around
    from edge_offload.perception.scene.planning import find_path, occupancy_slice
    from edge_offload.perception.scene.scans import read_scan
    from edge_offload.perception.scene.view import draw_scene

    if not cv2.haveImageWriter(args.picture):
        raise BadInput(f"{args.picture} is no kind of picture", remedy="name a .png or .jpg")
    points = read_scan(pathlib.Path(args.scan), args.fields)
    if not len(points):
        raise BadInput(f"scan {args.scan} holds no return of the LiDAR", remedy="give another scan")
    completer = completer_of(args)
    completer.grid = grid = grid_around(args.sensor_height, forward=args.extent == "forward")
    occupancy = grid.occupancy(points)
    labels = completer.complete(points)
    obstacles = occupancy_slice(labels, grid, GROUND, 0.25, 1.6, 0.2)
    robot, plan, goal = grid.cell(0.0, 0.0), None, None
    if args.goal:
        goal = grid.cell(args.goal[0], args.goal[1])
        plan = find_path(obstacles, grid.voxel_size, robot, goal, 0.35)
    kinds = ", ".join(
        f"{LABELS[value]} {count}"
        for value, count in enumerate(np.bincount(labels.ravel(), minlength=20))
        if value and count
    )
    line = f"{len(points)} points, {int(occupancy.sum())} voxels hit, {int((labels > 0).sum())} full"
    lines = [line if completer.trained else f"{line}; random weights: the scene is NOT completed"]
    picture = draw_scene(
        labels, COLOURS, occupancy, obstacles, None if plan is None else plan.cells, robot, goal, lines
    )
    print(f"{line}\n{kinds}")

    def save_picture() -> None:
        coded, data = cv2.imencode(pathlib.Path(args.picture).suffix, picture)
        if not coded:
            raise BadInput(f"cannot draw the picture {args.picture}", remedy="name a .png or .jpg")
        write_bytes(args.picture, data.tobytes())
        print(f"written {args.picture}")

    def save_labels() -> None:
        if args.labels:
            coded = io.BytesIO()
            np.savez_compressed(coded, labels=labels, origin=grid.origin, voxel_size=grid.voxel_size)
            file = args.labels if args.labels.endswith(".npz") else f"{args.labels}.npz"
            write_bytes(file, coded.getvalue())
            print(f"written {file}")

    write_each(save_picture, save_labels)
    return 0


def _evaluate_network(args: argparse.Namespace) -> int:
    from edge_offload import records
    from edge_offload_training.sconet.evaluation import evaluate

    completer = completer_of(args)
    network = completer.module if completer.trained else None

    def print_progress(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r{text}", end="", file=sys.stderr, flush=True)

    scores = evaluate(network, args.scenes, args.runs, not args.seen_kinds, args.skip, print_progress)
    print("\n".join(_format_table(scores)))
    if args.json:
        records.write(args.json, "scene_scores", scores)
    return 0


def _format_table(record: Dict[str, Any]) -> List[str]:
    kinds = "kinds and sizes never trained on" if record["held_out"] else "kinds and sizes as in training"
    lines = [
        f"{record['runs']} runs of {record['scenes']} scenes, {kinds}; mean and standard deviation over the runs",
        "",
    ]
    lines.append(f"{'':<14} {'completion IoU':>16} {'precision':>16} {'recall':>16} {'mIoU':>16}")
    for name, scores in record["methods"].items():
        cells = [
            f"{scores['mean'][key]:>8.3f} ± {scores['deviation'][key]:.3f}"
            for key in ("completion_iou", "precision", "recall", "mean_iou")
        ]
        lines.append(f"{name:<14} " + " ".join(f"{cell:>16}" for cell in cells))
    for key, values in record.get("margin", {}).items():
        shown = ", ".join(f"{value:+.3f}" for value in values)
        lines.append(f"margin of sconet over the best baseline, {key}, run by run: {shown}")
    return lines


def _make_scenes(args: argparse.Namespace) -> int:

    import numpy as np

    from edge_offload_training.sconet.samples import make_pair

    folder = places.expand(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(args.first, args.first + args.count):
        made = make_pair(number, args.held_out)
        (folder / f"{number:06d}.bin").write_bytes(made.points.astype("<f4").tobytes())
        np.savez_compressed(
            folder / f"{number:06d}.npz",
            occupancy=made.occupancy,
            labels=made.labels,
            origin=made.grid.origin,
            voxel_size=made.grid.voxel_size,
        )
        print(f"{folder / f'{number:06d}.bin'}: {len(made.points)} points, synthetic")
    return 0
