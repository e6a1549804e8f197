"""Base classes of nodes with a network for the frames of sensors: one result for each processed frame.

Several cameras share one network, with their frames in turns (:class:`LatestFrameQueue`). Each sensor has its own
intake, calibration, state from earlier frames, and topics.
"""

from __future__ import annotations

import operator
import time
from dataclasses import dataclass
from typing import Any, ClassVar, Mapping, Optional, Tuple

import rospy
from std_msgs.msg import Header

from edge_offload.arrays import Array
from edge_offload.errors import BadInput, EdgeOffloadError
from edge_offload.mode import Mode
from edge_offload.nodes.common.params import CAMERA_NS, Param, check_namespaces
from edge_offload.nodes.common.poses import Poses
from edge_offload.nodes.inference.carry import CarryThread
from edge_offload.nodes.inference.intake import CameraIntake, Frame, ImageIntake
from edge_offload.nodes.inference.latest_frame_queue import LatestFrameQueue
from edge_offload.nodes.inference.network import Network
from edge_offload.nodes.inference.offloaded import OffloadedNode, SensorStages
from edge_offload.nodes.inference.pictures import Painter, Picture
from edge_offload.perception.pipeline import NetworkInput
from edge_offload.timing import InferenceReport

Inferred = Tuple[Any, InferenceReport]
"""Outputs of the network, and what they cost."""


@dataclass(eq=False)
class PreparedImage:
    """An image and the inputs of the network that were made of it.

    Attributes:
        bgr: uint8 [h, w, 3].
        size: width and height (pixels).
        image: the inputs.
    """

    bgr: Array
    size: Tuple[int, int]
    image: NetworkInput


class SensorView(SensorStages):
    """Work of a node on the frames of one sensor.

    A subclass makes its publishers and its painter in :meth:`start`, takes frames in from :meth:`subscribe` on, and
    publishes exactly one result for a frame in :meth:`publish_result` or :meth:`publish_failure`.

    Args:
        node: whose network looks at them.
        name: of the sensor among several, whose results are in its namespace; empty: it is the only one.

    Attributes:
        health, params, callback, fault: those of the node; what is said of one of several begins with its name.
        carry: gives every frame its result at once; None: its result is the network's own, when that comes.
        painter: draws pictures.
    """

    carry: Optional[CarryThread[Any]] = None
    painter: Painter[Any]

    def __init__(self, node: SensorNode, name: str) -> None:
        self.node, self.name = node, name
        self.params, self.callback, self.fault = node.params, node.callback, node.fault
        self.health = node.health.make_part(name) if name else node.health

    def start(self, network: Network) -> None:
        """Make publishers, and whatever else frames need."""

    def subscribe(self, queue: LatestFrameQueue[Frame], queue_all: bool) -> None:
        """Take frames in from now on."""

    def close(self) -> None:
        """Take no more frames in."""

    def refresh(self, queue: LatestFrameQueue[Frame]) -> None:
        """Say on /diagnostics how frames come."""

    def publish_failure(self, frame: Frame, error: BaseException) -> None:
        """The result of a frame that could not be used: nothing, and why."""

    def report_failure(self, frame: Frame, error: BaseException) -> None:
        """The network could not be run on a frame; where results are carried, one leaves by itself."""
        if self.carry is None:
            self.publish_failure(frame, error)
        else:
            self.publish_error(frame, error)

    def publish_error(self, frame: Frame, error: BaseException) -> InferenceReport:
        """The one offload/latency of a frame that has no result of the network."""
        report = InferenceReport(Mode.LOCAL, self.node.model, time.monotonic() - frame.received_s)
        self.node.publish_latency(frame, report, float("nan"), False, str(error))
        return report


class CameraView(SensorView):
    """Work of a node on the images of one camera.

    A subclass makes its publishers in :meth:`open`, exactly one result for a frame in :meth:`publish_result` or
    :meth:`publish_nothing`, and pictures in :meth:`draw`.

    Args:
        node, name: as of :class:`SensorView`.
        camera_ns: namespace of the camera.

    Attributes:
        camera: calibration and place.
    """

    #: Topic of the pictures.
    overlay: ClassVar[str]

    def __init__(self, node: ImageNode, camera_ns: str, name: str) -> None:
        super().__init__(node, name)
        self._camera_ns = camera_ns
        world, images = self.params.get("world_frame", ""), self.input_topic("image_raw")
        self.camera = CameraIntake(self, self.input_topic("camera_info"), images, world, node.poses)
        self._images: Optional[ImageIntake] = None

    def input_topic(self, topic: str) -> str:
        return f"{self._camera_ns}/{topic}"

    def output_topic(self, topic: str) -> str:
        return f"{self.name}/{topic}" if self.name else topic

    def open(self, network: Network) -> None:
        """Make publishers, and whatever else frames need."""

    def publish_nothing(self, header: Any, report: InferenceReport, size: Tuple[int, int]) -> None:
        """The result of a frame that could not be used; ``size``: width and height in pixels, 0 if unknown."""
        raise NotImplementedError(f"{type(self).__name__} has no results")

    def draw(self, picture: Picture) -> Array:
        """The overlay: uint8 [h, w, 3] BGR."""
        raise NotImplementedError(f"{type(self).__name__} has no pictures")

    def start(self, network: Network) -> None:
        self.open(network)
        self.painter = Painter(self, self.output_topic(self.overlay), self.draw, capacity=2)
        self.painter.start()

    def subscribe(self, queue: LatestFrameQueue[Frame], queue_all: bool) -> None:
        offer_frame = queue.offer_frame if self.carry is None else self.carry.offer_frame
        topic, transport = self.input_topic("image_raw"), self.params["transport"]
        self._images = ImageIntake(self, topic, transport, offer_frame, queue_all, self.name)

    def close(self) -> None:
        if self._images is not None:
            self._images.close()

    def refresh(self, queue: LatestFrameQueue[Frame]) -> None:
        if self._images is None:
            return
        self._images.refresh()
        if self.name:
            counts = queue.get_counts(self.name) if self.carry is None else self.carry.counts
            for what in ("offered", "taken", "superseded", "waiting"):
                self.health.value(f"frames {what}", getattr(counts, what))
            self.health.value("results" if self.carry is None else "inferences", self.node.results[self.name])

    def publish_failure(self, frame: Frame, error: BaseException) -> None:
        # a coded image whose size is not known before it is decoded has none
        size = (getattr(frame.message, "width", 0), getattr(frame.message, "height", 0))
        self.publish_nothing(frame.message.header, self.publish_error(frame, error), size)


