"""Tensor parallelism as a plan: it computes what the network computes, and sends every layer whole, both ways."""

from __future__ import annotations

import pytest
import torch

from edge_offload.split.model.plan import Side
from edge_offload.split.runtime.tracing import trace_module
from edge_offload_benchmarks.tensor_parallel import tensor_parallel
from edge_offload_research.split.model.run_plan import run_plan

NET = torch.nn.Sequential(
    torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 2),
).eval()  # fmt: skip


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_every_layer_is_gathered_and_the_result_is_right(share: float) -> None:
    x = torch.randn(1, 3, 16, 16)
    network = trace_module("net", NET, [x])
    plan = tensor_parallel(network.located, share)
    operators = network.located.sequence.operators
    convolutions = [operator.output_ids()[0] for operator in operators if "conv" in operator.name]
    assert len(convolutions) == 2
    for value in convolutions:
        sent = [transfer for transfer in plan.transfers if transfer.value == value]
        rows = {transfer.sender: (transfer.low, transfer.high) for transfer in sent}
        assert rows == {Side.ROBOT: (0, 16 * share), Side.SERVER: (16 * share, 16)}
    with torch.no_grad():
        (computed,), expected = run_plan(plan, network.located, network.program.constants, [x]), NET(x)
    assert torch.allclose(computed, expected, atol=1e-6)
