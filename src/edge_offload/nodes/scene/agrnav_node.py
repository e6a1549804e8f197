"""completes the scene around the robot from single LiDAR sweeps, on the robot or on a server, and plans through it.

Subscribes:
  lidar/points                  sensor_msgs/PointCloud2: sweeps, in the frame of a sensor that stands upright
  agrnav/goal                   geometry_msgs/PoseStamped: goal of the path (RViz: 2D Nav Goal). In the sensor's own
                                frame it stays relative to the robot; in another one it is looked up by tf
  offload/mode                  edge_offload_msgs/OffloadMode: mode of the next sweeps
  offload/bandwidth             edge_offload_msgs/Bandwidth: the link, while no inference uses it
  /tf, /tf_static               pose of the sensor in the frame of the goal

Publishes, exactly one of each for every processed sweep, with the sweep's stamp:
  agrnav/semantic_grid          edge_offload_msgs/SemanticGrid: the completed labels, encoded by Zstandard
  agrnav/occupancy              nav_msgs/OccupancyGrid: obstacles for the robot, seen from above
  agrnav/path                   nav_msgs/Path: A* to the goal; without poses if the goal cannot be reached
  offload/latency               edge_offload_msgs/Latency: the mode that ran, time by stage (s), bytes, energy (J)
  offload/forecast              edge_offload_msgs/Forecast: expected cost of the next sweep in each mode
with ~turns (see kapao_node): offload/turn_taken, offload/drop
and while they have subscribers:
  agrnav/voxels                 sensor_msgs/PointCloud2: full voxels with fields x y z rgb label
  agrnav/markers                visualization_msgs/MarkerArray: cubes by kind of object, without the ground
  agrnav/overlay                sensor_msgs/Image: sweep, scene and slice side by side; agrnav/overlay/compressed (JPEG)

For a planner that subscribes to /sdf_map/occupancy_inflate, remap agrnav/voxels to it.

With ~carry every sweep has its result before the next sweep. It is the network's own if that comes in time. Otherwise
it is the newest result, moved by odometry (tf from ~odometry_frame to the sensor) and updated by the sweep. If a fill
of columns, which needs no network, is expected to be better, that is the result. SemanticGrid.result names its origin.
There is one offload/latency per inference then, not per sweep. offload/drop reports the loss of accuracy by staleness
(s).

The network processes only the latest sweep, or the latest few at once (~in_flight, as in kapao_node). The server gets
the voxels of a sweep as bits, and returns labels. If it cannot be reached, the network runs on the robot;
/diagnostics and Latency.fallback_reason say why. With random weights nothing is completed: grid and slice then show the
voxels of the sweep, and the node says so.

Example:
  rosrun edge_offload agrnav_node _server:=tcp://gpu:5700 _mode:=server _sensor_height:=0.8
"""

from __future__ import annotations

import functools
import time
from typing import Any, Callable, Iterator, Mapping, Optional

import rospy
from sensor_msgs.msg import PointCloud2

from edge_offload.arrays import Array
from edge_offload.mode import Mode
from edge_offload.models.scenes.labels import GROUND
from edge_offload.models.sconet.baselines import label_sweep
from edge_offload.models.sconet.completer import VOXEL_SIZE_M, SceneCompleter
from edge_offload.models.voxels import VoxelGrid
from edge_offload.nodes.common.convert import cloud_to_points
from edge_offload.nodes.common.health import Losses
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.common.poses import TF_WAIT, Pose, PoseLookup
from edge_offload.nodes.common.topic_types import await_topic
from edge_offload.nodes.inference.cameras import SensorNode, SensorView
from edge_offload.nodes.inference.carry import CarryThread, Task
from edge_offload.nodes.inference.intake import BUFFER_BYTES, Arrivals, Frame, tf_time
from edge_offload.nodes.inference.latest_frame_queue import LatestFrameQueue
from edge_offload.nodes.inference.network import Network
from edge_offload.nodes.inference.offloaded import OffloadedNode
from edge_offload.nodes.inference.pictures import Painter
from edge_offload.nodes.lidar.sweeps import WorldSweeps
from edge_offload.nodes.scene import scene_report
from edge_offload.nodes.scene.goal import GoalIntake
from edge_offload.nodes.scene.scene_network import SceneNetwork
from edge_offload.nodes.scene.scene_outputs import SceneOutputs, ScenePicture
from edge_offload.perception.agreement import scene_drop
from edge_offload.perception.carry.odometry import SceneCarrier
from edge_offload.perception.scene.pipeline import PreparedSweep, ScenePipeline, SceneResult
from edge_offload.perception.scene.planning import GridPath, find_path, occupancy_slice
from edge_offload.runtime.carrying import Along, FrameLoop
from edge_offload.timing import InferenceReport


