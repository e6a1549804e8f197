"""Every field of every message is read, or is left alone for a reason; and what is published is filled in."""

from __future__ import annotations

import ast
import copy
import functools
import math
import re
import threading
import types
from unittest import mock

import cv2
import numpy as np
import pytest

pytest.importorskip("rospy", reason="no ROS here")

import genpy
import roslib.message
import rospy
import tf2_py
import tf2_ros
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from geometry_msgs.msg import Point, Pose, PoseStamped, Quaternion
from sensor_msgs.msg import BatteryState, CameraInfo, CompressedImage, Image, RegionOfInterest
from std_msgs.msg import Header
from tf2_msgs.msg import TFMessage
from visualization_msgs.msg import MarkerArray

from edge_offload import timing
from edge_offload.dashboard import messages
from edge_offload.errors import BadInput
from edge_offload.manager.forecast import Forecast as ModeForecast
from edge_offload.manager.policy import Situation
from edge_offload.mode import Mode, parse_mode
from edge_offload.models.detections import Detections
from edge_offload.models.voxels import VoxelGrid
from edge_offload.nodes.camera.calibration import camera_of, fit_calibration, published_size, rectify_calibration
from edge_offload.nodes.common.convert import (
    bgr_to_image,
    bgr_to_jpeg,
    cloud_to_points,
    depth_pixels,
    image_to_bgr,
    points_to_cloud,
    transform_message,
    transform_of,
)
from edge_offload.nodes.common.health import Health
from edge_offload.nodes.detector.detection_messages import markers_message, objects_message
from edge_offload.nodes.inference import vision
from edge_offload.nodes.inference.compose import (
    forecast_message,
    latency_message,
    link_of,
    mode_message,
    reading_of,
    report_of,
    situation_of,
)
from edge_offload.nodes.people.people_messages import Placed, marker_message, people_message
from edge_offload.nodes.scene import scene_messages
from edge_offload.perception.geometry import Position, Transform
from edge_offload.perception.locator import Extent
from edge_offload.perception.scene.planning import GridPath
from edge_offload.perception.tracking import TrackedPerson
from edge_offload.power.battery import BatteryReader
from edge_offload.runtime.carrying import CARRIED, Along
from edge_offload_msgs.msg import (
    Bandwidth,
    Forecast,
    Keypoint,
    Latency,
    OffloadMode,
    Person,
    PersonArray,
    Power,
    ResultOrigin,
    SemanticGrid,
    ServerStatus,
)
from tests.ros.message_fields import DYNAMIC, PUBLISHED, RECEIVED, rows
from tests.ros.ros_rig import ROOT

pytestmark = pytest.mark.ros
SOURCES = ROOT / "src" / "edge_offload"
RECEIVE = {"Subscriber", "read_messages", "TransformListener", "Service", "wait_for_message"}
PUBLISH = {"Publisher", "TransformBroadcaster", "StaticTransformBroadcaster", "Updater"}
ALWAYS = {
    "TransformListener": "tf2_msgs/TFMessage",
    "TransformBroadcaster": "tf2_msgs/TFMessage",
    "StaticTransformBroadcaster": "tf2_msgs/TFMessage",
    "Updater": "diagnostic_msgs/DiagnosticArray",
}


# ---- what there is in the sources


def imported(tree):
    """Message types by the name that a module knows them by."""
    types = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith((".msg", ".srv")):
            package = node.module.split(".")[0]
            types.update({alias.asname or alias.name: f"{package}/{alias.name}" for alias in node.names})
    # "from vision_msgs import msg as vision"
    kinds = ("Detection2DArray", "Detection3DArray", "VisionInfo")
    types.update({f"vision.{name}": f"vision_msgs/{name}" for name in kinds})
    return types


