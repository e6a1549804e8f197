"""The package itself: messages agree with the library, nodes are installed and explained, launch files too."""

from __future__ import annotations

import ast
import importlib
import os
import pathlib
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest
import yaml

from edge_offload import mode as modes
from edge_offload.models.people import COCO_KEYPOINTS
from edge_offload.nodes import module_of
from edge_offload.timing import STAGES

ROOT = pathlib.Path(__file__).resolve().parents[2]
MESSAGES = ROOT / "src" / "edge_offload_msgs"
LAUNCHERS = sorted(
    path.name for path in (ROOT / "scripts").iterdir() if path.is_file() and "edge_offload.launcher" in path.read_text()
)
_ROS = ("ros", "genpy", "diagnostic_", "dynamic_reconfigure", "tf2_", "cv_bridge", "message_filters", "std_srvs")
#: Without these a topic is missing and nothing else; Debian has no package of them.
OPTIONAL = {"vision_msgs"}
NODES = [name for name in LAUNCHERS if name != "edge-offload"]


def constants(message: str) -> dict:
    text = (MESSAGES / "msg" / f"{message}.msg").read_text(encoding="utf-8")
    return {name: int(value) for name, value in re.findall(r"^uint8 ([A-Z_]+)=(\d+)", text, re.MULTILINE)}


def test_codes_of_modes_in_messages_are_those_of_the_table():
    assert constants("OffloadMode") == {mode.name: info.code for mode, info in modes.TABLE.items()}


def test_numbers_of_keypoints_in_messages_are_those_of_the_library():
    assert constants("Keypoint") == {name.upper(): index for index, name in enumerate(COCO_KEYPOINTS)}
    assert f"Keypoint[{len(COCO_KEYPOINTS)}] keypoints" in (MESSAGES / "msg" / "Person.msg").read_text()


def test_the_latency_message_has_every_stage():
    text = (MESSAGES / "msg" / "Latency.msg").read_text(encoding="utf-8")
    for stage in STAGES:
        assert re.search(rf"^duration {stage}\b", text, re.MULTILINE), stage


def test_every_field_of_every_message_is_explained():
    for path in sorted((MESSAGES / "msg").glob("*.msg")):
        text = path.read_text(encoding="utf-8")
        assert text.startswith("# "), f"{path.name} does not say what it is"
        for line in text.splitlines():
            plain = line.split("#")[0].strip()
            if plain and "=" not in plain:
                assert "#" in line, f"{path.name}: {plain} has no comment"


def test_every_message_is_built():
    listed = (MESSAGES / "CMakeLists.txt").read_text(encoding="utf-8")
    for path in [*(MESSAGES / "msg").iterdir(), *(MESSAGES / "srv").iterdir()]:
        assert path.name in listed


@pytest.mark.parametrize("view", ["agrnav", "kapao"])
def test_what_rviz_shows_is_published_by_some_node(view):
    tools = yaml.safe_load((ROOT / "config" / f"{view}.rviz").read_text(encoding="utf-8"))["Visualization Manager"]
    names = [
        item.get(key)
        for item in (*tools["Displays"], *tools["Tools"])
        for key in ("Topic", "Image Topic", "Marker Topic")
    ]
    topics = [name for name in names if name]
    assert len(topics) >= 2
    nodes = ROOT / "src" / "edge_offload" / "nodes"
    texts = "".join(path.read_text(encoding="utf-8") for path in nodes.rglob("*.py"))
    assert [topic for topic in topics if f'"{topic.lstrip("/")}"' not in texts] == []


def test_every_node_has_its_group_among_the_aggregated_diagnostics():
    analyzers = yaml.safe_load((ROOT / "config" / "diagnostics.yaml").read_text(encoding="utf-8"))["analyzers"]
    for name in NODES:
        status = f"/robot1/{name}: health"
        groups = [item["path"] for item in analyzers.values() if any(word in status for word in item["contains"])]
        assert len(groups) == 1, (name, groups)


def test_every_node_is_installed_and_is_the_same_few_lines():
    listed = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    for name in LAUNCHERS:
        assert f"scripts/{name}" in listed
    for name in NODES:
        # rosrun takes whatever can be executed below the package for another program of that name
        assert not (ROOT / "scripts" / name).stat().st_mode & 0o111
        lines = (ROOT / "scripts" / name).read_text(encoding="utf-8").splitlines()
        assert lines == [
            "#!/usr/bin/env python3", "from edge_offload.launcher import main", "", f'main("{name}")'
        ]  # fmt: skip


