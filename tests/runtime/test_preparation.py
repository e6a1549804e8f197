"""Modes that take long to learn are prepared behind the first frames, and one after the other."""

from __future__ import annotations

from typing import Dict

import pytest

from edge_offload.manager.forecast import Forecast
from edge_offload.manager.policy import BRIDGE_OVER
from edge_offload.mode import Mode
from edge_offload.runtime import preparation
from edge_offload.runtime.preparation import (
    FIRST_FRAMES,
    FIRST_S,
    IN_TURN_S,
    PLANS_FIRST,
    PLANS_S,
    TRIALS,
    Preparation,
)


class Counts:
    """Counts frames as a forecaster does."""

    def __init__(self) -> None:
        self.ran: Dict[Mode, int] = {}
        self.trials: Dict[Mode, int] = {}

    def frames(self, mode: Mode) -> int:
        return self.ran.get(mode, 0)


@pytest.fixture
def counts(monkeypatch):
    made = Counts()
    made.now = 100.0
    monkeypatch.setattr(preparation.time, "monotonic", lambda: made.now)
    return made


def lacking(prepared, replay=""):
    """Why the two cannot be prepared, asked in their order; ``replay``: why that cannot run."""
    first = prepared.not_yet(Mode.REPLAY, {})
    return first, prepared.not_yet(Mode.SPLIT, {Mode.REPLAY: first or replay})


def test_first_frames_then_replay_then_its_trials_then_split(counts):
    prepared = Preparation(counts, bridges=True)
    assert all(lacking(prepared))
    counts.ran[Mode.SERVER] = FIRST_FRAMES
    assert lacking(prepared, "it is learnt") == ("", "it is prepared after replay")
    assert lacking(prepared) == ("", "it is prepared after replay"), "it is learnt, and not tried"
    counts.ran[Mode.REPLAY] = TRIALS - 1
    assert lacking(prepared) == ("", "it is prepared after replay")
    counts.ran[Mode.REPLAY] = TRIALS
    assert lacking(prepared) == ("", "")
    assert lacking(prepared, "the server has gone") == ("", ""), "what has begun goes on"


def test_nobody_waits_for_ever(counts):
    prepared = Preparation(counts, bridges=True)
    counts.now += FIRST_S
    assert lacking(prepared, "no compiler") == ("", "it is prepared after replay")
    counts.now += IN_TURN_S
    assert lacking(prepared, "no compiler") == ("", "")


def test_where_server_is_a_candidate_of_its_own_nothing_waits(counts):
    assert lacking(Preparation(counts, bridges=False), "it is learnt") == ("", "")


class Split:
    """Whose plans are made, or not."""

    def __init__(self) -> None:
        self.makes = True

    def opening(self, inputs):
        return self.makes


def reasons(prepared, split, server=""):
    """Why replay and server are not to be chosen; replay's trial looked faster than server."""
    forecasts = {
        Mode.REPLAY: Forecast(Mode.REPLAY, 0.05, 0.001),
        Mode.SERVER: Forecast(Mode.SERVER, 0.06, 0.001, unavailable_reason=server),
    }
    found = prepared.bridged(forecasts, split, ())
    return found[Mode.REPLAY].unavailable_reason, found[Mode.SERVER].unavailable_reason


def test_the_server_answers_while_plans_are_made_whatever_a_trial_looked_like(counts):
    prepared, split = Preparation(counts, bridges=True), Split()
    counts.ran = {Mode.SERVER: FIRST_FRAMES}
    assert reasons(prepared, None) == ("", BRIDGE_OVER), "no plans are made yet: replay is tried"
    lacking(prepared)
    counts.ran[Mode.REPLAY] = TRIALS
    lacking(prepared)
    assert reasons(prepared, split) == (PLANS_FIRST, "")
    assert reasons(prepared, split, "it has gone") == ("", "it has gone"), "nobody stands in"
    split.makes = False
    assert reasons(prepared, split) == ("", BRIDGE_OVER)
    split.makes = True
    assert reasons(prepared, split) == ("", BRIDGE_OVER), "plans for another objective, or of another connection"


def test_nobody_waits_for_plans_for_ever(counts):
    prepared, split = Preparation(counts, bridges=True), Split()
    counts.ran = {Mode.SERVER: FIRST_FRAMES, Mode.REPLAY: TRIALS}
    lacking(prepared)
    counts.now += PLANS_S / 2
    assert reasons(prepared, split) == (PLANS_FIRST, "")
    counts.now += PLANS_S / 2
    assert reasons(prepared, split) == ("", BRIDGE_OVER)
    assert reasons(Preparation(counts, bridges=False), split) == ("", "")
