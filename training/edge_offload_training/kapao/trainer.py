"""The training loop: deterministic per seed, resumable after any interruption, with a moving average of the weights.

A checkpoint is one safetensors file (nothing in it can be executed): network, its moving average and the optimizer's
state as tensors, the position as metadata. It is written after every epoch by rename, so that a kill at any moment
leaves the last whole one; everything random is drawn from generators seeded by (seed, epoch, sample), so that the
resumed run continues the same curve.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import pathlib
import queue
import threading
import time
from dataclasses import dataclass
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import nn

from edge_offload.errors import BadInput
from edge_offload.models.cache import write_atomic
from edge_offload_training.kapao import augment
from edge_offload_training.kapao.loss import Weights, loss, target_rows
from edge_offload_training.kapao.samples import Dataset, Sample

LOG_FIELDS = ("epoch", "step", "loss", "box", "obj", "cls", "kp", "learning_rate", "images_per_s")
MAX_CHECKPOINT_BYTES = 4 << 30


@dataclass(frozen=True)
class Config:
    """What determines a run. A resumed run must have the same, but for ``epochs``: a run may be prolonged or cut short.

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
        self.network = network.to(device).train()
        self.anchors = [anchor.to(device) for anchor in anchors]
        self.strides = list(strides)
        self.dataset = dataset
        self.config = config
        self.folder = folder
        self.device = device
        self.epoch = 0
        self.step = 0
        self.average = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
        self._forward = forward or network
        self._optimizer = torch.optim.AdamW(_groups(network, config.weight_decay), lr=config.learning_rate)
        folder.mkdir(parents=True, exist_ok=True)
        self._resume()

    @property
    def checkpoint(self) -> pathlib.Path:
        """The file that a resumed run continues from."""
        return self.folder / "last.safetensors"

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one pass over the data; a smaller rest is left out of that pass."""
        return max(1, len(self.dataset) // self.config.batch)

    def run(self, report: Callable[[Dict[str, float]], None], deadline_s: Optional[float] = None) -> bool:
        """Train until the last epoch, or until the epoch during which monotonic time passes ``deadline_s``.

        Args:
            report: called with :data:`LOG_FIELDS` after every epoch.

        Returns:
            Whether the last epoch was reached.
        """
        while self.epoch < self.config.epochs:
            row = self._one_epoch()
            self._save()
            self._log(row)
            report(row)
            if deadline_s is not None and time.monotonic() > deadline_s:
                break
        return self.epoch >= self.config.epochs

    def _one_epoch(self) -> Dict[str, float]:
        started = time.monotonic()
        sums = dict.fromkeys(("loss", "box", "obj", "cls", "kp"), 0.0)
        count = 0
        for images, targets in _prefetched(self._batches(self.epoch)):
            rate = self._set_rate()
            levels = self._forward(images.to(self.device))
            total, parts = loss(levels, targets.to(self.device), self.anchors, self.strides, self.config.weights)
            if not bool(torch.isfinite(total)):
                raise BadInput(f"the loss is {float(total)} at step {self.step}", remedy="lower the learning rate")
            self._optimizer.zero_grad(set_to_none=True)
            total.backward()
            nn.utils.clip_grad_norm_(self.network.parameters(), 10.0)
            self._optimizer.step()
            self._update_average()
            self.step += 1
            count += 1
            sums["loss"] += float(total.detach()) / self.config.batch
            for name, value in parts.items():
                sums[name] += value
        self.epoch += 1
        row = {name: value / count for name, value in sums.items()}
        images_per_s = count * self.config.batch / (time.monotonic() - started)
        return {"epoch": self.epoch, "step": self.step, **row, "learning_rate": rate, "images_per_s": images_per_s}

    def _batches(self, epoch: int) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
        order = np.random.default_rng((self.config.seed, epoch)).permutation(len(self.dataset))
        batch = min(self.config.batch, len(self.dataset))
        for start in range(0, self.steps_per_epoch * batch, batch):
            samples = [self._sample(epoch, int(index)) for index in order[start : start + batch]]
            yield collate(samples, max(self.config.canvas), self.config.weights.keypoint_box)

    def _sample(self, epoch: int, index: int) -> Sample:
        random = np.random.default_rng((self.config.seed, epoch, index))
        return augment.make(self.dataset, index, self.config.canvas, self.config.augmentation, random)

    def _set_rate(self) -> float:
        config = self.config
        total = max(1, config.epochs * self.steps_per_epoch)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, self.step / total)))
        rate = config.learning_rate * (config.final_share + (1 - config.final_share) * cosine)
        rate *= min(1.0, (self.step + 1) / max(1, config.warmup_steps))
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate

    @torch.no_grad()
    def _update_average(self) -> None:
        # a short history counts for more at the beginning, or the random start would linger in the average
        keep = min(self.config.ema, (1 + self.step) / (10 + self.step))
        for name, tensor in self.network.state_dict().items():
            average = self.average[name]
            if average.dtype.is_floating_point:
                average.mul_(keep).add_(tensor, alpha=1 - keep)
            else:
                average.copy_(tensor)

    def _log(self, row: Dict[str, float]) -> None:
        path = self.folder / "log.csv"
        rows: List[Dict[str, str]] = []
        if path.exists():
            with path.open(newline="", encoding="utf-8") as stream:
                rows = [old for old in csv.DictReader(stream) if int(old["epoch"]) < row["epoch"]]
        lines = [",".join(LOG_FIELDS)] + [",".join(old[field] for field in LOG_FIELDS) for old in rows]
        lines.append(",".join(f"{row[field]:.6g}" for field in LOG_FIELDS))
        write_atomic(path, ("\n".join(lines) + "\n").encode("ascii"))

    def _save(self) -> None:
        from safetensors.torch import save

        tensors = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        tensors.update({f"average.{name}": tensor for name, tensor in self.average.items()})
        for index, parameter in enumerate(self._parameters()):
            for key, value in self._optimizer.state[parameter].items():
                tensors[f"optimizer.{index}.{key}"] = value
        metadata = {"epoch": str(self.epoch), "step": str(self.step), "config": self.config.identity()}
        data = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, metadata)
        write_atomic(self.checkpoint, data)

    def _parameters(self) -> List[nn.Parameter]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def _resume(self) -> None:
        from safetensors import SafetensorError, safe_open

        if not self.checkpoint.exists():
            return
        if self.checkpoint.stat().st_size > MAX_CHECKPOINT_BYTES:
            raise BadInput(f"{self.checkpoint} is over {MAX_CHECKPOINT_BYTES >> 30} GB")
        try:
            with safe_open(str(self.checkpoint), framework="pt") as stream:
                metadata = stream.metadata() or {}
                tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise BadInput(
                f"{self.checkpoint} is not a checkpoint: {error}", remedy="remove it to start over"
            ) from error
        if metadata.get("config") != self.config.identity():
            raise BadInput(
                f"{self.checkpoint} was made with other settings", remedy="use another folder, or the same settings"
            )
        try:
            self.network.load_state_dict(_under("network.", tensors))
            for name, tensor in _under("average.", tensors).items():
                self.average[name].copy_(tensor)
            for index, parameter in enumerate(self._parameters()):
                state = _under(f"optimizer.{index}.", tensors)
                # the step count stays on the CPU, where AdamW keeps it
                self._optimizer.state[parameter] = {
                    key: value if key == "step" else value.to(parameter.device) for key, value in state.items()
                }
            self.epoch, self.step = int(metadata["epoch"]), int(metadata["step"])
        except (KeyError, RuntimeError, ValueError) as error:
            raise BadInput(
                f"{self.checkpoint} does not fit this network: {error}", remedy="use another folder"
            ) from error


def collate(samples: Sequence[Sample], long_side: int, keypoint_box: float) -> Tuple[torch.Tensor, torch.Tensor]:
    """Images uint8 [n, 3, H, W] RGB and target rows of ``samples``, which have the same size."""
    images = np.stack([sample.image[:, :, ::-1].transpose(2, 0, 1) for sample in samples])
    targets = target_rows([(sample.boxes, sample.keypoints) for sample in samples], long_side, keypoint_box)
    return torch.from_numpy(images), targets


def _groups(network: nn.Module, decay: float) -> List[Dict[str, object]]:
    """Weight decay for matrices and filters only: biases and normalisation scales are left alone."""
    decayed = [parameter for parameter in network.parameters() if parameter.ndim > 1]
    free = [parameter for parameter in network.parameters() if parameter.ndim <= 1]
    return [{"params": decayed, "weight_decay": decay}, {"params": free, "weight_decay": 0.0}]


def _under(prefix: str, tensors: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _prefetched(
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
