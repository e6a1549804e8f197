"""Own rows and the other side's rows of one value meet in one buffer, whichever threads bring them."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from torch import nn

from edge_offload.ir.build import from_module
from edge_offload.split.model.locality import analyse_locality
from edge_offload.split.model.reference import shared_values
from edge_offload.split.runtime import half as module
from edge_offload.split.runtime.half import PieceHalf

ROWS, PARTS = 32, 8


@pytest.mark.process
def test_rows_of_two_concurrent_threads_are_complete(monkeypatch):
    value = torch.arange(ROWS * 4.0).reshape(1, 1, ROWS, 4)
    sequence = from_module(nn.ReLU(), [value]).sequence
    (number,) = sequence.inputs
    half = PieceHalf(analyse_locality(sequence, {number: 2}), {}, {number: (0, ROWS)})
    empty = torch.empty

    def slowly(function):
        def called(*args, **kwargs):
            made = function(*args, **kwargs)
            time.sleep(0.05)  # the other thread gets its turn just here
            return made

        return called

    monkeypatch.setattr(module.torch, "empty", slowly(empty))
    together = threading.Barrier(2)
    size = ROWS // PARTS

    def bring(lows):
        together.wait()
        for low in lows:
            half.store_rows(number, low, value.narrow(2, low, size))

    lows = list(range(0, ROWS, size))
    threads = [threading.Thread(target=bring, args=(lows[k::2],)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert half.has_rows(number, 0, ROWS)
    assert torch.equal(half.rows(number, 0, ROWS), value)


def test_an_operator_runs_in_one_piece_with_all_rows_and_in_parts_where_some_are_missing():
    torch.manual_seed(0)
    picture = torch.randn(1, 3, 33, 20)
    network = nn.Conv2d(3, 4, 1, stride=4).eval()  # reads rows 0, 4, ... 32
    program = from_module(network, [picture])
    (number,) = program.sequence.inputs
    located = analyse_locality(program.sequence, {number: 2})
    (out,) = program.sequence.outputs
    rows = located.count_rows(out)
    shared = shared_values(located, program.constants)
    index = located.producer[out]
    expected = network(picture)
    for pieces in ([(0, 33)], [(0, 20), (20, 33)]):
        half = PieceHalf(located, shared, {})
        for low, high in pieces:
            half.store_rows(number, low, picture[:, :, low:high])
        with torch.no_grad():
            half.run_operator(index, 0, rows)
        assert torch.equal(half.whole(out), expected)
    half = PieceHalf(located, shared, {})
    half.store_rows(number, 0, picture[:, :, :29])
    with torch.no_grad():
        half.run_operator(index, 0, rows - 1)
        assert torch.equal(half.whole(out)[:, :, : rows - 1], expected[:, :, : rows - 1])
        half.run_operator(index, 0, rows)  # a row that it needs is not there: poison, and no error
    assert half.pieces[out][-1][1][:, :, -1].isnan().all()


def test_a_view_of_a_value_that_lies_askew_in_memory():
    class Tokens(nn.Module):
        def forward(self, x):
            return torch.relu(x).view(1, 6, 20)

    x = torch.randn(1, 6, 4, 5)
    program = from_module(Tokens(), [x])
    (number,) = program.sequence.inputs
    located = analyse_locality(program.sequence, {number: 1})
    half = PieceHalf(located, {}, {})
    half.store_rows(number, 0, torch.randn(1, 6, 5, 4).copy_(x.transpose(2, 3)).transpose(2, 3))
    for index, entry in enumerate(located.operators):
        half.run_operator(index, 0, entry.length)
    (out,) = program.sequence.outputs
    assert torch.equal(half.whole(out), torch.relu(x).view(1, 6, 20))
