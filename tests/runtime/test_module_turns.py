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


class _PreparedRunner(Runner):
    """A mode that says why it is not ready, and counts who asks."""

    def __init__(self, mode: Mode) -> None:
        self.mode, self.why, self.calls = mode, f"{mode} is being learnt", 0

    def unavailable_reason(self, inputs):
        self.calls += 1
        return self.why or None

    def attempt_inference(self, inputs, meta, budget):
        raise AssertionError("nothing is run")

    def state(self):
        return ""


def test_frames_precede_replay_and_split_and_one_frame_measures_neither(monkeypatch):
    module = OffloadedModule("double", nn.Identity(), candidates=[Mode.REPLAY, Mode.SPLIT])
    runners = {mode: _PreparedRunner(mode) for mode in (Mode.SERVER, Mode.REPLAY, Mode.SPLIT)}
    runners[Mode.SERVER].why = ""
    for runner in runners.values():
        module.add_runner(runner)

    def reason_of(mode):
        return module.situation([torch.ones(3)]).forecasts[mode].unavailable_reason

    assert reason_of(Mode.REPLAY) == "it is prepared when frames run"
    assert reason_of(Mode.SERVER) == ""
    for frame in range(ENOUGH):
        module.costs.forecaster.learn_report(
            frame, InferenceReport(Mode.SERVER, "", 0.1, round_trips=1), module.reading(0.0)
        )
    assert reason_of(Mode.REPLAY) == "replay is being learnt"
    assert reason_of(Mode.SPLIT) == "it is prepared after replay"
    assert runners[Mode.SPLIT].calls == 0
    runners[Mode.REPLAY].why = ""
    for measured in (False, True):
        assert reason_of(Mode.SPLIT) == "it is prepared after replay", "which has to be tried first"
        module.costs.forecaster.learn_report(
            20.0, InferenceReport(Mode.REPLAY, "", 0.1, round_trips=1), module.reading(0.0)
        )
        assert module.situation([torch.ones(3)]).forecasts[Mode.REPLAY].measured is measured
    assert reason_of(Mode.SPLIT) == "split is being learnt"
    runners[Mode.REPLAY].why = "the virtual device is lost"
    assert reason_of(Mode.SPLIT) == "split is being learnt", "what has begun goes on"
    module.close()


def test_split_does_not_wait_for_a_replay_that_never_comes(monkeypatch):
    monkeypatch.setattr(preparation, "PREPARATION_WAIT_S", 0.0)
    module = OffloadedModule("double", nn.Identity(), candidates=[Mode.REPLAY, Mode.SPLIT])
    for mode in (Mode.REPLAY, Mode.SPLIT):
        module.add_runner(_PreparedRunner(mode))
    assert module.situation([torch.ones(3)]).forecasts[Mode.SPLIT].unavailable_reason == "split is being learnt"
    module.close()


def test_with_a_fixed_mode_nothing_slow_is_prepared():
    module = OffloadedModule("double", nn.Identity(), candidates=[Mode.REPLAY, Mode.SPLIT])
    replay = _PreparedRunner(Mode.REPLAY)
    module.add_runner(replay)
    forecast = module.situation([torch.ones(3)], choosing=False).forecasts[Mode.REPLAY]
    assert (forecast.unavailable_reason, replay.calls) == ("it is prepared when a policy chooses", 0)
