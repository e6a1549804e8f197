"""Selection of a network's decoder: by the outputs' shapes and names and the exporter's metadata, or by option."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from edge_offload.errors import BadInput
from edge_offload.models.onnxfile.decoders import DECODERS, NAMES, NONE, SEGMENTATION, DecodePlan
from edge_offload.models.onnxfile.reading import Graph, keypoints_of, labels_of
from edge_offload.models.people import COCO_KEYPOINTS

AUTO = "auto"
#: Sets of strides of detectors, pixels.
STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32), (16, 32))
#: Exporters' tasks that are supported.
TASKS = ("", "detect", "segment", "pose", "semantic")
#: Overlap of one object's boxes, where published with the format.
IOU = {"yolov5": 0.45}
#: Values of an input: 0 to 1, these normalised with ImageNet's mean and deviation, or 0 to 255.
UNIT, IMAGENET, BYTE = "unit", "imagenet", "byte"
LETTERBOX, STRETCH = "letterbox", "stretch"
_PREPARED: Dict[str, Tuple[str, str]] = {
    "rtdetr": (UNIT, STRETCH), "ssd": (UNIT, STRETCH), "detr": (IMAGENET, LETTERBOX), SEGMENTATION: (IMAGENET, STRETCH),
}  # fmt: skip


@dataclass(frozen=True)
class GraphOutput:
    """One output of the network, for a computed image.

    Attributes:
        name: in the graph.
        shape: of its values.
        real: whether they are floating-point numbers.
    """

    name: str
    shape: Tuple[int, ...]
    real: bool


def plan_of(
    graph: Graph,
    size: Tuple[int, int],
    outputs: Sequence[GraphOutput],
    decoder: str = AUTO,
    score: float = 0.25,
    iou: float = 0.0,
) -> DecodePlan:
    """Plan the decoding of ``outputs``.

    Args:
        graph: of the file.
        size: height and width of the network's input, pixels.
        outputs: of the network.
        decoder: a name of :data:`~edge_offload.models.onnxfile.decoders.NAMES`, ``none`` or ``auto``.
        score: see :class:`DecodePlan`.
        iou: see :class:`DecodePlan`; 0: the format's default.

    Raises:
        BadInput: no decoder fits, or the given one does not.
    """
    if decoder not in (AUTO, NONE, *NAMES):
        raise BadInput(f"no decoder {decoder!r}", remedy=f"use one of: {', '.join((AUTO, *NAMES))}")
    task = graph.metadata.get("task", "")
    if decoder == AUTO and task not in TASKS:
        remedy = "boxes, keypoints, masks and segmentation are decoded; of others detector:=package.module:Class"
        raise BadInput(f"{graph.name} was exported for {task[:40]!r}", remedy)
    name = _recognise_decoder(graph, size, outputs) if decoder == AUTO else decoder
    plan = _make_plan(name, graph, size, outputs)
    if plan is None:
        shapes = ", ".join(f"{one.name} {list(one.shape)}{'' if one.real else ' of integers'}" for one in outputs[:8])
        unfit = f"decoder {name} does not fit" if name else "no decoder is known for them"
        remedy = f"name one (decoder: {', '.join(NAMES)}), or a class of your own (detector:=package.module:Class)"
        raise BadInput(f"outputs of {graph.name}: {shapes}, for {describe_size(size)}: {unfit}", remedy)
    labels = len(labels_of(graph))
    if plan.classes and labels and labels != plan.classes:
        cause = f"{graph.name} has {labels} names of classes, and its outputs have {plan.classes} classes"
        raise BadInput(cause, remedy="export it anew")
    most = 254
    if plan.masks and max(plan.classes, labels) > most:
        raise BadInput(f"{graph.name}: a mask tells {most} classes apart, not {plan.classes}")
    return DecodePlan(
        **{**vars(plan), "size": size, "score": score, "iou": iou or IOU.get(plan.decoder, DecodePlan.iou)}
    )


def describe_size(size: Tuple[int, int]) -> str:
    """Format an input's size."""
    return f"images of {size[1]}x{size[0]}"


