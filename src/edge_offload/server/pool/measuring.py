"""Where a network is cut, and what its blocks take on a device: by the host's clock on a CPU, by events on a GPU."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Callable, ContextManager, List, Sequence, Tuple

import numpy as np
import torch

from edge_offload.arrays import Array
from edge_offload.execute.clocks import Clock, clock_of
from edge_offload.server.pool.parcels import packed
from edge_offload.server.pool.stages import BatchedNetwork, Cuts, Stage, alive_bytes, names_digest

#: Blocks of a network.
BLOCKS = 10
#: A cut may lie by so much of a block's time beside its place, where less is alive.
AROUND = 0.45
#: Runs of which the median is taken.
REPEATS = 5


class WallClock:
    """Of a CPU: what a request waits for, other processes included."""

    def timed_stream(self) -> ContextManager[Any]:
        """See :class:`~edge_offload.execute.clocks.Clock`."""
        return contextlib.nullcontext()

    def record_mark(self) -> float:
        """See :class:`~edge_offload.execute.clocks.Clock`."""
        return time.perf_counter()

    def seconds_between(self, start: float, end: float) -> float:
        """See :class:`~edge_offload.execute.clocks.Clock`."""
        return end - start


def stage_clock(device: torch.device) -> Clock:
    """What times stages on ``device``: CUDA events on a GPU, the host's clock on a CPU."""
    return clock_of(device) if device.type == "cuda" else WallClock()


def cut(network: BatchedNetwork, blocks: int = BLOCKS) -> Cuts:
    """Blocks of about equal time on this machine, with little alive between them."""
    sequence = network.program(1).sequence
    ends = np.cumsum(operator_seconds(network))
    sizes = [alive_bytes(sequence, at) for at in range(len(sequence) + 1)]
    own = ends[-1] / blocks
    bounds = [0]
    for block in range(1, blocks):
        place = block * own
        near = [at for at in range(bounds[-1] + 1, len(sequence)) if abs(float(ends[at - 1]) - place) <= AROUND * own]
        if near:
            bounds.append(min(near, key=lambda at: (sizes[at], abs(float(ends[at - 1]) - place))))
    return Cuts(names_digest(sequence), (*bounds, len(sequence)), network.inputs)


@torch.no_grad()
def operator_seconds(network: BatchedNetwork) -> Array:
    """Seconds of each operator of single frames on the network's device, the least of some runs."""
    runner, clock = network.runner(1), stage_clock(network.device)
    count = len(runner.sequence)
    found = np.full((REPEATS, count), np.inf)
    with clock.timed_stream():
        for turn in range(REPEATS):
            values = runner.start_inference(network.stack([[spec.zeros() for spec in network.inputs]]))
            marks = [clock.record_mark()]
            for index in range(count):
                runner.run_range(values, index, index + 1)
                marks.append(clock.record_mark())
            found[turn] = [clock.seconds_between(*pair) for pair in zip(marks, marks[1:])]
    least: Array = found.min(axis=0)
    return least


def measure(network: BatchedNetwork, cuts: Cuts, largest: int, progress: Callable[[str], None]) -> Tuple[Array, Array]:
    """Seconds [blocks, batch - 1] on the network's device, and bytes of one frame after each block but the last.

    A block's seconds are those of a stage: copies to the device and back are among them.
    """
    taken = np.zeros((cuts.blocks, largest))
    stages = [Stage(network, cuts, block, block + 1) for block in range(cuts.blocks)]
    for batch in range(1, largest + 1):
        runs = np.array([stage_seconds(stages, batch) for _ in range(REPEATS + 1)])
        taken[:, batch - 1] = np.median(runs[1:], axis=0)  # kernels are chosen in the first
        progress(f"batch {batch}: {1e3 * float(taken[:, batch - 1].sum()):.1f} ms in {cuts.blocks} blocks")
    sequence = network.program(1).sequence
    return taken, np.array([alive_bytes(sequence, bound) for bound in cuts.bounds[1:-1]], float)


def stage_seconds(stages: Sequence[Stage], batch: int) -> List[float]:
    """Seconds of each of ``stages``, which follow one another from the inputs on, for one batch of zeros."""
    clock = stage_clock(stages[0].device)
    arrays = [packed(spec.zeros()) for spec in stages[0].network.inputs] * batch
    found = []
    with clock.timed_stream():
        for stage in stages:
            began = clock.record_mark()
            arrays = stage.run(batch, arrays)
            found.append(clock.seconds_between(began, clock.record_mark()))
    return found
