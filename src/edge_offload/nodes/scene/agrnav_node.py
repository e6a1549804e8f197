"""completes the scene around the robot from single LiDAR sweeps, on the robot or on a server, and plans through it.

Subscribes:
  lidar/points                  sensor_msgs/PointCloud2: sweeps, in the frame of a sensor that stands upright
  agrnav/goal                   geometry_msgs/PoseStamped: where to plan to (RViz: 2D Nav Goal). In the sensor's own
                                frame it stays relative to the robot; in another one it is looked up by tf
  offload/mode                  edge_offload_msgs/OffloadMode: where to run from now on
  offload/bandwidth             edge_offload_msgs/Bandwidth: how the link is while no inference uses it
  /tf, /tf_static               place of the sensor in the frame of the goal

Publishes, exactly one of each for every sweep taken up, with the sweep's stamp:
  agrnav/semantic_grid          edge_offload_msgs/SemanticGrid: the completed labels, Zstandard-coded
  agrnav/occupancy              nav_msgs/OccupancyGrid: what is in the robot's way, seen from above
  agrnav/path                   nav_msgs/Path: A* to the goal, without poses when nothing can be reached
  offload/latency               edge_offload_msgs/Latency: the mode that really ran, time by stage, bytes, energy
  offload/forecast              edge_offload_msgs/Forecast: what the next sweep would cost in each mode
with ~turns (see kapao_node): offload/turn_taken, offload/drop
and while somebody listens:
  agrnav/voxels                 sensor_msgs/PointCloud2: full voxels with fields x y z rgb label
  agrnav/markers                visualization_msgs/MarkerArray: cubes by kind of object, without the ground
  agrnav/overlay                sensor_msgs/Image: sweep, scene and slice side by side; agrnav/overlay/compressed (JPEG)

For a planner that subscribes to /sdf_map/occupancy_inflate, remap agrnav/voxels to it.

With ~carry every sweep has its result within the time between two sweeps: the network's own where that comes in time,
else the newest one moved by odometry (tf from ~odometry_frame to the sensor) and brought up to date by the sweep, or,
where that is expected to be better, what can be made of the sweep without a network (SemanticGrid.result says which).
There is one offload/latency for each inference then, not for each sweep, and offload/drop says what results lose with
staleness.

The network works on the latest sweep only, or the latest few at once (~in_flight, as in kapao_node). The voxels that a
sweep hit go to the server as bits, labels come back; when the server cannot be reached the network runs on the robot,
and /diagnostics and Latency.fallback_reason say why. With random weights nothing is completed: grid and slice then hold
what the sweep hit, and the node says so.
"""

from __future__ import annotations

import functools
import threading
import time
from typing import Any, Callable, ClassVar, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np
import rospy
import tf2_ros
from geometry_msgs.msg import PoseStamped
from nav_msgs.msg import OccupancyGrid, Path
from sensor_msgs.msg import PointCloud2
from std_msgs.msg import Header
from visualization_msgs.msg import MarkerArray

from edge_offload.arrays import Array
from edge_offload.errors import BadInput, EdgeOffloadError
from edge_offload.manager.lateness import TimeoutLimits
from edge_offload.mode import Mode
from edge_offload.models.scenes.labels import COLOURS, GROUND, LABELS
from edge_offload.models.sconet.baselines import nothing
from edge_offload.models.sconet.completer import VOXEL_SIZE_M, SceneCompleter
from edge_offload.models.voxels import VoxelGrid, around
from edge_offload.nodes.common.convert import cloud_to_points, transform_of
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.inference.carry import CarryThread, Task
from edge_offload.nodes.inference.compose import NOTHING
from edge_offload.nodes.inference.intake import BUFFER_BYTES, Arrivals, Frame, tf_time
from edge_offload.nodes.inference.latest_frame_queue import LatestFrameQueue, Steps
from edge_offload.nodes.inference.network import Network
from edge_offload.nodes.inference.offloaded import OffloadedNode
from edge_offload.nodes.inference.pictures import Painter
from edge_offload.nodes.lidar.sweeps import WorldSweeps
from edge_offload.nodes.scene import scene_messages, scene_report
from edge_offload.perception.agreement import scene_drop
from edge_offload.perception.carry.odometry import SceneCarrier
from edge_offload.perception.geometry import Transform
from edge_offload.perception.scene.pipeline import ScenePipeline, SceneResult
from edge_offload.perception.scene.planning import Cell, Plan, find_path, occupancy_slice
from edge_offload.perception.scene.view import draw_scene
from edge_offload.runtime.carrying import Along, FrameLoop
from edge_offload.timing import InferenceReport
from edge_offload_msgs.msg import SemanticGrid

