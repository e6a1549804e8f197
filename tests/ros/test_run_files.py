"""Files that a run leaves: a folder of its own for each, bounds on what they take, and no figure lost with the disk."""

from __future__ import annotations

import os
import signal
import sys
import time
import types
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from edge_offload.errors import BadInput
from edge_offload.nodes.monitor.run_folder import new_folder, prune_runs
from edge_offload.perception import video
from edge_offload.perception.video import VideoParts
from tests.ros.ros_rig import ROOT, Process, wait_for, wait_for_readers


def test_no_run_overwrites_another_and_last_leads_to_the_latest(tmp_path):
    root = tmp_path / "runs"
    folders = [new_folder(root) for _ in range(3)]
    assert len(set(folders)) == 3
    assert (root / "last").resolve() == folders[-1]


def test_the_oldest_runs_go_first_and_nothing_else(tmp_path):
    root = tmp_path / "runs"
    for name in ("2026-01-01_00-00-00", "2026-01-02_00-00-00", "2026-01-03_00-00-00", "my own"):
        (root / name).mkdir(parents=True)
        (root / name / "summary.avi").write_bytes(bytes(1000))
    busy = time.time()
    assert prune_runs(root, 2500, busy) == [], "what was written in during the last hour may be going on"
    later = busy + 7200
    size = sum(path.lstat().st_size for path in [root / "2026-01-01_00-00-00"])
    assert prune_runs(root, 2 * (1000 + size), later) == ["2026-01-01_00-00-00"]
    assert prune_runs(root, 0, later) == ["2026-01-02_00-00-00", "2026-01-03_00-00-00"]
    assert [folder.name for folder in root.iterdir()] == ["my own"]


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (256, 256, 3), dtype=np.uint8)


def test_a_long_video_keeps_its_newest_parts(tmp_path):
    parts = VideoParts(tmp_path / "walk.avi", 10.0, part_bytes=1_000_000, max_parts=3)
    for frame in range(90):
        parts.write(noise(frame))
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 3 * 1_500_000
    retained = parts.close()
    assert 2 <= len(retained) <= 3
    assert sorted(retained) == sorted(tmp_path.iterdir())
    assert tmp_path / "walk.avi" not in retained, "the first part went"
    assert all(file.stat().st_size for file in retained)


def test_a_short_video_has_one_part_with_the_requested_name(tmp_path):
    parts = VideoParts(tmp_path / "walk.avi", 10.0, part_bytes=10**9)
    parts.write(noise(0))
    assert parts.close() == [tmp_path / "walk.avi"]


def test_a_video_ends_intact_before_the_disk_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(video, "DISK_FRAMES", 1)
    parts = VideoParts(tmp_path / "walk.avi", 10.0)
    parts.write(noise(0))
    monkeypatch.setattr(video.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=0))
    with pytest.raises(BadInput, match="is full"):
        parts.write(noise(1))
    parts.write(noise(2))  # told once
    assert parts.close() == [tmp_path / "walk.avi"]


@pytest.fixture
def a_result(graph):
    """Publishes a frame with its result, as often as called."""
    import rospy
    from sensor_msgs.msg import Image
    from std_msgs.msg import Header

    from edge_offload_msgs.msg import Latency, PersonArray

    topics = [
        graph.publisher(name, kind)
        for name, kind in (("camera/image_raw", Image), ("kapao/people", PersonArray), ("offload/latency", Latency))
    ]
    made = iter(range(1, 1000))

    def send() -> None:
        wait_for_readers(*topics)
        header = Header(stamp=rospy.Time(1_700_000_000, next(made)))
        topics[0].publish(Image(header=header, height=2, width=2, encoding="bgr8", step=6, data=bytes(12)))
        time.sleep(0.3)  # topics are connections of their own: a result that follows at once may overtake its frame
        topics[1].publish(PersonArray(header=header, model="movenet"))
        topics[2].publish(Latency(header=header, model="movenet", mode="server", total=rospy.Duration(0, 90_000_000)))

    return send


def test_a_summary_that_cannot_be_saved_is_printed_nevertheless(graph, a_result):
    """/dev/full takes what is written and loses it at the end, like a disk that filled up during the run."""
    node = graph.node("run_recorder", json="/dev/full", video=False, records=False, frames=1)
    a_result()
    assert node.wait(60) == 1
    assert "1 published = 1 taken up" in node.output
    assert "the summary is not kept: cannot write /dev/full: No space left on device" in node.output
    assert "Traceback" not in node.output


def test_a_place_that_cannot_be_written_is_reported_before_the_run(graph):
    node = graph.node("run_recorder", json="/dev/null/summary.json")
    assert node.wait(60) == 1
    assert "cannot write /dev/null" in node.output
    assert "Traceback" not in node.output


def test_a_run_reports_its_folder_and_progress(graph, a_result, tmp_path):
    node = graph.node("run_recorder", runs=str(tmp_path), video=False, frames=1, progress=0.2)
    a_result()
    assert node.wait(60) == 0
    (folder,) = [path for path in tmp_path.iterdir() if not path.is_symlink()]
    assert f"recorded in {folder} (up to 1000 MB)" in node.output
    assert "progress no result after" in node.output
    assert (tmp_path / "last" / "summary.json").is_file()
    assert (tmp_path / "last" / "summary.jsonl").is_file()


def test_a_launch_without_a_recorder_reports_progress_of_each_network(graph):
    """As launch files start it: no file is written, and no images are read."""
    import rospy

    from edge_offload_msgs.msg import Latency

    latency = graph.publisher("offload/latency", Latency)
    command = [sys.executable, str(ROOT / "scripts" / "edge-offload"), "top", "--progress", "0.2", "__name:=progress"]
    node = Process("progress", command, {**os.environ, "ROS_NAMESPACE": graph.ns})
    wait_for(lambda: "progress no result after" in node.output, "a line before the first result")
    wait_for_readers(latency)
    latency.publish(Latency(model="movenet", mode="server", total=rospy.Duration(0, 90_000_000)))
    wait_for(lambda: "progress movenet: 1 results in 0 s: server, 90 ms" in node.output, "the result's line")
    node.signal(signal.SIGINT)
    assert node.wait() == 0
    assert "Traceback" not in node.output


@pytest.mark.parametrize("name", ["agrnav", "kapao_tracking", "patrol", "regress", "robot"])
def test_every_launch_file_of_a_robot_reports_progress_by_default(name):
    tree = ElementTree.parse(ROOT / "launch" / f"{name}.launch").getroot()
    assert [
        arg.get("default") for arg in tree.iter("arg") if arg.get("name") == "progress" and "default" in arg.attrib
    ] == ["10"]
    users = [
        element for element in tree.iter() if "$(arg progress)" in (element.get("value") or element.get("args") or "")
    ]
    assert users, "somebody prints it"


def test_several_networks_are_distinguished_in_one_line():
    from types import SimpleNamespace

    pytest.importorskip("rosgraph", reason="no ROS here")
    from edge_offload.nodes.monitor.terminal_watch import Counts

    counts = Counts(100.0)
    assert counts.render_line(112.0) == "no result after 12 s"
    for number in range(5):
        duration = SimpleNamespace(to_sec=lambda: 0.09)
        counts.count_result(SimpleNamespace(model="sconet", mode="local", total=duration), 112.0 + number)
    counts.count_result(SimpleNamespace(model="movenet", mode="server", total=duration), 116.0)
    assert (
        counts.render_line(122.0) == "movenet: 1 results in 6 s: server, 90 ms; sconet: 5 results in 10 s: local, 90 ms"
    )
