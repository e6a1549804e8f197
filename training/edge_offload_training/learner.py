"""What every training loop keeps: a network, the moving average of its weights, AdamW, and the folder of the run."""

from __future__ import annotations

import csv
import pathlib
from typing import Dict, List, Mapping, Protocol, Sequence, Tuple

import torch
from torch import nn

from edge_offload.cache import write_atomic
from edge_offload.errors import BadInput
from edge_offload.models import checkpoint


class Settings(Protocol):
    """Configuration of a training loop's learner."""

    @property
    def learning_rate(self) -> float:
        """Highest learning rate of AdamW."""

    @property
    def weight_decay(self) -> float:
        """Weight decay of AdamW, for matrices and filters."""

    @property
    def ema(self) -> float:
        """Share of the moving average that a step keeps."""

    def identity(self) -> str:
        """Return the configuration that a resumed run must share, as JSON."""


class Learner:
    """Descends a loss and keeps ``last.safetensors`` (network, average and AdamW's state) and ``log.csv`` in a folder.

    Both are written by rename, so that a kill at any moment leaves the last whole ones.

    Attributes:
        network: on the device, in training mode.
        average: moving average of its state, by name.
    """

    def __init__(self, network: nn.Module, settings: Settings, folder: pathlib.Path, device: str) -> None:
        self.network = network.to(device).train()
        self.average = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
        self._settings = settings
        self._folder = folder
        self._optimizer = torch.optim.AdamW(
            _parameter_groups(network, settings.weight_decay), lr=settings.learning_rate
        )
        folder.mkdir(parents=True, exist_ok=True)

    def descend_step(self, total: torch.Tensor, step: int, rate: float, longest_gradient: float) -> float:
        """One step down the loss ``total``, which is returned.

        Raises:
            BadInput: the loss is not finite.
        """
        value = float(total.detach())
        if not bool(torch.isfinite(total)):
            raise BadInput(f"the loss is {value} at step {step}", remedy="lower the learning rate")
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad(set_to_none=True)
        total.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), longest_gradient)
        self._optimizer.step()
        self._update_average(step)
        return value

    @torch.no_grad()
    def _update_average(self, step: int) -> None:
        # a short history counts for more at the beginning, or the random start would linger in the average
        decay = min(self._settings.ema, (1 + step) / (10 + step))
        for name, tensor in self.network.state_dict().items():
            if tensor.dtype.is_floating_point:
                self.average[name].mul_(decay).add_(tensor, alpha=1 - decay)
            else:
                self.average[name].copy_(tensor)

    def log(self, fields: Sequence[str], row: Mapping[str, float]) -> None:
        """Append ``row`` to the log; rows of later steps, from a run that was killed, are dropped."""
        path = self._folder / "log.csv"
        rows: List[Dict[str, str]] = []
        if path.exists():
            with path.open(newline="", encoding="utf-8") as stream:
                rows = [old for old in csv.DictReader(stream) if int(old[fields[0]]) < row[fields[0]]]
        lines = [",".join(fields)] + [",".join(old[field] for field in fields) for old in rows]
        lines.append(",".join(f"{row[field]:.6g}" for field in fields))
        write_atomic(path, ("\n".join(lines) + "\n").encode("ascii"))

    @property
    def _checkpoint(self) -> pathlib.Path:
        return self._folder / "last.safetensors"

    def save(self, **position: int) -> None:
        """Write everything that a resumed run continues from, with its ``position`` (its step, its epoch)."""
        from safetensors.torch import save

        tensors = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        tensors.update({f"average.{name}": tensor for name, tensor in self.average.items()})
        for index, parameter in enumerate(self._list_parameters()):
            for key, value in self._optimizer.state[parameter].items():
                tensors[f"optimizer.{index}.{key}"] = value
        metadata = {**{name: str(value) for name, value in position.items()}, "config": self._settings.identity()}
        contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        write_atomic(self._checkpoint, save(contiguous, metadata))

    def resume(self, *position: str) -> Tuple[int, ...]:
        """Put a saved state back, and return the numbers named ``position``: zeros where nothing is saved.

        Raises:
            BadInput: the checkpoint is damaged, or comes from another network or other settings.
        """
        path = self._checkpoint
        if not path.exists():
            return (0,) * len(position)
        tensors, metadata = checkpoint.read(path)
        if metadata.get("config") != self._settings.identity():
            raise BadInput(f"{path} was made with other settings", remedy="use another folder, or the same settings")
        try:
            self.network.load_state_dict(_with_prefix("network.", tensors))
            for name, tensor in _with_prefix("average.", tensors).items():
                self.average[name].copy_(tensor)
            for index, parameter in enumerate(self._list_parameters()):
                state = _with_prefix(f"optimizer.{index}.", tensors)
                # the step count stays on the CPU, where AdamW keeps it
                self._optimizer.state[parameter] = {
                    key: value if key == "step" else value.to(parameter.device) for key, value in state.items()
                }
            return tuple(int(metadata[name]) for name in position)
        except (KeyError, RuntimeError, ValueError) as error:
            raise BadInput(f"{path} does not fit this network: {error}", remedy="use another folder") from error

    def _list_parameters(self) -> List[nn.Parameter]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]


def _parameter_groups(network: nn.Module, decay: float) -> List[Dict[str, object]]:
    """Weight decay for matrices and filters only: biases and normalisation scales are left alone."""
    decayed = [parameter for parameter in network.parameters() if parameter.ndim > 1]
    free = [parameter for parameter in network.parameters() if parameter.ndim <= 1]
    return [{"params": decayed, "weight_decay": decay}, {"params": free, "weight_decay": 0.0}]


def _with_prefix(prefix: str, tensors: Mapping[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
