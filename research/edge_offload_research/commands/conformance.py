"""Run PyTorch's own operator samples on the virtual CUDA device and compare with a reference, bit for bit.

Every sample of torch's op_db (float32, float16 and int64, forward) runs on the reference and on the device, in
per-op, lazy and replay mode; in replay each is recorded and then replayed with fresh values. In mode local, which is
judged by itself (--modes local), the program's own process computes. An entry is passed,
refused (a clear error names what is not supported), wrong, or excluded (a committed list with reasons).

  edge-offload conformance --entries 'nn.functional.*'           some entries
  edge-offload conformance --journal run.jsonl --json out.json   all; an interrupted run goes on from the journal
  edge-offload conformance --limit 8                             at most eight samples of each dtype
  edge-offload conformance --layouts channels_last,strided       the samples' tensors lie otherwise in memory
  edge-offload conformance --reference cuda                      what computes is a GPU: compare with plain CUDA

The reference is this machine's CPU, or its GPU without edge_offload: a process of its own, without TF32, with cuDNN's
deterministic algorithms. All entries take about half an hour on one core. The exit code is 1 if anything is wrong.
Needs the package expecttest.
"""

from __future__ import annotations

import argparse
import pathlib

from edge_offload.errors import BadInput
from edge_offload.outputs import add_output, write_each, write_text
from edge_offload.subcommands import some

MODES = ("per_op", "cached", "lazy", "replay", "local")
LAYOUTS = ("sampled", "channels_last", "transposed", "strided")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--entries", nargs="+", default=["*"], metavar="GLOB", help="names of entries (default: all)")
    parser.add_argument("--modes", default="per_op,lazy,replay", help="default: %(default)s")
    parser.add_argument(
        "--limit", type=int, default=0, metavar="N", help="samples per entry and dtype, evenly spread; 0 for all"
    )
    parser.add_argument(
        "--layouts", default="sampled", help=f"how tensors lie: some of {','.join(LAYOUTS)} (default: %(default)s)"
    )
    parser.add_argument("--reference", choices=("cpu", "cuda"), default="cpu",
                        help="what results are compared with (default: %(default)s)")  # fmt: skip
    parser.add_argument("--jobs", type=some, default=1, metavar="N", help="processes at a time (default: 1)")
    parser.add_argument("--timeout", type=float, default=900.0, metavar="S", help="longest time for one entry")
    parser.add_argument("--server", default="", metavar="ADDR", help="tcp://host:port of 'edge-offload serve'")
    parser.add_argument("--keys", default="", metavar="DIR", help="key directory (default: the user's)")
    add_output(parser, "--journal", type=pathlib.Path, metavar="FILE", help="note verdicts here, go on from it")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the record as JSON")
    add_output(parser, "--markdown", type=pathlib.Path, metavar="FILE", help="write the compatibility page")


def run(args: argparse.Namespace) -> int:
    """Judge, print the table, and return 1 if anything is wrong."""
    import fnmatch

    from edge_offload import records
    from edge_offload_research.device.conformance import report
    from edge_offload_research.device.conformance.run import Child, Journal, Settings, judge_all, read_catalogue

    modes = args.modes.split(",")
    strange = [mode for mode in modes if mode not in MODES]
    if strange:
        raise BadInput(f"no mode {strange[0]!r} on the virtual device", remedy=f"modes: {', '.join(MODES)}")
    layouts = args.layouts.split(",")
    unknown = [layout for layout in layouts if layout not in LAYOUTS]
    if unknown:
        raise BadInput(f"no layout {unknown[0]!r}", remedy=f"layouts: {', '.join(LAYOUTS)}")
    if "local" in modes and (len(modes) > 1 or args.server):
        raise BadInput("local is judged by itself, without a server", remedy="--modes local")
    launcher = [*(["--server", args.server] if args.server else []), *(["--keys", args.keys] if args.keys else [])]
    settings = Settings(modes, args.limit, args.timeout, launcher, layouts, args.reference)
    child = Child(settings)
    try:
        entries_facts = read_catalogue(child)
        names = [
            name for name in entries_facts["entries"] if any(fnmatch.fnmatchcase(name, glob) for glob in args.entries)
        ]
        if not names:
            raise BadInput(f"no entry of op_db matches {' '.join(args.entries)}", remedy="such as 'nn.functional.*'")
        facts = {
            "torch": entries_facts["torch"],
            "modes": modes,
            "dtypes": entries_facts["dtypes"],
            "limit": args.limit,
        }
        facts.update(layouts=layouts, **({"reference": "cuda"} if args.reference == "cuda" else {}))
        journal = Journal(args.journal, facts)
        progress = report.Progress(len(names), sum(name in journal.records for name in names))
        entries = judge_all(names, settings, journal, args.jobs, progress, child)
    finally:
        child.close()
    record = report.record_of(entries, facts)
    print(report.format_table(record))
    write_each(
        lambda: records.write(args.json, "conformance", record) if args.json else None,
        lambda: write_text(args.markdown, report.format_page(record)) if args.markdown else None,
    )
    return 1 if any(totals["wrong"] for totals in record["totals"].values()) else 0
