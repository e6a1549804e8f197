"""publishes LiDAR sweeps: from files, a bag, a synthetic world, or a driver's topic without its faulty clouds.

Publishes:
  lidar/points   sensor_msgs/PointCloud2 with fields x y z intensity (float32, metres). Points without a return (not
                 finite, or within 0.1 m of the sensor) are removed. The stamp is the topic's, or the sweep's time in
                 the playback. With /use_sim_time it pauses while /clock stands
  /tf            pose of the sensor in ~map_frame; only from a synthetic world

Subscribes (only with ~input):
  the topic named by ~input   sensor_msgs/PointCloud2 in any layout with x, y and z

A synthetic world is a street along which the sensor drives, or a room in which it turns; people walk in it. Its sweeps
come from ray casting, with range noise and dropouts.

A missing folder or file ends the node with exit code 1. An unusable scan or cloud is reported on /diagnostics and
skipped. At the end of files or bag the node starts again with ~loop; otherwise it stays, and says so.

Example:
  rosrun edge_offload lidar_node _world:=street
"""

from __future__ import annotations

import threading
import time
from typing import Any, Iterable, Optional, Union

import numpy as np
import rospy
import tf2_ros
from geometry_msgs.msg import Quaternion, TransformStamped, Vector3
from sensor_msgs.msg import PointCloud2
from std_msgs.msg import Header

from edge_offload.errors import BadInput, EdgeOffloadError
from edge_offload.nodes.common.base import Node
from edge_offload.nodes.common.clock import StampClock
from edge_offload.nodes.common.convert import cloud_to_points, points_to_cloud
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.common.poses import frame_name
from edge_offload.nodes.common.topic_types import await_topic
from edge_offload.nodes.inference.intake import Arrivals
from edge_offload.nodes.lidar.sweeps import WORLDS, BagSweeps, FileSweeps, Sweep, WorldSweeps
from edge_offload.perception.scene.scans import AUTO

Sweeps = Union[FileSweeps, BagSweeps, WorldSweeps]


