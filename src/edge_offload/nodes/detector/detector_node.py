"""runs a detector or segmenter of your own on the images of a camera, on the robot or on a server.

~model names its module: package.module:factory, a TorchScript file or an ONNX file. ~detector names the class that
prepares images and interprets outputs (package.module:Class, see edge_offload.models.detector). Without it the module
has to return boxes, scores and classes. Outputs of an ONNX file (YOLO, RT-DETR, DETR, SSD, segmentation) are decoded by
their format, or by the one that ~decoder names.

Subscribes:
  camera/image_raw              sensor_msgs/Image, or camera/image_raw/compressed (sensor_msgs/CompressedImage)
  camera/camera_info            sensor_msgs/CameraInfo: needed for positions in space
  camera/depth/image_raw        sensor_msgs/Image 16UC1 or 32FC1, aligned with the image (only with ~depth)
  lidar/points                  sensor_msgs/PointCloud2 (only with ~cloud)
  offload/mode                  edge_offload_msgs/OffloadMode: mode of the next frames
  offload/bandwidth             edge_offload_msgs/Bandwidth: the link, while no inference uses it
  /tf, /tf_static               pose of the camera in ~world_frame, whose ground is z = 0; with ~cloud that of the LiDAR

Publishes, exactly one of each for every processed frame, with the frame's stamp:
  detector/objects              edge_offload_msgs/ObjectArray with positions; empty: no detection
  offload/latency               edge_offload_msgs/Latency: the mode that ran, time by stage (s), bytes, energy (J)
  offload/forecast              edge_offload_msgs/Forecast: expected cost of the next frame in each mode
and while they have subscribers:
  detector/detections           vision_msgs/Detection2DArray, if vision_msgs is installed; names of the classes in
                                ~labels, to which detector/detections/info (vision_msgs/VisionInfo) points
  detector/detections_3d        vision_msgs/Detection3DArray: the detections with a position
  detector/markers              visualization_msgs/MarkerArray: the same, for RViz
  detector/mask                 sensor_msgs/Image mono8: class of each pixel plus one, 0: none (segmenters)
  detector/overlay              sensor_msgs/Image, annotated; detector/overlay/compressed (JPEG)

A position comes from the depth image, else from points of the LiDAR in the box. Otherwise it is the place where the
lower edge of the box meets the ground of ~world_frame. Each position names its source and its frame.

With ~camera_ns [front, left, rear] several cameras share the network in turns, as in kapao_node. Their topics are
front/image_raw, front/detector/objects and so on.

Only the latest image is processed, unless ~every_frame is set. Modes, fallback and /diagnostics are those of
kapao_node. With ~in_flight above 1, prepare() of an image may run before or beside interpret() of the one before it.
Neither runs for two images at once, and both keep the order of the images.

Example:
  rosrun edge_offload detector_node _model:=yolo11n.onnx _server:=tcp://gpu:5700 _mode:=auto
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar, List, Optional, Tuple

import numpy as np
import rospy
from sensor_msgs.msg import Image
from visualization_msgs.msg import MarkerArray

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.models.detections import Detections
from edge_offload.models.detector import Detector, build_detector
from edge_offload.nodes.common.convert import image_to_bgr
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.detector.detection_messages import markers_message, objects_message
from edge_offload.nodes.inference.cameras import CameraView, ImageNode, Inferred, PreparedImage
from edge_offload.nodes.inference.compose import copy_header
from edge_offload.nodes.inference.intake import Frame
from edge_offload.nodes.inference.network import DECODER, Network
from edge_offload.nodes.inference.offloaded import OffloadedNode
from edge_offload.nodes.inference.pictures import Picture
from edge_offload.nodes.inference.ranges import POSITIONS, RangeIntake
from edge_offload.nodes.inference.vision import DetectionPublisher, Place, places_of
from edge_offload.perception.agreement import boxes_drop
from edge_offload.perception.detection_view import draw_detections
from edge_offload.perception.locator import Locator
from edge_offload.perception.pipeline import NetworkInput
from edge_offload.timing import InferenceReport
from edge_offload_msgs.msg import ObjectArray


class DetectorNetwork(Network):
    """A detector whose module runs here or on a server."""

    untrained = "its results mean nothing"
    # those who watch at the server do not have the class that interprets
    report_results = False
    declared: ClassVar[Tuple[Param, ...]] = (
        Param("model", "", "package.module:factory of an nn.Module, or the path of a TorchScript or ONNX file"),
        Param("detector", "", "package.module:Class that prepares and interprets; none: boxes, scores, classes"),
        Param("decoder", "", DECODER),
        *(param for param in Network.declared if param.name != "model"),
    )

    def build(self) -> Detector:
        params = self._params
        if not params["model"]:
            raise BadInput("parameter ~model names no model", remedy="give package.module:factory, net.onnx or net.pt")
        return build_detector(params["model"], params["detector"], self._model_options())


class DetectionsView(CameraView):
    """Detections or segments in the images of one camera."""

    overlay = "detector/overlay"

    def open(self, network: Network) -> None:
        self._detector: Detector = network.estimator
        self._objects = rospy.Publisher(self.output_topic("detector/objects"), ObjectArray, queue_size=100)
        self._mask = rospy.Publisher(self.output_topic("detector/mask"), Image, queue_size=4)
        self._markers = rospy.Publisher(self.output_topic("detector/markers"), MarkerArray, queue_size=4)
        self._ranges = RangeIntake.from_node(self, self.camera, self.input_topic("depth/image_raw"))
        self.camera.places = False
        labels, topic = list(self._detector.labels), self.output_topic("detector/detections")
        self._detections = DetectionPublisher(topic, labels, self._detector.name, self.health)

    def prepare_inputs(self, frame: Frame) -> PreparedImage:
        """Implement :class:`.SensorStages`."""
        bgr = image_to_bgr(frame.message)
        size = (bgr.shape[1], bgr.shape[0])
        return PreparedImage(bgr, size, NetworkInput.from_image(self._detector, bgr, frame.received_s))

    def infer_inputs(self, frame: Frame, prepared: PreparedImage) -> Inferred:
        """Implement :class:`.SensorStages`."""
        frame_id, image = frame.message.header.frame_id, list(prepared.size)
        return self.node.run_network(frame, prepared.image.inputs, frame_id=frame_id, image=image)

    def publish_result(self, frame: Frame, prepared: PreparedImage, inferred: Inferred) -> None:
        """Implement :class:`.SensorStages`."""
        node, header, size = self.node, frame.message.header, prepared.size
        seen = prepared.image.interpret(self._detector, *inferred)
        detections, report = seen.result, seen.report
        if not isinstance(detections, Detections):
            name = type(self._detector).__name__
            raise BadInput(f"{name}.interpret returned a {type(detections).__name__}", remedy="return Detections")
        detections.check_fit(size, len(self._detector.labels))
        energy, measured = node.measure_energy(frame, report)
        labels, places = self._label_detections(detections), self._place_objects(frame, size, detections)
        self._objects.publish(objects_message(header, report, size, detections, labels, places))
        node.account_frame(frame, prepared.image.inputs, report, energy, measured)
        self.health.clear("frame")
        node.compare_result(frame, detections.boxes, boxes_drop)
        self._detections.publish_detections(header, detections.boxes, detections.scores, detections.classes)
        self._detections.publish_places(header, places, detections.scores, detections.classes)
        if self._markers.get_num_connections():
            self._markers.publish(markers_message(header, detections, labels, places))
        if detections.mask is not None and self._mask.get_num_connections():
            self._mask.publish(_mask_message(header, detections.mask))
        if self.painter.watched:
            self.painter.paint(Picture(header, prepared.bgr, (detections, labels), report, energy))

    def _label_detections(self, detections: Detections) -> List[str]:
        return [self._detector.label(number) for number in detections.classes.tolist()]

    def _place_objects(self, frame: Frame, size: Tuple[int, int], detections: Detections) -> List[Optional[Place]]:
        """Locate the objects, each by the most trusted source."""
        make = Locator if self._ranges is None else functools.partial(self._ranges.make_locator, frame, size)
        locator = self.camera.make_locator(frame, *size, make)
        positions = [None] * len(detections) if locator is None else locator.locate(detections.boxes)
        if self._ranges is not None:
            self._ranges.report_sources(locator, positions)
        return places_of(locator, detections.boxes, positions)

    def publish_nothing(self, header: Any, report: InferenceReport, size: Tuple[int, int]) -> None:
        self._objects.publish(objects_message(header, report, size, Detections.empty()))

    def draw(self, picture: Picture) -> Array:
        detections, labels = picture.result
        return draw_detections(picture.bgr, detections, labels, picture.make_status())


class DetectorNode(ImageNode):
    """See the module's docstring."""

    name = "detector_node"
    task = "objects"
    declared = (
        *DetectorNetwork.declared,
        *OffloadedNode.shared,
        *ImageNode.image_params,
        *POSITIONS,
    )

    def make_view(self, camera_ns: str, name: str) -> CameraView:
        return DetectionsView(self, camera_ns, name)

    def make_network(self) -> Network:
        return DetectorNetwork(self.params, self.health)


def _mask_message(header: Any, mask: Array) -> Image:
    height, width = mask.shape
    data = np.ascontiguousarray(mask).tobytes()
    return Image(copy_header(header), height, width, "mono8", 0, width, data)


NODE = DetectorNode
