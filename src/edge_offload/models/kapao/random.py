"""Random weights for KAPAO, for latency, split and parity work only.

These weights make numerical errors visible. Batch normalisation is calibrated, so that no feature map vanishes or
explodes, and a relative error of 1e-6 in any layer reaches the outputs. The read-out has a few hundred candidates, as
with trained weights.
"""

from __future__ import annotations

import copy
import math
from typing import Tuple

import torch
from torch import nn

from edge_offload.models.kapao.network import ANCHORS_PER_LEVEL, OUTPUTS, Conv, Kapao

CALIBRATION_SIDE = 192
"""Side of the calibration image, pixels."""

SIGNIFICANT_BITS = 8
"""Bits to which float64 statistics are rounded. The last bits differ between processors and thread counts, and robot
and server must make equal weights from equal seeds."""


def fill_random(network: Kapao, seed: int) -> None:
    """Fill ``network`` with random weights that depend on ``seed`` alone, on every machine."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                fan_in = module.weight[0].numel()
                module.weight.copy_(torch.randn(module.weight.shape, generator=generator) * math.sqrt(2.0 / fan_in))
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, nn.BatchNorm2d):
                # small values pass SiLU where it is nearly linear, so that brighter images do not explode
                module.weight.fill_(0.1)
        coarse = torch.rand((1, 3, CALIBRATION_SIDE // 16, CALIBRATION_SIDE // 16), generator=generator)
        fine = torch.rand((1, 3, CALIBRATION_SIDE, CALIBRATION_SIDE), generator=generator)
        image = 0.8 * nn.functional.interpolate(coarse, scale_factor=16, mode="nearest") + 0.2 * fine
        _calibrate_norms(network, image.double())
        for head in network.detect.m:
            assert isinstance(head, nn.Conv2d)
            assert head.bias is not None
            biases = head.bias.view(ANCHORS_PER_LEVEL, OUTPUTS)
            biases[:, 4] = -1.5  # objectness: about one anchor in a hundred passes a confidence of 0.5
            biases[:, 5] = 1.0  # class person: raised so that both kinds of objects, persons and keypoints, occur


def _calibrate_norms(network: Kapao, image: torch.Tensor) -> None:
    """Normalise every layer by its mean square output for the float64 ``image`` [1, 3, h, w].

    All channels of a layer share one variance. Channels calibrated separately on one image explode on another.
    """
    precise = copy.deepcopy(network).double().eval()

    def add_hook(layer: Conv, precise_layer: Conv) -> None:
        def set_variance(_: nn.Module, __: Tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            mean_square = _round_bits(output.square().mean())
            for norm in (layer.bn, precise_layer.bn):
                assert isinstance(norm, nn.BatchNorm2d)
                assert norm.running_var is not None
                norm.running_var.fill_(mean_square)

        precise_layer.conv.register_forward_hook(set_variance)

    for layer, precise_layer in zip(network.modules(), precise.modules()):
        if isinstance(layer, Conv) and isinstance(precise_layer, Conv):
            add_hook(layer, precise_layer)
    for head, head_output in zip(network.detect.m, precise.maps(image)):
        assert isinstance(head, nn.Conv2d)
        head.weight.mul_(_round_bits(0.85 / head_output.square().mean().sqrt()).float())


def _round_bits(value: torch.Tensor) -> torch.Tensor:
    """Round a float64 scalar to :data:`SIGNIFICANT_BITS` significant bits."""
    mantissa, exponent = torch.frexp(value)
    return torch.ldexp(torch.round(mantissa * 2**SIGNIFICANT_BITS), exponent - SIGNIFICANT_BITS)
