"""User-defined detectors and segmenters: any module, with a small class that prepares and interprets."""

from __future__ import annotations

import abc
from typing import Any, ClassVar, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.models import registry
from edge_offload.models.base import Estimator
from edge_offload.models.detections import Detections
from edge_offload.models.entry import Scalar
from edge_offload.models.letterbox import Letterbox, letterbox
from edge_offload.models.onnxfile.estimators import OnnxModule


class Detector(Estimator):
    """Finds objects in an image. A subclass sets ``labels`` and converts the module's outputs to detections.

    Args:
        name: of the model.
        module: plain PyTorch, from the result of :meth:`prepare` to tensors.

    Attributes:
        labels: names of the classes; empty: their numbers are shown.
        size: long side of the network's input, pixels.
        stride: both sides of the network's input are multiples of this, pixels.
        pad_value: grey value of the padding.
    """

    labels: Sequence[str] = ()
    size: ClassVar[int] = 640
    stride: ClassVar[int] = 32
    pad_value: ClassVar[int] = 114
    trained = True

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name
        self.module = module.eval()
        for parameter in module.parameters():  # one by one: a TorchScript module has no requires_grad_()
            parameter.requires_grad_(False)

    def prepare(self, bgr: Array) -> Tuple[torch.Tensor, Any]:
        """Make the network's input from a uint8 [h, w, 3] BGR image; here its letterbox, uint8 [3, H, W] RGB.

        It may be called for the next image before or while :meth:`interpret` runs for this one. State of an image is
        therefore returned, not stored.

        Returns:
            The input, and its placement for :meth:`interpret`.

        Raises:
            BadInput: not a non-empty uint8 colour image.
        """
        return letterbox(bgr, self.size, self.stride, self.pad_value)

    @abc.abstractmethod
    def interpret(self, outputs: Sequence[torch.Tensor], placement: Any) -> Detections:
        """Return the objects in pixels of the original image.

        Args:
            outputs: of the module, on the CPU.
            placement: returned by :meth:`prepare`: by default a
                :class:`~edge_offload.models.letterbox.Letterbox`, whose ``boxes_to_image`` maps boxes back.
        """

    def label(self, number: int) -> str:
        """Return the name of the class ``number``, or the number where it has no name."""
        return str(self.labels[number]) if number < len(self.labels) else str(number)


class Boxes(Detector):
    """Detector of networks that return boxes, scores and classes, as torchvision's and most exported ones do.

    The module returns float [n, 4] boxes (x1 y1 x2 y2 in pixels of its input), float [n] scores and integer [n]
    classes, in this order. Scores below :attr:`least_score` are dropped.
    """

    least_score: ClassVar[float] = 0.25

    def interpret(self, outputs: Sequence[torch.Tensor], placement: Letterbox) -> Detections:
        """Return the objects whose score is at least :attr:`least_score`.

        Raises:
            BadInput: the module does not return three tensors.
        """
        if len(outputs) != 3:
            raise BadInput(
                f"model {self.name!r} returns {len(outputs)} tensors, not boxes, scores and classes",
                remedy="name a class with an interpret() of its own: detector:=package.module:Class; outputs of "
                "an ONNX file are decoded by themselves",
            )
        boxes, scores, classes = (output.numpy() for output in outputs)
        # NaN passes, so that it is reported
        confident = ~(scores < self.least_score)
        return Detections(placement.boxes_to_image(boxes[confident]), scores[confident], classes[confident])


class OnnxDetector(Detector):
    """Detector of networks from ONNX files, whose module decodes its outputs."""

    def __init__(self, name: str, module: OnnxModule) -> None:
        super().__init__(name, module)
        self._module = module
        self.labels = module.labels

    def prepare(self, bgr: Array) -> Tuple[torch.Tensor, Any]:
        return self._module.place_image(bgr)

    def interpret(self, outputs: Sequence[torch.Tensor], placement: Letterbox) -> Detections:
        boxes, scores, classes = (output.numpy() for output in outputs[:3])
        mask = placement.mask_to_image(outputs[3].numpy()) if self._module.plan.masks else None
        return Detections(placement.boxes_to_image(boxes), scores, classes, mask)


def build_detector(name: str, detector: str = "", options: Optional[Mapping[str, Scalar]] = None) -> Detector:
    """Build a detector with its weights loaded.

    Args:
        name: ``package.module:factory`` of an ``nn.Module`` or of a whole :class:`Detector`, or the path of a
            TorchScript or ONNX file.
        detector: ``package.module:Class``, a :class:`Detector` that is made of the module; by default :class:`Boxes`,
            or the decoder of an ONNX file. A class for an ONNX file needs the option ``decoder`` "none".
        options: of the factory; ``weights`` is a safetensors file that is loaded into what it makes.

    Raises:
        BadInput: there is no such model or class, or its weights do not fit.
    """
    built = registry.build_model(name, options or {})
    if isinstance(built, Detector):
        return built
    if not isinstance(built, nn.Module):
        raise BadInput(f"model {name!r} is a {type(built).__name__}, not a detector", "kapao_node runs it")
    default_class = OnnxDetector if isinstance(built, OnnxModule) else Boxes
    detector_class: Any = registry.user_factory(detector) if detector else default_class
    if not (isinstance(detector_class, type) and issubclass(detector_class, Detector)):
        raise BadInput(f"{detector!r} is no class of detectors", f"derive it from {Detector.__module__}.Detector")
    try:
        instance: Detector = detector_class(name, built)
    except TypeError as error:  # an abstract method is missing, or __init__ takes other arguments
        remedy = "define interpret(outputs, placement)"
        raise BadInput(f"detector {detector!r} cannot be made: {error}", remedy) from None
    return instance
