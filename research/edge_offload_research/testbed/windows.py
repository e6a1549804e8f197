"""Kernel, stride, padding of the profiled networks' sliding operators, which the measured data leave out.

For the networks that are at hand they are read off the modules, run once on the ``meta`` device (shapes only, no
weights). Of SCONet (AGRNav) only shapes are known: every convolution is taken as three wide, dilated by 1, 2 and 3 in
the three parallel branches of its head, and a transposed one as three strides wide. That errs towards larger halos.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, List, Tuple

import torch
from torch import nn

SLIDING = ("conv2d", "conv3d", "conv_transpose2d", "max_pool2d", "avg_pool2d")


@dataclass(frozen=True)
class Window:
    """One sliding operator along the width: sizes in elements."""

    kernel: int
    stride: int
    padding: int
    dilation: int = 1


_TORCHVISION = {
    "VGG19_BN": "vgg19_bn",
    "ConvNeXt_Large": "convnext_large",
    "ResNet152": "resnet152",
    "DenseNet121": "densenet121",
}
_HEAD_DILATIONS = (1, 1, 1, 2, 2, 3, 3, 1)
"""SCONet's 3D convolutions in call order."""


def windows_of(model: str, names: List[str], ratios: List[Tuple[int, int]]) -> List[Window]:
    """The windows of a model's sliding operators, in call order.

    Args:
        model: a name of :data:`edge_offload_research.testbed.profiles.MODELS`.
        names: the sliding operators' names in the profile.
        ratios: (width of the input, width of the output) of each, for networks of which nothing more is known.
    """
    if model in _TORCHVISION:
        return _of_module(_windows_of_torchvision(model), torch.empty(1, 3, 224, 224, device="meta"))
    if model == "kapao":
        from edge_offload.models.kapao.network import SCALES, Kapao

        with torch.device("meta"):
            network = Kapao(SCALES["l"])
        return _of_module(network, torch.empty(3, 640, 960, dtype=torch.uint8, device="meta"))
    return _assume_windows(names, ratios)


def _windows_of_torchvision(model: str) -> nn.Module:
    from edge_offload.ir.torchvision_package import torchvision_package

    build: Callable[..., nn.Module] = getattr(torchvision_package().models, _TORCHVISION[model])
    with torch.device("meta"):
        return build(weights=None).eval()


def _of_module(module: nn.Module, image: torch.Tensor) -> List[Window]:
    windows: List[Window] = []

    def note_layer(layer: nn.Module, inputs: Any, output: Any) -> None:
        del inputs, output
        kernel, stride, padding = (_last_size(getattr(layer, key)) for key in ("kernel_size", "stride", "padding"))
        windows.append(Window(kernel, stride, padding, _last_size(getattr(layer, "dilation", 1))))

    for layer in module.modules():
        if isinstance(layer, (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d)):
            layer.register_forward_hook(note_layer)
    with torch.no_grad():
        module.eval()(image)
    return windows


def _last_size(size: Any) -> int:
    return int(size[-1] if isinstance(size, (tuple, list)) else size)


def _assume_windows(names: List[str], ratios: List[Tuple[int, int]]) -> List[Window]:
    dilations = iter(_HEAD_DILATIONS)
    windows: List[Window] = []
    for name, (before, after) in zip(names, ratios):
        if name == "conv_transpose2d":
            step = after // before
            windows.append(Window(3 * step, step, step))
        elif name == "max_pool2d":
            step = before // after
            windows.append(Window(step, step, 0))
        else:
            dilation = next(dilations, 1) if name == "conv3d" else 1
            windows.append(Window(3, before // after, dilation, dilation))
    return windows
