"""Every mode held against every other, frame by frame in turns, and what ``auto`` chooses beside them.

A robot's process, a server's and the emulated link between them, on this machine; one thread each. A round is the same
frame of the sample video once in each of local, server, replay and split, and once wherever ``auto`` sends it; who
begins changes from round to round, so that all of them meet the same machine, however busy it is.

  edge-offload bench modes                                     three settings, 60 rounds each
  edge-offload bench modes --setting movenet,93,2.6,4          network, Mbit/s, round trip in ms, slowdown of the robot

ratio: median over the rounds of a mode's latency over that of server in the same round, with the 95 % interval of that
median (rounds drawn with replacement). best: the mode with the least median; beyond doubt if its interval against the
next one lies below 1. A plan of split that divides nothing is the mode that does the same, and no rival to it. Frames
that fell back to the robot count as they are, and are told.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile
from typing import Any, Dict, Sequence, Tuple

from edge_offload.outputs import add_output

SETTINGS = ("kapao_vtest,2,20,1", "kapao_vtest,93,2.6,8", "kapao_vtest,30,2.6,3")
AUTO, BASE = "auto", "server"
RESAMPLED = 4000
BETWEEN_S = 900.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--setting", action="append", metavar="MODEL,MBPS,RTT_MS,SLOWDOWN", help="may be repeated")
    parser.add_argument("--rounds", type=int, default=60, metavar="N", help="of each setting (60)")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="add the records modes_bench to those here")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload import records
    from edge_offload.errors import BadInput

    settings = [_parse_setting(text) for text in args.setting or SETTINGS]
    if args.rounds < 2:
        raise BadInput("--rounds is at least 2")
    if args.json is not None:
        records.read_list(args.json, "modes_bench")  # whether it holds anything else shows before minutes of runs
    for setting in settings:
        record = judge_setting(setting, measure_setting(setting, args.rounds))
        show_record(record)
        if args.json is not None:
            others = [item for item in records.read_list(args.json, "modes_bench")
                      if any(item[name] != record[name] for name in setting)]  # fmt: skip
            records.write(args.json, "modes_bench", [*others, record])
            print(f"wrote {args.json}", file=sys.stderr)
    return 0


def _parse_setting(text: str) -> Dict[str, Any]:
    from edge_offload.errors import BadInput

    try:
        model, mbps, rtt_ms, slowdown = text.split(",")
        return {"model": model, "mbps": float(mbps), "rtt_ms": float(rtt_ms), "slowdown": float(slowdown)}
    except ValueError:
        raise BadInput(f"--setting {text}", remedy="MODEL,MBPS,RTT_MS,SLOWDOWN, such as movenet,93,2.6,4") from None


def measure_setting(setting: Dict[str, Any], rounds: int) -> Dict[str, Any]:
    """Run server, link and robot, and the rounds."""
    from edge_offload_benchmarks.processes import ONE_THREAD, LinkEmulator, Process, Server, edge_offload, two_cores

    first, second = two_cores()
    with tempfile.TemporaryDirectory() as keys, Server(
        "--keys", keys, environment=ONE_THREAD, cores=[second]
    ) as server, LinkEmulator(server.address, setting["mbps"], setting["rtt_ms"]) as emulator:
        end = ["--server", emulator.address, "--keys", keys]
        program = [sys.executable, "-m", "edge_offload_benchmarks.modes_robot", *end, "--model", setting["model"]]
        command = [*edge_offload("exec", "--absent", "later", *end, "--"), *program]
        with Process([*command, "--slowdown", str(setting["slowdown"])], ONE_THREAD, cores=[first]) as robot:
            record = robot.request_answer({"rounds": rounds}, BETWEEN_S + 10 * rounds)
            robot.end()
    return record


def judge_setting(setting: Dict[str, Any], record: Dict[str, Any]) -> Dict[str, Any]:
    """The record of one setting."""
    import numpy as np

    rounds = record["rounds"]
    seconds = {name: np.array([each[name][0] for each in rounds]) for name in rounds[0]}
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    # a plan that divides nothing is another mode under the name of split
    excluded = (AUTO, "split") if record["plan"] in ("device-only", "server-only") else (AUTO,)
    fixed_modes = sorted((name for name in seconds if name not in excluded), key=lambda name: medians[name])
    chosen = [each[AUTO][1] for each in rounds]
    best, after = fixed_modes[0], fixed_modes[1 % len(fixed_modes)]
    ratio_bounds = ratio_interval(seconds[best], seconds[after])
    rows = []
    for name in seconds:
        ratio = ratio_interval(seconds[name], seconds[BASE])
        rows.append({
            "mode": name, "median_s": medians[name], "mean_s": float(seconds[name].mean()), "ratio": list(ratio),
            "fell_back": sum(bool(each[name][2]) for each in rounds),
        })  # fmt: skip
    return {
        **setting,
        "rounds": len(rounds),
        "cores": os.cpu_count() or 1,
        "load_average": record["load"],
        "rows": rows,
        "best": best,
        "beyond_doubt": ratio_bounds[2] < 1.0,
        "best_over_next": list(ratio_bounds),
        "chosen": {mode: round(chosen.count(mode) / len(chosen), 4) for mode in dict.fromkeys(chosen)},
        "auto_over_best": list(ratio_interval(seconds[AUTO], seconds[best])),
        "plan": record["plan"],
        "lacks": record["lacks"],
        "last_reason": rounds[-1][AUTO][3],
    }


def ratio_interval(ones: Any, others: Any) -> Tuple[float, float, float]:
    """Median of the ratios of pairs, and its 95 % interval."""
    import numpy as np

    ratios = np.asarray(ones) / np.asarray(others)
    drawn = np.median(ratios[np.random.default_rng(0).integers(len(ratios), size=(RESAMPLED, len(ratios)))], axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(np.median(ratios)), float(low), float(high)


def show_record(record: Dict[str, Any]) -> None:
    """A table, and what ``auto`` did."""
    print(f"\n{record['model']}, {record['mbps']:g} Mbit/s, {record['rtt_ms']:g} ms, robot slowed "
          f"{record['slowdown']:g} times; {record['rounds']} rounds, load average "
          f"{record['load_average']:.1f}")  # fmt: skip
    for row in record["rows"]:
        print(f"  {row['mode']:7} median {row['median_s'] * 1e3:7.1f} ms, {_format_span(row['ratio'])} x server, "
              f"{row['fell_back']} fell back")  # fmt: skip
    for name, why in record["lacks"].items():
        print(f"  {name} could not run: {why}")
    doubt = "" if record["beyond_doubt"] else ", not beyond doubt"
    print(
        f"  best: {record['best']} ({_format_span(record['best_over_next'])} x the next{doubt})\n  split is "
        f"{record['plan'] or '-'}; auto ran {_format_shares(record)}, "
        f"{_format_span(record['auto_over_best'])} x the best",
        flush=True,
    )


def _format_shares(record: Dict[str, Any]) -> str:
    return ", ".join(f"{mode} {share:.0%}" for mode, share in record["chosen"].items())


def _format_span(bounds: Sequence[float]) -> str:
    return f"{bounds[0]:.3f} [{bounds[1]:.3f}, {bounds[2]:.3f}]"
