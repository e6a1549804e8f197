"""A server without robots sleeps."""

from __future__ import annotations

import pathlib
import threading
import time

import pytest


def sleeps(thread: threading.Thread) -> int:
    """How often a thread has gone to sleep."""
    text = pathlib.Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    return int(text.split("voluntary_ctxt_switches:")[1].split()[0])


@pytest.mark.process
def test_threads_wake_seldom_where_no_one_is_connected_and_a_robot_is_admitted_at_once(serve, connect):
    before = set(threading.enumerate())
    server = serve()
    mine = [thread for thread in threading.enumerate() if thread not in before and thread.is_alive()]
    assert mine
    time.sleep(0.3)
    first = {thread: sleeps(thread) for thread in mine}
    time.sleep(1.5)
    assert all(sleeps(thread) - count <= 6 for thread, count in first.items()), "a look a second"
    client = connect(server.address)
    client.wait_ready(60)
    assert client.request("echo", {"a": 1}).result(60).body == {"a": 1}
