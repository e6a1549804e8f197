#!/usr/bin/env python3
"""The manager obeys offload/bandwidth, published by hand, and says so when the topic is silent or cannot be right."""

import sys
import time
import unittest

import rospy
import rostest
from diagnostic_msgs.msg import DiagnosticArray

from edge_offload_msgs.msg import Bandwidth, Forecast, OffloadMode

MB = 1e6
#: Seconds of a frame: all of local; the others without the link. Replay takes what server takes, within the margin.
LOCAL_S, SERVER_S, REPLAY_S, SPLIT_S = 0.2, 0.02, 0.0205, 0.05
#: Bytes of a frame in modes server and replay, and in mode split.
SERVER_B, SPLIT_B = 200_000, 60_000


class Obedience(unittest.TestCase):
    def setUp(self):
        rospy.init_node("manager_rostest")
        self.mode = self.status = None
        rospy.Subscriber("offload/mode", OffloadMode, lambda message: setattr(self, "mode", message))
        rospy.Subscriber("/diagnostics", DiagnosticArray, self.note_diagnostics)
        self.forecasts = rospy.Publisher("offload/forecast", Forecast, queue_size=10)
        self.bandwidth = rospy.Publisher("offload/bandwidth", Bandwidth, queue_size=10)
        topics = (self.forecasts, self.bandwidth)
        self.until(lambda: all(topic.get_num_connections() for topic in topics), None, "the manager's start")

    def note_diagnostics(self, message):
        for status in message.status:
            if status.name.startswith("offload_manager_node"):
                self.status = status

    def until(self, condition, topic_mb, what, transfers_mb=10.0, age_s=30.0, timeout_s=30.0):
        """Frames go on, with the topic at a rate (MB/s; None: silent), until ``condition``."""
        ends = time.monotonic() + timeout_s
        while time.monotonic() < ends:
            rate = transfers_mb * MB
            if topic_mb is not None:
                self.bandwidth.publish(
                    Bandwidth(connected=True, source=Bandwidth.ACTIVE, uplink=topic_mb * MB, downlink=topic_mb * MB,
                              uplink_error=0.1, downlink_error=0.1, samples=9)
                )  # fmt: skip
            remote_s = [SERVER_S + SERVER_B / rate, REPLAY_S + SERVER_B / rate, SPLIT_S + SPLIT_B / rate]
            seconds = [LOCAL_S, *remote_s]
            self.forecasts.publish(
                Forecast(mode=["local", "server", "replay", "split"],
                         latency=[rospy.Duration(0, int(s * 1e9)) for s in seconds],
                         error=[rospy.Duration(0, 10**6)] * 4, doubt=[rospy.Duration()] * 4, energy=[1.0] * 4,
                         obstacle=[""] * 4, bytes_up=[0, SERVER_B, SERVER_B, SPLIT_B], bytes_down=[0, 100, 100, 100],
                         server_load=float("nan"), uplink=rate, downlink=rate, link_error=0.1,
                         link_age=rospy.Duration.from_sec(age_s))
            )  # fmt: skip
            if condition():
                return
            time.sleep(0.05)
        raise AssertionError(f"{what} did not happen; the manager says {self.mode}, {self.status}")

    def chose(self, mode):
        return lambda: self.mode is not None and self.mode.mode == mode

    def warns(self, text):
        return lambda: self.status is not None and self.status.level == 1 and text in self.status.message

    def test_the_mode_follows_the_topic_and_its_failures_are_reported(self):
        self.until(self.chose("replay"), 20.0, "mode replay on a fast link")
        self.until(self.chose("split"), 1.0, "mode split on a slow link")
        assert "1.0 MB/s±10% up by offload/bandwidth, local 200" in self.mode.reason, self.mode.reason
        self.until(self.chose("local"), 0.1, "mode local on a link that is hardly there")
        assert "0.10 MB/s" in self.mode.reason, self.mode.reason
        self.until(self.chose("replay"), 20.0, "the return to mode replay")
        # the topic dies: what frames measure themselves counts, and it is told
        self.until(self.warns("offload/bandwidth has been silent"), None, "the word on a silent topic")
        self.until(self.chose("split"), None, "mode split by the transfers", transfers_mb=1.0, age_s=0.0)
        assert "1.0 MB/s±10% up by the frames' transfers" in self.mode.reason, self.mode.reason
        # it comes back and says what the transfers of this moment contradict: they count
        self.until(self.warns("the latter count"), 20.0, "the word on a contradiction", transfers_mb=1.0, age_s=0.0)
        assert self.mode.mode == "split"
        self.until(self.chose("replay"), 20.0, "obedience once the transfers are old", transfers_mb=1.0)
        self.until(lambda: self.status.level == 0, 20.0, "the end of the warning", transfers_mb=1.0)


if __name__ == "__main__":
    rostest.rosrun("edge_offload", "manager", Obedience, sys.argv)
