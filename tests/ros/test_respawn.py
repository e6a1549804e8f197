"""kapao_tracking.launch with a model of one's own: its node may be killed; one that cannot begin ends the run."""

from __future__ import annotations

import os
import signal
import subprocess
import xmlrpc.client

import pytest

from tests.ros.ros_rig import ROOT, Listener, free_port, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def launch(master, tmp_path):
    """Starts kapao_tracking.launch with the examples in reach and no slowness on purpose, on the tests' master."""
    started = []

    def start(*arguments: str) -> subprocess.Popen:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}/examples:{os.environ.get('PYTHONPATH', '')}"}
        command = [
            "roslaunch", "edge_offload", "kapao_tracking.launch", "link:=none", "record:=false",
            "headless:=true", "robot_slowdown:=1", f"json:={tmp_path / 'run.json'}",
            f"port:={free_port()}", *arguments,
        ]  # fmt: skip
        with open(tmp_path / "launch.log", "w", encoding="utf-8") as log:
            started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(60)


def test_a_users_model_runs_on_the_server_and_its_killed_node_restarts_while_the_others_continue(launch):
    import rosgraph
    from diagnostic_msgs.msg import DiagnosticArray

    from edge_offload_msgs.msg import Latency

    def pid_of(node: str) -> int:
        uri = rosgraph.Master("/tests").lookupNode(node)
        return xmlrpc.client.ServerProxy(uri).getPid("/tests")[2]

    def from_server() -> int:
        return sum(message.mode == "server" for message in list(results.messages))

    def health(diagnostics: Listener):
        statuses = [status for message in diagnostics.messages for status in message.status]
        return next((status.level for status in reversed(statuses) if status.name.startswith("kapao_node:")), None)

    results = Listener("/offload/latency", Latency)
    try:
        process = launch("model:=own_people:make", "mode:=server")
        wait_for(lambda: from_server() >= 2, "results of the server", 120)
        others = {name: pid_of(name) for name in ("/camera_node", "/offload_manager_node", "/offload_server_node")}
        os.kill(pid_of("/kapao_node"), signal.SIGKILL)
        before, diagnostics = from_server(), Listener("/diagnostics", DiagnosticArray)
        wait_for(lambda: from_server() >= before + 3, "results of the node that was started again", 120)
        wait_for(lambda: health(diagnostics) == 0, "a node that is well, and knows the parameters that it has written")
        diagnostics.close()
        assert process.poll() is None
        assert {name: pid_of(name) for name in others} == others
    finally:
        results.close()


def test_a_network_node_that_cannot_begin_ends_the_run(launch, tmp_path):
    process = launch("model:=no_such_package:make", "server:=none")
    assert process.wait(120) is not None
    log = (tmp_path / "launch.log").read_text(encoding="utf-8")
    assert "cannot import model 'no_such_package:make'" in log
    assert "kapao_node ended before its first result" in log
    assert log.count("cannot import model") <= 2
