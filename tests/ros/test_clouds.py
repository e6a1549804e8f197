"""Clouds of any layout: the same points as ROS's own reader gives, without beams that had no echo."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("sensor_msgs.msg", reason="no ROS messages here")
pytest.importorskip("sensor_msgs.point_cloud2", reason="ROS's own reader of clouds is not here")

from sensor_msgs import point_cloud2
from sensor_msgs.msg import PointCloud2, PointField
from std_msgs.msg import Header

from edge_offload.errors import BadInput
from edge_offload.models.voxels import grid_around
from edge_offload.nodes.common.convert import cloud_to_points

pytestmark = pytest.mark.ros

KINDS = {
    PointField.INT8: "i1",
    PointField.UINT8: "u1",
    PointField.INT16: "i2",
    PointField.UINT16: "u2",
    PointField.INT32: "i4",
    PointField.UINT32: "u4",
    PointField.FLOAT32: "f4",
    PointField.FLOAT64: "f8",
}
NO_RETURNS = (
    (np.nan, np.nan, np.nan),
    (0, 0, 0),
    (np.inf, -np.inf, 0),
    (5, np.nan, 1),
    (0.02, -0.03, 0.0),
    (0, 0, 0.036),
)


@st.composite
def clouds(draw):
    """A cloud, and the same with a right row_step for ROS's own reader."""
    names = ["x", "y", "z", *draw(st.lists(st.sampled_from(["intensity", "range", "ring", "t", "rgb"]), unique=True))]
    fields, offset = [], draw(st.integers(0, 3))
    for name in draw(st.permutations(names)):
        kind = draw(st.sampled_from(sorted(KINDS) if name not in "xyz" or draw(st.booleans()) else [7, 8]))
        # some drivers leave the count at 0; histograms and the like have more than one element
        count = 1 if name in "xyz" else draw(st.sampled_from([1, 1, 2, 3]))
        fields.append(PointField(name, offset, kind, count))
        offset += count * np.dtype(KINDS[kind]).itemsize + draw(st.integers(0, 5))
    step, big = offset + draw(st.integers(0, 9)), draw(st.booleans())
    width, height = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    chance = np.random.default_rng(draw(st.integers(0, 2**16)))
    layout = np.dtype(
        {
            "names": [field.name for field in fields],
            "formats": [(">" if big else "<") + KINDS[field.datatype] for field in fields],
            "offsets": [field.offset for field in fields],
            "itemsize": step,
        }
    )
    # what lies between the fields is noise
    data = chance.integers(0, 256, height * width * step, dtype=np.uint8).view(layout).copy()
    data = np.frombuffer(bytearray(data.tobytes()), dtype=layout)
    for name in layout.names:
        data[name] = chance.integers(0, 100, len(data))
    if all(layout[name].kind == "f" for name in "xyz"):
        for index in range(len(data)):
            if chance.random() < 0.3:
                for name, value in zip("xyz", NO_RETURNS[chance.integers(len(NO_RETURNS))]):
                    data[name][index] = value
    if "intensity" in layout.names and layout["intensity"].kind == "f" and draw(st.booleans()):
        data["intensity"][:1] = np.nan
    fields = draw(st.permutations(fields))
    line, padding = width * step, draw(st.sampled_from([0, 0, 7]))
    rows = [data.tobytes()[row * line : (row + 1) * line] + bytes([255]) * padding for row in range(height)]
    packed = b"".join(rows)
    right = PointCloud2(Header(), height, width, list(fields), big, step, line + padding, packed, False)
    wrong = line + padding if padding and height > 1 else draw(st.sampled_from([line + padding, 0, step, width, 10**6]))
    if height == 1 and wrong > line:
        wrong = 0
    uncounted = draw(st.sampled_from([0, 1, 1]))
    stated = [PointField(f.name, f.offset, f.datatype, f.count if f.count > 1 else uncounted) for f in fields]
    return PointCloud2(Header(), height, width, stated, big, step, wrong, packed, False), right


def expected(message: PointCloud2) -> np.ndarray:
    """The points by ROS's own reader, without those that are no returns."""
    # the first element of each field is what it is about
    names = [name for field in sorted(message.fields, key=lambda f: f.offset) for name in (field.name,) * field.count]
    made = []
    for values in point_cloud2.read_points(message, set(names)):
        point = dict(reversed(list(zip(names, values))))
        place = [point[name] for name in "xyz"]
        if np.isfinite(place).all() and np.linalg.norm(place) >= 0.1 and point.get("range", 1) > 0:
            intensity = point.get("intensity", 0)
            made.append([*place, intensity if np.isfinite(intensity) else 0])
    return np.array(made, dtype=np.float32).reshape(-1, 4)


@settings(deadline=None, max_examples=300)
@given(clouds())
def test_a_cloud_of_any_layout_has_the_points_that_ros_reads(pair):
    message, right = pair
    np.testing.assert_array_equal(cloud_to_points(message), expected(right))


XYZ = [PointField(name, 4 * index, PointField.FLOAT32, 1) for index, name in enumerate("xyz")]


def plain(data: bytes, width: int, height: int, row_step: int, fields=None) -> PointCloud2:
    return PointCloud2(Header(), height, width, XYZ if fields is None else fields, False, 12, row_step, data, False)


POINTS = np.arange(1, 25, dtype="<f4").reshape(8, 3)


@pytest.mark.parametrize("row_step", [0, 1, 4, 12, 48, 96, 2**31])
@pytest.mark.parametrize(("width", "height"), [(8, 1), (4, 2), (1, 8)])
def test_a_row_step_that_is_not_right_is_not_needed(width, height, row_step):
    np.testing.assert_array_equal(cloud_to_points(plain(POINTS.tobytes(), width, height, row_step))[:, :3], POINTS)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (plain(POINTS.tobytes() + bytes(8), 4, 2, 0), "state row_step"),
        (plain(POINTS.tobytes()[:-1], 4, 2, 0), "truncated"),
        (plain(POINTS.tobytes(), 8, 0, 96), "height 1"),
        (plain(POINTS.tobytes(), 0, 0, 96), "states width and height"),
        (plain(POINTS.tobytes(), 8, 1, 96, [PointField("x", 0, 9, 1), *XYZ[1:]]), "datatype 9"),
    ],
)
def test_an_incomplete_layout_is_refused_with_a_message(message, expected):
    with pytest.raises(BadInput, match=expected):
        cloud_to_points(message)


def test_a_field_that_is_named_twice_counts_once():
    np.testing.assert_array_equal(
        cloud_to_points(plain(POINTS.tobytes(), 8, 1, 96, [*XYZ, PointField("x", 4, 7, 1)]))[:, :3], POINTS
    )


@pytest.mark.parametrize("place", NO_RETURNS)
def test_a_beam_without_an_echo_is_no_obstacle(place):
    data = np.array([place] * 8, dtype="<f4").tobytes()
    points = cloud_to_points(plain(data, 8, 1, 96))
    assert not grid_around(0.3).occupancy(points).any()