@functools.lru_cache(None)
def used_types():
    """Types taken in, types published, and what could not be made out, of all sources."""
    received, published, unknown = set(), set(), []
    for file in sorted(SOURCES.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if not any(word in text for word in (*RECEIVE, *PUBLISH)):
            continue
        tree, where = ast.parse(text), str(file.relative_to(SOURCES))
        types = imported(tree)
        if "rospy" not in text and "rosbag" not in text:
            continue
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            if name not in RECEIVE | PUBLISH:
                continue
            typed = len(call.args) > 1 and name != "read_messages"
            written = ast.get_source_segment(text, call.args[1]) if typed else ""
            kinds = types.get(written) or ALWAYS.get(name) or DYNAMIC.get(where, {}).get(f"{name} {written}".strip())
            if kinds is None:
                unknown.append(f"{where}: {name}({written})")
            elif name == "Service":
                received.add(f"{kinds}Request")
                published.add(f"{kinds}Response")
            else:
                (received if name in RECEIVE else published).update(kinds.split())
    return received, published, unknown


def class_of(kind):
    """The class of a message, or of one half of a service; None where its package is not installed."""
    for half in ("Request", "Response"):
        if kind.endswith(half):
            return getattr(roslib.message.get_service_class(kind[: -len(half)]), f"_{half.lower()}_class")
    return roslib.message.get_message_class(kind)


def fields_of(kind):
    """Names of the plain fields of a message, those of messages in it included."""
    made = class_of(kind)
    for name, inner in zip(made.__slots__, made._slot_types):
        base = "std_msgs/Header" if inner == "Header" else inner.split("[")[0]
        if "/" in base:
            yield from (f"{name}.{field}" for field in fields_of(base))
        else:
            yield name


def test_every_type_that_nodes_take_in_or_publish_is_in_the_table():
    received, published, unknown = used_types()
    assert not unknown, "name their types in DYNAMIC"
    assert received == set(RECEIVED)
    assert published == set(PUBLISHED)


@pytest.mark.parametrize(("table", "kind"), [(table, kind) for table in (RECEIVED, PUBLISHED) for kind in table])
def test_every_field_of_a_message_is_in_the_table(table, kind):
    answers = rows(table[kind])
    if class_of(kind) is None:
        pytest.skip(f"{kind} is not installed")
    assert set(answers) == set(fields_of(kind))
    for name, answer in answers.items():
        assert re.match(r"(used|set)( in( \S+)+| by \w+)?$|(ignored|default): \w", answer), f"{name}: {answer}"


@pytest.mark.parametrize(("table", "kind"), [(table, kind) for table in (RECEIVED, PUBLISHED) for kind in table])
def test_files_that_are_named_read_the_field_or_give_it_a_value(table, kind):
    for name, answer in rows(table[kind]).items():
        files = answer.partition(" in ")[2].split() if answer.startswith(("used in", "set in")) else []
        last = name.rpartition(".")[2]
        for file in files:
            text = (SOURCES / file).read_text(encoding="utf-8")
            pattern = rf"\.{last}\b(?! =[^=])" if table is RECEIVED else rf"\b{last}=|\.{last}\b"
            if last == "hardware_id":
                pattern = r"\.setHardwareID\("
            if kind == "edge_offload_msgs/SetModeResponse":
                pattern = r"SetModeResponse\((True|False), "  # both in their order
            assert re.search(pattern, text), f"{file} has no {name} of {kind}"


# ---- what is taken in


def attempt(function, *args):
    """What a function gives, or why it does not, as text that can be compared."""
    try:
        result = function(*args)
    except BadInput as error:
        return f"BadInput: {error}"
    return result.tobytes() if isinstance(result, np.ndarray) else repr(result)


def image(message):
    return [attempt(image_to_bgr, message), attempt(depth_pixels, message)]


def compressed(message):
    return [attempt(image_to_bgr, message), attempt(messages.picture_bytes, message)]


def calibration(message):
    results = [attempt(published_size, message)]
    for info in (message, rectify_calibration(message)):
        results.append(
            attempt(lambda info: camera_of(fit_calibration(info, 80, 100)).pixel_rays(np.array([[5.0, 7.0]])), info)
        )
        results.append(attempt(fit_calibration, info, 80, 100))
    return results


def cloud(message):
    return attempt(cloud_to_points, message)


def battery(message):
    from edge_offload.nodes.manager.offload_manager_node import OffloadManagerNode

    health = Health()
    news = types.SimpleNamespace(note_arrival=lambda: None)
    node = types.SimpleNamespace(
        _battery=BatteryReader(), _battery_news=news, _lock=threading.Lock(), _tasks={}, health=health
    )
    OffloadManagerNode._on_battery(node, message)
    return health.make_report().values["battery"]


def pose(message):
    buffer = tf2_py.BufferCore()
    for transform in message.transforms:
        buffer.set_transform(transform, "test")
    try:
        return attempt(
            lambda: transform_of(buffer.lookup_transform_core("map", "lidar", rospy.Time(9))).map_points(np.eye(3))
        )
    except tf2_py.TransformException as error:
        return str(error)


def goal(message):
    from edge_offload.nodes.common.poses import Poses
    from edge_offload.nodes.inference.intake import Frame
    from edge_offload.nodes.scene.goal import GoalIntake
    from edge_offload.perception.timeline import Instant

    buffer = tf2_ros.Buffer(debug=False)
    pose = Transform.from_quaternion((1, 2, 0), (0.5, 0.5, 0.5, 0.5))
    turned = transform_message(pose, rospy.Time(9), "lidar", "map")
    buffer.set_transform_static(turned, "test")
    node = types.SimpleNamespace(params={}, health=Health(), callback=lambda call: call)
    with mock.patch.object(rospy, "Subscriber"):
        made = GoalIntake(node, Poses(buffer))
    made._on_goal(copy.deepcopy(message))
    frame = Frame(types.SimpleNamespace(header=HEADER), 0.0, Instant(9 * 10**9))
    return made.place_goal(frame, wait=False), node.health.make_report()


def diagnostics(message):
    records = messages.DiagnosticChanges().changed_records(message, 1.0)
    from edge_offload.nodes.common.health import TORCHES
    from edge_offload.nodes.monitor.run_recorder import RunRecorder

    node = types.SimpleNamespace(_tally=types.SimpleNamespace(two_torches=""))
    RunRecorder._on_diagnostics(node, message)
    return records, node._tally.two_torches, TORCHES


def latency(message):
    from edge_offload.nodes.monitor.bandwidth_monitor_node import BandwidthMonitorNode

    sampled = []
    estimator = types.SimpleNamespace(sample=lambda *told: sampled.append(told[1:]), round_trip=lambda *_: None)
    node = types.SimpleNamespace(_lock=threading.Lock(), _client=None, _estimator=estimator, health=Health())
    BandwidthMonitorNode._on_latency(node, message)
    return attempt(report_of, message), messages.convert_latency(message, 1.0), sampled, node.health.make_report()


def forecast(message):
    return attempt(situation_of, message, 1.0), attempt(link_of, message)


def people(message):
    from edge_offload.nodes.monitor.regress_node import _describe_people

    return messages.convert_people(message, 1.0), _describe_people(message, True)


def scene(message):
    from edge_offload.nodes.monitor.regress_node import _describe_scene

    return (
        messages.convert_scene(message, 1.0),
        attempt(_describe_scene, message, True),
        attempt(scene_messages.labels_of, message),
    )


HEADER = Header(seq=7, stamp=rospy.Time(9, 5), frame_id="lidar")
GRID = VoxelGrid((-5.0, -6.0, -1.0), 0.1, (100, 120, 32))
PIXELS = np.random.default_rng(0).integers(1, 200, (4, 6, 3), dtype=np.uint8)
POINTS = np.arange(1, 17, dtype="<f4").reshape(4, 4)


def padded_cloud():
    made = points_to_cloud(POINTS, HEADER)
    rows_of = [POINTS[:2].tobytes(), POINTS[2:].tobytes()]
    made.height, made.width, made.row_step, made.data = 2, 2, 36, bytes(4).join(rows_of) + bytes(4)
    return made


def camera_info(**changes):
    return CameraInfo(
        header=HEADER, width=640, height=480, distortion_model="plumb_bob", D=[0.1, 0, 0, 0],
        R=np.eye(3).ravel().tolist(),
        K=[500.0, 0, 320, 0, 500, 240, 0, 0, 1], P=[500.0, 0, 320, 0, 0, 500, 240, 0, 0, 0, 1, 0],
        **{"binning_x": 2, "binning_y": 2, "roi": RegionOfInterest(10, 20, 200, 160, False), **changes},
    )  # fmt: skip


def seconds(*values):
    return [rospy.Duration.from_sec(value) for value in values]


EXAMPLES = {
    "sensor_msgs/Image": (
        image,
        [bgr_to_image(PIXELS, HEADER), Image(HEADER, 2, 2, "16UC1", 0, 6, bytes(range(1, 13)))],
        {"step": 19, "encoding": "rgb8"},
    ),
    "sensor_msgs/CompressedImage": (
        compressed,
        [CompressedImage(HEADER, "bgr8; png compressed bgr8", cv2.imencode(".png", PIXELS)[1].tobytes())],
        {"format": "rgb8; png compressed ", "data": cv2.imencode(".png", PIXELS[::-1])[1].tobytes()},
    ),
    "sensor_msgs/CameraInfo": (
        calibration,
        [camera_info()],
        {"distortion_model": "equidistant", "R": [1.0, 0, 0, 0, 0, -1, 0, 1, 0], "roi.width": 240, "roi.height": 300,
         "width": 100, "height": 100},
    ),
    "sensor_msgs/PointCloud2": (cloud, [points_to_cloud(POINTS, HEADER), padded_cloud()], {"fields.name": "w"}),
    "tf2_msgs/TFMessage": (
        pose,
        [
            TFMessage([transform_message(Transform.from_quaternion((1, 2, 3), (0.5, 0.5, 0.5, 0.5)), rospy.Time(9),
                                         "map", "lidar")])
        ],
        {},
    ),
    "geometry_msgs/PoseStamped": (
        goal,
        [
            PoseStamped(Header(frame_id=frame), Pose(Point(0.5, 1.0, 1.5), Quaternion(0, 0, 0, 1)))
            for frame in ("", "map")
        ],
        {},
    ),
    "sensor_msgs/BatteryState": (
        battery,
        [
            BatteryState(percentage=0.5, voltage=12, charge=math.nan, capacity=10, design_capacity=12),
            BatteryState(percentage=math.nan, voltage=12, charge=3, capacity=math.nan, design_capacity=12),
        ],
        {"percentage": 0.9, "charge": 5.0},
    ),
    "diagnostic_msgs/DiagnosticArray": (
        diagnostics,
        [
            DiagnosticArray(HEADER, [DiagnosticStatus(1, "node", "fine", "host", [KeyValue("battery", "50 %")])]),
            DiagnosticArray(HEADER, [DiagnosticStatus(1, "n", "", "", [KeyValue("two versions of torch", "y")])]),
        ],
        {},
    ),
    "edge_offload_msgs/Latency": (
        latency,
        [
            Latency(
                HEADER, 7, camera, "movenet", name, 2, "eager", "", "",
                *seconds(1.0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.001),
                0.5, 0.25, 0.125, 1000, 100, 3, True, *seconds(0.01, 0.02, 0.5), True, 2.0, 1.5, 1,
            )
            for name, camera in (("server", "front"), ("local", ""))
        ],
        {"mode": "lazy", "clock_error": rospy.Duration(1),
         "overlap_ratio": 0.75, "idle_robot": 0.5, "idle_server": 0.5},
    ),
    "edge_offload_msgs/Forecast": (
        forecast,
        [
            Forecast(HEADER, "people", ["local"], *([value] for value in seconds(1, 2, 3)), [0.5], [4.0], [5], [6],
                     [""], ["split"], ["no plan"], rospy.Duration(1), 0.5, 100.0, 50.0, 0.25, rospy.Duration(2))
        ],
        {"mode": ["server"], "absent": ["lazy"], "remedy": ["another"], "obstacle": ["no link"]},
    ),
    "edge_offload_msgs/OffloadMode": (
        lambda message: (messages.mode(message, 1.0), attempt(parse_mode, message.mode)),
        [OffloadMode(HEADER, "server", 2, "fixed", "asked for")],
        {"mode": "local"},
    ),
    "edge_offload_msgs/Bandwidth": (
        lambda message: (attempt(reading_of, message), messages.convert_bandwidth(message, 1.0)),
        [
            Bandwidth(HEADER, "server", True, 1, 100.0, 50.0, 0.25, 0.125, *seconds(0.01, 0.5, 0.001), 5,
                      rospy.Duration(2), "wlan0", -50.0, 1000.0)
        ],
        {},
    ),
    "edge_offload_msgs/PersonArray": (
        people,
        [PersonArray(header=HEADER, result=ResultOrigin("carried", rospy.Time(8), 0.5), people=[
            Person(id=3, observed=True, score=0.5, x_min=1, y_min=2, x_max=3, y_max=4, keypoints=[Keypoint()] * 17)])],
        {"result.origin": "local"},
    ),
    "edge_offload_msgs/SemanticGrid": (
        scene,
        [
            SemanticGrid(HEADER, Point(1, 2, 3), 0.1, 2, 3, 1, ["empty", "car"], SemanticGrid.RAW, bytes(6),
                         ResultOrigin("carried", rospy.Time(8), 0.5))
        ],
        {"data": b"\1" + bytes(5), "result.origin": "local", "labels": ["empty", "car", "tree"]},
    ),
    "edge_offload_msgs/Power": (
        lambda message: messages.convert_power(message, 1.0), [Power(HEADER, "robot", 10.0, 100.0, 1, "INA", 1)], {}
    ),
    "edge_offload_msgs/ServerStatus": (
        lambda message: messages.convert_server(message, 1.0),
        [ServerStatus(header=HEADER, address="tcp://server", device="cpu", state=1)],
        {"models.name": [], "promises.robot": []},
    ),
}  # fmt: skip


def changed(value):
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, (bytes, bytearray)):
        return bytes([(value[0] + 1) % 256]) + bytes(value[1:])
    if isinstance(value, (genpy.Time, genpy.Duration)):
        return value + rospy.Duration(3)
    if value and isinstance(value[0], (int, float, str, genpy.Duration)):
        return [changed(value[0]), *value[1:]]
    return [0.5]


