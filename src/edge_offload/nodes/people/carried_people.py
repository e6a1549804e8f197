"""People that are carried along: every image has its result at once, from what the network saw last."""

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
            self._flow, self._see, self._leave, self.publish_failure, people_drop, waits=self._waits_s
        )
        if self._local is not None:
            task = replace(task, beside=self._look_here, adopt=self._adopt)
        self.carry = self._thread = CarryThread(task, self.params["slowdown"], self.health, self.fault)
        self.camera.poses.add_listener(self._thread.wake)
        if self._ranges is not None:
            self._ranges.tell(self._thread.wake)

    def finish(self, frame: Frame, prepared: PreparedImage, inferred: Inferred) -> None:
        node, image, estimator = self.node, prepared.image, self._pipeline.estimator
        seen = image.interpret(estimator, *inferred)
        energy, measured = node.energy(frame, seen.report)
        node.account(frame, image.inputs, seen.report, energy, measured)
        self.health.clear("frame")
        found = seen.result if estimator.trained else People.empty()
        self._thread.came(functools.partial(self._found, frame, found, prepared.size, (seen.report, energy)))

    # in the thread that carries

    def _see(self, frame: Frame) -> bool:
        """An image has come: the flow sees it, and the network may."""
        frame.pixels = image_to_bgr(frame.message)
        another = self._notice_recording(frame)
        if another:
            self._flow.clear_frames()
        follows = self._flow.add_frame(frame.instant, frame.pixels) and not another
        if not follows:
            self._pipeline.tracker.reset()
        self.node.slot.put(frame)
        return follows

    def _found(self, frame: Frame, found: People, size: Tuple[int, int], tag: Any) -> Iterator[None]:
        """The network's finds in an earlier image: who they are, where they are now."""
        instant, loop = frame.instant, self._thread.loop
        if not loop.outdated(instant):
            before = loop.carrying.carried(instant) or []
            people = self._pipeline.tracker.update(found, instant.seconds, size, before)
            yield from loop.coming(people, instant, frame.received_s, tag)

    def _waits_s(self, frame: Frame) -> float:
        """Until when the result of an image may wait for its pose, its depth image and its cloud."""
        return max(self.camera.waits_s(frame), -math.inf if self._ranges is None else self._ranges.waits_s(frame))

    def _look_here(self, frame: Frame) -> People:
        """What the local network finds (in a thread of its own)."""
        assert frame.pixels is not None
        assert self._local is not None
        return self._local.infer(frame.pixels)

    def _adopt(self, frame: Frame, found: People) -> Optional[List[TrackedPerson]]:
        """Who they are that the local network has found, once anybody is known."""
        known = self._thread.loop.carrying.carried(frame.instant)
        if known is None:
            return None
        return match_people(found.select(np.flatnonzero(found.scores >= self.params["min_score"])), known)

    def _leave(self, frame: Frame, along: Along[List[TrackedPerson]]) -> None:
        """The result of an image, whatever its origin."""
        bgr, people = frame.pixels, along.result or []
        assert bgr is not None
        size = (bgr.shape[1], bgr.shape[0])
        model = self._local.name if along.origin == LOCAL and self._local is not None else self.node.model
        report, energy = along.tag or (InferenceReport(Mode.LOCAL, model), float("nan"))
        locator = self._locator(frame, size)
        if locator is not None:
            people = add_positions(locator, people)
        placed, target = self._publish(frame, size, people, report, locator, along)
        age_s = (frame.instant - along.source) / 1e9 if along.origin == CARRIED else None
        self._show(frame, bgr, people, placed, target, report, energy, locator, age_s)
