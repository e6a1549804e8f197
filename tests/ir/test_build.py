"""Sequences built from modules run bit-equal to eager, writes become rebinds, and weights are known by content."""

from __future__ import annotations

from typing import Iterator, Tuple

import pytest
import torch
from torch import nn

from edge_offload.errors import BadInput, Unsupported
from edge_offload.execute.sequence_runner import SequenceRunner
from edge_offload.ir import Kind, Operator, OperatorSequence, Ref, Value, sequence_hash
from edge_offload.ir.build import TracedProgram, can_export, from_module, tensor_digest

needs_export = pytest.mark.skipif(not can_export(), reason="make_fx names no modules and takes no changed buffers")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


class Mixed(nn.Module):
    """In-place activation, residual, split, several outputs, a channels-last weight."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        y = self.relu(self.norm(self.conv(x)))
        one, other = y.chunk(2, dim=1)
        y[:, 0] += 1.0
        return self.head(y.mean((2, 3))), torch.cat([other, one], 1)


def run(program: TracedProgram, *inputs: torch.Tensor) -> Tuple[torch.Tensor, ...]:
    return SequenceRunner(program.sequence, program.constants).run(inputs)


def test_exported_module_is_functional_and_bit_equal() -> None:
    module, x = Mixed().eval(), torch.randn(1, 3, 16, 16)
    program = from_module(module, (x,))
    assert program.sequence.is_functional
    for _ in range(3):
        x = torch.randn_like(x)
        with torch.no_grad():
            expected = module(x)
        for want, got in zip(expected, run(program, x)):
            assert torch.equal(want, got)


def test_two_builds_have_one_hash_and_new_weights_another() -> None:
    module, x = Mixed().eval(), torch.randn(1, 3, 16, 16)
    first = sequence_hash(from_module(module, (x,)).sequence)
    assert first == sequence_hash(from_module(module, (torch.randn_like(x),)).sequence)
    with torch.no_grad():
        module.head.bias[0] += 1
    assert first != sequence_hash(from_module(module, (x,)).sequence)


@needs_export
def test_operators_carry_the_module_that_issued_them() -> None:
    program = from_module(Mixed().eval(), (torch.randn(1, 3, 16, 16),))
    assert program.sequence.operators[0].scope == "conv"


@needs_export
def test_running_statistics_become_state_with_a_rebind() -> None:
    module, x = nn.Sequential(nn.BatchNorm1d(4)).train(), torch.randn(8, 4)
    program = from_module(module, (x,))
    state = program.sequence.inputs[1:]
    assert {number for number, _ in program.sequence.rebinds} == set(state)
    inputs = [x, *match_state(program, module)]
    (y,), _, after = SequenceRunner(program.sequence, program.constants).run_all(inputs)
    expected = module(x)
    assert torch.equal(y, expected)
    changed = sorted(float(tensor.double().sum()) for tensor in after.values())
    now = sorted(float(tensor.double().sum()) for tensor in module.buffers())
    assert changed == now


def match_state(program: TracedProgram, module: nn.Module) -> list[torch.Tensor]:
    """Buffers in the order of the state inputs (registration order)."""
    assert len(program.sequence.inputs) - 1 == len(list(module.buffers()))
    return [buffer.clone() for buffer in module.buffers()]


def test_a_branch_on_data_is_refused_with_a_remedy() -> None:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if bool(x.sum() > 0) else -x

    with pytest.raises(Unsupported, match="Branch cannot be traced"):
        from_module(Branch(), (torch.randn(3),))


def test_runner_refuses_wrong_inputs_and_missing_weights() -> None:
    program = from_module(Mixed().eval(), (torch.randn(1, 3, 16, 16),))
    with pytest.raises(BadInput, match="must be float32"):
        run(program, torch.randn(1, 3, 16, 15))
    with pytest.raises(BadInput, match="0 inputs given"):
        run(program)
    with pytest.raises(BadInput, match="missing"):
        SequenceRunner(program.sequence, {})


def recorded_with_writes() -> Tuple[OperatorSequence, dict[str, torch.Tensor]]:
    """y = x * w; y[:, 0] written through a view; y += 1 in place; state s += y.sum(0)."""
    w = torch.randn(3)
    values = {
        0: Value(0, "float32", (2, 3), Kind.INPUT),
        1: Value(1, "float32", (3,), Kind.INPUT, storage=1),
        2: Value(2, "float32", (3,), Kind.CONSTANT),
        3: Value(3, "float32", (2, 3), storage=3),
        4: Value(4, "float32", (2,), strides=(3,), storage=3),
        5: Value(5, "float32", (2,), strides=(3,), storage=3),
        6: Value(6, "float32", (2, 3), storage=3),
        7: Value(7, "float32", (3,)),
        8: Value(8, "float32", (3,), storage=1),
    }
    operators = (
        Operator("aten.mul.Tensor", (Ref(0), Ref(2)), (), (3,)),
        Operator("aten.select.int", (Ref(3), 1, 0), (), (4,), (), ((0, 3),)),
        Operator("aten.fill_.Scalar", (Ref(4), 5.0), (), (5,), (4,), ((0, 4),)),
        Operator("aten.add_.Tensor", (Ref(3), 1.0), (), (6,), (3,), ((0, 3),)),
        Operator("aten.sum.dim_IntList", (Ref(6), (0,)), (), (7,)),
        Operator("aten.add_.Tensor", (Ref(1), Ref(7)), (), (8,), (1,), ((0, 1),)),
    )
    sequence = OperatorSequence(values, (0, 1), {2: tensor_digest(w)}, operators, (3, 4), (), ((1, 8),))
    return sequence.validate(), {tensor_digest(w): w}


def test_a_sequence_with_writes_runs_as_the_program_that_made_it() -> None:
    sequence, constants = recorded_with_writes()
    assert not sequence.is_functional
    x, state = torch.randn(2, 3), torch.randn(3)
    y = x * next(iter(constants.values()))
    y[:, 0] = 5.0
    y += 1.0
    (got, view), _, after = SequenceRunner(sequence, constants).run_all((x, state.clone()))
    assert torch.equal(got, y)
    assert torch.equal(view, y[:, 0])
    assert torch.equal(after[1], state + y.sum(0))


class Tokens(nn.Module):
    """A view behind a permutation that happens to fit where the input lies as it did when it was recorded."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(0, 2, 1, 3).view(2, 3, 20)


