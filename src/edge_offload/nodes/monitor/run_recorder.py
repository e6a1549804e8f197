"""records a run of a network node: counts frames and results, and writes a summary at the end.

Subscribes:
  camera/image_raw          sensor_msgs/Image (or CompressedImage); only its stamps are used
  kapao/people              edge_offload_msgs/PersonArray
  offload/latency           edge_offload_msgs/Latency
  kapao/overlay             sensor_msgs/Image, only while a video is written
  detector/objects, detector/overlay: instead of those of kapao if ~results is objects
  lidar/points, agrnav/semantic_grid, agrnav/overlay: instead of camera and kapao if ~results is scenes
  images and results in the namespace of each camera that ~camera_ns names (the overlay: of the first)
  for the records: offload/mode, offload/bandwidth, offload/power, server/status, /diagnostics

Writes a summary as JSON (schema definition "run"), an overlay video, a picture, and all records as JSON lines for
'edge-offload report' and 'edge-offload dashboard'. The files are beside ~json, in ~directory, or in a new folder in
~runs, whose link 'last' leads to the latest. ~record_limit (MB) bounds the size of a run: the oldest part of the
video is removed first. ~runs_limit (MB) bounds all runs: the oldest ones are removed at the start.

Prints the progress every ~progress seconds. A file that cannot be written costs one line and the exit code; the
summary is printed all the same.

The run ends after ~frames results, ~duration seconds, or ~idle seconds without a frame. The node then exits with 0, or
with 1 if there was no result, which ends the launch if the node is required. The run also ends if ~network is
restarted before its first result, since a further restart would only repeat the failure.
"""

from __future__ import annotations

import math
import pathlib
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import genpy
import roslaunch.netapi
import rospy
from diagnostic_msgs.msg import DiagnosticArray

from edge_offload import records
from edge_offload.dashboard.messages import DIAGNOSTICS_TOPIC
from edge_offload.dashboard.progress import PROGRESS, results_line, waiting_line
from edge_offload.dashboard.stream import MAX_BYTES
from edge_offload.errors import BadInput, EdgeOffloadError
from edge_offload.nodes.common.base import Node
from edge_offload.nodes.common.health import TORCHES
from edge_offload.nodes.common.params import CAMERA_NS, Param, check_namespaces
from edge_offload.nodes.common.ticker import Ticker
from edge_offload.nodes.inference.compose import report_of
from edge_offload.nodes.monitor.overlay_file import OverlayFile
from edge_offload.nodes.monitor.record_file import RecordFile
from edge_offload.nodes.monitor.run_folder import new_folder, prune_runs
from edge_offload.nodes.monitor.tally import Tallies, render_summary
from edge_offload.outputs import check_folder, check_output
from edge_offload.perception.video import VideoParts
from edge_offload.runtime.carrying import FRESH
from edge_offload.timing import InferenceReport
from edge_offload_msgs.msg import Latency, ObjectArray, PersonArray, Power, SemanticGrid


class _Results(NamedTuple):
    """Topics of frames, results and pictures; ``many`` counts what a result shows, for the best picture."""

    frames: str
    topic: str
    message: Any
    overlay: str
    many: Callable[[Any], int]


RESULTS = {
    "people": _Results(
        "camera/image_raw", "kapao/people", PersonArray, "kapao/overlay", lambda message: len(message.people)
    ),
    "objects": _Results(
        "camera/image_raw", "detector/objects", ObjectArray, "detector/overlay", lambda message: len(message.objects)
    ),
    "scenes": _Results("lidar/points", "agrnav/semantic_grid", SemanticGrid, "agrnav/overlay", lambda message: 0),
}
MB = 1e6

SETTLE_S = 0.5
"""Seconds without news after which nothing more is expected of a run that has ended, and after which subscriptions that
have been connected miss nothing."""


