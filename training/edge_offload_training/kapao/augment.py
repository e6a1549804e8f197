"""Augmentation: mosaic, crops, pasted people, scale, shift, flip, colour. Deterministic for a given generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Tuple

import cv2
import numpy as np

from edge_offload.arrays import Array
from edge_offload_training.kapao.samples import Dataset, Sample

FLIPPED = np.array([0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 13, 16, 15])
"""Keypoint indices after a left-right flip."""

MIN_SIDE_PX = 4.0
"""A box cut to less than this by the edge is dropped."""

PASTE_MARGIN = 0.15
"""A pasted person brings this share of the box's sides of its surroundings along."""

PASTE_COVER = 0.3
"""A person is not pasted where more than this share of somebody's box would be covered."""

MIN_AREA_SHARE = 0.3
"""A box is dropped when less than this share of its area is still in the image."""


@dataclass(frozen=True)
class Augmentation:
    """Strengths of the variations of samples.

    Attributes:
        mosaic: probability of joining four images into one.
        crop: the canvas is a window of the image at its own size (times ``scale``), not the whole image shrunk to it.
        paste: probability for each person of another image to be copied to the same place here. Only sound where the
            camera does not move between images: the surroundings of the person must fit.
        scale: images are scaled by a factor between 1 - scale and 1 + scale.
        shift: images are shifted by up to this share of the canvas.
        flip: probability of a left-right flip.
        hue, saturation, value: largest relative change of each.
    """

    mosaic: float = 1.0
    crop: bool = False
    paste: float = 0.0
    scale: float = 0.5
    shift: float = 0.1
    flip: float = 0.5
    hue: float = 0.015
    saturation: float = 0.5
    value: float = 0.4


NO_AUGMENTATION = Augmentation(mosaic=0, scale=0, shift=0, flip=0, hue=0, saturation=0, value=0)
PAD = 114


def make(
    dataset: Dataset, index: int, canvas: Tuple[int, int], how: Augmentation, random: np.random.Generator
) -> Sample:
    """Sample ``index`` augmented onto a canvas of ``canvas`` = (height, width) pixels."""
    if random.random() < how.mosaic:
        others = random.integers(0, len(dataset), 3)
        sample = _make_mosaic([dataset[index], *(dataset[int(other)] for other in others)], canvas, how, random)
    elif how.crop:
        other = dataset[int(random.integers(0, len(dataset)))]
        sample = _cut_window(_paste_people(dataset[index], other, how.paste, random), canvas, how, random)
    else:
        sample = _place_sample(dataset[index], canvas, how, random)
    if random.random() < how.flip:
        sample = _flip_sample(sample)
    return Sample(_vary_colour(sample.image, how, random), sample.boxes, sample.keypoints)


def _warp_sample(sample: Sample, scale: float, x: float, y: float, canvas: Tuple[int, int]) -> Sample:
    """Scale ``sample`` and put its top left corner at ``x``, ``y`` of a grey canvas."""
    height, width = canvas
    matrix = np.array([[scale, 0, x], [0, scale, y]], dtype=np.float32)
    image = cv2.warpAffine(sample.image, matrix, (width, height), flags=cv2.INTER_LINEAR, borderValue=(PAD,) * 3)
    offset = np.array([x, y], dtype=np.float32)
    boxes = sample.boxes * scale + np.tile(offset, 2)
    keypoints = sample.keypoints.copy()
    keypoints[..., :2] = keypoints[..., :2] * scale + offset
    return _clip_sample(Sample(image, boxes, keypoints), (0, 0, width, height))


def _clip_sample(sample: Sample, window: Tuple[int, int, int, int]) -> Sample:
    """Cut boxes to ``window`` (x1 y1 x2 y2), drop those that hardly remain, hide keypoints outside."""
    x1, y1, x2, y2 = window
    boxes, keypoints = sample.boxes, sample.keypoints
    cut = np.clip(boxes, [x1, y1, x1, y1], [x2, y2, x2, y2]).astype(np.float32)
    sides = cut[:, 2:] - cut[:, :2]
    area = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    retained = (sides.min(axis=1, initial=np.inf) >= MIN_SIDE_PX) & (sides.prod(axis=1) >= MIN_AREA_SHARE * area)
    cut, keypoints = cut[retained], keypoints[retained].copy()
    inside = (keypoints[..., 0] >= x1) & (keypoints[..., 0] < x2) & (keypoints[..., 1] >= y1) & (keypoints[..., 1] < y2)
    keypoints[..., 2] *= inside
    return Sample(sample.image, cut, keypoints)


def _place_sample(sample: Sample, canvas: Tuple[int, int], how: Augmentation, random: np.random.Generator) -> Sample:
    height, width = canvas
    image_height, image_width = sample.image.shape[:2]
    factor = 1 + how.scale * random.uniform(-1, 1)
    scale = min(height / image_height, width / image_width) * factor
    x = (width - image_width * scale) / 2 + how.shift * width * random.uniform(-1, 1)
    y = (height - image_height * scale) / 2 + how.shift * height * random.uniform(-1, 1)
    return _warp_sample(sample, scale, x, y, canvas)