class SweepView(SensorView):
    """Work of the node on the sweeps of its LiDAR."""

    def start(self, network: Network) -> None:
        params = self.params
        self._network = network
        self._arrivals = Arrivals(self.health, "sweeps", params)
        self._recording = 0
        self._plan_source = 0
        self._completer: SceneCompleter = network.estimator
        self._pipeline = ScenePipeline(self._completer)
        self._grid: VoxelGrid = self._completer.grid
        if abs(params["voxel_size"] - VOXEL_SIZE_M) > 1e-6:
            self.health.warn("voxels", f"the network was trained on voxels of {VOXEL_SIZE_M} m, not on these")
        outputs = self._outputs = SceneOutputs(self._grid, params, self._completer.trained)
        self.painter = Painter(self, "agrnav/overlay", outputs.draw, 1, also_draw=outputs.publish_voxels)
        if params["carry"]:
            self._carrier = SceneCarrier(self._grid)
            self._odometry = PoseLookup(self.node.poses, "~odometry_frame", carried=True)
            self._losses = Losses("sweeps without odometry, scenes are held")
            self.health.watch("odometry", self._losses.describe_losses)
            task = Task(self._carrier, self._add_sweep, self._publish_along, self.publish_failure, scene_drop,
                        self._complete_locally if params["local"] else None, waits=self._waits_s)  # fmt: skip
            self.carry = CarryThread(task, params["slowdown"], self.health, self.fault)
            self.node.poses.add_listener(self.carry.wake)
        self._goal = GoalIntake(self, self.node.poses)
        self.painter.start()

    def subscribe(self, queue: LatestFrameQueue[Frame], queue_all: bool) -> None:
        self._sink = self.carry or queue
        remedy = "check the driver, or name its topic (input:=)"
        self._topic = await_topic("lidar/points", PointCloud2, "sweep", remedy, after_s=5.0)
        self.health.watch("sweeps", self._topic.explain_silence)
        self._sweeps = rospy.Subscriber(
            "lidar/points", PointCloud2, self.callback(self._on_sweep), queue_size=4, buff_size=BUFFER_BYTES
        )

    def close(self) -> None:
        if hasattr(self, "_sweeps"):
            self._sweeps.unregister()

    def refresh(self, queue: LatestFrameQueue[Frame]) -> None:
        self._arrivals.refresh()

    def _on_sweep(self, message: Any) -> None:
        self._topic.note_arrival()
        self._sink.offer_frame(self._arrivals.make_frame(message, time.monotonic()))

    def prepare_inputs(self, frame: Frame) -> PreparedSweep:
        """Implement :class:`.SensorStages`."""
        if frame.pixels is None:
            return self._pipeline.prepare(cloud_to_points(frame.message), frame.received_s)
        return self._pipeline.prepare_occupancy(frame.pixels, frame.received_s)

    def infer_inputs(self, frame: Frame, prepared: PreparedSweep) -> Any:
        """Implement :class:`.SensorStages`."""
        return self.node.run_network(frame, (prepared.occupancy,))

    def publish_result(self, frame: Frame, prepared: PreparedSweep, inferred: Any) -> None:
        """Implement :class:`.SensorStages`: publish a sweep's result, or have it carried to the newest sweep."""
        result = self._pipeline.finish(prepared, *inferred)
        self.health.clear("sweep")
        if self.carry is None:
            show = self._publish_scene(frame, result.labels, result.occupancy, result.report)
            self._account_sweep(frame, result)
            self.node.compare_result(frame, result.labels, scene_drop)
            show()
        else:
            self._account_sweep(frame, result)
            self.carry.take_in_result(functools.partial(self._take_in_scene, frame, result, self.carry.loop))

    def _account_sweep(self, frame: Frame, result: SceneResult) -> None:
        energy, measured = self.node.measure_energy(frame, result.report)
        self.node.account_frame(frame, result.inputs, result.report, energy, measured)

    def _add_sweep(self, frame: Frame) -> bool:
        """A sweep has come: the carrier sees it, and the network may (in the thread that carries)."""
        frame.pixels = self._grid.occupancy(cloud_to_points(frame.message))
        same = frame.instant.recording == self._recording
        if not same:
            self._carrier.clear_frames()
        self._recording = frame.instant.recording
        # looked up when it is needed: tf comes by another connection, and may come late
        follows = self._carrier.add_frame(frame.instant, frame.pixels, self._look_up_pose(frame).transform) and same
        self.node.queue.offer_frame(frame)
        return follows

    def _look_up_pose(self, frame: Frame) -> Pose:
        if frame.pose is None:
            header, fixed = frame.message.header, self.params["odometry_frame"]
            at = tf_time(header, frame.instant)
            frame.pose = self._odometry.look_up(fixed, header.frame_id, at, frame.received_s, frame.until_s)
        return frame.pose

    def _waits_s(self, frame: Frame) -> float:
        """Until when the result of a sweep may wait for odometry and for the place of the goal."""
        return max(self._look_up_pose(frame).waits_s, self._goal.waits_s(frame))

    def _complete_locally(self, frame: Frame) -> Array:
        return self._carrier.label_sweep(frame.instant)

    def _take_in_scene(self, frame: Frame, result: SceneResult, loop: FrameLoop[Frame, Array]) -> Iterator[None]:
        """The network's result for an earlier sweep (in the thread that carries)."""
        return loop.coming(result.labels, frame.instant, frame.received_s, result.report)

    def _publish_along(self, frame: Frame, along: Along[Array]) -> None:
        assert frame.pixels is not None
        pose = self._look_up_pose(frame)
        pose.settle_transform(wait=False)
        self._losses.note_loss(pose.cause)
        report = along.tag or InferenceReport(Mode.LOCAL, self._completer.name)
        labels = label_sweep(frame.pixels) if along.result is None else along.result
        self._publish_scene(frame, labels, frame.pixels, report, along)()

    def _publish_scene(
        self,
        frame: Frame,
        labels: Array,
        occupancy: Array,
        report: InferenceReport,
        along: Optional[Along[Array]] = None,
    ) -> Callable[[], object]:
        """The one result of a sweep. Returns what shows it to whoever watches."""
        header, params = frame.message.header, self.params
        if occupancy.any():
            self.health.clear("grid")
        else:
            self.health.warn("grid", "no point of the sweep is in the grid: is it in metres, does ~sensor_height fit?")
        free_slice = occupancy_slice(
            labels, self._grid, GROUND, params["body_low"], params["body_high"], params["step"]
        )
        place = self._goal.place_goal(frame, wait=self.carry is None)
        robot, goal, plan = self._grid.cell(0.0, 0.0), None if place is None else self._grid.cell(*place), None
        if goal is not None:
            plan = find_path(free_slice, self._grid.voxel_size, robot, goal, params["robot_radius"])
            self._report_plan(plan)
        self._outputs.publish_scene(header, labels, free_slice, plan, along)
        if along is None or along.source != self._plan_source:
            # what was carried along is no news to them
            self._plan_source = 0 if along is None else along.source
            self._report_to_server(header, labels, free_slice, plan, report)
        return lambda: self.painter.paint(
            ScenePicture(header, labels, occupancy, report, free_slice, plan, robot, goal)
        )

    def _report_to_server(
        self, header: Any, labels: Array, free_slice: Array, plan: Optional[GridPath], report: InferenceReport
    ) -> None:
        meta = {"stamp_ns": header.stamp.to_nsec(), "seq": header.seq, "frame_id": header.frame_id}
        meta.update(scene_report.scene_facts(self._grid, self._outputs.path_height_m))
        self._network.report_result(scene_report.encode_scene(labels, free_slice, plan), report, meta)

    def _report_plan(self, plan: Optional[GridPath]) -> None:
        if plan is None:
            self.health.warn("path", "no way out of where the robot is")
        elif not plan.reached:
            self.health.warn("path", f"the goal cannot be reached; the path of {plan.length_m:.1f} m ends near it")
        else:
            self.health.clear("path")
            self.health.value("path", f"{plan.length_m:.1f} m")

    def publish_failure(self, frame: Frame, error: BaseException) -> None:
        """The result of a sweep that could not be used: a grid and a slice in which nothing is known."""
        self._outputs.publish_nothing(frame.message.header)
        self.publish_error(frame, error)


