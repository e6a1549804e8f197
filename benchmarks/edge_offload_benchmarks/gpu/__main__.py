"""Prepares and runs the checks of a GPU.

scripts/gpu prepare                          here: fills .gpu/ with what the GPU machine may lack
scripts/gpu run                              there: the phases of a first call
scripts/gpu run --device cpu --tiny          a rehearsal without a GPU, in about a minute
"""

from __future__ import annotations

import argparse
import importlib
import os
import pathlib
import shutil
import sys
import tempfile
from typing import List, Optional

from edge_offload_benchmarks.gpu import results, runner, settings
from edge_offload_benchmarks.gpu.table import DEFAULT, PHASES, TINY_DEFAULT


def main(arguments: Optional[List[str]] = None) -> int:
    """Run a subcommand; its exit code."""
    lines = [f"  {name:12} {entry.seconds:4.0f} s  {entry.what}" for name, entry in PHASES.items()]
    parser = argparse.ArgumentParser(
        prog="scripts/gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="phases, and seconds that each may take:\n" + "\n".join(lines) + f"\n\nby default: {' '.join(DEFAULT)}",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser("prepare", help="fill .gpu/ of this checkout")
    prepare.add_argument("--engines", action="store_true", help="also ONNX Runtime for CUDA, in pieces, and pycuda")
    prepare.add_argument(
        "--torch-python",
        default=os.environ.get("EDGE_OFFLOAD_GPU_PYTHON", ""),
        metavar="PYTHON",
        help="a Python 3.12 with the GPU machine's torch, against which our C++ is built (default: "
        "$EDGE_OFFLOAD_GPU_PYTHON, else an environment that is made in the user's cache)",
    )
    run = commands.add_parser("run", help="run phases on this machine")
    hint = "phases in order; A+B runs two at once, A:60 gives one 60 s at most"
    run.add_argument("phases", nargs="*", metavar="PHASE", help=hint)
    run.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    run.add_argument("--limit", type=float, default=390.0, metavar="SECONDS", help="for all phases (default: 390)")
    run.add_argument("--out", type=pathlib.Path, help="for what comes back (default: $OUT, else runs/gpu)")
    run.add_argument(
        "--work",
        type=pathlib.Path,
        help="scratch and results; phases that are done are not repeated "
        "while it stays (default: edge_offload_gpu-DEVICE in the folder of temporary files)",
    )
    run.add_argument("--tiny", action="store_true", help="a selection that takes seconds")
    run.add_argument("--again", action="store_true", help="repeat phases that are done")
    phase = commands.add_parser("phase", help="one phase of a run (started by 'run')")
    phase.add_argument("name", choices=sorted(PHASES))
    phase.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args(arguments)
    if args.command == "prepare":
        from edge_offload_benchmarks.gpu import prepare as preparation

        code: int = preparation.prepare_folder(args.torch_python, args.engines)
        return code
    if args.command == "phase":
        return _run_phase(args.name, args.seconds)
    wrong = runner.list_unknown(args.phases)
    if wrong:
        parser.error(f"no phase {wrong[0]!r}; there are: {', '.join(PHASES)}")
    return _run_phases(args)


def _run_phases(args: argparse.Namespace) -> int:
    suffix = f"{args.device}{'-tiny' if args.tiny else ''}"
    work = args.work or pathlib.Path(tempfile.gettempdir()) / f"edge_offload_gpu-{suffix}"
    out = args.out or pathlib.Path(os.environ.get("OUT") or settings.ROOT / "runs" / "gpu")
    cores = len(os.sched_getaffinity(0)) if shutil.which("taskset") else 0
    # a rehearsal without a GPU uses the libraries that this machine has built
    cache = os.environ.get("EDGE_OFFLOAD_CACHE") or (str(work.resolve() / "cache") if args.device == "cuda" else "")
    chosen = settings.Settings(args.device, str(work.resolve()), args.tiny, cache=cache, **settings.share_cores(cores))
    phases = args.phases or (TINY_DEFAULT if args.tiny else DEFAULT)
    return runner.Runner(chosen, out, args.limit, args.again).run(phases)


def _run_phase(name: str, seconds: float) -> int:
    """Run one phase in this process, which ends a little before its time limit."""
    module = PHASES[name].module or name
    phase = results.Phase(name, settings.read_settings(), max(1.0, seconds - min(8.0, 0.1 * seconds)))
    importlib.import_module(f"edge_offload_benchmarks.gpu.phases.{module}").run(phase)
    return 0


if __name__ == "__main__":
    sys.exit(main())
