"""publishes LiDAR scans: from files, or from a driver's topic with faulty clouds taken out.

Publishes:
  lidar/points   sensor_msgs/PointCloud2 with fields x y z intensity (float32, metres); points that are not finite are
                 left out. From files: stamp is the scan's turn in the playback; from a topic: the stamp is kept

Subscribes (only with ~input):
  the topic named by ~input   sensor_msgs/PointCloud2 in any layout that has x, y and z

A folder or file that is missing ends the node with exit code 1; a scan or cloud that cannot be used is told on
/diagnostics and skipped. At the end of the files the node starts again with ~loop, else it stays and says so.
"""

from __future__ import annotations

import threading
from typing import Any, Optional

import rospy
from sensor_msgs.msg import PointCloud2
from std_msgs.msg import Header

from edge_offload.errors import BadInput
from edge_offload.nodes.base import Node
from edge_offload.nodes.convert import cloud_to_points, points_to_cloud
from edge_offload.nodes.params import Param
from edge_offload.nodes.scans import read_scan, scan_files


class LidarNode(Node):
    """See the module's docstring."""

    name = "lidar_node"
    declared = (
        Param("scans", "", "a .bin (KITTI) or .pcd scan, or a folder of them"),
        Param("input", "", "topic of a LiDAR driver, instead of files"),
        Param("rate", 10.0, "scans per second from files", low=0.01, high=1000.0),
        Param("loop", True, "play the files again and again"),
        Param("frame_id", "lidar_link", "tf frame of scans from files"),
    )

    def start(self) -> None:
        if bool(self.params["scans"]) == bool(self.params["input"]):
            raise BadInput("one source of scans is needed", remedy="set either ~scans or ~input")
        self._stop = threading.Event()
        self._thread: Optional[threading.Thread] = None
        self._publisher = rospy.Publisher("lidar/points", PointCloud2, queue_size=4)
        if self.params["input"]:
            self.health.warn("input", f"no cloud on {self.params['input']} yet")
            rospy.Subscriber(
                self.params["input"], PointCloud2, self.callback(self._on_cloud), queue_size=4, buff_size=2**24
            )
            return
        self._files = scan_files(self.params["scans"])
        read_scan(self._files[0])
        self.health.value("scans", len(self._files))
        self._thread = threading.Thread(target=self._play, name="lidar", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        thread: Optional[threading.Thread] = getattr(self, "_thread", None)
        if thread is not None:
            self._stop.set()
            thread.join(5.0)

    def _on_cloud(self, message: Any) -> None:
        points = cloud_to_points(message)
        self._publisher.publish(points_to_cloud(points, message.header))
        self.health.clear("input")
        self.health.count("clouds")

    def _play(self) -> None:
        period = 1.0 / self.params["rate"]
        while not self._stop.is_set():
            usable = 0
            for file in self._files:
                try:
                    points = read_scan(file)
                except BadInput as error:
                    self.health.count("bad scans")
                    self.health.warn("scan", str(error))
                    rospy.logwarn_throttle(5.0, str(error))
                    continue
                usable += 1
                header = Header(stamp=rospy.Time.now(), frame_id=self.params["frame_id"])
                self._publisher.publish(points_to_cloud(points, header))
                self.health.count("clouds")
                if self._stop.wait(period):
                    return
            if not usable:
                self.health.error("scan", f"none of the {len(self._files)} scans can be read")
                self._stop.wait(period)
            if not self.params["loop"]:
                self.health.fine(f"end of {len(self._files)} scans")
                return


NODE = LidarNode
