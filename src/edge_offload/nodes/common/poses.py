"""Looks poses up in tf: waits for late ones, and reports missing ones on /diagnostics with the cause."""

from __future__ import annotations

import math
import re
import statistics
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, List, Mapping, Optional, Tuple

import numpy as np
import rospy
import tf2_ros

from edge_offload.errors import BadInput
from edge_offload.manager.tuning import FIRST_INTERVAL_S, WAIT_SHARE
from edge_offload.nodes.common.convert import transform_of
from edge_offload.nodes.common.params import Param
from edge_offload.perception.geometry import Transform

TF_WAIT = Param(
    "tf_wait", 0.0, "s from a frame's arrival that its result waits for tf; 0: 3/4 of the time between frames", low=0.0
)

STOPPED_S = 1.0
"""Where tf's newest pose is older than a frame by more, that of the frame does not come while its result waits."""

SAME = Transform(np.eye(3), np.zeros(3))


def frame_name(name: str) -> str:
    """The name of a frame as tf2 takes it: tf dropped a leading slash, tf2 refuses it."""
    return name.strip().lstrip("/")


class Interval:
    """Time between frames by their arrivals: the median of recent ones. One thread at a time."""

    def __init__(self) -> None:
        self._last_s = math.nan
        self._gaps: Deque[float] = deque(maxlen=9)

    def update_interval(self, now_s: float) -> float:
        """Take in an arrival (monotonic seconds); seconds between frames now."""
        if not math.isnan(self._last_s):
            self._gaps.append(now_s - self._last_s)
        self._last_s = now_s
        return statistics.median(self._gaps) if self._gaps else FIRST_INTERVAL_S


def waits_until(received_s: float, interval_s: float, params: Mapping[str, Any]) -> float:
    """Until when (monotonic seconds) the result of a frame may wait for what comes late.

    Args:
        received_s: when the frame arrived.
        interval_s: between frames.
        params: of the node: ``tf_wait``, and ``carry`` and ``deadline`` where it has them.
    """
    most_s = WAIT_SHARE * interval_s
    wait_s = params.get("tf_wait") or most_s
    if params.get("carry"):
        # results that are carried leave within the time between two frames
        wait_s = min(wait_s, most_s)
    return received_s + min(wait_s, WAIT_SHARE * params["deadline"] if params.get("deadline") else math.inf)


class _Listener(tf2_ros.TransformListener):  # type: ignore[misc]
    """Says when transforms have come."""

    def __init__(self, buffer: tf2_ros.Buffer, on_arrival: Callable[[], None]) -> None:
        self._on_arrival = on_arrival
        super().__init__(buffer)

    def callback(self, data: Any) -> None:
        super().callback(data)
        self._on_arrival()

    def static_callback(self, data: Any) -> None:
        super().static_callback(data)
        self._on_arrival()


class Poses:
    """Transforms that a node looks up in tf. Thread-safe.

    Args:
        buffer: of transforms; by default one that listens to /tf and /tf_static.

    Attributes:
        buffer: it.
    """

    def __init__(self, buffer: Optional[Any] = None) -> None:
        self._changed = threading.Condition()
        self._listeners: List[Callable[[], None]] = []
        self.buffer = tf2_ros.Buffer() if buffer is None else buffer
        self._listener = _Listener(self.buffer, self.notify_waiting) if buffer is None else None

    def add_listener(self, call: Callable[[], None]) -> None:
        """Have ``call`` called, in tf's thread, when transforms have come."""
        self._listeners.append(call)

    def notify_waiting(self) -> None:
        with self._changed:
            self._changed.notify_all()
        for call in self._listeners:
            call()

    def wait_for_pose(self, pose: Pose) -> None:
        """Wait until a pose is available, or does not come in time."""
        with self._changed:
            remaining_s = pose.waits_s - time.monotonic()
            while remaining_s > 0:
                self._changed.wait(remaining_s)
                remaining_s = pose.waits_s - time.monotonic()

    def list_frames(self) -> List[str]:
        return sorted(self.buffer._getFrameStrings())

    def find_root(self, frame: str) -> str:
        """The frame that a tree of frames hangs on."""
        parents = dict(re.findall(r"Frame (.+) exists with parent (.+)\.", self.buffer.all_frames_as_string()))
        for _ in parents:
            frame = parents.get(frame, frame)
        return frame


