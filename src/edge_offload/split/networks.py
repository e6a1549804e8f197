"""A model by name, ready to be profiled and split: its sequence, a sample input, and the axis to split along."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional, Tuple

import numpy as np
import torch

from edge_offload.errors import BadInput, Unsupported
from edge_offload.sequence.build import Program, from_module
from edge_offload.split.locality import LocalityMap, analyse, axis_choices

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Per channel, of the images that classifiers are trained on."""


@dataclass(frozen=True)
class Network:
    """A traced model.

    Attributes:
        name: as in the registry.
        program: sequence and constants.
        located: its locality along the chosen axis.
        inputs: what the sequence takes, from a picture.
        part: ``module`` if all of it was traced, ``network`` if only what comes before a data-dependent read-out.
    """

    name: str
    program: Program
    located: LocalityMap
    inputs: Tuple[torch.Tensor, ...]
    part: str = "module"


def load(
    name: str, options: Optional[Mapping[str, Any]] = None, bgr: Optional[np.ndarray] = None, axis: Optional[int] = None
) -> Network:
    """Build, trace and analyse a model of the registry.

    Args:
        name: a registry name, or package.module:factory of a person estimator.
        options: the model's scalar options.
        bgr: uint8 [h, w, 3] picture for the sample input; a synthetic one without it.
        axis: axis of the input to split along; the one with most local operators without it.

    Raises:
        BadInput: no such model, or an axis along which nothing is local.
        Unsupported: the model cannot be traced.
    """
    from edge_offload.models import registry
    from edge_offload.models.base import PersonEstimator

    options = dict(options or {})
    bgr = synthetic_frame() if bgr is None else bgr
    part = "module"
    entry = registry.entries().get(name)
    if entry is not None and entry.kind == "classifier":
        module = registry.build_module(name, **options)
        inputs: Tuple[torch.Tensor, ...] = (classifier_input(bgr, int({**entry.options, **options}["size"])),)
        program = from_module(module, inputs)
    else:
        estimator = registry.build_estimator(name, **options)
        assert isinstance(estimator, PersonEstimator)
        inputs = (estimator.prepare(bgr)[0],)
        try:
            program = from_module(estimator.module, inputs)
        except Unsupported:  # a read-out whose sizes depend on the data
            program, part = from_module(estimator.module.network, inputs), "network"
    return Network(name, program, _located(program, axis), inputs, part)


def _located(program: Program, axis: Optional[int]) -> LocalityMap:
    choices = axis_choices(program.sequence)
    if axis is not None:
        choices = [choice for choice in choices if axis in choice.values()]
    if not choices:
        where = "any axis" if axis is None else f"axis {axis}"
        raise BadInput(f"no operator of this network is local along {where} of its input")
    return analyse(program.sequence, choices[0])


def classifier_input(bgr: np.ndarray, size: int) -> torch.Tensor:
    """uint8 [h, w, 3] BGR to float32 [1, 3, size, size], normalised per channel; still only 256 values a channel."""
    import cv2

    rgb = cv2.cvtColor(cv2.resize(bgr, (size, size), interpolation=cv2.INTER_AREA), cv2.COLOR_BGR2RGB)
    unit = torch.from_numpy(rgb).permute(2, 0, 1).float() / 255.0
    return ((unit - torch.tensor(MEAN)[:, None, None]) / torch.tensor(DEVIATION)[:, None, None])[None].contiguous()


def synthetic_frame(height: int = 480, width: int = 640, seed: int = 0) -> np.ndarray:
    """A smooth random picture, uint8 [height, width, 3]; for codecs' figures give a real one."""
    import cv2

    chooser = np.random.default_rng(seed)
    frame = np.zeros((height, width, 3))
    for cells, weight in ((4, 60.0), (24, 30.0), (120, 10.0)):
        coarse = chooser.normal(size=(cells, cells, 3))
        frame += weight * cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(frame + 127.5, 0, 255).astype(np.uint8)
