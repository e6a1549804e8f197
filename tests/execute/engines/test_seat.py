"""An engine takes over when it gives what torch gives, and no frame waits for it or is lost by it."""

import itertools

import pytest
import torch
from torch import nn

from edge_offload.errors import BadInput
from edge_offload.execute.engines import seat as seats
from edge_offload.execute.engines import table
from edge_offload.execute.engines.base import find_mismatch, installed_version
from edge_offload.execute.module import ModuleExecutor
from tests.execute.engines.conftest import Doubling

_numbers = itertools.count(1)


def frame() -> torch.Tensor:
    return torch.arange(6, dtype=torch.float32) + next(_numbers)


def answer(executor: ModuleExecutor, x: torch.Tensor) -> str:
    """Runs one frame, whose result must be right, and says what computed it."""
    done = executor.run_module([x])
    assert torch.equal(done.outputs[0], 2 * x)
    return done.engine


def in_force(network: nn.Module) -> ModuleExecutor:
    executor = ModuleExecutor(network, engine="stand-in")
    answer(executor, frame())
    assert executor.engine_ready(60)
    for _ in range(seats.TRIALS):
        assert answer(executor, frame()) == "eager", "it is compared first"
    assert answer(executor, frame()).startswith("stand-in "), executor.engine_state()
    return executor


def test_an_engine_replaces_torch_after_a_comparison_on_real_frames(stand_in):
    assert in_force(Doubling()).engine_state()[1] is False


def test_no_frame_waits_for_a_build(stand_in):
    stand_in.may_build.clear()
    executor = ModuleExecutor(Doubling(), engine="stand-in")
    assert [answer(executor, frame()) for _ in range(3)] == ["eager"] * 3
    state, amber = executor.engine_state()
    assert amber
    assert "is being built" in state
    stand_in.may_build.set()
    assert executor.engine_ready(60)


@pytest.mark.parametrize("wrong", [2.002, float("nan"), 0.0])
def test_an_engine_that_computes_something_else_never_replaces_torch(stand_in, wrong):
    stand_in.factor = wrong
    executor = ModuleExecutor(Doubling(), engine="stand-in")
    answer(executor, frame())
    assert executor.engine_ready(60)
    assert [answer(executor, frame()) for _ in range(4)] == ["eager"] * 4
    assert "output 0 is off by" in executor.engine_state()[0]


def test_an_engine_that_is_wrong_only_on_real_frames_never_replaces_torch(stand_in):
    executor = ModuleExecutor(Doubling(), engine="stand-in")
    answer(executor, frame())
    assert executor.engine_ready(60)
    stand_in.factor = 2.002
    assert [answer(executor, frame()) for _ in range(4)] == ["eager"] * 4


def test_empty_frames_are_no_trial(stand_in):
    executor = ModuleExecutor(Doubling(), engine="stand-in")
    assert [answer(executor, torch.zeros(6)) for _ in range(2)] == ["eager"] * 2
    assert executor.engine_ready(60)
    assert [answer(executor, torch.zeros(6)) for _ in range(4)] == ["eager"] * 4
    assert "compared with torch" in executor.engine_state()[0]


def test_an_engine_that_raises_gives_the_frame_to_torch_and_is_retired(stand_in):
    executor = in_force(Doubling())
    stand_in.fails = True
    assert [answer(executor, frame()) for _ in range(2)] == ["eager"] * 2
    assert executor.engine_state() == (f"eager: stand-in {installed_version(stand_in)} fp32: it failed: RuntimeError: "
                                       "the driver is gone", True)  # fmt: skip


def test_an_engine_that_hangs_gives_the_frame_to_torch_and_is_retired(stand_in, monkeypatch):
    monkeypatch.setattr(seats, "MIN_HANG_S", 0.05)
    executor = in_force(Doubling())
    stand_in.may_run.clear()
    assert [answer(executor, frame()) for _ in range(2)] == ["eager"] * 2
    stand_in.may_run.set()
    assert "did not answer within" in executor.engine_state()[0]


def test_a_network_that_changes_its_state_stays_with_torch(stand_in):
    class Counting(Doubling):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            return super().forward(x)

    executor = ModuleExecutor(Counting(), engine="stand-in")
    assert [answer(executor, frame()) for _ in range(3)] == ["eager"] * 3
    assert "changes its own state" in executor.engine_state()[0]
    assert stand_in.builds == 0


def test_a_network_that_reads_values_in_python_stays_with_torch(stand_in):
    class Branching(Doubling):
        def forward(self, x):
            return x + x if x.sum() > 30 else super().forward(x)

    executor = ModuleExecutor(Branching(), engine="stand-in")
    answer(executor, frame())
    assert executor.engine_ready(60)
    assert answer(executor, frame()) == "eager"
    assert "cannot be exported to ONNX" in executor.engine_state()[0]


def test_a_few_shapes_have_an_engine_each_and_further_ones_none(stand_in):
    executor = ModuleExecutor(Doubling(), engine="stand-in")
    for length in range(2, 2 + seats.MOST_SHAPES + 3):
        answer(executor, torch.arange(length, dtype=torch.float32))
    assert executor.engine_ready(60)
    assert stand_in.builds == seats.MOST_SHAPES


def test_a_requested_engine_must_exist():
    with pytest.raises(BadInput, match="no engine 'speed'; use one of: eager, auto, exact, onnxruntime, openvino, "):
        ModuleExecutor(Doubling(), engine="speed")


def test_without_packages_auto_is_torch_with_a_notice(monkeypatch):
    monkeypatch.setattr(table, "installed_version", lambda backend: None)
    executor = ModuleExecutor(Doubling(), engine="auto")
    assert executor.run_module([frame()]).engine == "eager"
    assert executor.engine_state() == (f"eager: no engine is installed; {table.INSTALL}", True)


def test_outputs_are_compared_relative_to_their_range():
    want, inf = torch.tensor([1000.0, 1.0]), torch.tensor([float("inf"), 1.0])
    assert find_mismatch([want], [want + 0.019], 2e-5) == ""
    assert "off by" in find_mismatch([want], [want + 0.021], 2e-5)
    assert find_mismatch([inf], [inf], 0.0) == ""
    assert "off by nan" in find_mismatch([inf], [want], 1.0)
    assert "no floating-point" in find_mismatch([torch.tensor([1])], [torch.tensor([2])], 1.0)
    assert "instead of" in find_mismatch([want], [want[:1]], 1.0)
