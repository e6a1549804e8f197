"""Publishers of agrnav_node: one message per topic for every sweep, and pictures while they have subscribers."""

from __future__ import annotations

from typing import Any, List, Mapping, NamedTuple, Optional

import numpy as np
import rospy
from nav_msgs.msg import OccupancyGrid, Path
from sensor_msgs.msg import PointCloud2
from visualization_msgs.msg import MarkerArray

from edge_offload.arrays import Array
from edge_offload.models.scenes.labels import COLOURS, GROUND, LABELS
from edge_offload.models.voxels import VoxelGrid
from edge_offload.nodes.inference.compose import NOTHING
from edge_offload.nodes.scene import scene_messages
from edge_offload.perception.scene.planning import Cell, GridPath
from edge_offload.perception.scene.view import draw_scene
from edge_offload.runtime.carrying import Along
from edge_offload.timing import InferenceReport
from edge_offload_msgs.msg import SemanticGrid


class ScenePicture(NamedTuple):
    """Content of a picture: a completed sweep, its slice free or not, the path from robot to goal (cells)."""

    header: Any
    labels: Array
    occupancy: Array
    report: InferenceReport
    free_slice: Any
    plan: Optional[GridPath]
    robot: Cell
    goal: Optional[Cell]


class SceneOutputs:
    """The topics of scenes.

    Args:
        grid: where the voxels lie about the sensor.
        params: of the node: ``sensor_height`` and ``body_high``, m.
        trained: whether the network's weights are.
    """

    def __init__(self, grid: VoxelGrid, params: Mapping[str, Any], trained: bool) -> None:
        self._grid, self._trained = grid, trained
        self.path_height_m = -params["sensor_height"] + 0.1
        self._top = int((params["body_high"] + 1.2) / grid.voxel_size)
        self._semantic = rospy.Publisher("agrnav/semantic_grid", SemanticGrid, queue_size=4)
        self._occupancy = rospy.Publisher("agrnav/occupancy", OccupancyGrid, queue_size=4)
        self._path = rospy.Publisher("agrnav/path", Path, queue_size=4)
        self._voxels = rospy.Publisher("agrnav/voxels", PointCloud2, queue_size=2)
        self._markers = rospy.Publisher("agrnav/markers", MarkerArray, queue_size=2)

    def publish_scene(
        self, header: Any, labels: Array, free_slice: Array, plan: Optional[GridPath], along: Optional[Along[Array]]
    ) -> None:
        """The one result of a sweep: labels [x, y, z], the slice [x, y] and the path; ``along``: unless it is fresh."""
        self._semantic.publish(scene_messages.grid_message(header, labels, self._grid, LABELS, along))
        self._occupancy.publish(scene_messages.slice_message(header, free_slice, self._grid))
        self._path.publish(scene_messages.path_message(header, plan, self._grid, self.path_height_m))

    def publish_nothing(self, header: Any) -> None:
        """The result of a sweep that could not be used: a grid and a slice in which nothing is known."""
        labels = np.zeros(self._grid.shape, dtype=np.uint8)
        self._semantic.publish(scene_messages.grid_message(header, labels, self._grid, LABELS, NOTHING))
        unknown = np.full(self._grid.shape[:2], -1, dtype=np.int8)
        self._occupancy.publish(scene_messages.slice_message(header, unknown, self._grid))
        self._path.publish(scene_messages.path_message(header, None, self._grid, 0.0))

    def publish_voxels(self, picture: ScenePicture) -> None:
        """Full voxels and cubes, while somebody listens."""
        header, labels = picture.header, picture.labels
        if self._voxels.get_num_connections():
            self._voxels.publish(scene_messages.voxels_message(header, labels, self._grid, COLOURS))
        if self._markers.get_num_connections():
            self._markers.publish(scene_messages.markers_message(header, labels, self._grid, COLOURS, GROUND, LABELS))

    def draw(self, picture: ScenePicture) -> Array:
        """The overlay: uint8 [h, w, 3] BGR."""
        plan = picture.plan
        path = None if plan is None else plan.cells
        return draw_scene(
            picture.labels, COLOURS, picture.occupancy, picture.free_slice, path, picture.robot, picture.goal,
            self._status_lines(picture.report, plan), top=self._top,
        )  # fmt: skip

    def _status_lines(self, report: InferenceReport, plan: Optional[GridPath]) -> List[str]:
        way = "no path" if plan is None else f"path {plan.length_m:.1f} m{'' if plan.reached else ' (not to the goal)'}"
        lines = [
            f"{report.model}, mode {report.mode}, {report.total_s * 1e3:.0f} ms, {report.bytes_up / 1e3:.1f} kB up, "
            f"{report.bytes_down / 1e3:.1f} kB down, {way}"
        ]
        if not self._trained:
            lines.append("random weights: the scene is NOT completed, this is what the sweep hit")
        if report.fallback_reason:
            lines.append(f"ran on the robot: {report.fallback_reason}")
        return lines
