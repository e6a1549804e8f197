"""Executors that are forked: quick after the first one, and each is its own process whose end is reported."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest

from edge_offload.errors import LinkLost
from edge_offload.execute.session.note import wait_until_ready
from edge_offload.server.services.device import forking
from edge_offload.server.services.device.executor import ExecutorProcess

OPTIONS = ("--device", "cpu", "--threads", "1")


def started():
    executor = ExecutorProcess(OPTIONS)
    started_s = time.monotonic()
    wait_until_ready(executor.start())
    return executor, time.monotonic() - started_s


def fork_servers():
    return [
        child
        for child in psutil.Process().children()
        if child.status() != psutil.STATUS_ZOMBIE and "edge_offload.server.services.device.forking" in child.cmdline()
    ]


def running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.process
def test_executors_start_at_once_and_report_their_end(monkeypatch):
    earlier = fork_servers()
    monkeypatch.setattr(forking, "_shared", None)
    first, first_s = started()
    second, second_s = started()
    (server,) = [process for process in fork_servers() if process not in earlier]
    pids = [child.pid for child in server.children()]
    assert len(pids) == 2
    third, third_s = started()
    assert min(second_s, third_s) < 0.5 * first_s, "what the first one imported is there for later ones"
    (of_third,) = {child.pid for child in server.children()} - set(pids)
    os.kill(of_third, signal.SIGSEGV)
    assert third.explain_exit() == ", signal 11"
    # without the process that forked them they go on, and can still be ended
    server.kill()
    server.wait(10)
    assert all(running(pid) for pid in pids)
    first.kill_process()
    second.kill_process()
    ends_s = time.monotonic() + 20
    while any(running(pid) for pid in pids):
        assert time.monotonic() < ends_s, "they were killed"
        time.sleep(0.05)
    restarted, _ = started()
    restarted.kill_process()
    assert restarted.explain_exit() == ", signal 9"


@pytest.mark.process
def test_an_executor_has_the_variables_of_its_server(monkeypatch):
    retained, _ = started()
    other = "EDGE_OFFLOAD_ANOTHER"
    monkeypatch.setenv(other, "1")
    executor, _ = started()
    values = [process.environ().get(other) for process in fork_servers()]
    assert "1" in values, "read while modules are imported: another process forks it"
    executor.kill_process()
    retained.kill_process()


@pytest.mark.process
def test_what_cannot_be_imported_is_no_executor(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('there is no torch')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    executor = ExecutorProcess(OPTIONS)
    with pytest.raises(LinkLost):
        wait_until_ready(executor.start())
    executor.kill_process()
