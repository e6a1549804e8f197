"""A scene as messages: labels, coloured voxels and a path."""

from __future__ import annotations

import numpy as np
import pytest

from edge_offload.errors import BadInput
from edge_offload.models.scenes.labels import COLOURS, LABELS, VALUE
from edge_offload.models.voxels import VoxelGrid
from edge_offload.perception.scene.planning import find_path


def test_labels_off_the_wire_are_checked_before_they_are_unpacked(master):
    from std_msgs.msg import Header

    from edge_offload.nodes.scene.scene_messages import grid_message, labels_of

    grid = VoxelGrid(shape=(16, 16, 32))
    labels = np.random.default_rng(0).integers(0, 20, grid.shape).astype(np.uint8)
    message = grid_message(Header(), labels, grid, LABELS)
    np.testing.assert_array_equal(labels_of(message), labels)
    for field, value in (
        ("size_x", 17),
        ("size_x", 0),
        ("size_x", 2**31),
        ("encoding", 9),
        ("encoding", 0),
        ("data", b"nonsense"),
        ("data", message.data[:40]),
    ):
        wrong = grid_message(Header(), labels, grid, LABELS)
        setattr(wrong, field, value)
        with pytest.raises(BadInput):
            labels_of(wrong)


def test_colours_and_plan_fit_the_messages(master):
    from std_msgs.msg import Header

    from edge_offload.nodes.scene.scene_messages import path_message, voxels_message

    grid = VoxelGrid((0.0, -1.6, -0.4), 0.2, (16, 16, 32))
    labels = np.zeros(grid.shape, dtype=np.uint8)
    labels[3, 8, 2] = VALUE["person"]
    message = voxels_message(Header(), labels, grid, COLOURS)
    row = np.frombuffer(message.data, dtype=[("xyz", "<f4", 3), ("rgb", "<u4"), ("label", "<u4")])[0]
    np.testing.assert_allclose(row["xyz"], [0.7, 0.1, 0.1], atol=1e-6)
    assert row["label"] == VALUE["person"]
    red, green, blue = COLOURS[VALUE["person"]].tolist()
    assert row["rgb"] == red * 65536 + green * 256 + blue
    plan = find_path(np.zeros((16, 16), dtype=np.int8), 0.2, (0, 8), (10, 8), 0.1)
    path = path_message(Header(), plan, grid, -0.3)
    assert [pose.pose.position.x for pose in path.poses] == pytest.approx([0.1 + 0.2 * i for i in range(11)])
    assert path.poses[0].pose.orientation.w == pytest.approx(1.0)
    assert path_message(Header(), None, grid, 0.0).poses == []