class Pose:
    """Pose of one frame in another at a time; looked up until tf has it."""

    def __init__(
        self, lookup: PoseLookup, target: str, source: str, at: rospy.Time, received_s: float, until_s: float
    ) -> None:
        self.target, self.source = frame_name(target), frame_name(source)
        self.at, self.received_s, self.until_s = at, received_s, until_s
        self._lookup = lookup
        self._transform: Optional[Transform] = None
        self.cause = ""

    @property
    def available(self) -> bool:
        same = bool(self.source) and self.target == self.source
        buffer = self._lookup.poses.buffer
        return self._transform is not None or same or buffer.can_transform_core(self.target, self.source, self.at)[0]

    @property
    def ahead_s(self) -> float:
        """Return the seconds by which its time is ahead of tf; NaN where something else is missing."""
        try:
            newest = self._lookup.poses.buffer.get_latest_common_time(self.target, self.source)
        except tf2_ros.TransformException:
            return math.nan
        return float((self.at - newest).to_sec()) if self.at else math.nan

    @property
    def waits_s(self) -> float:
        """Until when (monotonic seconds) it may still come in time; -infinity: it is there, or will not."""
        if time.monotonic() >= self.until_s or self.available:
            return -math.inf
        late = self._lookup.least_late_s > self.until_s - self.received_s
        return -math.inf if late or not 0 < self.ahead_s < STOPPED_S else self.until_s

    def transform(self) -> Optional[Transform]:
        """Maps points of the source into the target; None while tf does not have it, or it is none (see ``cause``)."""
        if self._transform is None and self.available:
            try:
                if self.target == self.source:
                    self._transform = SAME
                else:
                    self._transform = transform_of(
                        self._lookup.poses.buffer.lookup_transform_core(self.target, self.source, self.at)
                    )
            except (tf2_ros.TransformException, BadInput, ValueError) as error:
                self.cause = f"the pose of {self.source!r} in {self.target!r} is none: {error}"
        return self._transform

    def settle_transform(self, wait: bool = True) -> Optional[Transform]:
        """Return :attr:`transform` once its result cannot wait any longer; ``cause`` says why there is none.

        Args:
            wait: for a pose that comes late; else it is as late as it may be.
        """
        if wait:
            self._lookup.poses.wait_for_pose(self)
        self.cause = ""
        transform = self.transform()
        if transform is not None:
            self._lookup.note_in_time(self)
        elif not self.cause:
            self.cause = self._lookup.explain_missing(self)
            self._lookup.note_missing(self)
        return transform


