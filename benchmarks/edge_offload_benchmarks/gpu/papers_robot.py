"""A robot of phase ``papers``, without a GPU: prepares and measures modes as lines of JSON on standard input say.

Usage: python -m edge_offload_benchmarks.gpu.papers_robot --model M [--server ADDR --keys DIR] [--slowdown 2] [--device]
With ``--device``, started by ``edge-offload exec``. Each answer is a line of the command's number and JSON. ``ends`` of
a command is a time of the monotonic clock.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any, Dict, List, Sequence

import torch

from edge_offload.device.installation import current_installation
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.manager.lateness import TimeoutLimits
from edge_offload.mode import Mode
from edge_offload.modes.split.robot.runner import describe_plan
from edge_offload.runtime.module import OffloadedModule
from edge_offload_benchmarks.gpu.networks import build_network, make_inputs
from edge_offload_benchmarks.gpu.results import spread_ms
from edge_offload_benchmarks.gpu.served import wire_name
from edge_offload_benchmarks.gpu.speed_client import WARM_UP, frame_by_device, median_facts

#: Different inputs, and frames before those that are timed: of a mode of calls; of split, in which a plan that divides
#: operators is compared with one that does not; of others.
INPUTS, SPLIT_WARM_UP, WARM = 8, 22, 3


class ModuleRobot:
    """Modes ``local``, ``server`` and ``split`` of one network, computed by one thread."""

    def __init__(self, args: argparse.Namespace, given: List[Any]) -> None:
        torch.set_num_threads(1)
        self._client = Client(args.server, keys=KeyStore(args.keys)) if args.server else None
        if self._client is not None:
            self._client.start()
            self._client.wait_ready(60.0)
        self._module = OffloadedModule(
            wire_name(args.model),
            build_network(args.model),
            self._client,
            device="cpu",
            robot_slowdown=args.slowdown,
            hedging=False,
            patience=TimeoutLimits(first_s=60.0, floor_s=60.0, cap_s=60.0),
            example=given[0],
        )

    def prepare(self, mode: Mode, frame: Any, ends: float) -> str:
        """Wait until the mode can run; why it cannot, if so."""
        while (why := self._module.unavailable_reason(mode, frame)) is not None and time.monotonic() < ends:
            time.sleep(0.05)
        return why or ""

    def warm_frames(self, mode: Mode) -> int:
        """The frames that are not timed."""
        return SPLIT_WARM_UP if mode is Mode.SPLIT else WARM

    def run_frame(self, mode: Mode, frame: Any) -> Dict[str, Any]:
        """Facts of a frame; times in seconds."""
        _, report = self._module.run_inference(frame, mode)
        stages = report.stages_s
        return {
            "trips": report.round_trips,
            "up": report.bytes_up,
            "down": report.bytes_down,
            "server_s": stages["compute_server"],
            "robot_s": stages["compute_robot"],
            "uplink_s": stages["uplink"],
            "downlink_s": stages["downlink"],
            "codec_s": stages["encode"] + stages["decode"],
            "way": self._describe_way(frame) if report.mode is Mode.SPLIT else "",
            "fallback": report.fallback_reason,
        }

    def _describe_way(self, frame: Any) -> str:
        """Describe the plan of the last frame in mode split."""
        runner: Any = self._module.runners.by_mode[Mode.SPLIT]
        counts, planned = runner.counts, runner.planned(frame)
        plan = planned.plans[counts.plan].plan
        here, there = ({step.operator for step in steps} for steps in (plan.robot, plan.server))
        rows = sum(step.high - step.low for step in plan.robot)
        total = rows + sum(step.high - step.low for step in plan.server)
        return (
            f"{describe_plan(plan)}: of {len(here | there)} operators {len(here - there)} on the robot, "
            f"{len(there - here)} on the server, {len(here & there)} divided; {rows} of {total} rows on the robot"
        )

    def describe_state(self, mode: Mode) -> str:
        """The mode's state in words."""
        return str(self._module.state().get(str(mode), ""))


