"""finds and tracks people in the images of a camera, with the network running on the robot or on a server.

Subscribes:
  camera/image_raw              sensor_msgs/Image, or camera/image_raw/compressed (sensor_msgs/CompressedImage)
  camera/camera_info            sensor_msgs/CameraInfo: needed for positions in space
  camera/depth/image_raw        sensor_msgs/Image 16UC1 or 32FC1, aligned with the image (only with ~depth)
  offload/mode                  edge_offload_msgs/OffloadMode: where to run from now on
  offload/bandwidth             edge_offload_msgs/Bandwidth: how the link is while no inference uses it
  offload/turn                  edge_offload_msgs/Turn: whose frame goes next (only with ~turns, and offload/mode is
                                offload/mode/people then)
  /tf, /tf_static               pose of the camera in ~world_frame, whose ground is z = 0

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

Only the latest image is worked on; older ones that still wait are superseded, and counted on /diagnostics. With
~every_frame nothing is superseded: the subscriber's connection is held up instead. While images go to the server, up to
~in_flight of them are under way at once: one is prepared and sent while the server computes the one before. Results
keep the order of the images; /diagnostics says which modes take one after the other, and why.

When the server cannot be reached the network runs on the robot; /diagnostics and Latency.fallback_reason say why.
Sets the parameter ~weights_sha256 to the checksum of the model's weights.
"""

from __future__ import annotations

import functools
from typing import Any, Optional, Tuple

import numpy as np
import rospy
from visualization_msgs.msg import MarkerArray

from edge_offload.arrays import Array
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.inference.intake import DepthIntake, Frame
from edge_offload.nodes.inference.latest_frame_queue import Steps
from edge_offload.nodes.inference.network import Network
from edge_offload.nodes.inference.offloaded import ImageNode, OffloadedNode, Picture
from edge_offload.nodes.inference.vision import DetectionPublisher
from edge_offload.nodes.people.people_messages import Motion, marker_message, people_message, place
from edge_offload.perception.agreement import boxes_drop
from edge_offload.perception.geometry import Locator
from edge_offload.perception.overlay import draw
from edge_offload.perception.pipeline import FrameResult, PeoplePipeline
from edge_offload.perception.target import RULES, TargetSelector
from edge_offload.perception.tracking import Tracker, TrackerConfig
from edge_offload.timing import InferenceReport
from edge_offload_msgs.msg import PersonArray


class KapaoNode(ImageNode):
    """See the module's docstring."""

    name = "kapao_node"
    task = "people"
    overlay = "kapao/overlay"
    declared = (
        *Network.declared,
        *OffloadedNode.shared,
        *ImageNode.looks,
        Param("min_score", 0.25, "detections below this start no track", low=0.0, high=1.0),
        Param("keypoint_score", 0.3, "keypoints below this are not relied on for positions", low=0.0, high=1.0),
        Param("target", "largest", "who to follow", choices=tuple(RULES)),
        Param("depth", False, "use an aligned depth image for positions"),
        Param("depth_tolerance", 0.05, "s between an image and its depth image", low=0.0),
        Param("world_frame", "map", "tf frame of the positions, its ground at z = 0"),
    )

    def open(self) -> Network:
        params = self.params
        network = Network(params, self.health)
        tracker = Tracker(TrackerConfig(high_score=params["min_score"], low_score=min(0.1, params["min_score"])))
        self._pipeline = PeoplePipeline(network.estimator, tracker, allow_untrained=True)
        self._selector = TargetSelector(params["target"])
        self._motion = Motion()
        self._people = rospy.Publisher("kapao/people", PersonArray, queue_size=100)
        self._markers = rospy.Publisher("kapao/markers", MarkerArray, queue_size=4)
        self._detections = DetectionPublisher("kapao/detections", ["person"], network.estimator.name, self.health)
        self._depth = (
            DepthIntake(self, "camera/depth/image_raw", params["depth_tolerance"]) if params["depth"] else None
        )
        return network

    def look(self, frame: Frame, bgr: Array) -> Steps:
        header, size = frame.message.header, (bgr.shape[1], bgr.shape[0])
        depth, encoding = self._depth.at(header.stamp) if self._depth is not None else (None, "")
        if depth is not None and depth.shape != bgr.shape[:2]:
            self.health.warn("depth", f"depth image {depth.shape[::-1]} is not aligned with the image {list(size)}")
            depth = None
        prepared = self._pipeline.prepare(bgr, frame.received_s)
        yield
        facts = {"frame_id": header.frame_id, "image": list(size), "options": self.params["model_options"]}
        outputs, inference = self.infer(frame, prepared.inputs, **facts)
        yield
        make = functools.partial(Locator, keypoint_score=self.params["keypoint_score"])
        locator = self._camera.locator(header, *size, make)
        stamp_s = header.stamp.to_sec()
        result = self._pipeline.finish(
            prepared, outputs, inference, stamp_s, size, locator, depth, encoding or "32FC1"
        )  # fmt: skip
        self._publish(frame, bgr, result, locator)

    def _publish(self, frame: Frame, bgr: Array, result: FrameResult, locator: Optional[Locator]) -> None:
        header, report = frame.message.header, result.report
        energy, measured = self.energy(frame, report)
        self._selector.select(result.people, result.stamp_s)
        target = self._selector.target_id
        placed = place(
            result.people,
            None if locator is None else locator.pose,
            self.params["world_frame"],
            header.frame_id,
            self._motion,
            result.stamp_s,
        )
        size = (bgr.shape[1], bgr.shape[0])
        self._people.publish(people_message(header, report, size, result.people, placed, target))
        self.account(header, result.inputs, report, energy, measured)
        seen = [person for person in result.people if not person.coasting]
        boxes = np.array([person.box for person in seen]).reshape(-1, 4)
        self.compare(header, boxes, boxes_drop)
        if self._markers.get_num_connections():
            self._markers.publish(marker_message(header, placed, target))
        if self._detections.topic is not None and self._detections.topic.get_num_connections():
            self._detections.publish(
                header, boxes, np.array([person.score for person in seen]), np.zeros(len(seen), int)
            )
        self.paint(header, bgr, (result.people, target), report, energy)

    def publish_nothing(self, header: Any, report: InferenceReport, size: Tuple[int, int]) -> None:
        self._people.publish(people_message(header, report, size))

    def draw(self, picture: Picture) -> Array:
        people, target = picture.found
        return draw(picture.bgr, people, picture.status(), target)


NODE = KapaoNode
