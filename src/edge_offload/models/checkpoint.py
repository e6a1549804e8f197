"""Training checkpoints: one safetensors file with network, moving average and AdamW's state. Nothing in it executes."""

from __future__ import annotations

import pathlib
from typing import Dict, List, Mapping, Tuple

import torch
from torch import nn

from edge_offload.errors import BadInput
from edge_offload.models.cache import write_atomic

MAX_BYTES = 4 << 30


def save(
    path: pathlib.Path,
    network: nn.Module,
    average: Mapping[str, torch.Tensor],
    optimizer: torch.optim.Optimizer,
    metadata: Mapping[str, str],
) -> None:
    """Write everything by rename: a kill at any moment leaves the last whole file."""
    from safetensors.torch import save as to_bytes

    tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    tensors.update({f"average.{name}": tensor for name, tensor in average.items()})
    for index, parameter in enumerate(_parameters(optimizer)):
        for key, value in optimizer.state[parameter].items():
            tensors[f"optimizer.{index}.{key}"] = value
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomic(path, to_bytes(whole, dict(metadata)))


def load(
    path: pathlib.Path, network: nn.Module, average: Dict[str, torch.Tensor], optimizer: torch.optim.Optimizer
) -> Dict[str, str]:
    """Put everything back where it came from, and return the metadata.

    Raises:
        BadInput: not such a file, or one of another network.
    """
    tensors, metadata = read(path)
    try:
        network.load_state_dict(_under("network.", tensors))
        for name, tensor in _under("average.", tensors).items():
            average[name].copy_(tensor)
        for index, parameter in enumerate(_parameters(optimizer)):
            state = _under(f"optimizer.{index}.", tensors)
            # the step count stays on the CPU, where AdamW keeps it
            optimizer.state[parameter] = {
                key: value if key == "step" else value.to(parameter.device) for key, value in state.items()
            }
    except (KeyError, RuntimeError, ValueError) as error:
        raise BadInput(f"{path} does not fit this network: {error}", remedy="use another folder") from error
    return metadata


def read(path: pathlib.Path) -> Tuple[Dict[str, torch.Tensor], Dict[str, str]]:
    """All tensors and the metadata of a safetensors file.

    Raises:
        BadInput: too large, or no such file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadInput(f"{path} is over {MAX_BYTES >> 30} GB")
        with safe_open(str(path), framework="pt") as stream:
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
            return tensors, stream.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise BadInput(f"{path} is not a safetensors file: {error}", remedy="name another, or remove it") from error


def _parameters(optimizer: torch.optim.Optimizer) -> List[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _under(prefix: str, tensors: Mapping[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
