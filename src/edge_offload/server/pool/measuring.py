"""Cuts of a network, and seconds of its blocks on a device: by the host's clock on a CPU, by events on a GPU."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Callable, ContextManager, List, Sequence, Tuple

import numpy as np
import torch

from edge_offload.arrays import Array
from edge_offload.execute.clocks import Clock, clock_of
from edge_offload.server.pool.parcels import pack_tensor
from edge_offload.server.pool.stages import BatchedNetwork, Cuts, StageRunner, alive_bytes, names_digest

#: Runs per median.
REPEATS = 5


class WallClock:
    """Host clock for a CPU: waiting time of a request, other processes included."""

    def timed_stream(self) -> ContextManager[Any]:
        """Implement :class:`~edge_offload.execute.clocks.Clock`."""
        return contextlib.nullcontext()

    def record_mark(self) -> float:
        """Implement :class:`~edge_offload.execute.clocks.Clock`."""
        return time.perf_counter()

    def seconds_between(self, start: float, end: float) -> float:
        """Implement :class:`~edge_offload.execute.clocks.Clock`."""
        return end - start


def stage_clock(device: torch.device) -> Clock:
    """Return the clock of stages on ``device``: CUDA events on a GPU, the host's clock on a CPU."""
    return clock_of(device) if device.type == "cuda" else WallClock()


def cut_network(network: BatchedNetwork, blocks: int = 10) -> Cuts:
    """Cut into blocks of about equal time on this machine, with little alive between them."""
    sequence = network.program_for(1).sequence
    ends = np.cumsum(operator_seconds(network))
    sizes = [alive_bytes(sequence, at) for at in range(len(sequence) + 1)]
    block_s = ends[-1] / blocks
    bounds = [0]
    for block in range(1, blocks):
        place = block * block_s
        candidates = [
            at
            for at in range(bounds[-1] + 1, len(sequence))
            if abs(float(ends[at - 1]) - place) <= 0.45 * block_s  # from its ideal place, if less is alive there
        ]
        if candidates:
            bounds.append(min(candidates, key=lambda at: (sizes[at], abs(float(ends[at - 1]) - place))))
    return Cuts(names_digest(sequence), (*bounds, len(sequence)), network.inputs)


@torch.no_grad()
def operator_seconds(network: BatchedNetwork) -> Array:
    """Return seconds of each operator of single frames on the network's device, the least of some runs."""
    runner, clock = network.runner_for(1), stage_clock(network.device)
    count = len(runner.sequence)
    runs = np.full((REPEATS, count), np.inf)
    with clock.timed_stream():
        for run in range(REPEATS):
            values = runner.start_inference(network.stack_frames([[spec.zeros() for spec in network.inputs]]))
            marks = [clock.record_mark()]
            for index in range(count):
                runner.run_range(values, index, index + 1)
                marks.append(clock.record_mark())
            runs[run] = [clock.seconds_between(*pair) for pair in zip(marks, marks[1:])]
    least: Array = runs.min(axis=0)
    return least


def measure_blocks(
    network: BatchedNetwork, cuts: Cuts, largest: int, progress: Callable[[str], None]
) -> Tuple[Array, Array]:
    """Return seconds [blocks, batch - 1] on the network's device, and bytes of a frame after each block but the last.

    A block's seconds are those of a stage: copies to the device and back are among them.
    """
    seconds = np.zeros((cuts.block_count, largest))
    stages = [StageRunner(network, cuts, block, block + 1) for block in range(cuts.block_count)]
    for batch in range(1, largest + 1):
        runs = np.array([stage_seconds(stages, batch) for _ in range(REPEATS + 1)])
        seconds[:, batch - 1] = np.median(runs[1:], axis=0)  # kernels are chosen in the first
        progress(f"batch {batch}: {1e3 * float(seconds[:, batch - 1].sum()):.1f} ms in {cuts.block_count} blocks")
    sequence = network.program_for(1).sequence
    return seconds, np.array([alive_bytes(sequence, bound) for bound in cuts.bounds[1:-1]], float)


def stage_seconds(stages: Sequence[StageRunner], batch: int) -> List[float]:
    """Return seconds of each of ``stages``, which follow one another from the inputs on, for one batch of zeros."""
    clock = stage_clock(stages[0].device)
    arrays = [pack_tensor(spec.zeros()) for spec in stages[0].network.inputs] * batch
    durations = []
    with clock.timed_stream():
        for stage in stages:
            started = clock.record_mark()
            arrays = stage.run(batch, arrays)
            durations.append(clock.seconds_between(started, clock.record_mark()))
    return durations
