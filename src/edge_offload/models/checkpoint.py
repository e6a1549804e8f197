"""Weights and checkpoints in safetensors files, which contain no code; other formats are rejected."""

from __future__ import annotations

import pathlib
from shlex import quote
from typing import Dict, Tuple

import torch

from edge_offload.errors import BadInput

PICKLES = (".pt", ".pth", ".ckpt", ".bin")


def read(path: pathlib.Path) -> Tuple[Dict[str, torch.Tensor], Dict[str, str]]:
    """Read all tensors and the metadata of a safetensors file.

    Raises:
        BadInput: no such file, too large, a pickled checkpoint, or damaged.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise BadInput(f"no checkpoint at {path}")
    if path.suffix in PICKLES:
        raise BadInput(
            f"checkpoint {path} is a pickle, which is not read here",
            remedy=f"convert it once, on a workstation: edge-offload convert {quote(str(path))} "
            f"{quote(str(path.with_suffix('.safetensors')))}",
        )
    most = 4 << 30
    if path.stat().st_size > most:
        raise BadInput(f"checkpoint {path} is over {most >> 30} GB")
    try:
        with safe_open(str(path), framework="pt") as stream:
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
            return tensors, stream.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise BadInput(
            f"{path} is not a checkpoint in safetensors format: {error}", remedy="name another, or remove it"
        ) from error
