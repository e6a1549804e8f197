"""Detectors of the user's own: factories, files and classes, and what is said where they do not fit."""

from __future__ import annotations

import pathlib
import warnings
from typing import Any, Dict

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from edge_offload.errors import BadInput
from edge_offload.models import torchscript
from edge_offload.models.detections import Detections
from edge_offload.models.detector import Boxes, Detector, build_detector
from edge_offload.models.registry import name_on_wire, options_on_wire

NETS = """
import torch
from torch import nn
from edge_offload.models.detector import Boxes, Detector

class Net(nn.Linear):
    def __init__(self):
        super().__init__(2, 4)
    def forward(self, image):
        n = int(image[0, 0, 0])
        return torch.full((n, 4), 8.0), torch.tensor([0.9, 0.1, 0.5])[:n], torch.arange(n)

class Half(Detector):
    pass

class Named(Boxes):
    labels = ("cat", "dog", "bird")
    size = 64

def net():
    return Net()

def whole():
    return Named("whole", Net())

def wrong():
    return 5
"""


@pytest.fixture(autouse=True)
def nets(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets_of_mine.py").write_text(NETS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)


def bright(value: int) -> np.ndarray:
    return np.full((48, 64, 3), value, dtype=np.uint8)


@pytest.mark.parametrize(
    ("name", "detector"), [("nets_of_mine:whole", ""), ("nets_of_mine:net", "nets_of_mine:Named")]
)  # fmt: skip
def test_a_module_and_a_class_or_both_in_one_are_a_detector(name: str, detector: str) -> None:
    made = build_detector(name, detector)
    image, placement = made.prepare(bright(3))
    assert image.shape == (3, 64, 64)
    detections = made.interpret(made.module(image * 0 + 3), placement)
    assert detections.scores.tolist() == pytest.approx([0.9, 0.5])
    assert [made.label(number) for number in detections.classes.tolist()] == ["cat", "bird"]
    assert made.label(7) == "7"
    assert not any(parameter.requires_grad for parameter in made.module.parameters())


def test_scores_that_are_nan_are_reported() -> None:
    made = build_detector("nets_of_mine:net", "")
    image, placement = made.prepare(bright(3))
    boxes, scores, classes = made.module(image * 0 + 3)
    with pytest.raises(BadInput, match="NaN"):
        made.interpret((boxes, scores * np.nan, classes), placement)


def test_weights_are_loaded_from_safetensors(tmp_path: pathlib.Path) -> None:
    weights = {"weight": torch.full((4, 2), 7.0), "bias": torch.zeros(4)}
    save_file(weights, str(tmp_path / "mine.safetensors"))
    made = build_detector("nets_of_mine:net", options={"weights": "mine.safetensors"})
    assert torch.equal(dict(made.module.named_parameters())["weight"], weights["weight"])


class Doubles(nn.Module):
    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image * 2


@pytest.fixture
def script(tmp_path: pathlib.Path) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Doubles()).save(str(tmp_path / "net.pt"))
    return str(tmp_path / "net.pt")


def test_a_torchscript_file_is_a_model_that_goes_by_its_name_and_checksum(script: str) -> None:
    made = build_detector(script)
    assert torch.equal(made.module(torch.ones(2)), torch.full((2,), 2.0))
    assert name_on_wire(script) == "net.pt"
    assert options_on_wire(script, {}) == {"sha256": torchscript.checksum(script)}
    assert name_on_wire("nets_of_mine:net") == "nets_of_mine:net"
    with pytest.raises(BadInput, match=r"another file here.*copy the robot's file"):
        torchscript.load_script(script, "0" * 64)


@pytest.mark.parametrize(
    ("name", "detector", "options", "message"),
    [
        ("nets_of_mine:net", "nets_of_mine:net", {}, r"no class of detectors.*derive it from"),
        ("nets_of_mine:net", "nets_of_mine:Half", {}, r"abstract.*define interpret"),
        ("nets_of_mine:net", "nets_of_mine:Missing", {}, "has no attribute 'Missing'"),
        ("nets_of_mine:wrong", "", {}, r"returned a int.*return nn.Module"),
        ("movenet", "", {}, r"not a detector.*kapao_node"),
        ("nets_of_mine:net", "", {"weights": "none.safetensors"}, "no checkpoint at none.safetensors"),
        ("nets_of_mine:net", "", {"weights": "other.safetensors"}, r"does not fit.*name the weights of this network"),
        ("nets_of_mine:net", "", {"weights": "pickled.pt"}, r"is a pickle.*edge-offload convert"),
        ("missing.pt", "", {}, r"cannot read missing.pt: No such file or directory \(looked up in /"),
        ("rubbish.pt", "", {}, r"holds no TorchScript.*torch.jit.script"),
        ("rubbish.pt", "", {"size": 5}, r"has no option size.*leave it out"),
    ],
)
def test_what_does_not_fit_is_reported_with_the_remedy(
    name: str, detector: str, options: Dict[str, Any], message: str, tmp_path: pathlib.Path, monkeypatch: Any
) -> None:
    save_file({"other": torch.zeros(1)}, str(tmp_path / "other.safetensors"))
    (tmp_path / "pickled.pt").write_bytes(b"x")
    (tmp_path / "rubbish.pt").write_bytes(b"rubbish")
    if name == "movenet":
        monkeypatch.setattr("edge_offload.models.registry.build_model", lambda *_: object())
    with pytest.raises(BadInput, match=message) as raised:
        build_detector(name, detector, options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"boxes": np.zeros((2, 3))}, "boxes has shape"),
        ({"scores": np.array([np.nan])}, "NaN"),
        ({"classes": np.array([-1])}, "no position"),
        ({"classes": ["cat"]}, "cannot be made an array"),
        ({"mask": np.zeros((4, 4))}, "expected uint8"),
    ],
)
def test_detections_that_make_no_sense_are_refused(changes: Dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Detections(**{"boxes": np.zeros((1, 4)), "scores": np.ones(1), "classes": np.zeros(1), **changes})


def test_detections_belong_to_their_image_and_labels() -> None:
    detections = Detections(np.zeros((1, 4)), np.ones(1), np.array([3]), np.zeros((48, 64), dtype=np.uint8))
    detections.check_fit((64, 48), 0)
    detections.check_fit((64, 48), 4)
    with pytest.raises(BadInput, match="class 3 of 3 labels"):
        detections.check_fit((64, 48), 3)
    with pytest.raises(BadInput, match="a mask of 64x48 pixels for an image of 48x64"):
        detections.check_fit((48, 64), 4)


def test_outputs_of_another_kind_need_a_custom_class() -> None:
    with pytest.raises(BadInput, match=r"returns 1 tensors.*detector:=package.module:Class"):
        Boxes("one", Doubles()).interpret((torch.ones(1),), None)  # type: ignore[arg-type]
    assert issubclass(Boxes, Detector)
