"""An ONNX file for detector_node, as exporters write one: ``python examples/own_onnx.py spots.onnx``."""

import sys
import warnings

import torch
from own_detector import Network
from torch import nn

SIZE = 512


class OfOneImage(nn.Module):
    """float [1, 3, H, W] from 0 to 1 in; boxes, scores and classes out, which are recognised by their names."""

    def __init__(self):
        super().__init__()
        self.network = Network()

    def forward(self, images):
        return self.network(images[0] * 255)


def write(path):
    """Export it, with the names of its classes where ultralytics and others put theirs."""
    import onnx

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has a newer exporter; this one writes one file
        torch.onnx.export(
            OfOneImage(), (torch.rand(1, 3, SIZE, SIZE),), path, dynamo=False, opset_version=17,
            input_names=["images"], output_names=["boxes", "scores", "labels"],
        )  # fmt: skip
    model = onnx.load(path)
    onnx.helper.set_model_props(model, {"names": str({0: "spot"})})
    onnx.save(model, path)


if __name__ == "__main__":
    write(sys.argv[1])
