"""Camera and LiDAR as processes: files, devices and made-up worlds become messages; what is broken is told."""

from __future__ import annotations

import time

import cv2
import numpy as np
import pytest

from tests.ros.ros_rig import ROOT, Listener, wait_for


@pytest.fixture
def folder(tmp_path):
    """Five images, each of its own brightness, which is its number."""
    place = tmp_path / "images"
    place.mkdir()
    for number in range(1, 6):
        cv2.imwrite(str(place / f"{number}.png"), np.full((48, 64, 3), 10 * number, dtype=np.uint8))
    return place


def test_a_missing_video_ends_the_camera_with_an_error_that_names_it(graph):
    node = graph.node("camera_node", video="/nowhere/people.mp4")
    assert node.wait(120) == 1
    assert "/nowhere/people.mp4" in node.output
    assert graph.has_status(node, 2, "/nowhere/people.mp4")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"images": "/nowhere"}, "/nowhere"),
        ({"device": "/dev/video93"}, "/dev/video93"),
        ({}, "no source"),
        ({"video": "a.avi", "images": "b"}, "several sources"),
        ({"images": str(ROOT), "rate": -1}, "~rate"),
        ({"images": str(ROOT)}, "no images"),
        ({"bag": "nowhere.bag"}, "no bag file /.*nowhere.bag"),
        ({"bag": str(ROOT / "README.md")}, "cannot read bag"),
    ],
)
def test_a_camera_without_a_usable_source_does_not_start(master, raw, message):
    from edge_offload.errors import BadInput
    from edge_offload.nodes.camera.camera_node import CameraNode
    from edge_offload.nodes.common import params
    from edge_offload.nodes.common.health import Health

    with pytest.raises(BadInput, match=message):
        CameraNode(params.read(CameraNode.declared, raw), Health()).start()


@pytest.mark.parametrize("kind", ["camera", "lidar"])
def test_a_bag_without_an_index_is_refused_with_the_command_that_makes_one(master, tmp_path, kind):
    """What is left of a recording whose power failed."""
    import shutil

    import rosbag
    from std_msgs.msg import String

    from edge_offload.errors import BadInput
    from edge_offload.nodes.camera.bag import BagImages
    from edge_offload.nodes.lidar.sweeps import BagSweeps

    intact, cut = tmp_path / "whole.bag", tmp_path / "cut.bag"
    with rosbag.Bag(str(intact), "w") as bag:
        bag.write("/x", String("x"))
        bag.flush()
        shutil.copy(intact, cut)
    with pytest.raises(BadInput, match=r"has no index; run: rosbag reindex .*cut\.bag"):
        (BagImages if kind == "camera" else BagSweeps)(str(cut))


@pytest.mark.parametrize("prefix", [b"\x89MCAP0\r\n", b"SQLite format 3\0", b"\x89PNG", b""], ids=list("mspn"))
def test_what_is_no_bag_of_this_ros_is_refused_in_a_line(master, tmp_path, prefix):
    from edge_offload.errors import BadInput
    from edge_offload.nodes.common.bags import open_bag

    file = tmp_path / "a walk.mcap"
    file.write_bytes(prefix + bytes(200 * bool(prefix)))
    ros_2 = prefix[:4] in (b"\x89MCA", b"SQLi")
    convert = r"rosbags-convert --src '.*a walk\.mcap' --dst '.*a walk\.bag'"
    with pytest.raises(BadInput, match=convert if ros_2 else "cannot read"):
        open_bag(str(file))
    (tmp_path / "recorded").mkdir()
    (tmp_path / "recorded" / "metadata.yaml").write_text("rosbag2_bagfile_information:\n")
    with pytest.raises(BadInput, match="is a bag of ROS 2"):
        open_bag(str(tmp_path / "recorded"))


