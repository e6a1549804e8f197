"""A network as a compiled step: torch's bits, and torch itself where a step would not be the network."""

from __future__ import annotations

import itertools
import threading
from typing import Any, Callable, Dict, List, Tuple

import pytest
import torch
import torch.nn.functional as functional
from torch import nn

from edge_offload.execute.engines import seat as seats
from edge_offload.execute.engines.recorded.compiled_steps import CompiledSteps
from edge_offload.execute.engines.recorded.recording import record_calls
from edge_offload.execute.module import ModuleExecutor
from edge_offload.execute.session.native_runner import library
from tests.execute.native_runner import native_runner

STEPS = "eager+steps "
_seeds = itertools.count(1)


@pytest.fixture(params=["python", "native"])
def runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pure Python, and in C++."""
    monkeypatch.setattr(library, "module", None if request.param == "python" else native_runner())
    monkeypatch.setattr(library, "look", lambda: None)


class Function(nn.Module):
    """A network of one function, with a weight."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8, 8, generator=torch.Generator().manual_seed(0)))
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def four_calls(x: torch.Tensor) -> torch.Tensor:
    return (((x + 1) * 2).sigmoid() - 0.5).relu()


def frame() -> torch.Tensor:
    return torch.rand(4, 8, generator=torch.Generator().manual_seed(next(_seeds)))


def in_place(net: Function, x: torch.Tensor) -> torch.Tensor:
    y = x @ net.weight
    y[:, 2:4] += 1.5
    y.relu_()
    both = torch.zeros(2, *y.shape, dtype=y.dtype)
    both[0] = y
    both[1, :, :4].copy_(y[:, 4:])
    return both.transpose(0, 1).reshape(4, 16)


def views(net: Function, x: torch.Tensor) -> Tuple[torch.Tensor, ...]:
    y = four_calls(x.t() @ x)
    first, second = y.chunk(2)
    return first, second.permute(1, 0), y[::2, 1:], torch.cat([first, second], 1)


def attention(net: Function, x: torch.Tensor) -> torch.Tensor:
    q, k, v = (four_calls(x @ net.weight).view(1, 2, 4, 4) for _ in range(3))
    return functional.layer_norm(functional.scaled_dot_product_attention(q, k, v), (4,)).float()


def kinds(net: Function, x: torch.Tensor) -> Tuple[torch.Tensor, ...]:
    y = four_calls(x)
    top = y.topk(3)
    return top.indices.to(torch.uint8), top.values.double(), y > 0.2, torch.arange(4) * 2, y.sum()[None].half()


def passing(net: Function, x: torch.Tensor) -> Tuple[torch.Tensor, ...]:
    return x, net.weight, four_calls(x), x[1:]


ALIKE: Dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (in_place, views, attention, kinds, passing)
}


@pytest.mark.parametrize("name", ALIKE)
def test_each_frame_has_the_bits_of_torch_and_stays_as_it_was_given(name: str, runner: None) -> None:
    if name == "attention" and not hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"):
        pytest.skip("attention of this torch's CPU is no operator that a session runs: it is left to torch")
    network = Function(ALIKE[name]).eval()
    steps = CompiledSteps(record_calls(lambda inputs: _several(network(*inputs)), [frame()]))
    given = [frame() for _ in range(5)]
    results = [steps.run([x]) for x in given]
    with torch.inference_mode():
        for x, outputs in zip(given, results):
            want = _several(network(x))
            assert [(one.dtype, one.shape) for one in outputs] == [(one.dtype, one.shape) for one in want]
            assert all(torch.equal(one, other) for one, other in zip(outputs, want))