class RunRecorder(Node):
    """See the module's docstring."""

    name = "run_recorder"
    declared = (
        Param("results", "people", "kind of results of the network", choices=tuple(RESULTS)),
        CAMERA_NS,
        Param("frames", 0, "end after so many results; 0: never", low=0),
        Param("duration", 0.0, "end so many s after the first result; 0: never", low=0.0),
        Param("idle", 0.0, "end after so many s without a frame, when all frames have results; 0: never", low=0.0),
        Param("json", "", "file for the summary; none: <directory>/summary.json"),
        Param("directory", "", "folder of the files; none: beside ~json, else <runs>/<time>"),
        Param("runs", "~/.ros/edge_offload", "folder with one folder per run"),
        Param("record_limit", 1000.0, "most MB of video and records of the run; 0: no bound", low=0.0),
        Param("runs_limit", 4000.0, "most MB of all runs in ~runs, of which the newest are kept; 0: no bound", low=0.0),
        Param("progress", 10.0, "s between two lines of progress; 0: none", low=0.0),
        Param("video", True, "write the overlay as a video"),
        Param("video_rate", 10.0, "frames per second of that video", low=0.1, high=240.0),
        Param("records", True, "write every record of the run as JSON lines"),
        Param(
            "network",
            "",
            "node whose inferences are counted, and whose restart before the first result ends the run; "
            "none: all nodes",
        ),
        Param("link", "", "name of the emulated link, for the summary"),
    )

    def start(self) -> None:
        params = self.params
        self._lock = threading.Lock()
        cameras = check_namespaces(params["camera_ns"]) if len(params["camera_ns"]) > 1 else [""]
        self._tally = Tallies(cameras)
        self._first: Optional[float] = None
        self._news = self._frame_news = time.monotonic()
        self._ended = ""
        self._finished = False
        self._looked = time.monotonic()
        self._shown_counts: Dict[int, int] = {}  # of the first camera
        self._started_at = self._reported_at = time.monotonic()
        self._last: Optional[InferenceReport] = None
        limit = params["record_limit"] * MB
        self._json = _summary_path(params)
        special_file = self._json.exists() and not self._json.is_file()  # a pipe, a terminal: nothing can lie beside it
        # before the count: rospy calls in this order, and the frame that completes the run is a record of it
        self._records: Optional[RecordFile] = None
        quarters = 4  # of what a run may take on the disk: three for the newest parts of the video, one for the records
        if params["records"] and not special_file:
            path = self._json.with_suffix(".jsonl")
            most = min(MAX_BYTES, int(limit / quarters)) or MAX_BYTES
            self._records = RecordFile(path, params["link"], self.callback, self.health, most, cameras)
        # small messages and a deep queue: nothing may be missed
        latency = rospy.Subscriber("offload/latency", Latency, self.callback(self._on_latency), queue_size=1000)
        self._answers, self._connected_s = [latency], math.inf
        self._kind = RESULTS[params["results"]]
        for camera in cameras:
            self._subscribe_camera(camera)
        rospy.Subscriber(DIAGNOSTICS_TOPIC, DiagnosticArray, self.callback(self._on_diagnostics), queue_size=100)
        self._overlay: Optional[OverlayFile] = None
        if params["video"] and not special_file:
            path = self._json.with_suffix(".avi")
            video = VideoParts(path, params["video_rate"], limit / quarters, quarters - 1)
            overlay = self._kind.overlay if not cameras[0] else f"{cameras[0]}/{self._kind.overlay}"
            self._overlay = OverlayFile(path, video, overlay, self._count_shown, self.health)
        self._ticker = Ticker(0.1, self._check_run, self.fault)
        self._ticker.start()

    def _subscribe_camera(self, camera: str) -> None:
        topic, frames = self._kind.topic, self._kind.frames
        if camera:
            topic, frames = f"{camera}/{topic}", frames.replace("camera", camera)

        def on_result(message: Any) -> None:
            self._on_result(camera, message)

        def on_frame(message: Any) -> None:
            self._on_frame(camera, message)

        results = rospy.Subscriber(topic, self._kind.message, self.callback(on_result), queue_size=1000)
        self._answers.append(results)
        rospy.Subscriber(frames, rospy.AnyMsg, self.callback(on_frame), queue_size=1000)

    def stop(self) -> None:
        if not hasattr(self, "_ticker"):
            return
        self._ticker.close()
        if not self._ended:
            # ended from outside: the network node drains too, so wait for what it still sends
            self._news = time.monotonic()
            while time.monotonic() - self._news < SETTLE_S:
                time.sleep(0.05)
            self._tally.drop_early_halves()
        if self._overlay is not None and not self._overlay.drain(10.0):
            rospy.logwarn("the overlay video is incomplete: it could not be written in time")
        if self._records is not None:
            self._records.close()
        self._write_summary(self._close_files())

    def refresh(self) -> None:
        with self._lock:
            tally = self._tally
            faults = tally.list_faults(final=False)
            self.health.value("frames", tally.sum_counts("frames"))
            self.health.value("results", tally.results)
        if faults:
            self.health.warn("accounting", "; ".join(faults))
        else:
            self.health.clear("accounting")

    def _on_frame(self, camera: str, message: Any) -> None:
        # every message with a header starts with seq (4 bytes) and stamp (4 + 4 bytes)
        buffer = message._buff
        if len(buffer) < 12:
            raise BadInput(f"message of {len(buffer)} bytes has no header")
        stamp = genpy.Time(int.from_bytes(buffer[4:8], "little"), int.from_bytes(buffer[8:12], "little"))
        with self._lock:
            self._tally.of[camera].add_frame(stamp.to_nsec())
            self._frame_news = time.monotonic()

    def _on_result(self, camera: str, message: Any) -> None:
        stamp_ns = message.header.stamp.to_nsec()
        with self._lock:
            # objects are never carried along
            origin = message.result.origin if hasattr(message, "result") else FRESH
            delay_s = (rospy.Time.now() - message.header.stamp).to_sec() if stamp_ns else math.nan
            self._tally.of[camera].add_result(stamp_ns, origin, delay_s)
            if camera == next(iter(self._tally.of)):
                self._shown_counts[stamp_ns] = self._kind.many(message)
            self._note_result()

    def _on_latency(self, message: Any) -> None:
        if self._of_another(message):
            return
        measured = message.energy_source == Power.MEASURED
        report = report_of(message)
        with self._lock:
            self._last = report
            self._tally.of[message.camera].add_latency(message.header.stamp.to_nsec(), report, message.energy, measured)
            self._note_result()

    def _of_another(self, message: Any) -> bool:
        """Tell whether a latency is that of another network of the robot, or of other cameras."""
        if message.camera not in self._tally.of:
            return True
        caller: str = (message._connection_header or {}).get("callerid", "")
        return bool(self.params["network"] and caller) and caller.rpartition("/")[2] != self.params["network"]

    def _on_diagnostics(self, message: Any) -> None:
        for status in message.status:
            for value in status.values:
                if value.key == TORCHES:
                    self._tally.two_torches = value.value

    def _note_result(self) -> None:
        """Called with the lock held, in the very message that may complete the run."""
        if self._ended:
            return
        self._news = time.monotonic()
        if self._news < self._connected_s + SETTLE_S:
            self._tally.mark_late()
        if self._first is None:
            self._first = self._news
        target = self.params["frames"]
        if target and self._tally.sum_counts("complete") >= target:
            self._end_count(f"{target} results")

    def _count_shown(self, stamp_ns: int) -> int:
        return self._shown_counts.get(stamp_ns, 0)

    def _report_progress(self, now: float) -> None:
        """A line of how far the run is, now and then."""
        target = self.params["frames"]
        with self._lock:
            if self._ended or not self.params["progress"] or now - self._reported_at < self.params["progress"]:
                return
            self._reported_at, last = now, self._last
            done, seen = self._tally.sum_counts("complete"), self._tally.sum_counts("frames")
        if last is None:
            text = waiting_line(now - self._started_at, seen)
        else:
            text = results_line(done, target, now - (self._first or now), str(last.mode), last.total_s)
        print(f"{PROGRESS}{text}", flush=True)

    def _check_run(self) -> None:
        params, now = self.params, time.monotonic()
        if self._connected_s > now and all(topic.get_num_connections() for topic in self._answers):
            self._connected_s = now
        self._report_progress(now)
        if params["network"] and self._first is None and not self._ended and now - self._looked >= 1.0:
            self._looked = now
            if _is_respawned(params["network"]):
                rospy.logfatal(f"{params['network']} ended before its first result; its last line above says why")
                self._ended = "no result"
                self.finish(self._ended, exit_code=1)
        with self._lock:
            if self._tally.closed:
                self._finish_if_complete(now)
            if self._ended or self._first is None:
                return
            # a slow network may still work on the last frame
            patience = params["idle"] * (
                1 if self._tally.sum_counts("settled") >= self._tally.sum_counts("frames") else 20
            )
            if params["duration"] and now - self._first >= params["duration"]:
                self._end_count(f"{params['duration']:g} s")
            elif params["idle"] and now - max(self._news, self._frame_news) >= patience:
                self._end_count("no more frames")

    def _end_count(self, reason: str) -> None:
        """The count is over; what it still lacks is waited for. Called with the lock held."""
        self._ended, self._news = reason, time.monotonic()
        self._tally.close()
        if self._records is not None:
            self._records.end_frames()
        rospy.loginfo(f"the run ends: {reason}")

    def _finish_if_complete(self, now: float) -> None:
        """End the node once every frame that is counted is whole, or nothing comes any more."""
        if not self._finished and (not self._tally.list_faults() or now - self._news >= SETTLE_S):
            self._finished = True
            self.finish(self._ended)

    def _close_files(self) -> List[str]:
        try:
            return [] if self._overlay is None else self._overlay.close()
        except EdgeOffloadError as error:
            rospy.logerr(f"overlay: {error}")
            self.exit_code = 1
        return []

    def _write_summary(self, files: List[str]) -> None:
        with self._lock:
            try:
                record = self._tally.summarise_run(self.params["link"], files)
            except EdgeOffloadError as error:
                rospy.logerr(f"no summary: {error}")
                self.exit_code = 1
                return
            faults = self._tally.list_faults()
        lines = ["", "Summary of the run", render_summary(record)]
        failed = ""
        try:
            records.write(self._json, "run", record)
            lines.append(f"  {'summary':<12} {self._json}")
        except EdgeOffloadError as error:
            failed = str(error)
        if self._records is not None:
            lines.append(f"  {'records':<12} {self._records.path} ('edge-offload report' makes a page of them)")
        lines += [f"  ACCOUNTING   {fault}" for fault in faults]
        print("\n".join(lines), flush=True)
        if failed:
            rospy.logerr(f"the summary is not kept: {failed}")
            self.exit_code = 1


