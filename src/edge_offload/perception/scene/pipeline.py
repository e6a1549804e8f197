"""From the points of a sweep to a completed scene: voxelise, run (anywhere), interpret; with the time of each."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Callable, Optional, Tuple

from edge_offload.arrays import Array
from edge_offload.perception.pipeline import Run
from edge_offload.timing import InferenceReport

if TYPE_CHECKING:
    import torch

    from edge_offload.models.sconet.completer import SceneCompleter


@dataclass(eq=False)
class SceneResult:
    """All about one sweep.

    Attributes:
        inputs: of the network.
        occupancy: uint8 [x, y, z]: what the sweep hit.
        labels: uint8 [x, y, z]: the completed scene.
        report: of the whole sweep: ``total_s`` runs from its arrival to this result, ``queue`` is the wait for its
            turn, and ``compute_robot`` includes voxelising and interpreting.
        inference: of the network alone, as ``run`` returned it.
    """

    inputs: Tuple[torch.Tensor, ...]
    occupancy: Array
    labels: Array
    report: InferenceReport
    inference: InferenceReport


class ScenePipeline:
    """Completes sweeps one by one. Not thread-safe: one worker calls it.

    Args:
        completer: prepares points and interprets labels.
        clock: monotonic seconds.
    """

    def __init__(self, completer: SceneCompleter, clock: Callable[[], float] = time.monotonic) -> None:
        self.completer = completer
        self._clock = clock

    def process(self, points: Array, run: Run, received_s: Optional[float] = None) -> SceneResult:
        """Work on one sweep.

        Args:
            points: float [n, 3 or more], m, in the frame of the completer's grid.
            run: runs the completer's module for this sweep.
            received_s: when the sweep arrived, on the pipeline's clock; by default now.

        Raises:
            BadInput: the points cannot be used.
            EdgeOffloadError: whatever ``run`` raises.
        """
        started = self._clock()
        received = started if received_s is None else min(received_s, started)
        occupancy = self.completer.prepare(points)
        prepared = self._clock()
        outputs, inference = run((occupancy,))
        ran = self._clock()
        labels = self.completer.interpret(outputs, occupancy)
        done = self._clock()
        stages = dict(inference.stages_s)
        stages["queue"] += started - received
        stages["compute_robot"] += prepared - started + done - ran
        report = replace(inference, model=self.completer.name, total_s=done - received, stages_s=stages)
        return SceneResult((occupancy,), occupancy.numpy(), labels, report, inference)
