"""Programs whose inference is read several times, and transformers; run by ``edge-offload exec --mode split``.

Prints one JSON line per situation.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import sys
import time

import torch
from divided import divide_everything, made
from torch import nn

from edge_offload.device.installation import current_installation
from edge_offload_research.split.model.run_plan import run_plan

torch.set_num_threads(1)
torch.manual_seed(0)
recorder = current_installation().recorder
splits = recorder.strategy.splits
divide_everything(recorder)


class Heads(nn.Module):
    """Maps, and of them: classes, boxes, and what a program makes of the classes once it has seen them."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1))
        self.classes, self.boxes = nn.Conv2d(8, 4, 3, padding=1), nn.Conv2d(8, 6, 1)

    def forward(self, picture):
        maps = self.body(picture).relu()
        return self.classes(maps), self.boxes(maps)


def reads_heads(network, picture):
    classes, boxes = network(picture)
    return [classes.cpu(), boxes.cpu(), classes.cpu()]


def reads_between(network, picture):
    maps = network.body(picture)
    seen = maps.mean().cpu()  # of the middle of the network
    maps.mul_(2.0)
    scores = network.classes(maps).sigmoid()
    first = scores.cpu().clone()
    scores.add_(1.0)
    return [seen, first, network.boxes(maps).cpu(), scores.cpu()]


def reads_once(network, picture):
    return [network(picture).cpu()]


def transformer():
    layer = nn.TransformerEncoderLayer(24, 4, 32, batch_first=True, activation="gelu", norm_first=True)
    other = nn.TransformerEncoderLayer(24, 4, 32, batch_first=True)
    return nn.Sequential(layer, other)


def vision_transformer():
    from edge_offload.ir.torchvision_package import torchvision_package

    torchvision_package()
    from torchvision.models.vision_transformer import VisionTransformer

    network = VisionTransformer(32, 8, 3, 4, 24, 48, num_classes=5)
    nn.init.normal_(network.heads.head.weight, std=0.1)
    return network


SITUATIONS = {
    "heads": (Heads, reads_heads, (1, 3, 24, 32)),
    "between": (Heads, reads_between, (1, 3, 20, 32)),
    "encoder": (transformer, reads_once, (1, 10, 24)),
    "vision": (vision_transformer, reads_once, (1, 3, 32, 32)),
}


def distance(outputs, expected):
    return max(float((got - want).abs().max() / want.abs().max()) for got, want in zip(outputs, expected))


def by_reference(picture):
    """What the plan that was made last gives in one process."""
    network, plan = made[-1]
    return run_plan(plan, network.located, network.program.constants, [picture])


@torch.no_grad()
def main(names):
    for name in names:
        build, infer, shape = SITUATIONS[name]
        mine = build().double().eval()
        on_device = copy.deepcopy(mine).to("cuda")
        before, worst, as_planned = dataclasses.asdict(splits), 0.0, 0
        end = time.monotonic() + 240.0
        while splits.operators_split < before["operators_split"] + 3 and time.monotonic() < end:
            picture, count = torch.rand(shape, dtype=torch.float64), splits.inferences
            outputs = infer(on_device, picture.to("cuda"))
            worst = max(worst, distance(outputs, infer(mine, picture)))
            if splits.inferences > count:
                as_planned += all(torch.equal(a, b) for a, b in zip(outputs, by_reference(picture)))
            time.sleep(0.01)
        facts = {"distance": worst, "as_planned": as_planned, "state": recorder.strategy.state()}
        print(
            json.dumps({"situation": name, "before": before, "after": dataclasses.asdict(splits), **facts}), flush=True
        )
        if name == "heads":  # another order of reads is computed here
            picture = torch.rand(shape, dtype=torch.float64)
            classes, boxes = on_device(picture.to("cuda"))
            outputs = [(boxes * 2).cpu(), classes.cpu(), boxes.cpu()]
            expected = mine(picture)
            away = distance(outputs, [expected[1] * 2, expected[0], expected[1]])
            print(json.dumps({"situation": "another order", "distance": away}), flush=True)


main(sys.argv[1:] or list(SITUATIONS))
