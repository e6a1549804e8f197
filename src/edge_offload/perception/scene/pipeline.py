"""Steps from the points of a sweep to a completed scene: voxelise, run (anywhere), interpret; with their times."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Callable, Optional, Sequence, Tuple

from edge_offload.arrays import Array
from edge_offload.perception.pipeline import Run
from edge_offload.timing import InferenceReport

if TYPE_CHECKING:
    import torch

    from edge_offload.models.sconet.completer import SceneCompleter


@dataclass(eq=False)
class SceneResult:
    """The completed scene of one sweep, with reports.

    Attributes:
        inputs: of the network.
        occupancy: uint8 [x, y, z]: voxels that the sweep hit.
        labels: uint8 [x, y, z]: the completed scene.
        report: of the whole sweep: ``total_s`` runs from its arrival to this result, ``queue`` is the time waited,
            and ``compute_robot`` includes voxelising and interpreting.
        inference: of the network alone, as ``run`` returned it.
    """

    inputs: Tuple[torch.Tensor, ...]
    occupancy: Array
    labels: Array
    report: InferenceReport
    inference: InferenceReport


@dataclass(eq=False)
class PreparedSweep:
    """A sweep prepared for the network.

    Attributes:
        occupancy: uint8 [x, y, z]: voxels that it hit.
        received_s, started_s, done_s: its arrival, start and end of its preparation, on the pipeline's clock.
    """

    occupancy: torch.Tensor
    received_s: float
    started_s: float
    done_s: float


class ScenePipeline:
    """Completes sweeps one by one. Not thread-safe: sweeps are finished in their order, one at a time.

    Args:
        completer: prepares points and interprets labels.
        clock: monotonic seconds.
    """

    def __init__(self, completer: SceneCompleter, clock: Callable[[], float] = time.monotonic) -> None:
        self.completer = completer
        self._clock = clock

    def process(self, points: Array, run: Run, received_s: Optional[float] = None) -> SceneResult:
        """Process one sweep.

        Args:
            points: float [n, 3 or more], m, in the frame of the completer's grid.
            run: runs the completer's module for this sweep.
            received_s: arrival of the sweep, on the pipeline's clock; by default now.

        Raises:
            BadInput: the points cannot be used.
            EdgeOffloadError: ``run`` failed.
        """
        prepared = self.prepare(points, received_s)
        return self.finish(prepared, *run((prepared.occupancy,)))

    def prepare(self, points: Array, received_s: Optional[float] = None) -> PreparedSweep:
        """Prepare a sweep: the first step of :meth:`process`, for pipelined callers."""
        started = self._clock()
        received = started if received_s is None else min(received_s, started)
        return PreparedSweep(self.completer.prepare(points), received, started, self._clock())

    def prepare_occupancy(self, occupancy: Array, received_s: float) -> PreparedSweep:
        """Prepare a sweep whose occupancy uint8 [x, y, z] is given."""
        import torch

        started = self._clock()
        return PreparedSweep(torch.from_numpy(occupancy), min(received_s, started), started, started)

    def finish(
        self, prepared: PreparedSweep, outputs: Sequence[torch.Tensor], inference: InferenceReport
    ) -> SceneResult:
        """Interpret the network's ``outputs``: the last step of :meth:`process`, for pipelined callers."""
        ran = self._clock()
        labels = self.completer.interpret(outputs, prepared.occupancy)
        done = self._clock()
        stages = dict(inference.stages_s)
        waited_s = max(0.0, ran - prepared.done_s - inference.total_s)
        stages["queue"] += prepared.started_s - prepared.received_s + waited_s
        stages["compute_robot"] += prepared.done_s - prepared.started_s + done - ran
        total_s = done - prepared.received_s
        report = replace(inference, model=self.completer.name, total_s=total_s, stages_s=stages)
        occupancy = prepared.occupancy
        return SceneResult((occupancy,), occupancy.numpy(), labels, report, inference)
