"""The robot of ``bench modes`` and ``bench robots --mode``, started by ``edge-offload exec``.

A line of JSON on standard input asks for something, and a line comes back: ``{"rounds": n}`` for so many rounds of one
frame in each mode and one by ``auto``; ``{"prepare": mode}``, ``{"hold": mode, "seconds": s}`` and
``{"check": {"reference": "cpu"}}`` for one mode; ``{"costs": n}`` for what n frames of ``replay`` cost robot, server
and link. A frame is what a node asks an :class:`OffloadedModule` for, without hedging: each mode has to finish what it
began.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from edge_offload.execute.threads import pin
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.connection import Timings
from edge_offload.manager.lateness import TimeoutLimits
from edge_offload.manager.policy import make_policy
from edge_offload.mode import Mode
from edge_offload.models.registry import build_estimator
from edge_offload.models.video import read_frames, sample_video
from edge_offload.modes.device import DeviceModule, DeviceRunner, installed_device
from edge_offload.modes.split.robot.runner import SplitRunner, describe_plan
from edge_offload.runtime.module import OffloadedModule
from edge_offload.timing import InferenceReport
from edge_offload_benchmarks.processes import robot_arguments
from edge_offload_benchmarks.transparent.reference import CudaReference

AUTO = "auto"
FRAMES, WARM = 24, 6
OPEN_S = 400.0
#: So many times the frames that are asked for are run at most until as many took one round trip.
PATIENCE = 4
#: Results of a mode held that are compared with the robot's own.
CHECKED = 12
PATIENT = TimeoutLimits(first_s=60.0, floor_s=60.0, cap_s=60.0)


@dataclass
class LoadResult:
    """Frames in one mode: what each took, and why some came from the robot itself."""

    seconds: List[float] = field(default_factory=list)
    fell_back: Counter[str] = field(default_factory=Counter)


class Robot:
    """The network of a node in every mode, and a policy."""

    def __init__(self, model: str, client: Client, slowdown: float) -> None:
        self.model = model
        estimator = build_estimator(model)
        images = read_frames(sample_video(), range(FRAMES)).values()
        self.inputs = itertools.cycle([estimator.prepare(image)[0] for image in images])
        self.module = OffloadedModule(
            model, estimator.module, client, robot_slowdown=slowdown, hedging=False, patience=PATIENT,
            candidates=(Mode.LOCAL, Mode.REPLAY, Mode.SPLIT),
        )  # fmt: skip
        device = installed_device()
        assert device is not None, "started by edge-offload exec"
        on_device = DeviceModule(device, estimator.module, client)
        self.module.add_runner(DeviceRunner(Mode.REPLAY, on_device))
        self.policy = make_policy(AUTO)
        self.modes: List[Mode] = []
        self.retained: List[Tuple[torch.Tensor, Tuple[torch.Tensor, ...]]] = []
        self.lacks: Dict[str, str] = {}

    def prepare_modes(
        self, modes: Sequence[Mode] = (Mode.LOCAL, Mode.SERVER, Mode.REPLAY, Mode.SPLIT)
    ) -> Dict[str, str]:
        """Learn and plan, and see what there is to choose among; what the others lack."""
        ends = time.monotonic() + OPEN_S
        for _ in range(2):
            self.module.run_inference([next(self.inputs)], Mode.LOCAL)
        while time.monotonic() < ends:
            tensor = next(self.inputs)
            if len(modes) > 2:
                self.module.situation([tensor])
            lacking = {mode.value: self.module.unavailable_reason(mode, [tensor]) or "" for mode in modes}
            if not any(lacking.values()):
                break
            time.sleep(0.2)
        self.modes = [mode for mode in modes if not lacking[mode.value]]
        self.lacks = {name: why for name, why in lacking.items() if why}
        for _ in range(WARM):
            for mode in self.modes:
                self.module.run_inference([next(self.inputs)], mode)
        return self.lacks

    def run_mode(self, mode: str, seconds: float) -> Dict[str, Any]:
        """Run frames in one mode for ``seconds``; the first ones are retained for :meth:`check_results`."""
        ends, result = time.monotonic() + seconds, LoadResult()
        while time.monotonic() < ends:
            tensor, started_at = next(self.inputs), time.monotonic()
            outputs, report = self.module.run_inference([tensor], Mode(mode))
            result.seconds.append(time.monotonic() - started_at)
            if report.fallback_reason:
                result.fell_back[report.fallback_reason[:200]] += 1
            elif len(self.retained) < CHECKED:
                self.retained.append((tensor, outputs))
        return {"seconds": result.seconds, "fell_back": dict(result.fell_back), "plan": self.describe_plan(tensor)}

    def measure_costs(self, frames: int) -> Dict[str, Any]:
        """Measure ``frames`` frames in mode ``replay`` of one round trip each: seconds of both sides, and bytes."""
        reports: List[InferenceReport] = []
        for _ in range(PATIENCE * frames):
            _, report = self.module.run_inference([next(self.inputs)], Mode.REPLAY)
            if report.mode is Mode.REPLAY and report.round_trips == 1:
                reports.append(report)
            if len(reports) == frames:
                break
        away_s = [
            (one.stages_s["compute_server"], one.stages_s["uplink"] + one.stages_s["downlink"]) for one in reports
        ]
        return {
            "robot_s": [max(0.0, one.total_s - server_s - link_s) for one, (server_s, link_s) in zip(reports, away_s)],
            "server_s": [server_s for server_s, _ in away_s],
            "bytes_up": [one.bytes_up for one in reports],
            "bytes_down": [one.bytes_down for one in reports],
        }

    def check_results(self, reference: str = "cpu", launcher: Sequence[str] = ()) -> Dict[str, Any]:
        """Compare the results that were kept with the robot's own, or with those of plain CUDA.

        Args:
            reference: ``cpu`` or ``cuda``.
            launcher: what stands in front of the command of plain CUDA's process.
        """
        equal, worst = 0, 0.0
        plain = CudaReference(launcher) if reference == "cuda" else None
        for tensor, outputs in self.retained:
            expected = (
                self.module.run_inference([tensor], Mode.LOCAL)[0]
                if plain is None
                else plain.outputs(self.model, tensor)
            )
            equal += all(torch.equal(one, other) for one, other in zip(outputs, expected))
            for one, other in zip(outputs, expected):
                worst = max(worst, largest_difference(one, other))
        if plain is not None:
            plain.close()
        return {"checked": len(self.retained), "equal": equal, "difference": worst}

    def run_frame(self, mode: str, tensor: torch.Tensor) -> Tuple[float, str, str, str]:
        """Run a frame; return seconds, the mode that ran, why not another, and the decision."""
        started_at, reason = time.monotonic(), ""
        requested = Mode(mode) if mode != AUTO else Mode.LOCAL
        if mode == AUTO:
            decision = self.policy.decide(self.module.situation([tensor]))
            requested, reason = decision.mode, decision.reason
        _, report = self.module.run_inference([tensor], requested)
        return time.monotonic() - started_at, report.mode.value, report.fallback_reason, reason

    def run_rounds(self, rounds: int) -> Dict[str, Any]:
        """One frame in each mode and one by ``auto``, on the same picture; who begins changes."""
        self.prepare_modes()
        names = [*(mode.value for mode in self.modes), AUTO]
        rows: List[Dict[str, Any]] = []
        orders = itertools.cycle(itertools.permutations(names))
        for order in itertools.islice(orders, 0, None, 7):  # neighbours differ
            tensor = next(self.inputs)
            rows.append({name: self.run_frame(name, tensor) for name in order})
            if len(rows) == rounds:
                break
        return {"rounds": rows, "lacks": self.lacks, "plan": self.describe_plan(tensor), "load": os.getloadavg()[0]}

    def answer_request(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """See the module."""
        if "prepare" in request:
            return {"lacks": self.prepare_modes([Mode.LOCAL, Mode(request["prepare"])])}
        if "hold" in request:
            return self.run_mode(request["hold"], request["seconds"])
        if "costs" in request:
            return self.measure_costs(request["costs"])
        return self.check_results(**request["check"]) if "check" in request else self.run_rounds(**request)

    def describe_plan(self, tensor: torch.Tensor) -> str:
        """Describe the plan of mode ``split`` at the current bandwidth."""
        runner = self.module.runners.by_mode.get(Mode.SPLIT)
        planned = runner.planned([tensor]) if isinstance(runner, SplitRunner) else None
        if planned is None or not isinstance(runner, SplitRunner):
            return ""
        return describe_plan(planned.plans[planned.plan_in_use(runner._read_bandwidth())].plan)


def largest_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Largest difference as a share of the largest value of ``other``; of other shapes 1: all of it."""
    if one.shape != other.shape:
        return 1.0
    if not other.numel():
        return 0.0
    return float((one - other).abs().max()) / max(float(other.abs().max()), 1e-30)


def main(argv: Optional[List[str]] = None) -> int:
    """Run until standard input closes."""
    args = robot_arguments(__doc__).parse_args(argv)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    pin(threads=1)
    timings = Timings(connect_s=5.0, handshake_s=20.0, silence_s=20.0)
    keys = KeyStore(args.keys)
    client = Client(args.server, keys=keys, timings=timings, on_state=lambda *state: robot.module.link_changed(*state))
    robot = Robot(args.model, client, args.slowdown)
    with contextlib.closing(client), contextlib.closing(robot.module):
        client.start()
        client.wait_ready(60.0)
        for line in sys.stdin:
            print(json.dumps(robot.answer_request(json.loads(line))), file=out, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
