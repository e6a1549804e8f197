"""Interface of networks of cameras: prepare, module, interpret; and of those that find people."""

from __future__ import annotations

import abc
import itertools
from typing import Any, Sequence, Tuple

import torch
from torch import nn

from edge_offload.arrays import Array
from edge_offload.models.letterbox import Letterbox, letterbox
from edge_offload.models.people import People


class PeopleModule(nn.Module):
    """The part of an estimator that runs on a device: a dense network and its read-out.

    It is an ordinary module, independent of the device. ``network`` has static shapes and maps uint8 [3, H, W] RGB to
    a tuple of dense float maps; this part is traced, exported or split. A method ``batch``, if present, maps
    [b, 3, H, W] to maps [b, …]. ``readout`` maps these to a few small tensors (decoding, top-k or non-maximum
    suppression), whose length may depend on the data.
    """

    def __init__(self, network: nn.Module, readout: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.readout = readout

    def forward(self, image: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        """Map uint8 [3, H, W] RGB to the small tensors that ``PersonEstimator.interpret`` takes."""
        maps = self.network(image)
        outputs: Tuple[torch.Tensor, ...] = self.readout(*maps)
        return outputs

    def dense_part(self) -> Tuple[nn.Module, nn.Module]:
        """``network`` and ``readout``, of which :meth:`forward` consists."""
        return self.network, self.readout


class Estimator(abc.ABC):
    """Finds something in an image: host-side preparation, a device module, host-side interpretation.

    ``interpret(module(prepare(bgr)))`` is one inference. The three steps are separate, so that the middle one can run
    on another device or machine.

    Attributes:
        name: of the model.
        module: plain PyTorch, in eval mode.
        trained: whether the weights come from training.
    """

    name: str
    module: nn.Module
    trained: bool

    @abc.abstractmethod
    def prepare(self, bgr: Array) -> Tuple[torch.Tensor, Any]:
        """Make the input of ``module`` from a uint8 [h, w, 3] BGR image, and its placement for ``interpret``.

        Raises:
            BadInput: not a non-empty uint8 colour image.
        """

    @abc.abstractmethod
    def interpret(self, outputs: Sequence[torch.Tensor], placement: Any) -> Any:
        """Return the detections in pixels of the original image.

        Raises:
            BadInput: the outputs do not have the shapes that ``module`` produces.
        """


class PersonEstimator(Estimator):
    """Finds people with keypoints in an image.

    Attributes:
        name: the model's name in the registry.
        module: plain PyTorch, in eval mode; uint8 [3, H, W] RGB in, a tuple of small tensors out.
        trained: whether the weights come from training. If not (random weights for latency, split and parity
            work), ``interpret`` returns nobody, so that random numbers never look like people.
        size: long side of the network's input, pixels.
        stride: both sides of the network's input are multiples of this, pixels.
    """

    pad_value = 114

    def __init__(self, name: str, module: PeopleModule, size: int, stride: int, trained: bool) -> None:
        self.name = name
        self.module = module.eval().requires_grad_(False)
        self.size = size
        self.stride = stride
        self.trained = trained

    def prepare(self, bgr: Array) -> Tuple[torch.Tensor, Letterbox]:
        """Letterbox a uint8 [h, w, 3] BGR image into the uint8 [3, H, W] RGB input of ``module``.

        Raises:
            BadInput: not a non-empty uint8 colour image.
        """
        return letterbox(bgr, self.size, self.stride, self.pad_value)

    def interpret(self, outputs: Sequence[torch.Tensor], placement: Letterbox) -> People:
        """Decode the outputs of ``module`` to people in pixels of the original image; nobody if not ``trained``.

        Raises:
            BadInput: the outputs do not have the shapes that ``module`` produces.
        """
        return self.decode(outputs, placement) if self.trained else People.empty()

    @abc.abstractmethod
    def decode(self, outputs: Sequence[torch.Tensor], placement: Letterbox) -> People:
        """Decode the outputs even of untrained weights, for parity checks; they are no detections."""

    def infer(self, bgr: Array) -> People:
        """Run all three steps in this process."""
        image, placement = self.prepare(bgr)
        device = next(itertools.chain(self.module.parameters(), self.module.buffers())).device
        with torch.inference_mode():
            outputs = self.module(image.to(device))
        return self.interpret(outputs, placement)
