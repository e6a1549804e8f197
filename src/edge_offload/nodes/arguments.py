"""checks the arguments of a launch file before any node starts, so that a typing error costs one line and not a run.

roslaunch runs it while it reads the file, in the caller's folder. It reads the command line of roslaunch itself:

  <param name="edge_offload/arguments" command="$(optenv EDGE_OFFLOAD_PYTHON python3) -m edge_offload.nodes.arguments"/>

An argument has the same meaning in every launch file, so its name decides which values are valid. Files are opened if
the libraries they need are installed. The nodes check the rest at their start, such as a missing model. An unknown
argument is reported with the nearest valid name; ports and nodes in use are reported, too. It needs only the standard
library, because it runs under roslaunch's Python, and must be quick.
"""

from __future__ import annotations

import math
import os
import pathlib
import re
import sys
from typing import Callable, Dict, List, Optional, Sequence

from edge_offload.errors import BadInput
from edge_offload.link.named_links import NAMED_LINKS
from edge_offload.mode import POLICY_NAMES, names
from edge_offload.nodes.camera import sources
from edge_offload.nodes.camera.addresses import hide_secrets
from edge_offload.nodes.common.params import check_namespaces
from edge_offload.nodes.launch_config import check_config
from edge_offload.nodes.launch_file import list_collisions, list_misspelt, locate_launch_files, parse_arguments
from edge_offload.outputs import check_folder, check_output

Rule = Callable[[str], Optional[str]]
"""What may be given instead; None when the value is fine."""


def number_rule(low: float, high: float = math.inf, integral: bool = False) -> Rule:
    """A finite number, both bounds included."""

    def rule(value: str) -> Optional[str]:
        try:
            given = int(value) if integral else float(value)
        except ValueError:
            given = math.nan
        if math.isfinite(given) and low <= given <= high:
            return None
        kind = "a whole number" if integral else "a number"
        if low == -math.inf:
            return f"give {kind}"
        return f"give {kind} of at least {low:g}" if high == math.inf else f"give {kind} from {low:g} to {high:g}"

    return rule


def choice_rule(*values: str) -> Rule:
    """One of some words."""
    return lambda value: None if value in values else f"use one of: {', '.join(values)}"


def check_truth(value: str) -> Optional[str]:
    """Check a condition as roslaunch reads it."""
    return None if value.lower() in ("true", "false", "1", "0") else "give true or false"


def check_cores(value: str) -> Optional[str]:
    """CPU cores by rank or number."""
    by_number = re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", value)
    return None if value in ("any", "first", "second") or by_number else "give any, first, second, 0 or 2-3"


def yaml_list(value: str) -> Optional[str]:
    """A list on one line."""
    return None if re.fullmatch(r"\[.*\]", value.strip(), re.DOTALL) else "give a list: [local, server]"


def check_modes(value: str) -> Optional[str]:
    """A list of modes on one line."""
    listed = [word.strip(" '\"") for word in value.strip().strip("[]").split(",")]
    unknown = any(word not in names() for word in listed if word)
    return yaml_list(value) or (f"give modes of this list: {', '.join(names())}" if unknown else None)


def yaml_mapping(value: str) -> Optional[str]:
    """A mapping on one line, each key with a value: roslaunch ends in a traceback where one has none."""
    if not re.fullmatch(r"\{.*\}", value.strip(), re.DOTALL):
        return "give a mapping: {size: 384}"
    try:
        import yaml
    except ImportError:
        return None
    try:
        document = yaml.safe_load(value)
    except yaml.YAMLError:
        return "give a mapping: {size: 384}"
    return "give each key a value, with a space after each colon: {size: 384}" if _lacks_value(document) else None


def _lacks_value(value: object) -> bool:
    return value is None or (isinstance(value, dict) and any(map(_lacks_value, value.values())))


def explain_fault(check: Callable[[], object]) -> Optional[str]:
    """The error of ``check``; where it cannot import, the node itself checks."""
    try:
        check()
    except BadInput as error:
        return str(error)
    except ImportError:
        pass
    return None


