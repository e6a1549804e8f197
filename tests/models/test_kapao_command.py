"""edge-offload train kapao: data in, weights out, killed and resumed, hostile files, people carried over gaps."""

from __future__ import annotations

import csv
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
from typing import List

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from edge_offload.cli import main
from edge_offload.errors import BadInput
from edge_offload.models.base import PeopleModule, PersonEstimator
from edge_offload.models.checkpoint import read
from edge_offload.models.kapao.checkpoint import facts_of
from edge_offload.models.kapao.network import Kapao, Scale
from edge_offload.models.people import People
from edge_offload.models.registry import build_estimator
from edge_offload_training.kapao import augment, distil, recipe, start
from edge_offload_training.kapao.samples import Dataset


@pytest.fixture
def coco(tmp_path: pathlib.Path) -> List[str]:
    """Eight images with one bright person each, and the arguments that train a tiny network on them."""
    folder = tmp_path / "images"
    folder.mkdir()
    random = np.random.default_rng(0)
    images, annotations = [], []
    for number in range(8):
        image = random.integers(0, 60, (96, 128, 3), dtype=np.uint8)
        x, y = (int(v) for v in random.integers(5, [90, 30]))
        cv2.rectangle(image, (x, y), (x + 20, y + 50), (200, 220, 240), -1)
        cv2.imwrite(str(folder / f"{number}.png"), image)
        images.append({"id": number, "file_name": f"{number}.png"})
        keypoints = np.column_stack([random.uniform(x, x + 20, 17), random.uniform(y, y + 50, 17), np.full(17, 2)])
        annotations.append({"image_id": number, "bbox": [x, y, 20, 50], "keypoints": keypoints.flatten().tolist()})
    labels = tmp_path / "labels.json"
    labels.write_text(json.dumps({"images": images, "annotations": annotations}))
    tiny = ["--size", "128", "--window", "64x64", "--width", "0.0625", "--batch", "4", "--threads", "1"]
    return ["train", "kapao", "--coco", str(labels), "--images", str(folder), "--moving-camera", *tiny]


def curve(folder: pathlib.Path) -> List[List[str]]:
    """Everything in the log but the speed."""
    with (folder / "log.csv").open() as stream:
        return [list(row.values())[:-1] for row in csv.DictReader(stream)]


