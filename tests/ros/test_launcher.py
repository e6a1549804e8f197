"""How a node's process ends: told early, told while SIGINT was ignored, with threads that would hold it up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

BEGIN = """
import atexit, sys, threading, time, types
from edge_offload import launcher
"""
SLOW_IMPORT = (
    BEGIN
    + """
def slow(name):
    print("importing", flush=True)
    time.sleep(60)
launcher.importlib = types.SimpleNamespace(import_module=slow)
launcher.main("kapao_node")
"""
)
BUSY = (
    BEGIN
    + """
atexit.register(print, "tidied up")
# as torch's or a pool's: the interpreter would wait for it
threading.Thread(target=time.sleep, args=(300,)).start()
launcher.importlib = types.SimpleNamespace(import_module=lambda name: types.SimpleNamespace(NODE=None))
sys.modules["edge_offload.nodes.common.base"] = types.SimpleNamespace(run_node=lambda node: 3)
launcher.main("kapao_node")
"""
)


LACKING = """
import sys
sys.modules[sys.argv[1]] = None  # as on a Python that has no such package
from edge_offload import launcher
launcher.main("kapao_node")
"""


def ignore_interrupts() -> None:
    """As a shell does for what it starts in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run(program, *arguments, **options):
    environment = {name: value for name, value in os.environ.items() if name != "EDGE_OFFLOAD_PYTHON"}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, **options)


def test_a_node_stopped_while_it_imports_ends_although_its_shell_ignored_that():
    process = run(SLOW_IMPORT, preexec_fn=ignore_interrupts)
    try:
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
    finally:
        process.kill()


def test_the_process_ends_with_the_nodes_code_whatever_its_threads_do():
    process = run(BUSY)
    try:
        assert process.wait(120) == 3
        assert process.stdout.read() == "tidied up\n"
    finally:
        process.kill()


def test_a_node_stopped_while_it_registers_prints_nothing(monkeypatch):
    rospy = pytest.importorskip("rospy")
    pytest.importorskip("edge_offload_msgs.msg", reason="no ROS environment (source devel/setup.bash)")
    from edge_offload.nodes.common import base

    def interrupted(_name):
        raise rospy.exceptions.ROSInitException("init_node interrupted before it could complete")

    monkeypatch.setattr(sys, "argv", ["node"])
    monkeypatch.setattr(base.rosgraph, "is_master_online", lambda: True)
    monkeypatch.setattr(rospy, "init_node", interrupted)
    monkeypatch.setattr(rospy.core, "is_shutdown_requested", lambda: True)
    with pytest.raises(KeyboardInterrupt):  # as anywhere in a start: the launcher ends with one exit code
        base.run_node(type("Some", (base.Node,), {"name": "some"}))
    monkeypatch.setattr(rospy.core, "is_shutdown_requested", lambda: False)
    with pytest.raises(rospy.exceptions.ROSInitException):
        base.run_node(type("Some", (base.Node,), {"name": "some"}))


@pytest.mark.parametrize(
    ("module", "remedy"),
    [("zmq", "EDGE_OFFLOAD_PYTHON=/path/to/venv/bin/python3"), ("torch", "scripts/setup"), ("rospy", "sees ROS's")],
)
def test_a_node_under_a_python_that_lacks_a_package_ends_with_one_line_that_names_the_remedy(module, remedy):
    pytest.importorskip("edge_offload_msgs.msg", reason="no ROS environment (source devel/setup.bash)")
    process = run(LACKING, module, stderr=subprocess.PIPE)
    out, stderr = process.communicate(timeout=120)
    assert process.returncode == 1
    assert out == ""
    assert len(stderr.splitlines()) == 1, stderr
    assert stderr.startswith(f"kapao_node: {sys.executable} has no module '{module}'; ")
    assert remedy in stderr
