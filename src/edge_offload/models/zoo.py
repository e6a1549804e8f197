"""torchvision's networks, whose random weights make errors visible: to check splits, parity and latency.

torchvision's wheels for CPU-only torch lack the compiled operators that its package registers on import, so that
``import torchvision`` fails. :func:`torchvision_package` defines the missing schemas first.

Random networks hide errors: their BatchNorm statistics let activations vanish or explode, layer scale is 1e-6, and
some heads are zero. :func:`build_network` calibrates the statistics on smooth random images, sets layer scale to 1 and
draws every head.
"""

from __future__ import annotations

from typing import Dict

import torch
from torch import nn

from edge_offload.errors import BadInput
from edge_offload.ir.torchvision_package import torchvision_package

NETWORKS: Dict[str, str] = {
    "vgg19_bn": "VGG19 with BatchNorm",
    "resnet50": "ResNet-50",
    "resnet152": "ResNet-152",
    "densenet121": "DenseNet-121",
    "convnext_tiny": "ConvNeXt, tiny",
    "convnext_large": "ConvNeXt, large",
    "regnet_x_3_2gf": "RegNetX-3.2GF",
    "resnext101_32x8d": "ResNeXt-101 32x8d",
    "mobilenet_v3_large": "MobileNetV3, large",
    "efficientnet_b0": "EfficientNet-B0",
    "vit_b_16": "Vision Transformer B/16",
}
"""Constructor in ``torchvision.models`` -> title."""


def build_network(name: str, size: int = 224, seed: int = 0) -> nn.Module:
    """Build the network ``name``, float32, in eval mode, reproducible from ``seed``.

    Args:
        name: a key of :data:`NETWORKS`, or any other classification constructor of ``torchvision.models``.
        size: side of the square input in pixels, for calibration (and for the Vision Transformer's positions).
        seed: of weights and calibration images.

    Raises:
        BadInput: torchvision has no such network.
    """
    models = torchvision_package().models
    constructor = getattr(models, name, None)
    if constructor is None or not callable(constructor) or not name.islower():
        raise BadInput(f"torchvision has no network {name!r}", remedy=f"known here: {', '.join(NETWORKS)}")
    options = {"image_size": size} if name.startswith("vit_") else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module: nn.Module = constructor(weights=None, **options)
        make_errors_visible(module, smooth_images(4, size))
    return module.eval()


def make_errors_visible(module: nn.Module, images: torch.Tensor) -> None:
    """Draw non-zero heads, set layer scale to 1, and calibrate BatchNorm on ``images``, float32 [n, 3, h, w]."""
    for layer in module.modules():
        scale = getattr(layer, "layer_scale", None)
        if isinstance(scale, nn.Parameter):
            nn.init.ones_(scale)
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
            if layer.bias is not None:
                nn.init.normal_(layer.bias, std=0.1)
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.reset_running_stats()
            layer.momentum = None  # a cumulative average: one pass sets the statistics
            layer.train()
    with torch.no_grad():
        module(images)
    module.eval()


def smooth_images(count: int, size: int) -> torch.Tensor:
    """Draw random images, float32 [count, 3, size, size]: mean 0, deviation 1, structure at several scales."""
    images = torch.zeros(count, 3, size, size)
    for cells in (4, 16, size):
        coarse = torch.randn(count, 3, cells, cells)
        images += nn.functional.interpolate(coarse, size=(size, size), mode="bilinear", align_corners=False)
    return (images - images.mean()) / images.std()
