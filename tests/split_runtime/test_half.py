"""Own rows and the other side's rows of one value meet in one buffer, whichever threads bring them."""

from __future__ import annotations

import threading
import time

import torch
from torch import nn

from edge_offload.sequence.build import from_module
from edge_offload.split.locality import analyse
from edge_offload.split.runtime import half as module
from edge_offload.split.runtime.half import PieceHalf

ROWS, PARTS = 32, 8


def test_rows_that_two_threads_bring_at_once_are_all_there(monkeypatch):
    value = torch.arange(ROWS * 4.0).reshape(1, 1, ROWS, 4)
    sequence = from_module(nn.ReLU(), [value]).sequence
    (number,) = sequence.inputs
    half = PieceHalf(analyse(sequence, {number: 2}), {}, {number: (0, ROWS)})
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
            half.put(number, low, value.narrow(2, low, size))

    lows = list(range(0, ROWS, size))
    threads = [threading.Thread(target=bring, args=(lows[k::2],)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert half.has(number, 0, ROWS)
    assert torch.equal(half.rows(number, 0, ROWS), value)