def with_change(message, path, overrides):
    """The message with another value in a field; None where the example has no such element."""
    made = copy.deepcopy(message)
    holder, *rest = made, *path.split(".")
    for name in rest[:-1]:
        holder = getattr(holder, name)
        if isinstance(holder, (list, tuple)):
            if not holder:
                return None
            holder = holder[0]
    value = getattr(holder, rest[-1])
    setattr(holder, rest[-1], overrides.get(path, changed(value)))
    return made


@pytest.mark.parametrize("kind", sorted(EXAMPLES))
def test_a_field_that_is_used_changes_the_outcome_and_one_that_is_ignored_does_not(kind):
    outcome, bases, overrides = EXAMPLES[kind]
    wrong = []
    for path, answer in rows(RECEIVED[kind]).items():
        changes = [
            (outcome(base), outcome(made)) for base in bases for made in [with_change(base, path, overrides)] if made
        ]
        if not changes:
            assert answer.startswith("ignored"), f"the example has no {path}"
        differs = any(repr(before) != repr(after) for before, after in changes)
        if (answer == "used" and not differs) or (answer.startswith("ignored") and differs):
            wrong.append(f"{path} {answer}, {changes}")
    assert not wrong


def test_types_whose_fields_are_only_read_by_nodes_have_no_example():
    rest = {"Turn", "Drop", "ObjectArray", "SetModeRequest"}
    assert set(RECEIVED) - set(EXAMPLES) == {f"edge_offload_msgs/{name}" for name in rest}