class AgrnavNode(SensorNode):
    """See the module's docstring."""

    name = "agrnav_node"
    task = "scene"
    noun = "sweep"
    drain_s = 30.0
    declared = (
        *SceneNetwork.declared,
        *OffloadedNode.shared,
        Param("sensor_height", 1.73, "m, height of the LiDAR above the ground", low=0.0, high=5.0),
        Param("voxel_size", VOXEL_SIZE_M, "m, edge of a voxel; the grid is 32 of them high", low=0.02, high=1.0),
        Param(
            "cells", 256, "voxels along x and y, a multiple of 16; fewer cover less and cost less", low=16, high=1024
        ),
        Param(
            "extent", "around", "place of the grid: around the robot, or in front of it", choices=("around", "forward")
        ),
        Param("goal_x", 12.0, "m ahead in the sensor's frame: goal before the first message on agrnav/goal"),
        Param("goal_y", 0.0, "m to the left in the sensor's frame: goal before the first message on agrnav/goal"),
        Param("robot_radius", 0.35, "m, radius of the robot, for the path", low=0.0, high=5.0),
        Param("body_low", 0.25, "m above the ground: the robot drives over lower obstacles", low=0.0),
        Param("body_high", 1.6, "m above the ground: the robot drives under higher obstacles", low=0.1),
        Param("step", 0.2, "m: ground that rises more from cell to cell is an obstacle", low=0.0),
        Param("jpeg_quality", 85, "JPEG quality of agrnav/overlay/compressed", low=1, high=100),
        Param("carry", False, "give every sweep its result at once, carried along from the network's latest result"),
        Param("local", True, "with ~carry: fill columns without a network if that result is expected to be better"),
        Param("odometry_frame", "odom", "with ~carry: fixed tf frame of the odometry"),
        TF_WAIT,
    )

    def make_views(self) -> Mapping[str, SensorView]:
        return {"": SweepView(self, "")}

    def make_network(self) -> Network:
        return SceneNetwork(self.params, self.health)

    def warm_up(self) -> Optional[Any]:
        # made up, but not empty: mode split measures on it how far sweeps can be coded
        sweep = next(iter(WorldSweeps("street", 0, 0.0, 1.0, self.params["sensor_height"])))
        assert sweep.points is not None
        example = self._network.estimator.prepare(sweep.points)
        self._network.warm_up_on(self._mode, example, self.params["server_wait"])
        return example


NODE = AgrnavNode
