"""From an image to tracked people: prepare, run (anywhere), interpret, track, locate; with the time of each."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Sequence, Tuple

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.models.people import People
from edge_offload.perception.geometry import Locator
from edge_offload.perception.tracking import TrackedPerson, Tracker
from edge_offload.timing import InferenceReport

if TYPE_CHECKING:
    import torch

    from edge_offload.models.base import PersonEstimator

Run = Callable[[Sequence["torch.Tensor"]], Tuple[Tuple["torch.Tensor", ...], InferenceReport]]
"""Runs the network wherever it likes: inputs → outputs, and the report of what that cost."""


@dataclass(eq=False)
class FrameResult:
    """All about one frame.

    Attributes:
        stamp_s: of the frame.
        inputs: of the network.
        people: tracked persons, with positions where they could be found.
        detections: what the network saw, before tracking.
        report: of the whole frame: ``total_s`` runs from the frame's arrival to this result, ``queue`` is the wait for
            its turn, and ``compute_robot`` includes preparing, interpreting and tracking.
        inference: of the network alone, as ``run`` returned it.
        host_s: seconds in ``prepare``, ``interpret`` and ``track``.
        started_s: when the frame was taken up, on the pipeline's clock.
    """

    stamp_s: float
    inputs: Tuple[torch.Tensor, ...]
    people: List[TrackedPerson]
    detections: People
    report: InferenceReport
    inference: InferenceReport
    host_s: Dict[str, float] = field(default_factory=dict)
    started_s: float = 0.0


class PeoplePipeline:
    """Finds and tracks people, frame by frame. Not thread-safe: one worker calls it.

    Args:
        estimator: prepares images and interprets outputs.
        tracker: by default one with default settings.
        allow_untrained: accept an estimator with random weights, which then finds nobody (latency and parity work).
        clock: monotonic seconds.

    Raises:
        BadInput: the estimator is not trained and that is not allowed.
    """

    def __init__(
        self,
        estimator: PersonEstimator,
        tracker: Optional[Tracker] = None,
        allow_untrained: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not (estimator.trained or allow_untrained):
            raise BadInput(
                f"model {estimator.name} has no trained weights, so it cannot find people",
                remedy="give it a checkpoint, use a trained model (movenet), or allow untrained weights to measure "
                "latency only",
            )
        self.estimator = estimator
        self.tracker = tracker or Tracker()
        self._clock = clock

    def process(
        self,
        bgr: Array,
        stamp_s: float,
        run: Run,
        received_s: Optional[float] = None,
        locator: Optional[Locator] = None,
        depth: Optional[Array] = None,
        depth_encoding: str = "32FC1",
    ) -> FrameResult:
        """Work on one frame.

        Args:
            bgr: uint8 [h, w, 3].
            stamp_s: the frame's stamp, seconds.
            run: runs the estimator's module for this frame.
            received_s: when the frame arrived, on the pipeline's clock; by default now.
            locator: finds positions in space; None: positions stay unknown.
            depth: depth image aligned with ``bgr``, encoded as ``depth_encoding`` says.
            depth_encoding: as ROS names it.

        Raises:
            BadInput: the image or the depth image cannot be used.
            EdgeOffloadError: whatever ``run`` raises.
        """
        started = self._clock()
        received = started if received_s is None else min(received_s, started)
        image, placement = self.estimator.prepare(bgr)
        prepared = self._clock()
        outputs, inference = run((image,))
        ran = self._clock()
        detections = self.estimator.interpret(outputs, placement) if self.estimator.trained else People.empty()
        interpreted = self._clock()
        people = self.tracker.update(detections, stamp_s, (bgr.shape[1], bgr.shape[0]))
        if locator is not None:
            people = [self._located(locator, person, depth, depth_encoding) for person in people]
        done = self._clock()
        host = {"prepare": prepared - started, "interpret": interpreted - ran, "track": done - interpreted}
        stages = dict(inference.stages_s)
        stages["queue"] += started - received
        stages["compute_robot"] += sum(host.values())
        report = replace(inference, model=self.estimator.name, total_s=done - received, stages_s=stages)
        return FrameResult(stamp_s, (image,), people, detections, report, inference, host, started)

    @staticmethod
    def _located(locator: Locator, person: TrackedPerson, depth: Optional[Array], encoding: str) -> TrackedPerson:
        # a coasting person is a guess: what the depth image shows there is whoever stands in front
        return person.at(locator.locate(person.box, person.keypoints, None if person.coasting else depth, encoding))


def run_here(estimator: PersonEstimator) -> Run:
    """A ``run`` that executes the estimator's module in this process, on the device where its weights are."""
    import torch

    from edge_offload.mode import Mode

    device = next(estimator.module.parameters()).device

    def run(inputs: Sequence[torch.Tensor]) -> Tuple[Tuple[torch.Tensor, ...], InferenceReport]:
        start = time.perf_counter()
        with torch.inference_mode():
            outputs = tuple(output.cpu() for output in estimator.module(*(tensor.to(device) for tensor in inputs)))
        seconds = time.perf_counter() - start
        report = InferenceReport(Mode.LOCAL, estimator.name, seconds, {"compute_robot": seconds})
        return outputs, report

    return run
