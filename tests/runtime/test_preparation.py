"""Modes that take long to learn are prepared behind the first frames, and one after the other."""

from __future__ import annotations

from typing import Dict

import pytest

from edge_offload.manager.tuning import ENOUGH, PREPARATION_WAIT_S
from edge_offload.mode import Mode
from edge_offload.runtime import preparation
from edge_offload.runtime.preparation import Preparation


class Counts:
    """Counts frames as a forecaster does."""

    def __init__(self) -> None:
        self.ran: Dict[Mode, int] = {}

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
    counts.ran[Mode.SERVER] = ENOUGH
    assert lacking(prepared, "it is learnt") == ("", "it is prepared after replay")
    assert lacking(prepared) == ("", "it is prepared after replay"), "it is learnt, and not tried"
    counts.ran[Mode.REPLAY] = 1
    assert lacking(prepared) == ("", "it is prepared after replay")
    counts.ran[Mode.REPLAY] = 2
    assert lacking(prepared) == ("", "")
    assert lacking(prepared, "the server has gone") == ("", ""), "what has begun goes on"


def test_waits_are_bounded(counts):
    prepared = Preparation(counts, bridges=True)
    counts.now += PREPARATION_WAIT_S / 2
    assert all(lacking(prepared, "no compiler")), "no frame has come"
    counts.now += PREPARATION_WAIT_S / 2
    assert lacking(prepared, "no compiler") == ("", "")


def test_with_server_as_a_separate_candidate_replay_waits_for_nothing(counts):
    assert lacking(Preparation(counts, bridges=False), "it is learnt") == ("", "")
