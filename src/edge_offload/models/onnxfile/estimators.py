"""Models loaded from ONNX files: the network with its decoder, and an estimator of people."""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Sequence, Tuple

import torch

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.execute.engines.base import CPU, Built, engine_facts
from edge_offload.models.base import PeopleModule, PersonEstimator
from edge_offload.models.entry import Scalar
from edge_offload.models.letterbox import Letterbox, fit_image
from edge_offload.models.onnxfile import recognition
from edge_offload.models.onnxfile.decoders import NONE, DecodePlan, OnnxReadout
from edge_offload.models.onnxfile.network import OnnxNetwork
from edge_offload.models.onnxfile.reading import image_input, labels_of, read_graph
from edge_offload.models.people import COCO_KEYPOINTS, People

#: Options of a model from an ONNX file, with their defaults; ``size`` may be text or a number.
OPTIONS: Dict[str, Scalar] = {
    "decoder": recognition.AUTO, "size": "", "score": 0.25, "iou": 0.0, "values": "", "fit": "", "sha256": "",
}  # fmt: skip
_CHOICES = {
    "values": ("", recognition.UNIT, recognition.IMAGENET, recognition.BYTE),
    "fit": ("", recognition.LETTERBOX, recognition.STRETCH),
}


class OnnxModule(PeopleModule):
    """uint8 [3, H, W] RGB → detections of :mod:`~edge_offload.models.onnxfile.decoders`, or the outputs unchanged.

    Attributes:
        name: name of the file.
        path: its full path.
        plan: parameters of the decoding.
        labels: names of the classes in the file; empty: it has none.
        stretch: whether an image is stretched to the input, without keeping its aspect ratio.
    """

    network: OnnxNetwork

    def __init__(self, network: OnnxNetwork, plan: DecodePlan, labels: Tuple[str, ...], stretch: bool) -> None:
        super().__init__(network, OnnxReadout(plan))
        self.name, self.path, self.plan, self.labels, self.stretch = network.name, network.path, plan, labels, stretch

    def backend(self, device: str) -> Built:
        return self.network.backend(device)

    def use(self, backend: Optional[Built]) -> None:
        self.network.use(backend)

    def place_image(self, bgr: Array) -> Tuple[torch.Tensor, Letterbox]:
        """Fit a uint8 [h, w, 3] BGR image into the network's input; return the input and the image's place in it.

        Raises:
            BadInput: not a non-empty uint8 colour image.
        """
        return fit_image(bgr, self.plan.size[1], self.plan.size[0], self.stretch)

    def describe(self) -> str:
        """Describe the network in one line."""
        plan = self.plan
        extras = "keypoints, " * bool(plan.keypoints[0]) + "masks, " * plan.masks
        classes = f"{len(self.labels)} names of classes" if self.labels else "classes without names"
        return (
            f"{self.name}: {recognition.describe_size(plan.size)}, {self.network.values} values, "
            f"{recognition.STRETCH if self.stretch else recognition.LETTERBOX}; decoder {plan.decoder}: {extras}"
            f"{classes}; {engine_facts(self.backend(CPU))}"
        )


def load_module(path: str, options: Mapping[str, Scalar]) -> OnnxModule:
    """Load the model of an ONNX file, in eval mode.

    Args:
        path: of the file.
        options: see :data:`OPTIONS`.

    Raises:
        BadInput: the file is not usable, or an option is invalid.
        Unsupported: no engine is installed.
    """
    merged = _check_options(path, options)
    graph = read_graph(path, str(merged["sha256"]))
    image = image_input(graph, str(merged["size"]))
    network, size = OnnxNetwork(graph, image), (image.height, image.width)
    outputs = network.probe_outputs()
    plan = recognition.plan_of(
        graph, size, outputs, str(merged["decoder"]), float(merged["score"]), float(merged["iou"])
    )
    value_range, fit = recognition.input_format(graph, plan)
    network.values = str(merged["values"]) or value_range
    stretch = (str(merged["fit"]) or fit) == recognition.STRETCH
    module: OnnxModule = OnnxModule(network, plan, labels_of(graph), stretch).eval()
    return module


def _check_options(path: str, options: Mapping[str, Scalar]) -> Dict[str, Scalar]:
    """Return ``options`` with the defaults of those not given.

    Raises:
        BadInput: an unknown option, or a value of the wrong type or range.
    """
    for name, value in options.items():
        if name not in OPTIONS:
            raise BadInput(f"model {path!r} is a file and has no option {name}", f"it has: {', '.join(OPTIONS)}")
        if isinstance(OPTIONS[name], float):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
                raise BadInput(f"model {path!r}: option {name}={value!r}", "give a number from 0 to 1")
        elif not isinstance(value, str) and (name != "size" or isinstance(value, bool)):
            raise BadInput(f"model {path!r}: option {name}={value!r}", "give text")
        if name in _CHOICES and value not in _CHOICES[name]:
            raise BadInput(f"model {path!r}: option {name}={value!r}", f"use one of: {', '.join(_CHOICES[name][1:])}")
    return {**OPTIONS, **options}


class OnnxPeople(PersonEstimator):
    """Estimator of people with COCO's 17 keypoints, from an ONNX file.

    Args:
        name: of the model, for messages.
        module: the loaded network.

    Raises:
        BadInput: the network has other keypoints, or none.
    """

    def __init__(self, name: str, module: OnnxModule) -> None:
        plan = module.plan
        if plan.decoder == NONE or plan.keypoints[0] != len(COCO_KEYPOINTS):
            found = f"{plan.keypoints[0]} keypoints" if plan.keypoints[0] else "no keypoints"
            raise BadInput(
                f"{module.name} finds {found}, not the {len(COCO_KEYPOINTS)} of COCO by which people are tracked",
                remedy="detector_node runs it (node:=detector_node)",
            )
        super().__init__(name, module, max(plan.size), 1, trained=True)
        self._module = module

    def prepare(self, bgr: Array) -> Tuple[torch.Tensor, Letterbox]:
        return self._module.place_image(bgr)

    def decode(self, outputs: Sequence[torch.Tensor], placement: Letterbox) -> People:
        if len(outputs) != 4:
            raise BadInput(f"{self.name} gave {len(outputs)} outputs in place of boxes, scores, classes and keypoints")
        boxes, scores, _classes, points = (output.cpu().numpy() for output in outputs)
        keypoints = points.copy()
        keypoints[..., :2] = placement.to_image(points[..., :2], clip=True)
        return People(placement.boxes_to_image(boxes), scores, keypoints)
