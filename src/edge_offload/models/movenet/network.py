"""MoveNet-MultiPose's dense part: MobileNetV2 (width 1.5), a feature pyramid to stride 4, six CenterNet heads.

Batch normalisation is folded into the convolutions, as in the published weights.
Source: the model card of MoveNet.MultiPose Lightning, and its published TensorFlow.js graph.
"""

from __future__ import annotations

from typing import Tuple

import torch
from torch import nn

STRIDE = 32
"""Sides of the input are multiples of this; the maps have a quarter of the input's size."""

INPUT_SCALE = 0.007843017578125
"""The graph's half-precision 2/255: the input is ``image * INPUT_SCALE - 1``."""

STAGES: Tuple[Tuple[int, int, int], ...] = (
    (40, 2, 2),
    (48, 3, 2),
    (96, 4, 2),
    (144, 3, 1),
    (240, 3, 2),
    (480, 1, 1),
)
"""MobileNetV2 at width 1.5 after its first block: channels, blocks, stride of the stage's first block."""

HEADS: Tuple[Tuple[str, int], ...] = (
    ("center", 1),
    ("box_scale", 2),
    ("box_offset", 2),
    ("keypoint_heatmap", 17),
    ("keypoint_regress", 34),
    ("keypoint_offset", 34),
)
"""Heads and their channels, in the order in which ``forward`` returns them."""


class SameConv(nn.Module):
    """Convolution with TensorFlow's SAME padding for even inputs, and an activation: relu6, relu or none."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        bias: bool = True,
        activation: str = "none",
    ) -> None:
        super().__init__()
        # at stride 2 on an even side, SAME pads only after the last row and column
        asymmetric = stride == 2 and kernel == 3
        self.pad = nn.ZeroPad2d((0, 1, 0, 1)) if asymmetric else nn.Identity()
        padding = 0 if asymmetric else kernel // 2
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=bias)
        activations = {"relu6": nn.ReLU6(), "relu": nn.ReLU(), "none": nn.Identity()}
        self.activation = activations[activation]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [b, inputs, h, w] to [b, outputs, h / stride, w / stride]."""
        y: torch.Tensor = self.activation(self.conv(self.pad(x)))
        return y


class InvertedResidual(nn.Module):
    """MobileNetV2's block: 1×1 expansion, 3×3 depthwise, linear 1×1 projection, and the input added where it fits."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.expand: nn.Module = nn.Identity() if expansion == 1 else SameConv(inputs, hidden, activation="relu6")
        self.depthwise = SameConv(hidden, hidden, 3, stride, groups=hidden, activation="relu6")
        self.project = SameConv(hidden, outputs)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [b, inputs, h, w] to [b, outputs, h / stride, w / stride]."""
        y: torch.Tensor = self.project(self.depthwise(self.expand(x)))
        return x + y if self.residual else y


class Separable(nn.Module):
    """Depthwise 3×3 without bias, then 1×1 with bias and ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.depthwise = SameConv(inputs, inputs, 3, groups=inputs, bias=False)
        self.pointwise = SameConv(inputs, outputs, activation="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [b, inputs, h, w] to [b, outputs, h, w]."""
        y: torch.Tensor = self.pointwise(self.depthwise(x))
        return y


class Backbone(nn.Module):
    """MobileNetV2 at width 1.5; gives maps at strides 4, 8, 16 (before the stage of 144 channels) and 32."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = SameConv(3, 48, 3, 2, activation="relu6")
        blocks = [InvertedResidual(48, 24, 1, expansion=1)]
        channels = 24
        for outputs, count, stride in STAGES:
            for index in range(count):
                blocks.append(InvertedResidual(channels, outputs, stride if index == 0 else 1, expansion=6))
                channels = outputs
        self.blocks = nn.ModuleList(blocks)
        self.last = SameConv(channels, 1280, activation="relu6")

    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Map [b, 3, H, W], -1 to 1, to 40, 48, 96 and 1280 channels at strides 4, 8, 16 and 32."""
        x = self.stem(x)
        taps = []
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index in (2, 5, 9):  # last blocks of the stages of 40, 48 and 96 channels
                taps.append(x)
        return taps[0], taps[1], taps[2], self.last(x)


class Pyramid(nn.Module):
    """Feature pyramid: bilinear ×2 and sum with the finer map, three times, down to stride 4 with 24 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.top = SameConv(1280, 64)
        self.laterals = nn.ModuleList([SameConv(96, 64), SameConv(48, 32), SameConv(40, 24)])
        self.smooths = nn.ModuleList([Separable(64, 32), Separable(32, 24), Separable(24, 24)])
        self.upsample = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)

    def forward(self, c4: torch.Tensor, c8: torch.Tensor, c16: torch.Tensor, c32: torch.Tensor) -> torch.Tensor:
        """Merge the backbone's maps into [b, 24, H / 4, W / 4]."""
        x = self.top(c32)
        for lateral, smooth, finer in zip(self.laterals, self.smooths, (c16, c8, c4)):
            x = smooth(self.upsample(x) + lateral(finer))
        merged: torch.Tensor = x
        return merged


class Head(nn.Module):
    """A separable convolution to 96 channels and a linear 1×1."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.hidden = Separable(24, 96)
        self.out = SameConv(96, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [b, 24, h, w] to [b, outputs, h, w]."""
        y: torch.Tensor = self.out(self.hidden(x))
        return y


class MoveNet(nn.Module):
    """Network from uint8 [3, H, W] RGB to the six maps of :data:`HEADS`, [1, c, H / 4, W / 4], before activation."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.pyramid = Pyramid()
        self.heads = nn.ModuleDict({name: Head(channels) for name, channels in HEADS})

    def forward(self, image: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        """Map uint8 [3, H, W] (sides multiples of 32) to the maps of :data:`HEADS`, in that order."""
        return self.batch(image.unsqueeze(0))

    def batch(self, images: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        """Map uint8 [b, 3, H, W] to maps [b, c, H / 4, W / 4], of the dtype of the weights."""
        x = images.to(self.backbone.stem.conv.weight.dtype) * INPUT_SCALE - 1
        features = self.pyramid(*self.backbone(x))
        return tuple(head(features) for head in self.heads.values())