def readable_rule(exists: Rule, read: Callable[[str], None], *keywords: str) -> Rule:
    """Rule ``exists``, then the error of ``read``."""
    return lambda value: None if value in keywords else exists(value) or explain_fault(lambda: read(value))


def _read_calibration(value: str) -> None:
    from edge_offload.perception.geometry import load_camera

    load_camera(pathlib.Path(value).expanduser())


def _refuse_pickle(value: str) -> None:
    from edge_offload.models import pickles

    pickles.reject_pickle(value)


def _read_onnx(value: str) -> None:
    from edge_offload.models.onnxfile import reading

    reading.read_graph(value)


def _read_bag(value: str) -> None:
    from edge_offload.nodes.common.bags import open_bag

    open_bag(value).close()


def file_rule(*keywords: str) -> Rule:
    """A file that is there, or one of some words."""
    return lambda value: None if value in keywords else _check_path(value, pathlib.Path.is_file, "file")


def folder_rule() -> Rule:
    """A folder that is there."""
    return lambda value: _check_path(value, pathlib.Path.is_dir, "folder")


def path_rule() -> Rule:
    """A file or a folder that is there."""
    return lambda value: _check_path(value, pathlib.Path.exists, "file or folder")


def _check_path(value: str, exists: Callable[[pathlib.Path], bool], kind: str) -> Optional[str]:
    path = pathlib.Path(value).expanduser()
    if exists(path):
        return None
    relative = "" if path.is_absolute() else f" (looked up in {pathlib.Path.cwd()})"
    return f"there is no such {kind}{relative}" if not path.exists() else f"that is no {kind}{relative}"


def source_rule(argument: str) -> Rule:
    """A source of images, of a type that the table of cameras has, or one of the argument's own words."""

    def rule(value: str) -> Optional[str]:
        if value in sources.ARGUMENTS[argument].words:
            return None
        try:
            camera, resolved = sources.resolve_source(argument, value)
        except BadInput as error:
            return str(error)
        path_check = {"file": file_rule(), "folder": folder_rule(), "file or folder": path_rule()}.get(
            camera.place, lambda _: None
        )
        return readable_rule(path_check, camera.check)(resolved)

    return rule


def writable_rule(check: Callable[[str], None], *keywords: str) -> Rule:
    """A file or folder that can be written, or one of some words."""
    return lambda value: None if value in keywords else explain_fault(lambda: check(value))


def check_cameras(value: str) -> Optional[str]:
    """Namespaces of one camera, or of several in a list."""
    return explain_fault(lambda: check_namespaces(_split_list(value)))


def _split_list(value: str) -> List[str]:
    """Entries of a list on one line, or the only one without it."""
    inner = value.strip()[1:-1] if re.fullmatch(r"\[.*\]", value.strip(), re.DOTALL) else value
    return inner.split(",") if inner.strip() else []


def check_link(value: str) -> Optional[str]:
    """A named link, or the path of a trace."""
    if "/" in value or value.endswith(".csv"):
        return file_rule()(value)
    return choice_rule("none", *NAMED_LINKS)(value) and f"use one of: none, {', '.join(NAMED_LINKS)}, or a CSV trace"


def check_model(value: str) -> Optional[str]:
    """A name, or the path of a TorchScript or ONNX file."""
    if value.endswith(".onnx"):
        return readable_rule(file_rule(), _read_onnx)(value)
    if value.endswith((".pt", ".pth", ".ts", ".torchscript")):
        return readable_rule(file_rule(), _refuse_pickle)(value)
    return pattern_rule(r"[A-Za-z_].*", "'edge-offload models list' names those there are")(value)


def pattern_rule(pattern: str, advice: str) -> Rule:
    """Text of a certain form."""
    return lambda value: None if re.fullmatch(pattern, value) else advice


