"""KAPAO's loss: which cells answer for which object, and how wrong their answers are.

Source: McNally et al., "Rethinking Keypoint Representations: Modeling Keypoints and Poses as Objects", sec. 3.2
(losses) and YOLOv5's assignment (an anchor answers when neither side differs by more than a factor; the cell of the
centre and the two nearest neighbours answer).

A target row is ``image, class, x, y, w, h, 17 × (x, y, visibility)``, in pixels of the network's input. Class 0 is a
pose object (a person's box with its keypoints), class 1 + k a keypoint object (a small box about keypoint k).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

import numpy as np
import torch
import torch.nn.functional as F

from edge_offload.arrays import Array
from edge_offload.models.people import COCO_KEYPOINTS

K = len(COCO_KEYPOINTS)
ROW = 6 + 3 * K
BALANCE = (4.0, 1.0, 0.25, 0.06)
"""Weight of each level's objectness, finest first."""


@dataclass(frozen=True)
class Weights:
    """Hyper-parameters of the loss; the defaults are the paper's for P6.

    Attributes:
        box, cls, obj, kp: weights of the four parts.
        anchor_ratio: an anchor answers for a box when no side differs by more than this factor.
        keypoint_box: side of a keypoint object's box as a share of the input's long side.
    """

    box: float = 0.05
    cls: float = 0.3
    obj: float = 0.7
    kp: float = 0.025
    anchor_ratio: float = 4.0
    keypoint_box: float = 0.05


def target_rows(people: Sequence[Tuple[Array, Array]], long_side: int, keypoint_box: float) -> torch.Tensor:
    """Target rows, float32 [n, ROW], of a batch: per image boxes [m, 4] (x1 y1 x2 y2) and keypoints [m, 17, 3]."""
    side = keypoint_box * long_side
    rows = []
    for image, (boxes, keypoints) in enumerate(people):
        poses = np.zeros((len(boxes), ROW), dtype=np.float32)
        poses[:, 0] = image
        poses[:, 2:4] = (boxes[:, :2] + boxes[:, 2:]) / 2
        poses[:, 4:6] = boxes[:, 2:] - boxes[:, :2]
        poses[:, 6:] = keypoints.reshape(-1, 3 * K)
        person, kind = np.nonzero(keypoints[..., 2] > 0)
        points = np.zeros((len(person), ROW), dtype=np.float32)
        points[:, 0] = image
        points[:, 1] = 1 + kind
        points[:, 2:4] = keypoints[person, kind, :2]
        points[:, 4:6] = side
        rows += [poses, points]
    return torch.from_numpy(np.concatenate(rows) if rows else np.zeros((0, ROW), dtype=np.float32))


@dataclass
class Matches:
    """Cells of one level that answer for targets: indices of image, anchor, row, column, and the targets' rows."""

    image: torch.Tensor
    anchor: torch.Tensor
    row: torch.Tensor
    column: torch.Tensor
    target: torch.Tensor


def match(targets: torch.Tensor, anchors: torch.Tensor, stride: int, shape: Tuple[int, int], ratio: float) -> Matches:
    """Assign ``targets`` [n, ROW] to cells of a level with ``anchors`` [a, 2] pixels and map ``shape`` (h, w)."""
    height, width = shape
    relative = targets[None, :, 4:6] / anchors[:, None]  # [a, n, 2]
    answers = torch.maximum(relative, 1 / relative).amax(2) < ratio
    anchor, which = answers.nonzero(as_tuple=True)
    chosen = targets[which]
    grid = chosen[:, 2:4] / stride
    inverse = torch.tensor([width, height], dtype=grid.dtype, device=grid.device) - grid
    near_low = (grid % 1 < 0.5) & (grid > 1)
    near_high = (inverse % 1 < 0.5) & (inverse > 1)
    everyone = torch.ones_like(near_low[:, 0])
    taken = torch.stack([everyone, near_low[:, 0], near_low[:, 1], near_high[:, 0], near_high[:, 1]])
    shifts = torch.tensor([[0, 0], [0.5, 0], [0, 0.5], [-0.5, 0], [0, -0.5]], device=grid.device)
    shift_index, index = taken.nonzero(as_tuple=True)
    cell = (grid[index] - shifts[shift_index]).long()
    return Matches(
        image=chosen[index, 0].long(),
        anchor=anchor[index],
        row=cell[:, 1].clamp(0, height - 1),
        column=cell[:, 0].clamp(0, width - 1),
        target=chosen[index],
    )