def test_package_xml_names_every_ros_package_that_is_imported():
    """What is neither Python's own, nor in setup.cfg (which pip installs), nor ours is ROS's."""
    package = ElementTree.parse(ROOT / "package.xml").getroot()
    declared = {item.text for kind in ("depend", "exec_depend") for item in package.findall(kind)}
    imported = set()
    for path in (ROOT / "src" / "edge_offload").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [item.name for item in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            imported.update(name.split(".")[0] for name in names)
    ros = {name for name in imported if name.endswith("_msgs") or name.startswith(_ROS)} - {"edge_offload_msgs"}
    ros -= OPTIONAL
    assert {"rospy", "dynamic_reconfigure", "sensor_msgs"} <= ros
    assert declared - {"message_runtime"} == ros


@pytest.mark.process
def test_rosrun_finds_a_node_once():
    if shutil.which("rosrun") is None or "ROS_PACKAGE_PATH" not in os.environ:
        pytest.skip("no ROS environment (source devel/setup.bash)")
    done = subprocess.run(
        ["rosrun", "--prefix", "echo", "edge_offload", "kapao_node"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert "non-unique" not in done.stdout, done.stdout
    assert done.stdout.strip().endswith("/kapao_node"), done.stdout + done.stderr


@pytest.mark.ros
@pytest.mark.parametrize("name", NODES)
def test_every_node_explains_its_topics_and_parameters(name):
    pytest.importorskip("rospy")
    pytest.importorskip("edge_offload_msgs.msg")
    from edge_offload.nodes.common.base import render_help

    node = importlib.import_module(module_of(name)).NODE
    assert node.name == name
    text = render_help(node)
    source = pathlib.Path(importlib.import_module(node.__module__).__file__).read_text(encoding="utf-8")
    for topic in re.findall(r'(?:Publisher|Subscriber|Service)\(\s*"([^"]+)"', source):
        assert topic in text, f"{topic} is not explained"
    for param in node.declared:
        assert f"~{param.name}" in text
        assert param.doc


@pytest.mark.process
@pytest.mark.parametrize("path", sorted((ROOT / "launch").glob("*.launch")), ids=lambda path: path.name)
def test_launch_files_explain_every_argument_and_what_happens_when_a_node_dies(path):
    root = ElementTree.parse(path).getroot()
    for argument in root.findall("arg"):
        if not argument.get("name").startswith("_"):
            assert argument.get("doc"), f"{argument.get('name')} has no doc"
            assert argument.get("default") != "", "roslaunch --ros-args would call it required"
    for node in root.findall("node"):
        assert "required" in node.attrib or "respawn" in node.attrib, node.get("name")
        if node.get("pkg") == "edge_offload":
            chosen = {"$(arg node)": ("kapao_node", "detector_node"), "$(arg _node)": ("kapao_node", "agrnav_node")}
            kinds = chosen.get(node.get("type"), (node.get("type"),))
            assert set(kinds) <= set(LAUNCHERS)
            # either that Python itself, or that Python by way of 'edge-offload exec'
            assert node.get("launch-prefix") in ("$(optenv EDGE_OFFLOAD_PYTHON)", "$(arg _exec)"), node.get("name")


@pytest.mark.ros
@pytest.mark.parametrize("name", ["kapao_tracking.launch", "patrol.launch", "robot.launch"])
def test_networks_on_images_accept_topics_of_a_lidar_and_of_depth(master, name):
    from roslaunch.config import load_config_default

    given = ["cloud_topic:=/velodyne_points", "depth_topic:=/front/depth", "server:=none", "calibration:=none"]
    given += ["third:=own_detector:make"] if name == "patrol.launch" else []
    given = [arg for arg in given if f'name="{arg.split(":=")[0]}"' in (ROOT / "launch" / name).read_text()]
    config = load_config_default([(str(ROOT / "launch" / name), given)], None, verbose=False)
    looking = [node for node in config.nodes if node.type in ("kapao_node", "detector_node")]
    assert len(looking) == (2 if name == "patrol.launch" else 1)
    for node in looking:
        remapped = dict(node.remap_args)
        assert (remapped["lidar/points"], remapped["camera/depth/image_raw"]) == ("/velodyne_points", "/front/depth")
        assert all(config.params[f"/{node.name}/{param}"].value is True for param in ("cloud", "depth"))