_POLICIES = (*POLICY_NAMES, *names())
_RULES = (
    (check_truth, "carry dashboard exact follow headless loop promises record respawn rviz"),
    (check_truth, "turns virtual_device"),
    (number_rule(0, integral=True), "frames robot_threads seed server_threads subscribers"),
    (number_rule(0), "deadline duration progress server_wait"),
    (number_rule(0, 1), "accuracy"),
    (number_rule(0, 1000), "rate"),
    (number_rule(0.01, 1000), "sweep_rate"),
    (number_rule(1), "robot_slowdown"),
    (number_rule(0.1), "timeout"),
    (number_rule(0.001), "pool_slo"),
    (number_rule(0.1, 3.0), "sensor_height"),
    (number_rule(0.02, 1.0), "voxel_size"),
    (number_rule(16, 1024, integral=True), "cells"),
    (number_rule(-math.inf), "goal_x goal_y speed"),
    (number_rule(1, 65535, integral=True), "port link_port"),
    (number_rule(0, 65535, integral=True), "dashboard_port"),
    (choice_rule(*_POLICIES), "mode"),
    (pattern_rule("|".join((*_POLICIES, ".+:.+")), f"use one of: {', '.join(_POLICIES)}, or module:Class"), "policy"),
    (choice_rule("around", "forward"), "extent"),
    (choice_rule("kapao_node", "detector_node"), "node"),
    (choice_rule("people", "scenes"), "results"),
    (
        choice_rule("auto", "yolov5", "yolov8", "yolov8-pose", "end2end", "rtdetr", "detr", "ssd", "segmentation"),
        "decoder",
    ),
    (
        pattern_rule(r"none|[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", "give package.module:Class, or none"),
        "detector third third_detector",
    ),
    (choice_rule("street", "room", "none"), "world"),
    (pattern_rule(r"auto|cpu|cuda(:\d+)?", "use one of: auto, cpu, cuda, cuda:n"), "robot_device"),
    (
        pattern_rule(r"auto|cpu|cuda(:\d+)?|emulated:/.+", "use one of: auto, cpu, cuda, cuda:n, emulated:/TABLE.csv"),
        "device",
    ),
    (
        pattern_rule(
            r"embedded|none|(tcp://)?[^/,]+:\d+(,(tcp://)?[^/,]+:\d+)*",
            "give embedded, none or host:port(s, with commas)",
        ),
        "server",
    ),
    (pattern_rule(r"none|[^/,:]+(:\d+)?", "give HOST:PORT as 'edge-offload pool head' prints it, or none"), "pool"),
    (check_model, "model"),
    (pattern_rule(r"none|[A-Za-z_].*", "'edge-offload models list' names those there are"), "local"),
    (pattern_rule(r"[~/A-Za-z][\w/]*", "give the name of a topic, or none"), "cloud_topic depth_topic"),
    (check_cores, "robot_cores server_cores"),
    (yaml_list, "allow"),
    (check_modes, "candidates"),
    (check_cameras, "camera_ns"),
    (yaml_mapping, "model_options options"),
    (check_link, "link"),
    (choice_rule("tcp", "packet"), "link_level"),
    (readable_rule(file_rule(), _read_calibration, "none"), "calibration"),
    *((source_rule(argument), argument) for argument in sources.ARGUMENTS),
    (lambda value: None if value == "none" else path_rule()(value), "scans"),
    (pattern_rule(r"none|\s*\w+\s*:[\s\d.]+(,\s*\w+\s*:[\s\d.]+)*", "write 'people: 2', or none"), "task_weights"),
    (file_rule("shipped"), "weights"),
    (file_rule("none"), "config power_config"),
    (writable_rule(check_output, "none", "auto"), "json out"),
    (writable_rule(check_folder), "runs"),
)
RULES: Dict[str, Rule] = {name: rule for rule, names_ in _RULES for name in names_.split()}
"""What may be given, by argument; the others are names (topics, frames, modules) that only a node can judge."""


def list_faults(given: Sequence[str]) -> List[str]:
    """One line for every ``name:=value`` that cannot be meant."""
    faults = []
    for name, _, value in (argument.partition(":=") for argument in given if ":=" in argument):
        advice = RULES[name](value) if name in RULES else None
        if advice is not None:
            faults.append(hide_secrets(f"{name}:={value}: {advice}"))
    faults += list_misspelt(given)
    faults = faults or _check_several_cameras(given) or _check_single_camera(given)
    return (
        faults or _check_config(given) or _check_first_scan(given) or _check_bag_images(given) or list_collisions(given)
    )


