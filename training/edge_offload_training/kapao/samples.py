"""Training samples: images with people's boxes and keypoints, from COCO-keypoints files over images or a video."""

from __future__ import annotations

import json
import pathlib
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence, Tuple, Union

import cv2
import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.models.people import COCO_KEYPOINTS
from edge_offload.models.video import read_frames

MAX_LABELS_BYTES = 1 << 30
_K = len(COCO_KEYPOINTS)


@dataclass
class Sample:
    """One image and the people in it.

    Attributes:
        image: uint8 [h, w, 3] BGR.
        boxes: float32 [n, 4], x1 y1 x2 y2 pixels.
        keypoints: float32 [n, 17, 3], x and y in pixels, visibility (0: not labelled; x and y mean nothing then).
    """

    image: Array
    boxes: Array
    keypoints: Array


class Dataset:
    """Samples by index, images scaled once so that their long side is ``size``; all of them stay in memory.

    Args:
        images: uint8 [h, w, 3] BGR images.
        people: per image, boxes and keypoints in pixels of the image as given; a keypoint's third number is its
            visibility.
        size: long side of the images kept, pixels.
    """

    def __init__(self, images: Sequence[Array], people: Sequence[Tuple[Array, Array]], size: int) -> None:
        if len(images) != len(people) or not len(images):
            raise BadInput(
                f"{len(images)} images and labels for {len(people)}", remedy="give at least one labelled image"
            )
        self.size = size
        self._samples = [_scaled(image, boxes, keypoints, size) for image, (boxes, keypoints) in zip(images, people)]

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Sample:
        return self._samples[index]

    def boxes_wh(self) -> Array:
        """Width and height of every box, float32 [total, 2], pixels: what anchors are fitted to."""
        return np.concatenate([sample.boxes[:, 2:] - sample.boxes[:, :2] for sample in self._samples])


def _scaled(image: Array, boxes: Array, keypoints: Array, size: int) -> Sample:
    scale = size / max(image.shape[:2])
    height, width = (max(1, round(side * scale)) for side in image.shape[:2])
    interpolation = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    resized = cv2.resize(image, (width, height), interpolation=interpolation) if scale != 1 else image
    factors = np.array([width / image.shape[1], height / image.shape[0]], dtype=np.float32)
    moved = np.asarray(keypoints, dtype=np.float32).reshape(-1, _K, 3).copy()
    moved[..., :2] *= factors
    return Sample(resized, np.asarray(boxes, dtype=np.float32).reshape(-1, 4) * np.tile(factors, 2), moved)


def load_coco(labels: Union[str, pathlib.Path], source: Union[str, pathlib.Path], size: int) -> Dataset:
    """Read a COCO-keypoints file.

    Args:
        labels: the JSON file (``images``, ``annotations`` with ``bbox`` x y w h and ``keypoints`` 17 × x y v).
        source: the folder that holds ``images[].file_name``, or a video file, of which ``images[].frame`` are used.
        size: long side of the images kept, pixels.

    Raises:
        BadInput: a file is missing or is not what it should be; the message names it.
    """
    document = _read_json(pathlib.Path(labels))
    by_image: Dict[Any, List[Mapping[str, Any]]] = {}
    for annotation in document.get("annotations", []):
        if not annotation.get("iscrowd"):
            by_image.setdefault(annotation["image_id"], []).append(annotation)
    entries = document.get("images", [])
    images = _read_images(pathlib.Path(source), entries)
    people = []
    for entry in entries:
        annotations = by_image.get(entry["id"], [])
        boxes = np.array([annotation["bbox"] for annotation in annotations], dtype=np.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        try:
            keypoints = np.array([a.get("keypoints", [0] * 3 * _K) for a in annotations], dtype=np.float32)
            people.append((boxes, keypoints.reshape(-1, _K, 3)))
        except ValueError as error:
            raise BadInput(f"{labels}: image {entry['id']}: keypoints are not {_K} × x y v") from error
    return Dataset(images, people, size)


def _read_json(path: pathlib.Path) -> Dict[str, Any]:
    try:
        if path.stat().st_size > MAX_LABELS_BYTES:
            raise BadInput(f"{path} is over {MAX_LABELS_BYTES >> 20} MB")
        document: Dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"cannot read labels {path}: {error.strerror}") from error
    except ValueError as error:
        raise BadInput(f"labels {path} are not JSON: {error}") from error
    if not isinstance(document, dict) or not document.get("images"):
        raise BadInput(f"labels {path} list no images", remedy="give a COCO-keypoints file")
    return document


def _read_images(source: pathlib.Path, entries: Sequence[Mapping[str, Any]]) -> List[Array]:
    if source.is_dir():
        images = []
        for entry in entries:
            image = cv2.imread(str(source / entry["file_name"]), cv2.IMREAD_COLOR)
            if image is None:
                raise BadInput(f"cannot read image {source / entry['file_name']}")
            images.append(image)
        return images
    frames = read_frames(source, [int(entry["frame"]) for entry in entries])
    return [frames[int(entry["frame"])] for entry in entries]
