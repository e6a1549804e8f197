"""finds and tracks people in the images of a camera, with the network running on the robot or on a server.

Subscribes:
  camera/image_raw              sensor_msgs/Image, or camera/image_raw/compressed (sensor_msgs/CompressedImage)
  camera/camera_info            sensor_msgs/CameraInfo: needed for positions in space
  camera/depth/image_raw        sensor_msgs/Image 16UC1 or 32FC1, aligned with the image (only with ~depth)
  offload/mode                  edge_offload_msgs/OffloadMode: where to run from now on
  offload/bandwidth             edge_offload_msgs/Bandwidth: how the link is while no inference uses it
  /tf, /tf_static               pose of the camera in ~world_frame, whose ground is z = 0

Publishes, exactly one of each for every frame taken up, with the frame's stamp:
  kapao/people                  edge_offload_msgs/PersonArray, empty when there is nobody
  offload/latency               edge_offload_msgs/Latency: the mode that really ran, time by stage, bytes, energy
  offload/forecast              edge_offload_msgs/Forecast: what the next frame would cost in each mode
and while somebody listens:
  kapao/overlay                 sensor_msgs/Image, annotated; kapao/overlay/compressed (JPEG)
  kapao/markers                 visualization_msgs/MarkerArray: people whose position is known

Only the latest image is worked on; older ones that still wait are superseded, and counted on /diagnostics. With
~every_frame nothing is superseded: the subscriber's connection is held up instead.

When the server cannot be reached the network runs on the robot; /diagnostics and Latency.fallback_reason say why.
Sets the parameter ~weights_sha256 to the checksum of the model's weights.
"""

from __future__ import annotations

import functools
import time
from typing import Any, Dict, List, NamedTuple, Optional

import rospy
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header
from visualization_msgs.msg import MarkerArray

from edge_offload.arrays import Array
from edge_offload.errors import EdgeOffloadError
from edge_offload.mode import Mode
from edge_offload.nodes.common.convert import bgr_to_image, bgr_to_jpeg, image_to_bgr
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.inference.intake import CameraIntake, DepthIntake, Frame, ImageIntake
from edge_offload.nodes.inference.latest_frame_queue import LatestFrameQueue, Worker
from edge_offload.nodes.inference.network import Network
from edge_offload.nodes.inference.offloaded import OffloadedNode
from edge_offload.nodes.people.people_messages import Motion, marker_message, people_message, place
from edge_offload.perception.geometry import Locator
from edge_offload.perception.overlay import Status, draw
from edge_offload.perception.pipeline import FrameResult, PeoplePipeline
from edge_offload.perception.target import RULES, TargetSelector
from edge_offload.perception.tracking import TrackedPerson, Tracker, TrackerConfig
from edge_offload.timing import InferenceReport
from edge_offload_msgs.msg import PersonArray


class _Picture(NamedTuple):
    """What an overlay is drawn from: the frame's header and BGR pixels, and what was found in it (energy in joules)."""

    header: Any
    bgr: Array
    people: List[TrackedPerson]
    report: InferenceReport
    energy: float
    target: Any