def complete_iou(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Complete IoU of boxes [n, 4] given as centre and size (Zheng et al., 2020): overlap, distance, aspect."""
    eps = 1e-7
    low1, high1 = first[:, :2] - first[:, 2:] / 2, first[:, :2] + first[:, 2:] / 2
    low2, high2 = second[:, :2] - second[:, 2:] / 2, second[:, :2] + second[:, 2:] / 2
    overlap = (torch.minimum(high1, high2) - torch.maximum(low1, low2)).clamp(min=0).prod(1)
    union = first[:, 2:].prod(1) + second[:, 2:].prod(1) - overlap + eps
    iou = overlap / union
    diagonal = (torch.maximum(high1, high2) - torch.minimum(low1, low2)).square().sum(1) + eps
    distance = (first[:, :2] - second[:, :2]).square().sum(1) / diagonal
    angle = torch.atan(second[:, 2] / (second[:, 3] + eps)) - torch.atan(first[:, 2] / (first[:, 3] + eps))
    aspect = 4 / torch.pi**2 * angle.square()
    with torch.no_grad():
        weight = aspect / (aspect - iou + 1 + eps)
    return iou - distance - weight * aspect


def loss(
    levels: Sequence[torch.Tensor],
    targets: torch.Tensor,
    anchors: Sequence[torch.Tensor],
    strides: Sequence[int],
    weights: Weights,
) -> Tuple[torch.Tensor, Dict[str, float]]:
    """Loss of a batch.

    Args:
        levels: raw maps per level, float [batch, anchors, h, w, 5 + 18 + 34], before any activation.
        targets: :func:`target_rows` of the batch.
        anchors: per level, [anchors, 2] in pixels.
        strides: per level, in pixels.
        weights: of the loss's parts.

    Returns:
        The loss (a scalar, times the batch size as in YOLOv5), and its four parts before weighting.
    """
    device = levels[0].device
    parts = {name: torch.zeros((), device=device) for name in ("box", "obj", "cls", "kp")}
    batch = levels[0].shape[0]
    for level, level_anchors, stride, balance in zip(levels, anchors, strides, BALANCE):
        height, width = level.shape[2:4]
        objectness = torch.zeros_like(level[..., 4])
        matches = match(targets, level_anchors, stride, (height, width), weights.anchor_ratio)
        if len(matches.target):
            answer = level[matches.image, matches.anchor, matches.row, matches.column]
            anchor = level_anchors[matches.anchor] / stride
            cell = torch.stack([matches.column, matches.row], 1)
            xy = answer[:, :2].sigmoid() * 2 - 0.5
            wh = (answer[:, 2:4].sigmoid() * 2).square() * anchor
            goal = torch.cat([matches.target[:, 2:4] / stride - cell, matches.target[:, 4:6] / stride], 1)
            iou = complete_iou(torch.cat([xy, wh], 1), goal)
            parts["box"] = parts["box"] + (1 - iou).mean()
            objectness[matches.image, matches.anchor, matches.row, matches.column] = (
                iou.detach().clamp(min=0).to(level.dtype)
            )
            kind = F.one_hot(matches.target[:, 1].long(), 1 + K).to(level.dtype)
            parts["cls"] = parts["cls"] + F.binary_cross_entropy_with_logits(answer[:, 5 : 6 + K], kind)
            parts["kp"] = parts["kp"] + _keypoint_loss(answer, anchor, cell, matches.target, stride)
        parts["obj"] = parts["obj"] + balance * F.binary_cross_entropy_with_logits(level[..., 4], objectness)
    total = (
        weights.box * parts["box"] + weights.obj * parts["obj"] + weights.cls * parts["cls"] + weights.kp * parts["kp"]
    )
    return total * batch, {name: float(part.detach()) for name, part in parts.items()}


def _keypoint_loss(
    answer: torch.Tensor, anchor: torch.Tensor, cell: torch.Tensor, target: torch.Tensor, stride: int
) -> torch.Tensor:
    """Mean over pose objects of the summed distances of their visible keypoints, in grid cells (paper, eq. 5)."""
    poses = target[:, 1] == 0
    if not bool(poses.any()):
        return torch.zeros((), device=answer.device)
    offsets = (answer[poses, 6 + K :].sigmoid() * 4 - 2).unflatten(1, (K, 2)) * anchor[poses, None]
    labelled = target[poses, 6:].unflatten(1, (K, 3))
    goal = labelled[..., :2] / stride - cell[poses, None]
    distance = (offsets - goal).square().sum(2).add(1e-9).sqrt()
    per_pose: torch.Tensor = (distance * (labelled[..., 2] > 0)).sum(1)
    return per_pose.mean()


def fit_anchors(boxes_wh: Array, defaults: Sequence[Sequence[float]], ratio: float, seed: int = 0) -> List[List[float]]:
    """Anchors for a data set: the defaults where they already fit, else k-means on box sizes, smallest first.

    Args:
        boxes_wh: float [n, 2], pixels of the network's input; keypoint objects included.
        defaults: per level, ``[w, h, w, h, w, h]`` in pixels.
        ratio: an anchor fits a box when no side differs by more than this factor.
        seed: of k-means.

    Returns:
        Per level, ``[w, h, …]`` like the defaults.
    """
    flat = np.array(defaults, dtype=float).reshape(-1, 2)

    def recall(candidates: Array) -> float:
        relative = boxes_wh[:, None] / candidates[None]
        return float((np.maximum(relative, 1 / relative).max(2).min(1) < ratio).mean())

    if not len(boxes_wh) or recall(flat) >= 0.98:
        return [list(map(float, level)) for level in defaults]
    from scipy.cluster.vq import kmeans2

    # k-means needs more distinct sizes than anchors: a few people give theirs, blurred by a tenth
    copies = -(-10 * len(flat) // len(boxes_wh))
    logs = np.repeat(np.log(boxes_wh.clip(2)), copies, axis=0)
    logs += np.random.default_rng(seed).normal(0, 0.1 if copies > 1 else 0.0, logs.shape)
    centres, _ = kmeans2(logs, len(flat), minit="++", seed=seed)
    fitted = np.exp(centres)
    fitted = fitted[np.argsort(fitted.prod(1))]
    per_level = len(flat) // len(defaults)
    return [fitted[i * per_level : (i + 1) * per_level].round(1).flatten().tolist() for i in range(len(defaults))]