def input_format(graph: Graph, plan: DecodePlan) -> Tuple[str, str]:
    """Return the input's range of values and the way an image is fitted into it."""
    if plan.decoder == SEGMENTATION and graph.metadata.get("task") == "semantic":
        return UNIT, LETTERBOX
    if plan.tensorflow:
        return BYTE, STRETCH
    return _PREPARED.get(plan.decoder, (UNIT, LETTERBOX))


def _recognise_decoder(graph: Graph, size: Tuple[int, int], outputs: Sequence[GraphOutput]) -> str:
    """Return a decoder's name; empty: none fits unambiguously."""
    task, labels, names = graph.metadata.get("task", ""), len(labels_of(graph)), {one.name for one in outputs}
    if {"logits", "pred_boxes"} <= names:
        # reference points refined through an inverse sigmoid: scores are sigmoids; without them: DETR, YOLOS
        refined = graph.operators & {"Log", "GridSample", "TopK"}
        return "detr" if not refined else "rtdetr" if {"GridSample", "TopK"} <= graph.operators else ""
    if _find_ssd_outputs(outputs) is not None:
        return "ssd"
    first = outputs[0]
    if len(first.shape) == 3 and first.real and task != "semantic":
        if first.shape[2] in _count_places(size):
            unsaid = not task and not labels and first.shape[1] == 5 + 3 * len(COCO_KEYPOINTS)
            return "" if unsaid else "yolov8-pose" if task == "pose" else "yolov8"
        if first.shape[1] in [3 * places for places in _count_places(size)]:  # three anchors at every place
            return "yolov5"
        exporter_text = f"{graph.metadata.get('head', '')} {graph.metadata.get('description', '')}".lower()
        if "rtdetr" in exporter_text or "rt-detr" in exporter_text:
            return "rtdetr"
        return "end2end" if task or graph.metadata.get("end2end") == "True" else ""
    full_size = first.shape[-2:] == size or first.name in ("logits", "out")
    alike = all(one.shape == first.shape and one.real == first.real for one in outputs)
    return SEGMENTATION if task == "semantic" or (full_size and alike and _is_segmentation(first)) else ""


def _make_plan(name: str, graph: Graph, size: Tuple[int, int], outputs: Sequence[GraphOutput]) -> Optional[DecodePlan]:
    """Make the plan of a decoder; None: the outputs do not fit."""
    if name == NONE:
        return DecodePlan(NONE, size)
    if name == "ssd":
        positions = _find_ssd_outputs(outputs)
        by_tensorflow = any(one.name.startswith("detection_boxes") for one in outputs)
        return DecodePlan(name, size, outputs=positions, tensorflow=by_tensorflow) if positions else None
    if name == SEGMENTATION:
        classes = outputs[0].shape[1] if outputs[0].real else 0
        return DecodePlan(name, size, classes, masks=True) if _is_segmentation(outputs[0]) else None
    if name in ("rtdetr", "detr"):
        pair = _logits_and_boxes(outputs)
        if pair is not None:
            return DecodePlan(name, size, outputs[pair[0]].shape[2] - (name == "detr"), outputs=pair)
    first = outputs[0]
    if name not in DECODERS or name == "detr" or len(first.shape) != 3 or not first.real:
        return None
    if name == "rtdetr":
        six = first.shape[2] == 6 and ("head" in graph.metadata or len(labels_of(graph)) != 2)
        return DecodePlan(name, size, 0 if six else first.shape[2] - 4) if first.shape[2] > 4 else None
    return _plan_yolo(name, graph, size, outputs)