def test_a_goal_without_a_place_is_reported():
    made = PoseStamped(Header(), Pose(Point(math.nan, 1.0, 0.0), Quaternion()))
    cell, report = goal(made)
    assert cell is None
    assert "not finite" in report.message


# ---- what is published


REPORT = timing.InferenceReport(
    Mode.SERVER, "movenet", 1.0, dict.fromkeys(timing.STAGES, 0.1), 1000, 100, 3, 0.001, 2.0, "asked for", "eager", 0.25
)
ALONG = Along([], CARRIED, 8 * 10**9, 0.5)


def placed():
    where = Position(np.array([1.0, 2, 3]), np.full((3, 3), 0.5), "depth", "map")
    return {3: Placed(where, np.array([0.1, 0.2, 0.3]))}


def status():
    """What a server says of itself."""
    from edge_offload.nodes.server.offload_server_node import OffloadServerNode

    model = types.SimpleNamespace(count=5, mean_s=0.5, p99_s=0.75)
    figures = {
        "queue_length": 1, "load": 0.5, "inferences": 2, "refused": 3, "failed": 4, "bytes_in": 5, "bytes_out": 6,
        "idle": 0.5, "batches": 7, "uptime_s": 8.0, "device": "cpu", "models": {"movenet": model},
    }  # fmt: skip
    promise = types.SimpleNamespace(
        robot="patrol", model="movenet", bound=0.5, drop=0.25, interval=2.0, batch=1.5, late=0.5, turns=3, note="why"
    )
    now = types.SimpleNamespace(promises=[promise], **figures)
    server = types.SimpleNamespace(status=lambda: now, robots=lambda: ["patrol"], address="tcp://a", engine="eager")
    node = types.SimpleNamespace(_server=server, _gpu=types.SimpleNamespace(mean_share=lambda: 0.5))
    return OffloadServerNode._status_message(node, ServerStatus.READY)


