"""The training loop: deterministic per seed, resumable after any interruption, with a moving average of the weights.

A checkpoint (see :mod:`edge_offload_training.learner`) is written after every epoch; everything random is drawn from
generators seeded by (seed, epoch, sample), so that the resumed run continues the same curve.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import queue
import threading
import time
from dataclasses import dataclass
from typing import Callable, Dict, Iterator, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import nn

from edge_offload_training.kapao import augment
from edge_offload_training.kapao.loss import Weights, loss, target_rows
from edge_offload_training.kapao.samples import Dataset, Sample
from edge_offload_training.learner import Learner

LOG_FIELDS = ("epoch", "step", "loss", "box", "obj", "cls", "kp", "learning_rate", "images_per_s")
LONGEST_GRADIENT = 10.0


@dataclass(frozen=True)
class Config:
    """Configuration of a run. A resumed run must have the same, except for ``epochs``.

    Attributes:
        canvas: height and width of the network's input in training, pixels; multiples of 64.
        epochs, batch: passes over the data, images per step.
        learning_rate, final_share: the rate falls from the first along a cosine to this share of it.
        warmup_steps: steps over which the rate rises linearly from zero.
        weight_decay, ema: of the optimizer (AdamW), of the moving average.
        seed: of everything random.
    """

    canvas: Tuple[int, int] = (512, 512)
    epochs: int = 100
    batch: int = 8
    learning_rate: float = 2e-3
    final_share: float = 0.02
    warmup_steps: int = 200
    weight_decay: float = 5e-3
    ema: float = 0.998
    seed: int = 0
    weights: Weights = dataclasses.field(default_factory=Weights)
    augmentation: augment.Augmentation = dataclasses.field(default_factory=augment.Augmentation)

    def identity(self) -> str:
        """The config but for the number of epochs, as JSON.

        Two runs with the same identity, data and number of epochs give the same curve.
        """
        facts = dataclasses.asdict(self)
        del facts["epochs"]
        return json.dumps(facts, sort_keys=True)


class Trainer:
    """Trains ``network`` on ``dataset`` and keeps a checkpoint and a CSV log in ``folder``.

    Args:
        network: maps uint8 [n, 3, H, W] RGB to the raw levels that :func:`loss.loss` takes; see ``forward``.
        anchors: per level, float [a, 2] pixels.
        strides: per level, pixels.
        forward: calls the network; the default is ``network(images)``.
        device: where to train.
    """

    def __init__(
        self,
        network: nn.Module,
        anchors: Sequence[torch.Tensor],
        strides: Sequence[int],
        dataset: Dataset,
        config: Config,
        folder: pathlib.Path,
        forward: Optional[Callable[[torch.Tensor], Sequence[torch.Tensor]]] = None,
        device: str = "cpu",
    ) -> None:
        self.anchors = [anchor.to(device) for anchor in anchors]
        self.strides = list(strides)
        self.dataset = dataset
        self.config = config
        self.device = device
        self._forward = forward or network
        self._learner = Learner(network, config, folder, device)
        self.epoch, self.step = self._learner.resume("epoch", "step")

    @property
    def average(self) -> Dict[str, torch.Tensor]:
        """Moving average of the network's state, by name."""
        return self._learner.average

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one pass over the data; a smaller rest is left out of that pass."""
        return max(1, len(self.dataset) // self.config.batch)

    def run(self, report: Callable[[Dict[str, float]], None], deadline_s: Optional[float] = None) -> bool:
        """Train until the last epoch, or until the epoch during which monotonic time passes ``deadline_s``.

        Args:
            report: called with :data:`LOG_FIELDS` after every epoch.
            deadline_s: seconds, monotonic; None: there is none.

        Returns:
            Whether the last epoch was reached.
        """
        while self.epoch < self.config.epochs:
            row = self._one_epoch()
            self._learner.save(epoch=self.epoch, step=self.step)
            self._learner.log(LOG_FIELDS, row)
            report(row)
            if deadline_s is not None and time.monotonic() > deadline_s:
                break
        return self.epoch >= self.config.epochs

    def _one_epoch(self) -> Dict[str, float]:
        started = time.monotonic()
        sums = dict.fromkeys(("loss", "box", "obj", "cls", "kp"), 0.0)
        count = 0
        for images, targets in _prefetch_batches(self._make_batches(self.epoch)):
            rate = self._current_rate()
            levels = self._forward(images.to(self.device))
            total, parts = loss(levels, targets.to(self.device), self.anchors, self.strides, self.config.weights)
            sums["loss"] += self._learner.descend_step(total, self.step, rate, LONGEST_GRADIENT) / self.config.batch
            self.step += 1
            count += 1
            for name, value in parts.items():
                sums[name] += value
        self.epoch += 1
        row = {name: value / count for name, value in sums.items()}
        images_per_s = count * self.config.batch / (time.monotonic() - started)
        return {"epoch": self.epoch, "step": self.step, **row, "learning_rate": rate, "images_per_s": images_per_s}

    def _make_batches(self, epoch: int) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
        order = np.random.default_rng((self.config.seed, epoch)).permutation(len(self.dataset))
        batch = min(self.config.batch, len(self.dataset))
        for start in range(0, self.steps_per_epoch * batch, batch):
            samples = [self._make_sample(epoch, int(index)) for index in order[start : start + batch]]
            yield collate_samples(samples, max(self.config.canvas), self.config.weights.keypoint_box)

    def _make_sample(self, epoch: int, index: int) -> Sample:
        random = np.random.default_rng((self.config.seed, epoch, index))
        return augment.make(self.dataset, index, self.config.canvas, self.config.augmentation, random)

    def _current_rate(self) -> float:
        config = self.config
        total = max(1, config.epochs * self.steps_per_epoch)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, self.step / total)))
        rate = config.learning_rate * (config.final_share + (1 - config.final_share) * cosine)
        return rate * min(1.0, (self.step + 1) / max(1, config.warmup_steps))


def collate_samples(
    samples: Sequence[Sample], long_side: int, keypoint_box: float
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Images uint8 [n, 3, H, W] RGB and target rows of ``samples``, which have the same size."""
    images = np.stack([sample.image[:, :, ::-1].transpose(2, 0, 1) for sample in samples])
    targets = target_rows([(sample.boxes, sample.keypoints) for sample in samples], long_side, keypoint_box)
    return torch.from_numpy(images), targets


def _prefetch_batches(
    batches: Iterator[Tuple[torch.Tensor, torch.Tensor]], depth: int = 2
) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
    """Make ``batches`` on a thread, up to ``depth`` ahead (OpenCV releases the interpreter lock while it works)."""
    ready: queue.Queue[object] = queue.Queue(depth)
    stop = threading.Event()

    def put(item: object) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for batch in batches:
                if not put(batch):
                    return
            put(None)
        except Exception as error:
            put(error)

    thread = threading.Thread(target=work, name="edge_offload-batches", daemon=True)
    thread.start()
    try:
        while True:
            item = ready.get()
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item  # type: ignore[misc]
    finally:
        stop.set()
        thread.join()