@pytest.fixture
def bad_chunk(tmp_path):
    """A bag with images and clouds whose third chunk is damaged: its index is whole, so that it opens."""
    import rosbag
    from sensor_msgs.msg import Image, PointCloud2
    from std_msgs.msg import Header

    from edge_offload.nodes.common.convert import points_to_cloud

    path = tmp_path / "disk.bag"
    noise = np.random.default_rng(0).integers(0, 256, 3 * 48 * 64, dtype=np.uint8).tobytes()
    with rosbag.Bag(str(path), "w", compression="bz2", chunk_threshold=1) as out:
        for _ in range(4):
            out.write("/camera/image_raw", Image(Header(), 48, 64, "bgr8", 0, 192, noise))
            out.write("/points", points_to_cloud(np.ones((9, 4), dtype=np.float32), Header()))
        assert isinstance(points_to_cloud(np.ones((1, 4)), Header()), PointCloud2)
        place = out._chunks[4].pos
    data = bytearray(path.read_bytes())
    data[place + 200 : place + 400] = bytes(200)
    path.write_bytes(data)
    return path


def test_a_bag_that_is_damaged_in_its_middle_is_reported_in_a_line(master, bad_chunk):
    from edge_offload.errors import BadInput
    from edge_offload.nodes.camera.bag import BagImages
    from edge_offload.nodes.lidar.sweeps import BagSweeps

    images = BagImages(str(bad_chunk))
    assert [images.read().shape for _ in range(2)] == [(48, 64, 3)] * 2
    with pytest.raises(BadInput, match=r"disk\.bag is damaged: .*; copy it again"):
        images.read()
    assert len(list(zip(BagSweeps(str(bad_chunk)), range(2)))) == 2


@pytest.mark.parametrize("points", [np.zeros((0, 4)), np.zeros((9, 4))], ids=["no points", "no returns"])
def test_a_lidar_that_sees_nothing_is_no_green_light(master, points):
    from std_msgs.msg import Header

    from edge_offload.nodes.common import params
    from edge_offload.nodes.common.convert import points_to_cloud
    from edge_offload.nodes.common.health import Health
    from edge_offload.nodes.lidar.lidar_node import LidarNode

    health = Health()
    node = LidarNode(params.read(LidarNode.declared, {"input": "/points_raw"}), health)
    node.start()
    try:
        node._on_cloud(points_to_cloud(points, Header()))
        assert f"none of {len(points)} points is a return" in health.make_report().message
        node._on_cloud(points_to_cloud(np.ones((9, 4)), Header()))
        assert "return" not in health.make_report().message
    finally:
        node.stop()


def test_a_bag_without_images_is_refused_with_what_it_has(master, tmp_path):
    import rosbag
    from std_msgs.msg import String

    from edge_offload.errors import BadInput
    from edge_offload.nodes.camera.bag import BagImages

    with rosbag.Bag(str(tmp_path / "words.bag"), "w") as out:
        out.write("/chatter", String("x"))
    with pytest.raises(BadInput, match=r"0 image topics; it has: /chatter \(std_msgs/String\)"):
        BagImages(str(tmp_path / "words.bag"))