def diagnosed():
    """What a node says on /diagnostics."""
    import diagnostic_updater

    from edge_offload.nodes.common.base import DiagnosticsReporter

    health = Health()
    health.warn("camera", "no images")
    health.value("frames", 3)
    reporter = types.SimpleNamespace(_node=types.SimpleNamespace(health=health))
    return DiagnosticArray(
        status=[DiagnosticsReporter._fill_status(reporter, diagnostic_updater.DiagnosticStatusWrapper())]
    )


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(rospy.Time, "now", lambda: rospy.Time(9))


def published_examples():
    labels = np.full((3, 4, 2), 7, dtype=np.uint8)
    grid = VoxelGrid((-5.0, -6.0, -1.0), 0.1, labels.shape)
    names, colours = [f"kind {number}" for number in range(9)], np.full((9, 3), 100)
    plan = GridPath(np.array([[0, 0], [1, 1], [2, 3]]), 1.0, (2, 3), True)
    pose = Transform.from_quaternion((1, 2, 3), (0.5, 0.5, 0.5, 0.5))
    transform = transform_message(pose, HEADER.stamp, "map", "lidar")
    absent = {Mode.SPLIT: "no plan"}
    expected = ModeForecast(
        Mode.SERVER,
        1.0,
        0.5,
        2.0,
        "no link",
        standard_error_s=0.25,
        bytes_up=5,
        bytes_down=6,
        covariance={Mode.SERVER: 0.5},
    )
    link = link_of(Forecast(uplink=100.0, downlink=50.0, link_error=0.25, link_age=rospy.Duration(2)))
    situation = Situation(1.0, {Mode.SERVER: expected}, 0.5, 0.75, absent=absent, link=link)
    person = TrackedPerson(3, np.arange(1.0, 5), 0.5, np.full((17, 3), 0.5), np.ones(2), 1.0, 0.0, False)
    detections = Detections(np.array([[1.0, 2, 3, 4]]), np.array([0.5]), np.array([3]))
    place = placed()[3].position, Extent(np.ones(3), pose.rotation, 0.5, 0.25)
    return {
        "sensor_msgs/Image": [bgr_to_image(PIXELS, HEADER)],
        "sensor_msgs/CompressedImage": [bgr_to_jpeg(PIXELS, HEADER, 90)],
        "sensor_msgs/CameraInfo": [fit_calibration(camera_info(), 80, 100)],
        "sensor_msgs/PointCloud2": [
            points_to_cloud(POINTS, HEADER), scene_messages.voxels_message(HEADER, labels, grid, colours)
        ],
        "tf2_msgs/TFMessage": [TFMessage([transform])],
        "diagnostic_msgs/DiagnosticArray": [diagnosed()],
        "nav_msgs/OccupancyGrid": [scene_messages.slice_message(HEADER, np.full((3, 4), 100, dtype=np.int8), grid)],
        "nav_msgs/Path": [scene_messages.path_message(HEADER, plan, grid, -1.0)],
        "visualization_msgs/MarkerArray": [
            # the first one removes what was shown before
            MarkerArray(made.markers[1:]) for made in (
                marker_message(HEADER, placed(), 3),
                markers_message(HEADER, detections, ["car"], [place]),
                scene_messages.markers_message(HEADER, labels, grid, colours, [], names),
            )
        ],
        "edge_offload_msgs/Latency": [latency_message(REPORT, HEADER, "front")],
        "edge_offload_msgs/Forecast": [forecast_message(situation, HEADER, "people")],
        "edge_offload_msgs/OffloadMode": [mode_message(Mode.SERVER, "fixed", "asked for")],
        "edge_offload_msgs/PersonArray": [people_message(HEADER, REPORT, (640, 480), [person], placed(), 3, ALONG)],
        "edge_offload_msgs/ObjectArray": [objects_message(HEADER, REPORT, (640, 480), detections, ["car"], [place])],
        **({} if vision.vision is None else {
            "vision_msgs/Detection3DArray": [
                vision.places_message(HEADER, [place], np.array([0.5]), np.array([3]))
            ]
        }),
        "edge_offload_msgs/SemanticGrid": [scene_messages.grid_message(HEADER, labels, grid, names, ALONG)],
        "edge_offload_msgs/ServerStatus": [status()],
    }  # fmt: skip


def leaves(message, path):
    """The values of a field, of every element where there are several."""
    holders = [message]
    for name in path.split("."):
        flat = [one for holder in holders for one in (holder if isinstance(holder, (list, tuple)) else [holder])]
        holders = [getattr(holder, name) for holder in flat]
    return holders


def test_published_fields_are_filled_unless_declared_as_default(clock):
    wrong = []
    for kind, examples in published_examples().items():
        for path, answer in rows(PUBLISHED[kind]).items():
            values = [value for example in examples for value in leaves(example, path)]
            filled = any(bool(value) and value != b"" for value in values)
            if (answer == "set") != filled and not answer.startswith(("set in", "set by")):
                wrong.append(f"{kind} {path} | {answer}: {values[:3]}")
    assert not wrong
    published = {
        kind for kind in PUBLISHED for answer in rows(PUBLISHED[kind]).values() if answer == "set" and class_of(kind)
    }
    assert published == set(published_examples())
