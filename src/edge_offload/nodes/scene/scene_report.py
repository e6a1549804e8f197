"""Report of a completed scene for the server's operator: encoded on the robot, checked and published on the server.

A report has three outputs: the labels and the slice, each as one Zstandard frame, and the cells of the path. It has
some tens of kilobytes per sweep, where the network's own output has megabytes. The server trusts no field of it.
"""

from __future__ import annotations

import math
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch
import zstandard
from std_msgs.msg import Header

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.models.voxels import MAX_VOXELS, VoxelGrid
from edge_offload.nodes.scene import scene_messages
from edge_offload.perception.scene.planning import GridPath


class SceneMessages(NamedTuple):
    """Messages of one scene."""

    grid: Any
    occupancy: Any
    path: Any


def encode_scene(labels: Array, free_slice: Array, plan: Optional[GridPath]) -> List[torch.Tensor]:
    """Labels uint8 [x, y, z], slice int8 [x, y] and path as the outputs of a report."""
    coder = zstandard.ZstdCompressor(level=9)  # a sweep is coded twice a second at most
    frames = [coder.compress(np.ascontiguousarray(array).tobytes()) for array in (labels, free_slice)]
    cells = np.zeros((0, 2), dtype=np.int32) if plan is None else np.asarray(plan.cells, dtype=np.int32)
    outputs = [torch.frombuffer(bytearray(frame), dtype=torch.uint8) for frame in frames]
    return [*outputs, torch.from_numpy(np.ascontiguousarray(cells))]


def scene_facts(grid: VoxelGrid, path_height_m: float) -> Mapping[str, Any]:
    """Return the grid's entries of a report's meta."""
    return {
        "shape": [int(side) for side in grid.shape],
        "origin": [float(place) for place in grid.origin],
        "voxel_size": float(grid.voxel_size),
        "path_height": float(path_height_m),
    }


def rebuild_messages(
    outputs: Sequence[torch.Tensor], meta: Mapping[str, Any], header: Header, names: Sequence[str]
) -> Any:
    """The messages that the robot published, made again.

    Raises:
        BadInput: the report is none of a scene, or says what cannot be.
    """
    shape, grid, height_m = _parse_grid(meta)
    if len(outputs) != 3:
        raise BadInput(f"a scene's report has 3 outputs, not {len(outputs)}")
    labels = _decode_output(outputs[0], shape, np.uint8)
    free_slice = _decode_output(outputs[1], shape[:2], np.int8)
    if free_slice.min() < -1 or free_slice.max() > 100:
        raise BadInput("a slice has values that are none of an occupancy grid")
    cells = outputs[2]
    if cells.dtype is not torch.int32 or cells.dim() != 2 or cells.shape[1] != 2 or len(cells) > 65536:
        raise BadInput("a path is no list of cells")
    path = cells.numpy()
    if len(path) and (path.min() < 0 or (path >= shape[:2]).any()):
        raise BadInput("a path leaves its grid")
    plan = GridPath(path, math.nan, (0, 0), False) if len(path) else None
    return SceneMessages(
        scene_messages.grid_message(header, labels, grid, names),
        scene_messages.slice_message(header, free_slice, grid),
        scene_messages.path_message(header, plan, grid, height_m),
    )


def _parse_grid(meta: Mapping[str, Any]) -> Tuple[Tuple[int, int, int], VoxelGrid, float]:
    shape, origin = meta.get("shape"), meta.get("origin")
    numbers: Tuple[Any, Any] = (meta.get("voxel_size"), meta.get("path_height"))
    if not isinstance(shape, list) or len(shape) != 3 or not all(type(side) is int and side > 0 for side in shape):
        raise BadInput("a scene's report says no size of its grid")
    if math.prod(shape) > MAX_VOXELS:
        raise BadInput(f"a report is about a grid of {'x'.join(map(str, shape))} voxels")
    if not isinstance(origin, list) or len(origin) != 3:
        raise BadInput("a scene's report says no origin of its grid")
    if not all(type(value) is float and abs(value) <= 1e5 for value in (*origin, *numbers)) or numbers[0] <= 0:
        raise BadInput("a scene's report says lengths that cannot be")
    sides = (shape[0], shape[1], shape[2])
    return sides, VoxelGrid((origin[0], origin[1], origin[2]), numbers[0], sides), numbers[1]


def _decode_output(output: torch.Tensor, shape: Sequence[int], kind: Any) -> Array:
    if output.dtype is not torch.uint8 or output.dim() != 1:
        raise BadInput("a scene's report holds no coded grid")
    data, size = output.numpy().tobytes(), math.prod(shape)
    try:
        if zstandard.frame_content_size(data) != size:
            raise BadInput(f"a coded grid does not hold {size} values")
        plain = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
    except zstandard.ZstdError as error:
        raise BadInput(f"a coded grid cannot be decoded: {error}") from error
    return np.frombuffer(plain, dtype=kind).reshape(shape)
