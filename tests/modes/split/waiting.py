"""Waiting for what other threads and processes do."""

import time


def until(condition, timeout_s, what=lambda: ""):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"still not so after {timeout_s} s: {what()}"
        time.sleep(0.01)
