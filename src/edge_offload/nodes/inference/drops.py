"""Measures the accuracy that a node's results lose with staleness; published on ``offload/drop`` and /diagnostics."""

from __future__ import annotations

import math
import threading
import time
from typing import Any, Callable, Dict, Tuple

import rospy
from std_msgs.msg import Header

from edge_offload.manager.drop import DropCurve, DropEstimator
from edge_offload.nodes.common.health import Health
from edge_offload.nodes.inference.compose import ros_duration
from edge_offload.nodes.inference.intake import Frame
from edge_offload.perception.timeline import Instant, stamp_of
from edge_offload_msgs.msg import Drop


class Drops:
    """Publishes comparisons. Of results held from one to the next, :meth:`compare_results` also makes them.

    Args:
        task: what the node does.
        health: is told the newest curve.
        interval_s: seconds between frames; NaN or 0: not known.
    """

    def __init__(self, task: str, health: Health, interval_s: Callable[[], float]) -> None:
        self._task, self._health, self._interval_s = task, health, interval_s
        self._estimator = DropEstimator()
        self._last: Dict[str, Tuple[Instant, Any]] = {}
        self._lock = threading.Lock()
        self._curve = self._estimator.curve(time.monotonic())
        self._publisher = rospy.Publisher("offload/drop", Drop, queue_size=100)

    def compare_results(self, frame: Frame, result: Any, drop: Callable[[Any, Any], float]) -> None:
        """Compare the newest result of a camera, as it is held, with the one for ``frame``; hold that from now on.

        Args:
            frame: it.
            result: the network's result for it.
            drop: of two results for the same frame, 0 to 1.
        """
        instant, last = frame.instant, self._last.get(frame.camera)
        self._last[frame.camera] = (instant, result)
        if last is None or last[0].recording != instant.recording:
            return
        stale_s = (instant - last[0]) * 1e-9
        if 0 < stale_s < 10.0:  # seconds; longer is not believed
            lost, now = drop(last[1], result), time.monotonic()
            self._estimator.add_comparison(now, stale_s, lost)
            self.publish_drop(instant, stale_s, lost, self._estimator.curve(now))

    def publish_drop(self, instant: int, stale_s: float, drop: float, curve: DropCurve) -> None:
        """One comparison, for the frame of this ``instant`` (ns), and what is expected since then."""
        with self._lock:
            self._curve = curve
        self._publisher.publish(
            Drop(
                header=Header(stamp=rospy.Time(*divmod(stamp_of(instant), 10**9))),
                task=self._task, node=rospy.get_name(),
                intercept=curve.intercept, slope=curve.slope, slope_error=curve.slope_error,
                local=math.nan if curve.local is None else curve.local, drop=drop, staleness=ros_duration(stale_s),
                interval=ros_duration(self._interval_s()),
            )
        )  # fmt: skip

    def refresh(self) -> None:
        with self._lock:
            curve = self._curve
        local = "" if curve.local is None else f", local algorithm {curve.local:.2f}"
        self._health.value("drop", f"{curve.intercept:.2f} + {curve.slope:.2f}/s{local}")
