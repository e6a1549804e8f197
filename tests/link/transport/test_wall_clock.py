"""The wall clock of a robot or of the server jumps by an hour in mid-run: nothing is lost, and no time is wrong.

The clocks are those of child processes alone (libfaketime); the host's clock is never touched.
"""

import json
import subprocess
import sys
import time

import pytest

from edge_offload_benchmarks.chaos.wall_clock import WallClock, find_library

pytestmark = pytest.mark.process

PATIENCE_S = 60.0
HOUR_S = 3600.0

ROBOT = """
import json, sys, threading, time
from edge_offload.link.transport.client import Client
from edge_offload.link.security.keys import KeyStore
states = []
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
changed = lambda state, cause: states.append(state.value)
with Client(sys.argv[1], keys=KeyStore(sys.argv[2]), on_state=changed) as client:
    client.wait_ready(60.0)
    asked = 0
    while not stop.is_set():
        began = time.monotonic()
        reply = client.request("echo", {"number": asked}, [bytes(20000)], timeout_s=60.0).result(61.0)
        moved = reply.transfer
        print(json.dumps({
            "asked": asked, "got": reply.body["number"], "took_s": time.monotonic() - began, "wall_s": time.time(),
            "uplink_s": moved.uplink_s, "downlink_s": moved.downlink_s, "error_s": moved.clock_error_s,
            "warning": client.clock.warning, "ahead_s": client.clock.wall_offset_s, "steps": client.clock.steps,
        }), flush=True)
        asked += 1
        stop.wait(0.02)
print(json.dumps({"asked": asked, "states": states}), flush=True)
"""


@pytest.fixture
def clock():
    if find_library() is None:
        pytest.skip("libfaketime is not installed (Debian: faketime)")
    made = WallClock()
    yield made
    made.close()


class Talk:
    """The robot's process, and what it has told."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.results = []

    def until(self, condition, what):
        ends = time.monotonic() + PATIENCE_S
        for line in self.process.stdout:
            self.results.append(json.loads(line))
            if condition(self.results[-1]):
                return
            assert time.monotonic() < ends, f"never happened: {what}"
        raise AssertionError("the robot ended")

    def end(self):
        output, _ = self.process.communicate(timeout=PATIENCE_S)
        lines = [json.loads(line) for line in output.splitlines()]
        self.results += lines[:-1]
        return lines[-1]


@pytest.mark.parametrize("whose", ["robot", "server"])
def test_a_step_of_the_wall_clock_costs_nothing(whose, clock, server_process, keys):
    server = server_process(prefix=clock.command_prefix() if whose == "server" else ())
    robot = [sys.executable, "-c", ROBOT, server.address, str(keys.directory)]
    talk = Talk([*clock.command_prefix(), *robot] if whose == "robot" else robot)
    try:
        for count, offset_s in enumerate((HOUR_S, -HOUR_S), 1):
            talk.until(lambda result, n=count: result["asked"] >= 10 * n, "frames flow")
            clock.step(offset_s)
            # when the robot's clock goes back, the server's seems to go forward
            ahead_s = offset_s if whose == "server" else -offset_s
            talk.until(lambda result, s=ahead_s: abs(result["ahead_s"] - s) < HOUR_S / 2, "the difference is measured")
            assert "wall clocks differ by" in talk.results[-1]["warning"]
            if whose == "robot":
                assert abs(talk.results[-1]["wall_s"] - time.time() - offset_s) < HOUR_S / 2, "its clock did jump"
        summary = talk.end()
    finally:
        talk.process.kill()
        talk.process.wait()
    results = talk.results
    assert [result["got"] for result in results] == list(range(summary["asked"])), (
        "a result was lost, doubled or swapped"
    )
    assert summary["states"] == ["ready", "closed"], "the connection was given up"
    assert all(result["steps"] == 0 for result in results), "the monotonic clocks did not jump"
    for result in results:
        slack = result["error_s"] + 1e-3
        assert -slack <= result["uplink_s"] <= result["took_s"] + slack, result
        assert -slack <= result["downlink_s"] <= result["took_s"] + slack, result


PATIENT = """
import subprocess, sys, time
import marked
before = time.time()
time.sleep(0.01)
# a child that takes longer is waited for with the same call
subprocess.run([sys.executable, "-c", "import time; time.sleep(0.2)"], timeout=60.0, check=True)
print(marked.seen, time.time() - before < 60.0)
"""


def test_a_sleeping_process_has_a_separate_clock_too(clock, tmp_path, monkeypatch):
    """From its start on, and so have its children; what was there to customise it is run as well."""
    (tmp_path / "marked.py").write_text("seen = []")
    (tmp_path / "sitecustomize.py").write_text("import marked; marked.seen.append('customised')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    clock.step(24 * 365 * HOUR_S)
    done = subprocess.run(
        [*clock.command_prefix(), sys.executable, "-c", PATIENT],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout.split("] ") == ["['customised'", "True\n"], done.stderr
