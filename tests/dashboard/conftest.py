"""A dashboard of a history that the test fills, and a real browser to look at it."""

from __future__ import annotations

import pytest

from edge_offload.dashboard.history import History
from edge_offload.dashboard.server import DashboardServer
from edge_offload.dashboard.source import RecordSource
from tests.dashboard.browser import Browser


class ScriptedSource(RecordSource):
    """A source that says what the test says."""

    def __init__(self) -> None:
        self.title = "robot"
        self.now_s = None
        self.state, self.text = "live", ""
        self.viewers = []

    def status(self):
        waits = {"latency": "/offload/latency", "picture": "/kapao/overlay/compressed", "server": "/server/status"}
        return {"state": self.state, "text": self.text, "now_s": self.now_s, "waits_for": waits}

    def set_viewers(self, viewers: int) -> None:
        self.viewers.append(viewers)


@pytest.fixture
def history():
    return History()


@pytest.fixture
def source():
    return ScriptedSource()


@pytest.fixture
def serve(history, source):
    """Start a dashboard on a free port; every one is closed after the test."""
    started = []

    def start(**options):
        server = DashboardServer(history, source, port=0, **options).start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()


@pytest.fixture(scope="session")
def browser():
    made = Browser()
    yield made
    made.close()
