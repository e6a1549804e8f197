"""List inference engines, build one ahead of time, compare one with torch on this machine.

  edge-offload engines                        what is here, how exact it is, what to install for the rest
  edge-offload engines build kapao_vtest      build and keep it now, so that no frame waits for it
  edge-offload engines check kapao_vtest      errors and speed beside torch, on frames of the sample video

An engine computes the dense part of a model (its convolutions, not what selects people afterwards) in place of torch,
where it was asked for: 'edge-offload serve --engine auto', 'roslaunch ... robot_engine:=auto server_engine:=auto'. It
takes over when it has given what torch gives on real inputs, within the tolerance of its class, and torch goes on where
it does not, or fails later. Modes replay and split are torch's own, always.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, Dict, List, Sequence

from edge_offload.outputs import add_output

#: Frames on which engine and torch are compared, and between which they take turns.
FRAMES = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`edge_offload.commands`."""
    parser.add_argument("action", nargs="?", default="list", choices=("list", "build", "check"), help="(list)")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names from 'edge-offload models list'")
    parser.add_argument("--engine", default="", metavar="ENGINE", help="one of them (default: all that are here)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="compute threads, of both (1)")
    parser.add_argument("--frames", type=int, default=FRAMES, metavar="N", help=f"that are compared ({FRAMES})")
    add_output(parser, "--json", metavar="FILE", help="write what was found as JSON, to be sent to whoever asks")


def run(args: argparse.Namespace) -> int:
    """See :mod:`edge_offload.commands`."""
    import json

    from edge_offload.errors import BadInput
    from edge_offload.execute.engines import table
    from edge_offload.outputs import write_text

    found: Dict[str, Any] = {"engines": [vars(one) for one in table.engines()]}
    if args.action == "list":
        if args.models:
            raise BadInput("'list' takes no model", remedy="edge-offload engines check MODEL")
        for one in table.engines():
            print(f"{one.name:<21} {one.version or '-':<12} {one.precision:<6} {one.accuracy:<8} {one.detail}")
            if one.remedy:
                print(f"{'':<21} {one.remedy}")
    else:
        if not args.models:
            raise BadInput(f"no model to {args.action}", remedy=f"edge-offload engines {args.action} kapao_vtest")
        if args.engine:
            table.pick(args.engine)
        names = [args.engine] if args.engine else [one.name for one in table.engines()[1:] if one.present]
        if not names:
            raise BadInput("no engine is installed", remedy=table.INSTALL)
        found["results"] = [_examine(args, model, names) for model in args.models]
    if args.json:
        write_text(args.json, json.dumps(found, indent=2) + "\n")
    if args.action == "list":
        return 0
    return int(any(row["why_not"] for result in found["results"] for row in result["engines"]))


def _examine(args: argparse.Namespace, model: str, names: Sequence[str]) -> Dict[str, Any]:
    """Build the engines of a model; for 'check', compare them with torch frame by frame, in turns."""
    import torch

    from edge_offload.errors import BadInput
    from edge_offload.execute.module import ModuleExecutor
    from edge_offload.execute.threads import pin
    from edge_offload.models.video import read_frames, sample_video
    from edge_offload.split.networks import module_and_inputs, synthetic_frame

    pin(args.threads)
    count = max(args.frames, 3)
    try:
        frames = list(read_frames(sample_video(), range(count)).values())
    except BadInput as error:
        print(f"{error}; made-up frames are used instead", flush=True)
        frames = [synthetic_frame(480, 640, number) for number in range(count)]
    network, _ = module_and_inputs(model, {}, frames[0])
    inputs = [module_and_inputs(model, {}, frame)[1] for frame in frames]
    rows: List[Dict[str, Any]] = []
    for name in names:
        executor = ModuleExecutor(network, engine=name)
        print(f"{model}: {name} is being built ...", flush=True)
        began = time.monotonic()
        executor.run(inputs[0])
        executor.engine_ready(600.0)
        row: Dict[str, Any] = {"engine": name, "build_s": time.monotonic() - began, "why_not": ""}
        for given in inputs[1:3]:
            executor.run(given)
        words, amber = executor.engine_state()
        if amber or executor.engine == "eager":
            row["why_not"] = words
        elif args.action == "check":
            row.update(_compare(ModuleExecutor(network), executor, inputs))
        rows.append(row)
        print(f"{model}: {_line(row)}", flush=True)
        executor.close()
    return {"model": model, "threads": args.threads, "torch": torch.__version__, "frames": count, "engines": rows}


def _compare(plain: Any, fast: Any, inputs: Sequence[Any]) -> Dict[str, Any]:
    import statistics

    from edge_offload.execute.engines.base import relative_error

    seconds: Dict[str, List[float]] = {"torch": [], "engine": []}
    worst = 0.0
    for number, given in enumerate(inputs):
        results = {}
        ways = [("torch", plain), ("engine", fast)]
        for way, executor in ways if number % 2 else reversed(ways):
            done = executor.run(given)
            seconds[way].append(done.compute_s)
            results[way] = done.outputs
        if all(one.shape == other.shape for one, other in zip(results["torch"], results["engine"])):
            worst = max(worst, *map(relative_error, results["torch"], results["engine"]))
        else:
            worst = float("inf")  # another number of people
    torch_s, engine_s = (statistics.median(seconds[way]) for way in ("torch", "engine"))
    return {"torch_ms": 1e3 * torch_s, "engine_ms": 1e3 * engine_s, "faster": torch_s / engine_s, "worst_error": worst}


def _line(row: Dict[str, Any]) -> str:
    if row["why_not"]:
        return str(row["why_not"])
    if "faster" not in row:
        return f"{row['engine']} is built and kept ({row['build_s']:.1f} s)"
    return (
        f"{row['engine']} {row['engine_ms']:.1f} ms, torch {row['torch_ms']:.1f} ms: {row['faster']:.2f} x as fast, "
        f"results within {row['worst_error']:.1e} of their largest value"
    )
