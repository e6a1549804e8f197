"""sends the frames of a bag to the people node or the scene node, one at a time, and writes the results to a file.

Each frame has its header from the bag. The next one follows when the node has answered, or after ~timeout seconds. So
no frame is superseded, and two runs over the same bag process the same frames.

Publishes:
  camera/image_raw              sensor_msgs/Image, or camera/image_raw/compressed (sensor_msgs/CompressedImage), as in
                                the bag
  camera/camera_info            sensor_msgs/CameraInfo of the bag, if it has one for the images
  lidar/points, /tf             sensor_msgs/PointCloud2 and the sensor's pose, instead of images if ~results is scenes

Subscribes:
  kapao/people                  edge_offload_msgs/PersonArray
  agrnav/semantic_grid          edge_offload_msgs/SemanticGrid, instead of people if ~results is scenes
  offload/latency               edge_offload_msgs/Latency

The results are written to ~out as JSON (definition "golden" of the schema), then the node ends. A frame without a
result within ~timeout is marked in the file.

Example:
  rosrun edge_offload regress_node _bag:=walk.bag _out:=results.json
"""

from __future__ import annotations

import copy
import struct
import threading
import time
from collections import Counter
from typing import Any, Callable, Dict, List, NamedTuple, Tuple
from typing import Counter as Counts

import numpy as np
import rospy
import tf2_ros
from sensor_msgs.msg import CameraInfo, CompressedImage, PointCloud2

from edge_offload import records
from edge_offload.errors import BadInput, EdgeOffloadError
from edge_offload.nodes.camera.bag import image_topic
from edge_offload.nodes.camera.calibration import is_rectified, rectify_calibration
from edge_offload.nodes.common.bags import open_bag, read_messages
from edge_offload.nodes.common.base import Node
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.lidar.sweeps import cloud_topic
from edge_offload.nodes.scene.scene_messages import labels_of
from edge_offload.perception import regression
from edge_offload.runtime.carrying import CARRIED, LOCAL, NONE
from edge_offload_msgs.msg import Latency, PersonArray, SemanticGrid


class _Kind(NamedTuple):
    """Kind of node under test.

    Attributes:
        node: its usual name.
        topic: topic of its results.
        message: type of its results.
        describe: makes a frame's entry of the golden file. Arguments: the result (None: there is none), and whether any
            result of the run has the origin carried, local or none.
    """

    node: str
    topic: str
    message: Any
    describe: Callable[[Any, bool], Dict[str, Any]]


def _describe_people(message: Any, carried: bool) -> Dict[str, Any]:
    people = [] if message is None else message.people
    boxes = [((p.x_min, p.y_min, p.x_max, p.y_max), p) for p in people]
    return {"people": [regression.person_record(p.id, box, p.score, carried and not p.observed) for box, p in boxes]}


def _describe_scene(message: Any, _carried: bool) -> Dict[str, Any]:
    if message is None:
        return {"labels": []}
    return {"labels": np.bincount(labels_of(message).ravel(), minlength=len(message.labels)).tolist()}


RESULTS = {
    "people": _Kind("kapao_node", "kapao/people", PersonArray, _describe_people),
    "scenes": _Kind("agrnav_node", "agrnav/semantic_grid", SemanticGrid, _describe_scene),
}
#: Topics replayed together with point clouds.
TF = ("/tf", "/tf_static")


