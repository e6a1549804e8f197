"""A model of your own for kapao_node, here one person in the brightest spot: ``model:=own_people:make``."""

import numpy as np
import torch
from torch import nn

from edge_offload.models.base import PeopleModule, PersonEstimator
from edge_offload.models.people import People


class Network(nn.Conv2d):
    """What is worth offloading: uint8 [3, H, W] RGB in, a tuple of dense maps out."""

    def forward(self, image):
        return (super().forward(image[None] / 255.0),)


class Readout(nn.Module):
    """The maps in a few numbers: column, row and score of the peak."""

    def forward(self, brightness):
        place, width = brightness.argmax(), brightness.shape[-1]
        return (torch.stack([place % width, place // width, brightness.max()]),)


class BrightestPerson(PersonEstimator):
    """Prepares images (letterbox, inherited) and makes people of the numbers, in pixels of the camera's image."""

    def decode(self, outputs, placement):
        column, row, score = outputs[0].tolist()
        box = np.array([[column - 20, row - 60, column + 20, row + 60]], dtype=np.float32)
        return People(placement.boxes_to_image(box), np.array([score]), np.zeros((1, 17, 3)))


def make(size: int = 512):
    """The factory, called on robot and server alike; its arguments are ``model_options:="{size: 256}"``."""
    network = Network(3, 1, 9, padding=4, bias=False)
    nn.init.constant_(network.weight, 1 / 243)  # the same on robot and server
    return BrightestPerson("brightest", PeopleModule(network, Readout()), size=size, stride=32, trained=True)
