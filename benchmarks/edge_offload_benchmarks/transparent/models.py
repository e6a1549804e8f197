"""The networks of ``bench transparent``: modules from one tensor to tensors, and fresh inputs for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import nn

from edge_offload.ir.torchvision_package import torchvision_package
from edge_offload.models import registry, zoo

#: ``kind``: people, tiny, classification, segmentation or detection; ``side``: of the input image in pixels.
CLASSIFIERS = ("resnet50", "densenet121", "mobilenet_v3_large", "efficientnet_b0", "convnext_tiny", "vit_b_16")
SEGMENTERS = {"lraspp_mobilenet_v3_large": 320, "deeplabv3_mobilenet_v3_large": 320}
DETECTORS = {"ssdlite320_mobilenet_v3_large": 320, "fasterrcnn_mobilenet_v3_large_320_fpn": 320}


@dataclass(frozen=True)
class Case:
    """One network of the experiment: its name, what the server builds for it in mode ``server``, its input."""

    name: str
    kind: str
    registered: str
    options: Dict[str, Any]

    def module(self) -> nn.Module:
        """The network, on the CPU."""
        return registry.build_module(self.registered, **self.options)


def cases() -> List[Case]:
    """All networks, by the order in which they are measured."""
    module_name = __name__
    listed = [Case("kapao_s", "people", "kapao_s", {"size": 640}), Case("movenet", "people", "movenet", {})]
    listed += [Case(name, "classification", name, {}) for name in CLASSIFIERS]
    listed += [Case(name, "segmentation", f"{module_name}:segmenter", {"network": name}) for name in SEGMENTERS]
    listed += [Case(name, "detection", f"{module_name}:detector", {"network": name}) for name in DETECTORS]
    return listed


def small_cases() -> List[Case]:
    """Networks for many inferences: a static one, and one whose sizes depend on the image."""
    return [Case("tiny", "tiny", f"{__name__}:tiny", {}),
            Case("kapao_n_128", "people", "kapao_n", {"size": 128})]  # fmt: skip


def tiny() -> nn.Module:
    """Three layers."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10)]
    return nn.Sequential(*layers).eval()


class LabelMap(nn.Module):
    """Segmentation: the class of every pixel, uint8 [h, w]."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        """``image``: float32 [1, 3, h, w]."""
        return (self.network(image)["out"].argmax(1)[0].to(torch.uint8),)


class Boxes(nn.Module):
    """Detection, suppression included: boxes [n, 4], labels [n], scores [n]; n depends on the image."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        """``image``: float32 [3, h, w], 0 to 1."""
        (detections,) = self.network([image])
        return detections["boxes"], detections["labels"], detections["scores"]


def segmenter(network: str, seed: int = 0) -> nn.Module:
    """Torchvision's segmentation network ``network`` with random weights that make errors visible."""
    return LabelMap(_network("segmentation", network, seed)).eval()


def detector(network: str, seed: int = 0) -> nn.Module:
    """Torchvision's detection network ``network`` with random weights."""
    return Boxes(_network("detection", network, seed)).eval()


def _network(family: str, name: str, seed: int) -> nn.Module:
    constructor = getattr(getattr(torchvision_package().models, family), name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network: nn.Module = constructor(weights=None, weights_backbone=None)
        for layer in network.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.reset_running_stats()
                layer.momentum = None
                layer.train()
        if family == "segmentation":
            with torch.no_grad():
                network.train()
                network(zoo.smooth_images(4, SEGMENTERS[name]))
    return network.eval()


class Inputs:
    """Fresh inputs of a case: 8-bit images, as a camera would give them, prepared as the network wants them."""

    def __init__(self, case: Case, seed: int = 0) -> None:
        self.case = case
        self._generator = torch.Generator().manual_seed(seed)
        self._estimator: Any = None
        self._scene: Optional[torch.Tensor] = None

    def next(self) -> torch.Tensor:
        """The next one."""
        if self.case.kind == "people":
            if self._estimator is None:
                self._estimator = registry.build_estimator(self.case.registered, **self.case.options)
            return self._estimator.prepare(self._image(576, 768).permute(1, 2, 0).contiguous().numpy())[0]  # type: ignore[no-any-return]
        if self.case.kind == "tiny":
            return torch.rand(1, 3, 16, 16, generator=self._generator)
        side = {**SEGMENTERS, **DETECTORS}.get(self.case.name, 224)
        image = self._image(side, side).float() / 255
        if self.case.kind == "detection":
            return image
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        return ((image - mean[:, None, None]) / std[:, None, None])[None]

    def _image(self, height: int, width: int) -> torch.Tensor:
        """uint8 [3, height, width]: a smooth scene seen from a place that changes, with a sensor's noise."""
        if self._scene is None:
            shape = (3, height + 64, width + 64)
            scene = torch.zeros(1, *shape)
            for cells in (4, 16, 64):
                coarse = torch.randn(1, 3, cells, cells, generator=self._generator) / cells**0.5
                scene += nn.functional.interpolate(coarse, size=shape[1:], mode="bicubic")
            scene -= scene.min()
            self._scene = scene[0] / scene.max() * 255
        y, x = (int(torch.randint(0, 64, (), generator=self._generator)) for _ in range(2))
        noise = torch.randn(3, height, width, generator=self._generator)
        return (self._scene[:, y : y + height, x : x + width] + noise).clamp(0, 255).to(torch.uint8)
