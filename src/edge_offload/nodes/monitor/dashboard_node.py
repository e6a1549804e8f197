"""shows the run in the browser: camera, latency by stage, mode and why, bandwidth, power, server load, events.

Subscribes:
  offload/latency               edge_offload_msgs/Latency
  offload/mode                  edge_offload_msgs/OffloadMode
  offload/bandwidth             edge_offload_msgs/Bandwidth
  offload/power                 edge_offload_msgs/Power
  kapao/people                  edge_offload_msgs/PersonArray
  server/status                 edge_offload_msgs/ServerStatus. A server on another machine publishes it on its own
                                master; relay it, or open a dashboard there
  /diagnostics                  diagnostic_msgs/DiagnosticArray
  kapao/overlay/compressed      sensor_msgs/CompressedImage, only while the page is open

Open http://127.0.0.1:8765/. It listens on loopback. Any other ~host needs a token, in ~token_file or in the
environment variable EDGE_OFFLOAD_DASHBOARD_TOKEN. It connects again to a restarted ROS master.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, ClassVar, Dict, Optional, Tuple

import rosgraph
import rospy
from sensor_msgs.msg import CompressedImage

from edge_offload.dashboard import messages
from edge_offload.dashboard.access import Access, read_token
from edge_offload.dashboard.digest import make_event
from edge_offload.dashboard.history import History
from edge_offload.dashboard.server import DEFAULT_PORT, DashboardServer
from edge_offload.dashboard.source import RecordSource
from edge_offload.nodes.common.base import Node
from edge_offload.nodes.common.master_watch import REREGISTERED, UNREACHABLE, MasterWatch
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.common.ticker import Ticker
from edge_offload.nodes.monitor.run_topics import RunTopics


class DashboardNode(Node, RecordSource):
    """See the module's docstring."""

    name = "dashboard_node"
    declared = (
        Param("host", "127.0.0.1", "address to listen on"),
        Param("port", DEFAULT_PORT, "TCP port; 0: any free", low=0, high=65535),
        Param("token_file", "", "file with the token that visitors have to enter; needed unless ~host is loopback"),
        Param("names", "", "host names that visitors use for this machine, separated by commas"),
        Param("picture_rate", 10.0, "most camera pictures per second", low=0.1, high=60.0),
    )
    written: ClassVar[Tuple[str, ...]] = ("url",)

    def start(self) -> None:
        params = self.params
        names = [name.strip() for name in params["names"].split(",") if name.strip()]
        access = Access(params["host"], read_token(params["token_file"]), names)
        self._lock = threading.Lock()
        self._viewers = 0
        self._pictures: Optional[Any] = None
        self._shown_at = 0.0
        self._lost_since: Optional[float] = None
        self._history = History()
        # a robot is known by its host, and by its namespace where several share one
        self.title = f"{os.uname().nodename} {rospy.get_namespace()}".rstrip(" /")
        self._server = DashboardServer(self._history, self, access, params["host"], params["port"]).start()
        rospy.set_param("~url", self._server.url)
        self._topics = RunTopics(self._history.put, self.callback)
        self._watch = MasterWatch()
        self._ticker = Ticker(0.5, self._check_master, self.fault)
        self._ticker.start()
        self.health.value("url", self._server.url)
        rospy.loginfo(f"dashboard: {self._server.url}")

    def stop(self) -> None:
        if hasattr(self, "_ticker"):
            self._ticker.close()
        if hasattr(self, "_server"):
            self._server.close()

    def refresh(self) -> None:
        if not hasattr(self, "_server"):
            return
        self.health.value("browsers", self._server.viewers)
        for kind, count in self._history.count_records().items():
            self.health.value(f"{kind} received", count)

    def status(self) -> Dict[str, Any]:
        """See :class:`RecordSource`."""
        with self._lock:
            lost_since = self._lost_since
        if lost_since is not None:
            state = "lost"
            unreachable_s = time.monotonic() - lost_since
            text = f"no ROS master at {rosgraph.get_master_uri()} for {unreachable_s:.0f} s; trying again"
        elif not self._history.count_records()["latency"]:
            state, text = "waiting", f"no frame yet: nothing came on {rospy.resolve_name('offload/latency')}"
        else:
            state, text = "live", ""
        topics = getattr(self, "_topics", None)
        waits_for = {**(topics.names if topics else {}), "picture": rospy.resolve_name(messages.FRAME_TOPIC)}
        return {"state": state, "text": text, "now_s": time.time(), "waits_for": waits_for}

    def set_viewers(self, viewers: int) -> None:
        """See :class:`RecordSource`. Called in the server's thread, which must not wait for the master."""
        self._viewers = viewers

    def _check_master(self) -> None:
        state = self._watch.check_registration()
        with self._lock:
            before, self._lost_since = self._lost_since, None
            if state == UNREACHABLE:
                self._lost_since = time.monotonic() if before is None else before
        if state == UNREACHABLE:
            if before is None:
                self._history.add_event(make_event(time.time(), "error", "master", "the ROS master does not answer"))
                self.health.warn("master", "the ROS master does not answer")
            return
        self.health.clear("master")
        if state == REREGISTERED or before is not None:
            event = "a new ROS master; registered with it" if state == REREGISTERED else "the ROS master answers again"
            self._history.add_event(make_event(time.time(), "ok", "master", event))
        self._fetch_pictures(self._viewers > 0)

    def _fetch_pictures(self, enabled: bool) -> None:
        """Drawing and coding them costs the robot time: only while somebody looks."""
        if enabled and self._pictures is None:
            self._pictures = rospy.Subscriber(
                "kapao/overlay/compressed",
                CompressedImage,
                self.callback(self._on_picture),
                queue_size=1,
                buff_size=2 * messages.MAX_FRAME_BYTES,
            )
        elif not enabled and self._pictures is not None:
            self._pictures.unregister()
            self._pictures = None

    def _on_picture(self, message: Any) -> None:
        now = time.monotonic()
        if now - self._shown_at < 0.9 / self.params["picture_rate"]:
            return
        data = messages.picture_bytes(message)
        if data is None:
            self.health.count("pictures that are neither JPEG nor PNG, or too large")
            return
        self._shown_at = now
        self._history.set_picture(data, time.time())


NODE = DashboardNode
