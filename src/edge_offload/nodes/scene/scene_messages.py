"""Messages of a completed scene: label grid, slice for planners, occupied voxels, markers, path."""

from __future__ import annotations

from typing import Any, Optional, Sequence

import numpy as np
import zstandard
from geometry_msgs.msg import Point, Pose, PoseStamped, Quaternion, Vector3
from nav_msgs.msg import OccupancyGrid, Path
from sensor_msgs.msg import PointCloud2, PointField
from std_msgs.msg import ColorRGBA
from visualization_msgs.msg import Marker, MarkerArray

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.models.voxels import MAX_VOXELS, VoxelGrid
from edge_offload.nodes.inference.compose import copy_header, origin_message
from edge_offload.perception.scene.planning import GridPath
from edge_offload.runtime.carrying import Along
from edge_offload_msgs.msg import SemanticGrid


def grid_message(
    header: Any, labels: Array, grid: VoxelGrid, names: Sequence[str], along: Optional[Along[Any]] = None
) -> SemanticGrid:
    """Labels uint8 [x, y, z] as one Zstandard frame; ``along``: unless they are fresh."""
    coded = zstandard.ZstdCompressor(level=1).compress(np.ascontiguousarray(labels).tobytes())
    size_x, size_y, size_z = labels.shape
    return SemanticGrid(
        header=copy_header(header),
        origin=Point(*grid.origin),
        voxel_size=grid.voxel_size,
        size_x=size_x,
        size_y=size_y,
        size_z=size_z,
        labels=list(names),
        encoding=SemanticGrid.ZSTD,
        data=coded,
        result=origin_message(header, along),
    )


def labels_of(message: Any) -> Array:
    """Labels uint8 [x, y, z] in a ``SemanticGrid``.

    Raises:
        BadInput: an encoding that is not known, or data that is not what the sizes say.
    """
    shape = (message.size_x, message.size_y, message.size_z)
    size = message.size_x * message.size_y * message.size_z
    if not 0 < size <= MAX_VOXELS:
        raise BadInput(f"semantic grid of {'x'.join(map(str, shape))} voxels")
    data = bytes(message.data)
    if message.encoding == SemanticGrid.ZSTD:
        try:
            stated = zstandard.frame_content_size(data)
            if stated != size:
                raise BadInput(f"semantic grid states {stated} bytes for {size} voxels")
            data = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
        except zstandard.ZstdError as error:
            raise BadInput(f"semantic grid cannot be decoded: {error}") from error
    elif message.encoding != SemanticGrid.RAW:
        raise BadInput(f"semantic grid of encoding {message.encoding}")
    if len(data) != size:
        raise BadInput(f"semantic grid of {size} voxels has {len(data)} bytes")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def slice_message(header: Any, free_slice: Array, grid: VoxelGrid) -> OccupancyGrid:
    """An int8 [x, y] slice as an ``OccupancyGrid`` (rows along y) in the frame of the header."""
    message = OccupancyGrid(header=copy_header(header))
    message.info.map_load_time = header.stamp
    message.info.resolution = grid.voxel_size
    message.info.width, message.info.height = free_slice.shape
    x, y, z = grid.origin
    message.info.origin = Pose(Point(x, y, z), Quaternion(0, 0, 0, 1))
    message.data = np.ascontiguousarray(free_slice.T).reshape(-1).tolist()
    return message


def voxels_message(header: Any, labels: Array, grid: VoxelGrid, colours: Array) -> PointCloud2:
    """The centres of the full voxels as a cloud with fields x y z rgb (float32) and label (uint32)."""
    occupied = np.argwhere(labels > 0)
    kinds = labels[tuple(occupied.T)]
    layout = np.dtype([("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("rgb", "<u4"), ("label", "<u4")])
    cloud = np.zeros(len(occupied), dtype=layout)
    centres = grid.centres(occupied)
    for column, name in enumerate("xyz"):
        cloud[name] = centres[:, column]
    rgb = colours[np.minimum(kinds, len(colours) - 1)].astype(np.uint32)
    cloud["rgb"] = rgb[:, 0] << 16 | rgb[:, 1] << 8 | rgb[:, 2]
    cloud["label"] = kinds
    fields = [
        PointField(name, 4 * index, PointField.UINT32 if name == "label" else PointField.FLOAT32, 1)
        for index, name in enumerate(layout.names or ())
    ]
    step = layout.itemsize
    return PointCloud2(
        copy_header(header), 1, len(cloud), fields, False, step, step * len(cloud), cloud.tobytes(), True
    )


def markers_message(
    header: Any, labels: Array, grid: VoxelGrid, colours: Array, ground: Sequence[int], names: Sequence[str]
) -> MarkerArray:
    """One list of cubes per kind of object, ground left out (the slice shows it); what was shown before is removed."""
    markers = [Marker(header=copy_header(header), action=Marker.DELETEALL)]
    for value in np.unique(labels).tolist():
        if value == 0 or value in ground or value >= len(names):
            continue
        marker = Marker(header=copy_header(header), ns=names[value], id=value, type=Marker.CUBE_LIST, action=Marker.ADD)
        marker.pose.orientation.w = 1.0
        marker.scale = Vector3(grid.voxel_size, grid.voxel_size, grid.voxel_size)
        red, green, blue = (colours[value] / 255).tolist()
        marker.color = ColorRGBA(red, green, blue, 0.9)
        marker.points = [Point(*centre) for centre in grid.centres(np.argwhere(labels == value)).tolist()]
        markers.append(marker)
    return MarkerArray(markers=markers)


def path_message(header: Any, plan: Optional[GridPath], grid: VoxelGrid, height_m: float) -> Path:
    """The plan as a ``Path`` at height ``height_m`` of the header's frame; without poses if there is none."""
    message = Path(header=copy_header(header))
    if plan is None:
        return message
    places = np.asarray(grid.origin[:2]) + (plan.cells + 0.5) * grid.voxel_size
    ahead = np.diff(places, axis=0, append=places[-1:])
    if len(ahead) > 1:
        ahead[-1] = ahead[-2]
    for (x, y), yaw in zip(places.tolist(), np.arctan2(ahead[:, 1], ahead[:, 0]).tolist()):
        turn = Quaternion(0.0, 0.0, float(np.sin(yaw / 2)), float(np.cos(yaw / 2)))
        message.poses.append(PoseStamped(copy_header(header), Pose(Point(x, y, height_m), turn)))
    return message