def _several(result: Any) -> List[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


def test_attention_that_returns_sizes_is_recorded_as_a_graph() -> None:
    """As that of GPUs does, and of the CPU up to torch 2.1."""
    network, x = Function(attention).eval(), frame()
    recording = record_calls(lambda inputs: _several(network(*inputs)), [x])
    graph = torch.fx.GraphModule({}, recording.graph)
    assert torch.equal(graph(*recording.constants, x)[0], network(x))


def test_a_frame_that_lies_otherwise_is_read_as_what_it_is(runner: None) -> None:
    network = Function(in_place).eval()
    steps = CompiledSteps(record_calls(lambda inputs: [network(*inputs)], [frame()]))
    block = torch.rand(6, 8)
    for x in (block[2:], torch.rand(8, 4).t(), block[::2].repeat(2, 1)[1:5]):
        assert torch.equal(steps.run([x])[0], network(x.contiguous()))


def computed_by(network: nn.Module, frames: int = 6) -> str:
    """Runs frames on an executor as a server's; each has to be right. What computed the last one."""
    executor = ModuleExecutor(network, engine="exact")
    done = executor.run_module([frame()])
    assert executor.engine_ready(60)
    for _ in range(frames):
        x = frame()
        done = executor.run_module([x])
        with torch.inference_mode():
            assert all(torch.equal(one, other) for one, other in zip(done.outputs, _several(network(x))))
    assert not executor.engine_state()[1], "nobody has to look at it"
    return done.engine


def test_a_servers_network_is_computed_by_steps_once_they_were_compared() -> None:
    assert seats.TRIALS < 6
    network = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.SiLU(), nn.Linear(6, 3), nn.Softmax(1)).eval()
    assert computed_by(network).startswith(STEPS)
    assert ModuleExecutor(network).run_module([frame()]).engine == "eager", "a robot's is as ever"


def by_item(net: Function, x: torch.Tensor) -> torch.Tensor:
    return four_calls(x) if x.sum().item() > 16 else four_calls(-x)


def by_list(net: Function, x: torch.Tensor) -> torch.Tensor:
    return four_calls(x) * max(x[0].tolist())


def by_array(net: Function, x: torch.Tensor) -> torch.Tensor:
    return four_calls(x) * torch.from_numpy(x.numpy().copy())


def by_mask(net: Function, x: torch.Tensor) -> torch.Tensor:
    return four_calls(x)[x > 0.5]


def by_places(net: Function, x: torch.Tensor) -> torch.Tensor:
    return four_calls(x).nonzero()


def by_chance(net: Function, x: torch.Tensor) -> torch.Tensor:
    return four_calls(x) + torch.rand(4, 8) * 0


def few(net: Function, x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize("function", [by_item, by_list, by_array, by_mask, by_places, by_chance, few])
def test_what_a_step_would_not_be_is_left_to_torch(function: Callable[..., Any]) -> None:
    assert computed_by(Function(function)) == "eager"


def test_a_network_that_remembers_the_last_frame_is_left_to_torch() -> None:
    executor = ModuleExecutor(Function(recurrent), engine="exact")
    engines = set()
    for number in range(8):
        x = frame()
        done = executor.run_module([x])
        assert executor.engine_ready(60)
        if number > seats.TRIALS + 1:
            engines.add(done.engine)
    assert engines == {"eager"}


def recurrent(net: Function, x: torch.Tensor) -> torch.Tensor:
    state = four_calls(x) + 0.5 * getattr(net, "state", torch.zeros(4, 8))
    net.state = state
    return state


def test_a_network_that_stores_what_it_computes_goes_on_after_it_was_recorded() -> None:
    def storing(net: Function, x: torch.Tensor) -> torch.Tensor:
        if getattr(net, "grid", None) is None or x.shape != net.shape:
            net.grid, net.shape = torch.arange(x.numel()).view(x.shape) / 7, x.shape
        return four_calls(x) * net.grid

    network = Function(storing)
    steps = CompiledSteps(record_calls(lambda inputs: [network(*inputs)], [frame()]))
    x = frame()
    assert torch.equal(network(x), Function(storing)(x))
    assert torch.equal(steps.run([x])[0], Function(storing)(x))


def test_other_threads_run_while_a_step_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "module", native_runner())
    network = nn.Sequential(*(nn.Linear(600, 600) for _ in range(6))).eval()
    steps = CompiledSteps(record_calls(lambda inputs: [network(*inputs)], [torch.rand(600, 600)]))
    x, ticks, ends = torch.rand(600, 600), [0], threading.Event()

    def tick() -> None:
        while not ends.wait(0.001):
            ticks[0] += 1

    other = threading.Thread(target=tick)
    other.start()
    try:
        before = ticks[0]
        steps.run([x])
        during = ticks[0] - before
    finally:
        ends.set()
        other.join()
    assert during > 5
