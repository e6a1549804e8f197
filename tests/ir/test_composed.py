"""Operators on tensors of parts, as the server runs them: nothing that a peer names reaches torch unchecked."""

from __future__ import annotations

import json
from typing import Any, List, Sequence

import pytest
import torch

from edge_offload.errors import ProtocolError, Unsupported
from edge_offload.ir.trace.allowlist import resolve_operator
from edge_offload.ir.trace.composed import run_composed

EYE = torch.arange(2).repeat(2, 1)
ONES = torch.ones(2)


def call(parts: Sequence[torch.Tensor], integers: Sequence[int], name: str, *items: Any) -> List[torch.Tensor]:
    return run_composed(list(parts), list(integers), json.dumps([name, list(items)]))


def test_a_product_of_a_sparse_tensor_is_that_of_torch() -> None:
    dense = torch.randn(2, 3)
    described, product = call([EYE, ONES, dense], [2, 2], "aten::mm", ["o", 2, 2, True], ["t"])
    assert described.shape == (0, 2, 1)
    assert torch.equal(product, dense)


def test_what_is_written_is_a_result_and_the_parts_stay_as_they_are() -> None:
    described, _, values = call([EYE, ONES, torch.tensor(3.0)], [2, 2], "aten::mul_.Tensor", ["o", 2, 2, True], ["w"])
    assert described.shape[:4] == (0, 8, 0, 2)  # eight numbers; other values than before; indices and values
    assert values.tolist() == [3, 3]
    assert ONES.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("parts", "integers", "items"),
    [
        ([EYE + 5, ONES], [2, 2], [["o", 2, 2, True]]),
        ([EYE, ONES], [2, 2], [["o", 2, 1, True]]),
        ([EYE, ONES], [2], [["o", 2, 2, True]]),
        ([EYE], [2, 2], [["o", 2, 2, True]]),
        ([torch.tensor([0, 1, 9]), torch.tensor([0, 1]), ONES], [2, 2], [["c", 2, 2]]),
        ([torch.tensor([0, 1, 2]), torch.tensor([0, 1]), ONES], [2, 2], [["c", 3, 2]]),
        ([ONES], [5, 7], [["n", 1, 2]]),
        ([ONES], [2**62, 4], [["n", 1, 2]]),
        ([ONES], [], [["q"]]),
        ([ONES], [], [["i"]]),
        ([ONES], [], [[["l"], 0]]),
    ],
)
def test_parts_that_make_no_tensor_are_refused(parts: Any, integers: Any, items: Any) -> None:
    with pytest.raises((ProtocolError, RuntimeError)):
        call(parts, integers, "aten::_to_dense", *items, None, None)


def test_what_is_not_on_the_list_is_refused_by_name() -> None:
    for name in ("aten::from_file", "aten::_stack", "os::system"):
        with pytest.raises(NotImplementedError, match=name):
            call([ONES], [], name, ["t"])
    with pytest.raises(Unsupported, match="_coalesce"):
        resolve_operator("aten::_coalesce")
    with pytest.raises(NotImplementedError, match="layout number 77"):
        call([ONES], [77], "aten::ones_like", ["t"], None, ["i"], None, None, None)
    with pytest.raises(NotImplementedError, match="no kernel") as raised:
        call([EYE, ONES], [2, 2], "aten::cos", ["o", 2, 2, True])
    assert "\n" not in str(raised.value)


def test_gradients_that_do_not_belong_to_their_tensor_are_refused() -> None:
    wide, narrow = torch.ones(200, 300), torch.ones(2, 3)
    with pytest.raises(RuntimeError, match="does not belong"):
        call([narrow, wide], [1, 6], "aten::_log_softmax_backward_data", ["t"], ["t"], ["i"], ["i"])
    with pytest.raises(RuntimeError, match="does not belong"):
        call([torch.ones(1, 1, 2, 2), torch.ones(9, 9, 4, 4)], [], "aten::_adaptive_avg_pool2d_backward", ["t"], ["t"])
    with pytest.raises(ProtocolError):
        call([wide], [], "aten::_adaptive_avg_pool2d_backward", None, ["t"])
