"""The pipeline: image in, tracked people and an honest account of the time out."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import pytest
import torch

from edge_offload.errors import BadInput, LinkLost
from edge_offload.mode import Mode
from edge_offload.models.people import People
from edge_offload.perception.geometry import PinholeCamera
from edge_offload.perception.locator import Locator
from edge_offload.perception.pipeline import PeoplePipeline
from edge_offload.timing import InferenceReport
from tests.perception.scenes import box_at, people


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Estimator:
    """Finds one person wherever the "network" says; every step takes a known time."""

    name = "stand-in"

    def __init__(self, clock: Clock, trained: bool = True) -> None:
        self.clock, self.trained = clock, trained

    def prepare(self, bgr: np.ndarray) -> Tuple[torch.Tensor, str]:
        self.clock.now += 0.002
        return torch.from_numpy(bgr.copy()).permute(2, 0, 1), "placement"

    def interpret(self, outputs: Sequence[torch.Tensor], placement: str) -> People:
        assert placement == "placement"
        self.clock.now += 0.003
        return people([box_at(float(outputs[0]), 240, 80, 240)])


def runner(clock: Clock) -> Any:
    def run(inputs: Sequence[torch.Tensor]) -> Tuple[Tuple[torch.Tensor, ...], InferenceReport]:
        assert inputs[0].shape == (3, 480, 640)
        clock.now += 0.050
        stages: Dict[str, float] = {"uplink": 0.02, "compute_server": 0.02}
        return (torch.tensor(400.0),), InferenceReport(Mode.SERVER, "", 0.050, stages, 900_000, 300, 1)

    return run


def frame() -> np.ndarray:
    return np.zeros((480, 640, 3), np.uint8)


def test_people_are_returned_with_the_report_of_the_frame() -> None:
    clock = Clock()
    pipeline = PeoplePipeline(Estimator(clock), clock=clock)
    received, clock.now = clock.now, clock.now + 0.010
    result = pipeline.process(frame(), 12.5, runner(clock), received_s=received)
    assert [person.id for person in result.people] == [1]
    assert result.stamp_s == 12.5
    assert len(result.detections) == 1
    report = result.report
    assert report.model == "stand-in"
    assert report.mode is Mode.SERVER
    assert report.total_s == pytest.approx(0.065)
    assert report.stages_s["queue"] == pytest.approx(0.010)
    assert report.stages_s["compute_robot"] == pytest.approx(0.005)
    assert report.stages_s["uplink"] == pytest.approx(0.02)
    assert (report.bytes_up, report.bytes_down, report.round_trips) == (900_000, 300, 1)
    assert result.inference.total_s == pytest.approx(0.050), "the network's own report is kept as it was"
    assert result.host_s["prepare"] == pytest.approx(0.002)


def test_untrained_weights_are_refused_and_when_allowed_detect_no_people() -> None:
    clock = Clock()
    with pytest.raises(BadInput, match="no trained weights"):
        PeoplePipeline(Estimator(clock, trained=False))
    pipeline = PeoplePipeline(Estimator(clock, trained=False), allow_untrained=True, clock=clock)
    result = pipeline.process(frame(), 0.0, runner(clock))
    assert result.people == []
    assert len(result.detections) == 0
    assert result.report.total_s > 0


def test_positions_are_from_depth_but_not_for_guesses() -> None:
    clock = Clock()
    view = PinholeCamera(640, 480, np.array([[600.0, 0, 320], [0, 600, 240], [0, 0, 1]]))
    estimator = Estimator(clock)
    pipeline = PeoplePipeline(estimator, clock=clock)
    depth = np.full((480, 640), 3.0, np.float32)
    (seen,) = pipeline.process(frame(), 0.0, runner(clock), locator=Locator(view, depth=depth)).people
    assert seen.position is not None
    assert seen.position.xyz[2] == pytest.approx(3.0)
    estimator.interpret = lambda outputs, placement: People.empty()  # type: ignore[method-assign]
    (guess,) = pipeline.process(frame(), 0.1, runner(clock), locator=Locator(view, depth=depth)).people
    assert guess.coasting
    assert guess.position is None


def test_what_run_raises_comes_through_and_the_next_frame_works() -> None:
    clock = Clock()
    good, fails = runner(clock), [True, False]

    def run(inputs: Sequence[torch.Tensor]) -> Any:
        if fails.pop(0):
            raise LinkLost("gone")
        return good(inputs)

    pipeline = PeoplePipeline(Estimator(clock), clock=clock)
    with pytest.raises(LinkLost):
        pipeline.process(frame(), 0.0, run)
    results: List[Any] = [pipeline.process(frame(), 0.1, run)]
    assert len(results[0].people) == 1