class SensorNode(OffloadedNode):
    """A node whose network looks at the frames of one sensor or several.

    A subclass makes a kind of :class:`SensorView` for each in :meth:`make_views`, and its network in
    :meth:`make_network`.
    """

    #: A frame, in a word.
    noun: ClassVar[str] = "frame"
    views: Mapping[str, SensorView]

    def make_views(self) -> Mapping[str, SensorView]:
        """Make what works on the frames of each sensor, by its name; of a single one that is empty."""
        raise NotImplementedError(f"{self.name} has no views")

    def make_network(self) -> Network:
        raise NotImplementedError(f"{self.name} has no network")

    def warm_up(self) -> Optional[Any]:
        """Compute once with a synthetic frame, if its size is known; returns the network's input."""
        raise NotImplementedError(f"{self.name} has no frames")

    @property
    def model(self) -> str:
        name: str = self._network.estimator.name
        return name

    def start(self) -> None:
        queue_all = self.params.get("every_frame", False)
        self.poses = Poses()
        self.views = self.make_views()
        views = self.views.values()
        self.begin_offloading(self.make_network())
        self.queue: LatestFrameQueue[Frame] = LatestFrameQueue(
            4 if queue_all else 1, queue_all, operator.attrgetter("camera"), self.admit_frame
        )
        for view in views:
            view.start(self._network)
        self.carries = [view.carry for view in views if view.carry is not None]
        self._worker = self.make_pipeline(self.queue, self.views, self._on_failure)
        self._worker.start()
        self.subscribe_control(self.queue)
        inputs = self.warm_up()
        if inputs is not None:
            self.publish_forecast([inputs], Header(stamp=rospy.Time.now()))
        self.collector.start()
        # last: from now on frames come
        for view in views:
            view.subscribe(self.queue, queue_all)
        names = f", cameras {', '.join(self.views)}" if len(self.views) > 1 else ""
        rospy.loginfo(f"model {self.model} is ready, mode {self._mode}{names}")

    def stop(self) -> None:
        views = getattr(self, "views", {})
        for view in views.values():
            view.close()
        workers = {"worker": getattr(self, "_worker", None)}
        for what in ("carry", "painter"):
            workers.update({f"{what} {name}".strip(): getattr(view, what, None) for name, view in views.items()})
        self.end_offloading({name: worker for name, worker in workers.items() if worker is not None})

    def refresh(self) -> None:
        if not hasattr(self, "_worker"):
            return
        for view in self.views.values():
            view.refresh(self.queue)
        self.refresh_network(self.queue, f"{self.noun}s")

    def _on_failure(self, frame: Frame, error: BaseException) -> None:
        self.leave_turn(frame)
        view = self.views[frame.camera]
        if isinstance(error, EdgeOffloadError):
            view.health.count(f"bad {self.noun}s")
            view.health.warn(self.noun, str(error))
            rospy.logwarn_throttle(5.0, f"{self.noun} {frame.message.header.seq}: {error}")
        else:
            self.fault("network", error)
        view.report_failure(frame, error)


class ImageNode(SensorNode):
    """A node whose network looks at the images of one camera or several.

    A subclass makes its kind of :class:`CameraView` in :meth:`make_view`.
    """

    written = (*OffloadedNode.written, "labels")
    image_params: ClassVar[Tuple[Param, ...]] = (
        CAMERA_NS,
        Param("every_frame", False, "process every image instead of the latest"),
        Param("transport", "auto", "kind of images to subscribe to", choices=("auto", "raw", "compressed")),
        Param("jpeg_quality", 85, "JPEG quality of the overlay's compressed images", low=1, high=100),
    )
    views: Mapping[str, CameraView]

    def make_view(self, camera_ns: str, name: str) -> CameraView:
        """Make what works on the images of one camera; arguments as :class:`CameraView`."""
        raise NotImplementedError(f"{self.name} has no views")

    def make_views(self) -> Mapping[str, CameraView]:
        cameras = check_namespaces(self.params["camera_ns"])
        several = len(cameras) > 1
        if several and self.params.get("accuracy"):
            raise BadInput("~accuracy is promised for the results of one camera", remedy="give ~camera_ns one camera")
        names = [camera_ns if several else "" for camera_ns in cameras]
        return {name: self.make_view(camera_ns, name) for camera_ns, name in zip(cameras, names)}

    def warm_up(self) -> Optional[Any]:
        wait_s = self.params["server_wait"]
        latest_s = time.monotonic() + min(wait_s, 5.0)
        sizes = (view.camera.wait_for_size(max(0.0, latest_s - time.monotonic())) for view in self.views.values())
        size = next(filter(None, sizes), None)
        return None if size is None else self._network.warm_up(self._mode, *size, wait_s=wait_s)