def _cut_window(sample: Sample, canvas: Tuple[int, int], how: Augmentation, random: np.random.Generator) -> Sample:
    """A window of ``canvas`` pixels anywhere in the image, which is scaled about its own size."""
    scale = 1 + how.scale * random.uniform(-1, 1)
    height, width = (side * scale for side in sample.image.shape[:2])
    return _warp_sample(
        sample, scale, (canvas[1] - width) * random.random(), (canvas[0] - height) * random.random(), canvas
    )


def _paste_people(sample: Sample, other: Sample, probability: float, random: np.random.Generator) -> Sample:
    """``sample`` with people of ``other`` where they were, as if both had been in view at once.

    Only people who stand alone in ``other`` are taken, and only to where they hide little of anybody.
    """
    if other.image.shape != sample.image.shape:
        return sample
    image, boxes, keypoints = sample.image, sample.boxes, sample.keypoints.copy()
    height, width = image.shape[:2]
    for box, points in zip(other.boxes, other.keypoints):
        if random.random() >= probability:
            continue
        margin = PASTE_MARGIN * np.tile(box[2:] - box[:2], 2) * [-1, -1, 1, 1]
        x1, y1, x2, y2 = (int(v) for v in np.clip(np.round(box + margin), 0, [width, height] * 2))
        patch = np.array([x1, y1, x2, y2], dtype=np.float32)
        isolated = (_covered_shares(patch, other.boxes) > 0).sum() <= 1
        if x2 <= x1 or y2 <= y1 or not isolated or (_covered_shares(patch, boxes) > PASTE_COVER).any():
            continue
        if image is sample.image:
            image = image.copy()
        image[y1:y2, x1:x2] = other.image[y1:y2, x1:x2]
        x, y = keypoints[..., 0], keypoints[..., 1]
        keypoints[..., 2] *= ~((x >= x1) & (x < x2) & (y >= y1) & (y < y2))
        boxes = np.concatenate([boxes, box[None]])
        keypoints = np.concatenate([keypoints, points[None]])
    return Sample(image, boxes, keypoints)


def _covered_shares(patch: Array, boxes: Array) -> Array:
    """Share of each of ``boxes`` [n, 4] that ``patch`` [4] covers."""
    sides = np.minimum(boxes[:, 2:], patch[2:]) - np.maximum(boxes[:, :2], patch[:2])
    shares: Array = sides.clip(0).prod(1) / (boxes[:, 2:] - boxes[:, :2]).prod(1).clip(1e-6)
    return shares


def _make_mosaic(
    samples: List[Sample], canvas: Tuple[int, int], how: Augmentation, random: np.random.Generator
) -> Sample:
    """Four samples around a random centre; each shows a random part of itself."""
    height, width = canvas
    centre_x, centre_y = int(width * random.uniform(0.25, 0.75)), int(height * random.uniform(0.25, 0.75))
    windows = (
        (0, 0, centre_x, centre_y),
        (centre_x, 0, width, centre_y),
        (0, centre_y, centre_x, height),
        (centre_x, centre_y, width, height),
    )
    image = np.full((height, width, 3), PAD, dtype=np.uint8)
    boxes, keypoints = [], []
    for sample, window in zip(samples, windows):
        x1, y1, x2, y2 = window
        image_height, image_width = sample.image.shape[:2]
        scale = min(height / image_height, width / image_width) * (1 + how.scale * random.uniform(-1, 1))
        # any placement that still covers the window, or as near to one as the size allows
        slack_x, slack_y = (x2 - x1) - image_width * scale, (y2 - y1) - image_height * scale
        x, y = x1 + slack_x * random.random(), y1 + slack_y * random.random()
        placed = _clip_sample(_warp_sample(sample, scale, x, y, canvas), window)
        image[y1:y2, x1:x2] = placed.image[y1:y2, x1:x2]
        boxes.append(placed.boxes)
        keypoints.append(placed.keypoints)
    return Sample(image, np.concatenate(boxes), np.concatenate(keypoints))


def _flip_sample(sample: Sample) -> Sample:
    width = sample.image.shape[1]
    boxes = sample.boxes.copy()
    boxes[:, [0, 2]] = width - sample.boxes[:, [2, 0]]
    keypoints = sample.keypoints[:, FLIPPED].copy()
    keypoints[..., 0] = width - 1 - keypoints[..., 0]
    return Sample(np.ascontiguousarray(sample.image[:, ::-1]), boxes, keypoints)


def _vary_colour(image: Array, how: Augmentation, random: np.random.Generator) -> Array:
    gains = 1 + np.array([how.hue, how.saturation, how.value]) * random.uniform(-1, 1, 3)
    if np.all(gains == 1):
        return image
    steps = np.arange(256, dtype=np.float32)
    tables = (
        ((steps * gains[0]) % 180).astype(np.uint8),
        np.clip(steps * gains[1], 0, 255).astype(np.uint8),
        np.clip(steps * gains[2], 0, 255).astype(np.uint8),
    )
    hsv = cv2.cvtColor(image, cv2.COLOR_BGR2HSV)
    varied = cv2.merge([cv2.LUT(channel, table) for channel, table in zip(cv2.split(hsv), tables)])
    coloured: Array = cv2.cvtColor(varied, cv2.COLOR_HSV2BGR)
    return coloured
