"""Models by name, traced with a sample input and located along an axis, ready to be profiled and split."""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import nn

from edge_offload.arrays import Array
from edge_offload.models.video import synthetic_frame
from edge_offload.split.model.network import TracedNetwork

CHANNEL_MEANS, CHANNEL_DEVIATIONS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Per channel, of the images that classifiers are trained on."""


def load_network(
    name: str,
    options: Optional[Mapping[str, Any]] = None,
    bgr: Optional[Array] = None,
    axis: Optional[int] = None,
    dense: bool = False,
) -> TracedNetwork:
    """Build, trace and analyse a model of the registry.

    Args:
        name: a registry name, or package.module:factory of a person estimator.
        options: the model's scalar options.
        bgr: uint8 [h, w, 3] picture for the sample input; a synthetic one without it. Scene models take a synthetic
            LiDAR sweep.
        axis: axis of the input to split along; the one with most local operators without it.
        dense: leave out what comes after the last maps (non-maximum suppression, arg max over the classes).

    Raises:
        BadInput: no such model, or an axis along which nothing is local.
        Unsupported: the model cannot be traced.
    """
    from edge_offload.split.runtime.tracing import trace_module

    module, inputs = build_module(name, dict(options or {}), synthetic_frame() if bgr is None else bgr)
    return trace_module(name, _Dense(module) if dense else module, inputs, axis)


def build_module(name: str, options: Mapping[str, Any], bgr: Array) -> Tuple[nn.Module, Tuple[torch.Tensor, ...]]:
    """A model of the registry with a sample input; arguments and errors as `load`."""
    module, inputs = build_samples(name, options, [bgr])
    return module, inputs[0]


def build_samples(
    name: str, options: Mapping[str, Any], frames: Sequence[Array]
) -> Tuple[nn.Module, List[Tuple[torch.Tensor, ...]]]:
    """A model of the registry with an input for each of ``frames``; arguments and errors as `load`."""
    from edge_offload.models import registry
    from edge_offload.models.base import PersonEstimator

    entry = registry.entries().get(name)
    if entry is not None and entry.kind == "classifier":
        size = int({**entry.options, **options}["size"])
        return registry.build_module(name, **options), [(classifier_input(bgr, size),) for bgr in frames]
    if entry is not None and entry.kind == "scene":
        return registry.build_module(name, **options), [(synthetic_occupancy(seed),) for seed in range(len(frames))]
    estimator = registry.build_estimator(name, **options)
    assert isinstance(estimator, PersonEstimator)
    return estimator.module, [(estimator.prepare(bgr)[0],) for bgr in frames]


class _Dense(nn.Module):
    """A model up to its last maps: float outputs before anything discrete."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: torch.Tensor) -> Any:
        from edge_offload.models.sconet.network import SCONet

        if isinstance(self.module, SCONet):
            return self.module.logits(inputs[0].unsqueeze(0).float())
        part = getattr(self.module, "network", self.module)
        return part(*inputs)


def synthetic_occupancy(seed: int = 0) -> torch.Tensor:
    """Return occupancy of a procedural street as seen by a LiDAR, uint8 [256, 256, 32]."""
    from edge_offload.models.scenes.lidar import HDL64, SensorPose, simulate_sweep
    from edge_offload.models.scenes.world import Street
    from edge_offload.models.voxels import grid_around

    points, _ = simulate_sweep(Street(seed).world_around(0.0), SensorPose(), HDL64, seed)
    return torch.from_numpy(np.ascontiguousarray(grid_around(HDL64.height).occupancy(points)))


def classifier_input(bgr: Array, size: int) -> torch.Tensor:
    """Convert uint8 [h, w, 3] BGR to float32 [1, 3, size, size], normalised per channel."""
    import cv2

    rgb = cv2.cvtColor(cv2.resize(bgr, (size, size), interpolation=cv2.INTER_AREA), cv2.COLOR_BGR2RGB)
    unit = torch.from_numpy(rgb).permute(2, 0, 1).float() / 255.0
    return ((unit - torch.tensor(CHANNEL_MEANS)[:, None, None]) / torch.tensor(CHANNEL_DEVIATIONS)[:, None, None])[
        None
    ].contiguous()
