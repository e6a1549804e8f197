"""``edge-offload scene evaluate``: score SCONet against simple baselines on scenes that no training has seen."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Dict, List


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload import records
    from edge_offload.commands.scene import completer_of
    from edge_offload_training.sconet.evaluation import evaluate

    completer = completer_of(args)
    network = completer.module if completer.trained else None

    def progress(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r{text}", end="", file=sys.stderr, flush=True)

    found = evaluate(network, args.scenes, args.runs, not args.seen_kinds, args.skip, progress)
    print("\n".join(_table(found)))
    if args.json:
        records.write(args.json, "scene_scores", found)
    return 0


def _table(found: Dict[str, Any]) -> List[str]:
    kinds = "kinds and sizes never trained on" if found["held_out"] else "kinds and sizes as in training"
    lines = [
        f"{found['runs']} runs of {found['scenes']} scenes, {kinds}; mean and standard deviation over the runs",
        "",
    ]
    lines.append(f"{'':<14} {'completion IoU':>16} {'precision':>16} {'recall':>16} {'mIoU':>16}")
    for name, scores in found["methods"].items():
        cells = [
            f"{scores['mean'][key]:>8.3f} ± {scores['deviation'][key]:.3f}"
            for key in ("completion_iou", "precision", "recall", "mean_iou")
        ]
        lines.append(f"{name:<14} " + " ".join(f"{cell:>16}" for cell in cells))
    for key, values in found.get("margin", {}).items():
        shown = ", ".join(f"{value:+.3f}" for value in values)
        lines.append(f"margin of sconet over the best baseline, {key}, run by run: {shown}")
    return lines