class DeviceRobot:
    """Modes of the virtual device."""

    def __init__(self, args: argparse.Namespace, given: List[Any]) -> None:
        self._module = build_network(args.model).to("cuda")
        self._device: Any = current_installation()
        self._mode = ""

    def prepare(self, mode: Mode, frame: Any, ends: float) -> str:
        """Switch to the mode."""
        if str(mode) != self._mode:
            self._device.switch_mode(mode)
        return ""

    def warm_frames(self, mode: Mode) -> int:
        """The frames that are not timed: a trace is learnt after a change of modes."""
        fresh, self._mode = str(mode) != self._mode, str(mode)
        if mode in (Mode.PER_OP, Mode.CACHED):
            return 1 if fresh else 0
        return WARM_UP if fresh else WARM

    def run_frame(self, mode: Mode, frame: Any) -> Dict[str, Any]:
        """Facts of a frame; times in seconds."""
        return {**frame_by_device(self._module, frame, self._device), "way": "", "fallback": ""}

    def describe_state(self, mode: Mode) -> str:
        """Nothing: the mode has no state in words."""
        return ""


def prepare_mode(robot: Any, given: List[Any], mode: Mode, ends: float) -> Dict[str, Any]:
    """Wait until a mode can run, and run the frames that are not timed; no frame begins after ``ends``."""
    started_at = time.monotonic()
    why = robot.prepare(mode, given[0], ends)
    facts: Dict[str, Any] = {"ready_s": round(time.monotonic() - started_at, 3)}
    if why:
        return {**facts, "failed": why}
    walls: List[float] = []
    every: List[Dict[str, Any]] = []
    for number in range(robot.warm_frames(mode)):
        at_s = time.perf_counter()
        every.append(robot.run_frame(mode, given[number % len(given)]))
        walls.append(time.perf_counter() - at_s)
        if time.monotonic() > ends:
            break
    trials = spread_by_text([one["way"] for one in every], walls)
    return {**facts, "trials": trials} if trials else facts


def measure_mode(robot: Any, given: List[Any], mode: Mode, window_s: float, least: int, ends: float) -> Dict[str, Any]:
    """The spread of frame times and medians of the frames' facts.

    Args:
        robot: that computes.
        given: inputs.
        mode: of the frames.
        window_s: the shortest time.
        least: the fewest frames.
        ends: no frame but the first begins later.
    """
    walls: List[float] = []
    every: List[Dict[str, Any]] = []
    from_s = time.monotonic()
    while not every or time.monotonic() < (from_s + window_s if len(every) >= least else ends):
        started_at = time.perf_counter()
        every.append(robot.run_frame(mode, given[len(every) % len(given)]))
        walls.append(time.perf_counter() - started_at)
    facts = {"wall": spread_ms(walls), "from_s": from_s, "to_s": time.monotonic(), **median_facts(every)}
    facts["server_part"] = sum(one["server_s"] for one in every) / sum(walls)
    for key in ("way", "fallback"):
        spread = spread_by_text([one[key] for one in every], walls)
        if spread:
            facts[f"{key}s"] = spread
    facts["state"] = robot.describe_state(mode)
    if all(one["fallback"] for one in every):
        facts["failed"] = f"each frame was computed on the robot: {every[-1]['fallback']}"
    return facts


def spread_by_text(texts: Sequence[str], walls: Sequence[float]) -> Dict[str, Dict[str, float]]:
    """Number and median of frame times by what is said of the frames; those of which nothing is said are left out."""
    by_text: Dict[str, List[float]] = {}
    for text, wall in zip(texts, walls):
        if text:
            by_text.setdefault(text, []).append(wall)
    return {text: {key: spread_ms(some)[key] for key in ("n", "ms")} for text, some in by_text.items()}


def main() -> None:
    """Run the commands."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--server", default="")
    parser.add_argument("--keys", default="")
    parser.add_argument("--slowdown", type=float, default=1.0)
    parser.add_argument("--device", action="store_true")
    args = parser.parse_args()
    given = make_inputs(args.model, INPUTS)
    robot = (DeviceRobot if args.device else ModuleRobot)(args, given)
    for number, line in enumerate(sys.stdin):
        command = json.loads(line)
        run: Any = {"prepare": prepare_mode, "measure": measure_mode}[command.pop("do")]
        mode = Mode(command.pop("mode"))
        try:
            facts = run(robot, given, mode, **command)
        except Exception as error:
            facts = {"failed": f"{type(error).__name__}: {str(error)[:600]}"}
        print(f"{number} {json.dumps(facts)}", flush=True)


if __name__ == "__main__":
    main()