def test_a_recorded_view_that_does_not_fit_how_its_operand_lies_becomes_a_copy() -> None:
    x = torch.randn(2, 3, 4, 5).permute(0, 2, 1, 3)  # as another device's kernel would give it
    program = from_module(Tokens(), (x,))
    assert "aten.view.default" in {operator.name for operator in program.sequence.operators}
    for laid_out in (x, x.contiguous(), x.contiguous(memory_format=torch.channels_last)):
        (computed,) = run(program, laid_out)
        assert torch.equal(computed, Tokens()(x))


def test_a_view_that_is_written_through_is_never_a_copy() -> None:
    x = torch.randn(2, 3, 4, 5)
    values = {0: Value(0, "float32", (2, 4, 3, 5), Kind.INPUT), 1: Value(1, "float32", (2, 60), storage=1),
              2: Value(2, "float32", (2, 60), storage=1)}  # fmt: skip
    operators = (
        Operator("aten.view.default", (Ref(0), (2, 60)), (), (1,), (), ((0, 0),)),
        Operator("aten.add_.Tensor", (Ref(1), 1.0), (), (2,), (1,), ((0, 1),)),
    )
    runner = SequenceRunner(OperatorSequence(values, (0,), {}, operators, (2,)), {})
    with pytest.raises(RuntimeError, match="view size"):
        runner.run([x.permute(0, 2, 1, 3)])
