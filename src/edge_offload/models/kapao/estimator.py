"""KAPAO as a person estimator."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Optional, Sequence

import numpy as np
import torch

from edge_offload import places
from edge_offload.errors import BadInput
from edge_offload.models.base import PeopleModule, PersonEstimator
from edge_offload.models.checkpoint import read
from edge_offload.models.kapao import random
from edge_offload.models.kapao.checkpoint import facts_of, load_network
from edge_offload.models.kapao.fusion import fuse_keypoints
from edge_offload.models.kapao.network import KEYPOINTS, SCALES, STRIDES, Kapao, Scale, fold_norms
from edge_offload.models.kapao.readout import KEYPOINT_ROW, PERSON_ROW, KapaoReadout
from edge_offload.models.kapao.thresholds import PRESETS, Thresholds
from edge_offload.models.letterbox import Letterbox
from edge_offload.models.people import People

DEFAULTS: Dict[str, Any] = {
    "size": 640,
    "preset": "video",
    "conf": 0.0,
    "conf_kp": 0.0,
    "checkpoint": "",
    "fuse": False,
    "seed": 0,
}
"""Long side of the input in pixels; set of thresholds; confidences that replace the preset's (0: the preset's);
file with trained weights (empty: random ones, from ``seed``); whether batch normalisation is folded."""


class KapaoEstimator(PersonEstimator):
    """People from persons float32 [n, PERSON_ROW] and keypoint objects float32 [m, KEYPOINT_ROW], by fusion.

    Without a checkpoint the weights are random, ``trained`` is false, and ``interpret`` finds nobody. A checkpoint of
    ``edge-offload train kapao`` has its own depth, width and confidence; ``conf`` overrides the last.
    """

    def __init__(
        self,
        scale: str,
        size: int,
        preset: str,
        conf: float,
        conf_kp: float,
        checkpoint: str,
        fuse: bool,
        seed: int,
    ) -> None:
        path = places.expand(checkpoint)
        tensors, metadata = read(path) if checkpoint else ({}, {})
        facts = facts_of(path, metadata)
        self.thresholds = thresholds_for(preset, conf or facts.get("conf"), conf_kp)
        if checkpoint:
            network = Kapao(
                Scale(facts["depth"], facts["width"]) if {"depth", "width"} <= set(facts) else SCALES[scale]
            )
            load_network(network, path, tensors)
        else:
            network = Kapao(SCALES[scale])
            random.fill_random(network, seed)
        module = PeopleModule(
            _prepare_network(network, fuse), KapaoReadout(network.detect.anchor_grid, self.thresholds)
        )
        super().__init__(f"kapao_{scale}", module, size, STRIDES[-1], trained=bool(checkpoint))

    def decode(self, outputs: Sequence[torch.Tensor], placement: Letterbox) -> People:
        """Fuse persons and keypoint objects, the two ``outputs``."""
        shapes = [tuple(output.shape) for output in outputs]
        if [shape[1:] for shape in shapes] != [(PERSON_ROW,), (KEYPOINT_ROW,)]:
            raise BadInput(f"{self.name} gave outputs of shapes {shapes}")
        persons, objects = (output.cpu().numpy().astype(np.float32) for output in outputs)
        poses = placement.to_image(persons[:, 5:].reshape(-1, KEYPOINTS, 2))
        objects = np.concatenate((placement.to_image(objects[:, :2]), objects[:, 2:]), axis=1)
        keypoints = fuse_keypoints(poses, persons[:, 4], objects, self.thresholds)
        return People(placement.boxes_to_image(persons[:, :4]), persons[:, 4], keypoints)


def _prepare_network(network: Kapao, fused: bool) -> Kapao:
    network.eval()
    return fold_norms(network) if fused else network


def thresholds_for(preset: str, conf: Optional[float] = None, conf_kp: Optional[float] = None) -> Thresholds:
    """Return the thresholds of ``preset``, with ``conf`` and ``conf_kp`` replaced where given and not 0.

    Raises:
        BadInput: no such preset, or a confidence outside 0 to 1.
    """
    if preset not in PRESETS:
        raise BadInput(f"no set of thresholds named {preset!r}", remedy=f"use one of {', '.join(PRESETS)}")
    replaced = {name: value for name, value in (("conf", conf), ("conf_kp", conf_kp)) if value}
    for name, value in replaced.items():
        if not 0 < value < 1:
            raise BadInput(f"kapao: {name}={value}", remedy="use a confidence between 0 and 1")
    return dataclasses.replace(PRESETS[preset], **replaced)
