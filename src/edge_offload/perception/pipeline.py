"""Steps from an image to tracked people: prepare, run (anywhere), interpret, track, locate; with their times."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.models.people import People
from edge_offload.perception.locator import Locator
from edge_offload.perception.tracking import TrackedPerson, Tracker
from edge_offload.timing import InferenceReport

if TYPE_CHECKING:
    import torch

    from edge_offload.models.base import Estimator, PersonEstimator

Run = Callable[[Sequence["torch.Tensor"]], Tuple[Tuple["torch.Tensor", ...], InferenceReport]]
"""Runs the network in some mode: inputs → outputs and the report of the inference."""


@dataclass(eq=False)
class PeopleResult:
    """People in one frame, with reports.

    Attributes:
        stamp_s: of the frame.
        inputs: of the network.
        people: tracked persons, with positions where these are known.
        detections: the network's detections, before tracking.
        report: of the whole frame: ``total_s`` runs from the frame's arrival to this result, ``queue`` is the time
            waited, and ``compute_robot`` includes preparing, interpreting and tracking.
        inference: of the network alone, as ``run`` returned it.
        host_s: seconds in ``prepare``, ``interpret`` and ``track``.
        started_s: start of the frame's preparation, on the pipeline's clock.
    """

    stamp_s: float
    inputs: Tuple[torch.Tensor, ...]
    people: List[TrackedPerson]
    detections: People
    report: InferenceReport
    inference: InferenceReport
    host_s: Dict[str, float] = field(default_factory=dict)
    started_s: float = 0.0


@dataclass(eq=False)
class Interpretation:
    """Interpreted outputs of a network for one image.

    Attributes:
        result: returned by the estimator's ``interpret``.
        report: of the frame until :attr:`done_s`.
        inference: of the network alone.
        started_s, done_s: start of the preparation and end of the interpretation, on the caller's clock.
        host_s: seconds in ``prepare`` and ``interpret``.
    """

    result: Any
    report: InferenceReport
    inference: InferenceReport
    started_s: float
    done_s: float
    host_s: Dict[str, float]


@dataclass(eq=False)
class NetworkInput:
    """An image prepared for its network; made by :meth:`from_image`.

    Attributes:
        inputs: of the network.
        placement: of the image in them.
        received_s, started_s, done_s: arrival of the image, start and end of its preparation, on ``clock``.
        clock: monotonic seconds.
    """

    inputs: Tuple[torch.Tensor, ...]
    placement: Any
    received_s: float
    started_s: float
    done_s: float
    clock: Callable[[], float]

    @classmethod
    def from_image(
        cls,
        estimator: Estimator,
        bgr: Array,
        received_s: Optional[float] = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> NetworkInput:
        """Prepare an image.

        Args:
            estimator: estimator of the network.
            bgr: uint8 [h, w, 3].
            received_s: arrival of the image, on ``clock``; by default now.
            clock: monotonic seconds.

        Raises:
            BadInput: the image cannot be used.
        """
        started = clock()
        image, placement = estimator.prepare(bgr)
        received = started if received_s is None else min(received_s, started)
        return cls((image,), placement, received, started, clock(), clock)

    def interpret(
        self, estimator: Estimator, outputs: Sequence[torch.Tensor], inference: InferenceReport
    ) -> Interpretation:
        """Interpret the network's ``outputs`` and report the frame's stages; waiting since then counts as ``queue``.

        Raises:
            BadInput: the outputs are not those of the network.
        """
        ran = self.clock()
        result = estimator.interpret(outputs, self.placement)
        done = self.clock()
        host = {"prepare": self.done_s - self.started_s, "interpret": done - ran}
        stages = dict(inference.stages_s)
        waited_s = max(0.0, ran - self.done_s - inference.total_s)
        stages["queue"] += self.started_s - self.received_s + waited_s
        stages["compute_robot"] += sum(host.values())
        report = replace(inference, model=estimator.name, total_s=done - self.received_s, stages_s=stages)
        return Interpretation(result, report, inference, self.started_s, done, host)


class PeoplePipeline:
    """Finds and tracks people, frame by frame. Not thread-safe: frames are finished in their order, one at a time.

    Args:
        estimator: prepares images and interprets outputs.
        tracker: by default one with default settings.
        allow_untrained: accept an estimator with random weights, which finds nobody (latency and parity work).
        clock: monotonic seconds.

    Raises:
        BadInput: the estimator is not trained, and ``allow_untrained`` is false.
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
    ) -> PeopleResult:
        """Process one frame.

        Args:
            bgr: uint8 [h, w, 3].
            stamp_s: the frame's stamp, seconds.
            run: runs the estimator's module for this frame.
            received_s: arrival of the frame, on the pipeline's clock; by default now.
            locator: finds positions in space; None: positions stay unknown.

        Raises:
            BadInput: the image cannot be used.
            EdgeOffloadError: ``run`` failed.
        """
        prepared = self.prepare_input(bgr, received_s)
        outputs, inference = run(prepared.inputs)
        size = (bgr.shape[1], bgr.shape[0])
        return self.finish(prepared, outputs, inference, stamp_s, size, locator)

    def prepare_input(self, bgr: Array, received_s: Optional[float] = None) -> NetworkInput:
        """Prepare a frame: the first step of :meth:`process`, for pipelined callers."""
        return NetworkInput.from_image(self.estimator, bgr, received_s, self._clock)

    def finish(
        self,
        prepared: NetworkInput,
        outputs: Sequence[torch.Tensor],
        inference: InferenceReport,
        stamp_s: float,
        size: Tuple[int, int],
        locator: Optional[Locator] = None,
    ) -> PeopleResult:
        """Interpret, track and locate: the last step of :meth:`process`, for pipelined callers.

        Args:
            prepared: the frame.
            outputs: of the network.
            inference: report of the network.
            stamp_s: as in :meth:`process`.
            size: width and height of the frame, pixels.
            locator: as in :meth:`process`.

        Raises:
            BadInput: the outputs cannot be used.
        """
        interpretation = prepared.interpret(self.estimator, outputs, inference)
        detections = interpretation.result if self.estimator.trained else People.empty()
        people = self.tracker.update(detections, stamp_s, size)
        if locator is not None:
            people = add_positions(locator, people)
        tracked_s = self._clock() - interpretation.done_s
        stages = {
            **interpretation.report.stages_s,
            "compute_robot": interpretation.report.stages_s["compute_robot"] + tracked_s,
        }
        report = replace(interpretation.report, total_s=interpretation.report.total_s + tracked_s, stages_s=stages)
        host = {**interpretation.host_s, "track": tracked_s}
        return PeopleResult(
            stamp_s, prepared.inputs, people, detections, report, inference, host, interpretation.started_s
        )


def add_positions(locator: Locator, people: Sequence[TrackedPerson]) -> List[TrackedPerson]:
    """Return the people with their positions, where these are known."""
    # depth images and LiDARs show whoever stands in front of a coasting person
    measured = [not person.coasting for person in people]
    boxes, keypoints = [person.box for person in people], [person.keypoints for person in people]
    return [
        person.with_position(position) for person, position in zip(people, locator.locate(boxes, keypoints, measured))
    ]
