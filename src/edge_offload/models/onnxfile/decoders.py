"""Decoders of published detectors' output formats: boxes, keypoints and masks.

Every decoder maps the outputs of one image to float [n, 4] boxes (x1 y1 x2 y2 in pixels of the network's input),
float [n] scores and int64 [n] classes, best first. Keypoints float [n, k, 3], or a mask uint8 [H, W] (class of each
pixel plus one, 0: none), follow where the network has them.

Formats, with A = anchors or grid cells, q = queries, c = classes, e = values of keypoints, or coefficients of masks:

  yolov5, yolov7              [1, A, 5 + c + e]: centre, size (pixels), objectness, class scores
  yolov8 and later, yolov5u   [1, 4 + c + e, A]: centre, size (pixels), class scores
  end2end (yolov10, yolo26)   [1, n, 6 + e]: corners (pixels), score, class; without duplicates
  rtdetr                      [1, q, 6] centre, size (shares of the input), score, class; [1, q, 4 + c]; or
                              logits [1, q, c] (sigmoid) and pred_boxes [1, q, 4] (centre, size, shares)
  detr                        logits [1, q, c + 1] (softmax, the last class: no object) and pred_boxes [1, q, 4]
  ssd                         boxes [n, 4] (corners), scores [n], classes [n], as torchvision and TensorFlow write them
  segmentation                [1, c, h, w] scores of classes, or integers [1, h, w]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Dict, Iterator, List, Sequence, Tuple

import torch
from torch import nn
from torch.nn import functional

from edge_offload.models.kapao.nms import MAX_DET, nms

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class DecodePlan:
    """Parameters of the decoding of one network's outputs.

    Attributes:
        decoder: a name of :data:`DECODERS`.
        size: height and width of the network's input, pixels.
        classes: number of classes; 0: not needed.
        keypoints: number of keypoints, and values per keypoint (2 or 3); (0, 0): none.
        outputs: positions of the decoded outputs among the network's, in the decoder's order.
        masks: whether the last decoded output holds the prototypes of masks, [1, m, h, w].
        score: detections must score more than this.
        iou: overlap of boxes of one class above which the weaker one is suppressed.
        tensorflow: whether corners are in TensorFlow's order (y first), and classes count from 1.
    """

    decoder: str
    size: Tuple[int, int]
    classes: int = 0
    keypoints: Tuple[int, int] = (0, 0)
    outputs: Tuple[int, ...] = (0,)
    masks: bool = False
    score: float = 0.25
    iou: float = 0.7
    tensorflow: bool = False


@dataclass
class BoxRows:
    """Detections during decoding: ``boxes`` are corners [n, 4] in pixels, ``rest`` [n, e] keypoints or coefficients."""

    boxes: torch.Tensor
    scores: torch.Tensor
    classes: torch.Tensor
    rest: torch.Tensor

    def select(self, index: torch.Tensor) -> BoxRows:
        """Select the rows at ``index``."""
        return BoxRows(self.boxes[index], self.scores[index], self.classes[index], self.rest[index])


class OnnxReadout(nn.Module):
    """Outputs of the network → boxes, scores, classes, and keypoints or a mask, as ``plan`` says."""

    def __init__(self, plan: DecodePlan) -> None:
        super().__init__()
        self.plan = plan

    def forward(self, *outputs: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        """Decode the outputs; with decoder ``none`` return them unchanged."""
        plan = self.plan
        if plan.decoder == NONE:
            return outputs
        chosen = [outputs[number] for number in plan.outputs]
        if plan.decoder == SEGMENTATION:
            # a mask cannot hold NaN: where a score is NaN, one box of NaN makes it visible
            faults = chosen[0].isnan().any().reshape(1).nonzero()
            boxes = torch.full((len(faults), 4), math.nan, device=chosen[0].device)
            return boxes, boxes[:, 0], boxes[:, 0].long(), class_map(chosen[0], plan.size)
        rows = DECODERS[plan.decoder](chosen, plan)
        more: Tuple[torch.Tensor, ...] = ()
        if plan.keypoints[0]:
            more = (keypoint_rows(rows.rest, plan),)
        elif plan.masks:
            rows, mask = class_mask(rows, chosen[-1][0].float(), plan.size)
            more = (mask,)
        return (rows.boxes, rows.scores, rows.classes.long(), *more)


def yolov8(outputs: Tensors, plan: DecodePlan) -> BoxRows:
    """Decode [1, 4 + c + e, A]."""
    table = outputs[0][0].float().t()
    scores, classes = table[:, 4 : 4 + plan.classes].max(1)
    return _suppress_duplicates(table[:, :4], scores, classes, table[:, 4 + plan.classes :], plan)


def yolov5(outputs: Tensors, plan: DecodePlan) -> BoxRows:
    """Decode [1, A, 5 + c + e]."""
    table = outputs[0][0].float()
    scores, classes = (table[:, 5 : 5 + plan.classes] * table[:, 4:5]).max(1)
    return _suppress_duplicates(table[:, :4], scores, classes, table[:, 5 + plan.classes :], plan)


def end2end(outputs: Tensors, plan: DecodePlan) -> BoxRows:
    """Decode [1, n, 6 + e]."""
    table = outputs[0][0].float()
    return _best_rows(BoxRows(table[:, :4], table[:, 4], table[:, 5], table[:, 6:]), plan)


def rtdetr(outputs: Tensors, plan: DecodePlan) -> BoxRows:
    """Decode [1, q, 6], [1, q, 4 + c], or logits and boxes, where one query may have several classes."""
    if len(outputs) == 2:
        scores = outputs[0][0].float().sigmoid()
        best, index = scores.flatten().topk(len(scores))
        query = torch.div(index, scores.shape[1], rounding_mode="floor")
        classes = index - query * scores.shape[1]
        return _best_rows(_share_rows(outputs[1][0].float()[query], best, classes, plan), plan)
    table = outputs[0][0].float()
    if not plan.classes:
        return _best_rows(_share_rows(table[:, :4], table[:, 4], table[:, 5], plan), plan)
    return _best_rows(_share_rows(table[:, :4], *table[:, 4:].max(1), plan), plan)


def detr(outputs: Tensors, plan: DecodePlan) -> BoxRows:
    """Decode logits and boxes."""
    scores, classes = outputs[0][0].float().softmax(-1)[:, :-1].max(1)
    return _best_rows(_share_rows(outputs[1][0].float(), scores, classes, plan), plan)


def ssd(outputs: Tensors, plan: DecodePlan) -> BoxRows:
    """Decode boxes, scores and classes, with or without a batch dimension."""
    boxes = outputs[0].float().reshape(-1, 4)
    scores, classes = (one.reshape(-1) for one in outputs[1:3])
    if plan.tensorflow:
        boxes, classes = boxes[:, [1, 0, 3, 2]], classes - 1
    rows = _best_rows(BoxRows(boxes, scores.float(), classes, boxes[:, :0]), plan)
    # boxes that end at 2 or before are shares of the input: no object is two pixels wide and high
    shares = (rows.boxes <= 2.0).all()
    rows.boxes = torch.where(shares, rows.boxes * _input_sides(plan, rows.boxes), rows.boxes)
    return rows


def class_map(scores: torch.Tensor, size: Tuple[int, int]) -> torch.Tensor:
    """Make uint8 [H, W], class of each pixel plus one, from scores [1, c, h, w] or classes [1, h, w], [1, 1, h, w]."""
    if scores.is_floating_point():
        scores = scores.float()
        if tuple(scores.shape[-2:]) != size:
            scores = functional.interpolate(scores, size, mode="bilinear", align_corners=False)
        return (scores[0].argmax(0) + 1).to(torch.uint8)
    classes = scores.reshape(1, 1, *scores.shape[-2:])
    if tuple(classes.shape[-2:]) != size:
        classes = functional.interpolate(classes.float(), size, mode="nearest")
    return (classes[0, 0].long() + 1).to(torch.uint8)


def instance_masks(rows: BoxRows, prototypes: torch.Tensor, size: Tuple[int, int]) -> Iterator[torch.Tensor]:
    """Yield bool [H, W] of each object: true inside its box where its weighted sum of ``prototypes`` is positive.

    Args:
        rows: objects; ``rest`` [n, m] holds the weights.
        prototypes: float [m, h, w].
        size: H and W, pixels.
    """
    sums = (rows.rest @ prototypes.flatten(1)).unflatten(1, prototypes.shape[1:])
    x, y = (torch.arange(side, device=sums.device) for side in (size[1], size[0]))
    for weighted_sum, (x1, y1, x2, y2) in zip(sums, rows.boxes):
        mask = functional.interpolate(weighted_sum[None, None], size, mode="bilinear", align_corners=False)[0, 0] > 0
        yield mask & ((y >= y1) & (y < y2))[:, None] & ((x >= x1) & (x < x2))[None, :]


def class_mask(rows: BoxRows, prototypes: torch.Tensor, size: Tuple[int, int]) -> Tuple[BoxRows, torch.Tensor]:
    """Return the objects with visible pixels, and uint8 [H, W]: class plus one of the best object at each pixel."""
    mask = torch.zeros(size, dtype=torch.uint8, device=prototypes.device)
    visible = torch.zeros(len(rows.scores), dtype=torch.bool, device=prototypes.device)
    values = (rows.classes + 1).to(torch.uint8)
    for row, pixels in enumerate(instance_masks(rows, prototypes, size)):
        mask = torch.where(pixels & (mask == 0), values[row], mask)
        visible[row] = pixels.any()
    return rows.select(visible), mask


def keypoint_rows(rest: torch.Tensor, plan: DecodePlan) -> torch.Tensor:
    """Return float [n, k, 3]: x and y in pixels of the network's input, score (1 if the network gives none)."""
    count, width = plan.keypoints
    points = rest[:, : count * width].reshape(-1, count, width)
    return points if width == 3 else torch.cat((points, torch.ones_like(points[..., :1])), -1)


