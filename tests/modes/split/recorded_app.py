"""A program on the virtual device, started by ``edge-offload exec --mode split``; prints one JSON line per situation.

The network's part is what a user would write. Around it stands what a test needs: plans that divide operators whatever
the machines' speeds are, and a look at what the runtime did.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import sys
import time

import torch
from divided import divide_everything
from torch import nn

from edge_offload.device.installation import current_installation

torch.set_num_threads(1)
recorder = current_installation().recorder
splits = recorder.strategy.splits


divide_everything(recorder)


ORDER = torch.tensor([3, 0, 4, 1, 2])  # on the host: it travels with the call that takes it


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(8, 12, 3, stride=2, padding=2, groups=4), nn.SiLU(inplace=True),
        )  # fmt: skip
        self.head = nn.Linear(12, 5)

    def forward(self, picture):
        maps = self.body(picture.permute(2, 0, 1)[None].to(self.head.weight.dtype).div_(255) - 0.5)
        one, other = maps.chunk(2, 1)
        output = self.head(torch.cat([other, one * 2], 1).mean((2, 3)))
        turn = torch.eye(5, dtype=output.dtype, device=output.device).repeat(
            1, 1
        )  # of constants alone, then written to
        turn[:, 0] = output[0]
        return (output @ turn)[:, ORDER]


torch.manual_seed(0)
reference = Net().double().eval()
for buffer in (reference.body[1].running_mean, reference.body[1].running_var):
    buffer.uniform_(0.5, 1.5)
network = copy.deepcopy(reference).to("cuda")


def picture(height=24, width=32):
    return torch.randint(0, 256, (height, width, 3), dtype=torch.uint8)


def distance(got, want):
    return float((got - want).abs().max() / want.abs().max())


@torch.no_grad()
def infer(frame):
    """What stays on the device, and how far the result is from the CPU's."""
    on_device = frame.to("cuda")
    out = network(on_device)
    return on_device, out, distance(out.cpu(), reference(frame))


def steady(count, until_s=90.0):
    """Infer until ``count`` more inferences have been divided; the largest distance."""
    end, goal, worst = time.monotonic() + until_s, splits.operators_split + count, 0.0
    while splits.operators_split < goal and time.monotonic() < end:
        worst = max(worst, infer(picture())[2])
        time.sleep(0.02)
    return worst


def infer_divided(until_s=90.0):
    """One inference that was divided: the picture, what stays on the device, and the distance."""
    end = time.monotonic() + until_s
    while True:
        before, frame = splits.inferences, picture()
        outputs = infer(frame)
        if splits.inferences > before or time.monotonic() > end:
            return (frame, *outputs)


def print_situation(situation, **facts):
    print(json.dumps({"situation": situation, "counted": dataclasses.asdict(splits), **facts}), flush=True)


@torch.no_grad()
def begin_alike():
    """What begins as the inference does, and is another one."""
    frame = picture()
    scaled = frame.to("cuda").permute(2, 0, 1)[None].to(torch.float64).div_(255)
    return distance((scaled + 1).cpu(), frame.permute(2, 0, 1)[None].to(torch.float64).div_(255) + 1)


def change_weights():
    for module in (network, reference):
        module.body[0].weight.mul_(1.5)


@torch.no_grad()
def main() -> None:
    print_situation("steady", distance=steady(3), state=recorder.strategy.state())
    print_situation("another shape", distance=infer(picture(20, 40))[2])
    infer_divided()
    print_situation("begun alike", distance=begin_alike())

    frame, on_device, out, away = infer_divided()
    want = reference(frame)
    print_situation("left on the device", distance=max(away, distance((out * 2 + 1).cpu(), want * 2 + 1)),
         same=bool(torch.equal(on_device.cpu(), frame)))  # fmt: skip

    retained = [infer_divided() for _ in range(6)]
    distances = [distance((out - 1).cpu(), reference(frame) - 1) for frame, _, out, _ in retained[::-1]]
    print_situation("held for long", distance=max(distances), state=recorder.strategy.state())
    del retained

    change_weights()
    first = infer(picture())[2]
    print_situation("weights changed", distance=max(first, steady(2)))

    frame, _, out, away = infer_divided()
    want = reference(frame)
    print("kill", flush=True)
    sys.stdin.readline()
    before = splits.inferences
    print_situation(
        "server gone", distance=max(infer(picture())[2] for _ in range(5)), split=splits.inferences - before
    )

    change_weights()
    away = max(away, infer(picture())[2])
    print_situation("weights changed behind a result", distance=max(away, distance((out - 1).cpu(), want - 1)))


main()
