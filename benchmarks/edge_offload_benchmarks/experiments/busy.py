"""A busy machine and a constant link: whether forecasts stay sober and the mode stays put, and a true fall is seen.

Robot and server are processes of this machine, joined by the emulated link of 93 Mbit/s, beside busy processes that
want every core. A policy chooses between local and server, frame by frame, while the link does not change; then the
link falls to a tenth. Everything is measured in the running system: what the robot expected before a frame, what the
frame took, what it took the link for. The emulator stands for a radio, which no load slows down: its thread is given
precedence where this process may (root); the record says whether.

  edge-offload bench busy                         8 busy processes, 60 s of a constant link, 20 s after its fall
  edge-offload bench busy --busy 0                the same on a machine that is as idle as it is
  edge-offload bench busy --json busy.json

ratio: of the forecast to what the frame took, or the other way round, whichever is above 1. delay: mean wait of a
thread of the link for a processor, robot + server. followed: seconds from the fall to the first frame that begins with
an estimate of the link within a factor of two of what it carries.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, List, Sequence

from edge_offload.outputs import add_output

if TYPE_CHECKING:
    from edge_offload_benchmarks.chaos.rig import Rig

#: What the link falls to.
FALL = 0.1
#: An estimate within this factor of the truth has followed it, and so has a forecast.
NEAR = 2.0
#: What is held: mode changes a minute, ratio of the median forecast, seconds to follow a fall.
CHANGES, RATIO, FOLLOWED_S = 2.0, 2.0, 5.0
#: Pixels of a picture's side (590 kB on the link), and what the robot is slowed by: the server pays at 93 Mbit/s only.
SIZE, SLOWDOWN = 448, 16.0
#: Seconds before anything is counted.
SETTLING_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--busy", type=int, default=8, metavar="N", help="busy processes beside (8)")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="of the constant link (60)")
    parser.add_argument("--fall-seconds", type=float, default=20.0, metavar="S", help="after its fall to a tenth (20)")
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="so many times (1)")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the records busy_bench here")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload import records
    from edge_offload.errors import BadInput

    if args.busy < 0 or args.runs < 1 or args.seconds < 10 or args.fall_seconds < 6:
        raise BadInput("--busy is at least 0, --runs 1, --seconds 10, --fall-seconds 6")
    rows = []
    heads = (
        "busy",
        "load",
        "frames",
        "changes/min",
        "ratio median",
        "worst s",
        "Mbit/s p5 p50 p95",
        "delay ms",
        "followed",
    )
    print("{:>4} {:>5} {:>6} {:>11} {:>12} {:>7} {:>17} {:>9} {:>8}".format(*heads))
    for _ in range(args.runs):
        row = measure_link(args.busy, args.seconds, args.fall_seconds)
        rows.append(row)
        followed = "never" if row["followed_s"] is None else f"{row['followed_s']:.2f} s"
        rates = " ".join(f"{row['uplink_mbps'][name]:.0f}" for name in ("p5", "p50", "p95"))
        delays = "+".join(f"{row['scheduling_s'][side] * 1e3:.0f}" for side in ("robot", "server"))
        print(
            f"{row['busy']:4d} {row['load_average']:5.1f} {row['frames']:6d} {row['changes_per_min']:11.1f} "
            f"{row['ratio']['p50']:12.2f} {row['worst_forecast_s']:7.2f} {rates:>17} {delays:>9} {followed:>8}",
            flush=True,
        )
        for bar in row["bars"]:
            print(f"  {'met    ' if bar['met'] else 'NOT MET'} {bar['name']}: {bar['value']}", flush=True)
    if args.json is not None:
        records.write(args.json, "busy_bench", rows)
        print(f"wrote {args.json}", file=sys.stderr)
    return 0


def measure_link(busy: int, seconds: float, fall_s: float) -> Dict[str, Any]:
    """One run: the constant link, then its fall."""
    from edge_offload_benchmarks.chaos.rig import MBPS, Rig
    from edge_offload_benchmarks.processes import burn_cores

    with Rig(["--size", str(SIZE), "--slowdown", str(SLOWDOWN)]) as rig, burn_cores(
        busy, SETTLING_S + seconds + fall_s
    ):
        favoured = favour_thread("edge_offload-emulator")
        time.sleep(SETTLING_S)
        started_at = time.monotonic()
        time.sleep(seconds)
        load = os.getloadavg()[0]
        rig.emulator.set(mbps=FALL * MBPS)
        fell = time.monotonic()
        time.sleep(fall_s)
        frames = frames_of(rig)
    steady = [frame for frame in frames if started_at <= frame["t"] < fell - frame["total_s"]]
    after = [frame for frame in frames if frame["t"] >= fell]
    row = {
        "busy": busy,
        "cores": os.cpu_count(),
        "load_average": load,
        "link_favoured": favoured,
        "mbps": MBPS,
        "seconds": fell - started_at,
        **judge_frames(steady, (fell - started_at) / 60),
        **judge_fall(after, fell),
    }
    return {**row, "bars": judge_bars(row)}


def frames_of(rig: Rig) -> List[Dict[str, Any]]:
    """The frames of the robot, once it has ended."""
    rig.end_robot()
    return rig.read_frames()


def judge_frames(frames: Sequence[Dict[str, Any]], minutes: float) -> Dict[str, Any]:
    """Summarise the frames of the constant link.

    Raises:
        RemoteError: they are too few.
    """
    from edge_offload.errors import RemoteError
    from edge_offload_research.emulate.trace import BYTES_PER_MBIT

    forecasted = [frame for frame in frames if frame["forecast_s"]]
    if len(forecasted) < 2:
        raise RemoteError(f"only {len(forecasted)} frames were finished", remedy="give it more --seconds")
    # a frame that ended in another mode is not what was forecast
    ratios = [f["forecast_s"] / f["total_s"] for f in forecasted if f["mode"] == f["asked"]]
    requested = [frame["asked"] for frame in frames]
    changes = sum(one != another for one, another in zip(requested, requested[1:]))
    return {
        "frames": len(frames),
        "changes": changes,
        "changes_per_min": max(0, changes - 1) / minutes,
        "server_share": sum(frame["mode"] == "server" for frame in frames) / len(frames),
        "total_s": {
            mode: percentiles_of([f["total_s"] for f in frames if f["mode"] == mode]) for mode in ("local", "server")
        },
        "ratio": percentiles_of([max(ratio, 1 / ratio) for ratio in ratios]),
        "worst_forecast_s": max(frame["worst_s"] for frame in forecasted),
        "worst_error_s": max(frame["forecast_error_s"] for frame in forecasted),
        "uplink_mbps": percentiles_of([f["uplink"] / BYTES_PER_MBIT for f in frames if f["uplink"] > 0]),
        "scheduling_s": {
            side: statistics.median(frame["scheduling_s"][place] for frame in frames)
            for place, side in enumerate(("robot", "server"))
        },
    }


def percentiles_of(values: Sequence[float]) -> Dict[str, float]:
    """5th, 50th and 95th percentile; zeros if there is nothing."""
    import numpy as np

    return {f"p{at}": float(np.percentile(values, at)) if values else 0.0 for at in (5, 50, 95)}


def judge_fall(frames: Sequence[Dict[str, Any]], fell: float) -> Dict[str, Any]:
    """Summarise the frames after the fall."""
    from edge_offload_benchmarks.chaos.rig import MBPS
    from edge_offload_research.emulate.trace import BYTES_PER_MBIT

    truth = FALL * MBPS * BYTES_PER_MBIT
    near = [(f["t"] - fell, 1 / NEAR <= f["uplink"] / truth <= NEAR) for f in frames if f["uplink"] > 0]
    late = [good for t, good in near if t > FOLLOWED_S]
    away = next((f["t"] - fell for f in frames if f["asked"] == "local"), None)
    return {
        "followed_s": min((t for t, good in near if good), default=None),
        "left_the_server_s": away,
        "near_share": sum(late) / max(1, len(late)),
        "fallen_mbps": statistics.median(f["uplink"] for f in frames) / BYTES_PER_MBIT if frames else 0.0,
    }


def judge_bars(row: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Judge the row: name, value as text, and whether the bar is met."""
    followed = row["followed_s"]
    reaction = "never" if followed is None else f"{followed:.2f} s"
    return [
        {
            "name": f"at most {CHANGES:g} mode changes a minute after the first",
            "value": f"{row['changes_per_min']:.1f}",
            "met": row["changes_per_min"] <= CHANGES,
        },
        {
            "name": f"forecasts within a factor of {RATIO:g}, median",
            "value": f"{row['ratio']['p50']:.2f}",
            "met": row["ratio"]["p50"] <= RATIO,
        },
        {
            "name": f"a fall to a tenth followed within {FOLLOWED_S:g} s",
            "value": reaction,
            "met": followed is not None and followed <= FOLLOWED_S,
        },
    ]


def favour_thread(name: str) -> bool:
    """Let a thread of this process go first; False where that is not allowed."""
    for thread in threading.enumerate():
        if thread.name == name and thread.native_id is not None:
            try:
                os.setpriority(os.PRIO_PROCESS, thread.native_id, -20)
            except OSError:
                return False
            return True
    return False
