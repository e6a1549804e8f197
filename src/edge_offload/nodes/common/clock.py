"""ROS clock that may stand still: with ``/use_sim_time`` it follows the messages on ``/clock``."""

from __future__ import annotations

import threading
import time
from typing import Optional

import rospy

from edge_offload.nodes.common.health import Health

REMEDY = (
    "start what publishes /clock (rosbag play --clock, the simulator), or rosparam set /use_sim_time false and restart"
)


class ClockWatch:
    """Tells on /diagnostics when the ROS clock does not run.

    Args:
        health: where that is told.
    """

    def __init__(self, health: Health) -> None:
        self._health = health
        self._last: Optional[rospy.Time] = None
        self._moved_s = time.monotonic()

    @property
    def problem(self) -> str:
        """Cause why the clock gives no time, and the remedy; empty: it runs."""
        if not rospy.rostime.is_rostime_initialized() or rospy.rostime.is_wallclock():
            return ""
        now = rospy.Time.now()
        if now != self._last:
            self._last, self._moved_s = now, time.monotonic()
        if not now:
            return f"no time: /use_sim_time is set and nothing came on /clock; {REMEDY}"
        stood_s = time.monotonic() - self._moved_s
        if stood_s < 3.0:  # seconds of wall time
            return ""
        return f"time stands since {stood_s:.0f} s: /use_sim_time is set and /clock does not go on; {REMEDY}"

    def refresh(self) -> None:
        """Tell whether the clock runs. Call it about once a second."""
        problem = self.problem
        if problem:
            self._health.warn("time", problem)
        else:
            self._health.clear("time")


class StampClock:
    """Gives stamps to what a node publishes; waits while there is no time that could be one.

    Args:
        health: where it is told that nothing can be published.
        what: is published, such as frames.
    """

    def __init__(self, health: Health, what: str) -> None:
        self._health, self._what = health, what
        self._watch = ClockWatch(health)

    def wait_for_time(self, stop: threading.Event, since_s: float = 0.0) -> Optional[rospy.Time]:
        """The time now, once the clock runs; None when ``stop`` was set before that.

        Args:
            stop: ends the wait for a clock that stands.
            since_s: monotonic instant whose time is wanted instead, while the ROS clock is the wall's; 0: now.
        """
        problem = self._watch.problem
        while problem:
            self._health.error("stamp", f"no {self._what} can be stamped; {problem}")
            rospy.logerr_throttle(30.0, f"no {self._what} can be stamped; {problem}")
            if stop.wait(0.05):
                return None
            problem = self._watch.problem
        self._health.clear("stamp")
        if not since_s or not rospy.rostime.is_wallclock():
            return rospy.Time.now()
        return rospy.Time.now() - rospy.Duration(nsecs=int(1e9 * max(0.0, time.monotonic() - since_s)))