def test_a_folder_is_played_in_order_and_repeated_with_increasing_stamps(graph, folder):
    from sensor_msgs.msg import CameraInfo, Image

    infos = graph.listen("camera/camera_info", CameraInfo)
    node = graph.node("camera_node", images=str(folder), rate=50, subscribers=1, frames=12)
    wait_for(lambda: infos.connected, "the camera's start")
    images = graph.listen("camera/image_raw", Image)  # whom the camera waits for
    wait_for(lambda: len(images) == 12, "twelve images")
    assert [message.data[0] // 10 for message in images.messages] == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]
    stamps = [message.header.stamp for message in images.messages]
    assert stamps == sorted(set(stamps))
    assert {message.header.frame_id for message in images.messages} == {"camera_optical_frame"}
    # there is one before the first image: for who waits for the camera's size
    wait_for(lambda: set(images.by_stamp()) <= set(infos.by_stamp()), "a camera_info with the stamp of every image")
    assert (infos.messages[0].width, infos.messages[0].height, infos.messages[0].K[0]) == (64, 48, 0)
    assert node.running, "a camera that has published what it was asked for stays, and says so"
    wait_for(lambda: graph.has_status(node, 0, "12 frames"), "the word on /diagnostics")
    assert node.stop() == 0


@pytest.mark.parametrize("kind", ["raw", "compressed"])
def test_a_bag_is_played_by_a_relative_path_with_its_calibration_and_new_stamps(graph, tmp_path, kind):
    """``bag:=walk.bag image_topic:=/x`` as roslaunch hands it on: ~folder is where it was called.

    Compressed, they are rectified ones, to which P belongs.
    """
    import genpy
    import rosbag
    from sensor_msgs.msg import CameraInfo, CompressedImage, Image
    from std_msgs.msg import Header

    with rosbag.Bag(str(tmp_path / "walk.bag"), "w") as bag:
        for number in range(1, 4):
            stamp = genpy.Time(1_600_000_000, number * 50_000_000)
            pixels = np.full((48, 64, 3), 10 * number, dtype=np.uint8)
            if kind == "raw":
                message = Image(Header(stamp=stamp), 48, 64, "bgr8", 0, 192, pixels.tobytes())
            else:
                message = CompressedImage(Header(stamp=stamp), "png", cv2.imencode(".png", pixels)[1].tobytes())
            bag.write("/x_rectified/compressed" if kind == "compressed" else "/x", message, stamp)
            bag.write("/other", Image(Header(stamp=stamp), 2, 2, "mono8", 0, 2, bytes(4)), stamp)
            info = CameraInfo(
                header=Header(stamp=stamp), width=64, height=48, distortion_model="plumb_bob", D=[0.0] * 5
            )
            info.K, info.P = [70.0, 0, 32, 0, 70.0, 24, 0, 0, 1], [60.0, 0, 32, 0, 0, 60.0, 24, 0, 0, 0, 1, 0]
            bag.write("/x_info", info, stamp)
    infos = graph.listen("camera/camera_info", CameraInfo)
    graph.node(
        "camera_node", folder=f"{tmp_path}\n", bag="walk.bag", topic="x" if kind == "raw" else "x_rectified",
        info_topic="x_info", frames=5, subscribers=1,
    )  # fmt: skip
    wait_for(lambda: infos.connected, "the camera's start")
    images = graph.listen("camera/image_raw", Image)
    wait_for(lambda: len(images) == 5, "five images")
    assert [message.data[0] // 10 for message in images.messages] == [1, 2, 3, 1, 2]
    assert len(images.by_stamp()) == 5, "a bag that is played again has new stamps"
    wait_for(lambda: infos.messages, "the calibration")
    assert infos.messages[0].K[0] == (70.0 if kind == "raw" else 60.0)


def test_a_camera_that_waits_for_its_listeners_reports_it(graph, folder):
    node = graph.node("camera_node", images=str(folder), subscribers=2, patience=0.2)
    wait_for(lambda: graph.has_status(node, 1, "0 of 2 subscribers"), "the warning")
    wait_for(lambda: "no frame published yet" in node.output, "the log")


def test_in_every_frame_mode_the_camera_waits_for_each_result(graph, folder):
    from sensor_msgs.msg import Image

    from edge_offload_msgs.msg import PersonArray

    images = graph.listen("camera/image_raw", Image)
    results = graph.publisher("kapao/people", PersonArray)
    graph.node("camera_node", images=str(folder), loop=False, every_frame=True, subscribers=1)
    for count in range(1, 6):
        wait_for(lambda count=count: len(images) >= count, "the next image")
        time.sleep(0.15)
        assert len(images) == count, "an image came although the last one has no result"
        wrong = PersonArray()
        results.publish(wrong)
        results.publish(PersonArray(header=images.messages[-1].header))


def test_an_unplugged_camera_is_reported_and_reopened(graph):
    from edge_offload.errors import BadInput
    from edge_offload.nodes.camera import camera_node
    from edge_offload.nodes.camera.frames import FrameSource, SourceLost
    from edge_offload.nodes.common import params
    from edge_offload.nodes.common.health import ERROR, OK, Health

    class Loose(FrameSource):
        name, rate, live, plugged, closed = "camera loose", 100.0, True, True, False

        def read(self):
            time.sleep(0.005)
            if not self.plugged:
                raise SourceLost("camera loose gives no frames")
            return np.zeros((4, 4, 3), dtype=np.uint8)

        def rewind(self):
            if not self.plugged:
                raise BadInput("no camera loose")

        def close(self):
            self.closed = True

    source = Loose()

    class OnLoose(camera_node.CameraNode):
        def _open_source(self):
            return source

    health = Health()
    node = OnLoose(params.read(OnLoose.declared, {}), health)
    node.start()
    try:
        wait_for(lambda: node._published > 3, "images")
        assert health.make_report().level == OK
        source.plugged = False
        wait_for(lambda: health.make_report().level == ERROR, "the report of the loss")
        assert "trying again" in health.make_report().message
        before = node._published
        source.plugged = True
        wait_for(lambda: node._published > before + 3, "images again")
        assert health.make_report().level == OK
        assert health.read_count("times reconnected") == 1
    finally:
        node.stop()
    assert source.closed


def test_lidar_scans_are_published_and_a_broken_one_is_skipped_and_reported(graph, tmp_path):
    from sensor_msgs.msg import PointCloud2

    from edge_offload.nodes.common.convert import cloud_to_points

    points = np.arange(12, dtype=np.float32).reshape(3, 4)
    (tmp_path / "0.bin").write_bytes(points.tobytes())
    (tmp_path / "1.bin").write_bytes(b"broken")
    clouds = graph.listen("lidar/points", PointCloud2)
    node = graph.node("lidar_node", scans=str(tmp_path), rate=20)
    wait_for(lambda: len(clouds) >= 2, "two scans")
    np.testing.assert_array_equal(cloud_to_points(clouds.messages[0]), points)
    status = wait_for(
        lambda: next((s for s in graph.statuses(node) if s.level == 1 and "1.bin" in s.message), None),
        "the warning",
    )
    assert "6 bytes" in status.message
    assert node.stop() == 0


def test_a_lidar_without_any_return_is_no_free_space_without_a_word(graph):
    import rospy
    from sensor_msgs.msg import PointCloud2
    from std_msgs.msg import Header

    from edge_offload.nodes.common.convert import points_to_cloud

    node = graph.node("lidar_node", input="driver/points")
    driver = graph.publisher("driver/points", PointCloud2)
    clouds = graph.listen("lidar/points", PointCloud2)
    for points, level in ((np.zeros((50, 4)), 1), (np.full((50, 4), 3.0), 0)):
        before = len(clouds)

        def passed(points=points, before=before):
            driver.publish(points_to_cloud(points, Header(stamp=rospy.Time.now())))
            return len(clouds) > before

        wait_for(passed, "the cloud")
        message = "none of 50 points is a return" if level else ""
        wait_for(lambda level=level, words=message: graph.has_status(node, level, words), f"level {level}")
    assert clouds.messages[-1].width == 50


def test_a_made_up_world_moves_past_the_sensor_and_a_bag_of_it_plays(graph, tmp_path):
    import rosbag
    from sensor_msgs.msg import PointCloud2
    from tf2_msgs.msg import TFMessage

    from edge_offload.nodes.common.convert import cloud_to_points

    sweeps = graph.listen("lidar/points", PointCloud2)
    places = Listener("/tf", TFMessage)
    node = graph.node("lidar_node", world="street", rate=5, speed=2.0, frame_id="lidar_world_test")
    wait_for(lambda: len(sweeps) >= 3, "three sweeps")
    node.stop()
    assert len(cloud_to_points(sweeps.messages[0])) > 5000
    places.close()
    moved = [
        transform.transform.translation.x
        for message in places.messages
        for transform in message.transforms
        if transform.child_frame_id == "lidar_world_test"
    ]
    assert moved[1] - moved[0] == pytest.approx(0.4)

    with rosbag.Bag(str(tmp_path / "sweeps.bag"), "w") as bag:
        for message in sweeps.messages[:2]:
            bag.write("/velodyne_points", message, message.header.stamp)
    player = graph.node("lidar_node", name="player", scans=str(tmp_path / "sweeps.bag"), rate=5, loop=True)
    played = len(sweeps)
    # the bag is played again and again: the first sweep may pass before this process is connected
    wait_for(lambda: len(sweeps) >= played + 3, "the bag's sweeps")
    first = cloud_to_points(sweeps.messages[0])
    assert any(np.array_equal(cloud_to_points(message), first) for message in sweeps.messages[played:])
    assert player.running
