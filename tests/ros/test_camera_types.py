"""A camera type is one module and one row: arguments, launch files, camera_node and its help take the table's."""

from __future__ import annotations

import importlib
import re
import sys
import types

import numpy as np
import pytest

from edge_offload.errors import BadInput
from edge_offload.nodes import arguments
from edge_offload.nodes.camera import sources
from edge_offload.nodes.camera.frames import FrameSource
from tests.ros.ros_rig import ROOT


class Hedgehog(FrameSource):
    """A camera of a type that nobody has built yet."""

    live = True

    def __init__(self, value, rate=0.0):
        self.check(value)
        self.name, self.requested_rate = f"hedgehog {value}", rate

    @classmethod
    def check(cls, value):
        if not value.startswith("hedgehog://garden"):
            raise BadInput(f"no hedgehog in {value[11:]}", remedy="look in the garden")

    def read(self):
        return np.zeros((4, 4, 3), dtype=np.uint8)

    def rewind(self):
        pass

    def close(self):
        pass


@pytest.fixture
def hedgehog(monkeypatch):
    """One module, one row."""
    module = types.ModuleType("hedgehog_camera")
    module.Hedgehog = Hedgehog
    monkeypatch.setitem(sys.modules, "hedgehog_camera", module)
    row = sources.SourceType("hedgehog", ("video", "camera"), r"hedgehog://\S+", "hedgehog://garden/2",
                             "hedgehog_camera:Hedgehog", options=("rate",))  # fmt: skip
    monkeypatch.setattr(sources, "SOURCES", (*sources.SOURCES, row))


def test_a_new_type_is_checked_with_the_arguments_of_a_launch(hedgehog):
    assert arguments.list_faults(["camera:=hedgehog://garden/2", "video:=hedgehog://garden"]) == []
    assert arguments.list_faults(["camera:=hedgehog://cellar"]) == [
        "camera:=hedgehog://cellar: no hedgehog in cellar; look in the garden"
    ]
    (line,) = arguments.list_faults(["video:=badger://garden"])
    assert "hedgehog://garden/2 (hedgehog)" in line, "what may be given instead"


def test_a_new_type_is_opened_by_camera_node_and_listed_in_its_help(master, hedgehog, monkeypatch):
    from edge_offload.nodes.camera import camera_node
    from edge_offload.nodes.common import params
    from edge_offload.nodes.common.base import render_help

    declared = importlib.reload(camera_node).CameraNode
    try:
        assert re.search(r"~device .*hedgehog: hedgehog://garden/2", render_help(declared))
        for name in ("device", "video"):
            source = sources.open_source(params.read(declared.declared, {name: "hedgehog://garden", "rate": 3}))
            assert isinstance(source, Hedgehog)
            assert source.requested_rate == 3
    finally:
        monkeypatch.undo()
        importlib.reload(camera_node)


def camera_of(*given):
    """The camera's node of robot.launch, and its parameters, as roslaunch understands them."""
    from roslaunch.config import load_config_default

    config = load_config_default([(str(ROOT / "launch/robot.launch"), [*given, "server:=none"])], None, verbose=False)
    node = next(node for node in config.nodes if node.type == "camera_node")
    prefix = "/camera_node/"
    return node, {key[len(prefix) :]: p.value for key, p in config.params.items() if key.startswith(prefix)}


def test_a_launch_file_hands_a_new_type_to_the_node_and_restarts_it(master, hedgehog, monkeypatch):
    for given in ("camera:=hedgehog://garden/2", "video:=hedgehog://garden/2"):
        node, params = camera_of(given)
        monkeypatch.setattr(sources.os, "environ", {**sources.os.environ, **dict(node.env_args)})
        assert sources.open_source({**dict.fromkeys(("video", "images", "bag", "device"), ""), **params}).name == (
            "hedgehog hedgehog://garden/2"
        )
        assert (node.required, node.respawn) == (False, True), "a camera may come back"
    node, params = camera_of("video:=sample")
    assert (node.required, node.respawn, params["video"]) == (True, False, "sample"), "a file does not"


@pytest.mark.parametrize("row", sources.SOURCES, ids=lambda row: row.name)
def test_every_type_has_a_class_for_its_example_and_stands_on_the_page_of_sensors(master, row):
    for argument in row.arguments:
        assert sources.resolve_source(argument, row.example) == (row, row.example)
    assert issubclass(row.load_class(), FrameSource)
    assert f"{row.arguments[0]}:={row.example}" in (ROOT / "docs/how-to/own-sensor.md").read_text().replace('"', "")


def test_a_value_may_stand_in_an_environment_variable(monkeypatch):
    monkeypatch.setenv("FRONT_CAMERA", "lab.mp4")
    assert sources.resolve_source("video", "env:FRONT_CAMERA")[1] == "lab.mp4"
    (line,) = arguments.list_faults(["video:=env:REAR_CAMERA"])
    assert line == "video:=env:REAR_CAMERA: there is no environment variable REAR_CAMERA; export REAR_CAMERA='…'"