def _plan_yolo(name: str, graph: Graph, size: Tuple[int, int], outputs: Sequence[GraphOutput]) -> Optional[DecodePlan]:
    """Make the plan of a format of one table, with columns of boxes, keypoints or masks."""
    prototypes = [number for number, one in enumerate(outputs) if len(one.shape) == 4 and one.real]
    of_mask = outputs[prototypes[0]].shape[1] if prototypes else 0
    columns = outputs[0].shape[1 if name.startswith("yolov8") else 2] - {"yolov5": 5, "end2end": 6}.get(name, 4)
    points = keypoints_of(graph)
    labels = len(labels_of(graph))
    if name == "end2end":
        classes = 0
        points = points if points[0] or of_mask or not columns else (columns // 3, 3)
        fits = columns == (of_mask or points[0] * points[1])
    elif name == "yolov8-pose":
        points = points if points[0] else ((columns - (labels or 1)) // 3, 3)
        classes = columns - points[0] * points[1]
        fits = classes >= 1 and points[0] >= 1 and (bool(keypoints_of(graph)[0]) or classes == (labels or 1))
    else:
        points, classes = (0, 0), columns - of_mask
        fits = classes >= 1
    chosen = (0, prototypes[0]) if of_mask else (0,)
    return DecodePlan(name, size, classes, points, chosen, bool(of_mask)) if fits else None


def _find_ssd_outputs(outputs: Sequence[GraphOutput]) -> Optional[Tuple[int, ...]]:
    """Find boxes, scores and classes: by name, or by kind among three outputs; None: not found."""
    keywords = (("box",), ("score", "conf"), ("label", "class"))
    positions: List[int] = []
    for few in keywords:
        named = [
            n for n, one in enumerate(outputs) if any(w in one.name.lower() for w in few) and "raw" not in one.name
        ]
        positions += named[:1] if len(named) == 1 else []
    if len(set(positions)) != len(keywords) and len(outputs) == len(keywords):
        kinds = [_output_kind(one) for one in outputs]
        positions = [kinds.index(kind) for kind in ("boxes", "scores", "classes") if kinds.count(kind) == 1]
    if len(set(positions)) != len(keywords) or _output_kind(outputs[positions[0]]) != "boxes":
        return None
    rows = outputs[positions[0]].shape[-2]
    return tuple(positions) if all(outputs[number].shape[-1:] == (rows,) for number in positions[1:]) else None


def _output_kind(one: GraphOutput) -> str:
    shape = one.shape[1:] if len(one.shape) > 1 and one.shape[0] == 1 and len(one.shape) != 2 else one.shape
    if len(shape) == 2 and shape[1] == 4 and one.real:
        return "boxes"
    rows = len(shape) == 1 or (len(shape) == 2 and shape[0] == 1)
    return ("scores" if one.real else "classes") if rows else ""


def _logits_and_boxes(outputs: Sequence[GraphOutput]) -> Optional[Tuple[int, int]]:
    names = [one.name for one in outputs]
    if "logits" in names and "pred_boxes" in names:
        return names.index("logits"), names.index("pred_boxes")
    flat = [len(one.shape) == 3 and one.real for one in outputs[:2]]
    if len(flat) == 2 and all(flat) and outputs[0].shape[1] == outputs[1].shape[1]:
        fours = [one.shape[2] == 4 for one in outputs[:2]]
        return None if fours[0] == fours[1] else (1, 0) if fours[0] else (0, 1)
    return None


def _is_segmentation(one: GraphOutput) -> bool:
    """Return whether an output has scores of at least two classes per pixel, or integers."""
    if one.real:
        return len(one.shape) == 4 and one.shape[0] == 1 and one.shape[1] >= 2
    return len(one.shape) in (3, 4) and all(side == 1 for side in one.shape[:-2])


def _count_places(size: Tuple[int, int]) -> List[int]:
    """Count the places of a network without anchors, for each set of strides."""
    return [sum(-(-size[0] // stride) * -(-size[1] // stride) for stride in strides) for strides in STRIDES]
