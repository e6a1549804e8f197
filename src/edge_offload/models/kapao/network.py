"""KAPAO's network: the YOLOv5-P6 detector with SiLU, whose four heads predict poses and keypoints as objects.

Layers have YOLOv5's numbers, 0 to 33, and names, so that published checkpoints load by name
(``model.{i}.conv.weight``, ``model.{i}.m.{j}.cv1.bn.weight``, ``model.33.m.{k}.weight``, ...).
Source: McNally et al., "Rethinking Keypoint Representations" (KAPAO), and the YOLOv5 P6 architecture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple, Union

import torch
from torch import nn

from edge_offload.models.people import COCO_KEYPOINTS

STRIDES = (8, 16, 32, 64)
KEYPOINTS = len(COCO_KEYPOINTS)
CLASSES = 1 + KEYPOINTS
"""A person, and one class per keypoint."""

COORDINATES = 2 * KEYPOINTS
OUTPUTS = 5 + CLASSES + COORDINATES
"""Numbers per anchor: x y w h objectness, class scores, keypoint x y of the pose."""

DEFAULT_ANCHORS = (
    (19, 27, 44, 40, 38, 94),
    (96, 68, 86, 152, 180, 137),
    (140, 301, 303, 264, 238, 542),
    (436, 615, 739, 380, 925, 792),
)
"""Width and height of three anchors per level, pixels of the network's input; a checkpoint has its own."""

ANCHORS_PER_LEVEL = len(DEFAULT_ANCHORS[0]) // 2

CHANNELS = (64, 128, 256, 512, 768, 1024)
"""At width 1: stem, then strides 4, 8, 16, 32, 64."""


