"""Do harm to a robot and its server on this machine, and check that no frame is lost, doubled, wrong or kept waiting.

Each scenario starts a server process, a robot process with a camera and the automatic mode, and an emulated link of
93 Mbps between them, lets frames flow, applies a fault from outside of both, makes it good, and judges:

  published = taken + superseded, results = taken, none doubled, every result bit-equal to the local one, no crash;
  neither robot nor server holds more descriptors, sockets, threads, processes or memory after the last repetition of
  the fault than after the first; in the fault p99 at most 20 ms above local p99 of the same run (stalls: 40 ms; not
  where members of a pool are lost); in an outage no frame waits in vain for the server but those that were under way;
  frames go to the server again within 2 s after the fault. --carry: p99 from a frame to its result at most a frame
  interval (clock_steps: two). --turns: never two offloads outstanding, and none without a turn.

  edge-offload chaos                          every scenario, three faults each, about 30 s each; those of a pool
                                              in mode server alone
  edge-offload chaos blackhole server_kill    these
  edge-offload chaos reset --repeat 30        many times, to see what leaks
  edge-offload chaos --full --json chaos.json faults of 15 s
  edge-offload chaos stalls --json chaos.json --update      put this one among what the file holds
  edge-offload chaos --json chaos.json --resume             go on with a run that was cut off
  edge-offload chaos --mode split blackhole   frames are split between robot and server, results within its tolerance
  edge-offload chaos --in-flight 2            two frames under way at once, both with their results in an outage
  edge-offload chaos --in-flight 2 --carry    and every frame leaves at once, with the newest result there is
  edge-offload chaos --turns --carry          two networks of one robot take turns at the server: never two under way
  edge-offload chaos --level packet           over real packets (root): segments are lost, repeated and reset by kernels
  edge-offload chaos --list

On a machine that is busy with something else, latencies say little: --no-timing reports them and judges the rest.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

from edge_offload.outputs import Kept, add_output

if TYPE_CHECKING:
    from edge_offload_benchmarks.chaos.verdict import Verdict

MODES = ("server", "split", "replay")
LEVELS = ("tcp", "packet")
HOLD_S, FULL_HOLD_S = 5.0, 15.0
REPEAT = 3
STEADY_S, RECOVER_S, SETTLE_S = 1.5, 15.0, 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("scenario", nargs="*", metavar="SCENARIO", help="default: all")
    parser.add_argument("--list", action="store_true", help="say what there is")
    parser.add_argument("--full", action="store_true", help="faults of 15 s instead of 5")
    parser.add_argument("--hold", type=float, metavar="S", help="length of the faults, seconds")
    parser.add_argument(
        "--repeat", type=int, default=REPEAT, metavar="N", help=f"faults one after the other ({REPEAT})"
    )
    parser.add_argument("--no-timing", action="store_true", help="report latencies but do not judge them")
    parser.add_argument("--level", choices=LEVELS, default="tcp", help="of the link: a proxy of TCP (default), packets")
    parser.add_argument("--mode", choices=MODES, default=MODES[0], help="where frames go but local")
    parser.add_argument("--in-flight", type=int, default=1, metavar="N", help="frames under way at once (1)")
    parser.add_argument("--carry", action="store_true", help="every frame leaves at once, carried along")
    parser.add_argument("--turns", action="store_true", help="two networks, which take turns at the server")
    parser.add_argument("--accuracy", type=float, metavar="BOUND", help="--carry, with a promise of the server")
    add_output(parser, "--json", metavar="FILE", help="write the records chaos here; - for standard output")
    parser.add_argument("--update", action="store_true", help="keep what the file holds of other scenarios")
    parser.add_argument("--resume", action="store_true", help="--update, without what the file holds as passed")


def run(args: argparse.Namespace) -> int:
    """Run the scenarios; 1 if anything did not hold."""
    from edge_offload import records
    from edge_offload.errors import BadInput
    from edge_offload.manager.tuning import MOST_IN_FLIGHT
    from edge_offload_benchmarks.chaos.scenarios import SCENARIOS, list_scenarios

    if args.list:
        for name, scenario in SCENARIOS.items():
            print(f"{name:16} {scenario.what}")
        return 0
    unknown = [name for name in args.scenario if name not in SCENARIOS]
    if unknown:
        raise BadInput(f"no scenario {unknown[0]!r}", remedy=f"scenarios: {', '.join(SCENARIOS)}")
    pooled = [name for name in args.scenario if name not in list_scenarios(args.mode, args.level)]
    if pooled:
        where, remedy = f"mode {args.mode} over the level {args.level}", "leave out --mode and --level"
        raise BadInput(f"{pooled[0]} in {where}: a pool computes in mode server over a proxy", remedy=remedy)
    hold_s = args.hold or (FULL_HOLD_S if args.full else HOLD_S)
    if not 0 < hold_s <= 600:
        raise BadInput(f"--hold {hold_s:g} is not a length of a fault")
    if not 1 <= args.repeat <= 1000:
        raise BadInput(f"--repeat {args.repeat} is not a number of faults")
    if args.accuracy is not None and not (0 < args.accuracy <= 1 and args.mode == "server"):
        raise BadInput(f"--accuracy {args.accuracy:g}", remedy="give a bound above 0 and at most 1; --mode server")
    if args.turns and (args.mode != "server" or args.in_flight > 1 or args.accuracy is not None):
        raise BadInput("--turns is one offload at a time in mode server", remedy="leave out --mode and --in-flight")
    if not 1 <= args.in_flight <= MOST_IN_FLIGHT:
        raise BadInput(f"--in-flight {args.in_flight} is not 1 to {MOST_IN_FLIGHT}")
    args.update = args.update or args.resume
    if args.update and args.json in (None, "-"):
        raise BadInput("--update and --resume without a file", remedy="say --json FILE")
    to_stdout = args.json == "-"
    file = pathlib.Path(args.json) if args.json and not to_stdout else None
    earlier = records.read_list(file, "chaos") if args.update else []
    verdicts, saver = [], Kept()
    robot = Robot(args.mode, args.in_flight, args.carry or args.accuracy is not None, args.accuracy, args.turns)
    # told to end, it ends the processes that it has started
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        for name in args.scenario or list_scenarios(args.mode, args.level):
            if args.resume and any(
                item["scenario"] == label_scenario(name, args.mode) and item["passed"] for item in earlier
            ):
                continue
            verdict = run_scenario(name, hold_s, args.repeat, not args.no_timing, robot, args.level)
            verdicts.append(verdict)
            print(describe_verdict(verdict), file=sys.stderr if to_stdout else sys.stdout, flush=True)
            if file is not None:
                # a run that is cut off keeps what it has found
                saver(
                    "json",
                    lambda: records.write(
                        file, "chaos", merge_records(earlier, [make_record(one) for one in verdicts])
                    ),
                )
    finally:
        signal.signal(signal.SIGTERM, before)
    saver.settle()
    if to_stdout:
        print(json.dumps([make_record(verdict) for verdict in verdicts], indent=2))
    return 1 if any(verdict.failures for verdict in verdicts) else 0


def merge_records(earlier: Sequence[Dict[str, Any]], latest: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """``latest`` and what ``earlier`` says of other scenarios, in the order of the scenarios."""
    from edge_offload_benchmarks.chaos.scenarios import list_scenarios

    by_name = {item["scenario"]: item for item in [*earlier, *latest]}
    order = [label_scenario(name, mode) for mode in MODES for name in list_scenarios(mode)]
    return [by_name[name] for name in order if name in by_name]


def label_scenario(name: str, mode: str) -> str:
    """Return the name of a scenario in a record."""
    return name if mode == "server" else f"{name} ({mode})"


@dataclass(frozen=True)
class Robot:
    """Settings of the robot: see the options of the same names."""

    mode: str = "server"
    in_flight: int = 1
    carry: bool = False
    accuracy: Optional[float] = None
    turns: bool = False

    def list_options(self) -> List[str]:
        """Return the options of the robot's process."""
        arguments = ["--mode", self.mode, "--in-flight", str(self.in_flight)]
        arguments += ["--carry"] * self.carry + ["--turns"] * self.turns
        return arguments + ([] if self.accuracy is None else ["--accuracy", str(self.accuracy)])


