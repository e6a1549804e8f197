#!/usr/bin/env python3
"""The graph that kapao_tracking.launch starts does what its topics promise, and outlives its server."""

import os
import signal
import sys
import threading
import time
import unittest
import xmlrpc.client

import numpy as np
import rosgraph
import rospy
import rostest
from diagnostic_msgs.msg import DiagnosticArray
from sensor_msgs.msg import Image
from std_msgs.msg import Header

from edge_offload_msgs.msg import Bandwidth, Latency, OffloadMode, PersonArray, Power, ServerStatus
from edge_offload_msgs.srv import SetMode


class Tracking(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        rospy.init_node("tracking_rostest")
        cls.lock, cls.got = threading.Lock(), {}
        for topic, kind in (
            ("kapao/people", PersonArray), ("offload/latency", Latency), ("offload/mode", OffloadMode),
            ("offload/bandwidth", Bandwidth), ("offload/power", Power), ("server/status", ServerStatus),
            ("server/kapao/people", PersonArray), ("/diagnostics", DiagnosticArray),
        ):  # fmt: skip
            cls.got[topic] = []
            rospy.Subscriber(
                topic, kind, lambda message, topic=topic: cls.store_message(topic, message), queue_size=1000
            )
        cls.images = rospy.Publisher("camera/image_raw", Image, queue_size=100)
        cls.stamps = []
        # the people node and the recorder
        cls.until(lambda: cls.images.get_num_connections() >= 2, "subscribers of the images")

    @classmethod
    def store_message(cls, topic, message):
        with cls.lock:
            cls.got[topic].append(message)

    @classmethod
    def until(cls, condition, what, timeout_s=120.0):
        ends = time.monotonic() + timeout_s
        while time.monotonic() < ends:
            if condition():
                return
            time.sleep(0.05)
        raise AssertionError(f"{what} did not happen within {timeout_s:g} s")

    @classmethod
    def send(cls):
        pixels = np.zeros((96, 128, 3), dtype=np.uint8)
        pixels[40:60, 50:70] = 255
        stamp = rospy.Time.now()
        cls.stamps.append(stamp)
        cls.images.publish(Image(Header(stamp=stamp, frame_id="camera"), 96, 128, "bgr8", 0, 384, pixels.tobytes()))
        time.sleep(0.05)

    def run_until(self, condition, what, timeout_s=120.0):
        def step():
            self.send()
            return bool(self.got["offload/latency"]) and condition(self.got["offload/latency"][-1])

        self.until(step, what, timeout_s)

    def test_the_run_goes_on_through_the_death_and_return_of_the_server(self):
        # the first frames explore: one of them, on the robot by choice, would not notice that the server dies
        self.run_until(
            lambda cost: cost.mode == "server" and self.count("server") > 12,
            "answers of the server, which stands in while replay is learnt",
        )
        cost = self.got["offload/latency"][-1]
        # 93 Mbit/s and 2.6 ms are what the emulated link allows
        assert cost.uplink.to_sec() >= cost.bytes_up / 20e6
        assert cost.emulated_slowdown == 4.0
        for topic in ("offload/mode", "offload/bandwidth", "offload/power", "server/status", "server/kapao/people"):
            self.until(lambda topic=topic: self.got[topic], f"a message on {topic}")

        uri = rosgraph.Master(rospy.get_name()).lookupNode("/offload_server_node")
        _, _, pid = xmlrpc.client.ServerProxy(uri).getPid(rospy.get_name())
        before = len(self.got["offload/latency"])
        os.kill(pid, signal.SIGKILL)
        self.run_until(lambda _: self.fell_back(before), "an answer of the robot")
        self.run_until(
            lambda _: self.decided("local", "cannot run (no server"), "the policy's word that it looks elsewhere"
        )
        self.until(self.warned, "the warning on /diagnostics, although nothing asks for the server now")
        # roslaunch starts it again
        self.run_until(lambda cost: cost.mode != "local" and cost.round_trips, "the server's return")
        # while plans are made the server stands in, on a machine that is full for two minutes
        situation = "mode replay, once it is learnt"
        self.run_until(lambda cost: cost.mode == "replay" and cost.round_trips == 1, situation, 200.0)
        assert "auto" not in {cost.mode for cost in self.got["offload/latency"]}, "auto is a policy, never a mode"

        call = rospy.ServiceProxy("offload/set_mode", SetMode)
        assert call("local").ok
        self.run_until(lambda cost: cost.mode == "local" and not cost.fallback_reason, "obedience to the service")
        assert self.got["offload/mode"][-1].mode == "local"

        time.sleep(1.0)
        answered = [message.header.stamp for message in self.got["kapao/people"]]
        assert len(answered) == len(set(answered)), "a frame has two results"
        assert set(answered) <= set(self.stamps), "a result has the stamp of no frame"
        assert answered == [message.header.stamp for message in self.got["offload/latency"]]

    def count(self, mode):
        return sum(cost.mode == mode for cost in list(self.got["offload/latency"]))

    def fell_back(self, since):
        return any(cost.mode == "local" and cost.fallback_reason for cost in self.got["offload/latency"][since:])

    def decided(self, mode, text):
        return any(message.mode == mode and message.policy == "latency" and text in message.reason
                   for message in list(self.got["offload/mode"]))  # fmt: skip

    def warned(self):
        return any(
            status.level == 1 and "no server" in status.message
            for message in list(self.got["/diagnostics"])
            for status in message.status
            if status.name.startswith("kapao_node")
        )


if __name__ == "__main__":
    rostest.rosrun("edge_offload", "tracking", Tracking, sys.argv)
