"""The network before its first step: random filters, biases that expect few objects, anchors that suit the data."""

from __future__ import annotations

import math
from typing import Callable, List, Sequence

import torch
from torch import nn

from edge_offload.models.kapao.network import (
    ANCHORS_PER_LEVEL,
    CLASSES,
    DEFAULT_ANCHORS,
    OUTPUTS,
    STRIDES,
    Kapao,
    Scale,
)

HEAD_GAIN = 0.1
"""Factor on the first weights of the heads: the first answers are the biases."""

OBJECTS_EXPECTED = 8
"""Objects that the first biases expect per 512 × 512 pixels and level."""

SMALL_ANCHORS = (
    (12, 12, 16, 42, 26, 72),
    (34, 90, 48, 120, 80, 160),
    *DEFAULT_ANCHORS[2:],
)
"""For people of 25 to 100 pixels. With an anchor ratio of 2.6, keypoint objects of 15 pixels fall to the first anchor
and persons to the others: in a person of two by seven cells they would else fight for the same answers."""


def initialise_network(network: Kapao, anchors: Sequence[Sequence[float]], seed: int) -> None:
    """Fill ``network`` with random weights for training, and with ``anchors`` (per level, ``w h w h w h`` pixels)."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                deviation = math.sqrt(2.0 / module.weight[0].numel())
                module.weight.copy_(torch.randn(module.weight.shape, generator=generator) * deviation)
        for head, stride in zip(network.detect.m, STRIDES):
            assert isinstance(head, nn.Conv2d)
            assert head.bias is not None
            head.weight.mul_(HEAD_GAIN)
            biases = head.bias.view(ANCHORS_PER_LEVEL, OUTPUTS)
            biases.zero_()
            biases[:, 4] = math.log(OBJECTS_EXPECTED / (512 / stride) ** 2)
            biases[:, 5 : 5 + CLASSES] = math.log(0.6 / (CLASSES - 0.99))
        pixels = torch.tensor(anchors, dtype=torch.float32).view(len(STRIDES), ANCHORS_PER_LEVEL, 2)
        network.detect.anchors.copy_(pixels / torch.tensor(STRIDES, dtype=torch.float32).view(-1, 1, 1))
        network.detect.anchor_grid.copy_(pixels.view(len(STRIDES), 1, ANCHORS_PER_LEVEL, 1, 1, 2))


def make_network(scale: Scale, anchors: Sequence[Sequence[float]], seed: int) -> Kapao:
    """Make a network of ``scale``, filled by :func:`initialise_network`."""
    network = Kapao(scale)
    initialise_network(network, anchors, seed)
    return network


def anchors_of(network: Kapao) -> List[torch.Tensor]:
    """Per level, float [3, 2]: width and height in pixels."""
    return list(network.detect.anchor_grid.detach().clone().view(len(STRIDES), ANCHORS_PER_LEVEL, 2))


def make_trainable(network: Kapao) -> Callable[[torch.Tensor], List[torch.Tensor]]:
    """Call of ``network`` for the trainer: uint8 [n, 3, H, W] RGB to raw levels [n, 3, h, w, OUTPUTS]."""

    def forward(images: torch.Tensor) -> List[torch.Tensor]:
        # channels last: the convolutions of one thread are a tenth to a third faster
        scaled = (images.float() / 255).to(memory_format=torch.channels_last)
        return [
            level.unflatten(1, (ANCHORS_PER_LEVEL, OUTPUTS)).permute(0, 1, 3, 4, 2) for level in network.maps(scaled)
        ]

    return forward