class RegressNode(Node):
    """See the module's docstring."""

    name = "regress_node"
    declared = (
        Param("results", "people", "kind of results of the node under test", choices=tuple(RESULTS)),
        Param("bag", "", "bag file with images, or with clouds"),
        Param("topic", "", "topic of the images or clouds in it; empty: the only one with some"),
        Param("out", "", "JSON file to write"),
        Param("frames", 0, "stop after so many; 0: all", low=0),
        Param("timeout", 60.0, "s to wait for the result of a frame", low=0.1),
        Param("settle", 1.0, "s to wait at the end for unexpected results", low=0.0),
        Param("network", "", "name of the node under test, whose ~weights_sha256 is recorded; none: the usual one"),
    )

    def start(self) -> None:
        if not self.params["bag"] or not self.params["out"]:
            raise BadInput("no bag or no output file given", remedy="set ~bag and ~out")
        self._bag = open_bag(self.params["bag"])
        self._kind: _Kind = RESULTS[self.params["results"]]
        self._node: str = self.params["network"] or self._kind.node
        if self._kind.message is SemanticGrid:
            self._topic = cloud_topic(self._bag, self.params["topic"])
            self._frames = rospy.Publisher("lidar/points", PointCloud2, queue_size=2)
            poses = tf2_ros.TransformBroadcaster()
            self._companions: Dict[str, Callable[[Any], None]] = dict.fromkeys(
                TF, lambda message: poses.sendTransform(message.transforms)
            )
        else:
            self._topic, kind = image_topic(self._bag, self.params["topic"])
            compressed = kind is CompressedImage
            self._frames = rospy.Publisher(f"camera/image_raw{'/compressed' if compressed else ''}", kind, queue_size=2)
            info_topic = self._topic.rsplit("/image", 1)[0] + "/camera_info"
            infos = rospy.Publisher("camera/camera_info", CameraInfo, queue_size=2, latch=True)
            # the new topic's name does not say that images are rectified, so the calibration has to
            adapt = rectify_calibration if is_rectified(self._topic) else copy.copy
            self._companions = {info_topic: lambda message: infos.publish(adapt(message))}
        self._condition = threading.Condition()
        # received messages by the stamp of their frame, ns
        self._results: Dict[int, List[Any]] = {}
        self._latencies: Dict[int, List[Any]] = {}
        self._stopping = False
        self._subscribers: Tuple[Any, ...] = (
            rospy.Subscriber(self._kind.topic, self._kind.message, self.callback(self._on_result), queue_size=64),
            rospy.Subscriber("offload/latency", Latency, self.callback(self._on_latency), queue_size=64),
        )
        self._thread = threading.Thread(target=self._run_bag, name="regress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if hasattr(self, "_thread"):
            with self._condition:
                self._stopping = True
                self._condition.notify_all()
            self._thread.join(5.0)
            self._bag.close()

    def _on_result(self, message: Any) -> None:
        self._store_message(self._results, message)

    def _on_latency(self, message: Latency) -> None:
        self._store_message(self._latencies, message)

    def _store_message(self, table: Dict[int, List[Any]], message: Any) -> None:
        with self._condition:
            table.setdefault(message.header.stamp.to_nsec(), []).append(message)
            self._condition.notify_all()

    def _run_bag(self) -> None:
        try:
            stamps = self._step_all()
            if not self._stopping:
                records.write(self.params["out"], "golden", self._collect_outcome(stamps))
                self.finish(f"{len(stamps)} frames stepped")
        except EdgeOffloadError as error:
            rospy.logfatal(f"cannot go on: {error}")
            self.health.error("regress", str(error))
            self.finish(str(error), exit_code=1)
        except Exception as error:
            self.fault("regress", error)
            self.finish(str(error), exit_code=1)

    def _check_stamps(self) -> None:
        """Check that the frames to publish have different stamps, other than 0.

        Raises:
            BadInput: they have not.
        """
        stamps: Counts[int] = Counter()
        for _, (_, data, *_), _ in read_messages(self._bag, [self._topic], raw=True):
            # a header begins with seq, seconds and nanoseconds
            _, seconds, nanoseconds = struct.unpack_from("<III", data)
            stamps[seconds * 10**9 + nanoseconds] += 1
            if 0 < self.params["frames"] <= sum(stamps.values()):
                break
        remedy = "give each a stamp of its own, such as its time of recording (docs/how-to/own-sensor.md)"
        if stamps[0]:
            raise BadInput(f"{stamps[0]} frames on {self._topic} of the bag have stamp 0", remedy=remedy)
        (stamp, count), *_ = stamps.most_common(1) or [(0, 0)]
        if count > 1:
            raise BadInput(f"{count} frames on {self._topic} of the bag have the stamp {stamp} ns", remedy=remedy)

    def _step_all(self) -> List[int]:
        """Publish every frame and wait for its result; return the stamps published, in ns.

        Raises:
            BadInput: the bag has no usable frames, or the node under test is not connected within ~timeout.
        """
        self._check_stamps()
        # wait for both directions: a result published before this node is subscribed would seem to be missing
        topics = (self._frames, *self._subscribers)
        if not self._wait_until(lambda: all(end.get_num_connections() > 0 for end in topics), self.params["timeout"]):
            absent = ", ".join(end.name for end in topics if end.get_num_connections() == 0)
            raise BadInput(f"nobody is at the other end of {absent}", remedy=f"start {self._node}")
        stamps: List[int] = []
        limit = self.params["frames"]
        for topic, message, _ in read_messages(self._bag, [self._topic, *self._companions]):
            if topic in self._companions:
                self._companions[topic](message)
                continue
            stamp = message.header.stamp.to_nsec()
            stamps.append(stamp)
            self._frames.publish(message)
            has_result = self._wait_until(
                lambda s=stamp: s in self._results and s in self._latencies, self.params["timeout"]
            )
            if self._stopping:
                return stamps
            if not has_result:
                rospy.logwarn(f"no result for the frame with stamp {stamp} ns within {self.params['timeout']:g} s")
            self.health.value("frames stepped", len(stamps))
            if limit and len(stamps) >= limit:
                break
        if not stamps:
            raise BadInput(f"no frames on {self._topic} in {self.params['bag']}")
        self._wait_until(lambda: False, self.params["settle"])
        return stamps

    def _wait_until(self, done: Any, timeout_s: float) -> bool:
        """Wait until ``done()`` is true, at most ``timeout_s``; return whether it is. False when the node stops."""
        deadline_s = time.monotonic() + timeout_s
        with self._condition:
            while not done():
                # changes of the number of connections are not notified: look at least ten times a second
                wait_s = min(0.1, deadline_s - time.monotonic())
                if wait_s <= 0 or self._stopping:
                    return False
                self._condition.wait(wait_s)
        return True

    def _collect_outcome(self, stamps: List[int]) -> Dict[str, Any]:
        """Return the golden record of the run.

        Raises:
            BadInput: results came from no model or several, or the node does not publish the checksum of its weights.
        """
        with self._condition:
            # results for stamps that were not published are listed behind the others
            all_stamps = stamps + sorted((set(self._results) | set(self._latencies)) - set(stamps))
            models = {message.model for messages in self._latencies.values() for message in messages}
            carried = any(_result_origin(messages[:1]) for messages in self._results.values())
            modes = [message.mode for messages in self._latencies.values() for message in messages]
            frames: List[Dict[str, Any]] = [
                {
                    "stamp_ns": stamp,
                    **_result_origin(self._results.get(stamp, [])[:1]),
                    "results": len(self._results.get(stamp, [])),
                    "latencies": len(self._latencies.get(stamp, [])),
                    **self._kind.describe(next(iter(self._results.get(stamp, [])), None), carried),
                }
                for stamp in all_stamps
            ]
        if len(models) != 1:
            raise BadInput(f"results came from {sorted(models) or 'no model'}", remedy=f"run exactly one {self._node}")
        weights = rospy.get_param(f"{self._node}/weights_sha256", "")
        if not weights:
            raise BadInput(f"{self._node} does not say which weights it has (~weights_sha256)")
        return regression.make_golden(models.pop(), weights, max(set(modes), key=modes.count), frames)


def _result_origin(results: List[Any]) -> Dict[str, str]:
    """Return ``{"origin": ...}`` of the first result that is carried, local or none; else ``{}``."""
    origins = [result.result.origin for result in results if result.result.origin in (CARRIED, LOCAL, NONE)]
    return {"origin": origins[0]} if origins else {}


NODE = RegressNode
