"""Writes a checkpoint of the layout of KAPAO's official ones, with random weights, and what its network computes.

Run as a program, so that the classes that the pickle names (``models.yolo.Model``, ``models.common.Conv``, ...) exist
only in that process::

    python official_layout.py CHECKPOINT.pt EXPECTED.npz DEPTH WIDTH

It is a second, independent statement of the architecture: the published table of layers, parsed.
"""

from __future__ import annotations

import math
import sys
import types

import numpy as np
import torch
from torch import nn

ANCHORS = [[19 + 3 * level + k for k in range(6)] for level in range(4)]
"""Not the defaults: a checkpoint brings its own."""

TABLE = """
-1 1 Focus 64 3 | -1 1 Conv 128 3 2 | -1 3 C3 128 | -1 1 Conv 256 3 2 | -1 9 C3 256 | -1 1 Conv 512 3 2 | -1 9 C3 512
-1 1 Conv 768 3 2 | -1 3 C3 768 | -1 1 Conv 1024 3 2 | -1 1 SPP 1024 | -1 3 C3n 1024
-1 1 Conv 768 1 1 | -1 1 Up | 8 1 Concat | -1 3 C3n 768 | -1 1 Conv 512 1 1 | -1 1 Up | 6 1 Concat | -1 3 C3n 512
-1 1 Conv 256 1 1 | -1 1 Up | 4 1 Concat | -1 3 C3n 256
-1 1 Conv 256 3 2 | 20 1 Concat | -1 3 C3n 512 | -1 1 Conv 512 3 2 | 16 1 Concat | -1 3 C3n 768
-1 1 Conv 768 3 2 | 12 1 Concat | -1 3 C3n 1024
"""


class Conv(nn.Module):
    def __init__(self, c1, c2, k=1, s=1):
        super().__init__()
        self.conv = nn.Conv2d(c1, c2, k, s, k // 2, bias=False)
        self.bn = nn.BatchNorm2d(c2)
        self.act = nn.SiLU()

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


class Bottleneck(nn.Module):
    def __init__(self, c, add):
        super().__init__()
        self.cv1, self.cv2, self.add = Conv(c, c), Conv(c, c, 3), add

    def forward(self, x):
        return x + self.cv2(self.cv1(x)) if self.add else self.cv2(self.cv1(x))


class C3(nn.Module):
    def __init__(self, c1, c2, n, add):
        super().__init__()
        self.cv1, self.cv2, self.cv3 = Conv(c1, c2 // 2), Conv(c1, c2 // 2), Conv(c2, c2)
        self.m = nn.Sequential(*[Bottleneck(c2 // 2, add) for _ in range(n)])

    def forward(self, x):
        return self.cv3(torch.cat((self.m(self.cv1(x)), self.cv2(x)), dim=1))


class SPP(nn.Module):
    def __init__(self, c1, c2):
        super().__init__()
        self.cv1, self.cv2 = Conv(c1, c1 // 2), Conv(c1 // 2 * 4, c2)
        self.m = nn.ModuleList([nn.MaxPool2d(kernel_size=k, stride=1, padding=k // 2) for k in (3, 5, 7)])

    def forward(self, x):
        x = self.cv1(x)
        return self.cv2(torch.cat([x] + [m(x) for m in self.m], 1))


class Focus(nn.Module):
    def __init__(self, c2):
        super().__init__()
        self.conv = Conv(12, c2, 3)

    def forward(self, x):
        a, b = x[:, :, 0::2], x[:, :, 1::2]
        return self.conv(torch.cat((a[..., 0::2], b[..., 0::2], a[..., 1::2], b[..., 1::2]), 1))


class Concat(nn.Module):
    def forward(self, x):
        return torch.cat(x, 1)


class Detect(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.nc, self.no, self.num_coords = 18, 57, 34
        a = torch.tensor(ANCHORS).float().view(4, -1, 2)
        self.stride = torch.tensor([8.0, 16.0, 32.0, 64.0])
        self.register_buffer("anchors", a / self.stride.view(-1, 1, 1))
        self.register_buffer("anchor_grid", a.clone().view(4, 1, -1, 1, 1, 2))
        self.m = nn.ModuleList([nn.Conv2d(c, 3 * 57, 1) for c in channels])

    def forward(self, x):
        return [m(level) for m, level in zip(self.m, x)]


class Model(nn.Module):
    def __init__(self, depth, width):
        super().__init__()
        self.yaml = {"depth_multiple": depth, "width_multiple": width}
        self.names = ["person"] + [f"keypoint {k}" for k in range(17)]
        layers, out, c = [], [], 3
        for i, row in enumerate(TABLE.replace("\n", "|").strip("|").split("|")):
            source, n, kind, *args = row.split()
            n = max(round(int(n) * depth), 1) if int(n) > 1 else 1
            c2 = math.ceil(int(args[0]) * width / 8) * 8 if args else c
            if kind == "Conv":
                layer = Conv(c, c2, int(args[1]), int(args[2]))
            elif kind == "Focus":
                layer = Focus(c2)
            elif kind == "SPP":
                layer = SPP(c, c2)
            elif kind in ("C3", "C3n"):
                layer = C3(c, c2, n, kind == "C3")
            elif kind == "Up":
                layer = nn.Upsample(None, 2, "nearest")
            else:
                layer, c2 = Concat(), c + out[int(source)]
            layer.i, layer.f = i, [-1, int(source)] if kind == "Concat" else -1
            layers.append(layer)
            out.append(c2)
            c = c2
        last = Detect([out[k] for k in (23, 26, 29, 32)])
        last.i, last.f = 33, [23, 26, 29, 32]
        self.model = nn.Sequential(*layers, last)

    def forward(self, x):
        y = []
        for m in self.model:
            if m.f != -1:
                x = [x if j == -1 else y[j] for j in m.f]
            x = m(x)
            y.append(x)
        return x


def pretend_to_be_the_original() -> None:
    package = types.ModuleType("models")
    for name, classes in (
        ("models.common", (Conv, Bottleneck, C3, SPP, Focus, Concat)),
        ("models.yolo", (Detect, Model)),
    ):
        module = types.ModuleType(name)
        for cls in classes:
            cls.__module__ = name
            setattr(module, cls.__name__, cls)
        sys.modules[name] = module
    sys.modules["models"] = package


def main() -> None:
    checkpoint, expected, depth, width = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
    pretend_to_be_the_original()
    torch.manual_seed(7)
    torch.set_num_threads(1)
    model = Model(depth, width)
    # weights under which every layer matters: without calibrated statistics the signal fades before the deep ones
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=(2 / module.weight[0].numel()) ** 0.5)
        if isinstance(module, nn.BatchNorm2d):
            module.eps, module.momentum = 1e-3, 1.0
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.uniform_(-0.3, 0.3)
    with torch.no_grad():
        model.train()(torch.rand(2, 3, 256, 256))
    model = model.half().float().eval()  # what the file can hold
    # large enough for the pooling windows to differ at stride 64
    image = torch.randint(0, 256, (3, 448, 512), dtype=torch.uint8)
    with torch.no_grad():
        maps = model(image[None].float() / 255)
    np.savez(expected, image=image.numpy(), **{f"map{k}": m.numpy() for k, m in enumerate(maps)})
    content = {
        "epoch": -1,
        "best_fitness": np.array([0.7]),
        "training_results": "…",
        "model": model.half(),
        "ema": None,
        "updates": 3,
        "optimizer": None,
        "wandb_id": None,
    }
    torch.save(content, checkpoint)


if __name__ == "__main__":
    main()
