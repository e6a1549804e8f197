"""SCONet: completes the occupancy of one LiDAR sweep and labels it. A 2D U-Net over height slices, then a 3D head.

After the scene-completion network of AGRNav (Wang et al., 2024): height is the channel of a light 2D U-Net whose
convolutions are depthwise separable, with criss-cross attention (Huang et al., CCNet) and MobileViTv2 blocks (Mehta
and Rastegari) at the coarse scales; a head of dilated 3D convolutions (as in LMSCNet, Roldao et al.) gives every voxel
its class. Unlike there, the U-Net gives the head ``features`` numbers per voxel instead of one, and both have the
estimated level of the ground as an input: far away the rings on the ground are metres apart, so that many of its
voxels have no hit.
"""

from __future__ import annotations

from typing import List, Sequence, Tuple

import torch
from torch import nn
from torch.nn import functional as F

from edge_offload.models.scenes.labels import LABELS

CLASSES = len(LABELS)
HEIGHT = 32
WIDTHS = (32, 48, 64, 80)
DILATIONS = (1, 2, 3)
STRIDE = 16
"""Both horizontal sides of the grid are multiples of this."""


NEAR = 51
"""Side in columns of the square in which the lowest hit counts as ground: 10 m at 0.2 m."""


def ground_level(occupancy: torch.Tensor) -> torch.Tensor:
    """Estimate the ground's level in every column, float [b, x, y] in voxels, from float [b, x, y, z] occupancy.

    Hits at most two voxels above the lowest one near by are ground. Pull and push (Gortler et al., The Lumigraph,
    1996, section 3.4) fills the gaps with averages over larger and larger squares. Without any hit the level is 1, as
    the grid defines it.
    """
    # columns without a hit have the number of levels
    low = (occupancy.cumsum(dim=3) == 0).sum(dim=3).float().unsqueeze(1)
    near = -F.max_pool2d(-low, (NEAR, 1), stride=1, padding=(NEAR // 2, 0))
    near = -F.max_pool2d(-near, (1, NEAR), stride=1, padding=(0, NEAR // 2))
    seen = ((low <= near + 2.0) & (low < occupancy.shape[3])).float()
    pyramid = [(low * seen, seen)]
    while max(pyramid[-1][1].shape[2:]) > 1:
        totals, weights = (F.avg_pool2d(part, 2, ceil_mode=True, count_include_pad=False) for part in pyramid[-1])
        pyramid.append((totals, weights))
    level = torch.ones_like(pyramid[-1][0])
    for total, weight in reversed(pyramid):
        coarse = F.interpolate(level, size=total.shape[2:], mode="bilinear", align_corners=False)
        level = torch.where(weight > 0, total / weight.clamp(min=1e-12), coarse)
    return level.squeeze(1)


class SeparableConv(nn.Module):
    """Depthwise 3x3, then pointwise convolution, each normalised, with ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False)
        self.depth_norm = nn.BatchNorm2d(inputs)
        self.pointwise = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.point_norm = nn.BatchNorm2d(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.depth_norm(self.depthwise(x)))
        return F.relu(self.point_norm(self.pointwise(x)))


class CrissCross(nn.Module):
    """Attention of each cell to the cells of its row and column (CCNet, section 3.2, one recurrence)."""

    def __init__(self, channels: int, reduction: int = 8) -> None:
        super().__init__()
        self.query = nn.Conv2d(channels, channels // reduction, 1)
        self.key = nn.Conv2d(channels, channels // reduction, 1)
        self.value = nn.Conv2d(channels, channels, 1)
        # 0: at the start of training the block is the identity
        self.gain = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.query(x), self.key(x), self.value(x)
        height = x.shape[2]
        in_column = torch.einsum("bchw,bcgw->bhwg", query, key)
        in_row = torch.einsum("bchw,bchv->bhwv", query, key)
        # the cell itself is already in its row; ONNX Runtime has no torch.eye of booleans
        place = torch.arange(height, device=x.device)
        is_self = (place[:, None] == place).view(1, height, 1, height)
        in_column = in_column.masked_fill(is_self, float("-inf"))
        weights = torch.softmax(torch.cat((in_column, in_row), dim=3), dim=3)
        column, row = weights[..., :height], weights[..., height:]
        gathered = torch.einsum("bhwg,bcgw->bchw", column, value) + torch.einsum("bhwv,bchv->bchw", row, value)
        mixed: torch.Tensor = x + self.gain * gathered
        return mixed


class SeparableAttention(nn.Module):
    """MobileViTv2's attention: one context vector per sequence, linear in its length (section 3.2).

    Input and output are float [b, channels, p, n]: p sequences of n tokens.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.score = nn.Conv2d(channels, 1, 1)
        self.key = nn.Conv2d(channels, channels, 1)
        self.value = nn.Conv2d(channels, channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.softmax(self.score(x), dim=3)
        context = (self.key(x) * scores).sum(dim=3, keepdim=True)
        gathered: torch.Tensor = self.out(F.relu(self.value(x)) * context)
        return gathered


class MobileViT(nn.Module):
    """A MobileViTv2 block: local 3x3 convolution, then ``layers`` of attention between 2x2 patches."""

    def __init__(self, channels: int, layers: int) -> None:
        super().__init__()
        self.local = SeparableConv(channels, channels)
        self.attention_norms = nn.ModuleList(nn.GroupNorm(1, channels) for _ in range(layers))
        self.attentions = nn.ModuleList(SeparableAttention(channels) for _ in range(layers))
        self.feeds = nn.ModuleList(
            nn.Sequential(
                nn.GroupNorm(1, channels),
                nn.Conv2d(channels, 2 * channels, 1),
                nn.SiLU(),
                nn.Conv2d(2 * channels, channels, 1),
            )
            for _ in range(layers)
        )
        self.project = nn.Conv2d(channels, channels, 1, bias=False)
        self.project_norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        y = self.local(x)
        # sequence p has the cells at place p of all 2x2 patches
        y = y.reshape(batch, channels, height // 2, 2, width // 2, 2).permute(0, 1, 3, 5, 2, 4)
        y = y.reshape(batch, channels, 4, (height // 2) * (width // 2))
        for norm, attention, feed in zip(self.attention_norms, self.attentions, self.feeds):
            y = y + attention(norm(y))
            y = y + feed(y)
        y = y.reshape(batch, channels, 2, 2, height // 2, width // 2).permute(0, 1, 4, 2, 5, 3)
        mixed: torch.Tensor = x + self.project_norm(self.project(y.reshape(batch, channels, height, width)))
        return mixed


class Level(nn.Module):
    """One scale of the decoder: merges the doubled coarser map with the encoder's map."""

    def __init__(self, coarse: int, skip: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(coarse, skip, 1, bias=False)
        self.merge = SeparableConv(2 * skip, skip)

    def forward(self, coarse: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        doubled = F.interpolate(self.reduce(coarse), scale_factor=2.0, mode="nearest")
        merged: torch.Tensor = self.merge(torch.cat((doubled, skip), dim=1))
        return merged


class Unet(nn.Module):
    """Float [b, 2 * HEIGHT, x, y] occupancy and ground to float [b, features * HEIGHT, x, y]."""

    def __init__(self, features: int, widths: Sequence[int], layers: Sequence[int]) -> None:
        super().__init__()
        self.enter = nn.Sequential(
            nn.Conv2d(2 * HEIGHT, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()
        )
        self.first = SeparableConv(widths[0], widths[0])
        self.downs = nn.ModuleList(
            nn.Sequential(SeparableConv(a, b, stride=2), SeparableConv(b, b)) for a, b in zip(widths, widths[1:])
        )
        self.attentions = nn.ModuleList(
            MobileViT(width, count) if count else nn.Identity() for width, count in zip(widths[1:], layers)
        )
        self.criss_cross = CrissCross(widths[-1])
        self.ups = nn.ModuleList(Level(b, a) for a, b in zip(widths, widths[1:]))
        self.leave = nn.Conv2d(widths[0], features * HEIGHT, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips: List[torch.Tensor] = [self.first(self.enter(x))]
        for down, attention in zip(self.downs, self.attentions):
            skips.append(attention(down(skips[-1])))
        y = self.criss_cross(skips.pop())
        for up, skip in zip(reversed(self.ups), reversed(skips)):
            y = up(y, skip)
        result: torch.Tensor = self.leave(y)
        return result


class DilatedHead(nn.Module):
    """Float [b, features, x, y, z] to class logits [b, classes, x, y, z], with context at three dilations."""

    def __init__(
        self, features: int, planes: int = 8, classes: int = CLASSES, dilations: Sequence[int] = DILATIONS
    ) -> None:
        super().__init__()
        self.enter = nn.Conv3d(features, planes, 3, padding=1)
        self.first = nn.ModuleList(_dilated_conv(planes, dilation) for dilation in dilations)
        self.first_norms = nn.ModuleList(nn.BatchNorm3d(planes) for _ in dilations)
        self.second = nn.ModuleList(_dilated_conv(planes, dilation) for dilation in dilations)
        self.second_norms = nn.ModuleList(nn.BatchNorm3d(planes) for _ in dilations)
        self.classify = nn.Conv3d(planes, classes, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.enter(x))
        y = x
        for one, one_norm, two, two_norm in zip(self.first, self.first_norms, self.second, self.second_norms):
            y = y + two_norm(two(F.relu(one_norm(one(x)))))
        logits: torch.Tensor = self.classify(F.relu(y))
        return logits


def _dilated_conv(planes: int, dilation: int) -> nn.Conv3d:
    return nn.Conv3d(planes, planes, 3, padding=dilation, dilation=dilation, bias=False)


class SCONet(nn.Module):
    """The whole network: uint8 occupancy [x, y, 32] to uint8 labels of the same shape.

    Logits do not leave the device: of 256 x 256 x 32 voxels they have 168 MB, the labels 2 MB.

    Args:
        features: numbers per voxel between U-Net and head.
        planes: channels of the head.
        widths: channels at the scales 1, 1/2, 1/4, 1/8.
        layers: MobileViTv2 layers at the scales 1/2, 1/4, 1/8.
        classes: label values.
    """

    def __init__(
        self,
        features: int = 4,
        planes: int = 8,
        widths: Sequence[int] = WIDTHS,
        layers: Sequence[int] = (0, 4, 6),
        classes: int = CLASSES,
    ) -> None:
        super().__init__()
        self.features = features
        self.unet = Unet(features, widths, layers)
        self.head = DilatedHead(features + 1, planes, classes)

    def volume(self, occupancy: torch.Tensor) -> torch.Tensor:
        """Map float [b, x, y, 32] occupancy to the head's input float [b, features + 1, x, y, 32].

        A voxel's last number is its nearness to the ground's level: 1 at it, 0 from one voxel away.
        """
        levels = torch.arange(HEIGHT, device=occupancy.device, dtype=occupancy.dtype)
        ground = F.relu(1.0 - (levels - ground_level(occupancy).unsqueeze(3)).abs())
        flat = self.unet(torch.cat((occupancy, ground), dim=3).permute(0, 3, 1, 2).contiguous())
        batch, _, x, y = flat.shape
        shaped = flat.reshape(batch, self.features, HEIGHT, x, y).permute(0, 1, 3, 4, 2)
        both = torch.cat((shaped, ground.unsqueeze(1)), dim=1)
        if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            return both  # ONNX has no order in memory
        # channels last: on a CPU the 3D convolutions take two thirds of the time
        volume: torch.Tensor = both.contiguous(memory_format=torch.channels_last_3d)
        return volume

    def logits(self, occupancy: torch.Tensor) -> torch.Tensor:
        """Float [b, x, y, 32] occupancy to class logits [b, classes, x, y, 32]."""
        logits: torch.Tensor = self.head(self.volume(occupancy))
        return logits

    def forward(self, occupancy: torch.Tensor) -> Tuple[torch.Tensor]:
        """Uint8 [x, y, 32] of 0 and 1 to a tuple of uint8 [x, y, 32] class labels; x and y multiples of 16."""
        logits = self.logits(occupancy.unsqueeze(0).float())
        return (logits.argmax(dim=1).squeeze(0).to(torch.uint8),)
