"""The dashboard's node, as a process: what comes by topics is on the page, and a new master is found."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
import urllib.parse

import pytest

from tests.ros.ros_rig import ROOT, Process, free_port, wait_for, wait_for_readers

pytestmark = pytest.mark.ros


class Page:
    """What a browser would be told, taken from the stream without one."""

    def __init__(self, url: str) -> None:
        import asyncio
        import threading

        import tornado.websocket

        self.records, self.events, self.pictures, self.status = {}, [], [], {}
        self._loop = asyncio.new_event_loop()
        where = urllib.parse.urlsplit(url)

        async def read() -> None:
            self._connection = await tornado.websocket.websocket_connect(f"ws://{where.netloc}/stream")
            while True:
                message = await self._connection.read_message()
                if message is None:
                    return
                if isinstance(message, bytes):
                    self.pictures.append(message[8:])
                    continue
                record = json.loads(message)
                self.status = record.get("status", self.status)
                self.events += [event["text"] for event in record.get("events", [])]
                for kind, records in record.get("records", {}).items():
                    self.records.setdefault(kind, []).extend(records)

        def run() -> None:
            self._loop.run_until_complete(read())
            self._loop.close()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._connection.close)
        self._thread.join(60)


def test_topics_are_on_the_page_and_pictures_only_for_an_open_page(graph):
    import rospy
    from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
    from sensor_msgs.msg import CompressedImage
    from std_msgs.msg import Header

    from edge_offload_msgs.msg import (
        Bandwidth,
        Latency,
        OffloadMode,
        PersonArray,
        Power,
        ResultOrigin,
        SemanticGrid,
        ServerStatus,
    )

    node = graph.node("dashboard_node", port=0)
    stamp = Header(stamp=rospy.Time(5))
    frame = Latency(header=stamp, mode="server", total=rospy.Duration(0, 90_000_000))
    mode = OffloadMode(header=stamp, mode="server", reason="why not")
    send = {
        "latency": (graph.publisher("offload/latency", Latency), frame),
        "mode": (graph.publisher("offload/mode", OffloadMode, latch=True), mode),
        "bandwidth": (graph.publisher("offload/bandwidth", Bandwidth), Bandwidth(header=stamp, uplink=1e6)),
        "power": (graph.publisher("offload/power", Power), Power(header=stamp, watts=5.0)),
        "people": (graph.publisher("kapao/people", PersonArray), PersonArray(header=stamp)),
        "scene": (
            graph.publisher("agrnav/semantic_grid", SemanticGrid),
            SemanticGrid(header=stamp, result=ResultOrigin(origin="local")),
        ),
        "server": (graph.publisher("server/status", ServerStatus), ServerStatus(header=stamp, load=0.5, state=1)),
    }  # fmt: skip
    diagnostics = rospy.Publisher("/diagnostics", DiagnosticArray, queue_size=10)
    overlay = graph.publisher("kapao/overlay/compressed", CompressedImage)
    url = wait_for(lambda: rospy.get_param(f"{graph.ns}/dashboard_node/url", ""), "the page")
    wait_for(lambda: url in node.output, "its address in a pipe, while it runs", 10)
    wait_for_readers(*(publisher for publisher, _ in send.values()))
    assert overlay.get_num_connections() == 0
    page = Page(url)
    wait_for(overlay.get_num_connections, "a subscriber of the pictures")
    assert page.status["state"] == "waiting"
    assert f"{graph.ns}/offload/latency" in page.status["text"]
    wait_for_readers(overlay, diagnostics)
    for publisher, message in send.values():
        publisher.publish(message)
    trouble = DiagnosticStatus(name="some_node: health", level=DiagnosticStatus.ERROR, message="it broke")
    diagnostics.publish(DiagnosticArray(header=stamp, status=[trouble]))
    for data in (b"GIF89a", b"x" * 10, b"\xff\xd8\xff picture"):
        overlay.publish(CompressedImage(header=stamp, format="", data=data))
        time.sleep(0.2)  # the node takes the newest picture only
    wait_for(lambda: set(send) <= set(page.records) and page.pictures, "everything on the page")
    assert page.records["latency"][0]["total_s"] == pytest.approx(0.09)
    assert page.records["mode"][0]["reason"] == "why not"
    assert "origin" not in page.records["people"][0], "fresh, since the message does not say"
    assert page.records["scene"][0]["origin"] == "local"
    assert any(record["message"] == "it broke" for record in page.records["diagnostic"])
    assert set(page.pictures) == {b"\xff\xd8\xff picture"}
    wait_for(lambda: page.status["state"] == "live", "the state")
    page.close()
    wait_for(lambda: not overlay.get_num_connections(), "the end of the pictures")
    assert node.stop() == 0


def test_others_need_a_token_to_read(graph):
    node = graph.node("dashboard_node", port=0, host="0.0.0.0")
    assert node.wait() == 1
    assert "no token protects the dashboard" in node.output


PUBLISHER = """
import rospy, sys
from edge_offload_msgs.msg import OffloadMode
rospy.init_node(sys.argv[1], disable_signals=True)
publisher = rospy.Publisher("offload/mode", OffloadMode, queue_size=1, latch=True)
for number in range(100000):
    publisher.publish(OffloadMode(mode="server", reason=f"{sys.argv[1]} {number}"))
    rospy.rostime.wallsleep(0.1)
