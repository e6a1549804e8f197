"""Robot and server learn a split in a process of low priority each, which is gone when the split is open."""

from __future__ import annotations

import os
import pathlib
import signal
import threading

import pytest
import torch

from edge_offload.mode import Mode
from edge_offload.split.learning import process
from edge_offload.split.learning.worker import NICE_LEVEL
from tests.modes.split.waiting import until

pytestmark = pytest.mark.process
PICTURE = torch.randint(0, 256, (3, 48, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


class Watched:
    """Notes who learns for whom, and with which niceness, as long as it is looked at."""

    def __init__(self) -> None:
        self.niceness, self.killed = {}, []
        self.kills = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def now(self):
        parents = {}
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                state = (path / "stat").read_text().rpartition(")")[2].split()
                if b"split.learning.worker" in (path / "cmdline").read_bytes() and state[0] != "Z":
                    parent = int(state[1])
                    # of this test alone: others may run on this machine
                    above = (pathlib.Path("/proc") / state[1] / "stat").read_text().rpartition(")")[2].split()[1]
                    if os.getpid() in (parent, int(above)):
                        parents[int(path.name)] = parent
            except OSError:
                continue
        return parents

    def _watch(self):
        while not self._over.wait(0.02):
            for pid, parent in self.now().items():
                try:
                    self.niceness.setdefault(parent, set()).add(os.getpriority(os.PRIO_PROCESS, pid))
                    if self.kills and pid not in self.killed:
                        self.killed.append(pid)
                        os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue

    def stop(self):
        self._over.set()
        self._thread.join()


@pytest.fixture
def watched(monkeypatch):
    monkeypatch.delenv(process.SWITCH, raising=False)
    made = Watched()
    yield made
    made.stop()


@pytest.fixture
def learning_server(watched, killable_server):
    """A server that was started without the tests' switch."""
    return killable_server


def runs(bot):
    bot.open(PICTURE)
    with torch.no_grad():
        want = bot.module(PICTURE)
    got, report = bot.offloaded.run_inference([PICTURE], Mode.SPLIT)
    assert report.fallback_reason == ""
    for one, other in zip(got, want):
        assert (one - other).abs().max() <= 1e-5 * other.abs().max()


def test_robot_and_server_learn_in_other_processes(watched, learning_server, robot):
    runs(robot(learning_server.address, seed=71))  # weights that nobody has learnt
    sides = {os.getpid(), learning_server.process.pid}
    assert set(watched.niceness) >= sides
    assert all(max(watched.niceness[side]) >= NICE_LEVEL for side in sides)
    until(lambda: not set(watched.now().values()) & sides, 60.0)


def test_robot_and_server_continue_when_learning_is_killed_and_the_robot_reports_it(watched, learning_server, robot):
    watched.kills = True
    bot = robot(learning_server.address, seed=72)
    reasons = []

    def opened():
        why = bot.offloaded.unavailable_reason(Mode.SPLIT, [PICTURE])
        reasons.append(why or "")
        return why is None

    until(opened, 400.0)
    runs(bot)
    assert any("in this process, for the process of low priority ended with code -9" in each for each in reasons)
    assert "learnt in threads of this process, for the process of low priority ended" in bot.runner.state()
    assert len(watched.killed) >= 2, "the robot's and the server's"


def opening_threads():
    return [thread for thread in threading.enumerate() if thread.name == "edge-offload-open"]


@pytest.mark.release
@pytest.mark.parametrize("by", ["process", "threads"])
def test_a_robot_closed_while_learning_leaves_no_process(watched, learning_server, robot, monkeypatch, by):
    if by == "threads":
        monkeypatch.setenv(process.SWITCH, "threads")
    before = opening_threads()
    bot, reasons = robot(learning_server.address, seed=74 if by == "threads" else 75), []
    pending, closed, request = {}, [], bot.client.request

    def noted(kind, body=None, *rest, **more):
        pending[kind] = request(kind, body, *rest, **more)
        if kind == "split_close":
            closed.append(body)
        return pending[kind]

    monkeypatch.setattr(bot.client, "request", noted)

    def under_way():
        why = bot.offloaded.unavailable_reason(Mode.SPLIT, [PICTURE])
        assert why is not None, "it was open before it could be closed"
        reasons.append(why)
        return os.getpid() in watched.now().values() if by == "process" else "timing operator" in why

    until(under_way, 120.0, lambda: str(reasons[-1]))
    pids = [pid for pid, parent in watched.now().items() if parent == os.getpid()]
    assert bool(pids) is (by == "process")
    bot.offloaded.close()
    assert not set(pids) & set(watched.now()), "it has ended when closing has"
    until(lambda: opening_threads() == before, 60.0)
    assert bot.offloaded.unavailable_reason(Mode.SPLIT, [PICTURE]).endswith("was given up")
    assert os.getpid() not in watched.now().values(), "nothing is learnt anew"
    opened = pending["split_open"].result(120.0).body["handle"]
    until(lambda: "split_close" in pending, 60.0, lambda: "the server keeps what it has opened")
    pending["split_close"].result(60.0)
    assert closed == [{"handle": opened}]
    assert "split_table" not in pending, "it was not learnt to its end"


def test_a_server_stopped_while_learning_leaves_no_process(watched, learning_server, robot):
    bot = robot(learning_server.address, seed=73)
    until(lambda: bot.offloaded.unavailable_reason(Mode.SPLIT, [PICTURE]) is None
          or learning_server.process.pid in watched.now().values(), 60.0)  # fmt: skip
    pids = [pid for pid, parent in watched.now().items() if parent == learning_server.process.pid]
    assert pids, "it learns"
    assert learning_server.stop() == 0
    until(lambda: not set(pids) & set(watched.now()), 60.0)
