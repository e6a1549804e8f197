"""A program's first connection: one that breaks while the session is opened is made again, as long as it may wait."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from edge_offload.device import connect
from edge_offload.errors import LinkLost


class BrokenLink:
    """A client whose connection breaks during the first requests.

    Args:
        breaks: requests that fail.
        silent: no connection is made after the first one.
    """

    def __init__(self, breaks, silent=False):
        self.welcome = {"fingerprint": {"torch": "1.0.0"}}
        self.breaks, self.silent, self.requests, self.closed = breaks, silent, 0, False

    def wait_ready(self, timeout_s):
        if self.silent and self.requests:
            raise LinkLost("no connection within the time")
        return self.welcome

    def request(self, kind, body, timeout_s):
        self.requests += 1
        future = Future()
        if self.requests <= self.breaks:
            future.set_exception(LinkLost("the connection broke"))
        else:
            future.set_exception(ValueError("the request came through"))
        return future

    def close(self):
        self.closed = True


def open_session(monkeypatch, client, wait_s):
    monkeypatch.setattr(connect, "_dialled", client)
    return connect.connect(connect.ExecSettings(server="tcp://127.0.0.1:1", wait_s=wait_s))


def test_a_connection_that_breaks_at_the_start_is_made_again(monkeypatch):
    client = BrokenLink(breaks=2)
    with pytest.raises(ValueError, match="came through"):
        open_session(monkeypatch, client, wait_s=30.0)
    assert client.requests == 3


def test_the_wait_ends_and_the_client_is_closed(monkeypatch):
    client = BrokenLink(breaks=9, silent=True)
    with pytest.raises(LinkLost, match="within the time"):
        open_session(monkeypatch, client, wait_s=30.0)
    assert client.closed
    client = BrokenLink(breaks=9)
    with pytest.raises(LinkLost, match="broke"):
        open_session(monkeypatch, client, wait_s=0.0)
    assert client.closed
    assert client.requests == 1
