#!/usr/bin/env python3
"""Clouds of a bag become the grids and paths of the committed golden, in every mode; the modes agree to the bit.

Made anew by ``scenes_rostest.py --update`` under the same launch file, when a change of the results is meant.
"""

import json
import pathlib
import sys
import threading
import time
import unittest

import numpy as np
import rosbag
import rospy
import rostest
from nav_msgs.msg import OccupancyGrid, Path
from sensor_msgs.msg import PointCloud2

from edge_offload.nodes.scene.scene_messages import labels_of
from edge_offload_msgs.msg import Latency, SemanticGrid
from edge_offload_msgs.srv import SetMode

FOLDER = pathlib.Path(__file__).resolve().parent
BAG, GOLDEN = FOLDER / "bags" / "street.bag", FOLDER / "golden_scenes.json"
#: What another processor's kernels may change: so many voxels of those that are full, and metres of a path's length.
VOXELS, METRES = 0.005, 0.5


def summary(grid, occupancy, path):
    """What is held against the golden: voxels by label, cells by state, the path's cells."""
    labels = np.bincount(labels_of(grid).ravel(), minlength=len(grid.labels)).tolist()
    cells = np.array(occupancy.data)
    spots = [[round(pose.pose.position.x, 2), round(pose.pose.position.y, 2)] for pose in path.poses]
    return {
        "labels": labels,
        "cells": {str(value): int((cells == value).sum()) for value in (-1, 0, 100)},
        "path": spots,
    }


def length(spots):
    """Metres along a path."""
    return float(np.linalg.norm(np.diff(np.array(spots), axis=0), axis=1).sum()) if len(spots) > 1 else 0.0


class Scenes(unittest.TestCase):
    def setUp(self):
        rospy.init_node("scenes_rostest")
        self.lock, self.got = threading.Lock(), {}
        for kind, topic in ((SemanticGrid, "agrnav/semantic_grid"), (OccupancyGrid, "agrnav/occupancy"),
                            (Path, "agrnav/path"), (Latency, "offload/latency")):  # fmt: skip
            rospy.Subscriber(
                topic, kind, lambda message, topic=topic: self.store_message(topic, message), buff_size=2**24
            )
        self.clouds = rospy.Publisher("/walk/points", PointCloud2, queue_size=4)
        with rosbag.Bag(str(BAG)) as bag:
            self.sweeps = [message for _, message, _ in bag.read_messages()]
        self.call = rospy.ServiceProxy("offload/set_mode", SetMode)
        self.until(lambda: self.clouds.get_num_connections() > 0, "the LiDAR's node")
        rospy.wait_for_service("offload/set_mode", 60)

    def store_message(self, topic, message):
        with self.lock:
            self.got[topic, message.header.stamp.to_nsec()] = message

    def until(self, condition, what, timeout_s=90.0, every_s=0.02):
        ends = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < ends, f"{what} did not happen"
            time.sleep(every_s)

    def result(self, sweep):
        """Grid, slice, path and cost of one sweep, sent as of now until it is answered."""
        topics = ("agrnav/semantic_grid", "agrnav/occupancy", "agrnav/path", "offload/latency")
        stamp = 0

        def answered():
            nonlocal stamp
            if stamp and all((topic, stamp) in self.got for topic in topics):
                return True
            if not stamp or time.monotonic() - sent > 20.0:
                send()
            return False

        def send():
            nonlocal stamp, sent
            sweep.header.stamp = rospy.Time.now()
            stamp, sent = sweep.header.stamp.to_nsec(), time.monotonic()
            self.clouds.publish(sweep)

        sent = 0.0
        self.until(answered, "the result of a sweep")
        return [self.got[topic, stamp] for topic in topics]

    def walk(self, mode):
        """Every sweep in ``mode``, once it can run."""
        assert self.call(mode).ok
        self.until(lambda: self.result(self.sweeps[0])[3].mode == mode, f"a result in mode {mode}", 150.0)
        return [self.in_mode(mode, sweep) for sweep in self.sweeps]

    def in_mode(self, mode, sweep):
        """One sweep's result in ``mode``, sent once more if the robot helped out."""
        for _ in range(5):
            result = self.result(sweep)
            if result[3].mode == mode:
                return result
            assert result[3].fallback_reason, f"{result[3].mode} instead of {mode}, without a reason"
        raise AssertionError(f"never in mode {mode}: {result[3].fallback_reason}")

    def test_grids_and_paths_are_those_of_the_golden_in_every_mode(self):
        local = self.walk("local")
        made = [summary(*messages[:3]) for messages in local]
        if "--update" in sys.argv:
            GOLDEN.write_text(json.dumps(made) + "\n", encoding="utf-8")
        golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
        assert len(golden) == len(made) == len(self.sweeps)
        for number, (golden_scene, made_scene) in enumerate(zip(golden, made)):
            full = sum(golden_scene["labels"][1:])
            changed = np.abs(np.subtract(golden_scene["labels"], made_scene["labels"])).sum()
            assert changed <= VOXELS * full, f"sweep {number}: {changed} of {full} voxels have other labels"
            for value, cells in golden_scene["cells"].items():
                assert abs(cells - made_scene["cells"][value]) <= VOXELS * 64 * 64, f"sweep {number}: cells {value}"
            assert abs(length(golden_scene["path"]) - length(made_scene["path"])) <= METRES, (
                f"sweep {number}: the path's length"
            )
            assert bool(golden_scene["path"]) == bool(made_scene["path"]), f"sweep {number}: a path"
        for mode in ("server", "replay"):
            for number, (theirs, ours) in enumerate(zip(self.walk(mode), local)):
                np.testing.assert_array_equal(labels_of(theirs[0]), labels_of(ours[0]), f"{mode}, sweep {number}")
                assert theirs[1].data == ours[1].data, f"{mode}, sweep {number}: the slice"
                assert len(theirs[2].poses) == len(ours[2].poses), f"{mode}, sweep {number}: the path"


if __name__ == "__main__":
    rostest.rosrun("edge_offload", "scenes", Scenes, sys.argv)
