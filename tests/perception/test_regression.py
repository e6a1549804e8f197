"""A golden goes red for every kind of change that matters, and only then."""

import copy
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_offload import cli
from edge_offload.errors import BadInput
from edge_offload.perception import regression

SHA = "a" * 64


def make(frames=3, people=2, model="movenet"):
    return regression.make_golden(
        model,
        SHA,
        "local",
        [
            {
                "stamp_ns": 10**9 + index * 10**8,
                "results": 1,
                "latencies": 1,
                "people": [
                    regression.person_record(number, (10 * number, 20, 10 * number + 30, 90 + index), 0.5 + number / 10)
                    for number in range(people)
                ],
            }
            for index in range(frames)
        ],
    )


def test_same_run_has_no_differences():
    assert regression.find_differences(make(), make()) == []


@given(st.floats(-0.49, 0.49), st.floats(-9e-4, 9e-4))
def test_within_tolerance_is_the_same(box_shift, score_shift):
    actual = make()
    actual["frames"][1]["people"][0]["box"][2] += box_shift
    actual["frames"][1]["people"][0]["score"] += score_shift
    assert regression.find_differences(make(), actual) == []


def test_of_carried_results_stamps_and_counts_are_compared_and_both_are_counted():
    actual = make()
    for frame, origin in zip(actual["frames"], ("none", "carried")):
        frame.update(origin=origin, people=[])
    assert regression.find_differences(make(), actual) == []
    line = "3 frames, 3 results (1 none, 1 carried: who was found is not compared), 3 inferences"
    assert regression.describe_counts(actual) == line
    assert regression.describe_counts(make()) == "3 frames"
    actual["frames"][1]["results"] = 2
    drop_person({"frames": actual["frames"][1:]})
    assert len(regression.find_differences(make(), actual)) == 2


def test_alongside_carried_results_only_seen_people_are_compared():
    actual = make()
    actual["frames"][0].update(origin="carried", people=[])
    actual["frames"][1]["people"][0].update(box=[0.0, 0.0, 1.0, 1.0], predicted=True)
    assert regression.find_differences(make(), actual) == []
    actual["frames"][1]["people"][1]["box"][0] += 0.6
    assert len(regression.find_differences(make(), actual)) == 1
    assert regression.person_record(1, (0, 0, 1, 1), 0.5) == {"id": 1, "box": [0.0, 0.0, 1.0, 1.0], "score": 0.5}


def scenes(origin=None):
    frames = [
        {"stamp_ns": 10**9 + number * 10**8, "results": 1, "latencies": 1, "labels": [9000, 800, 200 + number]}
        for number in range(3)
    ]
    return regression.make_golden(
        "sconet", SHA, "local", [{**frame, **({"origin": origin} if origin else {})} for frame in frames]
    )


def test_of_scenes_voxels_are_compared_by_label():
    assert regression.find_differences(scenes(), scenes()) == []
    actual = scenes()
    actual["frames"][1]["labels"] = [9002, 799, 200]  # 4 of 1001
    assert regression.find_differences(scenes(), actual) == []
    actual["frames"][1]["labels"] = [9000, 798, 205]
    (difference,) = regression.find_differences(scenes(), actual)
    assert difference == "frame 1 (stamp 1100000000 ns): 6 voxels have other labels, of 1001 that are full"
    actual["frames"][1]["labels"] = []
    assert "voxels of 0 labels" in regression.find_differences(scenes(), actual)[0]
    assert regression.describe_content(scenes()) == "3003 full voxels"
    assert regression.describe_content(make()) == "6 people"


def test_of_carried_scenes_stamps_and_counts_are_compared():
    actual = scenes("carried")
    for frame in actual["frames"]:
        frame["labels"] = [10000, 0, 0]
    assert regression.find_differences(scenes(), actual) == []
    assert "what was found is not compared" in regression.describe_counts(actual)
    actual["frames"][2]["results"] = 0
    assert len(regression.find_differences(scenes(), actual)) == 1


def test_people_are_not_compared_with_scenes():
    actual = {**scenes(), "model": "movenet"}
    assert regression.find_differences(make(), actual) == ["the golden holds people, this run found labels"]


def restamp(record):
    record["frames"][1]["stamp_ns"] += 1


def drop_frame(record):
    del record["frames"][1]


def drop_person(record):
    record["frames"][1]["people"].pop()


def change_id(record):
    record["frames"][1]["people"][0]["id"] = 77


def move_box(record):
    record["frames"][1]["people"][0]["box"][0] += 0.6


def nan_box(record):
    record["frames"][1]["people"][0]["box"][0] = float("nan")


def change_score(record):
    record["frames"][1]["people"][0]["score"] += 2e-3


def duplicate_result(record):
    record["frames"][1]["results"] = 2


def lose_latency(record):
    record["frames"][1]["latencies"] = 0


def change_model(record):
    record["model"] = "kapao_s"


def change_weights(record):
    record["weights_sha256"] = "b" * 64


@pytest.mark.parametrize(
    "damage",
    [
        restamp, drop_frame, drop_person, change_id, move_box, nan_box, change_score, duplicate_result, lose_latency,
        change_model, change_weights,
    ],
    ids=lambda function: function.__name__,
)  # fmt: skip
def test_goes_red(damage):
    actual = copy.deepcopy(make())
    damage(actual)
    assert regression.find_differences(make(), actual)


def test_where_it_ran_does_not_matter():
    actual = make()
    actual["mode"] = "server"
    assert regression.find_differences(make(), actual) == []


def test_missing_and_broken_files_name_the_cause(tmp_path):
    with pytest.raises(BadInput, match="--update"):
        regression.load_golden(tmp_path / "none.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(BadInput, match="not JSON"):
        regression.load_golden(tmp_path / "broken.json")
    (tmp_path / "other.json").write_text('{"model": "movenet"}')
    with pytest.raises(BadInput, match="weights_sha256"):
        regression.load_golden(tmp_path / "other.json")


@pytest.mark.process
def test_a_node_that_cannot_start_is_reported_in_one_line(tmp_path, monkeypatch, capsys):
    roslaunch = tmp_path / "roslaunch"
    text = r"progress movenet: 7 results in 3 s: local, 90 ms\n"
    text += r"\033[31m[CRITICAL] [1]: cannot start: no weights; apt install npm\033[0m\ndone\n"
    roslaunch.write_text(f"#!/bin/sh\nprintf '{text}'\n")
    roslaunch.chmod(0o755)
    bag = tmp_path / "walk.bag"
    bag.write_bytes(b"#ROSBAG V2.0\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert cli.main(["regress", str(bag), "--golden", str(tmp_path / "walk.json"), "--update"]) == 1
    progress, line = capsys.readouterr().err.splitlines()
    assert progress == "edge-offload regress: movenet: 7 results in 3 s: local, 90 ms"
    assert "a node cannot start: no weights; apt install npm" in line
    assert "\x1b" not in line
