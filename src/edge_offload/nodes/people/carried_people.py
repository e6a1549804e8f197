"""Carried people: every image has a result at once, carried along from the network's latest result."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any, Iterator, List, Mapping, Optional, Tuple

import numpy as np

from edge_offload.errors import BadInput
from edge_offload.mode import Mode
from edge_offload.models.base import PersonEstimator
from edge_offload.models.people import People
from edge_offload.models.registry import build_estimator
from edge_offload.nodes.common.convert import image_to_bgr
from edge_offload.nodes.common.health import Health
from edge_offload.nodes.inference.cameras import Inferred, PreparedImage
from edge_offload.nodes.inference.carry import CarryThread, Task
from edge_offload.nodes.inference.intake import Frame
from edge_offload.nodes.inference.network import Network
from edge_offload.nodes.people.people_view import PeopleView, people_drop
from edge_offload.perception.carry.flow import FlowCarrier
from edge_offload.perception.pipeline import add_positions
from edge_offload.perception.tracking import TrackedPerson, match_people
from edge_offload.runtime.carrying import CARRIED, LOCAL, Along
from edge_offload.timing import InferenceReport


class CarriedNetwork(Network):
    """A person estimator, and a smaller one that stands in for it on the robot.

    Attributes:
        local: the smaller one; None: there is none.

    Raises:
        BadInput: nothing can be carried so.
    """

    def __init__(self, params: Mapping[str, Any], health: Health) -> None:
        super().__init__(params, health)
        if params["every_frame"]:
            raise BadInput("~carry and ~every_frame are both set", remedy="with ~carry every image has a result")
        self.local: Optional[PersonEstimator] = None
        if params["local"]:
            self.local = build_estimator(params["local"], **params["local_options"])
            if not self.local.trained:
                raise BadInput(f"~local: {self.local.name} has random weights", remedy="name a trained model, or none")


class CarriedPeopleView(PeopleView):
    """Gives every image of one camera its people at once."""

    def open(self, network: Network) -> None:
        super().open(network)
        self._local = network.local if isinstance(network, CarriedNetwork) else None
        self._flow = FlowCarrier()
        task: Task[List[TrackedPerson]] = Task(
            self._flow, self._add_image, self._publish_along, self.publish_failure, people_drop, waits=self._waits_s
        )
        if self._local is not None:
            task = replace(task, local_algorithm=self._infer_locally, adopt=self._identify_people)
        self.carry = self._thread = CarryThread(task, self.params["slowdown"], self.health, self.fault)
        self.camera.poses.add_listener(self._thread.wake)
        if self._ranges is not None:
            self._ranges.notify_with(self._thread.wake)

    def publish_result(self, frame: Frame, prepared: PreparedImage, inferred: Inferred) -> None:
        """Implement :class:`.SensorStages`."""
        node, image, estimator = self.node, prepared.image, self._pipeline.estimator
        seen = image.interpret(estimator, *inferred)
        energy, measured = node.measure_energy(frame, seen.report)
        node.account_frame(frame, image.inputs, seen.report, energy, measured)
        self.health.clear("frame")
        people = seen.result if estimator.trained else People.empty()
        self._thread.take_in_result(
            functools.partial(self._track_people, frame, people, prepared.size, (seen.report, energy))
        )

    # in the thread that carries

    def _add_image(self, frame: Frame) -> bool:
        """An image has come: the flow sees it, and the network may."""
        frame.pixels = image_to_bgr(frame.message)
        another = self._notice_recording(frame)
        if another:
            self._flow.clear_frames()
        follows = self._flow.add_frame(frame.instant, frame.pixels) and not another
        if not follows:
            self._pipeline.tracker.reset()
        self.node.queue.offer_frame(frame)
        return follows

    def _track_people(self, frame: Frame, detected: People, size: Tuple[int, int], tag: Any) -> Iterator[None]:
        """Track the network's people of an earlier image, and bring them to the newest."""
        instant, loop = frame.instant, self._thread.loop
        if not loop.outdated(instant):
            before = loop.carrying.carried(instant) or []
            people = self._pipeline.tracker.update(detected, instant.seconds, size, before)
            yield from loop.coming(people, instant, frame.received_s, tag)

    def _waits_s(self, frame: Frame) -> float:
        """Until when the result of an image may wait for its pose, its depth image and its cloud."""
        return max(self.camera.waits_s(frame), -math.inf if self._ranges is None else self._ranges.waits_s(frame))

    def _infer_locally(self, frame: Frame) -> People:
        assert frame.pixels is not None
        assert self._local is not None
        return self._local.infer(frame.pixels)

    def _identify_people(self, frame: Frame, detected: People) -> Optional[List[TrackedPerson]]:
        """Identify the people of the local network, once there are tracks."""
        carried = self._thread.loop.carrying.carried(frame.instant)
        if carried is None:
            return None
        return match_people(detected.select(np.flatnonzero(detected.scores >= self.params["min_score"])), carried)

    def _publish_along(self, frame: Frame, along: Along[List[TrackedPerson]]) -> None:
        bgr, people = frame.pixels, along.result or []
        assert bgr is not None
        size = (bgr.shape[1], bgr.shape[0])
        model = self._local.name if along.origin == LOCAL and self._local is not None else self.node.model
        report, energy = along.tag or (InferenceReport(Mode.LOCAL, model), float("nan"))
        locator = self._make_locator(frame, size)
        if locator is not None:
            people = add_positions(locator, people)
        placed, target = self._publish_people(frame, size, people, report, locator, along)
        age_s = (frame.instant - along.source) / 1e9 if along.origin == CARRIED else None
        self._publish_watched(frame, bgr, people, placed, target, report, energy, locator, age_s)