HANGS = """
import sys, time
from edge_offload.cli import main
from edge_offload_training.kapao import augment

make, count = augment.make, 0

def hang_in_the_third_epoch(*args):
    global count
    count += 1
    if count > 21:
        print("hanging", flush=True)
        time.sleep(3600)
    return make(*args)

augment.make = hang_in_the_third_epoch
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.process
def test_a_training_killed_amid_an_epoch_goes_on_along_the_same_curve(tmp_path, coco):
    killed, uninterrupted = tmp_path / "killed", tmp_path / "whole"
    command = [*coco, "--epochs", "4"]
    victim = subprocess.Popen(
        [sys.executable, "-c", HANGS, *command, "--out", str(killed)], stdout=subprocess.PIPE, text=True
    )
    assert any(line.startswith("hanging") for line in victim.stdout)
    os.kill(victim.pid, signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL
    assert len(curve(killed)) <= 2
    assert main([*command, "--out", str(killed), "--resume"]) == 0
    assert main([*command, "--out", str(uninterrupted)]) == 0
    assert len(curve(uninterrupted)) == 4
    assert curve(killed) == curve(uninterrupted)
    resumed, straight = (load_file(str(folder / recipe.WEIGHTS_FILE)) for folder in (killed, uninterrupted))
    assert all(torch.equal(resumed[name], tensor) for name, tensor in straight.items()), "the last bit counts"


def test_a_run_may_be_prolonged_but_not_changed(tmp_path, coco):
    out = ["--out", str(tmp_path / "run")]
    assert main([*coco, *out, "--epochs", "1"]) == 0
    assert main([*coco, *out, "--epochs", "2"]) == 0
    assert [row[0] for row in curve(tmp_path / "run")] == ["1", "2"]
    weights = tmp_path / "run" / recipe.WEIGHTS_FILE
    facts = facts_of(weights, read(weights)[1])
    assert (facts["width"], facts["size"]) == (0.0625, 128)
    assert 0 < facts["conf"] < 1
    assert main([*coco, *out, "--epochs", "2", "--seed", "1"]) == 1
    assert main([*coco, *out, "--epochs", "2", "--width", "0.125"]) == 1


def test_a_step_too_small_to_train_on_is_refused_and_the_remedy_trains(tmp_path, coco, capsys):
    labels = pathlib.Path(coco[coco.index("--coco") + 1])
    content = json.loads(labels.read_text())
    labels.write_text(json.dumps({name: entries[:1] for name, entries in content.items()}))
    command = [*coco, "--epochs", "1", "--out", str(tmp_path / "run")]
    assert main(command) == 1
    assert "use --window 64x128 or larger" in capsys.readouterr().err
    assert main([*command, "--window", "64x128"]) == 0


class Explosive:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (pathlib.Path.touch, (pathlib.Path(os.environ["EDGE_OFFLOAD_TEST_MARK"]),))


def test_a_hostile_or_damaged_checkpoint_is_refused_without_running_it(tmp_path, coco, monkeypatch, capsys):
    mark, out = tmp_path / "executed", tmp_path / "run"
    monkeypatch.setenv("EDGE_OFFLOAD_TEST_MARK", str(mark))
    assert main([*coco, "--out", str(out), "--epochs", "1"]) == 0
    good = (out / "last.safetensors").read_bytes()
    for bad in (pickle.dumps(Explosive()), good[: len(good) // 2], b"\xff" * 64, b""):
        (out / "last.safetensors").write_bytes(bad)
        assert main([*coco, "--out", str(out), "--epochs", "2"]) == 1
        assert "not a checkpoint" in capsys.readouterr().err
    assert not mark.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to train on"),
        (["--coco", "x.json"], "nothing to train on"),
        (["--video", "x.avi", "--train", "0:9", "--validate", "5:20"], "holds frames of --train"),
        (["--video", "x.avi", "--validate", "5:20"], "--validate without --train"),
        (["--video", "x.avi", "--train", "0:9", "--width", "9"], "--width"),
        (["--video", "x.avi", "--train", "0:9", "--resume", "--out", "nowhere"], "there is no run"),
        (["--video", "x.avi", "--train", "0:9", "--teacher", "me", "--out", "new"], "no teacher"),
        (["--video", "x.avi", "--window", "64x64", "--batch", "1"], "use --window 64x128 or larger, or --batch 2"),
    ],
)
def test_wrong_arguments_are_reported(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "kapao", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_facts_out_of_range_are_refused(tmp_path):
    path = tmp_path / "weights.safetensors"
    for name, value in (("width", "1e9"), ("conf", "-1"), ("size", "nan"), ("depth", "import os")):
        save_file({"x": torch.zeros(1)}, str(path), {name: value})
        with pytest.raises(BadInput, match=name):
            facts_of(path, read(path)[1])


def test_exported_weights_give_the_same_people_as_the_average_in_half_precision(tmp_path):
    settings = recipe.Settings(scale=Scale(0.33, 0.125), size=128)
    network = start.make_network(settings.scale, start.SMALL_ANCHORS, seed=3).eval()
    path = tmp_path / "weights.safetensors"
    recipe.export(network.state_dict(), settings, path, conf=0.25)
    estimator = build_estimator("kapao_n", checkpoint=str(path), size=128)
    assert estimator.thresholds.conf == 0.25
    halved = Kapao(settings.scale).eval()
    halved.load_state_dict(
        {k: v.half().float() if v.is_floating_point() else v for k, v in network.state_dict().items()}
    )
    image = torch.randint(0, 255, (3, 128, 128), dtype=torch.uint8)
    with torch.inference_mode():
        for ours, theirs in zip(estimator.module.network(image), halved(image)):
            assert torch.equal(ours, theirs)
    network.model[0].conv.conv.weight.data[0, 0, 0, 0] = 1e6
    with pytest.raises(BadInput, match="half precision"):
        recipe.export(network.state_dict(), settings, path)


class Fake(PersonEstimator):
    """Finds one person whose place is the image's mean value; counts how often it was asked."""

    def __init__(self) -> None:
        super().__init__("fake", PeopleModule(torch.nn.Linear(1, 1), torch.nn.Identity()), 64, 64, True)
        self.calls = 0

    def decode(self, outputs, placement):
        raise AssertionError("not used")

    def infer(self, bgr):
        self.calls += 1
        x = float(bgr.mean())
        return People([[x, 1, x + 5, 9]], [0.9], np.zeros((1, 17, 3)))


