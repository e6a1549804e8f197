"""finds and tracks people in the images of a camera, with the network running on the robot or on a server.

Subscribes:
  camera/image_raw              sensor_msgs/Image, or camera/image_raw/compressed (sensor_msgs/CompressedImage)
  camera/camera_info            sensor_msgs/CameraInfo: needed for positions in space
  camera/depth/image_raw        sensor_msgs/Image 16UC1 or 32FC1, aligned with the image (only with ~depth)
  lidar/points                  sensor_msgs/PointCloud2 (only with ~cloud)
  offload/mode                  edge_offload_msgs/OffloadMode: where to run from now on
  offload/bandwidth             edge_offload_msgs/Bandwidth: how the link is while no inference uses it
  offload/turn                  edge_offload_msgs/Turn: whose frame goes next (only with ~turns, and offload/mode is
                                offload/mode/people then)
  /tf, /tf_static               pose of the camera in ~world_frame, whose ground is z = 0; with ~cloud that of the LiDAR

Publishes, exactly one of each for every frame taken up, with the frame's stamp:
  kapao/people                  edge_offload_msgs/PersonArray, empty when there is nobody
  offload/latency               edge_offload_msgs/Latency: the mode that really ran, time by stage, bytes, energy
  offload/forecast              edge_offload_msgs/Forecast: what the next frame would cost in each mode
with ~turns, where several networks of a robot share a server, also
  offload/turn_taken            edge_offload_msgs/Turn: a frame goes to the server; its result is there
  offload/drop                  edge_offload_msgs/Drop: what results lose with staleness, as they show themselves
and while somebody listens:
  kapao/overlay                 sensor_msgs/Image, annotated; kapao/overlay/compressed (JPEG)
  kapao/markers                 visualization_msgs/MarkerArray: people whose position is known
  kapao/detections              vision_msgs/Detection2DArray: the boxes, where vision_msgs is installed
  kapao/detections_3d           vision_msgs/Detection3DArray: those of them whose position is known

Only the latest image is worked on; older ones that still wait are superseded, and counted on /diagnostics. With
~every_frame nothing is superseded: the subscriber's connection is held up instead. While images go to the server, up to
~in_flight of them are under way at once: one is prepared and sent while the server computes the one before. Results
keep the order of the images; /diagnostics says which modes take one after the other, and why.

With ~camera_ns [front, left, rear] several cameras share the network: one model here, one session at a server. Their
topics are front/image_raw, front/camera_info, front/kapao/people and so on; Latency.camera is front. The next frame is
that of the camera which had its last turn the longest ago; of each the latest image waits.

With ~carry every image has its result within the time between two images: the network's own where that comes in time,
else the newest one carried along by optical flow or, where that is expected to be better, that of a smaller network
that runs here (~local): PersonArray.result says which. There is one offload/latency for each inference then, not for
each image, and offload/drop says what results lose with staleness.

When the server cannot be reached the network runs on the robot; /diagnostics and Latency.fallback_reason say why.
Sets the parameter ~weights_sha256 to the checksum of the model's weights.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import rospy
from visualization_msgs.msg import MarkerArray

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.mode import Mode
from edge_offload.models.base import PersonEstimator
from edge_offload.models.people import People
from edge_offload.models.registry import build_estimator
from edge_offload.nodes.common.convert import image_to_bgr
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.inference.cameras import CameraView, ImageNode
from edge_offload.nodes.inference.carry import CarryThread, Task
from edge_offload.nodes.inference.compose import NOTHING
from edge_offload.nodes.inference.intake import Frame
from edge_offload.nodes.inference.latest_frame_queue import Steps
from edge_offload.nodes.inference.network import DECODER, Network
from edge_offload.nodes.inference.offloaded import OffloadedNode
from edge_offload.nodes.inference.pictures import Picture
from edge_offload.nodes.inference.ranges import POSITIONS, RangeIntake
from edge_offload.nodes.inference.vision import DetectionPublisher, places_of
from edge_offload.nodes.people.people_messages import Motion, Placed, marker_message, people_message, place
from edge_offload.perception.agreement import boxes_drop
from edge_offload.perception.carry.flow import FlowCarrier
from edge_offload.perception.locator import Locator
from edge_offload.perception.overlay import draw
from edge_offload.perception.pipeline import PeoplePipeline, located
from edge_offload.perception.target import RULES, TargetSelector
from edge_offload.perception.tracking import TrackedPerson, Tracker, TrackerConfig, recognised
from edge_offload.runtime.carrying import CARRIED, LOCAL, Along, FrameLoop
from edge_offload.timing import InferenceReport
from edge_offload_msgs.msg import PersonArray


def boxes_of(people: Sequence[TrackedPerson]) -> Array:
    """Boxes [n, 4] of people, x1 y1 x2 y2 in pixels."""
    return np.array([person.box for person in people]).reshape(-1, 4)


def people_drop(before: Sequence[TrackedPerson], after: Sequence[TrackedPerson]) -> float:
    """What one result has lost against another one for the same image, 0 to 1; only people who were seen count."""
    return boxes_drop(*(boxes_of([person for person in people if not person.coasting]) for people in (before, after)))


class PeopleView(CameraView):
    """People in the images of one camera: who they are from image to image, where they are, who is the target."""

    node: KapaoNode
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
        self._ranges = RangeIntake.of(self, self.camera, self.input_topic("depth/image_raw"))
        if params["carry"]:
            self.carry = CarryThread(self._carried(), params["slowdown"], self.health, self.fault)
            self.camera.poses.add_listener(self.carry.wake)
            if self._ranges is not None:
                self._ranges.tell(self.carry.wake)

    def _carried(self) -> Task[List[TrackedPerson]]:
        """How people are carried along, and what finds them without a server."""
        self._flow = FlowCarrier()
        task: Task[List[TrackedPerson]] = Task(
            self._flow, self._see, self._leave, self.publish_failure, people_drop, waits=self._waits_s
        )
        return task if self.node.local is None else replace(task, beside=self._look_here, adopt=self._adopt)

    def look(self, frame: Frame) -> Steps:
        bgr = image_to_bgr(frame.message) if frame.pixels is None else frame.pixels
        node, header, size = self.node, frame.message.header, (bgr.shape[1], bgr.shape[0])
        prepared = self._pipeline.prepare(bgr, frame.received_s)
        yield
        facts = {"frame_id": header.frame_id, "image": list(size), "options": self.params["model_options"]}
        outputs, inference = node.infer(frame, prepared.inputs, **facts)
        yield
        if self.carry is not None:
            seen = prepared.interpret(self._pipeline.estimator, outputs, inference)
            energy, measured = node.energy(frame, seen.report)
            node.account(frame, prepared.inputs, seen.report, energy, measured)
            self.health.clear("frame")
            found = seen.found if self._pipeline.estimator.trained else People.empty()
            self.carry.came(functools.partial(self._found, frame, found, size, (seen.report, energy), self.carry.loop))
            return
        locator = self._locator(frame, size)
        self._notice_recording(frame)
        seconds = frame.instant.seconds
        result = self._pipeline.finish(prepared, outputs, inference, seconds, size, locator)
        energy, measured = node.energy(frame, result.report)
        placed, target = self._publish(frame, size, result.people, result.report, locator)
        node.account(frame, prepared.inputs, result.report, energy, measured)
        self.health.clear("frame")
        node.compare(frame, result.people, people_drop)
        self._show(frame, bgr, result.people, placed, target, result.report, energy, locator)

    def _notice_recording(self, frame: Frame) -> bool:
        """Whether the frame is of another recording than those before: everybody is forgotten then."""
        before, self._recording = self._recording, frame.instant.recording
        if before == self._recording:
            return False
        self._pipeline.tracker.reset()
        self._selector.reset()
        return True

    def _waits_s(self, frame: Frame) -> float:
        """Until when the result of an image may wait for its pose, its depth image and its cloud."""
        return max(self.camera.waits_s(frame), -math.inf if self._ranges is None else self._ranges.waits_s(frame))

    def _locator(self, frame: Frame, size: Tuple[int, int]) -> Optional[Locator]:
        make = Locator if self._ranges is None else functools.partial(self._ranges.locator, frame, size)
        return self.camera.locator(frame, *size, functools.partial(make, keypoint_score=self.params["keypoint_score"]))

    def _see(self, frame: Frame) -> bool:
        """An image has come: the flow sees it, and the network may (in the thread that carries)."""
        frame.pixels = image_to_bgr(frame.message)
        another = self._notice_recording(frame)
        if another:
            self._flow.forget()
        follows = self._flow.see(frame.instant, frame.pixels) and not another
        if not follows:
            self._pipeline.tracker.reset()
        self.node.slot.put(frame)
        return follows

    def _found(
        self, frame: Frame, found: People, size: Tuple[int, int], tag: Any, loop: FrameLoop[Frame, List[TrackedPerson]]
    ) -> Iterator[None]:
        """The network's finds in an earlier image: who they are, where they are now (in the thread that carries)."""
        instant = frame.instant
        if not loop.outdated(instant):
            before = loop.carrying.carried(instant) or []
            people = self._pipeline.tracker.update(found, instant.seconds, size, before)
            yield from loop.coming(people, instant, frame.received_s, tag)

    def _look_here(self, frame: Frame) -> People:
        """What the local network finds (in a thread of its own)."""
        local = self.node.local
        assert frame.pixels is not None
        assert local is not None
        return local.infer(frame.pixels)

    def _adopt(self, frame: Frame, found: People) -> Optional[List[TrackedPerson]]:
        """Who they are that the local network has found, once anybody is known (in the thread that carries)."""
        assert self.carry is not None
        known = self.carry.loop.carrying.carried(frame.instant)
        if known is None:
            return None
        return recognised(found.select(np.flatnonzero(found.scores >= self.params["min_score"])), known)

    def _leave(self, frame: Frame, along: Along[List[TrackedPerson]]) -> None:
        """The result of an image, whatever its origin (in the thread that carries)."""
        bgr, people = frame.pixels, along.result or []
        assert bgr is not None
        size = (bgr.shape[1], bgr.shape[0])
        local = self.node.local
        model = local.name if along.origin == LOCAL and local is not None else self.node.model
        report, energy = along.tag or (InferenceReport(Mode.LOCAL, model), float("nan"))
        locator = self._locator(frame, size)
        if locator is not None:
            people = located(locator, people)
        placed, target = self._publish(frame, size, people, report, locator, along)
        age_s = (frame.instant - along.source) / 1e9 if along.origin == CARRIED else None
        self._show(frame, bgr, people, placed, target, report, energy, locator, age_s)

    def _publish(
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
            self._ranges.account(locator, [person.position for person in people if not person.coasting])
        placed = place(people, locator, self._motion, seconds)
        self._people.publish(people_message(header, report, size, people, placed, target, along))
        return placed, target

    def _show(
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
        """What is published while somebody listens."""
        header = frame.message.header
        if self._markers.get_num_connections():
            self._markers.publish(marker_message(header, placed, target))
        if self._detections.topic is not None and self._detections.watched:
            seen = [person for person in people if not person.coasting]
            scores, classes = np.array([person.score for person in seen]), np.zeros(len(seen), int)
            self._detections.publish(header, boxes_of(seen), scores, classes)
            places = places_of(locator, boxes_of(seen), [person.position for person in seen])
            self._detections.publish_places(header, places, scores, classes)
        if self.painter.watched:
            self.painter.paint(Picture(header, bgr, (people, target), report, energy, carried_s))

    def publish_nothing(self, header: Any, report: InferenceReport, size: Tuple[int, int]) -> None:
        self._people.publish(people_message(header, report, size, along=NOTHING))

    def draw(self, picture: Picture) -> Array:
        people, target = picture.found
        return draw(picture.bgr, people, picture.status(), target)


class KapaoNode(ImageNode):
    """See the module's docstring."""

    name = "kapao_node"
    task = "people"
    view = PeopleView
    declared = (
        *Network.declared,
        *OffloadedNode.shared,
        *ImageNode.looks,
        Param("decoder", "", DECODER),
        Param("min_score", 0.25, "detections below this start no track", low=0.0, high=1.0),
        Param("keypoint_score", 0.3, "keypoints below this are not relied on for positions", low=0.0, high=1.0),
        Param("target", "largest", "who to follow", choices=tuple(RULES)),
        *POSITIONS,
        Param("carry", False, "give every image its result at once, carried along from what the network saw last"),
        Param("local", "", "with ~carry: a smaller network that runs here and stands in where it is the better one"),
        Param("local_options", {}, "options of that network, such as {size: 320}"),
    )

    def make_network(self) -> Network:
        params = self.params
        network = Network(params, self.health)
        if params["carry"] and params["every_frame"]:
            raise BadInput("~carry and ~every_frame are both set", remedy="with ~carry every image has a result")
        #: What stands in for the network with ~carry.
        self.local: Optional[PersonEstimator] = None
        if params["carry"] and params["local"]:
            self.local = build_estimator(params["local"], **params["local_options"])
            if not self.local.trained:
                raise BadInput(f"~local: {self.local.name} has random weights", remedy="name a trained model, or none")
        return network


NODE = KapaoNode