@dataclass(frozen=True)
class Scale:
    """Factors of the numbers of blocks and of channels of the largest network."""

    depth: float
    width: float

    def channels(self, full: int) -> int:
        """Channels for ``full`` channels at width 1: rounded up to a multiple of 8."""
        return int(-(-full * self.width // 8) * 8)

    def blocks(self, full: int) -> int:
        """Blocks for ``full`` blocks at depth 1: rounded, at least one."""
        return max(round(full * self.depth), 1)


SCALES: Dict[str, Scale] = {
    "n": Scale(0.33, 0.25),
    "s": Scale(0.33, 0.50),
    "m": Scale(0.67, 0.75),
    "l": Scale(1.00, 1.00),
}
"""s, m, l as published; n is the same rule at the width of YOLOv5n."""


class Conv(nn.Module):
    """Convolution without bias, batch normalisation, SiLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.bn: nn.Module = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.03)
        self.act = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [b, inputs, h, w] to [b, outputs, h / stride, w / stride]."""
        y: torch.Tensor = self.act(self.bn(self.conv(x)))
        return y


class Focus(nn.Module):
    """Rearrangement of 2×2 blocks of pixels to 12 channels, then a 3×3 convolution."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.conv = Conv(12, outputs, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [b, 3, H, W] to [b, outputs, H / 2, W / 2]."""
        corners = (x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2])
        y: torch.Tensor = self.conv(torch.cat(corners, 1))
        return y


class Bottleneck(nn.Module):
    """1×1 then 3×3 convolution, with the input added if ``shortcut``."""

    def __init__(self, channels: int, shortcut: bool) -> None:
        super().__init__()
        self.cv1 = Conv(channels, channels)
        self.cv2 = Conv(channels, channels, 3)
        self.shortcut = shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [b, c, h, w] to the same shape."""
        y: torch.Tensor = self.cv2(self.cv1(x))
        return x + y if self.shortcut else y


class C3(nn.Module):
    """Cross-stage partial block: half of the channels pass ``blocks`` bottlenecks, half bypass them."""

    def __init__(self, inputs: int, outputs: int, blocks: int, shortcut: bool = True) -> None:
        super().__init__()
        hidden = outputs // 2
        self.cv1 = Conv(inputs, hidden)
        self.cv2 = Conv(inputs, hidden)
        self.cv3 = Conv(2 * hidden, outputs)
        self.m = nn.Sequential(*(Bottleneck(hidden, shortcut) for _ in range(blocks)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [b, inputs, h, w] to [b, outputs, h, w]."""
        y: torch.Tensor = self.cv3(torch.cat((self.m(self.cv1(x)), self.cv2(x)), 1))
        return y


class SPP(nn.Module):
    """Spatial pyramid pooling: concatenated max pools of several windows."""

    def __init__(self, inputs: int, outputs: int, kernels: Sequence[int] = (3, 5, 7)) -> None:
        super().__init__()
        hidden = inputs // 2
        self.cv1 = Conv(inputs, hidden)
        self.cv2 = Conv(hidden * (len(kernels) + 1), outputs)
        self.m = nn.ModuleList([nn.MaxPool2d(kernel, 1, kernel // 2) for kernel in kernels])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [b, inputs, h, w] to [b, outputs, h, w]."""
        x = self.cv1(x)
        y: torch.Tensor = self.cv2(torch.cat([x] + [pool(x) for pool in self.m], 1))
        return y


class Concat(nn.Module):
    """Joins maps along the channels."""

    def forward(self, maps: List[torch.Tensor]) -> torch.Tensor:
        """Join [b, c_i, h, w] to [b, sum of c_i, h, w]."""
        return torch.cat(maps, 1)


class Detect(nn.Module):
    """The four heads, a 1×1 convolution per level, and the anchors; the read-out decodes."""

    anchors: torch.Tensor
    anchor_grid: torch.Tensor

    def __init__(self, inputs: Sequence[int]) -> None:
        super().__init__()
        self.m = nn.ModuleList([nn.Conv2d(channels, ANCHORS_PER_LEVEL * OUTPUTS, 1) for channels in inputs])
        pixels = torch.tensor(DEFAULT_ANCHORS, dtype=torch.float32).view(len(STRIDES), ANCHORS_PER_LEVEL, 2)
        # the layout of published checkpoints: in strides, and in pixels in the shape that broadcasts over the maps
        self.register_buffer("anchors", pixels / torch.tensor(STRIDES, dtype=torch.float32).view(-1, 1, 1))
        self.register_buffer("anchor_grid", pixels.clone().view(len(STRIDES), 1, ANCHORS_PER_LEVEL, 1, 1, 2))

    def forward(self, maps: List[torch.Tensor]) -> Tuple[torch.Tensor, ...]:
        """Map one feature map per level to raw scores [b, 3 × 57, h, w] per level."""
        return tuple(convolution(level) for convolution, level in zip(self.m, maps))


Source = Union[int, Tuple[int, ...]]


class Kapao(nn.Module):
    """uint8 [3, H, W] RGB (sides multiples of 64) to raw maps [1, 171, H / s, W / s] for strides 8, 16, 32, 64.

    Args:
        scale: one of :data:`SCALES`.
    """

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        c0, c1, c2, c3, c4, c5 = (scale.channels(full) for full in CHANNELS)
        n3, n9 = scale.blocks(3), scale.blocks(9)
        layers: List[Tuple[nn.Module, Source]] = [
            (Focus(c0), -1),
            (Conv(c0, c1, 3, 2), -1),
            (C3(c1, c1, n3), -1),
            (Conv(c1, c2, 3, 2), -1),
            (C3(c2, c2, n9), -1),
            (Conv(c2, c3, 3, 2), -1),
            (C3(c3, c3, n9), -1),
            (Conv(c3, c4, 3, 2), -1),
            (C3(c4, c4, n3), -1),
            (Conv(c4, c5, 3, 2), -1),
            (SPP(c5, c5), -1),
            (C3(c5, c5, n3, shortcut=False), -1),
            # top-down: 12 to 23
            (Conv(c5, c4), -1),
            (nn.Upsample(scale_factor=2, mode="nearest"), -1),
            (Concat(), (-1, 8)),
            (C3(2 * c4, c4, n3, shortcut=False), -1),
            (Conv(c4, c3), -1),
            (nn.Upsample(scale_factor=2, mode="nearest"), -1),
            (Concat(), (-1, 6)),
            (C3(2 * c3, c3, n3, shortcut=False), -1),
            (Conv(c3, c2), -1),
            (nn.Upsample(scale_factor=2, mode="nearest"), -1),
            (Concat(), (-1, 4)),
            (C3(2 * c2, c2, n3, shortcut=False), -1),
            # bottom-up: 24 to 32
            (Conv(c2, c2, 3, 2), -1),
            (Concat(), (-1, 20)),
            (C3(2 * c2, c3, n3, shortcut=False), -1),
            (Conv(c3, c3, 3, 2), -1),
            (Concat(), (-1, 16)),
            (C3(2 * c3, c4, n3, shortcut=False), -1),
            (Conv(c4, c4, 3, 2), -1),
            (Concat(), (-1, 12)),
            (C3(2 * c4, c5, n3, shortcut=False), -1),
            (Detect((c2, c3, c4, c5)), (23, 26, 29, 32)),
        ]
        self.model = nn.ModuleList([layer for layer, _ in layers])
        self.sources: Tuple[Source, ...] = tuple(source for _, source in layers)

    @property
    def detect(self) -> Detect:
        """The last layer."""
        last = self.model[-1]
        assert isinstance(last, Detect)
        return last

    def forward(self, image: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        """Map uint8 [3, H, W] to the raw maps."""
        return self.batch(image.unsqueeze(0))

    def batch(self, images: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        """Map uint8 [b, 3, H, W] to the raw maps of all of them."""
        return self.maps(images.to(self.detect.anchors.dtype) / 255)

    def maps(self, images: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        """Map float [b, 3, H, W] RGB, 0 to 1, to the raw maps [b, 171, H / s, W / s]."""
        outputs: List[torch.Tensor] = []
        x = images
        for layer, source in zip(self.model, self.sources):
            if isinstance(source, tuple):
                x = layer([outputs[-1] if index == -1 else outputs[index] for index in source])
            else:
                x = layer(x)
            outputs.append(x)
        raw: Tuple[torch.Tensor, ...] = tuple(outputs[-1])
        return raw


def fold_norms(network: Kapao) -> Kapao:
    """Fold every batch normalisation into its convolution, in place, and return ``network``.

    It saves one pass over every map, which gains nothing measurable on one CPU thread. Results change by rounding, so
    robot and server must agree: it is an option of the model, off by default.
    """
    network.eval()
    for module in network.modules():
        if isinstance(module, Conv) and isinstance(module.bn, nn.BatchNorm2d):
            module.conv = nn.utils.fusion.fuse_conv_bn_eval(module.conv, module.bn)
            module.bn = nn.Identity()
    return network
