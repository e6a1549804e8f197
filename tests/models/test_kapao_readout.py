"""KAPAO's decoding, suppression and fusion against slow loops that can be checked by reading them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload.models.kapao import nms as nms_module
from edge_offload.models.kapao.fusion import fuse_keypoints
from edge_offload.models.kapao.network import DEFAULT_ANCHORS, STRIDES
from edge_offload.models.kapao.nms import box_overlaps, nms
from edge_offload.models.kapao.readout import KapaoReadout
from edge_offload.models.kapao.thresholds import PRESETS, Thresholds

pytestmark = pytest.mark.process


ANCHORS = torch.tensor(DEFAULT_ANCHORS, dtype=torch.float32).view(4, 3, 2)


def random_maps(seed: int, height: int = 64, width: int = 128) -> list:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn((1, 171, height // s, width // s), generator=generator) * 2 for s in STRIDES]


def slow_decode(maps: list) -> np.ndarray:
    """One anchor at a time, in float64."""
    rows = []
    for raw, stride, anchors in zip(maps, STRIDES, DEFAULT_ANCHORS):
        _, _, height, width = raw.shape
        for a in range(3):
            anchor_w, anchor_h = anchors[2 * a], anchors[2 * a + 1]
            for gy in range(height):
                for gx in range(width):
                    v = [1 / (1 + math.exp(-float(raw[0, a * 57 + k, gy, gx]))) for k in range(57)]
                    row = [(2 * v[0] - 0.5 + gx) * stride, (2 * v[1] - 0.5 + gy) * stride]
                    row += [(2 * v[2]) ** 2 * anchor_w, (2 * v[3]) ** 2 * anchor_h]
                    row += v[4:23]
                    for k in range(17):
                        row.append((4 * v[23 + 2 * k] - 2) * anchor_w + gx * stride)
                        row.append((4 * v[24 + 2 * k] - 2) * anchor_h + gy * stride)
                    rows.append(row)
    return np.array(rows)


def slow_overlap(a: list, b: list) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return shared / union if union > 0 else 0.0


def slow_nms(boxes: list, scores: list, classes: list, iou: float, max_det: int) -> list:
    survivors: list = []
    for i in sorted(range(len(scores)), key=lambda i: -scores[i]):
        if all(classes[i] != classes[k] or slow_overlap(boxes[i], boxes[k]) <= iou for k in survivors):
            survivors.append(i)
    return survivors[:max_det]


def slow_fusion(poses: list, scores: list, objects: list, thresholds: Thresholds) -> list:
    result = [[[x, y, None] for x, y in pose] for pose in poses]
    for x, y, score, index in objects:
        best, best_distance = None, math.inf
        for n, pose in enumerate(result):
            if scores[n] <= thresholds.conf_kp_person:
                continue
            distance = math.hypot(pose[int(index)][0] - x, pose[int(index)][1] - y)
            if distance < best_distance:
                best, best_distance = pose, distance
        if best is not None and best_distance < thresholds.overwrite_tol and score > (best[int(index)][2] or 0):
            best[int(index)] = [x, y, score]
    return [[[x, y, s if s is not None else scores[n]] for x, y, s in pose] for n, pose in enumerate(result)]


def test_decoding_follows_the_formulas():
    maps = random_maps(0)
    decoded = KapaoReadout(ANCHORS, PRESETS["video"]).decode(maps).numpy()
    np.testing.assert_allclose(decoded, slow_decode(maps), rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("preset", ["video", "image", "validation"])
def test_readout_retains_the_rows_of_the_slow_rules(preset):
    limits = PRESETS[preset]
    maps = [raw - 0.5 for raw in random_maps(1)]
    persons, objects = KapaoReadout(ANCHORS, limits)(*maps)
    rows = KapaoReadout(ANCHORS, limits).decode(maps).tolist()
    candidates: dict = {"person": [], "object": []}
    for row in rows:
        kind = int(np.argmax(row[5:23]))
        score = float(np.float32(row[5 + kind]) * np.float32(row[4]))
        box = [row[0] - row[2] / 2, row[1] - row[3] / 2, row[0] + row[2] / 2, row[1] + row[3] / 2]
        if kind == 0 and score > limits.conf:
            candidates["person"].append((box, score, kind, row))
        if kind > 0 and score > limits.conf_kp:
            candidates["object"].append((box, score, kind, row))
    for name, iou, got in (("person", limits.iou, persons), ("object", limits.iou_kp, objects)):
        boxes, scores, kinds, raw_rows = zip(*candidates[name])
        assert len(boxes) > 5
        survivors = slow_nms(boxes, scores, kinds, iou, 300)
        assert len(got) == len(survivors)
        if name == "person":
            expected = [boxes[k] + [scores[k]] + raw_rows[k][23:] for k in survivors]
        else:
            expected = [[*raw_rows[k][:2], scores[k], kinds[k] - 1] for k in survivors]
        np.testing.assert_allclose(got.numpy(), np.array(expected), rtol=1e-4, atol=1e-3)


def test_no_detections_give_empty_outputs_of_the_right_width():
    persons, objects = KapaoReadout(ANCHORS, PRESETS["video"])(*[raw - 50 for raw in random_maps(2)])
    assert tuple(persons.shape) == (0, 39)
    assert tuple(objects.shape) == (0, 4)


# whole coordinates and few distinct scores: overlaps equal to the threshold, ties and boxes without area do occur
box = st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 6), st.integers(0, 6)).map(
    lambda b: [b[0], b[1], b[0] + b[2], b[1] + b[3]]
)
candidate = st.tuples(box, st.integers(0, 8).map(lambda s: s / 8), st.integers(0, 2))


@settings(max_examples=150, deadline=None)
@given(st.lists(candidate, max_size=40), st.sampled_from([0.0, 0.25, 0.5, 0.65]), st.integers(1, 12), st.integers(1, 9))
def test_suppression_is_the_greedy_one_whatever_the_block_and_sweep(candidates, iou, max_det, block):
    boxes = [c[0] for c in candidates]
    scores = [c[1] for c in candidates]
    classes = [c[2] for c in candidates]
    was = nms_module.BLOCK, nms_module.SWEEPS
    nms_module.BLOCK, nms_module.SWEEPS = block, 1 + block % 3
    try:
        got = nms(
            torch.tensor(boxes, dtype=torch.float32).view(-1, 4),
            torch.tensor(scores, dtype=torch.float32),
            torch.tensor(classes, dtype=torch.int64),
            iou,
            max_det,
        )
    finally:
        nms_module.BLOCK, nms_module.SWEEPS = was
    assert got.tolist() == slow_nms(boxes, scores, classes, iou, max_det)


def test_a_long_chain_of_suppression_is_followed_to_its_end():
    # each box overlaps the next only: greedy keeps every other one, which takes half as many sweeps as there are boxes
    boxes = torch.tensor([[10.0 * k, 0.0, 10.0 * k + 16, 10.0] for k in range(200)])
    scores = torch.linspace(0.9, 0.1, 200)
    assert nms(boxes, scores, torch.zeros(200), 0.2).tolist() == list(range(0, 200, 2))


def test_overlap_of_boxes_without_area_is_zero_not_nan():
    point = torch.tensor([[3.0, 3.0, 3.0, 3.0]])
    assert box_overlaps(point, point).tolist() == [[0.0]]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 4), st.integers(0, 40), st.integers(0, 2**31), st.sampled_from(sorted(PRESETS)))
def test_fusion_is_the_slow_one(people, count, seed, preset):
    rng = np.random.default_rng(seed)
    poses = rng.integers(0, 120, (people, 17, 2)).astype(np.float32)
    scores = rng.uniform(0, 1, people).astype(np.float32)
    objects = np.stack(
        [
            rng.integers(0, 120, count),
            rng.integers(0, 120, count),
            rng.integers(1, 5, count) / 4,
            rng.integers(0, 17, count),
        ],
        axis=1,
    ).astype(np.float32)
    got = fuse_keypoints(poses, scores, objects, PRESETS[preset])
    expected = slow_fusion(poses.tolist(), scores.tolist(), objects.tolist(), PRESETS[preset])
    np.testing.assert_allclose(got, np.array(expected, dtype=np.float32).reshape(people, 17, 3), rtol=1e-6)


def test_an_object_too_far_or_for_a_doubtful_person_changes_nothing():
    poses = np.zeros((1, 17, 2), np.float32)
    objects = np.array([[49.0, 0.0, 0.9, 3]], np.float32)
    limits = PRESETS["video"]
    near = fuse_keypoints(poses, np.array([0.5]), objects, limits)
    np.testing.assert_allclose(near[0, 3], [49, 0, 0.9])
    np.testing.assert_allclose(near[0, 4], [0, 0, 0.5])
    objects[0, 0] = 50.0
    np.testing.assert_allclose(fuse_keypoints(poses, np.array([0.5]), objects, limits)[0, 3], [0, 0, 0.5])
    objects[0, 0] = 1.0
    np.testing.assert_allclose(fuse_keypoints(poses, np.array([0.2]), objects, limits)[0, 3], [0, 0, 0.2])


def test_rows_that_are_omitted_change_no_bit_of_the_others():
    draw = torch.Generator().manual_seed(0)
    for height, width in ((3, 5), (1, 1), (2, 7)):
        maps = tuple(torch.randn(1, 171, height * by, width * by, generator=draw) * 3 for by in (8, 4, 2, 1))
        readout = KapaoReadout(ANCHORS, PRESETS["video"])
        rows = readout.decode(maps)
        assert len(rows) == 3 * height * width * (64 + 16 + 4 + 1)
        assert torch.equal(readout.decode(maps, 0.6), rows[rows[:, 4] > 0.6])


@pytest.mark.parametrize("sizes", [(64, 128), (96, 160)])
def test_frames_that_are_read_out_together_have_the_results_of_each_alone(sizes, monkeypatch):
    monkeypatch.setattr(nms_module, "BLOCK", 64)  # several blocks, whose boxes are of several frames
    frames = [
        random_maps(3, *sizes),
        [raw - 50 for raw in random_maps(4, *sizes)],
        *(random_maps(n, *sizes) for n in (5, 6)),
    ]
    frames.append(frames[0])  # the same boxes in another frame do not suppress these
    readout = KapaoReadout(ANCHORS, PRESETS["video"])
    together = readout.batch(*[torch.cat(level) for level in zip(*frames)])
    assert [len(persons) for persons, _ in together][1] == 0
    assert sum(len(objects) for _, objects in together) > 300
    for maps, outputs in zip(frames, together):
        for one, other in zip(readout(*maps), outputs):
            assert torch.equal(one, other)
