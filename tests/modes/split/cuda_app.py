"""Robot and server on the virtual CUDA device, whose calls lag: started by test_cuda_split.py; a line of JSON each."""

from __future__ import annotations

import json
import random
import sys

import torch

from edge_offload.device.installation import current_installation
from edge_offload.ir import sequence_hash
from edge_offload.mode import Mode
from tests.modes.split.conftest import Robot
from tests.modes.split.test_runtime import image, install, random_plan

PLANS = 6


def print_situation(robot, situation, picture, expected):
    outputs, report = robot.offloaded.run_inference([picture], Mode.SPLIT)
    error = max(float((one - other).abs().max() / other.abs().max()) for one, other in zip(outputs, expected))
    print(json.dumps({"situation": situation, "mode": report.mode.value, "error": error,
                      "reason": report.fallback_reason, "stages": report.stages_s}), flush=True)  # fmt: skip


def main(address, keys):
    torch.set_num_threads(1)
    robot = Robot(address, keys)
    picture = image()
    with torch.no_grad():
        expected = robot.module(picture)
    located = robot.open(picture).network.located
    identity = sequence_hash(located.sequence)
    plans = [random_plan(located, random.Random(seed), identity) for seed in range(PLANS)]
    install(robot, picture, plans)
    for place in range(PLANS):
        robot.runner.bandwidth = 1e6 * place
        print_situation(robot, f"plan {place}", picture, expected)
    robot.runner.bandwidth = 1e6 * max(range(PLANS), key=lambda place: len(plans[place].robot))
    torch.cuda.set_per_process_memory_fraction(1e-9)
    print_situation(robot, "full", picture, expected)
    print(json.dumps({"situation": "state", "words": robot.offloaded.state()["local"]}), flush=True)
    torch.cuda.set_per_process_memory_fraction(1.0)
    robot.runner._handles.pause(0.0, "")
    robot.offloaded.runners.local.executor._fallback._until_s = 0.0
    robot.open(picture)
    install(robot, picture, plans)
    print_situation(robot, "room again", picture, expected)
    current_installation().native.lose()
    for situation in ("lost", "still lost"):
        print_situation(robot, situation, picture, expected)
    robot.client.close()
    robot.offloaded.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
