"""MoveNet-MultiPose as a person estimator."""

from __future__ import annotations

from typing import Any, Dict, Sequence

import torch

from edge_offload.errors import BadInput
from edge_offload.models.base import PeopleModule, PersonEstimator
from edge_offload.models.letterbox import Letterbox
from edge_offload.models.movenet import weights
from edge_offload.models.movenet.network import STRIDE, MoveNet
from edge_offload.models.movenet.readout import KEYPOINTS, ROW, MoveNetReadout
from edge_offload.models.people import People

DEFAULTS: Dict[str, Any] = {"size": 512, "people": 10, "score": 0.2}
"""Long side of the input in pixels, most people, least score of a person."""


class MoveNetEstimator(PersonEstimator):
    """People from float32 [people, ROW] rows with at least ``score``.

    Args:
        size: long side of the network's input, pixels, a multiple of 32.
        people: number of people that the read-out returns (the published graph: 6).
        score: people below this are dropped, 0 to 1.
    """

    pad_value = 0

    def __init__(self, size: int, people: int, score: float) -> None:
        most = 100
        if not 1 <= people <= most:
            raise BadInput(f"movenet: people={people}", remedy=f"use 1 to {most}")
        if not 0 <= score <= 1:
            raise BadInput(f"movenet: score={score}", remedy="use 0 to 1")
        network = MoveNet()
        network.load_state_dict({name: tensor.float() for name, tensor in weights.load_state().items()})
        super().__init__("movenet", PeopleModule(network, MoveNetReadout(people)), size, STRIDE, trained=True)
        self.people = people
        self.score = score

    def decode(self, outputs: Sequence[torch.Tensor], placement: Letterbox) -> People:
        """Select the confident people of ``outputs``, one float32 [people, ROW] tensor."""
        if len(outputs) != 1 or tuple(outputs[0].shape) != (self.people, ROW):
            raise BadInput(f"movenet gave outputs of shapes {[tuple(o.shape) for o in outputs]}")
        rows = outputs[0].cpu().numpy()
        rows = rows[rows[:, 4] >= self.score]
        points = rows[:, 5:].reshape(-1, KEYPOINTS, 3).copy()
        points[..., :2] = placement.to_image(points[..., :2])
        return People(placement.boxes_to_image(rows[:, :4]), rows[:, 4], points)