def _summary_path(params: Dict[str, Any]) -> pathlib.Path:
    """Return the path of the summary; the other files take its name with another suffix.

    Raises:
        BadInput: nothing can be written there.
    """
    bound = f" (up to {params['record_limit']:g} MB)" if params["record_limit"] else ""
    if params["json"] or params["directory"]:
        chosen = pathlib.Path(params["json"] or "summary.json").expanduser()
        chosen = pathlib.Path(params["directory"]).expanduser() / chosen.name if params["directory"] else chosen
        check_output(chosen)
        chosen.absolute().parent.mkdir(parents=True, exist_ok=True)
    else:
        root = pathlib.Path(params["runs"]).expanduser().absolute()
        check_folder(root)
        chosen = new_folder(root) / "summary.json"
        removed = prune_runs(root, params["runs_limit"] * MB, time.time()) if params["runs_limit"] else []
        if removed:
            rospy.loginfo(f"{root}: {len(removed)} old runs removed, it held more than {params['runs_limit']:g} MB")
    chosen = chosen.absolute()
    rospy.loginfo(f"the run is recorded in {chosen.parent}{bound}")
    return chosen


def _is_respawned(node: str) -> bool:
    """Tell whether the launch file that ``node`` belongs to has started it a second time."""
    return any(
        process.respawn_count > 1 and process.name.rpartition("-")[0] == node
        for process in roslaunch.netapi.list_processes()
    )


NODE = RunRecorder