def _suppress_duplicates(
    boxes: torch.Tensor, scores: torch.Tensor, classes: torch.Tensor, rest: torch.Tensor, plan: DecodePlan
) -> BoxRows:
    """Select confident boxes, given by centre and size in pixels, and suppress duplicates."""
    # scores of NaN pass, so that they are reported
    confident = (~(scores <= plan.score)).nonzero()[:, 0]
    rows = BoxRows(_to_corners(boxes[confident]), scores[confident], classes[confident], rest[confident])
    # boxes are shifted by 7,680 px per class, as the published code does, so that rounding and results are equal
    moved = rows.boxes + rows.classes[:, None].float() * 7680.0
    return rows.select(nms(moved, rows.scores, torch.zeros_like(rows.classes), plan.iou))


def _best_rows(rows: BoxRows, plan: DecodePlan) -> BoxRows:
    """Select the confident rows, best first."""
    order = rows.scores.argsort(descending=True, stable=True)
    return rows.select(order[~(rows.scores[order] <= plan.score)][:MAX_DET])


def _share_rows(boxes: torch.Tensor, scores: torch.Tensor, classes: torch.Tensor, plan: DecodePlan) -> BoxRows:
    """Make rows of boxes given by centre and size as shares of the input."""
    return BoxRows(_to_corners(boxes) * _input_sides(plan, boxes), scores, classes, boxes[:, :0])


def _to_corners(boxes: torch.Tensor) -> torch.Tensor:
    half = boxes[:, 2:] / 2
    return torch.cat((boxes[:, :2] - half, boxes[:, :2] + half), 1)


def _input_sides(plan: DecodePlan, like: torch.Tensor) -> torch.Tensor:
    height, width = plan.size
    return torch.tensor([width, height, width, height], dtype=like.dtype, device=like.device)


NONE, SEGMENTATION = "none", "segmentation"
DECODERS: Dict[str, Callable[[Tensors, DecodePlan], BoxRows]] = {
    "yolov5": yolov5, "yolov8": yolov8, "yolov8-pose": yolov8, "end2end": end2end, "rtdetr": rtdetr, "detr": detr,
    "ssd": ssd,
}  # fmt: skip
NAMES: List[str] = [*DECODERS, SEGMENTATION]
