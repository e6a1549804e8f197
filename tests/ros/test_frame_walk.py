"""A frame in mode server, traced in a real launch, enters the files that the architecture page lists, and few."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

from tests.ros.ros_rig import Listener, wait_for

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src/edge_offload"
ELSEWHERE = ("models/", "perception/", "power/", "link/transport/path.py", "link/transport/prober.py")
"""The last two are for a connection that has fallen silent, and for the bandwidth monitor."""
ONLOOKERS = ("ticker", "diagnostics", "overlay", "edge-offload-results", "edge_offload-gate", "/camera/camera_info",
             "/offload", "/tf", "/rosout")  # fmt: skip
"""Threads that no frame passes through, by how their names begin."""
MOST_FILES, MOST_LINES, MOST_BETWEEN = 47, 400, 4
ENGINE, MOST_ENGINE_FILES = ("execute/engines/", "execute/session/", "ir/trace/"), 9
"""Of the server's compiled steps, where ``server_engine:=eager`` calls the module."""


def listed() -> list[str]:
    """The files of the architecture page's list."""
    page = (ROOT / "docs/explanation/architecture.md").read_text()
    section = page[page.index("## One frame, file by file") : page.index("## Who runs operators")]
    names, folder = [], ""
    for name in re.findall(r"`([a-z_/]+\.py)`", section.split("\n- ", 1)[1]):
        if (SOURCE / name).is_file():
            folder = os.path.dirname(name)
        else:
            name = f"{folder.split('/kernels')[0]}/{name}"
        assert (SOURCE / name).is_file(), name
        names.append(name)
    return names


def nodes_of(where: str) -> list[int]:
    """The processes of the launch that notes were asked of."""
    pids = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            mine = f"ENTERED_FILES={where}".encode() in (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mine and re.search(rb"/(kapao_node|offload_server_node)\0", command):
            pids.append(int(process.name))
    return pids


def frames_of_the_server(nodes, notes, latency):
    """Whether all frames of two seconds, which are noted, ran on the server."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        for node in nodes:
            os.kill(node, number)
        if number == signal.SIGUSR1:
            before = len(latency)
            time.sleep(2.0)
    wait_for(lambda: all(path.is_file() for path in notes), "the notes")
    modes = {message.mode for message in list(latency.messages)[before - 1 :]} if len(latency) > before else set()
    # the first frames look at the calibration; codecs are numpy's until their kernels have been built; on a busy
    # machine a frame may be late, and the robot begins by itself, on a thread of its own
    others = r'"(native/|nodes/camera/|edge-offload-local)'
    if modes == {"server"} and not re.search(others, "".join(path.read_text() for path in notes)):
        return True
    for path in notes:
        path.unlink()
    return False


@pytest.mark.ros
def test_a_frame_enters_the_files_that_the_architecture_page_lists(master, tmp_path):
    from edge_offload_msgs.msg import Latency

    where = str(tmp_path / "notes")
    environment = {**os.environ, "ENTERED_FILES": where}
    environment.pop("PYTHONUNBUFFERED", None)  # what nodes say is read below as they say it
    environment["PYTHONPATH"] = f"{ROOT / 'tests/ros/entered'}:{environment.get('PYTHONPATH', '')}"
    arguments = ["mode:=server", "loop:=true", f"json:={tmp_path / 's.json'}"]
    launch = subprocess.Popen(["roslaunch", "edge_offload", "kapao_tracking.launch", *arguments], env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
    try:
        for line in launch.stdout:
            if "is ready, mode server" in line:
                break
        latency = Listener("/offload/latency", Latency)
        nodes = nodes_of(where)
        assert len(nodes) == 2, "robot and server"
        notes = [tmp_path / f"notes.{node}.json" for node in nodes]
        wait_for(lambda: frames_of_the_server(nodes, notes, latency), "some seconds in which nothing was new", 120)
    finally:
        launch.send_signal(signal.SIGINT)
        launch.communicate(timeout=60)
    threads: dict[str, dict[str, dict[str, list[str]]]] = {}
    for path in notes:
        threads.update(json.loads(path.read_text()))
    entered = {
        name
        for thread, files in threads.items()
        if not thread.startswith(ONLOOKERS)
        for name in files
        if not name.startswith(ELSEWHERE)
    }
    assert len(listed()) == len(set(listed()))
    assert entered <= set(listed()), f"not on the page: {entered - set(listed())}"
    engine = {name for name in entered if name.startswith(ENGINE)}
    assert len(engine) <= MOST_ENGINE_FILES, sorted(engine)
    assert len(entered - engine) <= MOST_FILES, sorted(entered - engine)
    assert {"modes/server.py", "server/worker.py", "nodes/people/people_view.py"} <= entered, "a frame was seen"
    lines = {name: len((SOURCE / name).read_text().splitlines()) for name in entered}
    assert max(lines.values()) <= MOST_LINES, max(lines, key=lines.get)
    lanes = [files.get("runtime/hedge.py", {}) for thread, files in threads.items() if thread.startswith("network")]
    to_hedge = next(functions["race_attempts"] for functions in lanes if "race_attempts" in functions)
    remote = next(files for thread, files in threads.items() if thread.startswith("edge-offload-remote"))
    to_link = remote["link/transport/client.py"]["request"]
    between = {*to_hedge[to_hedge.index("nodes/people/people_view.py") :], *to_link}
    between -= {"nodes/people/people_view.py", "link/transport/client.py"}
    between = {name for name in between if not name.startswith(ELSEWHERE)}
    assert len(between) <= MOST_BETWEEN, between
