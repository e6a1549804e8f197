"""SCONet, the scene completer of AGRNav: on procedural scenes, or on a folder of your own.

  edge-offload train sconet                                    procedural scenes without end, CPU or GPU
  edge-offload train sconet --steps 3000                       stop there; the learning rate falls over the last quarter
  edge-offload train sconet --data dataset/sequences/00/voxels your own: SemanticKITTI's voxels (.bin .label .invalid)
                                                               or .npz with uint8 occupancy and labels [x, y, 32]
  edge-offload train sconet --export sconet.safetensors        write the weights of the moving average in half precision
  edge-offload train sconet --export FILE --calibrate 12       the same, "empty" balanced on 12 of the training scenes

Default folder: training/sconet in edge_offload's cache. 'edge-offload scene evaluate --weights FOLDER/last.safetensors'
scores it against baselines on scenes with objects that training never shows; use the weights in the same way with
'edge-offload scene complete' and 'roslaunch edge_offload agrnav.launch weights:=FILE'. Going on with more --steps than
before is allowed; every other setting must stay as it was.
"""

from __future__ import annotations

import argparse
import pathlib
from typing import Dict

from edge_offload.outputs import add_output
from edge_offload.subcommands import positive, some


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`edge_offload_training.targets`."""
    add_output(parser, "--folder", folder=True, metavar="DIR", help="state of this training (default: in the cache)")
    parser.add_argument("--steps", type=some, default=20_000, help="in all (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop at the checkpoint after so many; 0: never")
    parser.add_argument("--learning-rate", type=positive, default=3e-3, help="(default: %(default)s)")
    parser.add_argument("--batch", type=some, default=2, help="scenes per step (default: %(default)s)")
    parser.add_argument("--crop", type=some, default=128, help="cells the U-Net sees, times 16 (default: %(default)s)")
    parser.add_argument("--window", type=some, default=48, help="cells the 3D head sees (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
    parser.add_argument("--data", metavar="DIR", help="scenes of your own instead of procedural ones")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--threads", type=int, default=0, help="compute threads (default: torch's)")
    add_output(parser, "--export", metavar="FILE", help="write weights from the checkpoint and train no further")
    parser.add_argument(
        "--calibrate", type=int, default=0, metavar="N", help="with --export: balance empty and full on N scenes"
    )


def run(args: argparse.Namespace) -> int:
    """See :mod:`edge_offload_training.targets`."""
    import time

    import torch

    from edge_offload.cache import cache_dir
    from edge_offload.errors import BadInput
    from edge_offload.execute.threads import pin
    from edge_offload.models.sconet.network import SCONet
    from edge_offload_training.sconet.crops import CropConfig
    from edge_offload_training.sconet.sources import folder_source, procedural
    from edge_offload_training.sconet.trainer import LOG_FIELDS, Config, Trainer

    folder = pathlib.Path(args.folder).expanduser() if args.folder else cache_dir() / "training" / "sconet"
    if args.export:
        return _export(args, folder / "last.safetensors", pathlib.Path(args.export).expanduser())
    if args.crop % 16 or args.crop < 16 or not 8 <= args.window <= args.crop or min(args.batch, args.steps) < 1:
        raise BadInput(
            f"crop {args.crop}, window {args.window}, batch {args.batch}, steps {args.steps}",
            remedy="crop: a multiple of 16; window: 8 up to the crop; batch and steps: at least 1",
        )
    if args.device != "cpu" and not torch.cuda.is_available():
        raise BadInput("there is no GPU here", remedy="train with --device cpu")
    pin(args.threads or None)
    source, count = folder_source(pathlib.Path(args.data).expanduser()) if args.data else (procedural, 0)
    config = Config(
        steps=args.steps,
        learning_rate=args.learning_rate,
        seed=args.seed,
        crops=CropConfig(batch=args.batch, crop=args.crop, window=args.window),
    )
    torch.manual_seed(args.seed)
    trainer = Trainer(SCONet(), source, config, folder, count, args.device)
    print(f"{folder}: step {trainer.step} of {config.steps}", flush=True)

    def report(row: Dict[str, float]) -> None:
        print("  ".join(f"{name} {row[name]:.4g}" for name in LOG_FIELDS), flush=True)

    deadline = time.monotonic() + 60.0 * args.minutes if args.minutes else None
    done = trainer.run(report, deadline)
    print("done" if done else "the time is up; the same command goes on from here")
    return 0


def _export(args: argparse.Namespace, checkpoint: pathlib.Path, target: pathlib.Path) -> int:

    from edge_offload.execute.threads import pin
    from edge_offload.models.sconet.completer import load_weights, save_weights
    from edge_offload.models.sconet.network import SCONet
    from edge_offload_training.sconet.calibrate import apply_offset, completion_offset
    from edge_offload_training.sconet.sources import folder_source, procedural

    pin(args.threads or None)
    network = SCONet().eval()
    metadata = load_weights(network, checkpoint)
    facts = {"step": metadata.get("step", ""), "config": metadata.get("config", "")}
    if args.calibrate:
        source, count = folder_source(pathlib.Path(args.data).expanduser()) if args.data else (procedural, 0)
        scenes = (source(number) for number in range(min(args.calibrate, count or args.calibrate)))
        offset, iou, before = completion_offset(network, scenes)
        apply_offset(network, offset)
        facts["empty_offset"] = f"{offset:g}"
        print(f"empty {offset:+g}: completion IoU {iou:.3f} on training scenes instead of {before:.3f}")
    save_weights(network, target, facts)
    print(f"written {target}: the moving average at step {facts['step'] or '?'}")
    return 0
