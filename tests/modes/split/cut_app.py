"""Programs whose ends have sizes that depend on data, under ``edge-offload exec --mode split``; one JSON line each."""

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
seldom = []


class Detector(nn.Module):
    """Boxes and scores of a grid."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 12, 3, padding=1), nn.SiLU()
        )
        self.boxes, self.scores = nn.Conv2d(12, 4, 1), nn.Conv2d(12, 3, 3, padding=1)

    def forward(self, picture):
        maps = self.body(picture)
        before = torch.empty_like(maps)
        before.copy_(maps)
        maps.mul_(0.5)
        maps = maps + before
        boxes = self.boxes(maps).flatten(2).transpose(1, 2)[0]
        height, width = maps.shape[2:]
        lines = [torch.arange(count, device=maps.device) for count in (height, width)]  # the same in each inference
        grid = torch.stack(torch.meshgrid(*lines, indexing="ij"), -1).reshape(-1, 2).to(boxes.dtype)
        scale = torch.full((2,), 2.0, dtype=boxes.dtype, device=maps.device)
        corners = boxes[:, :2] + grid * scale
        scale.mul_(3.0)
        boxes = torch.cat([corners, boxes[:, 2:] * scale], 1)
        scores = self.scores(maps).flatten(2).transpose(1, 2)[0].sigmoid()
        return maps, boxes, scores


def above(net, picture):
    """As a detector ends: what is above a threshold, class by class; how many differs each time."""
    _, boxes, scores = net(picture)
    selected = []
    for label in range(scores.shape[1]):
        score = scores[:, label]
        chosen = score > score.mean()
        selected += [boxes[chosen], score[chosen]]
    return [torch.cat([item.flatten() for item in selected]).cpu()]


def in_place(net, picture):
    """What the first part left is changed before it is read."""
    _, boxes, scores = net(picture)
    best = scores.amax(1)
    chosen = (best > best.mean()).nonzero()[:, 0]
    boxes[:, 2:].add_(boxes[:, :2])
    boxes.mul_(2.0)
    return [boxes[chosen].cpu(), scores[chosen].cpu()]


def maps_too(net, picture):
    """All of what the first part left is used, a map among it in parts."""
    maps, boxes, scores = net(picture)
    best = scores.amax(1)
    top = best.topk(5).indices
    chosen = boxes[best > best.mean()]
    return [chosen.cpu(), boxes[top].cpu(), maps[:, ::2, 1:-1].mean((2, 3)).cpu()]


def now_and_then(net, picture):
    """The maps are used seldom: not while it is learnt what is used."""
    maps, boxes, scores = net(picture)
    best = scores.amax(1)
    outputs = [boxes[best > best.mean()]]
    if seldom:
        outputs.append(maps.mean((2, 3)))
    return [item.cpu() for item in outputs]


def without_server(net, picture):
    """As ``above``; see :func:`main`."""
    return above(net, picture)


SITUATIONS = {"above": above, "in place": in_place, "maps too": maps_too, "now and then": now_and_then,
              "server gone": without_server}  # fmt: skip


def distance(outputs, expected):
    if [item.shape for item in outputs] != [item.shape for item in expected]:
        return float("inf")
    return max(
        float((got - want).abs().max() / want.abs().max().clamp(min=1e-9)) for got, want in zip(outputs, expected)
    )


@torch.no_grad()
def main(names):
    for name in names:
        infer = SITUATIONS[name]
        torch.manual_seed(len(name))
        mine = Detector().double().eval()
        on_device = copy.deepcopy(mine).to("cuda")
        before, worst, sizes = dataclasses.asdict(splits), 0.0, set()
        end = time.monotonic() + 120.0
        while splits.operators_split < before["operators_split"] + 12 and time.monotonic() < end:
            picture = torch.rand((1, 3, 24, 32), dtype=torch.float64)
            seldom[:] = [True] if splits.operators_split % 4 == 3 else []
            outputs = infer(on_device, picture.to("cuda"))
            sizes.add(outputs[0].shape[0])
            worst = max(worst, distance(outputs, infer(mine, picture)))
            time.sleep(0.01)
        if infer is without_server:
            clients = {
                item.runner._client
                for item in recorder.strategy.inferences.list_inferences()
                if item.runner is not None
            }
            for client in clients:
                client.close()
            for _ in range(5):
                picture = torch.rand((1, 3, 24, 32), dtype=torch.float64)
                worst = max(worst, distance(infer(on_device, picture.to("cuda")), infer(mine, picture)))
        facts = {"distance": worst, "sizes": len(sizes), "state": recorder.strategy.state()}
        after = dataclasses.asdict(splits)
        print(json.dumps({"situation": name, "before": before, "after": after, **facts}), flush=True)


main(sys.argv[1:] or list(SITUATIONS))
