"""What a training run is made of: the user's settings, the rest of the hyper-parameters, anchors, the weights file."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass
from typing import Callable, Dict, List, Mapping, Sequence, Tuple

import numpy as np
import torch

from edge_offload.cache import write_atomic
from edge_offload.errors import BadInput
from edge_offload.models.kapao.network import DEFAULT_ANCHORS, STRIDES, Scale
from edge_offload_training.kapao import start
from edge_offload_training.kapao.augment import Augmentation
from edge_offload_training.kapao.loss import Weights, fit_anchors
from edge_offload_training.kapao.samples import Dataset
from edge_offload_training.kapao.trainer import Config, Trainer

Row = Dict[str, float]
WEIGHTS_FILE = "weights.safetensors"

WEIGHTS = Weights(box=0.1, obj=1.0, cls=0.3, kp=0.025, anchor_ratio=2.6, keypoint_box=0.04)
"""The paper's with boxes and objectness raised, for short runs; see :data:`start.SMALL_ANCHORS` for the ratio."""

FIXED_CAMERA = Augmentation(mosaic=0.0, crop=True, paste=0.6, scale=0.25, shift=0.0)
"""Windows of the image, with people of other moments pasted where they walked."""

MOVING_CAMERA = Augmentation(mosaic=0.5, crop=True, paste=0.0, scale=0.5, shift=0.0)
"""Half of the images joined from four; nothing pasted, as it would stand before a wrong background."""


@dataclass(frozen=True)
class Settings:
    """Settings of a user.

    Attributes:
        scale: depth and width of the network.
        size: long side of the images, pixels.
        window: height and width of the windows that are trained on, pixels, multiples of 64.
        epochs, batch, learning_rate, seed: see :class:`~edge_offload_training.kapao.trainer.Config`.
        fixed_camera: whether all images come from one camera that does not move.

    Raises:
        BadInput: see :func:`check_step`.
    """

    scale: Scale
    size: int = 512
    window: Tuple[int, int] = (256, 384)
    epochs: int = 70
    batch: int = 8
    learning_rate: float = 2e-3
    seed: int = 0
    fixed_camera: bool = True

    def __post_init__(self) -> None:
        check_step(self.window, self.batch)

    def config(self) -> Config:
        """The settings as the trainer takes them."""
        return Config(
            canvas=self.window,
            epochs=self.epochs,
            batch=self.batch,
            learning_rate=self.learning_rate,
            final_share=0.01,
            warmup_steps=150,
            weight_decay=1e-2,
            ema=0.998,
            seed=self.seed,
            weights=WEIGHTS,
            augmentation=FIXED_CAMERA if self.fixed_camera else MOVING_CAMERA,
        )


def check_step(window: Tuple[int, int], images: int) -> None:
    """Look whether a step of so many images of ``window`` can be normalised over its batch.

    Raises:
        BadInput: the coarsest map has a single point, which has no variance.
    """
    side = max(STRIDES)
    if images * (window[0] // side) * (window[1] // side) < 2:
        raise BadInput(
            f"{images} image of {window[0]}x{window[1]} a step is too little to train on",
            remedy=f"use --window {side}x{2 * side} or larger, or --batch 2 with at least 2 images",
        )


def anchors_for(dataset: Dataset, keypoint_side: float, ratio: float) -> List[List[float]]:
    """Anchors for the sizes in ``dataset``: a set that is known to work where it fits, else fitted ones.

    Args:
        dataset: labelled people.
        keypoint_side: side of a keypoint object, pixels.
        ratio: see :func:`fit_anchors`.
    """
    people = dataset.boxes_wh()
    sizes = np.concatenate([people, np.full((max(1, len(people)), 2), keypoint_side)])
    for candidates in (start.SMALL_ANCHORS, DEFAULT_ANCHORS):
        flat = np.array(candidates, dtype=float).reshape(-1, 2)
        relative = sizes[:, None] / flat[None]
        if (np.maximum(relative, 1 / relative).max(2).min(1) < ratio).mean() >= 0.95:
            return [list(map(float, level)) for level in candidates]
    return fit_anchors(sizes, DEFAULT_ANCHORS, ratio)


def prepare(settings: Settings, dataset: Dataset, folder: pathlib.Path, device: str) -> Trainer:
    """The trainer in ``folder``, where it goes on if there is a checkpoint.

    Raises:
        BadInput: the checkpoint there is damaged, of another network, or of a run with other settings; or see
            :func:`check_step`.
    """
    config = settings.config()
    check_step(settings.window, min(settings.batch, len(dataset)))
    side = config.weights.keypoint_box * max(config.canvas)
    network = start.make_network(settings.scale, anchors_for(dataset, side, config.weights.anchor_ratio), settings.seed)
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Trainer(
        network,
        start.anchors_of(network),
        list(STRIDES),
        dataset,
        config,
        folder,
        start.make_trainable(network),
        device,
    )


def export(average: Mapping[str, torch.Tensor], settings: Settings, path: pathlib.Path, **facts: float) -> None:
    """Write the moving average of the weights as half-precision safetensors with what is needed to use them.

    Args:
        average: weights by name.
        settings: of the training.
        path: of the file.
        facts: further numbers for the file's metadata, such as ``conf``.
    """
    from safetensors.torch import save

    tensors = {
        name: (tensor.half() if tensor.dtype == torch.float32 else tensor).detach().cpu().contiguous()
        for name, tensor in average.items()
        if not name.endswith(".num_batches_tracked")
    }
    bad = [name for name, tensor in tensors.items() if not torch.isfinite(tensor.float()).all()]
    if bad:
        raise BadInput(f"{bad[0]} does not fit half precision", remedy="train with a lower learning rate")
    numbers = {"depth": settings.scale.depth, "width": settings.scale.width, "size": settings.size, **facts}
    write_atomic(path, save(tensors, {name: repr(value) for name, value in numbers.items()}))


def progress(
    epochs: int, started_epoch: int, clock: Callable[[], float], write: Callable[[str], None]
) -> Callable[[Row], None]:
    """A reporter for the trainer: one line an epoch, with the time that is left at the pace so far."""
    begun = clock()

    def report(row: Row) -> None:
        epoch = int(row["epoch"])
        pace = (clock() - begun) / max(1, epoch - started_epoch)
        remaining_s = round(pace * (epochs - epoch))
        write(
            f"epoch {epoch}/{epochs}  loss {row['loss']:.3f}  box {row['box']:.3f}  objectness {row['obj']:.3f}  "
            f"class {row['cls']:.3f}  keypoints {row['kp']:.2f}  {row['images_per_s']:.1f} images/s  "
            f"{remaining_s // 3600}:{remaining_s // 60 % 60:02d}:{remaining_s % 60:02d} left"
        )

    return report


def spread(frames: Sequence[int], count: int) -> List[int]:
    """Select at most ``count`` of ``frames``, evenly spread."""
    if len(frames) <= count:
        return list(frames)
    return [frames[index] for index in np.linspace(0, len(frames) - 1, count).round().astype(int)]
