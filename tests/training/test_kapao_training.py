"""Training KAPAO: targets that a perfect answer satisfies, augmentation that keeps labels true, runs that resume."""

import csv
import dataclasses
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import textwrap
import time
import warnings

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from edge_offload.errors import BadInput
from edge_offload.models.kapao.network import DEFAULT_ANCHORS
from edge_offload.models.kapao.network import STRIDES as LEVEL_STRIDES
from edge_offload.models.kapao.readout import KapaoReadout
from edge_offload.models.kapao.thresholds import PRESETS
from edge_offload_training.kapao import augment
from edge_offload_training.kapao.loss import K, Weights, fit_anchors, loss, match, target_rows
from edge_offload_training.kapao.samples import Dataset, load_coco
from edge_offload_training.kapao.trainer import Config, Trainer

ANCHORS = [torch.tensor([[19.0, 27], [44, 40], [38, 94]]), torch.tensor([[96.0, 68], [86, 152], [180, 137]])]
STRIDES = [8, 16]
CANVAS = (128, 192)


def logit(probability):
    return torch.logit(torch.as_tensor(probability, dtype=torch.float64), eps=1e-9)


@st.composite
def people(draw):
    count = draw(st.integers(1, 4))
    boxes, keypoints = [], []
    for _ in range(count):
        width, height = draw(st.floats(12, 90)), draw(st.floats(12, 90))
        x, y = draw(st.floats(0, CANVAS[1] - width)), draw(st.floats(0, CANVAS[0] - height))
        boxes.append([x, y, x + width, y + height])
        inside = [[x + width * draw(st.floats(0.2, 0.8)), y + height * draw(st.floats(0.2, 0.8))] for _ in range(K)]
        keypoints.append([[*point, draw(st.sampled_from([0, 2]))] for point in inside])
    return np.array(boxes, dtype=np.float32), np.array(keypoints, dtype=np.float32)


