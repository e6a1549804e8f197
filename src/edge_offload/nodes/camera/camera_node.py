"""publishes frames of a camera, a stream, a video file, a folder of images or a bag.

Publishes:
  camera/image_raw              sensor_msgs/Image, bgr8. Its stamp is the time of reading or arrival; of a file or bag,
                                its time in the playback. With /use_sim_time it pauses while /clock stands
  camera/image_raw/compressed   sensor_msgs/CompressedImage, JPEG, only while it has subscribers
  camera/camera_info            sensor_msgs/CameraInfo with the frame's stamp, from ~calibration or the bag; without
                                one, K is zero. Latched, and published once before the first image
  /tf_static                    pose of the camera, if ~calibration has one

Subscribes (only with ~every_frame):
  kapao/people                  edge_offload_msgs/PersonArray: the next frame waits for this result

An unplugged device is reported on /diagnostics, and opened again when it is back. A stream that is absent, ends or
hangs is a warning with its cause; it is connected again after 1 s, 2 s, 4 s, up to 30 s. Of a stream the newest frame
is published; older ones are dropped and counted. A missing video, folder or bag ends the node with exit code 1. At the
end of a file the node starts again with ~loop; otherwise it stays, and says so on /diagnostics.

Example, 15 frames per second:
  rosrun edge_offload camera_node _video:=lab.mp4 _rate:=15
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any, Optional

import rospy
import tf2_ros
from sensor_msgs.msg import CameraInfo, CompressedImage, Image
from std_msgs.msg import Header

from edge_offload.arrays import Array
from edge_offload.errors import BadInput, EdgeOffloadError
from edge_offload.nodes.camera import sources
from edge_offload.nodes.camera.calibration import fit_calibration, load_calibration, rectify_calibration
from edge_offload.nodes.camera.frames import FrameSource, SourceLost
from edge_offload.nodes.common.base import Node
from edge_offload.nodes.common.clock import StampClock
from edge_offload.nodes.common.convert import bgr_to_image, bgr_to_jpeg, transform_message
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.common.poses import frame_name
from edge_offload.perception.geometry import load_camera
from edge_offload_msgs.msg import PersonArray


class CameraNode(Node):
    """See the module's docstring."""

    name = "camera_node"
    declared = (
        *sources.source_parameters(),
        Param("topic", "", "topic of the images in the bag; empty: the only one with images"),
        Param("info_topic", "", "topic of their calibration in the bag; empty: camera_info beside the images"),
        Param("rate", 0.0, "frames per second; 0: the source's own, 10 if it has none", low=0.0, high=1000.0),
        Param("width", 0, "pixels requested from the device; 0: its default", low=0),
        Param("height", 0, "pixels requested from the device; 0: its default", low=0),
        Param("loop", True, "play a file again and again"),
        Param("frames", 0, "stop publishing after so many; 0: never", low=0),
        Param("every_frame", False, "publish the next frame when the result of the last one has come"),
        Param("result_timeout", 60.0, "s to wait for that result before a warning", low=0.1),
        Param("subscribers", 0, "wait for so many subscribers of the image before the first frame", low=0),
        Param("patience", 10.0, "s to wait for them before a warning", low=0.0),
        Param("frame_id", "camera_optical_frame", "tf frame of the images"),
        Param("calibration", "", "YAML file of camera_calibration; none: no camera_info"),
        Param("jpeg_quality", 90, "JPEG quality of the compressed image", low=1, high=100),
    )

    def start(self) -> None:
        params = self.params
        self._stop = threading.Event()
        self._clock = StampClock(self.health, "frames")
        self._answered = threading.Event()
        self._awaited: Optional[rospy.Time] = None
        self._published = 0
        self._waiting: Optional[Array] = None
        self._source = self._open_source()
        self._info = CameraInfo()
        if params["calibration"]:
            self._info = load_calibration(params["calibration"])
            self._announce_pose()
        elif self._source.info is not None:
            self._info = self._source.info
        if self._source.rectified and self._info.width:
            self._info = rectify_calibration(self._info)
        # several frames may queue here: what a slow subscriber cannot take in is its own business to drop and count
        self._images = rospy.Publisher("camera/image_raw", Image, queue_size=8)
        self._jpegs = rospy.Publisher("camera/image_raw/compressed", CompressedImage, queue_size=2)
        self._infos = rospy.Publisher("camera/camera_info", CameraInfo, queue_size=8, latch=True)
        if params["every_frame"]:
            rospy.Subscriber("kapao/people", PersonArray, self.callback(self._on_result), queue_size=16)
        self._thread = threading.Thread(target=self._run_playback, name="camera", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if not hasattr(self, "_thread"):
            return
        self._stop.set()
        self._answered.set()
        self._source.interrupt()
        self._thread.join(5.0)
        self._source.close()

    def refresh(self) -> None:
        self.health.value("frames published", getattr(self, "_published", 0))
        source: Optional[FrameSource] = getattr(self, "_source", None)
        if source is not None and source.networked:
            self.health.value("old frames dropped", source.dropped)

    def _open_source(self) -> FrameSource:
        source: FrameSource = sources.open_source(self.params)
        self.health.value("source", source.name)
        if source.networked:
            self.health.warn("source", f"{source.name}: no frame yet")
        rospy.loginfo(f"frames from {source.name}")
        return source

    def _announce_pose(self) -> None:
        """Publish the calibrated place of the camera, for as long as the node lives."""
        camera = load_camera(self.params["calibration"])
        if camera.pose is None:
            return
        self._tf = tf2_ros.StaticTransformBroadcaster()
        self._tf.sendTransform(
            transform_message(
                camera.pose, rospy.Time.now(), frame_name(camera.pose_frame), frame_name(self.params["frame_id"])
            )
        )

    def _on_result(self, message: Any) -> None:
        if message.header.stamp == self._awaited:
            self._answered.set()

    def _run_playback(self) -> None:
        try:
            self._waiting = self._next_frame()
            self.health.clear("source")
            stamp = self._clock.wait_for_time(self._stop) if self._waiting is not None else None
            if self._waiting is not None and stamp is not None:
                self._publish_info(stamp, self._waiting)
            self._wait_for_subscribers()
            self._play_source()
        except EdgeOffloadError as error:
            self._fail_playback(str(error))
        except Exception as error:
            self.fault("camera", error)
            self._fail_playback(f"{type(error).__name__}: {error}")

    def _wait_for_subscribers(self) -> None:
        """Until as many as were announced are there; meanwhile, say why no frame comes."""
        required, started_at = self.params["subscribers"], time.monotonic()
        while self._images.get_num_connections() < required and not self._stop.wait(0.05):
            waited = time.monotonic() - started_at
            if waited < self.params["patience"]:
                continue
            cause = (
                f"no frame published yet: {self._images.get_num_connections()} of {required} subscribers listen to "
                f"{self._images.resolved_name}"
            )
            self.health.warn("subscribers", f"{cause} (~subscribers)")
            rospy.logwarn_throttle(30.0, f"{cause} after {waited:.0f} s; a node that should listen has not started yet")
        self.health.clear("subscribers")

    def _fail_playback(self, cause: str) -> None:
        if self._stop.is_set():
            return
        rospy.logfatal(cause)
        self.health.error("source", cause)
        self.finish(cause, exit_code=1)

    def _play_source(self) -> None:
        params = self.params
        period = 1.0 / (params["rate"] or self._source.rate or 10.0)
        due = time.monotonic()
        while not self._stop.is_set():
            frame, self._waiting = self._waiting, None
            if frame is None or self._source.live:
                frame = self._next_frame()
            if frame is None:
                return
            if not self._source.live and not params["every_frame"]:
                # after a stall the rhythm goes on from now: catching up would publish a burst
                due = max(due, time.monotonic() - period)
                if self._stop.wait(max(0.0, due - time.monotonic())):
                    return
                due += period
            self._publish_frame(frame)
            if params["frames"] and self._published >= params["frames"]:
                self.health.fine(f"done: {self._published} frames published")
                rospy.loginfo(f"{self._published} frames published, as many as asked for")
                return

    def _next_frame(self) -> Optional[Array]:
        """The next frame; a lost device is waited for. None at the end, or on shutdown."""
        rewound = False
        while not self._stop.is_set():
            try:
                frame = self._source.read()
            except SourceLost as error:
                self._reopen_source(error)
                continue
            if frame is not None:
                return frame
            if self._source.lacking and self.health.warn("lacking", self._source.lacking):
                rospy.logwarn(self._source.lacking)
            if not self.params["loop"] or rewound:
                self.health.fine(f"end of {self._source.name} after {self._published} frames")
                rospy.loginfo(f"end of {self._source.name}: {self._published} frames published")
                return None
            self._source.rewind()
            rewound = True
        return None

    def _reopen_source(self, lost: SourceLost) -> None:
        """Try until the source gives frames again, ever more seldom, and tell meanwhile what is wrong."""
        cause: EdgeOffloadError = lost
        pauses = self._source.pauses_s
        for pause in itertools.chain(pauses, itertools.repeat(pauses[-1])):
            if self._stop.is_set():
                return
            self._report_loss(f"{cause}; trying again in {pause:g} s")
            if self._stop.wait(pause):
                return
            try:
                self._source.rewind()
            except (BadInput, SourceLost) as error:
                cause = error
                continue
            self.health.clear("source")
            self.health.count("times reconnected")
            rospy.loginfo(f"{self._source.name} is back")
            return

    def _report_loss(self, cause: str) -> None:
        if self._source.networked:
            if self.health.warn("source", cause):
                rospy.logwarn(cause)
        elif self.health.error("source", cause):
            rospy.logerr(cause)

    def _publish_frame(self, frame: Array) -> None:
        stamp = self._clock.wait_for_time(self._stop, self._source.arrived_s)
        if stamp is None:
            return
        message = bgr_to_image(frame, _make_header(stamp, self.params["frame_id"]))
        self._awaited = stamp
        self._answered.clear()
        self._publish_info(stamp, frame)
        self._images.publish(message)
        self._published += 1
        if self._jpegs.get_num_connections():
            self._jpegs.publish(bgr_to_jpeg(frame, message.header, self.params["jpeg_quality"]))
        if self.params["every_frame"]:
            self._wait_for_result()

    def _publish_info(self, stamp: rospy.Time, frame: Array) -> None:
        height, width = frame.shape[:2]
        info = (
            fit_calibration(self._info, width, height) if self._info.width else CameraInfo(width=width, height=height)
        )
        info.header = _make_header(stamp, self.params["frame_id"])
        self._infos.publish(info)

    def _wait_for_result(self) -> None:
        waited = 0.0
        while not self._stop.is_set():
            if self._answered.wait(self.params["result_timeout"]):
                self.health.clear("result")
                return
            waited += self.params["result_timeout"]
            self.health.warn("result", f"no result of frame {self._published} for {waited:g} s")
            rospy.logwarn(f"waiting for the result of frame {self._published} since {waited:g} s")


def _make_header(stamp: rospy.Time, frame_id: str) -> Header:
    return Header(stamp=stamp, frame_id=frame_name(frame_id))


NODE = CameraNode