class LidarNode(Node):
    """See the module's docstring."""

    name = "lidar_node"
    declared = (
        Param("scans", "", "a .bin (KITTI, nuScenes) or .pcd scan, a folder of them, or a .bag"),
        Param(
            "scan_fields",
            AUTO,
            "fields of a point in .bin scans, float32 each: x,y,z,intensity,ring; auto: by the file's name",
        ),
        Param("topic", "", "topic of the clouds in a bag; empty: the only one"),
        Param("world", "", "a synthetic world instead of files", choices=("", *WORLDS)),
        Param("input", "", "topic of a LiDAR driver, instead of files"),
        Param("rate", 10.0, "sweeps per second from files, bag or world", low=0.01, high=1000.0),
        Param("loop", True, "play files or bag again and again"),
        Param("frame_id", "lidar_link", "tf frame of the sensor; of a topic, the one of its messages"),
        Param("map_frame", "map", "tf frame of a synthetic world"),
        Param("seed", 0, "random seed of a synthetic world", low=0),
        Param("speed", 1.0, "m/s along a synthetic street, rad/s in a room"),
        Param("sensor_height", 1.73, "m above the ground, in a synthetic world", low=0.1, high=3.0),
    )

    def start(self) -> None:
        chosen = [name for name in ("scans", "world", "input") if self.params[name]]
        if len(chosen) != 1:
            raise BadInput("one source of sweeps is needed", remedy="set one of ~scans, ~world and ~input")
        self._stop = threading.Event()
        self._clock = StampClock(self.health, "sweeps")
        self._thread: Optional[threading.Thread] = None
        self._publisher = rospy.Publisher("lidar/points", PointCloud2, queue_size=4)
        if self.params["input"]:
            remedy = "check the driver, or name its topic (input:=)"
            self._input = await_topic(self.params["input"], PointCloud2, "cloud", remedy, after_s=3.0)
            self.health.watch("input", self._input.explain_silence)
            self._arrivals = Arrivals(self.health, "clouds", self.params)
            rospy.Subscriber(
                self.params["input"], PointCloud2, self.callback(self._on_cloud), queue_size=4, buff_size=2**24
            )
            return
        self._sweeps = self._open_source()
        self._broadcaster = tf2_ros.TransformBroadcaster() if self.params["world"] else None
        self.health.value("source", self._sweeps)
        self._thread = threading.Thread(target=self._play_source, name="lidar", daemon=True)
        self._thread.start()

    def _open_source(self) -> Sweeps:
        params = self.params
        if params["world"]:
            return WorldSweeps(
                params["world"], params["seed"], params["speed"], 1.0 / params["rate"], params["sensor_height"]
            )
        if params["scans"].lower().endswith(".bag"):
            return BagSweeps(params["scans"], params["topic"])
        return FileSweeps(params["scans"], params["scan_fields"])

    def stop(self) -> None:
        thread: Optional[threading.Thread] = getattr(self, "_thread", None)
        if thread is not None:
            self._stop.set()
            thread.join(5.0)

    def refresh(self) -> None:
        if hasattr(self, "_arrivals"):
            self._arrivals.refresh()

    def _on_cloud(self, message: Any) -> None:
        self._input.note_arrival()
        self._arrivals.make_frame(message, time.monotonic())
        points = cloud_to_points(message)
        self._publisher.publish(points_to_cloud(points, message.header))
        if len(points):
            self.health.clear("returns")
        else:
            self.health.warn("returns", f"none of {message.width * message.height} points is a return: is it covered?")
        self.health.count("clouds")

    def _play_source(self) -> None:
        try:
            while not self._stop.is_set():
                if not self._publish_sweeps(self._sweeps) and not self._stop.is_set():
                    self.health.error("scan", f"nothing in {self._sweeps} can be read")
                    self._stop.wait(1.0 / self.params["rate"])
                if not self.params["loop"]:
                    self.health.fine(f"end of {self._sweeps}")
                    return
        except EdgeOffloadError as error:
            rospy.logfatal(str(error))
            self.health.error("playback", str(error))
            self.finish(str(error), exit_code=1)
        except Exception as error:
            self.fault("playback", error)

    def _publish_sweeps(self, sweeps: Iterable[Sweep]) -> int:
        """Publish all sweeps and return how many were usable."""
        period_s, usable = 1.0 / self.params["rate"], 0
        due_s = time.monotonic()
        for sweep in sweeps:
            if sweep.points is None:
                self.health.count("bad scans")
                self.health.warn("scan", sweep.error)
                rospy.logwarn_throttle(5.0, sweep.error)
                continue
            usable += 1
            # a synthetic sweep may take longer than the period; the next one is not hurried
            due_s = max(due_s + period_s, time.monotonic())
            stamp = self._clock.wait_for_time(self._stop)
            if stamp is None:
                break
            header = Header(stamp=stamp, frame_id=frame_name(self.params["frame_id"]))
            if sweep.pose is not None and self._broadcaster is not None:
                self._broadcaster.sendTransform(_transform_message(sweep.pose, header.stamp, self.params))
            self._publisher.publish(points_to_cloud(sweep.points, header))
            self.health.count("clouds")
            if self._stop.wait(max(0.0, due_s - time.monotonic())):
                break
        return usable


def _transform_message(pose: Any, stamp: Any, params: Any) -> TransformStamped:
    """Make the transform of a sensor at ``pose``: x, y, z (m) and yaw (rad) in the map."""
    x, y, z, yaw = pose
    header = Header(stamp=stamp, frame_id=frame_name(params["map_frame"]))
    message = TransformStamped(header=header, child_frame_id=frame_name(params["frame_id"]))
    message.transform.translation = Vector3(x, y, z)
    message.transform.rotation = Quaternion(0.0, 0.0, float(np.sin(yaw / 2)), float(np.cos(yaw / 2)))
    return message


NODE = LidarNode
