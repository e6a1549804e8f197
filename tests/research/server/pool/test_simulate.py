"""The largest load that a plan bears."""

from __future__ import annotations

import pytest

from edge_offload_research.server.pool.simulate import load_factor


def test_load_factor_is_the_last_step_that_holds() -> None:
    assert load_factor(lambda load: 1.0 if load <= 0.651 else 0.9) == pytest.approx(0.65)
    assert load_factor(lambda load: 0.5) == 0
    assert load_factor(lambda load: 1.0) == 1
