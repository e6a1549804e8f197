"""Launch files: what cannot be meant is told in one line before anything starts; paths are the caller's."""

from __future__ import annotations

import importlib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree
import xmlrpc.server

import pytest

from edge_offload.errors import BadInput
from edge_offload.manager.policy import POLICIES
from edge_offload.mode import POLICY_NAMES
from edge_offload.nodes import arguments, launch_file, module_of
from edge_offload.nodes.common import params as parameters
from edge_offload.nodes.launch_file import LaunchFile
from tests.ros.ros_rig import ROOT, free_port

LAUNCH_FILES = sorted((ROOT / "launch").glob("*.launch"))
needs_gstreamer = pytest.mark.skipif(shutil.which("gst-launch-1.0") is None, reason="needs GStreamer's gst-launch-1.0")

WRONG = [
    ("frames:=abc", "whole number of at least 0"),
    ("frames:=-1", "at least 0"),
    ("frames:=1.5", "whole number"),
    ("duration:=nan", "a number of at least 0"),
    ("duration:=10s", "a number"),
    ("deadline:=inf", "a number"),
    ("rate:=fast", "from 0 to 1000"),
    ("sweep_rate:=0", "from 0.01 to 1000"),
    ("turns:=no", "true or false"),
    ("task_weights:=people=2", "people: 2"),
    ("robot_slowdown:=0.5", "at least 1"),
    ("robot_threads:=two", "whole number"),
    ("robot_device:=gpu", "use one of: auto, cpu, cuda, cuda:n"),
    ("robot_cores:=third", "first, second"),
    ("server_cores:=2-", "0 or 2-3"),
    ("port:=70000", "from 1 to 65535"),
    ("link_port:=http", "from 1 to 65535"),
    ("dashboard_port:=-1", "from 0 to 65535"),
    ("loop:=maybe", "true or false"),
    ("dashboard:=on", "true or false"),
    ("record:=2", "true or false"),
    ("mode:=warp", "local, server"),
    ("policy:=greedy", "module:Class"),
    ("candidates:=local", "a list"),
    ("candidates:=[local, splitt]", "modes of this list: local, server"),
    ("allow:=my.module:factory", "a list"),
    ("camera_ns:=[]", "names no camera; name each camera once, by its namespace: [front, left, rear]"),
    ("camera_ns:=[front, left, /front]", "names front twice"),
    ("camera_ns:=[front, 2nd]", "has '2nd'"),
    ("camera_ns:=[front, left", "has '[front'"),
    ("model:=7", "models list"),
    ("model:=net.onnx", "no such file"),
    ("decoder:=yolo", "yolov5, yolov8"),
    ("model_options:=size=384", "a mapping"),
    ("model_options:={size:384}", "a space after each colon"),
    ("options:={movenet: {size:384}}", "a space after each colon"),
    ("model_options:={size: 384}}", "a mapping"),
    ("device:=gpu", "auto, cpu, cuda"),
    ("server:=gpu-machine", "host:port"),
    ("link:=wifi_1000mbps", "wifi_93mbps"),
    ("link:=nowhere.csv", "no such file"),
    ("world:=mars", "street, room"),
    ("extent:=behind", "around, forward"),
    ("cells:=8", "from 16 to 1024"),
    ("voxel_size:=0", "from 0.02 to 1"),
    ("goal_x:=far", "a number"),
    ("seed:=-3", "at least 0"),
    ("timeout:=0", "at least 0.1"),
    ("video:=lab.mp4", "looked up in"),
    ("video:=.", "no file"),
    ("images:=frames/", "no such folder"),
    ("bag:=walk.bag", "no such file"),
    ("calibration:=camera.yaml", "no such file"),
    ("scans:=sweeps", "no such file or folder"),
    ("scan_fields:=x,y", "does not name the fields of a scan"),
    ("weights:=net.safetensors", "no such file"),
    ("power_config:=power.yaml", "no such file"),
    ("config:=robot.yaml", "no such file"),
    ("json:=/dev/null/out.json", "cannot write"),
    ("json:=/proc/out.json", "cannot write"),
    ("json:=.", "is a folder"),
    ("runs:=/proc/runs", "cannot write"),
]


