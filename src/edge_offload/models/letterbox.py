"""Letterbox: scale an image into a network's input without changing its aspect, and map coordinates back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

import cv2
import numpy as np
import torch

from edge_offload.arrays import Array
from edge_offload.errors import BadInput

MAX_SIDE = 8192
"""Longest accepted image side, in pixels: a corrupt header must not allocate gigabytes."""


@dataclass(frozen=True)
class Letterbox:
    """Placement of an image in the network's input.

    Attributes:
        scale_x, scale_y: input pixels per image pixel; they differ by rounding to whole pixels only.
        left, top: input pixels of padding before the image.
        image_width, image_height: size of the original image in pixels.
        width, height: size of the network's input in pixels.
    """

    scale_x: float
    scale_y: float
    left: int
    top: int
    image_width: int
    image_height: int
    width: int
    height: int

    def to_image(self, xy: Array, clip: bool = False) -> Array:
        """Map float [..., 2] points of the network's input to pixels of the original image."""
        offset = np.array([self.left, self.top], dtype=np.float32)
        scale = np.array([self.scale_x, self.scale_y], dtype=np.float32)
        points = (np.asarray(xy, dtype=np.float32) - offset) / scale
        if clip:
            points = np.clip(points, 0, np.array([self.image_width, self.image_height], dtype=np.float32))
        return points.astype(np.float32)

    def mask_to_image(self, mask: Array) -> Array:
        """Map a uint8 mask of the network's input [H, W] to the original image [h, w], by nearest pixels."""
        width, height = round(self.image_width * self.scale_x), round(self.image_height * self.scale_y)
        inner = np.ascontiguousarray(mask[self.top : self.top + height, self.left : self.left + width])
        if inner.shape == (self.image_height, self.image_width):
            return inner
        resized: Array = cv2.resize(inner, (self.image_width, self.image_height), interpolation=cv2.INTER_NEAREST)
        return resized

    def boxes_to_image(self, boxes: Array, clip: bool = True) -> Array:
        """Map float [n, 4] x1 y1 x2 y2 boxes of the network's input to pixels of the original image."""
        return self.to_image(np.asarray(boxes, dtype=np.float32).reshape(-1, 2, 2), clip=clip).reshape(-1, 4)


def letterbox(bgr: Array, size: int, stride: int, pad: int = 114) -> Tuple[torch.Tensor, Letterbox]:
    """Scale ``bgr`` so that its long side is ``size``, pad both sides to multiples of ``stride``, convert to RGB.

    Args:
        bgr: uint8 [h, w, 3].
        size: long side of the network's input, pixels; a multiple of ``stride``.
        stride: coarsest stride of the network, pixels.
        pad: grey value of the padding, which is split evenly between opposite sides.

    Returns:
        The uint8 [3, H, W] RGB tensor, contiguous, and the placement.

    Raises:
        BadInput: the image is not a non-empty uint8 colour image, or a size makes no sense.
    """
    _check_image(bgr)
    if size % stride or not stride <= size <= MAX_SIDE:
        raise BadInput(f"input size {size} is not a multiple of {stride} between {stride} and {MAX_SIDE}")
    scale = size / max(bgr.shape[:2])
    inner = (max(1, round(bgr.shape[1] * scale)), max(1, round(bgr.shape[0] * scale)))
    width, height = (-(-side // stride) * stride for side in inner)
    return _place_image(bgr, inner, width, height, pad)


def fit_image(
    bgr: Array, width: int, height: int, stretch: bool = False, pad: int = 114
) -> Tuple[torch.Tensor, Letterbox]:
    """Scale ``bgr`` into an input of exactly ``width`` by ``height`` pixels and convert it to RGB.

    With ``stretch`` it fills the input whatever its aspect; else it is padded with ``pad``. Returns and errors as of
    :func:`letterbox`.
    """
    _check_image(bgr)
    scale = min(height / bgr.shape[0], width / bgr.shape[1])
    inner = (max(1, round(bgr.shape[1] * scale)), max(1, round(bgr.shape[0] * scale)))
    return _place_image(bgr, (width, height) if stretch else inner, width, height, pad)


def _check_image(bgr: Array) -> None:
    if not isinstance(bgr, np.ndarray) or bgr.dtype != np.uint8 or bgr.ndim != 3 or bgr.shape[2] != 3:
        received = f"{bgr.dtype} {bgr.shape}" if isinstance(bgr, np.ndarray) else type(bgr).__name__
        raise BadInput(f"expected a uint8 [h, w, 3] BGR image, got {received}", remedy="convert the image to bgr8")
    if not 0 < min(bgr.shape[:2]) <= max(bgr.shape[:2]) <= MAX_SIDE:
        raise BadInput(f"image of {bgr.shape[1]}x{bgr.shape[0]} pixels", remedy=f"sides must be 1 to {MAX_SIDE}")


def _place_image(
    bgr: Array, inner: Tuple[int, int], width: int, height: int, pad: int
) -> Tuple[torch.Tensor, Letterbox]:
    """Scale ``bgr`` to ``inner`` (width, height) in the middle of an input of ``width`` by ``height`` pixels."""
    image_height, image_width = bgr.shape[:2]
    if inner != (image_width, image_height):
        bgr = cv2.resize(bgr, inner, interpolation=cv2.INTER_LINEAR)
    left, top = (width - inner[0]) // 2, (height - inner[1]) // 2
    canvas = np.full((3, height, width), pad, dtype=np.uint8)
    canvas[:, top : top + inner[1], left : left + inner[0]] = bgr[:, :, ::-1].transpose(2, 0, 1)
    placement = Letterbox(
        scale_x=inner[0] / image_width,
        scale_y=inner[1] / image_height,
        left=left,
        top=top,
        image_width=image_width,
        image_height=image_height,
        width=width,
        height=height,
    )
    return torch.from_numpy(canvas), placement
