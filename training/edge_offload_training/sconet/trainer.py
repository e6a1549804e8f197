"""The training loop: a function of its settings and the step, resumable after any interruption."""

from __future__ import annotations

import csv
import dataclasses
import json
import pathlib
import time
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional

import torch
from torch import nn

from edge_offload.errors import BadInput
from edge_offload.models import checkpoint
from edge_offload.models.cache import write_atomic
from edge_offload.models.sconet.network import SCONet
from edge_offload_training.sconet.crops import CropConfig, Crops, Source
from edge_offload_training.sconet.loss import coarse_loss, loss

LOG_FIELDS = ("step", "loss", "classes", "completion", "coarse", "learning_rate", "seconds_per_step")


@dataclass(frozen=True)
class Config:
    """What determines a run. A resumed run must have the same, except for ``steps`` and ``learning_rate``.

    Attributes:
        steps: in all. The learning rate falls over the last quarter of them; a run that is continued with more
            steps goes on at the full rate.
        coarse: weight of the U-Net's own loss.
        learning_rate: of AdamW, reached after ``warmup`` steps.
        weight_decay, ema: of the optimizer, of the moving average of the weights.
        seed: of everything random.
        save_every: steps between checkpoints.
    """

    steps: int = 20_000
    learning_rate: float = 3e-3
    warmup: int = 50
    weight_decay: float = 1e-3
    ema: float = 0.995
    coarse: float = 0.5
    seed: int = 0
    save_every: int = 50
    crops: CropConfig = dataclasses.field(default_factory=CropConfig)

    def identity(self) -> str:
        """What a checkpoint must agree with, as JSON."""
        settings = dataclasses.asdict(self)
        for free in ("steps", "learning_rate", "save_every"):
            del settings[free]
        return json.dumps(settings, sort_keys=True)

    def rate(self, step: int) -> float:
        """Learning rate at this step."""
        rise = min(1.0, (step + 1) / max(1, self.warmup))
        left = (self.steps - step) / max(1.0, 0.25 * self.steps)
        return self.learning_rate * rise * max(0.02, min(1.0, left))


class Trainer:
    """Trains ``network`` on crops of the scenes of ``source``; keeps a checkpoint and a CSV log in ``folder``.

    Args:
        count: how many scenes ``source`` has; 0: any number.

    Raises:
        BadInput: the folder holds a checkpoint that is damaged or comes from other settings.
    """

    def __init__(
        self,
        network: SCONet,
        source: Source,
        config: Config,
        folder: pathlib.Path,
        count: int = 0,
        device: str = "cpu",
    ) -> None:
        self.network = network.to(device).train()
        self.config = config
        self.folder = folder
        self.step = 0
        self.average = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
        self._device = device
        self._crops = Crops(source, config.crops, config.seed, count)
        self._optimizer = torch.optim.AdamW(_groups(network, config.weight_decay), lr=config.learning_rate)
        self._recent: List[Dict[str, float]] = []
        folder.mkdir(parents=True, exist_ok=True)
        if self.checkpoint.exists():
            self._resume()

    @property
    def checkpoint(self) -> pathlib.Path:
        """The file that a resumed run continues from."""
        return self.folder / "last.safetensors"

    def run(self, report: Callable[[Dict[str, float]], None], deadline_s: Optional[float] = None) -> bool:
        """Train until the last step, or until the checkpoint after monotonic time ``deadline_s``.

        Args:
            report: called with :data:`LOG_FIELDS` at every checkpoint.

        Returns:
            Whether the last step was reached.
        """
        while self.step < self.config.steps:
            began = time.monotonic()
            parts = self._one()
            self._recent.append({**parts, "seconds_per_step": time.monotonic() - began})
            if self.step % self.config.save_every == 0 or self.step == self.config.steps:
                row = self._row()
                self._save()
                self._log(row)
                report(row)
                if deadline_s is not None and time.monotonic() > deadline_s:
                    break
        return self.step >= self.config.steps

    def _one(self) -> Dict[str, float]:
        for group in self._optimizer.param_groups:
            group["lr"] = self.config.rate(self.step)
        batch = self._crops.batch(self.step)
        volume = self.network.volume(batch.occupancy.to(self._device))
        coarse = coarse_loss(volume[:, 0], batch.around.to(self._device))
        # channels last: on a CPU the 3D convolutions take less than half the time
        windows = batch.windows(volume).contiguous(memory_format=torch.channels_last_3d)
        fine, parts = loss(self.network.head(windows), batch.labels.to(self._device))
        total = fine + self.config.coarse * coarse
        parts["coarse"] = float(coarse.detach())
        if not bool(torch.isfinite(total)):
            raise BadInput(f"the loss is {float(total)} at step {self.step}", remedy="lower the learning rate")
        self._optimizer.zero_grad(set_to_none=True)
        total.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 5.0)
        self._optimizer.step()
        self._update_average()
        self.step += 1
        return {"loss": float(total.detach()), **parts}

    @torch.no_grad()
    def _update_average(self) -> None:
        # a short history counts for more at the beginning, or the random start would linger in the average
        keep = min(self.config.ema, (1 + self.step) / (10 + self.step))
        for name, tensor in self.network.state_dict().items():
            if tensor.dtype.is_floating_point:
                self.average[name].mul_(keep).add_(tensor, alpha=1 - keep)
            else:
                self.average[name].copy_(tensor)

    def _row(self) -> Dict[str, float]:
        means = {name: sum(row[name] for row in self._recent) / len(self._recent) for name in self._recent[0]}
        self._recent = []
        return {"step": self.step, **means, "learning_rate": self.config.rate(self.step - 1)}

    def _log(self, row: Dict[str, float]) -> None:
        path = self.folder / "log.csv"
        rows: List[Dict[str, str]] = []
        if path.exists():
            with path.open(newline="", encoding="utf-8") as stream:
                rows = [old for old in csv.DictReader(stream) if int(old["step"]) < row["step"]]
        lines = [",".join(LOG_FIELDS)] + [",".join(old[field] for field in LOG_FIELDS) for old in rows]
        lines.append(",".join(f"{row[field]:.6g}" for field in LOG_FIELDS))
        write_atomic(path, ("\n".join(lines) + "\n").encode("ascii"))

    def _save(self) -> None:
        metadata = {"step": str(self.step), "config": self.config.identity()}
        checkpoint.save(self.checkpoint, self.network, self.average, self._optimizer, metadata)

    def _resume(self) -> None:
        metadata = checkpoint.load(self.checkpoint, self.network, self.average, self._optimizer)
        if metadata.get("config") != self.config.identity():
            raise BadInput(
                f"{self.checkpoint} was made with other settings", remedy="use another folder, or the same settings"
            )
        try:
            self.step = int(metadata["step"])
        except (KeyError, ValueError) as error:
            raise BadInput(f"{self.checkpoint} does not say its step", remedy="use another folder") from error


def _groups(network: nn.Module, decay: float) -> List[Dict[str, object]]:
    """Weight decay for matrices and filters only: biases and normalisation scales are left alone."""
    decayed = [parameter for parameter in network.parameters() if parameter.ndim > 1]
    free = [parameter for parameter in network.parameters() if parameter.ndim <= 1]
    return [{"params": decayed, "weight_decay": decay}, {"params": free, "weight_decay": 0.0}]