def run_scenario(
    name: str, hold_s: float, repeat: int = 1, timing: bool = True, robot: Optional[Robot] = None, level: str = "tcp"
) -> Verdict:
    """Run one scenario, its fault ``repeat`` times, over a link of ``level``, and judge it."""
    from edge_offload.errors import Unsupported
    from edge_offload_benchmarks.chaos.robot import FPS
    from edge_offload_benchmarks.chaos.scenarios import SCENARIOS
    from edge_offload_benchmarks.chaos.verdict import (
        Fault,
        Verdict,
        computed_locally,
        judge_carried,
        judge_gap,
        judge_run,
        judge_turns,
        merge_verdicts,
    )

    scenario, robot = SCENARIOS[name], robot or Robot()
    name = label_scenario(name, robot.mode)
    try:
        made = scenario.make_rig((*scenario.robot_options, *robot.list_options()), level)
    except Unsupported as error:
        return Verdict(name, skipped=str(error))
    died: List[str] = []
    faults: List[Fault] = []
    with made as rig:
        rig.wait_remote(rig.ready["t"], RECOVER_S)
        time.sleep(STEADY_S)
        while len(faults) < repeat and not died:
            scenario.harm(rig, hold_s)
            started_s, restored_s = rig.marks["fault"], rig.marks["restored"]
            back_s = rig.wait_remote(restored_s, RECOVER_S)
            time.sleep(SETTLE_S)
            died = [
                f"the {side} died: {process.read_stderr()[-300:]}"
                for side, process in rig.list_sides()
                if not process.alive
            ]
            faults.append(Fault(started_s, restored_s, back_s, {} if died else rig.measure_usage()))
        if died:
            return Verdict(name, failures=died)
        summary, frames, carried, verdicts = rig.end_robot(), rig.read_frames(), rig.read_carried(), {}
        for task in rig.tasks:
            task_frames = [frame for frame in frames if frame["task"] == task]
            # networks share the robot's processor, faults and all
            others = [frame["compute_s"] for frame in frames if frame["task"] != task and computed_locally(frame)]
            task_summary = {**summary, "summary": (summary.get("summary") or {}).get(task)}
            judged = judge_run(
                name,
                task_frames,
                task_summary,
                [*rig.ready["local_s"], *others],
                faults,
                scenario.outage,
                timing,
                robot.in_flight,
                allows_s=math.inf if scenario.gap_s else scenario.allows_s,
            )
            if scenario.gap_s:
                judge_gap(judged, task_frames, faults, scenario.gap_s)
            if task in carried:
                # a clock of its own costs a process time, and the thread that carries looks at it for every frame
                fps = FPS / 2 if scenario.clocks else FPS
                judge_carried(judged, carried[task], fps, timing, faults if scenario.stands_still else ())
            elif robot.carry:
                judged.failures.append("the robot did not say what left")
            verdicts[task] = judged
        verdict = merge_verdicts(name, verdicts)
        if robot.turns:
            judge_turns(verdict, frames, rig.tasks)
        if robot.accuracy is not None and not summary.get("followed"):
            verdict.failures.append("the robot followed no turn")
        if not verdict.figures:
            verdict.failures.append(rig.robot.read_stderr()[-500:])
    return verdict


