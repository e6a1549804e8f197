"""Frames in flight ask for a mode at the same time: it is made, and so learnt and planned, once."""

from __future__ import annotations

import threading

from edge_offload.runtime.runners import made_once


def test_concurrent_callers_get_one_runner():
    begun, go = threading.Event(), threading.Event()
    made, got = [], []

    def make():
        made.append(object())
        begun.set()
        assert go.wait(60.0)
        return made[-1]

    once = made_once(make)
    threads = [threading.Thread(target=lambda: got.append(once())) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert begun.wait(60.0)
    assert not got, "it is being made"
    go.set()
    for thread in threads:
        thread.join(60.0)
    assert got == made * 4
    assert once() is made[0]
