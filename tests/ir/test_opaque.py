"""A part that no trace can look into is one operator: same part, same sequence; other settings, another one."""

from __future__ import annotations

from typing import Tuple

import pytest
import torch
from torch import nn

from edge_offload.errors import Unsupported
from edge_offload.execute.sequence_runner import SequenceRunner
from edge_offload.ir import opaque, sequence_hash
from edge_offload.ir.build import TracedProgram, from_module


class Above(nn.Module):
    """Two outputs whose lengths depend on the data."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)

    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        return x[x > self.limit] * self.scale, (x > self.limit).nonzero()


def program_of(readout: nn.Module) -> TracedProgram:
    torch.manual_seed(0)
    network = nn.Conv2d(1, 2, 3)
    given = torch.rand(1, 1, 6, 6)
    with torch.no_grad():
        return opaque.append_module(from_module(network, [given]), readout, readout(network(given)))


def test_it_runs_on_inputs_with_results_of_other_lengths() -> None:
    readout = Above(-0.2)
    program = program_of(readout)
    torch.manual_seed(0)
    network = nn.Conv2d(1, 2, 3)
    runner = SequenceRunner(program.sequence, program.constants)
    lengths = set()
    for seed in range(3):
        given = torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(seed))
        got = runner.run([given])
        with torch.no_grad():
            want = readout(network(given))
        assert all(torch.equal(one, other) for one, other in zip(got, want))
        lengths.add(len(got[0]))
    assert len(lengths) > 1


def test_equal_parts_have_equal_hashes_and_other_settings_or_buffers_another() -> None:
    readouts = [Above(0.1), Above(0.1), Above(0.2), Above(0.1)]
    readouts[3].scale.fill_(3.0)
    first, same, limit, scale = (sequence_hash(program_of(readout).sequence) for readout in readouts)
    assert first == same
    assert len({first, limit, scale}) == 3


def test_a_collected_module_is_an_error_not_another_module() -> None:
    readout = Above(0.3)
    program = program_of(readout)
    del readout
    with pytest.raises(Unsupported, match="trace the model first"):
        SequenceRunner(program.sequence, program.constants).run([torch.rand(1, 1, 6, 6)])
