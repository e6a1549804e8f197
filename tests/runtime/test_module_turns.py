"""In which order a module's modes are prepared: frames first, then ``replay``, then ``split``."""

from __future__ import annotations

import torch
from torch import nn

from edge_offload.manager.tuning import ENOUGH
from edge_offload.mode import Mode
from edge_offload.modes.runner import Runner
from edge_offload.runtime import preparation
from edge_offload.runtime.module import OffloadedModule
from edge_offload.timing import InferenceReport


class _Learnt(Runner):
    """A mode that says why it is not ready, and counts who asks."""

    def __init__(self, mode: Mode) -> None:
        self.mode, self.why, self.asked = mode, f"{mode} is being learnt", 0

    def unavailable_reason(self, inputs):
        self.asked += 1
        return self.why or None

    def run(self, inputs, meta, budget):
        raise AssertionError("nothing is run")

    def state(self):
        return ""


def test_frames_come_first_then_replay_then_split_and_one_frame_makes_neither_known(monkeypatch):
    module = OffloadedModule("double", nn.Identity(), candidates=[Mode.REPLAY, Mode.SPLIT])
    learnt = {mode: _Learnt(mode) for mode in (Mode.SERVER, Mode.REPLAY, Mode.SPLIT)}
    learnt[Mode.SERVER].why = ""
    for runner in learnt.values():
        module.add_runner(runner)

    def said(mode):
        return module.situation([torch.ones(3)]).forecasts[mode].unavailable_reason

    assert said(Mode.REPLAY) == "it is prepared when frames run"
    assert said(Mode.SERVER) == ""
    for frame in range(ENOUGH):
        module.costs.forecaster.note(frame, InferenceReport(Mode.SERVER, "", 0.1, round_trips=1), module.reading(0.0))
    assert said(Mode.REPLAY) == "replay is being learnt"
    assert said(Mode.SPLIT) == "it is prepared after replay"
    assert learnt[Mode.SPLIT].asked == 0
    learnt[Mode.REPLAY].why = ""
    for known in (False, True):
        assert said(Mode.SPLIT) == "it is prepared after replay", "which has to be tried first"
        module.costs.forecaster.note(20.0, InferenceReport(Mode.REPLAY, "", 0.1, round_trips=1), module.reading(0.0))
        assert module.situation([torch.ones(3)]).forecasts[Mode.REPLAY].measured is known
    assert said(Mode.SPLIT) == "split is being learnt"
    learnt[Mode.REPLAY].why = "the virtual device is lost"
    assert said(Mode.SPLIT) == "split is being learnt", "what has begun goes on"
    module.close()


def test_split_does_not_wait_for_a_replay_that_never_comes(monkeypatch):
    monkeypatch.setattr(preparation, "IN_TURN_S", 0.0)
    module = OffloadedModule("double", nn.Identity(), candidates=[Mode.REPLAY, Mode.SPLIT])
    for mode in (Mode.REPLAY, Mode.SPLIT):
        module.add_runner(_Learnt(mode))
    assert module.situation([torch.ones(3)]).forecasts[Mode.SPLIT].unavailable_reason == "split is being learnt"
    module.close()


def test_while_a_mode_is_held_by_name_nothing_that_takes_long_is_prepared():
    module = OffloadedModule("double", nn.Identity(), candidates=[Mode.REPLAY, Mode.SPLIT])
    replay = _Learnt(Mode.REPLAY)
    module.add_runner(replay)
    held = module.situation([torch.ones(3)], choosing=False).forecasts[Mode.REPLAY]
    assert (held.unavailable_reason, replay.asked) == ("it is prepared when a policy chooses", 0)
