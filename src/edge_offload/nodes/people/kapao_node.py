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
        Param("keypoint_score", 0.3, "keypoints below this are not relied on for positions", low=0.0, high=1.0),
        Param("target", "largest", "who to follow", choices=tuple(RULES)),
        *POSITIONS,
        Param("carry", False, "give every image its result at once, carried along from what the network saw last"),
        Param("local", "", "with ~carry: a smaller network that runs here and stands in where it is the better one"),
        Param("local_options", {}, "options of that network, such as {size: 320}"),
    )

    def make_view(self, camera_ns: str, name: str) -> CameraView:
        return (CarriedPeopleView if self.params["carry"] else PeopleView)(self, camera_ns, name)

    def make_network(self) -> Network:
        return (CarriedNetwork if self.params["carry"] else Network)(self.params, self.health)


NODE = KapaoNode
