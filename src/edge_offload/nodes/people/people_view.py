"""People in the images of one camera: tracks them, locates them, and publishes the results."""

from __future__ import annotations

import functools
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import rospy
from visualization_msgs.msg import MarkerArray

from edge_offload.arrays import Array
from edge_offload.nodes.common.convert import image_to_bgr
from edge_offload.nodes.inference.cameras import CameraView, Inferred, PreparedImage
from edge_offload.nodes.inference.compose import NOTHING
from edge_offload.nodes.inference.intake import Frame
from edge_offload.nodes.inference.network import Network
from edge_offload.nodes.inference.pictures import Picture
from edge_offload.nodes.inference.ranges import RangeIntake
from edge_offload.nodes.inference.vision import DetectionPublisher, places_of
from edge_offload.nodes.people.people_messages import Motion, Placed, marker_message, people_message, place_people
from edge_offload.perception.agreement import boxes_drop
from edge_offload.perception.locator import Locator
from edge_offload.perception.overlay import draw_people
from edge_offload.perception.pipeline import PeoplePipeline
from edge_offload.perception.target import TargetSelector
from edge_offload.perception.tracking import TrackedPerson, Tracker, TrackerConfig
from edge_offload.runtime.carrying import Along
from edge_offload.timing import InferenceReport
from edge_offload_msgs.msg import PersonArray


def boxes_of(people: Sequence[TrackedPerson]) -> Array:
    """Boxes [n, 4] of people, x1 y1 x2 y2 in pixels."""
    return np.array([person.box for person in people]).reshape(-1, 4)


def people_drop(before: Sequence[TrackedPerson], after: Sequence[TrackedPerson]) -> float:
    """Return the loss of one result against another one for the same image, 0 to 1; counts people seen."""
    return boxes_drop(*(boxes_of([person for person in people if not person.coasting]) for people in (before, after)))


class PeopleView(CameraView):
    """People in the images of one camera: who they are from image to image, where they are, who is the target."""

    overlay = "kapao/overlay"

    def open(self, network: Network) -> None:
        params = self.params
        tracker = Tracker(TrackerConfig(high_score=params["min_score"], low_score=min(0.1, params["min_score"])))
        self._pipeline = PeoplePipeline(network.estimator, tracker, allow_untrained=True)
        self._selector = TargetSelector(params["target"])
        self._motion = Motion()
        self._recording = 0
        self._people = rospy.Publisher(self.output_topic("kapao/people"), PersonArray, queue_size=100)
        self._markers = rospy.Publisher(self.output_topic("kapao/markers"), MarkerArray, queue_size=4)
        topic = self.output_topic("kapao/detections")
        self._detections = DetectionPublisher(topic, ["person"], network.estimator.name, self.health)
        self._ranges = RangeIntake.from_node(self, self.camera, self.input_topic("depth/image_raw"))

    def prepare_inputs(self, frame: Frame) -> PreparedImage:
        """Implement :class:`.SensorStages`."""
        bgr = image_to_bgr(frame.message) if frame.pixels is None else frame.pixels
        return PreparedImage(bgr, (bgr.shape[1], bgr.shape[0]), self._pipeline.prepare_input(bgr, frame.received_s))

    def infer_inputs(self, frame: Frame, prepared: PreparedImage) -> Inferred:
        """Implement :class:`.SensorStages`."""
        facts = {"image": list(prepared.size), "options": self.params["model_options"]}
        return self.node.run_network(frame, prepared.image.inputs, frame_id=frame.message.header.frame_id, **facts)

    def publish_result(self, frame: Frame, prepared: PreparedImage, inferred: Inferred) -> None:
        """Implement :class:`.SensorStages`."""
        node, size = self.node, prepared.size
        locator = self._make_locator(frame, size)
        self._notice_recording(frame)
        result = self._pipeline.finish(prepared.image, *inferred, frame.instant.seconds, size, locator)
        energy, measured = node.measure_energy(frame, result.report)
        placed, target = self._publish_people(frame, size, result.people, result.report, locator)
        node.account_frame(frame, prepared.image.inputs, result.report, energy, measured)
        self.health.clear("frame")
        node.compare_result(frame, result.people, people_drop)
        self._publish_watched(frame, prepared.bgr, result.people, placed, target, result.report, energy, locator)

    def _notice_recording(self, frame: Frame) -> bool:
        """Tell whether the frame is of another recording than those before; drop all tracks then."""
        before, self._recording = self._recording, frame.instant.recording
        if before == self._recording:
            return False
        self._pipeline.tracker.reset()
        self._selector.reset()
        return True

    def _make_locator(self, frame: Frame, size: Tuple[int, int]) -> Optional[Locator]:
        """Make the locator for a frame; None: there is no source of positions."""
        make = Locator if self._ranges is None else functools.partial(self._ranges.make_locator, frame, size)
        return self.camera.make_locator(
            frame, *size, functools.partial(make, keypoint_score=self.params["keypoint_score"])
        )

    def _publish_people(
        self,
        frame: Frame,
        size: Tuple[int, int],
        people: List[TrackedPerson],
        report: InferenceReport,
        locator: Optional[Locator],
        along: Optional[Along[Any]] = None,
    ) -> Tuple[Dict[int, Placed], Optional[int]]:
        """The one result of an image; where people are, and who the target is."""
        header = frame.message.header
        seconds = frame.instant.seconds
        self._selector.select(people, seconds)
        target = self._selector.target_id
        if self._ranges is not None:
            self._ranges.report_sources(locator, [person.position for person in people if not person.coasting])
        placed = place_people(people, locator, self._motion, seconds)
        self._people.publish(people_message(header, report, size, people, placed, target, along))
        return placed, target

    def _publish_watched(
        self,
        frame: Frame,
        bgr: Array,
        people: List[TrackedPerson],
        placed: Dict[int, Placed],
        target: Optional[int],
        report: InferenceReport,
        energy: float,
        locator: Optional[Locator],
        carried_s: Optional[float] = None,
    ) -> None:
        header = frame.message.header
        if self._markers.get_num_connections():
            self._markers.publish(marker_message(header, placed, target))
        if self._detections.topic is not None and self._detections.watched:
            seen = [person for person in people if not person.coasting]
            scores, classes = np.array([person.score for person in seen]), np.zeros(len(seen), int)
            self._detections.publish_detections(header, boxes_of(seen), scores, classes)
            places = places_of(locator, boxes_of(seen), [person.position for person in seen])
            self._detections.publish_places(header, places, scores, classes)
        if self.painter.watched:
            self.painter.paint(Picture(header, bgr, (people, target), report, energy, carried_s))

    def publish_nothing(self, header: Any, report: InferenceReport, size: Tuple[int, int]) -> None:
        self._people.publish(people_message(header, report, size, along=NOTHING))

    def draw(self, picture: Picture) -> Array:
        people, target = picture.result
        return draw_people(picture.bgr, people, picture.make_status(), target)
