#!/usr/bin/env python3
"""The committed goldens are what the people node and the scene node give, and misbehaviour of any kind is noticed."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import rostest

from edge_offload_benchmarks.ports import lasting_port

FOLDER = pathlib.Path(__file__).resolve().parent
GOLDEN = FOLDER / "golden_movenet.json"
STREET, SCENES = FOLDER / "bags" / "street.bag", FOLDER / "golden_street.json"
FRAMES = ("--first", "300", "--every", "2", "--frames", "16")
"""What the golden was made from."""

FAULTS = {2: "restamp", 4: "alter", 5: "score", 7: "lose_person", 9: "drop", 11: "drop_latency", 13: "duplicate"}
"""What the fake node does wrong, by index of the frame."""


class Regress(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="edge_offload-regress-"))
        cls.bag = cls.folder / "sample.bag"
        made = subprocess.run(
            ["edge-offload", "sample-bag", *FRAMES, str(cls.bag)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if made.returncode:
            raise unittest.SkipTest(f"no sample video here, nothing to step through: {made.stdout.decode()}")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder, ignore_errors=True)

    def regress(self, *more, bag=None, golden=GOLDEN):
        done = subprocess.run(
            ["edge-offload", "regress", str(bag or self.bag), "--golden", str(golden), *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        return done.returncode, done.stdout.decode()

    def test_people_node_gives_the_golden(self):
        code, text = self.regress()
        assert code == 0, text
        assert "16 frames, model movenet: the same" in text

    def test_scene_node_gives_the_golden(self):
        code, text = self.regress("--launch", "results:=scenes", "cells:=64", bag=STREET, golden=SCENES)
        assert code == 0, text
        assert "3 frames, model sconet: the same" in text

    def test_carried_results_are_counted_one_for_each_frame_and_inference(self):
        code, text = self.regress("--launch", "carry:=true")
        assert code == 0, text
        pattern = r"{0} frames, {0} results \(.*: {1} was found is not compared\), {0} inferences.*: the same"
        assert re.search(pattern.format(16, "who"), text), text
        launch = ("results:=scenes", "cells:=64", "carry:=true")
        code, text = self.regress("--launch", *launch, bag=STREET, golden=SCENES)
        assert code == 0, text
        assert re.search(pattern.format(3, "what"), text), text

    def test_other_model_is_refused(self):
        code, text = self.regress("--frames", "2", "--launch", "model:=kapao_n")
        assert code == 1, text
        assert "golden was made with movenet, this run used kapao_n" in text

    def outcome(self, faults):
        out = self.folder / "outcome.json"
        out.unlink(missing_ok=True)
        port = lasting_port()
        arguments = {"bag": self.bag, "out": out, "golden": GOLDEN, "faults": faults}
        done = subprocess.run(
            ["roslaunch", "-p", str(port), str(FOLDER / "regress_fault.launch")]
            + [f"{key}:={value}" for key, value in arguments.items()],
            env={**os.environ, "ROS_MASTER_URI": f"http://localhost:{port}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        assert out.is_file(), done.stdout.decode()
        return json.loads(out.read_text())

    def test_honest_node_passes_and_each_fault_goes_red(self):
        from edge_offload.perception import regression

        golden = regression.load_golden(GOLDEN)
        differences = regression.find_differences(golden, self.outcome("none:none"))
        assert differences == [], differences
        differences = regression.find_differences(
            golden, self.outcome(",".join(f"{i}:{fault}" for i, fault in FAULTS.items()))
        )
        for index, fault in FAULTS.items():
            assert any(line.startswith(f"frame {index} ") for line in differences), (
                f"fault {fault} went unnoticed: {differences}"
            )
        damaged = {line.split()[1] for line in differences if "no frame has" not in line}
        assert damaged == {str(index) for index in FAULTS}, differences


if __name__ == "__main__":
    rostest.rosrun("edge_offload", "regress", Regress, sys.argv)
