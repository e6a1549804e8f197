"""Mode local: what it is expected to take goes by what computes now."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from edge_offload.errors import BadInput
from edge_offload.execute.module import ModuleExecutor
from edge_offload.modes import local
from edge_offload.modes.local import LocalRunner


class Noting(ModuleExecutor):
    """Says why another device computes, while there is a reason."""

    note = ""

    def run_module(self, inputs):
        return replace(super().run_module(inputs), note=self.note)


def test_a_gpus_time_is_not_expected_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Noting(nn.Identity())
    runner = LocalRunner(executor)
    clock = iter(range(1000))
    seconds = 0.5

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return next(clock) * seconds

    monkeypatch.setattr(local, "time", Clock)
    for _ in range(5):
        assert runner.attempt_inference([torch.ones(1)]).note == ""
    assert runner.expected_s() == 0.5
    executor.note, seconds = "computed on the CPU in place of cuda", 8.0
    assert runner.attempt_inference([torch.ones(1)]).note == executor.note
    assert runner.expected_s() == 8.0, "at once, and not after half of the frames that are kept"
    executor.note, seconds = "", 0.25
    runner.attempt_inference([torch.ones(1)])
    assert runner.expected_s() == 0.25


@pytest.mark.parametrize("factor", [0.5, 0.0, -1.0, float("nan"), float("inf")])
def test_slowdown_below_one_is_refused(factor: float) -> None:
    with pytest.raises(BadInput, match="robot_slowdown"):
        LocalRunner(ModuleExecutor(nn.Identity()), factor)
