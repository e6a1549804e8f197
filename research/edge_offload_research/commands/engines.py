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
import statistics
from typing import TYPE_CHECKING, Any, Dict, Mapping, Sequence

from edge_offload.outputs import add_output

if TYPE_CHECKING:
    from edge_offload.execute.engines.base import Backend
    from edge_offload_research.engine_comparison import EngineMeasurement

#: Frames on which engine and torch are compared, and between which they take turns.
FRAMES = 30
SECONDS = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`edge_offload.commands`."""
    parser.add_argument("action", nargs="?", default="list", choices=("list", "build", "check"), help="(list)")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names from 'edge-offload models list'")
    parser.add_argument("--engine", default="", metavar="ENGINE", help="one of them (all but of class reduced)")
    parser.add_argument("--engine-buffers", default="", choices=("", "torch", "pycuda"), metavar="WHO",
                        help="who allocates TensorRT's buffers: torch or pycuda (torch where it has CUDA)")  # fmt: skip
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="compute threads, of both (1)")
    parser.add_argument("--frames", type=int, default=FRAMES, metavar="N", help=f"that are compared ({FRAMES})")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S",
                        help=f"after which no turn of a model begins but the first five ({SECONDS:g})")  # fmt: skip
    add_output(parser, "--json", metavar="FILE", help="write what was found as JSON, to be sent to whoever asks")


def run(args: argparse.Namespace) -> int:
    """See :mod:`edge_offload.commands`."""
    import json

    from edge_offload.errors import BadInput
    from edge_offload.execute.engines import table
    from edge_offload.execute.engines.base import EXACT, REDUCED
    from edge_offload.outputs import write_text

    record: Dict[str, Any] = {"engines": [vars(one) for one in table.list_engines()]}
    if args.action == "list":
        if args.models:
            raise BadInput("'list' takes no model", remedy="edge-offload engines check MODEL")
        for one in table.list_engines():
            print(f"{one.name:<21} {one.version or '-':<12} {one.precision:<6} {one.accuracy:<8} {one.detail}")
            if one.remedy:
                print(f"{'':<21} {one.remedy}")
    else:
        if not args.models:
            raise BadInput(f"no model to {args.action}", remedy=f"edge-offload engines {args.action} kapao_vtest")
        with_buffers = table.with_buffers(args.engine, args.engine_buffers) if args.engine else ""
        if with_buffers:
            table.pick_backend(with_buffers)
        present = [one for one in table.list_engines()[1:] if one.present]
        names = [one.name for one in present if one.accuracy == EXACT or (one.packaged and one.accuracy != REDUCED)]
        names = [with_buffers] if with_buffers else names
        if not names:
            raise BadInput("no engine is installed", remedy=table.INSTALL)
        record["results"] = [_examine(args, model, names) for model in args.models]
    if args.json:
        write_text(args.json, json.dumps(record, indent=2) + "\n")
    if args.action == "list":
        return 0
    return int(any(row["why_not"] for result in record["results"] for row in result["engines"]))


def samples(model: str, options: Mapping[str, Any], count: int) -> Any:
    """A model of the registry and inputs for it: frames of the sample video, or made-up ones where there is none."""
    from edge_offload.errors import BadInput
    from edge_offload.models.video import read_frames, sample_video, synthetic_frame
    from edge_offload_research.networks import build_samples

    try:
        frames = list(read_frames(sample_video(), range(count)).values())
    except BadInput as error:
        print(f"{error}; made-up frames are used instead", flush=True)
        frames = [synthetic_frame(480, 640, number) for number in range(count)]
    return build_samples(model, options, frames)


def _examine(args: argparse.Namespace, model: str, names: Sequence[str]) -> Dict[str, Any]:
    """Build the engines of a model; for 'check', compare them with torch frame by frame, in turns."""
    import torch

    from edge_offload.execute.threads import pin
    from edge_offload_research.engine_comparison import measure_engines

    pin(args.threads)
    count = max(args.frames, 3)
    module, inputs = samples(model, {}, count)

    def report_progress(text: str) -> None:
        print(f"{model}: {text} ...", flush=True)

    rows, facts = [], {}
    for device, backends in _by_device(names).items():
        turns = count if args.action == "check" else 0
        eager, *measured = measure_engines(module, list(backends), inputs, turns, device, args.seconds, report_progress)
        rows += [row_of(one, eager) for one in measured]
        facts.update({name: value for one in backends.values() for name, value in one.depends_on().items()})
    for row in rows:
        print(f"{model}: {line_of(row)}", flush=True)
    summary = {"model": model, "threads": args.threads, "torch": torch.__version__, "frames": count}
    return {**summary, "gpu": facts, "engines": rows}


def _by_device(names: Sequence[str]) -> Dict[str, Dict[str, Backend]]:
    """Engines by where torch is to compute beside them: on the GPU, too, where they do and it can."""
    import torch

    from edge_offload.execute.engines import table
    from edge_offload.execute.engines.base import CPU, CUDA

    by_device: Dict[str, Dict[str, Backend]] = {}
    for name in names:
        backend = table.pick_backend(name)
        if backend is not None:
            available = backend.device == CUDA and torch.cuda.is_available()
            by_device.setdefault(CUDA if available else CPU, {})[name] = backend
    return by_device


def row_of(one: EngineMeasurement, eager: EngineMeasurement) -> Dict[str, Any]:
    """Return the measurement, for JSON."""
    row: Dict[str, Any] = {
        "engine": one.engine,
        "facts": one.facts,
        "build_s": one.first_s,
        "again_s": one.restart_s,
        "why_not": one.why_not,
    }
    if one.wall_s:
        row.update(
            turns=len(one.wall_s),
            beside=eager.by,
            torch_ms=1e3 * statistics.median(eager.wall_s),
            engine_ms=1e3 * statistics.median(one.wall_s),
            faster=one.speedup_over(eager),
            faster_cpu=one.speedup_over(eager, cpu=True),
            worst_error=one.error,
            error64=one.error64,
            torch_error64=eager.error64,
            differ=one.differ,
        )
    return row


def line_of(row: Mapping[str, Any]) -> str:
    """The same for people."""
    if row["why_not"]:
        return str(row["why_not"])
    if "faster" not in row:
        return f"{row['engine']} is built and kept ({row['build_s']:.1f} s)"
    beside = row.get("beside", "torch")
    torch64 = row["torch_error64"]
    exact = "" if row["error64"] is None else f", {row['error64']:.1e} from float64 ({beside} {torch64:.1e})"
    differ = f"; another number of results on {row['differ']} frames" if row["differ"] else ""
    return (
        f"{row['engine']} {row['engine_ms']:.1f} ms, {beside} {row['torch_ms']:.1f} ms: {row['faster']:.2f} x as fast "
        f"({row['faster_cpu']:.2f} x by processor time), within {row['worst_error']:.1e} of its largest value"
        f"{exact}{differ}"
    )