class KapaoNode(OffloadedNode):
    """See the module's docstring."""

    name = "kapao_node"
    declared = (
        *Network.declared,
        *OffloadedNode.shared,
        Param("every_frame", False, "work on every image instead of the latest"),
        Param("transport", "auto", "kind of images to subscribe to", choices=("auto", "raw", "compressed")),
        Param("min_score", 0.25, "detections below this start no track", low=0.0, high=1.0),
        Param("keypoint_score", 0.3, "keypoints below this are not relied on for positions", low=0.0, high=1.0),
        Param("target", "largest", "who to follow", choices=tuple(RULES)),
        Param("depth", False, "use an aligned depth image for positions"),
        Param("depth_tolerance", 0.05, "s between an image and its depth image", low=0.0),
        Param("world_frame", "map", "tf frame of the positions, its ground at z = 0"),
        Param("jpeg_quality", 85, "of kapao/overlay/compressed", low=1, high=100),
    )

    def start(self) -> None:
        params = self.params
        self._camera = CameraIntake(self, "camera/camera_info", params["world_frame"])
        self.begin(Network(params, self.health))
        tracker = Tracker(TrackerConfig(high_score=params["min_score"], low_score=min(0.1, params["min_score"])))
        self._pipeline = PeoplePipeline(self._network.estimator, tracker, allow_untrained=True)
        self._selector = TargetSelector(params["target"])
        self._motion = Motion()
        self._advertise()
        keep_all = params["every_frame"]
        self._slot: LatestFrameQueue[Frame] = LatestFrameQueue(capacity=4 if keep_all else 1, keep_all=keep_all)
        self._worker: Worker[Frame] = Worker(self._slot, self._work, self._on_failure, "network", self._network.pin)
        self._pictures: LatestFrameQueue[_Picture] = LatestFrameQueue(capacity=2)
        self._painter: Worker[Any] = Worker(self._pictures, self._paint, self._on_paint_failure, "overlay")
        self._worker.start()
        self._painter.start()
        self._depth = (
            DepthIntake(self, "camera/depth/image_raw", params["depth_tolerance"]) if params["depth"] else None
        )
        self.listen()
        size = self._camera.size(min(params["server_wait"], 5.0))
        if size is not None:
            empty = self._network.warm_up(self._mode, *size, wait_s=params["server_wait"])
            self.publish_forecast([empty], Header(stamp=rospy.Time.now()))
        # last: from now on frames come
        self._images = ImageIntake(self, "camera/image_raw", params["transport"], self._slot, keep_all)
        rospy.loginfo(f"model {self._network.estimator.name} is ready, mode {self._mode}")

    def _advertise(self) -> None:
        self._people = rospy.Publisher("kapao/people", PersonArray, queue_size=100)
        self._overlay = rospy.Publisher("kapao/overlay", Image, queue_size=8)
        self._overlay_jpeg = rospy.Publisher("kapao/overlay/compressed", CompressedImage, queue_size=2)
        self._markers = rospy.Publisher("kapao/markers", MarkerArray, queue_size=4)

    def stop(self) -> None:
        if hasattr(self, "_images"):
            self._images.close()
        self.end({name: getattr(self, name) for name in ("_worker", "_painter") if hasattr(self, name)})

    def refresh(self) -> None:
        if not hasattr(self, "_images"):
            return
        self._images.refresh()
        self.refresh_network(self._slot, "frames")

    def _work(self, frame: Frame) -> None:
        """One frame: exactly one result, whatever happens."""
        header = frame.message.header
        try:
            bgr = image_to_bgr(frame.message)
            make = functools.partial(Locator, keypoint_score=self.params["keypoint_score"])
            locator = self._camera.locator(header, bgr.shape[1], bgr.shape[0], make)
            result = self._process(frame, bgr, locator)
        except EdgeOffloadError as error:
            self.health.count("bad frames")
            self.health.warn("frame", str(error))
            rospy.logwarn_throttle(5.0, f"frame {header.seq}: {error}")
            self._publish_failure(frame, error)
            return
        self.health.clear("frame")
        self._publish(frame, bgr, result, locator)

    def _process(self, frame: Frame, bgr: Array, locator: Optional[Locator]) -> FrameResult:
        header, size = frame.message.header, [bgr.shape[1], bgr.shape[0]]
        depth, encoding = self._depth.at(header.stamp) if self._depth is not None else (None, "")
        if depth is not None and depth.shape != bgr.shape[:2]:
            self.health.warn("depth", f"depth image {depth.shape[::-1]} is not aligned with the image {size}")
            depth = None
        facts = {"frame_id": header.frame_id, "image": size, "options": self.params["model_options"]}
        run = functools.partial(self.infer, frame, **facts)
        return self._pipeline.process(
            bgr, header.stamp.to_sec(), run, frame.received_s, locator, depth, encoding or "32FC1"
        )

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
        if self._markers.get_num_connections():
            self._markers.publish(marker_message(header, placed, target))
        if self._overlay.get_num_connections() or self._overlay_jpeg.get_num_connections():
            self._pictures.put(_Picture(header, bgr, result.people, report, energy, target))

    def _publish_failure(self, frame: Frame, error: BaseException) -> None:
        """The result of a frame that could not be used: nobody, and why."""
        total = time.monotonic() - frame.received_s
        report = InferenceReport(Mode.LOCAL, self._network.estimator.name, total)
        # a coded image whose size is not known before it is decoded has none
        size = (getattr(frame.message, "width", 0), getattr(frame.message, "height", 0))
        self._people.publish(people_message(frame.message.header, report, size))
        self.publish_latency(frame.message.header, report, float("nan"), False, str(error))

    def _on_failure(self, frame: Frame, error: BaseException) -> None:
        self.fault("network", error)
        self._publish_failure(frame, error)

    def _paint(self, picture: _Picture) -> None:
        report = picture.report
        figures: Dict[str, Any] = {
            "latency_s": report.total_s,
            "bytes_up": report.bytes_up,
            "bytes_down": report.bytes_down,
            "joules": picture.energy,
        }
        status = Status(report.mode, report.model, note=report.fallback_reason, **figures)
        image = draw(picture.bgr, picture.people, status, picture.target)
        if self._overlay.get_num_connections():
            self._overlay.publish(bgr_to_image(image, picture.header))
        if self._overlay_jpeg.get_num_connections():
            self._overlay_jpeg.publish(bgr_to_jpeg(image, picture.header, self.params["jpeg_quality"]))

    def _on_paint_failure(self, _: Any, error: BaseException) -> None:
        self.fault("overlay", error)


NODE = KapaoNode
