"""``bench adaptive --launch``: the launch file as a user starts it, against every mode held, in real time.

Each run is ``roslaunch edge_offload kapao_tracking.launch`` with processes, link and master of its own. Runs with the
default and with each mode held follow each other in turns, whose order changes. The trace begins with the run, so that
blocks of seconds of one turn meet the same link in every run, and are compared in pairs.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from edge_offload.errors import RemoteError
from edge_offload_benchmarks.processes import burn_cores

AUTO = "auto"
FIXED_MODES = ("local", "server", "replay", "split")
#: Seconds of a block that is compared, and resamplings of its pairs for the interval.
BLOCK_S, RESAMPLED = 5.0, 4000
#: Beyond lead and measured seconds: start and end of a launch.
AROUND_S = 240.0
#: What is held: of the best mode, of the first result and of frames while learning in server; of the truth; a share.
OF_BEST, FIRST, LEARNING, BANDWIDTH, SHARE = 1.03, 1.2, 1.1, 0.15, 0.9
#: Modes that the default is to run in, and how much slower than the best mode held one of them may be.
PROMISED, SLOWER = ("replay", "split"), 1.08


@dataclass(frozen=True)
class Launched:
    """Outcome of one launch.

    Attributes:
        first_s: from the start of roslaunch to the first result.
        latencies: (seconds since the first result, latency in seconds, mode) of each frame.
        rates: what ``offload/bandwidth`` said while frames ran (bytes per second, up).
        taken, results: frames.
        switches, named: decisions behind the first, and those whose reason names a rate.
    """

    first_s: float
    latencies: Sequence[Tuple[float, float, str]]
    rates: Sequence[float]
    taken: int
    results: int
    switches: int
    named: int


def run_launch(
    mode: str, seconds: float, arguments: Mapping[str, str], master_port: int, folder: pathlib.Path
) -> Launched:
    """One run of so many seconds from its first result on.

    Raises:
        RemoteError: it gave no result.
    """
    summary = folder / "summary.json"
    given = {
        "headless": "true", "record": "false", "loop": "true", "progress": "0", "mode": mode,
        "duration": f"{seconds:g}", "json": str(summary), "port": str(master_port + 1),
        "link_port": str(master_port + 2), **arguments,
    }  # fmt: skip
    command = ["roslaunch", "-p", str(master_port), "edge_offload", "kapao_tracking.launch"]
    command += [f"{name}:={value}" for name, value in given.items()]
    environment = {**os.environ, "ROS_MASTER_URI": f"http://127.0.0.1:{master_port}"}
    started_at = time.time()
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        timeout=seconds + AROUND_S, check=False,
    )  # fmt: skip
    if not summary.exists():
        raise RemoteError(f"mode:={mode} gave no summary: {done.stdout[-500:]}")
    return read_launch(summary, started_at)


def read_launch(summary: pathlib.Path, started_at: float) -> Launched:
    """A launch from its summary and the records beside it; ``started_at``: wall-clock time of its start."""
    with summary.with_suffix(".jsonl").open(encoding="utf-8") as stream:
        records = [json.loads(line) for line in stream]
    frames = [item for item in records if item["kind"] == "latency"]
    if not frames:
        raise RemoteError(f"{summary} is of a run without a result")
    first = frames[0]["t_s"]
    run = json.loads(summary.read_text(encoding="utf-8"))
    decisions = [item["reason"] for item in records if item["kind"] == "mode"][1:]
    rates = [item["uplink_bytes_per_s"] for item in records if item["kind"] == "bandwidth" and item["t_s"] > first + 5]
    return Launched(
        first - started_at,
        [(item["t_s"] - first, item["total_s"], item["mode"]) for item in frames],
        [rate for rate in rates if rate > 0],
        run["frames_in"],
        run["results_out"],
        len(decisions),
        sum("MB/s" in reason or "kB/s" in reason for reason in decisions),
    )


def compare_modes(
    turns: int, lead_s: float, seconds: float, arguments: Mapping[str, str], truth: float = 0.0, port: int = 11911,
    folder: Optional[pathlib.Path] = None, modes: Sequence[str] = FIXED_MODES, busy: int = 0,
) -> Dict[str, Any]:  # fmt: skip
    """The record ``adaptive_launch``.

    Args:
        turns: in each, all modes are run once.
        lead_s: of every run, while the default one learns and makes plans; 0: that is what is compared.
        seconds: behind that.
        arguments: of the launch file.
        truth: bytes per second of a link that does not change; 0: one that does.
        port: of the first master, and two behind it.
        folder: folder for what each run did; one that is there already is not run again.
        modes: modes that are, ``server`` among them.
        busy: processes beside each run that use a processor all the time.
    """
    names = (AUTO, *modes)
    runs: Dict[str, List[Launched]] = {name: [] for name in names}
    for turn in range(turns):
        for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
            saved = None if folder is None else folder / f"{turn + 1}_{name}.json"
            with burn_cores(busy, lead_s + seconds + AROUND_S):
                runs[name].append(_run(saved, name, lead_s + seconds, arguments, port))
            row = _row_of(name, runs[name], lead_s, truth)
            print(f"turn {turn + 1}, {name:6}: mean {row['mean_s'] * 1e3:5.0f} ms over {row['frames']} frames, "
                  f"first result after {row['first_s']:.1f} s, {row['share']}", flush=True)  # fmt: skip
    return {**judge_launches(runs, lead_s, seconds, arguments, truth), "busy": busy}


def _run(saved: Optional[pathlib.Path], mode: str, seconds: float, arguments: Mapping[str, str], port: int) -> Launched:
    if saved is not None and saved.exists():
        return Launched(**json.loads(saved.read_text(encoding="utf-8")))
    with tempfile.TemporaryDirectory() as folder:
        launched = run_launch(mode, seconds, arguments, port, pathlib.Path(folder))
    if saved is not None:
        saved.parent.mkdir(parents=True, exist_ok=True)
        saved.write_text(json.dumps(launched.__dict__), encoding="utf-8")
    return launched


def judge_launches(
    runs: Mapping[str, Sequence[Launched]], lead_s: float, seconds: float, arguments: Mapping[str, str], truth: float
) -> Dict[str, Any]:
    """The record of runs by mode."""
    rows = [_row_of(name, launches, lead_s, truth) for name, launches in runs.items()]
    learning = ratio_between(runs[AUTO], runs["server"], 0.0, lead_s or seconds)
    mine = next(row for row in rows if row["mode"] == AUTO)
    first = mine["first_s"] / next(row["first_s"] for row in rows if row["mode"] == "server")
    wrong = [row for row in rows if row["taken"] != row["results"]]
    named = sum(run.named for run in runs[AUTO]), sum(run.switches for run in runs[AUTO])
    bars = [
        *(_judge_afterwards(runs, rows, lead_s, seconds) if lead_s else ()),
        (f"first result <= {FIRST:g} x that of server", f"{first:.2f} x", first <= FIRST),
        (
            f"frames while learning <= {LEARNING:g} x those of server",
            f"{_format_span(learning)} x",
            learning[0] <= LEARNING,
        ),
        ("frames taken = results", f"in {len(rows) - len(wrong)} of {len(rows)} rows", not wrong),
        ("every decision names the rate", f"{named[0]} of {named[1]}", named[0] == named[1]),
    ]
    if truth:
        worst = max(rows, key=lambda row: float(row["bandwidth_error"]))
        bars.append((f"offload/bandwidth within {BANDWIDTH:.0%} (median) in every mode",
                     f"at most {worst['bandwidth_error']:.0%}, in {worst['mode']}",
                     worst["bandwidth_error"] <= BANDWIDTH))  # fmt: skip
    return {
        "arguments": dict(arguments),
        "turns": len(runs[AUTO]),
        "lead_s": lead_s,
        "seconds": seconds,
        "cores": os.cpu_count() or 1,
        "load_average": os.getloadavg()[0],
        "rows": rows,
        "bars": [{"name": name, "value": value, "met": bool(met)} for name, value, met in bars],
    }


def _judge_afterwards(
    runs: Mapping[str, Sequence[Launched]], rows: Sequence[Mapping[str, Any]], lead_s: float, seconds: float
) -> List[Tuple[str, str, bool]]:
    """Judge the default after its lead."""
    means = {row["mode"]: row["mean_s"] for row in rows if row["mode"] != AUTO}
    best = min(means, key=lambda name: means[name])
    after = ratio_between(runs[AUTO], runs[best], lead_s, lead_s + seconds)
    shares = next(row["share"] for row in rows if row["mode"] == AUTO)
    held = [ratio_between(runs[mode], runs[best], lead_s, lead_s + seconds) for mode in PROMISED if mode in runs]
    # a mode that is faster beyond doubt takes their place
    modes = (best,) if held and all(low >= SLOWER for _, low, _ in held) else PROMISED
    share = sum(shares.get(mode, 0.0) for mode in modes)
    return [
        (f"mean latency <= {OF_BEST:g} x the best mode held", f"{_format_span(after)} x {best}", after[0] <= OF_BEST),
        (f">= {SHARE:.0%} of the default's frames in {' or '.join(modes)}", f"{share:.0%}", share >= SHARE),
    ]


def _row_of(name: str, runs: Sequence[Launched], lead_s: float, truth: float) -> Dict[str, Any]:
    frames = [frame for run in runs for frame in run.latencies if frame[0] >= lead_s]
    if not frames:
        raise RemoteError(f"mode:={name} gave no result behind the first {lead_s:g} s; give it more --seconds")
    modes = [frame[2] for frame in frames]
    errors = [abs(rate / truth - 1) for run in runs for rate in run.rates] if truth else []
    return {
        "mode": name,
        "frames": len(frames),
        "mean_s": float(np.mean([frame[1] for frame in frames])),
        "p50_s": float(np.median([frame[1] for frame in frames])),
        "p99_s": float(np.percentile([frame[1] for frame in frames], 99)),
        "share": {mode: round(modes.count(mode) / len(modes), 4) for mode in dict.fromkeys(modes)},
        "first_s": float(np.median([run.first_s for run in runs])),
        "taken": sum(run.taken for run in runs),
        "results": sum(run.results for run in runs),
        "bandwidth_error": float(np.median(errors)) if errors else None,
    }


def ratio_between(
    ones: Sequence[Launched], others: Sequence[Launched], begin_s: float, end_s: float
) -> Tuple[float, float, float]:
    """Mean latency of one mode over another's between two times, and its 95 % interval.

    Blocks of the same seconds of the same turn are a pair; pairs are drawn again and again with replacement.
    """
    pairs = []
    for one, other in zip(ones, others):
        for start in np.arange(begin_s, end_s, BLOCK_S):
            block = [[seconds for at, seconds, _ in run.latencies if start <= at < start + BLOCK_S]
                     for run in (one, other)]  # fmt: skip
            if all(block):
                pairs.append([float(np.mean(item)) for item in block])
    if not pairs:
        raise RemoteError("there is no pair of blocks to compare; give it more --seconds")
    values = np.asarray(pairs)
    drawn = values[np.random.default_rng(0).integers(len(values), size=(RESAMPLED, len(values)))].mean(axis=1)
    low, high = np.percentile(drawn[:, 0] / drawn[:, 1], [2.5, 97.5])
    mean = values.mean(axis=0)
    return float(mean[0] / mean[1]), float(low), float(high)


def _format_span(bounds: Tuple[float, float, float]) -> str:
    return f"{bounds[0]:.3f} [{bounds[1]:.3f}, {bounds[2]:.3f}]"
