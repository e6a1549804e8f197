"""What a robot reports of a scene: the server's messages are the robot's, small, and nothing in a report is trusted."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

pytest.importorskip("rospy", reason="no ROS here")

from edge_offload.errors import BadInput
from edge_offload.execute.tensors import pack_tensors
from edge_offload.models.scenes.labels import GROUND, LABELS
from edge_offload.models.voxels import VoxelGrid, grid_around
from edge_offload.nodes.lidar.sweeps import WorldSweeps
from edge_offload.perception.scene.planning import find_path, occupancy_slice

pytestmark = pytest.mark.ros


def scene(grid: VoxelGrid):
    """Labels as full as a street is, their slice and a path."""
    labels = np.zeros(grid.shape, dtype=np.uint8)
    ground, (x, y, _) = 2, grid.shape
    labels[:, :, ground] = 9
    chance = np.random.default_rng(0)
    for _ in range(x * y // 400):
        x0, low = chance.integers(0, x - 4), chance.integers(0, y - 4)
        labels[x0 : x0 + 4, low : low + 4, ground + 1 : ground + chance.integers(3, 14)] = chance.integers(1, 19)
    slices = occupancy_slice(labels, grid, GROUND, 0.25, 1.6, 0.2)
    return labels, slices, find_path(slices, grid.voxel_size, grid.cell(0.0, 0.0), (x - 2, y // 2), 0.35)


def reported(grid: VoxelGrid):
    from edge_offload.nodes.scene import scene_report

    labels, slices, plan = scene(grid)
    return (
        scene_report.encode_scene(labels, slices, plan),
        dict(scene_report.scene_facts(grid, -1.6)),
        (labels, slices, plan),
    )


def test_the_messages_are_recreated_exactly():
    from std_msgs.msg import Header

    from edge_offload.nodes.scene import scene_messages, scene_report

    grid = grid_around(1.73, cells=64)
    outputs, meta, (labels, slices, plan) = reported(grid)
    assert plan is not None
    header = Header(frame_id="lidar_link")
    made = scene_report.rebuild_messages(outputs, meta, header, LABELS)
    assert made.grid == scene_messages.grid_message(header, labels, grid, LABELS)
    assert made.occupancy == scene_messages.slice_message(header, slices, grid)
    assert made.path == scene_messages.path_message(header, plan, grid, -1.6)
    without = scene_report.rebuild_messages(scene_report.encode_scene(labels, slices, None), meta, header, LABELS)
    assert without.path.poses == []


def test_a_sweep_of_a_street_is_reported_in_60_kilobytes():
    from edge_offload.nodes.scene import scene_report

    grid = grid_around(1.73)
    sweep = next(iter(WorldSweeps("street", 0, 0.0, 1.0, 1.73)))
    labels = grid.occupancy(sweep.points).astype(np.uint8) * 9
    assert labels.sum() > 10_000
    for full in (labels, scene(grid)[0]):
        slices = occupancy_slice(full, grid, GROUND, 0.25, 1.6, 0.2)
        _, buffers = pack_tensors(scene_report.encode_scene(full, slices, None))
        assert sum(memoryview(part).nbytes for part in buffers) < 60_000


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda outputs, meta: meta.update(shape=[64, 64]), "size of its grid"),
        (lambda outputs, meta: meta.update(shape=[4096, 4096, 4096]), "grid of"),
        (lambda outputs, meta: meta.update(shape=[64, 64, -32]), "size of its grid"),
        (lambda outputs, meta: meta.update(shape=[32, 64, 32]), "does not hold"),
        (lambda outputs, meta: meta.update(origin="here"), "origin"),
        (lambda outputs, meta: meta.update(origin=[0.0, math.inf, 0.0]), "lengths"),
        (lambda outputs, meta: meta.update(voxel_size=0.0), "lengths"),
        (lambda outputs, meta: meta.update(voxel_size=None), "lengths"),
        (lambda outputs, meta: outputs.pop(), "3 outputs"),
        (lambda outputs, meta: outputs.__setitem__(0, outputs[0][:-9]), "decoded"),
        (lambda outputs, meta: outputs.__setitem__(0, torch.zeros(9, dtype=torch.uint8)), "coded grid"),
        (lambda outputs, meta: outputs.__setitem__(1, torch.zeros(9)), "no coded grid"),
        (lambda outputs, meta: outputs.__setitem__(2, torch.full((3, 2), 64, dtype=torch.int32)), "leaves its grid"),
        (lambda outputs, meta: outputs.__setitem__(2, torch.full((3, 2), -1, dtype=torch.int32)), "leaves its grid"),
        (lambda outputs, meta: outputs.__setitem__(2, torch.zeros(3, 3, dtype=torch.int32)), "list of cells"),
    ],
)
def test_a_report_that_cannot_be_is_refused(spoil, message):
    from std_msgs.msg import Header

    from edge_offload.nodes.scene import scene_report

    outputs, meta, _ = reported(grid_around(1.73, cells=64))
    spoil(outputs, meta)
    with pytest.raises(BadInput, match=message):
        scene_report.rebuild_messages(outputs, meta, Header(), LABELS)