"""


def test_a_restarted_master_is_reconnected(tmp_path):
    try:
        import rosgraph

        from edge_offload_msgs.msg import OffloadMode  # noqa: F401
    except ImportError:
        pytest.skip("no ROS environment (source devel/setup.bash)")
    port = free_port()
    logs = {"ROS_HOME": str(tmp_path), "ROS_LOG_DIR": str(tmp_path)}
    environment = {**os.environ, **logs, "ROS_MASTER_URI": f"http://localhost:{port}"}
    started = []

    def begin(*command) -> Process:
        process = Process(pathlib.Path(command[0]).name, list(map(str, command)), environment)
        started.append(process)
        return process

    def master() -> Process:
        process = begin("rosmaster", "--core", "-p", port)
        wait_for(lambda: rosgraph.is_master_online(environment["ROS_MASTER_URI"]), "the master's start")
        return process

    def has_reason(text: str, since: int = 0) -> bool:
        return any(record["reason"].startswith(text) for record in page.records.get("mode", [])[since:])

    def address() -> str:
        return next((word for word in node.output.split() if word.startswith("http://127")), "")

    def kill(process: Process) -> None:
        process.signal(9)
        process.wait()

    page = None
    try:
        first = master()
        node = begin(sys.executable, ROOT / "scripts" / "dashboard_node", "_port:=0")
        page = Page(wait_for(address, "the page"))
        begin(sys.executable, "-c", PUBLISHER, "old")
        wait_for(lambda: has_reason("old"), "a mode by the old publisher")
        kill(first)
        wait_for(lambda: page.status["state"] == "lost", "the loss")
        assert f"no ROS master at http://localhost:{port}" in page.status["text"]
        # what is connected goes on without a master
        before = len(page.records["mode"])
        wait_for(lambda: len(page.records["mode"]) > before, "more modes by the old publisher")
        master()
        begin(sys.executable, "-c", PUBLISHER, "new")
        wait_for(lambda: has_reason("new"), "a mode by a publisher that only the new master knows")
        before = len(page.records["mode"])
        wait_for(lambda: has_reason("old", before), "more modes by the old one")
        assert "a new ROS master; registered with it" in page.events
        assert node.running
    finally:
        if page is not None:
            page.close()
        for process in reversed(started):
            if process.running:
                kill(process)


def test_the_recorder_keeps_the_run_and_the_report_reads_it(graph, tmp_path):
    import rospy
    from std_msgs.msg import Header

    from edge_offload.cli import main
    from edge_offload_msgs.msg import Latency, PersonArray, Power

    node = graph.node("run_recorder", frames=5, json=str(tmp_path / "walk.json"), video=False, link="wifi_93mbps")
    latency, people = graph.publisher("offload/latency", Latency), graph.publisher("kapao/people", PersonArray)
    power = graph.publisher("offload/power", Power)
    wait_for_readers(latency, people, power)
    power.publish(Power(watts=5.0))
    for number in range(1, 6):
        header = Header(stamp=rospy.Time(number))
        people.publish(PersonArray(header=header, mode="local"))
        latency.publish(Latency(header=header, mode="local", total=rospy.Duration(0, 90_000_000), deadline_met=True))
    assert node.wait() == 0
    assert "walk.jsonl" in node.output
    assert main(["report", str(tmp_path / "walk.jsonl"), "--json", str(tmp_path / "figures.json")]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert (figures["frames"], figures["link"]) == (5, "wifi_93mbps")
    assert figures["all"]["latency_s"]["p50"] == pytest.approx(0.09)


def test_a_full_disk_costs_the_records_and_not_the_run(graph, tmp_path):
    import rospy
    from std_msgs.msg import Header

    from edge_offload_msgs.msg import Latency, PersonArray

    (tmp_path / "walk.jsonl").symlink_to("/dev/full")
    node = graph.node("run_recorder", frames=3, json=str(tmp_path / "walk.json"), video=False)
    latency, people = graph.publisher("offload/latency", Latency), graph.publisher("kapao/people", PersonArray)
    wait_for_readers(latency, people)
    for number in range(1, 4):
        header = Header(stamp=rospy.Time(number))
        people.publish(PersonArray(header=header, mode="local"))
        latency.publish(Latency(header=header, mode="local", total=rospy.Duration(0, 90_000_000), deadline_met=True))
    assert node.wait() == 0
    assert "No space left on device" in node.output
    assert json.loads((tmp_path / "walk.json").read_text())["results_out"] == 3