def describe_verdict(verdict: Verdict) -> str:
    """One line for a person."""
    if verdict.skipped:
        return f"{verdict.scenario:16} skipped: {verdict.skipped}"
    figures = verdict.figures
    parts = ["ok" if verdict.passed else "FAILED"]
    if figures:
        parts.append(f"{figures['frames']} results, {figures['remote']} remote, {figures['hedge_rate']:.1%} hedged")
        parts.append(f"local p99 {figures['local_p99_s'] * 1e3:.0f} ms")
        if "during_p99_s" in figures:
            worst, slowest = figures["during_p99_s"], figures["during_max_s"]
            parts.append(f"during the fault p99 {worst * 1e3:.0f} ms, max {slowest * 1e3:.0f} ms")
        if "left" in figures:
            parts.append(f"{figures['left']} left, p99 {figures['late_p99_s'] * 1e3:.0f} ms after the frame")
        if "turns" in figures:
            parts.append("turns " + ", ".join(f"{task} {many}" for task, many in figures["turns"].items()))
        if "gap_s" in figures:
            parts.append(f"at most {figures['gap_s']:.2f} s without the server")
        elif figures["back_s"] is not None:
            parts.append(f"back after {figures['back_s']:.2f} s")
        for side in ("robot", "server"):
            before, after = figures[side]["private"]
            parts.append(f"{side} {(after - before) / 1e6:+.1f} MB")
    return f"{verdict.scenario:16} " + "; ".join([*parts, *verdict.failures])


def make_record(verdict: Verdict) -> Dict[str, Any]:
    """The record ``chaos``."""
    failures: List[str] = verdict.failures
    return {
        "scenario": verdict.scenario,
        "passed": verdict.passed,
        "skipped": verdict.skipped,
        "failures": failures,
        "figures": verdict.figures,
    }