SILENCE_S = 5.0

ODOMETRY_S = 0.02
"""How long a sweep waits for its pose: tf comes by another connection."""


class SceneNetwork(Network):
    """A scene completer whose module runs here or on a server."""

    untrained = "the scene is not completed, results show what the sweep hit"
    # what the network says has megabytes: the coded scene is told instead (scene_report)
    report_results = False
    # 70 GFLOP take seconds on a processor core
    patience = TimeoutLimits(cap_s=60.0, first_s=30.0)
    # a minute or more: sweeps are completed here meanwhile
    waits_for_plans = False
    declared: ClassVar[Tuple[Param, ...]] = (
        Param("model", "sconet", "name of the model ('edge-offload models list')", choices=("sconet",)),
        *(param for param in Network.declared if param.name != "model"),
    )

    def build(self) -> SceneCompleter:
        """The completer that the parameters describe."""
        params = self._params
        options = params["model_options"]
        unknown = sorted(set(options) - {"weights", "seed"})
        if unknown:
            raise BadInput(f"model sconet has no option {', '.join(unknown)}", remedy="it has: weights, seed")
        grid = around(params["sensor_height"], params["voxel_size"], params["extent"] == "forward", params["cells"])
        return SceneCompleter(grid=grid, **options)


class _Picture(NamedTuple):
    """What is drawn: a completed sweep, the slice found free or not, the path through it from robot to goal (cells)."""

    header: Any
    labels: Array
    occupancy: Array
    report: InferenceReport
    found: Any
    plan: Optional[Plan]
    robot: Cell
    goal: Optional[Cell]


