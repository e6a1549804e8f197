"""A server's replica of a network from an ONNX file: the robot's file and no other, computed by an engine."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import torch

pytest.importorskip("onnx", reason="files are made by the package onnx: pip install 'edge_offload[engines]'")
pytest.importorskip("onnxruntime", reason="an engine computes them: pip install 'edge_offload[engines]'")

from edge_offload.errors import EdgeOffloadError, Refused
from edge_offload.execute.engines.base import ENGINE
from edge_offload.execute.module import ModuleExecutor
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.mode import Mode
from edge_offload.models import registry
from edge_offload.runtime import runners
from edge_offload.runtime.module import OffloadedModule
from edge_offload.server.services.replica.replicas import ReplicaStore
from tests.models.onnx_files import METADATA, RECORDED, of_yolov8


@pytest.fixture
def sides(tmp_path: pathlib.Path) -> Any:
    """The robot's file, and a server with a copy of it."""
    (tmp_path / "robot").mkdir()
    (tmp_path / "server").mkdir()
    files = [of_yolov8(tmp_path / side / "net.onnx", RECORDED["v11.table"], METADATA["v11"]) for side in
             ("robot", "server")]  # fmt: skip
    return files[0], ReplicaStore(torch.device("cpu"), allow=[files[1]])


def test_a_replica_computes_what_the_robot_does(sides: Any) -> None:
    name, pool = sides
    options = registry.options_on_wire(name, {"score": 0.5})
    robot = registry.build_module(name, **options)
    replica = pool.acquire_replica("net.onnx", options, registry.state_hash(robot))
    image = torch.zeros((3, 320, 320), dtype=torch.uint8)
    ours, theirs = ModuleExecutor(robot).run_module([image]), replica.executor.run_module([image])
    assert len(ours.outputs[1])
    assert all(torch.equal(one, other) for one, other in zip(ours.outputs, theirs.outputs))
    assert sum(one.nbytes for one in theirs.outputs) < 2000  # decoded there: boxes travel, not tables
    assert ours.engine == theirs.engine == replica.executor.engine_facts()[ENGINE]


def test_another_file_and_one_that_is_not_listed_are_refused(sides: Any) -> None:
    name, pool = sides
    of_yolov8(pathlib.Path(name), RECORDED["v5u.table"], METADATA["v5u"])
    with pytest.raises(EdgeOffloadError, match=r"another file here.*copy the robot's file to the server"):
        pool.acquire_replica("net.onnx", registry.options_on_wire(name, {}), None)
    with pytest.raises(Refused, match=r"not allowed on this server; start it with: serve --allow other.onnx"):
        pool.acquire_replica("other.onnx", {}, None)


def test_an_onnx_replica_is_never_split(sides: Any, tmp_path: pathlib.Path) -> None:
    name, _ = sides
    client = Client("tcp://127.0.0.1:9", keys=KeyStore(tmp_path / "keys"))
    module = OffloadedModule("net.onnx", registry.build_module(name), client)
    plain = OffloadedModule("linear", torch.nn.Linear(2, 2), client)
    assert plain.offers(Mode.SPLIT)
    assert not module.offers(Mode.SPLIT)
    assert module.modes() == (Mode.LOCAL, Mode.SERVER)
    image = torch.zeros((3, 320, 320), dtype=torch.uint8)
    assert "not available" in str(module.unavailable_reason(Mode.SPLIT, [image]))
    outputs, report = module.run_inference([image], Mode.LOCAL)
    assert (report.mode, len(outputs)) == (Mode.LOCAL, 3)
    module.close()
    plain.close()


def test_the_companion_builds_it_from_the_path_of_the_file(sides: Any, monkeypatch: Any) -> None:
    names = []

    def note_name(module: Any, process: Any, name: str, options: Any, engine: str) -> None:
        names.append(name)

    monkeypatch.setattr(runners, "CompanionModule", note_name)
    for module in (registry.build_module(sides[0]), torch.nn.Linear(2, 2)):
        runners.executor_of(module, "cpu", object(), "net.onnx", {}, "eager")  # type: ignore[arg-type]
    assert names == [sides[0], "net.onnx"]
