"""Frames of a batch are read out together if that has the bits of each alone and takes less time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from edge_offload.execute.batch_reader import TRIALS, BatchReader
from edge_offload.execute.batches import BatchExecutor
from edge_offload.execute.module import ModuleExecutor


class Readout(nn.Module):
    """A read-out that takes ``alone_s`` for a frame and ``together_s`` for all, and is off by ``off`` together."""

    def __init__(self, alone_s: float, together_s: float, off: float = 0.0) -> None:
        super().__init__()
        self.alone_s, self.together_s, self.off = alone_s, together_s, off
        self.now_s, self.calls = 0.0, [0, 0]

    def forward(self, maps: torch.Tensor):
        self.calls[0] += 1
        self.now_s += self.alone_s
        return maps.mean((1, 2, 3)), maps.amax((2, 3))

    def batch(self, maps: torch.Tensor):
        self.calls[1] += 1
        self.now_s += self.together_s
        return [(one.mean((1, 2, 3)) + self.off, one.amax((2, 3))) for one in maps.split(1)]


@pytest.mark.parametrize(
    ("readout", "calls"),
    [
        pytest.param(Readout(0.2, 0.5), [0, 1], id="quicker together"),
        pytest.param(Readout(0.2, 0.7), [3, 0], id="quicker alone"),
        pytest.param(Readout(0.2, 0.5, 1e-3), [3, 0], id="other bits"),
    ],
)
def test_frames_are_read_out_as_is_quicker_where_bits_are_equal(readout, calls) -> None:
    reader = BatchReader(readout, torch.device("cpu"), lambda: readout.now_s)
    maps = torch.rand(3, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    for _ in range(TRIALS):
        reader.read_frames([maps], [(one,) for one in maps.split(1)])
    readout.calls[:] = [0, 0]
    results = reader.read_frames([maps], [(one,) for one in maps.split(1)])
    assert readout.calls == calls
    for one, result in zip(maps.split(1), results):
        assert all(map(torch.equal, readout(one), result))


class Dense(nn.Module):
    """Maps of a frame, or of a batch."""

    def forward(self, image: torch.Tensor):
        return (image.float()[None] * 2,)

    def batch(self, images: torch.Tensor):
        return (images.float() * 2,)


class Network(nn.Module):
    """A dense part and a read-out."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.readout = Dense(), Readout(0.0, 0.0)

    def forward(self, image: torch.Tensor):
        return self.readout(*self.dense(image))

    def dense_part(self):
        return self.dense, self.readout


def test_a_batch_tries_both_ways_of_reading_its_frames_out() -> None:
    network = Network()
    batches = BatchExecutor(ModuleExecutor(network))
    draw = torch.Generator().manual_seed(0)
    frames = [[torch.randint(0, 256, (3, 16, 16), dtype=torch.uint8, generator=draw)] for _ in range(3)]
    results = [batches.run(frames) for _ in range(TRIALS + 1)]
    assert network.readout.calls[1] >= TRIALS
    for executions in results:
        for frame, execution in zip(frames, executions):
            assert all(map(torch.equal, network(*frame), execution.outputs))
