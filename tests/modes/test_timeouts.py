"""How long a frame waits: long enough for a normal reply, bounded, and within the deadline."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_offload.errors import BadInput
from edge_offload.execute.module import ModuleExecutor
from edge_offload.modes.local import LocalRunner
from edge_offload.modes.remote import TimeoutLimits, TimeoutPolicy

NO_HURRY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
SECONDS = st.floats(1e-4, 20)


@NO_HURRY
@given(st.lists(SECONDS, max_size=16), st.one_of(st.none(), SECONDS), SECONDS)
def test_wait_is_bounded_and_leaves_room_for_the_local_result(trips, deadline, local):
    patience = TimeoutPolicy(TimeoutLimits(cap_s=3.0))
    for trip in trips:
        patience.note(trip)
    wait = patience.wait_s(deadline, local)
    assert 0 <= wait <= 3.0
    if deadline is not None and deadline - local >= max(trips, default=0.0):
        assert wait <= deadline - local


def test_a_slow_robot_with_a_tight_deadline_still_asks_the_server():
    patience = TimeoutPolicy()
    patience.note(0.05)
    assert patience.wait_s(deadline_s=0.1, local_s=0.8) > 0.05, "only the server can be in time"
    assert patience.wait_s(deadline_s=0.04, local_s=0.8) > 0.05, "nobody can, but the server is faster"
    assert patience.wait_s(deadline_s=0.04, local_s=0.01) <= 0.03, "only the robot can"


@NO_HURRY
@given(st.lists(SECONDS, min_size=1, max_size=16))
def test_as_slow_as_lately_is_not_late(trips):
    patience = TimeoutPolicy(TimeoutLimits(cap_s=100.0))
    for trip in trips:
        patience.note(trip)
    assert patience.wait_s() >= max(trips)


def test_late_replies_teach_patience():
    patience = TimeoutPolicy()
    patience.note(0.01)
    before = patience.wait_s()
    for _ in range(16):
        patience.note(0.5)
    assert patience.wait_s() > before
    assert patience.expected_s() == 0.5


@pytest.mark.parametrize("factor", [0.5, 0.0, -1.0, float("nan"), float("inf")])
def test_slowdown_below_one_is_refused(factor):
    import torch

    with pytest.raises(BadInput, match="robot_slowdown"):
        LocalRunner(ModuleExecutor(torch.nn.Identity()), factor)
