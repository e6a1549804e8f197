"""Fused operators, expanded to operators that can be divided along the sequence, as the fused ones cannot.

An expansion has the calls that the CPU kernel of the fused operator makes, in the same order.
"""

from __future__ import annotations

from typing import Optional

import torch

aten = torch.ops.aten


def encoder_layer(
    source: torch.Tensor,
    width: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    gelu: bool,
    norm_first: bool,
    epsilon: float,
    scale_1: torch.Tensor,
    shift_1: torch.Tensor,
    scale_2: torch.Tensor,
    shift_2: torch.Tensor,
    weight_1: torch.Tensor,
    bias_1: torch.Tensor,
    weight_2: torch.Tensor,
    bias_2: torch.Tensor,
    mask: Optional[torch.Tensor] = None,
    mask_type: Optional[int] = None,
) -> torch.Tensor:
    """``aten::_transformer_encoder_layer_fwd``: attention, then two linear operators, both with shortcut and norm.

    Norms, linear operators and sums can be divided along the sequence; the fused operator only along the batch.

    Args:
        source: (batch, sequence, width).
        width: features of a position.
        heads: number of attention heads.
        qkv_weight: [3 width, width].
        qkv_bias: [3 width].
        out_weight: of attention's output, [width, width].
        out_bias: [width].
        gelu: whether GELU stands between the linear operators; else ReLU.
        norm_first: whether norms stand before attention and linear operators; else after the shortcuts.
        epsilon: of the norms, added to the variance.
        scale_1: of the first norm, [width].
        shift_1: of the first norm, [width].
        scale_2: of the second norm, [width].
        shift_2: of the second norm, [width].
        weight_1: of the first linear operator, [hidden, width].
        bias_1: [hidden].
        weight_2: of the second linear operator, [width, hidden].
        bias_2: [width].
        mask: of attention; None: each position attends to all.
        mask_type: 0, 1 or 2: see :meth:`torch.nn.MultiheadAttention.merge_masks`.

    Returns:
        The shape of ``source``.
    """

    def apply_norm(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = aten.native_layer_norm.default(x, [width], scale, shift, epsilon)[0]
        return result

    x = apply_norm(source, scale_1, shift_1) if norm_first else source
    # False, True: need_weights, average_attn_weights
    x = aten._native_multi_head_attention.default(
        x, x, x, width, heads, qkv_weight, qkv_bias, out_weight, out_bias, mask, False, True, mask_type
    )[0]
    x = aten.add.Tensor(x, source)
    if not norm_first:
        x = apply_norm(x, scale_1, shift_1)
    shortcut = x
    if norm_first:
        x = apply_norm(x, scale_2, shift_2)
    x = aten.linear.default(x, weight_1, bias_1)
    x = aten.gelu.default(x) if gelu else aten.relu.default(x)
    x = aten.add.Tensor(aten.linear.default(x, weight_2, bias_2), shortcut)
    return x if norm_first else apply_norm(x, scale_2, shift_2)