@settings(max_examples=30, deadline=None)
@given(people())
def test_perfect_answers_cost_nothing(labelled):
    """Write the exact answer into every cell that the assignment names; box and keypoint losses must vanish."""
    targets = target_rows([labelled], max(CANVAS), 0.05).double()
    # a cell answers for one object: keep the first target of each cell, as a real map could not satisfy two
    levels, retained = [], []
    for stride in STRIDES:
        levels.append(torch.zeros(1, 3, CANVAS[0] // stride, CANVAS[1] // stride, 5 + 1 + K + 2 * K).double())
    for target in targets:
        trial = target[None]
        cells = []
        for index, (anchors, stride) in enumerate(zip(ANCHORS, STRIDES)):
            matches = match(trial, anchors, stride, tuple(levels[index].shape[2:4]), 4.0)
            cells += [
                (index, *cell) for cell in zip(*(t.tolist() for t in (matches.anchor, matches.row, matches.column)))
            ]
        if any(levels[i][0, a, r, c].abs().sum() > 0 for i, a, r, c in cells):
            continue
        retained.append(target)
        for index, anchor_index, row, column in cells:
            stride, anchor = STRIDES[index], ANCHORS[index][anchor_index].double()
            cell = torch.tensor([column, row], dtype=torch.float64)
            answer = levels[index][0, anchor_index, row, column]
            answer[:2] = logit((target[2:4] / stride - cell + 0.5) / 2)
            answer[2:4] = logit((target[4:6] / anchor).sqrt() / 2)
            answer[5:] = -30
            answer[5 + int(target[1])] = 30
            points = target[6:].reshape(K, 3)[:, :2] / stride - cell
            answer[6 + K :] = logit((points / (anchor / stride) + 2) / 4).flatten()
    _, parts = loss(levels, torch.stack(retained), [a.double() for a in ANCHORS], STRIDES, Weights())
    assert parts["box"] < 1e-3
    assert parts["cls"] < 1e-6
    # keypoints beyond the reach of an anchor (2 anchors from the cell) cannot be expressed: the sigmoid saturates
    reachable = all(
        bool(((t[6:].reshape(K, 3)[:, :2] - t[2:4]).abs() < 1.4 * torch.tensor([19.0, 27.0])).all())
        for t in retained
        if t[1] == 0
    )
    if reachable:
        assert parts["kp"] < 1e-2


def test_keypoint_objects_follow_visibility():
    keypoints = np.zeros((1, K, 3), dtype=np.float32)
    keypoints[0, 3] = (50, 60, 2)
    keypoints[0, 7] = (70, 80, 1)
    rows = target_rows([(np.array([[40, 40, 90, 100]], dtype=np.float32), keypoints)], 512, 0.05)
    assert rows[:, 1].tolist() == [0, 1 + 3, 1 + 7]
    assert rows[1, 2:6].tolist() == pytest.approx([50, 60, 25.6, 25.6])


def test_loss_falls_towards_the_truth_and_has_finite_gradients_without_objects():
    levels = [torch.zeros(2, 3, 16, 24, 57, requires_grad=True), torch.zeros(2, 3, 8, 12, 57, requires_grad=True)]
    total, parts = loss(levels, target_rows([], 192, 0.05), ANCHORS, STRIDES, Weights())
    total.backward()
    assert parts["box"] == parts["kp"] == 0
    assert all(bool(torch.isfinite(level.grad).all()) for level in levels)


def marker_sample(x, y):
    """An image with one white dot, and a person whose keypoints all sit on it."""
    image = np.full((96, 128, 3), 30, dtype=np.uint8)
    cv2.circle(image, (x, y), 3, (255, 255, 255), -1)
    keypoints = np.tile(np.array([x, y, 2], dtype=np.float32), (1, K, 1))
    return image, (np.array([[x - 10, y - 10, x + 10, y + 10]], dtype=np.float32), keypoints)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(20, 107), st.integers(20, 75))
def test_augmented_labels_stay_on_what_they_label(seed, x, y):
    dataset = Dataset(*zip(*[marker_sample(x, y), marker_sample(127 - x, 95 - y)]), size=128)
    how = augment.Augmentation(hue=0, saturation=0, value=0)
    sample = augment.make(dataset, 0, CANVAS, how, np.random.default_rng(seed))
    assert sample.image.shape == (*CANVAS, 3)
    for box, keypoints in zip(sample.boxes, sample.keypoints):
        assert box[0] >= 0
        assert box[1] >= 0
        assert box[2] <= CANVAS[1]
        assert box[3] <= CANVAS[0]
        for point in keypoints[keypoints[:, 2] > 0][:1]:
            column, row = (int(v) for v in np.clip(np.round(point[:2]), 0, (CANVAS[1] - 1, CANVAS[0] - 1)))
            patch = sample.image[max(0, row - 2) : row + 3, max(0, column - 2) : column + 3]
            assert patch.max() > 120, "the label does not lie on the dot that it labels"


def test_flip_swaps_keypoints_of_the_two_sides():
    names = ["left" if index % 2 else "right" for index in range(1, K)]
    assert all(names[a - 1] != names[b - 1] for a, b in enumerate(augment.FLIPPED) if a)
    assert (augment.FLIPPED[augment.FLIPPED] == np.arange(K)).all()


def test_a_coco_file_is_read_as_it_is_labelled(tmp_path):
    keypoints = np.random.default_rng(0).integers(11, 49, (K, 3))
    keypoints[:, 2] = 2 * (keypoints[:, 2] > 30)
    person = {"image_id": 3, "bbox": [10, 10, 40, 50], "keypoints": keypoints.ravel().tolist()}
    images = [{"id": number, "file_name": f"{number:06d}.png"} for number in (3, 5)]
    (tmp_path / "images").mkdir()
    for image in images:
        cv2.imwrite(str(tmp_path / "images" / image["file_name"]), np.zeros((96, 128, 3), np.uint8))
    crowd = {**person, "image_id": 5, "iscrowd": 1}
    (tmp_path / "labels.json").write_text(json.dumps({"images": images, "annotations": [person, crowd]}))
    dataset = load_coco(tmp_path / "labels.json", tmp_path / "images", size=128)
    assert [len(dataset[index].boxes) for index in range(2)] == [1, 0]
    assert dataset[0].boxes[0].tolist() == pytest.approx([10, 10, 50, 60], abs=0.01)
    assert dataset[0].keypoints[0].tolist() == keypoints.tolist()


def test_bad_labels_name_the_file(tmp_path):
    with pytest.raises(BadInput, match="cannot read labels"):
        load_coco(tmp_path / "none.json", tmp_path, 128)
    (tmp_path / "labels.json").write_text("[1")
    with pytest.raises(BadInput, match="not JSON"):
        load_coco(tmp_path / "labels.json", tmp_path, 128)


def test_fitting_anchors_are_retained_and_others_refitted():
    defaults = [[19, 27, 44, 40, 38, 94], [96, 68, 86, 152, 180, 137]]
    assert fit_anchors(np.array([[20.0, 30], [90, 140]]), defaults, 4.0) == defaults
    tiny = np.random.default_rng(0).uniform(2.5, 4, (200, 2))
    fitted = np.array(fit_anchors(tiny, defaults, 4.0)).reshape(-1, 2)
    assert fitted.max() < 5


def test_anchors_of_few_people_of_one_size_are_numbers():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = np.array(fit_anchors(np.array([[3.0, 5.0]]), [[96, 68, 86, 152, 180, 137]], 4.0)).reshape(-1, 2)
    assert np.isfinite(fitted).all()
    assert np.allclose(fitted, [3, 5], rtol=0.5)


PROGRAM = textwrap.dedent(
    """
    import pathlib, sys, time
    import numpy as np, torch
    from torch import nn
    from edge_offload_training.kapao.samples import Dataset
    from edge_offload_training.kapao.trainer import Config, Trainer

    torch.set_num_threads(1)
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            first = nn.Conv2d(3, 8, 3, 4, 1)
            self.body = nn.Sequential(first, nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 3 * 57, 3, 2, 1))

        def forward(self, images):
            return [self.body(images.float() / 255).unflatten(1, (3, 57)).permute(0, 1, 3, 4, 2)]

    random = np.random.default_rng(1)
    images = [random.integers(0, 255, (64, 64, 3), dtype=np.uint8) for _ in range(8)]
    people = [(np.array([[10, 10, 40, 50]], np.float32), np.tile(np.float32([20, 30, 2]), (1, 17, 1))) for _ in images]
    config = Config(canvas=(64, 64), epochs=6, batch=4, warmup_steps=2)
    trainer = Trainer(Net(), [torch.tensor([[19.0, 27], [44, 40], [38, 94]])], [8], Dataset(images, people, 64), config,
                      pathlib.Path(sys.argv[1]))
    pause = float(sys.argv[2])
    trainer.run(lambda row: (print(int(row["epoch"]), flush=True), time.sleep(pause)))
    """
)


def curve(folder):
    with (folder / "log.csv").open() as stream:
        return [(row["epoch"], row["loss"], row["box"], row["kp"]) for row in csv.DictReader(stream)]


@pytest.mark.process
def test_resumes_after_kill_with_the_same_curve(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    uninterrupted, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([sys.executable, str(program), str(uninterrupted), "0"], check=True, stdout=subprocess.DEVNULL)
    victim = subprocess.Popen([sys.executable, str(program), str(killed), "60"], stdout=subprocess.PIPE, text=True)
    assert victim.stdout.readline().strip() == "1"
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    subprocess.run([sys.executable, str(program), str(killed), "0"], check=True, stdout=subprocess.DEVNULL)
    assert curve(killed) == curve(uninterrupted)
    assert len(curve(uninterrupted)) == 6
    assert float(curve(uninterrupted)[-1][1]) < float(curve(uninterrupted)[0][1])


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 3 * 57, 8, 8)

    def forward(self, images):
        return [self.body(images.float() / 255).unflatten(1, (3, 57)).permute(0, 1, 3, 4, 2)]


def tiny_trainer(folder, **changes):
    dataset = Dataset(*zip(*[marker_sample(40, 40)]), size=128)
    config = Config(canvas=(64, 64), epochs=1, batch=1, **changes)
    return Trainer(Tiny(), ANCHORS[:1], [8], dataset, config, folder)


class Explosive:
    def __reduce__(self):
        return (pathlib.Path.touch, (pathlib.Path(os.environ["EDGE_OFFLOAD_TEST_MARK"]),))


def test_hostile_checkpoint_is_refused_without_running_it(tmp_path, monkeypatch):
    mark = tmp_path / "executed"
    monkeypatch.setenv("EDGE_OFFLOAD_TEST_MARK", str(mark))
    (tmp_path / "last.safetensors").write_bytes(pickle.dumps(Explosive()))
    with pytest.raises(BadInput, match="not a checkpoint"):
        tiny_trainer(tmp_path)
    assert not mark.exists()


def test_checkpoint_of_other_settings_is_refused(tmp_path):
    tiny_trainer(tmp_path).run(lambda row: None)
    with pytest.raises(BadInput, match="other settings"):
        tiny_trainer(tmp_path, seed=7)


def test_deadline_ends_between_epochs(tmp_path):
    trainer = Trainer(
        Tiny(),
        ANCHORS[:1],
        [8],
        Dataset(*zip(*[marker_sample(40, 40)]), size=128),
        Config(canvas=(64, 64), epochs=50, batch=1),
        tmp_path,
    )
    assert not trainer.run(lambda row: None, deadline_s=time.monotonic() - 1)
    assert trainer.epoch == 1


@settings(max_examples=20, deadline=None)
@given(people())
def test_targets_of_training_match_the_read_out(labelled):
    """Perfect answers in the cells that training names are decoded to the labelled people: the two sides agree."""
    shape = (256, 256)
    targets = target_rows([labelled], 256, 0.05)
    anchors = list(torch.tensor(DEFAULT_ANCHORS, dtype=torch.float32).view(4, 3, 2))
    maps = [torch.full((1, 3, 57, shape[0] // s, shape[1] // s), -30.0) for s in LEVEL_STRIDES]
    numbers = set()
    for number, target in enumerate(targets[targets[:, 1] == 0]):
        for level, (sizes, stride) in enumerate(zip(anchors, LEVEL_STRIDES)):
            matches = match(target[None], sizes, stride, tuple(maps[level].shape[3:]), 4.0)
            for a, row, column in zip(matches.anchor.tolist(), matches.row.tolist(), matches.column.tolist()):
                answer = maps[level][0, a, :, row, column]
                if answer[4] > 0:
                    continue  # taken by another person
                numbers.add(number)
                cell = torch.tensor([column, row], dtype=torch.float64)
                answer[:2] = logit((target[2:4].double() / stride - cell + 0.5) / 2)
                answer[2:4] = logit((target[4:6].double() / sizes[a].double()).sqrt() / 2)
                answer[4:6] = 30
                points = (target[6:].double().reshape(K, 3)[:, :2] - cell * stride) / sizes[a].double()
                answer[6 + K :] = logit((points + 2) / 4).flatten()
    limits = dataclasses.replace(PRESETS["video"], iou=0.999)
    persons, _ = KapaoReadout(torch.stack(anchors), limits)(*[m.flatten(1, 2) for m in maps])
    boxes, keypoints = labelled
    for number in numbers:
        near = (persons[:, :4] - torch.from_numpy(boxes[number])).abs().amax(1) < 0.05
        assert bool(near.any()), "no cell decodes to the labelled box"
        expected = torch.from_numpy(keypoints[number, :, :2])
        off = (persons[near][:, 5:].unflatten(1, (K, 2)) - expected).abs().amax((1, 2))
        # an anchor reaches keypoints up to twice its size away; the largest that answers reaches all of a person
        assert float(off.min()) < 0.1
