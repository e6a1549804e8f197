"""TorchInductor on a server: close results, that say so, and exact ones while and where it cannot compile."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from edge_offload.errors import BadInput
from edge_offload.execute.engines.base import CLOSE, TOLERANCE, installed_version, relative_error
from edge_offload.execute.engines.recorded import inductor
from edge_offload.execute.module import ModuleExecutor
from edge_offload.mode import Mode
from edge_offload.native.recipe import compiler
from edge_offload.older_torch import RELEASE
from tests.execute.engines.test_answers import DENSE, PATIENT, until_computed_by
from tests.server.small_nets import dense

LABEL = f"inductor {installed_version(inductor.InductorBackend())} fp32 close"


def frame() -> torch.Tensor:
    return torch.rand(1, 3, 32, 32)


class Stubborn:
    """In the place of the compiler, whose faults the test chooses; it computes what torch does."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.error = ""

    def __call__(self, graph: Any, inputs: Any) -> Any:
        assert self.may_end.wait(60)
        if self.error:
            raise RuntimeError(self.error)
        return graph


@pytest.fixture
def stubborn(monkeypatch: pytest.MonkeyPatch) -> Stubborn:
    made = Stubborn()
    if RELEASE < (2, 1):
        pytest.skip("TorchInductor of torch 2.0 asks for AMD's compiler when it is imported")
    if RELEASE < (2, 5):  # it starts compilers when it is imported
        monkeypatch.setattr("torch._inductor.config.compile_threads", 1)
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", made)
    monkeypatch.setattr(inductor, "compiler", lambda: ["c++"])
    return made


def answers(executor: ModuleExecutor, network: nn.Module, frames: int) -> list:
    """What computed each of so many frames, which have torch's bits."""
    names = []
    for _ in range(frames):
        x = frame()
        done = executor.run_module([x])
        with torch.inference_mode():
            assert torch.equal(done.outputs[0], network(x))
        names.append(done.engine.split()[0])
    return names


def test_frames_are_exact_while_it_compiles(stubborn: Stubborn) -> None:
    network = dense().eval()
    executor = ModuleExecutor(network, engine="inductor")
    names = answers(executor, network, 1)
    while names[-1] == "eager":
        names += answers(executor, network, 1)
    assert set(names) == {"eager", "eager+steps"}, "the steps were not kept waiting"
    assert "is being built" in executor.engine_state()[0]
    stubborn.may_end.set()
    assert executor.engine_ready(60)
    assert answers(executor, network, 3) == ["eager+steps", "eager+steps", "inductor"]
    assert executor.run_module([frame()]).engine == LABEL


def test_what_it_cannot_compile_is_exact_and_says_why(stubborn: Stubborn) -> None:
    network = dense().eval()
    stubborn.error = "no such kernel"
    stubborn.may_end.set()
    executor = ModuleExecutor(network, engine="inductor")
    answers(executor, network, 1)
    assert executor.engine_ready(60)
    assert answers(executor, network, 6)[-1] == "eager+steps"
    state, amber = executor.engine_state()
    assert amber
    assert "no such kernel" in state


def test_without_a_compiler_one_line_says_so_and_frames_are_exact(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(inductor, "compiler", lambda: None)
    network = dense().eval()
    executor = ModuleExecutor(network, engine="inductor")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "engine 'inductor' is absent: needs a C++ compiler; install g++ (apt-get install g++); torch computes"
    )
    answers(executor, network, 1)
    assert executor.engine_ready(60)
    assert answers(executor, network, 6)[-1] == "eager+steps"
    assert executor.engine_state()[1]


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_a_robot_gets_close_results_that_say_so(served: Any) -> None:
    from edge_offload.runtime.module import OffloadedModule

    client = served("inductor", DENSE)
    module = OffloadedModule(DENSE, dense(), client, hedging=False, patience=PATIENT)
    names = until_computed_by(module, Mode.SERVER, "inductor", frame)
    assert names[-1] == LABEL
    for _ in range(20):
        x = frame()
        outputs, report = module.run_inference([x], Mode.SERVER)
        assert (report.mode, report.engine) == (Mode.SERVER, LABEL)
        assert relative_error(module.run_inference([x], Mode.LOCAL)[0][0], outputs[0]) <= TOLERANCE[CLOSE]
    assert "may differ in the last digits" in module.state()["server"]


def test_fast_is_one_choice_of_what_computes() -> None:
    from edge_offload.commands.serve import pick_engine

    assert pick_engine("fast", None) == "inductor"
    assert pick_engine("exact", None) == "exact"
    assert pick_engine("exact", "auto,movenet=openvino:bf16") == "auto,movenet=openvino:bf16"
    with pytest.raises(BadInput, match="--compute fast and --engine both say what computes; leave one of them out"):
        pick_engine("fast", "auto")
