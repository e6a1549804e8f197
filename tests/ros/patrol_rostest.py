#!/usr/bin/env python3
"""Networks take turns at one server, by the manager's word and, while it is away, by themselves; one is the user's."""

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

from edge_offload_msgs.msg import Drop, Latency, ObjectArray, OffloadMode, PersonArray, SemanticGrid, Turn

TASKS = ("people", "scene", "objects")


class Patrol(unittest.TestCase):
    def setUp(self):
        rospy.init_node("patrol_rostest")
        self.lock, self.got = threading.Lock(), {}
        #: Nodes whose frame is under way, since when there are two, and the most there ever were.
        self.out, self.two_since, self.most = set(), None, 0
        for topic, kind in (
            ("kapao/people", PersonArray), ("agrnav/semantic_grid", SemanticGrid), ("offload/latency", Latency),
            ("offload/turn", Turn), ("offload/turn_taken", Turn), ("offload/drop", Drop),
            ("detector/objects", ObjectArray),
            ("/diagnostics", DiagnosticArray), *((f"offload/mode/{task}", OffloadMode) for task in TASKS),
        ):  # fmt: skip
            self.got[topic] = []
            rospy.Subscriber(
                topic, kind, lambda message, topic=topic: self.store_message(topic, message), queue_size=1000
            )
        self.images = rospy.Publisher("camera/image_raw", Image, queue_size=100)
        self.ends = time.monotonic() + 150.0
        threading.Thread(target=self.film, daemon=True).start()

    def store_message(self, topic, message):
        with self.lock:
            self.got[topic].append(message)
            if topic == "offload/turn_taken":
                (self.out.discard if message.state == Turn.ENDED else self.out.add)(message.node)
                self.count(time.monotonic())

    def count(self, now):
        """That one has ended may be heard just after the other has begun; a frame of people takes 100 ms and more."""
        if len(self.out) < 2:
            lasted = 0.0 if self.two_since is None else now - self.two_since
            self.two_since = None
            self.most = max(self.most, 2 if lasted > 0.06 else len(self.out))
        elif self.two_since is None:
            self.two_since = now

    def film(self):
        pixels = np.zeros((96, 128, 3), dtype=np.uint8)
        step = 0
        while not rospy.is_shutdown():
            step += 1
            image = pixels.copy()
            image[40:60, 10 + step % 90 : 30 + step % 90] = 255
            header = Header(stamp=rospy.Time.now(), frame_id="camera")
            self.images.publish(Image(header, 96, 128, "bgr8", 0, 384, image.tobytes()))
            time.sleep(0.1)

    def until(self, condition, what):
        while time.monotonic() < self.ends:
            if condition():
                return
            time.sleep(0.05)
        with self.lock:
            seen = {topic: len(messages) for topic, messages in self.got.items()}
        raise AssertionError(f"{what} did not happen in time; heard: {seen}")

    def turns(self, since=0, unmanaged=False):
        """Tasks whose turns were taken, in their order."""
        with self.lock:
            taken = [turn for turn in self.got["offload/turn_taken"][since:] if turn.state == Turn.TAKEN]
        return [turn.task for turn in taken if (turn.number == 0) == unmanaged]

    def both(self, number, since=0, unmanaged=False):
        return lambda: all(self.turns(since, unmanaged).count(task) >= number for task in TASKS)

    def now(self):
        with self.lock:
            return len(self.got["offload/turn_taken"])

    def wait_status(self, node, text):
        def reported():
            with self.lock:
                statuses = [one for message in self.got["/diagnostics"][-20:] for one in message.status]
            return any(node in one.name and text in one.message for one in statuses)

        return reported

    def test_turns_with_and_without_a_manager(self):
        self.until(self.both(5), "five turns of each task")
        with self.lock:
            given = [turn for turn in self.got["offload/turn"] if turn.number]
            numbers = [turn.number for turn in given]
            last = given[-1]
        assert numbers == sorted(numbers), "turns are numbered"
        assert sorted(last.nodes) == ["/agrnav_node", "/detector_node", "/kapao_node"]
        assert len(last.latency) == 3
        assert "gained" in last.reason, last.reason
        assert "people" in last.reason
        assert "times 2" in last.reason, "the weight is in the reason"
        assert self.most == 1, "never two offloads are outstanding"
        for topic in (f"offload/mode/{task}" for task in TASKS):
            self.until(lambda topic=topic: self.got[topic] and self.got[topic][-1].mode == "server", topic)
        self.until(lambda: {drop.task for drop in self.got["offload/drop"]} == set(TASKS), "drops of all")
        drop = next(drop for drop in self.got["offload/drop"] if drop.task == "people")
        assert 0 < drop.staleness.to_sec() < 10
        assert 0 <= drop.drop <= 1
        # the manager dies: nodes go on by themselves, and say so
        manager = rosgraph.Master("patrol_rostest").lookupNode("/offload_manager_node")
        pid = xmlrpc.client.ServerProxy(manager).getPid("patrol_rostest")[2]
        os.kill(pid, signal.SIGSTOP)
        since = self.now()
        try:
            self.until(self.both(3, since, unmanaged=True), "three turns of each without a manager")
            self.until(self.wait_status("kapao_node", "take turns by themselves"), "the word of it on /diagnostics")
            with self.lock:
                unmanaged = [turn for turn in self.got["offload/turn_taken"] if not turn.number]
            assert "manager" in unmanaged[0].reason
        finally:
            os.kill(pid, signal.SIGKILL)
        # it is started again
        since = self.now()
        self.until(self.both(3, since), "three turns of each by the new manager")
        assert self.most == 1, "not even while managers change"
        for topic in ("kapao/people", "agrnav/semantic_grid"):
            self.has_one_result_for_each(topic)
        with self.lock:
            objects = [message.header.stamp.to_nsec() for message in self.got["detector/objects"]]
        assert objects == sorted(set(objects)), "the third network's results are not carried, and one for each"

    def has_one_result_for_each(self, topic):
        """Results are carried along: each frame has one, in order, and not each has an inference."""
        with self.lock:
            results = list(self.got[topic])
            seen = {message.header.stamp.to_nsec() for message in self.got["offload/latency"]}
        stamps = [message.header.stamp.to_nsec() for message in results]
        assert stamps == sorted(set(stamps)), f"{topic}: results are doubled, or out of order"
        assert any(message.result.origin == "carried" for message in results), topic
        for message in results:
            source = message.result.seen.to_nsec()
            assert source <= message.header.stamp.to_nsec(), topic
            assert message.result.origin not in ("fresh", "carried") or source in seen, f"{topic}: who saw it?"
        assert len(seen.intersection(stamps)) < len(stamps), topic


if __name__ == "__main__":
    rostest.rosrun("edge_offload", "patrol", Patrol, sys.argv)