class AgrnavNode(OffloadedNode):
    """See the module's docstring."""

    name = "agrnav_node"
    task = "scene"
    drain_s = 30.0
    declared = (
        *SceneNetwork.declared,
        *OffloadedNode.shared,
        Param("sensor_height", 1.73, "m, of the LiDAR above the ground", low=0.0, high=5.0),
        Param("voxel_size", VOXEL_SIZE_M, "m, edge of a voxel; the grid is 32 of them high", low=0.02, high=1.0),
        Param(
            "cells", 256, "voxels along x and y, a multiple of 16: fewer see less far and cost less", low=16, high=1024
        ),
        Param(
            "extent", "around", "where the grid lies: around the robot, or forward of it", choices=("around", "forward")
        ),
        Param("goal_x", 12.0, "m, goal until agrnav/goal names one, in the sensor's frame: ahead"),
        Param("goal_y", 0.0, "m, goal until agrnav/goal names one, in the sensor's frame: to the left"),
        Param("robot_radius", 0.35, "m, of the robot, for the path", low=0.0, high=5.0),
        Param("body_low", 0.25, "m above the ground: lower obstacles are driven over", low=0.0),
        Param("body_high", 1.6, "m above the ground: what begins higher is driven under", low=0.1),
        Param("step", 0.2, "m: ground that rises more from cell to cell is in the way", low=0.0),
        Param("jpeg_quality", 85, "of agrnav/overlay/compressed", low=1, high=100),
        Param("carry", False, "give every sweep its result at once, carried along from what the network saw last"),
        Param("local", True, "with ~carry: column fill, which needs no network, stands in where it is the better one"),
        Param("odometry_frame", "odom", "with ~carry: tf frame that stands still while the robot moves"),
    )

    def start(self) -> None:
        params = self.params
        self._goal: Optional[Any] = None
        self._goal_lock = threading.Lock()
        self._heard_s = time.monotonic()
        self._arrivals = Arrivals(self.health, "sweeps")
        self._recording = 0
        self._told = 0
        self._buffer = tf2_ros.Buffer()
        self._listener = tf2_ros.TransformListener(self._buffer)
        self.begin(SceneNetwork(params, self.health))
        self._completer: SceneCompleter = self._network.estimator
        self._grid: VoxelGrid = self._completer.grid
        if abs(params["voxel_size"] - VOXEL_SIZE_M) > 1e-6:
            self.health.warn("voxels", f"the network was trained on voxels of {VOXEL_SIZE_M} m, not on these")
        self._pipeline = ScenePipeline(self._completer)
        self._advertise()
        self._slot: LatestFrameQueue[Frame] = LatestFrameQueue(capacity=1)
        self._worker = self.lanes(self._slot, self._work, self._on_failure)
        self._painter: Painter[_Picture] = Painter(self, "agrnav/overlay", self._draw, 1, beside=self._publish_voxels)
        if params["carry"]:
            self._carrier = SceneCarrier(self._grid)
            task = Task(self._carrier, self._see, self._leave, self._publish_failure, scene_drop,
                        self._alone if params["local"] else None)  # fmt: skip
            self.carry = CarryThread(task, params["slowdown"], self.health, self.fault)
        self._worker.start()
        self._painter.start()
        self.listen(self._slot)
        rospy.Subscriber("agrnav/goal", PoseStamped, self.callback(self._on_goal), queue_size=4)
        # made up, but not empty: mode split measures on it how far sweeps can be coded
        sweep = next(iter(WorldSweeps("street", 0, 0.0, 1.0, params["sensor_height"])))
        assert sweep.points is not None
        example = self._completer.prepare(sweep.points)
        self._network.warm_up_on(self._mode, example, params["server_wait"])
        self.publish_forecast([example], Header(stamp=rospy.Time.now()))
        self.collector.begin()
        # last: from now on sweeps come
        self._sweeps = rospy.Subscriber(
            "lidar/points", PointCloud2, self.callback(self._on_sweep), queue_size=4, buff_size=BUFFER_BYTES
        )
        rospy.loginfo(f"model {self._completer.name} is ready, mode {self._mode}")

    def _advertise(self) -> None:
        self._semantic = rospy.Publisher("agrnav/semantic_grid", SemanticGrid, queue_size=4)
        self._occupancy = rospy.Publisher("agrnav/occupancy", OccupancyGrid, queue_size=4)
        self._path = rospy.Publisher("agrnav/path", Path, queue_size=4)
        self._voxels = rospy.Publisher("agrnav/voxels", PointCloud2, queue_size=2)
        self._markers = rospy.Publisher("agrnav/markers", MarkerArray, queue_size=2)

    def stop(self) -> None:
        if hasattr(self, "_sweeps"):
            self._sweeps.unregister()
        self.end({name: getattr(self, name) for name in ("_worker", "carry", "_painter") if getattr(self, name, None)})

    def refresh(self) -> None:
        if not hasattr(self, "_sweeps"):
            return
        silent = time.monotonic() - self._heard_s
        if silent > SILENCE_S:
            self.health.warn("sweeps", f"no sweep on {rospy.resolve_name('lidar/points')} for {silent:.0f} s")
        else:
            self.health.clear("sweeps")
        self._arrivals.refresh()
        self.refresh_network(self._slot, "sweeps")

    def _on_goal(self, message: Any) -> None:
        with self._goal_lock:
            self._goal = message

    def _on_sweep(self, message: Any) -> None:
        self._heard_s = time.monotonic()
        frame = Frame(message, self._heard_s, self._arrivals.instant(message.header, self._heard_s))
        (self.carry or self._slot).put(frame)

    def _work(self, frame: Frame, place: int) -> Steps:
        """One sweep: exactly one result, whatever happens."""
        frame.place = place
        self.take_turn(frame)
        if frame.pixels is None:
            prepared = self._pipeline.prepare(cloud_to_points(frame.message), frame.received_s)
        else:
            prepared = self._pipeline.prepared(frame.pixels, frame.received_s)
        yield
        ran = self.infer(frame, (prepared.occupancy,))
        yield
        result = self._pipeline.finish(prepared, *ran)
        self.health.clear("sweep")
        if self.carry is None:
            tell_seen = self._publish(frame, result.labels, result.occupancy, result.report)
            self._account(frame, result)
            self.compare(frame, result.labels, scene_drop)
            tell_seen()
        else:
            self._account(frame, result)
            self.carry.came(functools.partial(self._completed, frame, result, self.carry.loop))

    def _account(self, frame: Frame, result: SceneResult) -> None:
        energy, measured = self.energy(frame, result.report)
        self.account(frame.message.header, result.inputs, result.report, energy, measured)

    def _see(self, frame: Frame) -> bool:
        """A sweep has come: the carrier sees it, and the network may (in the thread that carries)."""
        frame.pixels = self._grid.occupancy(cloud_to_points(frame.message))
        same = frame.instant.recording == self._recording
        if not same:
            self._carrier.forget()
        self._recording = frame.instant.recording
        follows = self._carrier.see(frame.instant, frame.pixels, self._pose(frame)) and same
        self._slot.put(frame)
        return follows

    def _alone(self, frame: Frame) -> Array:
        """What can be made of a sweep without a network."""
        return self._carrier.alone(frame.instant)

    def _pose(self, frame: Frame) -> Optional[Transform]:
        """Where the sensor is in a frame that stands still; None while tf does not know it."""
        header, fixed = frame.message.header, self.params["odometry_frame"]
        at, wait = tf_time(header, frame.instant), rospy.Duration(ODOMETRY_S)
        try:
            found = transform_of(self._buffer.lookup_transform(fixed, header.frame_id, at, wait))
        except (tf2_ros.TransformException, BadInput, ValueError) as error:
            self.health.warn("odometry", f"no pose of {header.frame_id!r} in {fixed!r}, scenes are held: {error}")
            return None
        self.health.clear("odometry")
        return found

    def _completed(self, frame: Frame, result: SceneResult, loop: FrameLoop[Frame, Array]) -> Iterator[None]:
        """The network's result for an earlier sweep (in the thread that carries)."""
        return loop.coming(result.labels, frame.instant, frame.received_s, result.report)

    def _leave(self, frame: Frame, along: Along[Array]) -> None:
        """The result of a sweep, whatever its origin."""
        assert frame.pixels is not None
        report = along.tag or InferenceReport(Mode.LOCAL, self._completer.name)
        labels = nothing(frame.pixels) if along.result is None else along.result
        self._publish(frame, labels, frame.pixels, report, along)()

    def _publish(
        self,
        frame: Frame,
        labels: Array,
        occupancy: Array,
        report: InferenceReport,
        along: Optional[Along[Array]] = None,
    ) -> Callable[[], object]:
        """The one result of a sweep. Returns what shows it to whoever watches."""
        header, params = frame.message.header, self.params
        found = occupancy_slice(labels, self._grid, GROUND, params["body_low"], params["body_high"], params["step"])
        robot, goal = self._grid.cell(0.0, 0.0), self._goal_cell(frame)
        plan = None
        if goal is not None:
            plan = find_path(found, self._grid.voxel_size, robot, goal, params["robot_radius"])
            self._tell(plan)
        self._semantic.publish(scene_messages.grid_message(header, labels, self._grid, LABELS, along))
        self._occupancy.publish(scene_messages.slice_message(header, found, self._grid))
        height_m = -params["sensor_height"] + 0.1
        self._path.publish(scene_messages.path_message(header, plan, self._grid, height_m))
        if along is None or along.source != self._told:
            # what was carried along is no news to them
            self._told = 0 if along is None else along.source
            self._tell_server(header, labels, found, plan, report, height_m)
        return lambda: self._painter.paint(_Picture(header, labels, occupancy, report, found, plan, robot, goal))

    def _tell_server(
        self, header: Any, labels: Array, found: Array, plan: Optional[Plan], report: InferenceReport, height_m: float
    ) -> None:
        told = {"stamp_ns": header.stamp.to_nsec(), "seq": header.seq, "frame_id": header.frame_id}
        told.update(scene_report.facts(self._grid, height_m))
        self._network.tell(scene_report.coded(labels, found, plan), report, told)

    def _tell(self, plan: Optional[Plan]) -> None:
        if plan is None:
            self.health.warn("path", "no way out of where the robot is")
        elif not plan.reached:
            self.health.warn("path", f"the goal cannot be reached; the path of {plan.length_m:.1f} m ends near it")
        else:
            self.health.clear("path")
            self.health.value("path", f"{plan.length_m:.1f} m")

    def _goal_cell(self, frame: Frame) -> Optional[Cell]:
        """The goal in this sweep's grid; None while tf cannot tell where it is."""
        header = frame.message.header
        with self._goal_lock:
            goal = self._goal
        if goal is None:
            return self._grid.cell(self.params["goal_x"], self.params["goal_y"])
        place = np.array([goal.pose.position.x, goal.pose.position.y, goal.pose.position.z])
        if goal.header.frame_id not in ("", header.frame_id):
            try:
                found = self._buffer.lookup_transform(
                    header.frame_id, goal.header.frame_id, tf_time(header, frame.instant), rospy.Duration(0.2)
                )
                transform = transform_of(found)
            except (tf2_ros.TransformException, BadInput, ValueError) as error:
                self.health.warn("goal", f"the goal's place is not known: {error}")
                return None
            place = transform.rotation @ place + transform.translation
        if not np.isfinite(place).all():
            self.health.warn("goal", "the goal's place is not finite; publish another one on agrnav/goal")
            return None
        self.health.clear("goal")
        return self._grid.cell(float(place[0]), float(place[1]))

    def _publish_failure(self, frame: Frame, error: BaseException) -> None:
        """The result of a sweep that could not be used: a grid and a slice in which nothing is known."""
        header = frame.message.header
        labels = np.zeros(self._grid.shape, dtype=np.uint8)
        self._semantic.publish(scene_messages.grid_message(header, labels, self._grid, LABELS, NOTHING))
        unknown = np.full(self._grid.shape[:2], -1, dtype=np.int8)
        self._occupancy.publish(scene_messages.slice_message(header, unknown, self._grid))
        self._path.publish(scene_messages.path_message(header, None, self._grid, 0.0))
        self._tell_latency(frame, error)

    def _tell_failure(self, frame: Frame, error: BaseException) -> None:
        """The network could not be run on a sweep; a result that is carried to it leaves by itself."""
        if self.carry is None:
            self._publish_failure(frame, error)
        else:
            self._tell_latency(frame, error)

    def _tell_latency(self, frame: Frame, error: BaseException) -> None:
        report = InferenceReport(Mode.LOCAL, self._completer.name, time.monotonic() - frame.received_s)
        self.publish_latency(frame.message.header, report, float("nan"), False, str(error))

    def _on_failure(self, frame: Frame, error: BaseException) -> None:
        self.leave_turn(frame)
        if isinstance(error, EdgeOffloadError):
            self.health.count("bad sweeps")
            self.health.warn("sweep", str(error))
            rospy.logwarn_throttle(5.0, f"sweep {frame.message.header.seq}: {error}")
        else:
            self.fault("network", error)
        self._tell_failure(frame, error)

    def _publish_voxels(self, picture: _Picture) -> None:
        header, labels = picture.header, picture.labels
        if self._voxels.get_num_connections():
            self._voxels.publish(scene_messages.voxels_message(header, labels, self._grid, COLOURS))
        if self._markers.get_num_connections():
            self._markers.publish(scene_messages.markers_message(header, labels, self._grid, COLOURS, GROUND, LABELS))

    def _draw(self, picture: _Picture) -> Array:
        plan = picture.plan
        path = None if plan is None else plan.cells
        top = int((self.params["body_high"] + 1.2) / self._grid.voxel_size)
        return draw_scene(
            picture.labels, COLOURS, picture.occupancy, picture.found, path, picture.robot, picture.goal,
            self._lines(picture.report, plan), top=top,
        )  # fmt: skip

    def _lines(self, report: InferenceReport, plan: Optional[Plan]) -> List[str]:
        way = "no path" if plan is None else f"path {plan.length_m:.1f} m{'' if plan.reached else ' (not to the goal)'}"
        lines = [
            f"{report.model}, mode {report.mode}, {report.total_s * 1e3:.0f} ms, {report.bytes_up / 1e3:.1f} kB up, "
            f"{report.bytes_down / 1e3:.1f} kB down, {way}"
        ]
        if not self._completer.trained:
            lines.append("random weights: the scene is NOT completed, this is what the sweep hit")
        if report.fallback_reason:
            lines.append(f"ran on the robot: {report.fallback_reason}")
        return lines


NODE = AgrnavNode
