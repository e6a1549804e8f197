"""Bandwidth estimation against the truth of the link emulator: error, and how soon a drop or rise is followed.

A client and a server in this process talk through the emulated link; requests of --up-kb and replies of --down-kb
follow one another at --fps, as the frames of a camera do. The estimate is read 20 times a second and compared with the
bandwidth that the emulator is set to at that moment, which the estimator never sees.

  edge-offload bench bandwidth                                     steps, ramps, outages, idle (with probes), 20 s each
  edge-offload bench bandwidth --trace indoors.csv --seconds 120   a trace from its beginning
  edge-offload bench bandwidth --json bandwidth.json

error: |estimate - truth| / truth over the samples with a bandwidth above 0.1 MB/s. lag: from a step of the truth by
more than 30 % to the first estimate within 30 % of the new truth, or closer to it than to the old one by the logarithm.
flaps: changes of the estimate by more than 30 % within 0.5 s while the truth stood still, per minute.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Sequence, Tuple

from edge_offload.outputs import add_output

if TYPE_CHECKING:
    from edge_offload_research.emulate.trace import Trace

SCENARIOS = ("steps", "ramps", "outages", "idle")
READ_S = 0.05
NOTHING = 0.1e6
STEP = 0.3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="only this one (may be repeated)")
    parser.add_argument("--trace", type=pathlib.Path, metavar="CSV", help="a trace instead of the scenarios")
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="of each scenario or trace (20)")
    parser.add_argument("--up-kb", type=float, default=200.0, metavar="KB", help="of a request (200)")
    parser.add_argument("--down-kb", type=float, default=40.0, metavar="KB", help="of a reply (40)")
    parser.add_argument("--fps", type=float, default=10.0, metavar="F", help="requests per second at most (10)")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the records bandwidth_bench here")


@dataclass(frozen=True)
class Sample:
    """Truth and estimate of one direction at one moment (bytes per second)."""

    t_s: float
    truth: float
    estimate: float


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload import records
    from edge_offload.errors import BadInput
    from edge_offload_research.emulate.trace import load_trace

    if args.seconds <= 0 or args.fps <= 0 or args.up_kb < 1 or args.down_kb < 0:
        raise BadInput("--seconds, --fps and --up-kb must be positive")
    if args.trace is not None:
        plans = {args.trace.stem: load_trace(args.trace)}
    else:
        plans = {name: make_scenario(name) for name in args.scenario or SCENARIOS}
    rows = []
    heads = ("scenario", "way", "error mean", "p50", "p90", "lag of drops", "rises", "flaps/min")
    print("{:18} {:5} {:>10} {:>6} {:>6} {:>13} {:>7} {:>9}".format(*heads))
    for name, trace in plans.items():
        fps = 0.0 if name == "idle" else args.fps
        measured = measure(trace, args.seconds, args.up_kb * 1e3, args.down_kb * 1e3, fps)
        for way, samples in measured.items():
            row = {"scenario": name, "direction": way, "seconds": args.seconds, "fps": fps, **judge_samples(samples)}
            rows.append(row)
            shown = {key: math.nan if row[key] is None else row[key] for key in ("drop_lag_s", "rise_lag_s")}
            print(
                f"{name:18} {way:5} {row['error_mean']:10.1%} {row['error_p50']:6.1%} {row['error_p90']:6.1%} "
                f"{shown['drop_lag_s']:11.2f} s {shown['rise_lag_s']:5.2f} s {row['flaps_per_min']:9.1f}",
                flush=True,
            )
    if args.json is not None:
        records.write(args.json, "bandwidth_bench", rows)
        print(f"wrote {args.json}", file=sys.stderr)
    return 0


def make_scenario(name: str) -> Trace:
    """One of :data:`SCENARIOS` as a trace."""
    from edge_offload_research.emulate.trace import Trace

    mb = 1e6
    if name in ("steps", "idle"):
        rates = [12.0, 3.0, 12.0, 6.0, 1.0, 9.0]
        return Trace(tuple(3.0 * i for i in range(len(rates))), tuple(rate * mb for rate in rates), 18.0)
    if name == "ramps":
        values = [*(12.0 * 0.8**i for i in range(12)), *(12.0 * 0.8 ** (11 - i) for i in range(12))]
        return Trace(tuple(0.5 * i for i in range(24)), tuple(rate * mb for rate in values), 12.0)
    return Trace((0.0, 3.0, 3.6, 7.0, 7.6), (10 * mb, 0.0, 10 * mb, 0.0, 5 * mb), 10.0)


def measure(trace: Trace, seconds: float, up: float, down: float, fps: float) -> Dict[str, List[Sample]]:
    """Run the link for ``seconds``; samples by direction. ``fps`` 0: nothing but probes travels."""
    from edge_offload.link.security.keys import KeyStore
    from edge_offload.link.transport.client import Client
    from edge_offload.link.transport.listener import Listener
    from edge_offload.link.transport.prober import Prober
    from edge_offload_research.emulate.emulator import Emulator
    from edge_offload_research.emulate.trace import Link

    answer = bytes(int(down))
    samples: Dict[str, List[Sample]] = {"up": [], "down": []}
    with tempfile.TemporaryDirectory() as directory:
        keys = KeyStore(directory)
        with Listener(welcome=lambda *_: {}, handle=lambda request: request.reply({}, [answer]), keys=keys) as listener:
            link = Link.of("bench", trace)
            with Emulator("127.0.0.1:0", listener.address, link) as emulator, Client(
                emulator.address, keys=keys
            ) as client:
                client.wait_ready(10.0)
                emulator.set_link(link)
                prober = Prober(client).start()
                stop = threading.Event()
                sender = threading.Thread(target=_send_frames, args=(client, int(up), fps, stop), daemon=True)
                sender.start()
                started_at = time.monotonic()
                try:
                    while time.monotonic() - started_at < seconds:
                        time.sleep(READ_S)
                        stats, reading = emulator.stats(), client.estimator.make_reading(time.monotonic())
                        t = time.monotonic() - started_at
                        samples["up"].append(Sample(t, stats["bytes_per_s_up"], reading.uplink))
                        samples["down"].append(Sample(t, stats["bytes_per_s_down"], reading.downlink))
                finally:
                    stop.set()
                    sender.join()
                    prober.close()
    return samples


def _send_frames(client: Any, size: int, fps: float, stop: threading.Event) -> None:
    from edge_offload.errors import EdgeOffloadError

    payload = bytes(size)
    while fps and not stop.is_set():
        started_at = time.monotonic()
        future = client.request("frame", {}, [payload], timeout_s=30.0)
        while not stop.is_set() and not future.done():
            stop.wait(0.002)
        if future.done():
            try:
                future.result()
            except EdgeOffloadError:
                stop.wait(0.05)
        stop.wait(max(0.0, 1 / fps - (time.monotonic() - started_at)))


def judge_samples(samples: Sequence[Sample]) -> Dict[str, Any]:
    """Error, lags and flaps of one direction."""
    import numpy as np

    # the first second finds the link
    errors = [abs(s.estimate - s.truth) / s.truth for s in samples if s.truth > NOTHING and s.t_s > 1.0]
    drops, rises = measure_lags(samples)
    minutes = max(samples[-1].t_s / 60, 1e-9)
    return {
        "error_mean": float(np.mean(errors)) if errors else 0.0,
        "error_p50": float(np.percentile(errors, 50)) if errors else 0.0,
        "error_p90": float(np.percentile(errors, 90)) if errors else 0.0,
        "drop_lag_s": max(drops, default=None),
        "rise_lag_s": max(rises, default=None),
        "drops": len(drops),
        "rises": len(rises),
        "flaps_per_min": count_flaps(samples) / minutes,
    }


def measure_lags(samples: Sequence[Sample]) -> Tuple[List[float], List[float]]:
    """Measure the seconds from every step of the truth to the estimate that has followed it: of drops, of rises."""
    drops: List[float] = []
    rises: List[float] = []
    for i in range(1, len(samples)):
        old, new = max(samples[i - 1].truth, NOTHING), max(samples[i].truth, NOTHING)
        if samples[i].t_s < 1.0 or abs(math.log(new / old)) < math.log(1 + STEP):
            continue
        for later in samples[i:]:
            if max(later.truth, NOTHING) != new:
                break
            seen = max(later.estimate, NOTHING)
            if abs(seen - new) <= STEP * new or abs(math.log(seen / new)) < abs(math.log(seen / old)):
                (drops if new < old else rises).append(later.t_s - samples[i].t_s)
                break
    return drops, rises


def count_flaps(samples: Sequence[Sample]) -> int:
    """Jumps of the estimate that no change of the truth in the last 1.5 s explains."""
    count = 0
    for before, after in zip(samples, samples[1:]):
        if before.estimate <= 0 or after.estimate <= 0 or after.t_s < 2.0:
            continue
        recent = [s.truth for s in samples if after.t_s - 1.5 <= s.t_s <= after.t_s]
        jumped = abs(math.log(after.estimate / before.estimate)) > math.log(1 + STEP)
        count += jumped and max(recent) <= 1.05 * min(recent)
    return count
