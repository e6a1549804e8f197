"""agrnav_node as a user meets it: sweeps in; labels, slice, path and cost out, from the robot or from a server."""

from __future__ import annotations

import json
import signal
import sys
import time

import numpy as np
import pytest
import torch

from edge_offload.models.scenes.labels import GROUND, LABELS
from edge_offload.models.voxels import VoxelGrid, grid_around
from edge_offload.perception.scene.planning import OCCUPIED
from tests.ros.ros_rig import free_port, wait_for, wait_for_readers

CELLS = 64


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Weights in a file; what they find does not matter, as long as robot and server find the same."""
    from edge_offload.models.sconet.completer import save_weights
    from edge_offload.models.sconet.network import SCONet

    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("weights") / "sconet.safetensors"
    save_weights(SCONet(), file, {})
    return str(file)


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """Weights of a network that finds everything empty: its results are what the sweep hit, and can be foretold."""
    from edge_offload.models.sconet.completer import save_weights
    from edge_offload.models.sconet.network import SCONet

    network = SCONet()
    with torch.no_grad():
        network.head.classify.weight.zero_()
        network.head.classify.bias.copy_(torch.eye(20)[0])
    file = tmp_path_factory.mktemp("weights") / "empty.safetensors"
    save_weights(network, file, {})
    return str(file)


def cloud(points: np.ndarray, stamp_ns: int, frame: str = "lidar_link"):
    import rospy
    from std_msgs.msg import Header

    from edge_offload.nodes.common.convert import points_to_cloud

    header = Header(stamp=rospy.Time(*divmod(stamp_ns, 10**9)), frame_id=frame)
    return points_to_cloud(np.c_[points, np.zeros(len(points))].astype(np.float32), header)


def floor_and_wall() -> np.ndarray:
    """Floor around a sensor 0.5 m above it, and a wall 2 m ahead that leaves a gap to the left."""
    x, y = np.meshgrid(np.arange(-6, 6, 0.1), np.arange(-6, 6, 0.1))
    floor = np.c_[x.ravel(), y.ravel(), np.full(x.size, -0.5)]
    y, z = np.meshgrid(np.arange(-6, 2, 0.1), np.arange(-0.5, 1.5, 0.1))
    return np.r_[floor, np.c_[np.full(y.size, 2.05), y.ravel(), z.ravel()]]


class Outputs:
    """Everything that the node publishes."""

    def __init__(self, graph) -> None:
        from nav_msgs.msg import OccupancyGrid, Path
        from sensor_msgs.msg import Image, PointCloud2
        from visualization_msgs.msg import MarkerArray

        from edge_offload_msgs.msg import Latency, SemanticGrid

        self.grids = graph.listen("agrnav/semantic_grid", SemanticGrid)
        self.slices = graph.listen("agrnav/occupancy", OccupancyGrid)
        self.paths = graph.listen("agrnav/path", Path)
        self.costs = graph.listen("offload/latency", Latency)
        self.voxels = graph.listen("agrnav/voxels", PointCloud2)
        self.markers = graph.listen("agrnav/markers", MarkerArray)
        self.overlays = graph.listen("agrnav/overlay", Image)


def feed(publisher, points, stamp_ns: int, done, what: str):
    """Publish the same sweep under new stamps until ``done()``; the last stamp."""

    def once():
        nonlocal stamp_ns
        stamp_ns += 1_000_000
        publisher.publish(cloud(points, stamp_ns))
        time.sleep(0.2)
        return done()

    wait_for(once, what, 120)
    return stamp_ns


def test_a_sweep_becomes_labels_a_slice_and_a_path_around_the_wall(graph, empty):
    from sensor_msgs.msg import PointCloud2

    from edge_offload.nodes.common.convert import cloud_to_points, image_to_bgr
    from edge_offload.nodes.scene.scene_messages import labels_of

    out = Outputs(graph)
    options = {"weights": empty}
    node = graph.node(
        "agrnav_node", cells=CELLS, sensor_height=0.5, goal_x=4.0, goal_y=0.0, threads=1, model_options=options
    )
    sweeps = graph.publisher("lidar/points", PointCloud2)
    points = floor_and_wall()
    everything = (out.grids, out.slices, out.paths, out.costs, out.voxels, out.markers, out.overlays)
    feed(sweeps, points, 10**9, lambda: all(len(topic) for topic in everything), "one message on every topic")

    message = out.grids.messages[-1]
    stamp = message.header.stamp.to_nsec()
    grid = grid_around(0.5, cells=CELLS)
    assert (message.size_x, message.size_y, message.size_z) == grid.shape
    assert (message.origin.x, message.origin.y, message.origin.z) == pytest.approx(grid.origin)
    assert message.voxel_size == pytest.approx(0.2)
    assert tuple(message.labels) == LABELS
    labels = labels_of(message)
    assert (labels[grid.occupancy(points) > 0] > 0).all(), "what was hit is full"
    assert len(message.data) < labels.size / 20, "the labels travel compressed"

    wait_for(lambda: stamp in out.slices.by_stamp(), "the slice of the same sweep")
    flat = out.slices.by_stamp()[stamp][0]
    seen = np.array(flat.data, dtype=np.int8).reshape(flat.info.height, flat.info.width)
    robot = grid.cell(0.0, 0.0)
    ahead = grid.cell(2.1, -1.0)
    assert seen[ahead[1], ahead[0]] == OCCUPIED
    assert seen[robot[1], robot[0]] == 0
    assert flat.info.origin.position.x == pytest.approx(grid.origin[0])

    wait_for(lambda: stamp in out.paths.by_stamp(), "the path of the same sweep")
    places = [(pose.pose.position.x, pose.pose.position.y) for pose in out.paths.by_stamp()[stamp][0].poses]
    assert np.hypot(*places[0]) < 0.3
    assert np.hypot(places[-1][0] - 4.0, places[-1][1]) < 0.3
    crossing = [y for x, y in places if abs(x - 2.05) < 0.15]
    assert min(crossing) > 2.0 + 0.3, "around the wall, as far from it as the robot is wide"

    cost = out.costs.by_stamp()[stamp]
    assert len(cost) == 1
    assert (cost[0].mode, cost[0].model, cost[0].error) == ("local", "sconet", "")
    assert cost[0].compute_robot.to_sec() > 0
    full = cloud_to_points(out.voxels.messages[-1])
    assert len(full) >= grid.occupancy(points).sum()
    kinds = {marker.ns for marker in out.markers.messages[-1].markers if marker.ns}
    assert kinds
    assert not kinds & {LABELS[value] for value in GROUND}
    assert image_to_bgr(out.overlays.messages[-1]).std() > 10
    assert node.running


def test_random_weights_are_named_on_diagnostics(graph):
    from edge_offload.models.sconet.completer import SHIPPED

    if SHIPPED.exists():
        pytest.skip("weights are shipped")
    node = graph.node("agrnav_node", cells=CELLS, threads=1)
    wait_for(lambda: graph.has_status(node, 1, "not completed"), "the warning that nothing is completed")


def test_a_server_computes_and_when_it_dies_the_robot_does(graph, weights):
    from nav_msgs.msg import OccupancyGrid, Path
    from sensor_msgs.msg import PointCloud2

    from edge_offload.nodes.scene.scene_messages import labels_of
    from edge_offload_msgs.msg import SemanticGrid

    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    server = graph.node(
        "offload_server_node",
        bind=address,
        threads=1,
        keys=str(graph.keys),
        options={"sconet": {"weights": weights}},
    )
    out = Outputs(graph)
    shown = [graph.listen(f"server/agrnav/{topic}", kind) for topic, kind in (
        ("semantic_grid", SemanticGrid), ("occupancy", OccupancyGrid), ("path", Path)
    )]  # fmt: skip
    graph.node(
        "agrnav_node",
        cells=CELLS,
        sensor_height=0.5,
        threads=1,
        mode="server",
        server=address,
        keys=str(graph.keys),
        server_wait=60,
        model_options={"weights": weights},
    )
    sweeps = graph.publisher("lidar/points", PointCloud2)
    points = floor_and_wall()

    def ran(mode):
        return [cost for cost in list(out.costs.messages) if cost.mode == mode]

    last = feed(sweeps, points, 10**9, lambda: ran("server"), "an answer of the server")
    cost = ran("server")[-1]
    hit = int(grid_around(0.5, cells=CELLS).occupancy(points).sum())
    assert 0 < cost.bytes_up < CELLS * CELLS * 32 // 8 + 4000, "bits go up, not bytes"
    assert cost.bytes_up > 0
    assert hit > 1000
    assert cost.round_trips == 1
    stamp = cost.header.stamp.to_nsec()
    wait_for(lambda: stamp in out.grids.by_stamp(), "the server's labels")
    remote = labels_of(out.grids.by_stamp()[stamp][0])
    # the operator of the server sees what the robot made of it
    for seen, local in zip(shown, (out.grids, out.slices, out.paths)):
        wait_for(lambda seen=seen: stamp in seen.by_stamp(), "the same on the server")
        theirs, ours = seen.by_stamp()[stamp][0], local.by_stamp()[stamp][0]
        for message in (theirs, ours):
            message.header.seq = 0
            for pose in getattr(message, "poses", []):
                pose.header.seq = 0
        assert theirs == ours

    server.signal(signal.SIGKILL)
    feed(sweeps, points, last, lambda: ran("local"), "an answer of the robot")
    fallen = ran("local")[-1]
    assert fallen.fallback_reason
    stamp = fallen.header.stamp.to_nsec()
    wait_for(lambda: stamp in out.grids.by_stamp(), "the robot's labels")
    np.testing.assert_array_equal(labels_of(out.grids.by_stamp()[stamp][0]), remote)


@pytest.mark.slow
def test_modes_of_the_virtual_device_give_the_local_labels(graph, weights):
    from sensor_msgs.msg import PointCloud2

    from edge_offload.mode import TABLE, Mode
    from edge_offload.nodes.scene.scene_messages import labels_of
    from edge_offload_msgs.msg import OffloadMode

    address = f"tcp://127.0.0.1:{free_port()}"
    options = {"weights": weights}
    graph.node("offload_server_node", bind=address, threads=1, keys=str(graph.keys), options={"sconet": options})
    out = Outputs(graph)
    program = [sys.executable, "-m", "edge_offload.cli", "exec", "--absent", "later"]
    graph.node(
        "agrnav_node",
        prefix=[*program, "--keys", str(graph.keys), "--server", address, "--"],
        cells=32,
        threads=1,
        mode="server",
        server=address,
        keys=str(graph.keys),
        server_wait=60,
        model_options=options,
    )
    sweeps = graph.publisher("lidar/points", PointCloud2)
    modes = graph.publisher("offload/mode", OffloadMode, latch=True)
    last, labels_by_mode = 10**9, {}
    for mode in (Mode.LOCAL, Mode.SERVER, Mode.LAZY, Mode.REPLAY):
        modes.publish(OffloadMode(mode=mode.value, code=TABLE[mode].code, reason="test"))

        def ran(mode=mode):
            return [cost for cost in list(out.costs.messages) if cost.mode == mode.value and not cost.fallback_reason]

        last = feed(sweeps, floor_and_wall(), last, ran, f"a result in mode {mode}")
        stamp = ran()[-1].header.stamp.to_nsec()
        wait_for(lambda stamp=stamp: stamp in out.grids.by_stamp(), f"the labels of mode {mode}")
        labels_by_mode[mode] = labels_of(out.grids.by_stamp()[stamp][0])
        np.testing.assert_array_equal(labels_by_mode[mode], labels_by_mode[Mode.LOCAL], f"mode {mode}")


def test_a_broken_sweep_gives_an_empty_result_and_a_word_of_it(graph):
    from sensor_msgs.msg import PointCloud2

    from edge_offload.nodes.scene.scene_messages import labels_of

    out = Outputs(graph)
    node = graph.node("agrnav_node", cells=CELLS, threads=1)
    sweeps = graph.publisher("lidar/points", PointCloud2)
    broken = cloud(np.zeros((10, 3)), 5 * 10**9)
    broken.data = broken.data[:50]
    wait_for(lambda: out.costs.connected, "the node's start")

    def has_message():
        sweeps.publish(broken)
        return any("truncated" in cost.error for cost in list(out.costs.messages))

    wait_for(has_message, "the failed sweep's result")
    assert not labels_of(out.grids.messages[-1]).any()
    assert set(out.slices.messages[-1].data) == {-1}
    assert node.running

    def lost():
        sweeps.publish(cloud(1000 * floor_and_wall(), 6 * 10**9))
        time.sleep(0.1)
        return graph.complains(node, "no point of the sweep is in the grid")

    wait_for(lost, "the word that a cloud in millimetres is somewhere else")


def test_a_goal_in_the_map_is_looked_up_where_the_robot_is(graph, empty):
    import rospy
    import tf2_ros
    from geometry_msgs.msg import PoseStamped, TransformStamped
    from sensor_msgs.msg import PointCloud2

    out = Outputs(graph)
    graph.node("agrnav_node", cells=CELLS, sensor_height=0.5, threads=1, model_options={"weights": empty})
    place = TransformStamped(child_frame_id="lidar_goal_test")
    place.header.frame_id = "map_goal_test"
    place.transform.translation.x = 10.0
    place.transform.rotation.w = 1.0
    tf2_ros.StaticTransformBroadcaster().sendTransform(place)
    goals = graph.publisher("agrnav/goal", PoseStamped, latch=True)
    goal = PoseStamped()
    goal.header.frame_id = "map_goal_test"
    goal.pose.position.x, goal.pose.position.y, goal.pose.orientation.w = 11.5, 2.5, 1.0
    goals.publish(goal)
    sweeps = graph.publisher("lidar/points", PointCloud2)
    points = floor_and_wall()
    stamp = 10**9

    def reached():
        nonlocal stamp
        stamp += 1_000_000
        sweeps.publish(cloud(points, stamp, "lidar_goal_test"))
        rospy.rostime.wallsleep(0.2)
        for path in list(out.paths.messages):
            if path.poses:
                end = path.poses[-1].pose.position
                if np.hypot(end.x - 1.5, end.y - 2.5) < 0.3:
                    return True
        return False

    wait_for(reached, "a path to the goal in the map", 120)


def test_a_run_over_scenes_is_counted_and_summarised_by_mode(graph, tmp_path):
    import rospy
    from sensor_msgs.msg import PointCloud2
    from std_msgs.msg import Header

    from edge_offload import records
    from edge_offload.nodes.scene.scene_messages import grid_message
    from edge_offload_msgs.msg import Latency, SemanticGrid

    summary = tmp_path / "run.json"
    node = graph.node("run_recorder", results="scenes", frames=2, json=str(summary), video=False, records=False)
    sweeps = graph.publisher("lidar/points", PointCloud2)
    grids = graph.publisher("agrnav/semantic_grid", SemanticGrid)
    costs = graph.publisher("offload/latency", Latency)
    wait_for_readers(sweeps, grids, costs)
    stamps = [10**9 * number for number in (1, 2, 3)]

    def arrived():
        for stamp in stamps:  # again and again: a reader that has only just connected misses some
            sweeps.publish(cloud(np.zeros((1, 3)), stamp))
        time.sleep(0.2)
        return int(graph.values(node).get("frames", 0)) >= 3

    wait_for(arrived, "the arrival of the sweeps")
    grid = VoxelGrid(shape=(16, 16, 32))
    for stamp, mode in zip(stamps[::2], ("local", "server")):
        header = Header(stamp=rospy.Time(*divmod(stamp, 10**9)))
        grids.publish(grid_message(header, np.zeros(grid.shape, np.uint8), grid, LABELS))
        cost = Latency(header=header, mode=mode, model="sconet", bytes_up=100, total=rospy.Duration(2))
        costs.publish(cost)
    assert node.wait(120) == 0, node.output
    record = json.loads(summary.read_text(encoding="utf-8"))
    records.validate("run", record)
    # sweeps that come again, as in a bag that is played in a loop, count each time
    assert record["frames_published"] >= 3
    assert (record["frames_superseded"], record["results_out"]) == (record["frames_published"] - 2, 2)
    assert {mode: cost["bytes_up"] for mode, cost in record["by_mode"].items()} == {"local": 100, "server": 100}
    assert "ACCOUNTING" not in node.output
