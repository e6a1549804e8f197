"""Do harm to a robot and its server on this machine, and check that no frame is lost, doubled, wrong or kept waiting.

Each scenario starts a server process, a robot process with a camera and the automatic mode, and an emulated link of
93 Mbps between them, lets frames flow, applies a fault from outside of both, makes it good, and judges:

  published = taken + superseded, results = taken, none doubled, every result bit-equal to the local one, no crash, no
  leak of descriptors, threads or memory; in an outage p99 at most 20 ms above local p99 of the same run; frames go to
  the server again within 2 s after the fault.

  edge-offload chaos                          every scenario, about 15 s each
  edge-offload chaos blackhole server_kill    these
  edge-offload chaos --full --json chaos.json faults of 15 s
  edge-offload chaos --list

On a machine that is busy with something else, latencies say little: --no-timing reports them and judges the rest.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any, Dict, List

if TYPE_CHECKING:
    from edge_offload.chaos.verdict import Verdict

HOLD_S, FULL_HOLD_S = 5.0, 15.0
STEADY_S, RECOVER_S = 1.5, 15.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("scenario", nargs="*", metavar="SCENARIO", help="default: all")
    parser.add_argument("--list", action="store_true", help="say what there is")
    parser.add_argument("--full", action="store_true", help="faults of 15 s instead of 5")
    parser.add_argument("--hold", type=float, metavar="S", help="length of the faults, seconds")
    parser.add_argument("--no-timing", action="store_true", help="report latencies but do not judge them")
    parser.add_argument("--json", metavar="FILE", help="write the records chaos here; - for standard output")


def run(args: argparse.Namespace) -> int:
    """Run the scenarios; 1 if anything did not hold."""
    from edge_offload import records
    from edge_offload.chaos.scenarios import SCENARIOS, names
    from edge_offload.errors import BadInput

    if args.list:
        for name, scenario in SCENARIOS.items():
            print(f"{name:16} {scenario.what}")
        return 0
    unknown = [name for name in args.scenario if name not in SCENARIOS]
    if unknown:
        raise BadInput(f"no scenario {unknown[0]!r}", remedy=f"scenarios: {', '.join(names())}")
    hold_s = args.hold or (FULL_HOLD_S if args.full else HOLD_S)
    if not 0 < hold_s <= 600:
        raise BadInput(f"--hold {hold_s:g} is not a length of a fault")
    to_stdout = args.json == "-"
    verdicts = []
    for name in args.scenario or names():
        verdict = run_scenario(name, hold_s, timing=not args.no_timing)
        verdicts.append(verdict)
        print(line(verdict), file=sys.stderr if to_stdout else sys.stdout, flush=True)
    found = [record(verdict) for verdict in verdicts]
    if to_stdout:
        print(json.dumps(found, indent=2))
    elif args.json:
        records.write(args.json, "chaos", found)
    return 1 if any(verdict.failures for verdict in verdicts) else 0


def run_scenario(name: str, hold_s: float, timing: bool = True) -> Verdict:
    """Run one scenario and judge it."""
    from edge_offload.chaos.rig import Rig
    from edge_offload.chaos.scenarios import SCENARIOS
    from edge_offload.chaos.verdict import Verdict, judge
    from edge_offload.errors import Unsupported

    scenario = SCENARIOS[name]
    try:
        prefix = scenario.server_prefix()
    except Unsupported as error:
        return Verdict(name, skipped=str(error))
    with Rig(scenario.robot_options, prefix) as rig:
        rig.wait_remote(rig.ready["t"], RECOVER_S)
        time.sleep(STEADY_S)
        scenario.harm(rig, hold_s)
        back = rig.wait_remote(rig.marks["restored"], RECOVER_S)
        time.sleep(1.0)
        died = not rig.server.alive
        summary = rig.summary()
        verdict = judge(name, rig.frames(), summary, rig.ready["local_s"], rig.marks, back, scenario.outage, timing)
        if died:
            verdict.failures.append(f"the server died: {rig.server.said()[-300:]}")
        if not verdict.figures:
            verdict.failures.append(rig.robot.said()[-500:])
    return verdict


def line(verdict: Verdict) -> str:
    """One line for a person."""
    if verdict.skipped:
        return f"{verdict.scenario:16} skipped: {verdict.skipped}"
    figures = verdict.figures
    words = ["ok" if verdict.passed else "FAILED"]
    if figures:
        words.append(f"{figures['frames']} results, {figures['remote']} remote, {figures['hedge_rate']:.1%} hedged")
        words.append(f"local p99 {figures['local_p99_s'] * 1e3:.0f} ms")
        if "during_p99_s" in figures:
            worst, slowest = figures["during_p99_s"], figures["during_max_s"]
            words.append(f"during the fault p99 {worst * 1e3:.0f} ms, max {slowest * 1e3:.0f} ms")
        if figures["back_s"] is not None:
            words.append(f"back after {figures['back_s']:.2f} s")
    return f"{verdict.scenario:16} " + "; ".join([*words, *verdict.failures])


def record(verdict: Verdict) -> Dict[str, Any]:
    """The record ``chaos``."""
    failures: List[str] = verdict.failures
    return {
        "scenario": verdict.scenario,
        "passed": verdict.passed,
        "skipped": verdict.skipped,
        "failures": failures,
        "figures": verdict.figures,
    }
