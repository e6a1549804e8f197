"""The network of a node from an ONNX file: what a server is asked for, and where it can run; no node is started."""

from __future__ import annotations

import pytest

pytest.importorskip("rospy", reason="needs a ROS environment: source devel/setup.bash")
pytest.importorskip("onnx", reason="files are made by the package onnx: pip install 'edge_offload[engines]'")
pytest.importorskip("onnxruntime", reason="an engine computes them: pip install 'edge_offload[engines]'")

from edge_offload.errors import BadInput
from edge_offload.mode import Mode
from edge_offload.models.onnxfile import reading
from edge_offload.nodes.common.health import Health
from tests.models.onnx_files import METADATA, RECORDED, of_yolov8


def network(kind, **given):
    """A network of a node with its parameters' defaults, but for those that are given."""
    from edge_offload.nodes.detector.detector_node import DetectorNetwork, DetectorNode
    from edge_offload.nodes.inference.network import Network
    from edge_offload.nodes.people.kapao_node import KapaoNode

    node, made = {"detector": (DetectorNode, DetectorNetwork), "people": (KapaoNode, Network)}[kind]
    defaults = {param.name: param.default for param in node.declared}
    return made({**defaults, **given}, Health())


@pytest.fixture
def pose(tmp_path):
    return of_yolov8(tmp_path / "pose.onnx", RECORDED["v11pose.table"], METADATA["v11pose"])


def test_a_file_is_requested_from_the_server_by_name_checksum_and_decoder(pose):
    options = {"sha256": reading.checksum(pose)}
    people = network("people", model=pose)
    assert (people.name, people.options) == ("pose.onnx", options)
    detector = network("detector", model=pose, decoder="yolov8-pose", model_options={"score": 0.5})
    assert (detector.name, detector.options) == ("pose.onnx", {"score": 0.5, "decoder": "yolov8-pose", **options})
    assert people.weights_sha256 == detector.weights_sha256
    for one in (people, detector):
        assert set(one.absent) >= {Mode.SERVER, Mode.SPLIT, Mode.REPLAY}
        one.close()


def test_a_file_for_another_node_is_refused_with_its_name(tmp_path):
    boxes = of_yolov8(tmp_path / "net.onnx", RECORDED["v11.table"], METADATA["v11"])
    with pytest.raises(BadInput, match=r"finds no keypoints.*node:=detector_node"):
        network("people", model=boxes)
    with pytest.raises(BadInput, match=r"'movenet' has no option 'decoder'"):
        network("people", model="movenet", decoder="yolov8")
    network("detector", model=boxes).close()


def test_with_a_server_modes_that_need_torch_are_absent_with_the_reason(pose, tmp_path):
    one = network("people", model=pose, server="tcp://127.0.0.1:9", keys=str(tmp_path / "keys"))
    assert Mode.SERVER not in one.absent
    assert "computed whole, by an engine: modes local and server" in one.absent[Mode.SPLIT]
    assert "computed whole, by an engine" in one.absent[Mode.REPLAY]
    one.close()