def test_a_teacher_is_queried_once_per_frame(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGE_OFFLOAD_CACHE", str(tmp_path / "cache"))
    video = tmp_path / "video.avi"
    writer = cv2.VideoWriter(str(video), cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 64))
    for value in range(6):
        writer.write(np.full((64, 64, 3), 30 * value, np.uint8))
    writer.release()
    teacher = Fake()
    first = distil.label_video(video, teacher, {"size": 64}, range(4))
    assert teacher.calls == 4
    relabelled = distil.label_video(video, teacher, {"size": 64}, range(6))
    assert teacher.calls == 6
    assert [float(relabelled[n].boxes[0, 0]) for n in range(6)] == pytest.approx([30 * n for n in range(6)], abs=4)
    assert all(np.array_equal(first[n].boxes, relabelled[n].boxes) for n in first)
    distil.label_video(video, teacher, {"size": 32}, range(1))
    assert teacher.calls == 7, "other options, other labels"
    for path in (tmp_path / "cache" / "teacher").iterdir():
        path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(BadInput, match="damaged"):
        distil.label_video(video, teacher, {"size": 64}, range(4))


def walker(x: float, score: float = 0.8) -> People:
    """One person at ``x``, all keypoints at the box's corner."""
    return People([[x, 10, x + 20, 60]], [score], np.tile([x, 10.0, score], (1, 17, 1)))


@pytest.mark.parametrize("gap", [1, 4, distil.LONGEST_GAP, distil.LONGEST_GAP + 1, 14])
@settings(max_examples=8, deadline=None)
@given(speed=st.integers(-6, 6))
def test_people_are_carried_over_short_gaps_only(gap, speed):
    lost = range(10, 10 + gap)
    finds = {n: People.empty() if n in lost else walker(200 + speed * n) for n in range(40)}
    bridged = distil.bridge_gaps(finds)
    carried = gap <= distil.LONGEST_GAP
    for n in range(40):
        assert len(bridged[n]) == (0 if n in lost and not carried else 1)
        if len(bridged[n]):
            assert bridged[n].boxes[0, 0] == pytest.approx(200 + speed * n, abs=1e-3)
            assert bridged[n].keypoints[0, :, 0] == pytest.approx(np.full(17, 200 + speed * n), abs=1e-3)


def test_two_distant_people_are_not_joined():
    finds = {0: walker(10), 1: People.empty(), 2: walker(300)}
    assert len(distil.bridge_gaps(finds)[1]) == 0


def scene(people: List[List[int]]) -> Dataset:
    """Two images: nobody, and ``people`` drawn white on the same grey."""
    plain = np.full((128, 192, 3), 90, np.uint8)
    drawn = plain.copy()
    for x1, y1, x2, y2 in people:
        cv2.rectangle(drawn, (x1, y1), (x2 - 1, y2 - 1), (255, 255, 255), -1)
    boxes = np.array(people, np.float32).reshape(-1, 4)
    keypoints = np.zeros((len(people), 17, 3), np.float32)
    keypoints[..., :2] = ((boxes[:, :2] + boxes[:, 2:]) / 2)[:, None]
    keypoints[..., 2] = 2
    none = (np.zeros((0, 4), np.float32), np.zeros((0, 17, 3), np.float32))
    return Dataset([plain, drawn], [none, (boxes, keypoints)], 192)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_pasted_people_match_their_labels(seed):
    dataset = scene([[20, 30, 40, 90], [100, 20, 125, 80]])
    how = augment.Augmentation(mosaic=0, crop=True, paste=1, scale=0.2, shift=0, hue=0, saturation=0, value=0)
    sample = augment.make(dataset, 0, (128, 192), how, np.random.default_rng(seed))
    white = (sample.image.min(axis=2) > 200).astype(np.uint8)
    # every white blob is a labelled person, and every labelled person is white all over
    covered = np.zeros_like(white)
    for box in sample.boxes:
        x1, y1, x2, y2 = (int(v) for v in np.round(box))
        covered[max(0, y1 - 2) : y2 + 2, max(0, x1 - 2) : x2 + 2] = 1
        assert white[y1 + 2 : y2 - 2, x1 + 2 : x2 - 2].mean() > 0.95
    big = cv2.connectedComponentsWithStats(white & (1 - covered))[2][1:, 4]
    assert big.max(initial=0) < 0.35 * 25 * 60 * 1.44, "a person without a label"


def test_people_are_not_pasted_over_people():
    dataset = scene([[20, 30, 40, 90]])
    both = Dataset([dataset[1].image, dataset[1].image], [(dataset[1].boxes, dataset[1].keypoints)] * 2, 192)
    how = augment.Augmentation(mosaic=0, crop=True, paste=1, scale=0, shift=0, hue=0, saturation=0, value=0)
    for seed in range(10):
        assert len(augment.make(both, 0, (128, 192), how, np.random.default_rng(seed)).boxes) <= 1