@pytest.mark.parametrize(("argument", "advice"), WRONG)
def test_a_wrong_argument_is_reported_by_name_and_value_with_what_is_allowed(argument, advice, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (line,) = arguments.list_faults([argument])
    assert line.startswith(f"{argument}: ")
    assert advice in line
    assert "\n" not in line


def test_files_of_another_kind_are_reported_before_anything_starts(master, tmp_path, monkeypatch):
    """As far as this Python can open them; it can here, as roslaunch's can."""
    import rosbag
    from std_msgs.msg import String

    monkeypatch.chdir(tmp_path)
    (tmp_path / "frames").mkdir()
    (tmp_path / "text").write_text("{ this is text")
    (tmp_path / "text.bin").write_text("this is text")
    (tmp_path / "ros2").mkdir()
    (tmp_path / "ros2" / "metadata.yaml").write_text("rosbag2_bagfile_information:\n")
    with rosbag.Bag("words.bag", "w") as bag:
        bag.write("/said", String("hello"))
    for arguments_, advice in [
        (["video:=text"], "no video that OpenCV can read"),
        (["images:=frames"], "no images in"),
        (["calibration:=text"], "is not YAML"),
        (["bag:=text"], "cannot read bag"),
        (["bag:=ros2/"], "is a bag of ROS 2; convert it"),
        (["scans:=text.bin"], "bytes"),
        (["scans:=frames/"], "no scans in"),
        (["bag:=words.bag"], "0 image topics"),
        (["bag:=words.bag", "image_topic:=/front"], "no images on topic /front"),
    ]:
        (line,) = arguments.list_faults(arguments_)
        assert advice in line
        assert line.startswith(arguments_[-1])
        assert "\n" not in line
    assert arguments.list_faults(["agrnav.launch", "bag:=words.bag"]) == [], "clouds are the LiDAR's to find"


RIGHT = (
    "frames:=100 duration:=2.5 deadline:=0 rate:=0 robot_slowdown:=1 robot_cores:=2-3 server_cores:=any port:=5700 "
    "loop:=False dashboard:=1 mode:=auto mode:=split policy:=my.policies:Mine candidates:=[local,server] allow:=[] "
    'model:=my_package.my_module:factory model_options:={"size":384} options:={} device:=cuda:1 server:=embedded '
    "server:=192.168.1.20:5700 server:=tcp://gpu:5700 link:=none link:=wifi_indoors world:=none video:=sample "
    "images:=none "
    "bag:=none json:=auto json:=new/out.json unknown:=anything __name:=node image_topic:=/front/image_raw"
)


def test_an_unsupported_model_is_reported_before_anything_starts(tmp_path):
    import torch

    pytest.importorskip("onnx", reason="the package onnx reads such files: pip install 'edge_offload[engines]'")
    (tmp_path / "best.onnx").write_bytes(b"rubbish")
    torch.save({"epoch": 3}, str(tmp_path / "best.pt"))
    for name, message in (("best.onnx", "is not an ONNX file"), ("best.pt", "yolo export model=best.pt format=onnx")):
        (line,) = arguments.list_faults([f"model:={tmp_path / name}"])
        assert message in line


def test_what_can_be_meant_passes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert arguments.list_faults(RIGHT.split()) == []
    assert not list(tmp_path.iterdir()), "looking at a path leaves nothing behind"


@pytest.mark.parametrize(
    ("argument", "advice"),
    [("video:=sample", "leave it out"),
     pytest.param("camera:=none ! appsink", "image_raw and camera_info in the namespace", marks=needs_gstreamer),
     ("image_topic:=/x", "leave it out"), ("accuracy:=0.05", "leave it out, or name one camera"),
     ("depth_topic:=/depth", "give depth/image_raw, in the namespace of each")],
)  # fmt: skip
def test_arguments_of_one_camera_are_refused_with_several(argument, advice):
    several = ["camera_ns:=[front, left]", "camera:=none", "depth_topic:=depth/image_raw", "accuracy:=0"]
    assert arguments.list_faults(several) == []
    (line,) = arguments.list_faults([*several, argument])
    assert line.startswith(f"{argument}: camera_ns names 2 cameras; ")
    assert advice in line
    assert arguments.list_faults(["camera_ns:=[front]", "accuracy:=0.05", "image_topic:=/x"]) == []


def test_policies_may_be_named_as_the_manager_has_them():
    assert tuple(POLICIES) == POLICY_NAMES


@pytest.mark.process
def test_the_check_needs_nothing_but_the_standard_library():
    """roslaunch's Python need not be the one that has torch, nor have numpy."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "edge_offload.nodes.arguments", "frames:=abc"],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["edge_offload: frames:=abc: give a whole number of at least 0"]


def test_roslaunch_ends_at_once_and_names_the_argument(master, tmp_path):
    """As a user calls it: in his folder, with paths relative to it."""
    done = subprocess.run(
        ["roslaunch", "edge_offload", "agrnav.launch", "frames:=abc", "json:=/dev/null/x"],
        cwd=tmp_path,
        env={**os.environ, "ROS_MASTER_URI": f"http://localhost:{free_port()}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert "frames:=abc: give a whole number" in output
    assert "json:=/dev/null/x: cannot write" in output
    assert "Traceback" not in output
    assert "process[" not in output, "nothing is started"


KAPAO = ("roslaunch", "edge_offload", "kapao_tracking.launch", "server:=none", "link:=none")


def test_a_misspelt_name_is_reported_with_the_nearest_one_by_every_launch_file(tmp_path):
    assert arguments.list_faults([*KAPAO, "modee:=local", "rate:=5", "__log:=x"]) == [
        "modee:=local: kapao_tracking.launch has no argument modee; is it mode?"
    ]
    (line,) = arguments.list_faults(["roslaunch", str(ROOT / "launch" / "patrol.launch"), "zzz:=1"])
    assert "patrol.launch has no argument zzz; 'roslaunch --ros-args edge_offload patrol.launch' lists" in line
    launch_file = tmp_path / "own.launch"
    launch_file.write_text('<launch><arg name="speed" default="1"/><arg name="fixed" value="2"/></launch>')
    assert arguments.list_faults(["roslaunch", "--screen", str(launch_file), "speed:=2"]) == []
    assert len(arguments.list_faults(["roslaunch", str(launch_file), "sped:=2", "fixed:=3"])) == 2
    assert arguments.list_faults(["roslaunch", "my_package", "not_here.launch", "sped:=2"]) == [], "nobody can know"


ONE_MISTAKE = [
    ("run_recorder: {run_limit: 1}", "run_recorder has no parameter run_limit; is it runs_limit?"),
    ("offload_server: {cores: any}", "the launch has no node offload_server; is it offload_server_node?"),
    ("kapao_node: {in_flight: 9}", "kapao_node: parameter ~in_flight is 9; give at most 4"),
    ("detector_node: {threads: 1}", "the launch has no node detector_node; "),
    ("[1, 2]", "it is no mapping of nodes; write node: {parameter: value}"),
    ("kapao_node: {threads: 1", "it is not YAML ("),
]


@pytest.mark.parametrize(("text", "line"), ONE_MISTAKE)
def test_a_mistake_in_the_file_of_parameters_is_refused_with_the_nearest_name(master, tmp_path, text, line):
    (tmp_path / "my.yaml").write_text(text)
    (refused,) = arguments.list_faults([*KAPAO, f"config:={tmp_path / 'my.yaml'}"])
    assert refused.startswith(f"config:={tmp_path / 'my.yaml'}: {line}")
    assert "\n" not in refused


@pytest.mark.parametrize("name", ["agrnav", "kapao_tracking", "patrol", "robot"])
def test_the_file_of_parameters_outranks_arguments_and_private_parameters(master, tmp_path, name):
    from roslaunch.config import load_config_default

    network = "agrnav_node" if name == "agrnav" else "kapao_node"
    (tmp_path / "my.yaml").write_text(f"{network}: {{cores: 2-3, in_flight: 1}}\npower_node: {{rate: 2.0}}\n")
    given = [f"config:={tmp_path / 'my.yaml'}", "server:=none"]
    launch = str(ROOT / "launch" / f"{name}.launch")
    assert arguments.list_faults(["roslaunch", "-p", "1", launch, *given, "mode:=local"]) == []
    params = load_config_default([(launch, given)], None, verbose=False).params
    assert [params[f"/{key}"].value for key in (f"{network}/cores", f"{network}/in_flight", "power_node/rate")] == [
        "2-3",
        1,
        2.0,
    ]
    assert params[f"/{network}/mode"].value == "auto", "what the file does not name is as it was"
    assert len([name for name in LaunchFile.read(pathlib.Path(launch)).arguments if not name.startswith("_")]) <= 50


def test_what_is_a_parameter_and_no_argument_is_refused_with_its_place():
    (line,) = arguments.list_faults([*KAPAO, "server_cores:=2-3"])
    assert line.endswith("write offload_server_node: {cores: 2-3} in a YAML file, and config:=FILE")


def test_ports_in_use_are_reported_by_the_name_of_their_argument(monkeypatch):
    monkeypatch.setenv("ROS_MASTER_URI", "http://127.0.0.1:1")
    with socket.socket() as first, socket.socket() as second:
        for listener in (first, second):
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
        given = [f"port:={first.getsockname()[1]}", f"link_port:={second.getsockname()[1]}", "dashboard_port:=0"]
        lines = arguments.list_faults([*KAPAO[:3], *given, "dashboard:=true"])
        assert [line.split(": ")[0] for line in lines] == given[:2]
        assert all(re.search(r"or give (link_)?port:=\d+", line) for line in lines), lines
        assert arguments.list_faults([*KAPAO, *given]) == [], "no server here, so nothing listens"


def test_nodes_of_another_launch_at_the_same_master_are_not_pushed_off(monkeypatch):
    """roscpp and rospy end a node when another one comes with its name."""
    running = {"/offload_manager_node", "/robot/power_node"}
    with xmlrpc.server.SimpleXMLRPCServer(("127.0.0.1", 0), logRequests=False) as server:
        uri = f"http://127.0.0.1:{server.server_address[1]}"
        dead_uri = "http://127.0.0.1:1"  # the master remembers nodes that died
        server.register_function(lambda _, node: [1, "", uri if node in running else dead_uri], "lookupNode")
        server.register_function(lambda _: [1, "", 1], "getPid")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("ROS_MASTER_URI", uri)
        (line,) = arguments.list_faults(KAPAO)
        assert f"offload_manager_node of another launch run at {uri}" in line
        assert "ROS_MASTER_URI=" in line
        assert arguments.list_faults([*KAPAO, "-p", "1"]) == [], "at another master"
        monkeypatch.setenv("ROS_NAMESPACE", "robot")
        (line,) = arguments.list_faults(KAPAO)
        assert "power_node of another" in line
        server.shutdown()


def test_the_check_has_its_name_of_the_first_release():
    assert arguments.faults(["frames:=abc"]) == arguments.list_faults(["frames:=abc"]) != []


def test_an_emulated_link_needs_the_emulator(monkeypatch):
    monkeypatch.setenv("ROS_MASTER_URI", "http://127.0.0.1:1")
    monkeypatch.setattr(launch_file, "find_spec", lambda package: None)
    given = ["roslaunch", "edge_offload", "kapao_tracking.launch", "server:=gpu:5700"]
    (line,) = arguments.list_faults(given)
    assert line.startswith("link:=wifi_93mbps: edge_offload_research is not installed in this Python; in a checkout")
    assert line.endswith("pip install ./research, or give link:=none")
    assert arguments.list_faults([*given, "link:=none"]) == []


def test_rviz_that_is_not_installed_is_reported_with_the_package(monkeypatch, tmp_path):
    monkeypatch.setenv("ROS_MASTER_URI", "http://127.0.0.1:1")
    monkeypatch.setenv("PATH", str(tmp_path))
    given = ["roslaunch", "edge_offload", "agrnav.launch", "server:=none", "rviz:=true"]
    (line,) = arguments.list_faults(given)
    assert "RViz is not installed; apt-get install " in line
    assert arguments.list_faults([*given, "headless:=true"]) == [], "no window is opened"
    (tmp_path / "rviz").write_text("#!/bin/sh")
    (tmp_path / "rviz").chmod(0o755)
    assert arguments.list_faults(given) == []


def nodes_of(file: pathlib.Path):
    for node in ElementTree.parse(file).iter("node"):
        if node.get("pkg") == "edge_offload":
            yield node


PROBES = ("abc", "-1", "0", "0.05", "1", "1.5", "70000", "true", "[a]", "{a: 1}")


@pytest.mark.parametrize("file", LAUNCH_FILES, ids=lambda file: file.stem)
def test_what_a_node_would_refuse_the_launch_file_refuses_first(master, file):
    from roslaunch.loader import convert_value

    for node in nodes_of(file):
        if node.get("type") == "edge-offload":
            continue
        chosen = {"$(arg node)": ("detector_node", "kapao_node"), "$(arg _node)": ("agrnav_node", "kapao_node")}
        kinds = chosen.get(node.get("type"), (node.get("type"),))
        modules = [importlib.import_module(module_of(kind)) for kind in kinds]
        declared = {param.name: param for module in modules for param in module.NODE.declared}
        for element in node.iter("param"):
            argument = re.fullmatch(r"\$\(arg (\w+)\)", element.get("value", ""))
            if argument is None:
                continue
            name = argument.group(1)
            for probe in PROBES:
                if (name, probe) in (("rate", "0"), ("rate", "0.05")):
                    continue  # 0 is the source's own rate for a camera; a LiDAR has none and says so
                try:
                    value = convert_value(probe, "auto")
                    parameters.read([declared[element.get("name")]], {element.get("name"): value})
                except BadInput:
                    assert arguments.list_faults([f"{name}:={probe}"]), f"{file.name}: {name}:={probe}"


@pytest.mark.parametrize("file", LAUNCH_FILES, ids=lambda file: file.stem)
def test_a_launch_starts_from_its_parameters_and_in_the_callers_folder(file):
    """What an earlier launch left on the master must not steer this one, and a node's folder is not ~/.ros."""
    text = file.read_text(encoding="utf-8")
    assert "edge_offload.nodes.arguments" in text
    for node in nodes_of(file):
        assert node.get("clear_params") == "true", node.get("name")
        given = {
            element.get("name", element.get("param")) for kind in ("param", "rosparam") for element in node.iter(kind)
        }
        if given & {"video", "images", "bag", "calibration", "scans", "json", "out", "model_options", "options"}:
            folder = [element.get("command") for element in node.iter("param") if element.get("name") == "folder"]
            assert folder == ["pwd"], node.get("name")


def test_a_mode_that_needs_a_server_is_refused_without_one():
    for given in (["robot.launch", "mode:=server"], ["kapao_tracking.launch", "mode:=replay", "server:=none"]):
        (line,) = arguments.list_faults(["roslaunch", str(ROOT / "launch" / given[0]), *given[1:]])
        assert line == f"{given[1]}: it needs a server, and server:=none; give server:=host:port, or mode:=local"
    assert arguments.list_faults(["roslaunch", str(ROOT / "launch" / "robot.launch"), "mode:=local", "-p", "1"]) == []
    assert arguments.list_faults(["roslaunch", str(ROOT / "launch" / "robot.launch"), "-p", "1"]) == []
