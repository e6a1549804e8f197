"""Inference engines beside torch: speed, errors, what they take to be ready, and what a robot has of them.

Networks, engines and threads, in turns on the same inputs, by wall clock and by processor time. Errors of the dense
part's outputs are shares of the output's largest value, from torch's and from float64's. Then a robot's calls on frames
of the sample video in modes local and server, the latter on loopback and over the emulated link of 93 Mbit/s; bits of
both sides; the share of a core that a server with an engine takes while nobody asks; and people on frames 601 to 794.

  edge-offload bench engines                                       all of it, on every engine of class close
  edge-offload bench engines --models kapao_vtest --turns 10 --no-end-to-end
  edge-offload bench engines --json engines.json --plot engines.png

A ratio is the median over pairs: torch's time over the engine's. Built engines are not taken from the cache.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import pathlib
import statistics
import sys
import tempfile
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from edge_offload.outputs import add_output

MODELS = ("kapao_vtest", "kapao_n", "kapao_s", "movenet", "resnet50", "mobilenet_v3_large")
#: Measured with two threads as well.
TWO_THREADS = ("kapao_vtest", "resnet50")
#: Frames of the sample video that training never shows.
FRAMES = range(601, 795)
#: What is held, by processor time: of all models, of each, of some more; with two threads; of calls; errors; pixels.
ALL, EACH, MORE, TWO = 1.8, 1.25, {"kapao_vtest": 1.6, "movenet": 2.5}, 1.4
CALLS = {"loopback": 1.5, "wifi_93mbps": 1.3}
CLOSE, TIMES, PLUS, PIXELS, IDLE, RESTART_SHARE = 2e-5, 4.0, 1e-6, 0.05, 0.02, 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--models", default=",".join(MODELS), metavar="LIST", help=f"({','.join(MODELS)})")
    parser.add_argument("--engines", default="", metavar="LIST", help="(all of class close that are installed)")
    parser.add_argument("--turns", type=int, default=30, metavar="N", help="pairs of each network (30)")
    parser.add_argument("--calls", type=int, default=30, metavar="N", help="calls of each mode, engine and link (30)")
    parser.add_argument("--fresh", type=int, default=200, metavar="N", help="inputs compared to the bit (200)")
    parser.add_argument("--no-end-to-end", action="store_true", help="networks alone")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the record engines_bench here")
    add_output(parser, "--plot", type=pathlib.Path, metavar="FILE", help="draw the ratios here")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload import records
    from edge_offload.errors import BadInput
    from edge_offload.execute.engines import table
    from edge_offload.execute.threads import pin
    from edge_offload.models.video import read_frames, sample_video
    from edge_offload_benchmarks.engines_end_to_end import compare_people, end_to_end

    models = [name for name in args.models.split(",") if name]
    names = [name for name in args.engines.split(",") if name] or table.packaged_engines()
    if not names:
        raise BadInput("no engine is installed", remedy=table.INSTALL)
    frames = read_frames(sample_video(), FRAMES)
    record: Dict[str, Any] = {
        "cores": os.cpu_count(),
        "engines": [],
        "networks": [],
        "load_average": os.getloadavg()[0],
    }
    listed = {one.name: one for one in table.list_engines()}
    record["engines"] = [{"engine": name, "version": listed[name].version} for name in names]
    given = list(frames.values())[: max(args.turns, 1)]
    for threads in (1, 2):
        for model in models if threads == 1 else [model for model in models if model in TWO_THREADS]:
            for row in measure_model(model, names, given, threads, args.turns):
                record["networks"].append(row)
                print(_format_row(row), flush=True)
    if not args.no_end_to_end:
        pin(1)  # as the servers
        model = MODELS[0]
        record["people"] = compare_people(model, names, frames)
        record.update(end_to_end(model, names, given, args.calls, args.fresh))
    record["bars"] = judge_bars(record)
    for bar in record["bars"]:
        print(f"{'met    ' if bar['met'] else 'NOT MET'} {bar['name']}: {bar['value']}", flush=True)
    if args.json is not None:
        records.write(args.json, "engines_bench", record)
        print(f"wrote {args.json}", file=sys.stderr)
    if args.plot is not None:
        _plot_rows(args.plot, record["networks"])
    return 0


def measure_model(
    model: str, names: Sequence[str], frames: Sequence[Any], threads: int, turns: int
) -> List[Dict[str, Any]]:
    """A row for each engine of one model."""
    from edge_offload.execute.threads import pin
    from edge_offload_research.engine_comparison import measure_engines
    from edge_offload_research.networks import build_samples

    pin(threads)
    module, inputs = build_samples(model, {}, frames)
    with _no_cache():
        eager, *engines = measure_engines(module, names, inputs, turns)
    return [
        {
            "model": model,
            "threads": threads,
            "engine": one.engine,
            "why_not": one.why_not,
            "pairs": len(one.wall_s),
            "eager_ms": 1e3 * statistics.median(eager.cpu_s),
            "engine_ms": 1e3 * statistics.median(one.cpu_s) if one.cpu_s else None,
            "faster_cpu": _format_number(one.speedup_over(eager, cpu=True)),
            "faster_wall": _format_number(one.speedup_over(eager)),
            "error": one.error,
            "error64": one.error64,
            "eager_error64": eager.error64,
            "first_s": one.first_s,
            "first_cpu_s": one.first_cpu_s,
            "again_s": one.restart_s,
            "again_cpu_s": one.restart_cpu_s,
        }
        for one in engines
    ]


@contextlib.contextmanager
def _no_cache() -> Iterator[None]:
    """Engines are built anew, and left nowhere."""
    from edge_offload.places import CACHE

    before = os.environ.get(CACHE)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[CACHE] = folder
        try:
            yield
        finally:
            del os.environ[CACHE]
            if before is not None:
                os.environ[CACHE] = before


def judge_bars(record: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """Judge the record: name, value as text, and whether the bar is met."""
    results: List[Dict[str, Any]] = []

    def add_bar(name: str, value: str, met: bool) -> None:
        results.append({"name": name, "value": value, "met": met})

    networks = record["networks"]
    best = {
        (model, threads): max((row["faster_cpu"] or 0.0) for row in networks if (row["model"], row["threads"]) == key)
        for key in {(row["model"], row["threads"]) for row in networks}
        for model, threads in [key]
    }
    one = {model: ratio for (model, threads), ratio in best.items() if threads == 1}
    if one:
        mean = math.exp(statistics.fmean(math.log(max(ratio, 1e-9)) for ratio in one.values()))
        add_bar(f"best engine, geometric mean of {len(one)} networks >= {ALL:g} x", f"{mean:.2f} x", mean >= ALL)
    for model, ratio in sorted(one.items()):
        least = MORE.get(model, EACH)
        add_bar(f"best engine, {model} >= {least:g} x", f"{ratio:.2f} x", ratio >= least)
    for (model, threads), ratio in sorted(best.items()):
        if threads == 2:
            add_bar(f"best engine, {model}, two threads >= {TWO:g} x", f"{ratio:.2f} x", ratio >= TWO)
    worst = max((row["error"] for row in networks), default=0.0)
    add_bar(f"outputs within {CLOSE:g} of torch's largest value", f"{worst:.1e}", worst <= CLOSE)
    rated = [row for row in networks if row["error64"] is not None]
    shares = [row["error64"] / (TIMES * row["eager_error64"] + PLUS) for row in rated]
    if shares:
        add_bar(
            f"error from float64 <= {TIMES:g} times torch's + {PLUS:g}", f"{max(shares):.2f} of it", max(shares) <= 1
        )
    for which, what in (("cpu_s", "processor time"), ("s", "time by the wall clock")):
        shares = [row[f"again_{which}"] / row[f"first_{which}"] for row in networks if not row["why_not"]]
        restart_share = max(shares, default=0.0)
        add_bar(
            f"a second start takes <= {RESTART_SHARE:g} of the first's {what}",
            f"{restart_share:.2f}",
            restart_share <= RESTART_SHARE,
        )
    for row in record.get("people", ()):
        same = row["other_count"] == 0 and max(row["box_px"], row["keypoint_px"]) <= PIXELS
        value = f"{row['other_count']} frames, box {row['box_px']:.4f} px, keypoint {row['keypoint_px']:.4f} px"
        add_bar(f"{row['engine']}: as many people in every frame, within {PIXELS:g} px", value, same)
    for row in record.get("bits", ()):
        value = f"{row['equal']} of {row['inputs']}"
        add_bar(f"{row['engine']}: mode server has the bits of local", value, row["equal"] == row["inputs"])
    calls = record.get("links", ())
    for link, mode in sorted({(row["link"], row["mode"]) for row in calls}):
        ratio = max(row["faster"] for row in calls if (row["link"], row["mode"]) == (link, mode))
        add_bar(f"calls, mode {mode}, {link} >= {CALLS[link]:g} x", f"{ratio:.2f} x", ratio >= CALLS[link])
    for row in record.get("idle", ()):
        share = row["share_of_a_core"]
        add_bar(f"{row['engine']}: a server that nobody asks <= {IDLE:.0%} of a core", f"{share:.1%}", share <= IDLE)
    return results


def _format_number(value: float) -> Optional[float]:
    return value if math.isfinite(value) else None


def _format_row(row: Mapping[str, Any]) -> str:
    start = f"{row['model']:<20} {row['threads']} {row['engine']:<12}"
    if row["why_not"]:
        return f"{start} {row['why_not']}"
    return (
        f"{start} {row['engine_ms']:7.1f} ms, torch {row['eager_ms']:7.1f} ms: {row['faster_cpu']:.2f} x, "
        f"wall {row['faster_wall']:.2f} x; error {row['error']:.1e}; ready in {row['first_s']:.1f} s, "
        f"then {row['again_s']:.1f} s"
    )


def _plot_rows(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    from edge_offload_benchmarks.plotting import open_panels

    shown = [row for row in rows if row["threads"] == 1 and row["faster_cpu"]]
    models = list(dict.fromkeys(row["model"] for row in shown))
    engines = list(dict.fromkeys(row["engine"] for row in shown))
    with open_panels(path, 1, 1, (8, 3.5)) as grid:
        axes = grid[0][0]
        for place, engine in enumerate(engines):
            ratios = {row["model"]: row["faster_cpu"] for row in shown if row["engine"] == engine}
            at = [number + place * 0.8 / len(engines) for number in range(len(models))]
            axes.bar(at, [ratios.get(model, 0.0) for model in models], 0.8 / len(engines), label=engine)
        axes.set_xticks([number + 0.2 for number in range(len(models))], models, fontsize=8)
        axes.axhline(1.0, color="grey", linewidth=0.8)
        axes.set_ylabel("torch's processor time / the engine's")
        axes.legend()
