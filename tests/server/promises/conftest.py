"""Plans of these tests do not depend on when the compiled planner is built."""

from __future__ import annotations

import pytest

from edge_offload.server.promises import windows


@pytest.fixture(scope="package", autouse=True)
def planner_is_built() -> None:
    """Where there is a compiler."""
    windows.is_ready(wait=True)
