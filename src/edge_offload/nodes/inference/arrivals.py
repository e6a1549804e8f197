"""Frames as they arrive: the instant of each, and what /diagnostics says of their stamps."""

from __future__ import annotations

import threading
from typing import Any

import rospy

from edge_offload.nodes.common.health import Health
from edge_offload.perception import timeline
from edge_offload.perception.timeline import Instant, Timeline

FAULTS = {
    timeline.ZERO: "are 0; have the driver write the time of capture into header.stamp",
    timeline.STANDING: "are that of the message before; have the driver stamp each one, or publish /clock more often",
    timeline.BACKWARD: "are older than that of the message before; have the driver publish in the order of capture",
    timeline.JUMP: "are far off those around them; check the clock of the driver (chronyc tracking)",
    timeline.FUTURE: "are ahead of the clock of this machine; set both clocks by NTP (chrony)",
}
"""What is told of stamps, by what is wrong with them."""


class Arrivals:
    """Gives the frames of one topic their instants, and tells of stamps that are not plausible.

    Args:
        health: where that is told.
        what: the messages are, such as images.
    """

    def __init__(self, health: Health, what: str) -> None:
        self._health, self._what = health, what
        self._timeline = Timeline()
        self._recording = 0
        self._lock = threading.Lock()

    def instant(self, header: Any, received_s: float) -> Instant:
        """The instant of the message with ``header`` that came at ``received_s`` (monotonic seconds)."""
        with self._lock:
            found = self._timeline.instant(header.stamp.to_nsec(), received_s, _clock_ns())
        if found.recording != self._recording:
            self._recording = found.recording
            self._health.count("recordings that began anew")
        return found

    def refresh(self) -> None:
        """Tell of the newest stamps. Call it about once a second."""
        with self._lock:
            faults, counted = self._timeline.faults.most_common(), self._timeline.counted
        if not faults:
            self._health.clear("stamps")
            return
        causes = ", ".join(f"{count} {FAULTS[fault]}" for fault, count in faults)
        self._health.warn("stamps", f"stamps of the last {counted} {self._what}: {causes}")


def tf_time(header: Any, instant: Instant) -> rospy.Time:
    """The time at which tf is asked for poses of a frame: its stamp, or the newest there is (0)."""
    return header.stamp if instant.placeable else rospy.Time()


def _clock_ns() -> int:
    """The ROS clock; 0 while there is none."""
    return int(rospy.Time.now().to_nsec()) if rospy.rostime.is_rostime_initialized() else 0
