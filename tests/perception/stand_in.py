"""A person estimator small enough for tests: it finds the bright rectangle in the image."""

from __future__ import annotations

from typing import Sequence, Tuple

import torch
from torch import nn

from edge_offload.models.base import PeopleModule, PersonEstimator
from edge_offload.models.letterbox import Letterbox
from edge_offload.models.people import People
from tests.perception.scenes import people


class _Brightness(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, image: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        return ((image.float().mean(0) > 200) * self.scale,)


class _Corners(nn.Module):
    def forward(self, bright: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        rows, columns = torch.nonzero(bright, as_tuple=True)
        if not len(rows):
            return (torch.zeros(0),)
        return (torch.stack([columns.min(), rows.min(), columns.max(), rows.max()]).float(),)


class _Finder(PersonEstimator):
    def decode(self, outputs: Sequence[torch.Tensor], placement: Letterbox) -> People:
        return people([outputs[0].numpy()]) if len(outputs[0]) else People.empty()


def make(trained: bool = True) -> PersonEstimator:
    """The estimator, at the size of the test video: nothing is scaled."""
    return _Finder("stand_in", PeopleModule(_Brightness(), _Corners()), size=160, stride=32, trained=trained)
