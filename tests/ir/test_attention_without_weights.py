"""torch's fused attention in inference (ViT, nn.TransformerEncoder): of its two results it gives only one."""

from __future__ import annotations

import torch
from torch import nn

from edge_offload.ir.build import from_module


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
