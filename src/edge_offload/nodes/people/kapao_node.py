"""detects and tracks people in the images of a camera, with the network running on the robot or on a server.

Subscribes:
  camera/image_raw              sensor_msgs/Image, or camera/image_raw/compressed (sensor_msgs/CompressedImage)
  camera/camera_info            sensor_msgs/CameraInfo: needed for positions in space
  camera/depth/image_raw        sensor_msgs/Image 16UC1 or 32FC1, aligned with the image (only with ~depth)
  lidar/points                  sensor_msgs/PointCloud2 (only with ~cloud)
  offload/mode                  edge_offload_msgs/OffloadMode: mode of the next frames
  offload/bandwidth             edge_offload_msgs/Bandwidth: the link, while no inference uses it
  offload/turn                  edge_offload_msgs/Turn: the network that sends the next frame (only with ~turns; then
                                offload/mode is offload/mode/people)
  /tf, /tf_static               pose of the camera in ~world_frame, whose ground is z = 0; with ~cloud that of the LiDAR

Publishes, exactly one of each for every processed frame, with the frame's stamp:
  kapao/people                  edge_offload_msgs/PersonArray; empty: nobody was detected
  offload/latency               edge_offload_msgs/Latency: the mode that ran, time by stage (s), bytes, energy (J)
  offload/forecast              edge_offload_msgs/Forecast: expected cost of the next frame in each mode
with ~turns, if several networks of a robot share a server, also
  offload/turn_taken            edge_offload_msgs/Turn: a frame was sent to the server, or its result has come
  offload/drop                  edge_offload_msgs/Drop: measured loss of accuracy by staleness
and while they have subscribers:
  kapao/overlay                 sensor_msgs/Image, annotated; kapao/overlay/compressed (JPEG)
  kapao/markers                 visualization_msgs/MarkerArray: people with a position
  kapao/detections              vision_msgs/Detection2DArray: the boxes, if vision_msgs is installed
  kapao/detections_3d           vision_msgs/Detection3DArray: the boxes with a position

Only the latest image is processed. Older ones that still wait are superseded, and counted on /diagnostics. With
~every_frame none is superseded; the subscriber's connection is blocked instead. While images go to the server, up to
~in_flight of them are processed at once: one is prepared and sent while the server computes the one before. Results
keep the order of the images. /diagnostics names the modes that process one image after the other, and why.

With ~camera_ns [front, left, rear] several cameras share the network: one model on the robot, one session at a server.
Their topics are front/image_raw, front/camera_info, front/kapao/people and so on; Latency.camera is front. The next
frame is that of the camera whose last turn is the longest ago. The latest image of each camera waits.

With ~carry every image has its result before the next image. It is the network's own if that comes in time. Otherwise
it is the newest result carried along by optical flow, or that of a smaller network on the robot (~local) if that is
expected to be better. PersonArray.result names its origin. There is one offload/latency per inference then, not per
image, and offload/drop reports the loss by staleness.

If the server cannot be reached, the network runs on the robot; /diagnostics and Latency.fallback_reason say why.
Sets the parameter ~weights_sha256 to the checksum of the model's weights.

Example:
  rosrun edge_offload kapao_node _server:=tcp://gpu:5700 _mode:=auto
"""

from __future__ import annotations

from edge_offload.nodes.common.params import Param
from edge_offload.nodes.inference.cameras import CameraView, ImageNode
from edge_offload.nodes.inference.network import DECODER, Network
from edge_offload.nodes.inference.offloaded import OffloadedNode
from edge_offload.nodes.inference.ranges import POSITIONS
from edge_offload.nodes.people.carried_people import CarriedNetwork, CarriedPeopleView
from edge_offload.nodes.people.people_view import PeopleView
from edge_offload.perception.target import RULES


class KapaoNode(ImageNode):
    """See the module's docstring."""

    name = "kapao_node"
    task = "people"
    declared = (
        *Network.declared,
        *OffloadedNode.shared,
        *ImageNode.image_params,
        Param("decoder", "", DECODER),
        Param("min_score", 0.25, "detections below this start no track", low=0.0, high=1.0),
        Param("keypoint_score", 0.3, "keypoints below this are not used for positions", low=0.0, high=1.0),
        Param("target", "largest", "rule that selects the target person", choices=tuple(RULES)),
        *POSITIONS,
        Param("carry", False, "give every image its result at once, carried along from the network's latest result"),
        Param("local", "", "with ~carry: a smaller network on the robot, used if its result is expected to be better"),
        Param("local_options", {}, "options of that network, such as {size: 320}"),
    )

    def make_view(self, camera_ns: str, name: str) -> CameraView:
        return (CarriedPeopleView if self.params["carry"] else PeopleView)(self, camera_ns, name)

    def make_network(self) -> Network:
        return (CarriedNetwork if self.params["carry"] else Network)(self.params, self.health)


NODE = KapaoNode
