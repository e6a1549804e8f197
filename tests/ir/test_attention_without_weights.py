"""torch's fused attention in inference (ViT, nn.TransformerEncoder): what it returns beside the result is no value."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from edge_offload.execute.sequence_runner import SequenceRunner
from edge_offload.ir.build import from_module
from edge_offload.split.footprints.registry import Locality
from edge_offload.split.model.locality import analyse_locality


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.attention
        attended, _ = torch._native_multi_head_attention(
            x, x, x, 16, 2, a.in_proj_weight, a.in_proj_bias, a.out_proj.weight, a.out_proj.bias, None, False
        )
        return attended + x


@torch.no_grad()
def test_unused_weights_are_no_value() -> None:
    torch.manual_seed(0)
    module, x = Fused().eval(), torch.rand(1, 5, 16)
    program = from_module(module, [x])
    (fused,) = [item for item in program.sequence.operators if item.name == "aten._native_multi_head_attention.default"]
    first, second = fused.outputs
    assert first is not None
    assert second is None


class Flash(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attended: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention.default(x, x * 2, x * 3)[0]
        return attended + x


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(x, x * 2, x * 3) + x


@torch.no_grad()
def test_returned_sizes_are_no_values() -> None:
    """Of GPUs, and of the CPU up to torch 2.1; a sequence is made without running it."""
    flash = from_module(Flash(), [torch.rand(1, 2, 8, 4)]).sequence.operators[-2]
    assert len(flash.outputs) == 9
    assert flash.outputs[0] is not None
    assert flash.outputs[4:6] == (None, None)


@torch.no_grad()
def test_attention_as_any_torch_traces_it_has_its_bits() -> None:
    module, x = Attention(), torch.rand(1, 2, 8, 4)
    program = from_module(module, [x])
    (result,) = SequenceRunner(program.sequence, program.constants).run([x])
    assert torch.equal(result, module(x))


@torch.no_grad()
@pytest.mark.parametrize("module", [Flash(), Attention()], ids=["flash", "any"])
def test_attention_is_divided_along_its_queries(module: nn.Module) -> None:
    sequence = from_module(module, [torch.rand(1, 2, 8, 4)]).sequence
    kinds = [operator.kind for operator in analyse_locality(sequence, {0: 2}).operators]
    assert Locality.ROW in kinds
    assert Locality.GLOBAL not in kinds