#: The name of the first release.
faults = list_faults


def _check_config(given: Sequence[str]) -> List[str]:
    """Parameters in the file that ``config`` names, of the launch files that are named."""
    values = parse_arguments(given)
    path = values.get("config", "none")
    try:
        lines = (
            []
            if path == "none"
            else [line for launch in locate_launch_files(given) for line in check_config(path, launch, values)]
        )
    except ImportError:
        return []
    return [f"config:={path}: {line}" for line in lines]


def _check_several_cameras(given: Sequence[str]) -> List[str]:
    """An emulated link leads to one server."""
    values = parse_arguments(given)
    if "," in values.get("server", "") and values.get("link", "none") != "none":
        return [
            f"link:={values['link']}: several servers are reached without an emulated link: link:=none, or one server"
        ]
    return []


def _check_single_camera(given: Sequence[str]) -> List[str]:
    """List arguments of one camera that are given with the namespaces of several."""
    values = parse_arguments(given)
    several = _split_list(values.get("camera_ns", ""))
    names = ("video", "images", "bag", "camera", "image_topic", "info_topic")
    remedies = dict.fromkeys(names, "leave it out: topics are image_raw and camera_info in the namespace of each")
    remedies.update(depth_topic="give depth/image_raw, in the namespace of each", accuracy="leave it out",
                    calibration="leave it out: their drivers have it")  # fmt: skip
    return [
        hide_secrets(f"{name}:={values[name]}: camera_ns names {len(several)} cameras; {remedy}, or name one camera")
        for name, remedy in remedies.items()
        if len(several) > 1
        and values.get(name, "none") not in ("none", "0")
        and (name, values[name]) != ("depth_topic", "depth/image_raw")
    ]


def _check_first_scan(given: Sequence[str]) -> List[str]:
    """Check that the first scan can be read, with the fields that it is said to have."""
    values = parse_arguments(given)
    scans, fields = values.get("scans", "none"), values.get("scan_fields", "auto")

    def check_fields() -> None:
        from edge_offload.perception.scene.scans import field_names

        field_names(fields)

    def read_first() -> None:
        from edge_offload.perception.scene.scans import read_scan, scan_files

        _read_bag(scans) if scans.lower().endswith(".bag") else read_scan(scan_files(scans)[0], fields)

    fault = explain_fault(check_fields) if fields != "auto" else None
    if fault:
        return [f"scan_fields:={fields}: {fault}"]
    fault = explain_fault(read_first) if scans != "none" else None
    return [f"scans:={scans}: {fault}"] if fault else []


def _check_bag_images(given: Sequence[str]) -> List[str]:
    """Check that a bag has the images that are to be played; with scenes, the clouds."""
    values = parse_arguments(given)
    bag, topic = values.get("bag", "none"), values.get("image_topic", "")
    if (
        bag == "none"
        or values.get("results") == "scenes"
        or any(argument.endswith(("agrnav.launch", "patrol.launch")) for argument in given)
    ):
        return []

    def find_images() -> None:
        from edge_offload.nodes.camera.bag import image_topic
        from edge_offload.nodes.common.bags import open_bag

        image_topic(open_bag(bag), "" if topic == "camera/image_raw" else topic)

    fault = explain_fault(find_images)
    return [f"{f'image_topic:={topic}' if topic else f'bag:={bag}'}: {fault}"] if fault else []


def main(argv: Sequence[str]) -> int:
    """Check ``argv``, or else the arguments of the process that started this one; roslaunch ends by the exit code."""
    try:
        given = argv or pathlib.Path(f"/proc/{os.getppid()}/cmdline").read_text(encoding="utf-8").split("\0")
    except (OSError, UnicodeDecodeError):
        given = []
    # OpenCV would say in its own words what is said below
    os.environ.update(OPENCV_LOG_LEVEL="SILENT", OPENCV_FFMPEG_LOGLEVEL="-8")
    faults = list_faults(given)
    for line in faults:
        print(f"edge_offload: {line}", file=sys.stderr)
    # what is printed becomes the parameter's value
    print("checked")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
