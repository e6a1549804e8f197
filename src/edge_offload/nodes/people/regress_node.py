"""steps the images of a bag through the people node and writes down what came out.

One image is published at a time, with the header it has in the bag; the next follows when the people node has
answered. So no frame is superseded, and two runs over the same bag see the same frames.

Publishes:
  camera/image_raw              sensor_msgs/Image, or camera/image_raw/compressed (sensor_msgs/CompressedImage),
                                whichever the bag has
  camera/camera_info            sensor_msgs/CameraInfo of the bag, where it has one next to the images

Subscribes:
  kapao/people                  edge_offload_msgs/PersonArray
  offload/latency               edge_offload_msgs/Latency

The outcome is written to ~out as JSON (definition "golden" of the schema), then the node ends. A frame without a
result within ~timeout is written down as such: whoever compares the outcome sees it.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Dict, List

import rospy
from sensor_msgs.msg import CameraInfo, CompressedImage

from edge_offload import records
from edge_offload.errors import BadInput
from edge_offload.nodes.camera.bag import image_topic, open_bag
from edge_offload.nodes.common.base import Node
from edge_offload.nodes.common.params import Param
from edge_offload.perception import regression
from edge_offload.runtime.carrying import CARRIED, LOCAL, NONE
from edge_offload_msgs.msg import Latency, PersonArray


class RegressNode(Node):
    """See the module's docstring."""

    name = "regress_node"
    declared = (
        Param("bag", "", "bag file with images"),
        Param("topic", "", "topic of the images in it; empty: the only one that has images"),
        Param("out", "", "JSON file to write"),
        Param("frames", 0, "stop after so many; 0: all", low=0),
        Param("timeout", 60.0, "s to wait for the result of a frame", low=0.1),
        Param("settle", 1.0, "s to wait at the end for results that nobody asked for", low=0.0),
        Param("people_node", "kapao_node", "name of the node under test, whose ~weights_sha256 is written down"),
    )

    def start(self) -> None:
        if not self.params["bag"] or not self.params["out"]:
            raise BadInput("no bag or no output file given", remedy="set ~bag and ~out")
        self._bag = open_bag(self.params["bag"])
        self._topic, kind = image_topic(self._bag, self.params["topic"])
        compressed = kind is CompressedImage
        self._images = rospy.Publisher(f"camera/image_raw{'/compressed' if compressed else ''}", kind, queue_size=2)
        self._infos = rospy.Publisher("camera/camera_info", CameraInfo, queue_size=2, latch=True)
        self._condition = threading.Condition()
        self._people: Dict[int, List[Any]] = {}
        self._latencies: Dict[int, List[Any]] = {}
        self._stopping = False
        self._answers = (
            rospy.Subscriber("kapao/people", PersonArray, self.callback(self._on_people), queue_size=64),
            rospy.Subscriber("offload/latency", Latency, self.callback(self._on_latency), queue_size=64),
        )
        self._thread = threading.Thread(target=self._run, name="regress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if hasattr(self, "_thread"):
            with self._condition:
                self._stopping = True
                self._condition.notify_all()
            self._thread.join(5.0)
            self._bag.close()

    def _on_people(self, message: PersonArray) -> None:
        self._store(self._people, message)

    def _on_latency(self, message: Latency) -> None:
        self._store(self._latencies, message)

    def _store(self, table: Dict[int, List[Any]], message: Any) -> None:
        with self._condition:
            table.setdefault(message.header.stamp.to_nsec(), []).append(message)
            self._condition.notify_all()

    def _run(self) -> None:
        try:
            stamps = self._step_all()
            if not self._stopping:
                records.write(self.params["out"], "golden", self._outcome(stamps))
                self.finish(f"{len(stamps)} frames stepped")
        except Exception as error:
            self.fault("regress", error)
            self.finish(str(error), exit_code=1)

    def _step_all(self) -> List[int]:
        """Publish every image and wait for its result; the stamps published, in ns."""
        # both ways: an answer published before this node is connected to it would be taken for one never given
        ends = (self._images, *self._answers)
        if not self._wait(lambda: all(end.get_num_connections() > 0 for end in ends), self.params["timeout"]):
            absent = ", ".join(end.name for end in ends if end.get_num_connections() == 0)
            raise BadInput(f"nobody is at the other end of {absent}", remedy="start the people node")
        stamps: List[int] = []
        limit = self.params["frames"]
        info_topic = self._topic.rsplit("/image", 1)[0] + "/camera_info"
        for topic, message, _ in self._bag.read_messages(topics=[self._topic, info_topic]):
            if topic == info_topic:
                self._infos.publish(message)
                continue
            stamp = message.header.stamp.to_nsec()
            if stamp in stamps:
                raise BadInput(
                    f"two images of the bag have the stamp {stamp} ns", remedy="give a bag with distinct stamps"
                )
            stamps.append(stamp)
            self._images.publish(message)
            answered = self._wait(lambda s=stamp: s in self._people and s in self._latencies, self.params["timeout"])
            if self._stopping:
                return stamps
            if not answered:
                rospy.logwarn(f"no result for the frame with stamp {stamp} ns within {self.params['timeout']:g} s")
            self.health.value("frames stepped", len(stamps))
            if limit and len(stamps) >= limit:
                break
        if not stamps:
            raise BadInput(f"no images on {self._topic} in {self.params['bag']}")
        self._wait(lambda: False, self.params["settle"])
        return stamps

    def _wait(self, done: Any, timeout_s: float) -> bool:
        """Wait until ``done()``, wall time bounded by ``timeout_s``; whether it came true."""
        ends = time.monotonic() + timeout_s
        with self._condition:
            while not done():
                # the number of subscribers changes without notice: look at least ten times a second
                left = min(0.1, ends - time.monotonic())
                if left <= 0 or self._stopping:
                    return False
                self._condition.wait(left)
        return True

    def _outcome(self, stamps: List[int]) -> Dict[str, Any]:
        with self._condition:
            seen = stamps + sorted((set(self._people) | set(self._latencies)) - set(stamps))
            models = {message.model for messages in self._people.values() for message in messages}
            modes = [message.mode for messages in self._latencies.values() for message in messages]
            frames: List[Dict[str, Any]] = [
                {
                    "stamp_ns": stamp,
                    **_origin(self._people.get(stamp, [])[:1]),
                    "results": len(self._people.get(stamp, [])),
                    "latencies": len(self._latencies.get(stamp, [])),
                    "people": [
                        regression.person_record(p.id, (p.x_min, p.y_min, p.x_max, p.y_max), p.score)
                        for message in self._people.get(stamp, [])[:1]
                        for p in message.people
                    ],
                }
                for stamp in seen
            ]
        if len(models) != 1:
            raise BadInput(f"results came from {sorted(models) or 'no model'}", remedy="run exactly one people node")
        weights = rospy.get_param(f"{self.params['people_node']}/weights_sha256", "")
        if not weights:
            raise BadInput(f"{self.params['people_node']} does not say which weights it has (~weights_sha256)")
        return regression.golden(models.pop(), weights, max(set(modes), key=modes.count), frames)


def _origin(results: List[Any]) -> Dict[str, str]:
    """Where a result comes from, if that is not the network's own for this very frame."""
    origins = [result.result.origin for result in results if result.result.origin in (CARRIED, LOCAL, NONE)]
    return {"origin": origins[0]} if origins else {}


NODE = RegressNode
