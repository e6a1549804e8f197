"""The training loop: a function of its settings and the step, resumable after any interruption."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import time
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional

import torch

from edge_offload.models.sconet.network import SCONet
from edge_offload_training.learner import Learner
from edge_offload_training.sconet.crops import CropConfig, Crops, Source
from edge_offload_training.sconet.loss import coarse_loss, loss

LOG_FIELDS = ("step", "loss", "classes", "completion", "coarse", "learning_rate", "seconds_per_step")
LONGEST_GRADIENT = 5.0


@dataclass(frozen=True)
class Config:
    """Configuration of a run. A resumed run must have the same, except for ``steps`` and ``learning_rate``.

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
        """Return the configuration that a checkpoint must share, as JSON."""
        settings = dataclasses.asdict(self)
        for free in ("steps", "learning_rate", "save_every"):
            del settings[free]
        return json.dumps(settings, sort_keys=True)

    def rate(self, step: int) -> float:
        """Learning rate at this step."""
        rise = min(1.0, (step + 1) / max(1, self.warmup))
        remaining = (self.steps - step) / max(1.0, 0.25 * self.steps)
        return self.learning_rate * rise * max(0.02, min(1.0, remaining))


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
        self.config = config
        self._device = device
        self._crops = Crops(source, config.crops, config.seed, count)
        self._recent: List[Dict[str, float]] = []
        self._learner = Learner(network, config, folder, device)
        self.network, self.average = network, self._learner.average
        (self.step,) = self._learner.resume("step")

    def run(self, report: Callable[[Dict[str, float]], None], deadline_s: Optional[float] = None) -> bool:
        """Train until the last step, or until the checkpoint after monotonic time ``deadline_s``.

        Args:
            report: called with :data:`LOG_FIELDS` at every checkpoint.
            deadline_s: seconds, monotonic; None: there is none.

        Returns:
            Whether the last step was reached.
        """
        while self.step < self.config.steps:
            started_at = time.monotonic()
            parts = self._one()
            self._recent.append({**parts, "seconds_per_step": time.monotonic() - started_at})
            if self.step % self.config.save_every == 0 or self.step == self.config.steps:
                row = self._row()
                self._learner.save(step=self.step)
                self._learner.log(LOG_FIELDS, row)
                report(row)
                if deadline_s is not None and time.monotonic() > deadline_s:
                    break
        return self.step >= self.config.steps

    def _one(self) -> Dict[str, float]:
        batch = self._crops.batch(self.step)
        volume = self.network.volume(batch.occupancy.to(self._device))
        coarse = coarse_loss(volume[:, 0], batch.around.to(self._device))
        # channels last: on a CPU the 3D convolutions take less than half the time
        windows = batch.cut_windows(volume).contiguous(memory_format=torch.channels_last_3d)
        fine, parts = loss(self.network.head(windows), batch.labels.to(self._device))
        total = fine + self.config.coarse * coarse
        parts["coarse"] = float(coarse.detach())
        value = self._learner.descend_step(total, self.step, self.config.rate(self.step), LONGEST_GRADIENT)
        self.step += 1
        return {"loss": value, **parts}

    def _row(self) -> Dict[str, float]:
        means = {name: sum(row[name] for row in self._recent) / len(self._recent) for name in self._recent[0]}
        self._recent = []
        return {"step": self.step, **means, "learning_rate": self.config.rate(self.step - 1)}