class PoseLookup:
    """The look-ups of one kind that a node does, and how late tf is with them.

    Args:
        poses: where they are looked up.
        argument: parameter that names the target, such as ``~world_frame``; empty: there is none.
        carried: results are carried along: they wait no longer than that allows.
    """

    def __init__(self, poses: Poses, argument: str = "", carried: bool = False) -> None:
        self.poses = poses
        self._argument, self._carried = argument, carried
        self._missing: Deque[Pose] = deque(maxlen=4)
        self._late_s: Deque[float] = deque(maxlen=16)
        self._lock = threading.Lock()
        self._worded: Tuple[float, Any, str] = (-math.inf, None, "")
        poses.add_listener(self._watch_missing)

    def look_up(self, target: str, source: str, at: rospy.Time, received_s: float, until_s: float) -> Pose:
        """A pose to be looked up.

        Args:
            target: frame that it maps into.
            source: frame that it maps from.
            at: when; 0: the newest.
            received_s: when its frame arrived, monotonic seconds.
            until_s: how long its result may wait for it.
        """
        return Pose(self, target, source, at, received_s, until_s)

    @property
    def least_late_s(self) -> float:
        """Return the least delay of the newest poses after their frames, seconds."""
        with self._lock:
            return min(self._late_s, default=0.0)

    def note_in_time(self, pose: Pose) -> None:
        """A pose was there when it was wanted."""
        with self._lock:
            self._late_s.append(min(pose.until_s, time.monotonic()) - pose.received_s)

    def note_missing(self, pose: Pose) -> None:
        """A pose was not there in time: see how late it comes."""
        if pose.ahead_s > 0:
            with self._lock:
                self._missing.append(pose)

    def _watch_missing(self) -> None:
        with self._lock:
            wait_share_s = 5.0  # poses that come later than that are not taken for late ones
            for pose in list(self._missing):
                late_s, available = time.monotonic() - pose.received_s, pose.available
                if available or late_s > wait_share_s:
                    self._missing.remove(pose)
                if available and late_s <= wait_share_s:
                    self._late_s.append(late_s)

    def explain_missing(self, pose: Pose) -> str:
        """Explain why tf does not have a pose, and the remedy; looked up once a second at most."""
        key = (pose.target, pose.source)
        looked_s, before, cause = self._worded
        if before != key or time.monotonic() - looked_s > 1.0:
            cause = self._find_cause(pose)
            self._worded = (time.monotonic(), key, cause)
        return cause

    def _find_cause(self, pose: Pose) -> str:
        if not pose.source:
            return "it has no frame_id; have the driver write header.frame_id"
        frames = self.poses.list_frames()
        if not frames:
            return "nobody publishes tf; start what does (robot_state_publisher, static_transform_publisher)"
        if pose.target not in frames or pose.source not in frames:
            return self._cause_of_names(pose, frames)
        ahead_s = pose.ahead_s
        if math.isnan(ahead_s):
            roots = f"{self.poses.find_root(pose.target)!r} and {self.poses.find_root(pose.source)!r}"
            return (
                f"{pose.target!r} and {pose.source!r} are in two trees of tf, which hang on {roots}; "
                "publish what joins them (localisation, static_transform_publisher)"
            )
        if ahead_s <= 0:
            return (
                f"its stamp is {-ahead_s:.1f} s older than the newest pose, and tf has none of then; "
                "set both clocks by NTP (chrony), or start tf before the frames"
            )
        return self._cause_of_lateness(pose, ahead_s)

    def _cause_of_names(self, pose: Pose, frames: List[str]) -> str:
        missing = [name for name in (pose.target, pose.source) if name not in frames]
        most = 12
        shown = ", ".join(frames[:most])
        more = f" and {len(frames) - most} more" if len(frames) > most else ""
        what = " and ".join(f"no frame {name!r}" for name in missing)
        named = [pose.target] if self._argument else []
        how = [f"name one as {self._argument}" for name in missing if name in named]
        how += [f"publish where {name!r} is (static_transform_publisher)" for name in missing if name not in named]
        return f"{what}: tf has these: {shown}{more}; {', and '.join(how)}"

    def _cause_of_lateness(self, pose: Pose, ahead_s: float) -> str:
        waited_s = max(0.0, pose.until_s - pose.received_s)
        with self._lock:
            late_s = max((late_s for late_s in self._late_s if late_s > waited_s), default=math.nan)
        if ahead_s >= STOPPED_S and not late_s >= ahead_s:
            return f"the newest pose is {ahead_s:.1f} s older; is its publisher running, and by the same clock (NTP)?"
        late_s = max(ahead_s, waited_s) if math.isnan(late_s) else late_s
        enough = math.ceil(late_s * 1.2 / 0.05) * 0.05
        if self._carried:
            cause = f"late by {late_s * 1e3:.0f} ms, and carried results wait {waited_s * 1e3:.0f} ms at most"
            return f"{cause}: have tf published sooner, or give ~carry:=false and ~tf_wait:={enough:.2g}"
        return f"late by {late_s * 1e3:.0f} ms: give ~tf_wait:={enough:.2g}"
