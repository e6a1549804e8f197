"""The robot of ``bench in-flight``, a process of its own: a camera, people found and tracked, as kapao_node does it.

With ``--mode replay`` it is started by ``edge-offload exec``.

A line of JSON ``{"in_flight": n, "rate": frames per second, "seconds": s}`` on standard input asks for a block; its
results come back as one line.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import torch

from edge_offload.arrays import Array
from edge_offload.execute.threads import pin
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.manager.tuning import MOST_IN_FLIGHT
from edge_offload.mode import Mode
from edge_offload.models.registry import build_estimator
from edge_offload.models.video import read_frames, sample_video
from edge_offload.modes.device import DeviceModule, DeviceRunner, installed_device
from edge_offload.nodes.inference.latest_frame_queue import FramePipeline, LatestFrameQueue
from edge_offload.perception.pipeline import NetworkInput, PeoplePipeline
from edge_offload.runtime.module import OffloadedModule
from edge_offload.timing import InferenceReport
from edge_offload_benchmarks.processes import robot_arguments, wait_open

#: Frames of the video that are played in turn.
FRAMES = 40
#: Seconds of a block before anything is counted.
LEAD_S = 1.0
OPEN_S = 120.0


@dataclass
class Shot:
    """A frame of the camera."""

    number: int
    bgr: Array
    received_s: float


class Robot:
    """The network of a node, and what becomes of its frames."""

    def __init__(self, model: str, mode: Mode, client: Client, slowdown: float) -> None:
        self.mode = mode
        self.images = list(read_frames(sample_video(), range(FRAMES)).values())
        self.estimator = build_estimator(model)
        module = self.estimator.module
        self.module = OffloadedModule(model, module, client, robot_slowdown=slowdown, in_flight=MOST_IN_FLIGHT)
        device = installed_device()
        if device is not None:
            self.module.add_runner(DeviceRunner(Mode.REPLAY, DeviceModule(device, module, client)))

    def ready(self) -> None:
        """Open the model, and learn what frames take here and there."""
        image, _ = self.estimator.prepare(self.images[0])
        for _ in range(3):
            self.module.run_inference([image], Mode.LOCAL)
        wait_open(self.module, self.mode, [image], OPEN_S)
        for _ in range(12):
            self.module.run_inference([image], self.mode)

    def run_block(self, in_flight: int, rate: float, seconds: float) -> Dict[str, Any]:
        """Some seconds with so many frames in flight."""
        done: List[Tuple[int, float, InferenceReport]] = []
        stages = _Stages(self, done)
        queue: LatestFrameQueue[Shot] = LatestFrameQueue()
        pipeline = FramePipeline(
            queue, stages, self.module.frames,
            lambda taken_s: self.module.frames.frame_wait_s(time.monotonic(), self.mode, taken_s), in_flight,
        )  # fmt: skip
        pipeline.start()
        started_at = time.monotonic()
        for number, image in zip(itertools.count(), itertools.cycle(self.images)):
            due = started_at + number / rate
            if due >= started_at + LEAD_S + seconds:
                break
            time.sleep(max(0.0, due - time.monotonic()))
            queue.offer_frame(Shot(number, image, time.monotonic()))
        ended = time.monotonic()
        drained = pipeline.drain(60.0)
        return {
            "drained": drained,
            "failed": stages.failed,
            **_summarise_block(done, queue, started_at + LEAD_S, ended),
        }


class _Stages:
    """Work on the frames of one block, as a node does it."""

    def __init__(self, robot: Robot, done: List[Tuple[int, float, InferenceReport]]) -> None:
        self._module, self._mode, self._done = robot.module, robot.mode, done
        self._pipeline = PeoplePipeline(robot.estimator)
        self.failed: List[str] = []

    def prepare_frame(self, shot: Shot, ticket: int) -> Tuple[NetworkInput, int]:
        """Implement :class:`~edge_offload.nodes.inference.latest_frame_queue.FrameStages`."""
        return self._pipeline.prepare_input(shot.bgr, shot.received_s), ticket

    def infer_frame(self, shot: Shot, prepared: Tuple[NetworkInput, int]) -> Any:
        """Run a frame; see :class:`~edge_offload.nodes.inference.latest_frame_queue.FrameStages`."""
        image, ticket = prepared
        return self._module.run_inference(image.inputs, self._mode, meta={"seq": shot.number}, ticket=ticket)

    def finish_frame(self, shot: Shot, prepared: Tuple[NetworkInput, int], inferred: Any) -> None:
        """Record a result; see :class:`~edge_offload.nodes.inference.latest_frame_queue.FrameStages`."""
        image, size = prepared[0], (shot.bgr.shape[1], shot.bgr.shape[0])
        outputs, inference = inferred
        result = self._pipeline.finish(image, outputs, inference, shot.received_s, size)
        self._module.frames.learn_costs(result.report)
        self._module.situation(image.inputs)
        self._done.append((shot.number, time.monotonic(), result.report))

    def fail_frame(self, shot: Shot, error: BaseException) -> None:
        """Raise the error; see :class:`~edge_offload.nodes.inference.latest_frame_queue.FrameStages`."""
        self.failed.append(repr(error))


def _summarise_block(
    done: List[Tuple[int, float, InferenceReport]], queue: LatestFrameQueue[Any], started_at: float, ended: float
) -> Dict[str, Any]:
    counts, counted = queue.counts, [report for _, at, report in done if started_at <= at <= ended]
    numbers = [number for number, _, _ in done]
    return {
        "seconds": ended - started_at,
        "offered": counts.offered,
        "taken": counts.taken,
        "superseded": counts.superseded,
        "all_results": len(done),
        "in_order": numbers == sorted(set(numbers)),
        "results": len(counted),
        "latency_s": [report.total_s for report in counted],
        "behind_s": [report.behind_s for report in counted],
        "part_s": [report.part_s for report in counted],
        "fell_back": sum(bool(report.fallback_reason) for report in counted),
        "hedged": sum(report.hedged for report in counted),
        "reasons": sorted({report.fallback_reason for report in counted if report.fallback_reason})[:3],
    }


def main(argv: Optional[List[str]] = None) -> int:
    """Run until standard input closes."""
    parser = robot_arguments(__doc__)
    parser.add_argument("--mode", type=Mode, required=True)
    args = parser.parse_args(argv)
    pin(threads=1)
    torch.set_num_threads(1)
    client = Client(args.server, keys=KeyStore(args.keys), on_state=lambda *state: robot.module.link_changed(*state))
    robot = Robot(args.model, args.mode, client, args.slowdown)
    with contextlib.closing(client), contextlib.closing(robot.module):
        client.start()
        robot.ready()
        for line in sys.stdin:
            print(json.dumps(robot.run_block(**json.loads(line))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
