#!/usr/bin/env python3
"""In mode replay every frame has one result for one round trip, through the death and return of the server."""

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
from sensor_msgs.msg import Image
from std_msgs.msg import Header

from edge_offload_msgs.msg import Latency, PersonArray


class Replay(unittest.TestCase):
    def setUp(self):
        rospy.init_node("replay_rostest")
        self.lock, self.costs, self.people, self.stamps = threading.Lock(), [], [], []
        rospy.Subscriber(
            "offload/latency", Latency, lambda message: self.store_message(self.costs, message), queue_size=1000
        )
        rospy.Subscriber(
            "kapao/people", PersonArray, lambda message: self.store_message(self.people, message), queue_size=1000
        )
        self.images = rospy.Publisher("camera/image_raw", Image, queue_size=100)
        self.until(lambda: self.images.get_num_connections() >= 2, "subscribers of the images")

    def store_message(self, messages, message):
        with self.lock:
            messages.append(message)

    def until(self, condition, what, timeout_s=120.0):
        ends = time.monotonic() + timeout_s
        while time.monotonic() < ends:
            if condition():
                return
            time.sleep(0.05)
        last = [(cost.mode, cost.round_trips, cost.fallback_reason) for cost in self.costs[-3:]]
        raise AssertionError(f"{what} did not happen within {timeout_s:g} s; the last frames: {last}")

    def frame(self):
        """Send one image with a spot somewhere, and wait for its cost."""
        pixels = np.zeros((96, 128, 3), dtype=np.uint8)
        x = 20 + len(self.stamps) * 7 % 80
        pixels[40:60, x : x + 20] = 255
        stamp = rospy.Time.now()
        self.stamps.append(stamp)
        self.images.publish(Image(Header(stamp=stamp, frame_id="camera"), 96, 128, "bgr8", 0, 384, pixels.tobytes()))
        self.until(lambda: self.costs and self.costs[-1].header.stamp == stamp, "the result of a frame")
        return self.costs[-1]

    def steady(self):
        costs = [self.frame() for _ in range(8)]
        return all(cost.mode == "replay" and cost.round_trips == 1 and not cost.fallback_reason for cost in costs)

    def test_one_round_trip_per_frame_with_and_after_the_server(self):
        self.until(self.steady, "eight frames in mode replay for one round trip each")
        cost = self.costs[-1]
        assert 0 < cost.bytes_up < 384 * 96
        assert cost.bytes_down > 0
        uri = rosgraph.Master(rospy.get_name()).lookupNode("/offload_server_node")
        _, _, pid = xmlrpc.client.ServerProxy(uri).getPid(rospy.get_name())
        os.kill(pid, signal.SIGKILL)
        self.until(lambda: self.frame().mode == "local", "an answer of the robot")
        assert self.costs[-1].fallback_reason
        # roslaunch starts it again
        self.until(self.steady, "the return to mode replay")
        time.sleep(0.5)
        answered = [message.header.stamp for message in self.people]
        assert answered == self.stamps, "a frame has no result, or two"


if __name__ == "__main__":
    rostest.rosrun("edge_offload", "replay", Replay, sys.argv)
