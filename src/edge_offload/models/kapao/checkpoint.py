"""Loads KAPAO weights: official checkpoints (pickled whole models), state dicts, and safetensors. Executes nothing."""

from __future__ import annotations

import pathlib
from typing import Any, Dict, Mapping

import torch

from edge_offload.errors import BadInput
from edge_offload.models.kapao import inert
from edge_offload.models.kapao.network import STRIDES, Kapao

_FACTS = {"depth": (0.0, 2.0), "width": (0.0, 2.0), "size": (0.0, 4096.0), "conf": (0.0, 1.0)}
_CONTAINERS = ("ema", "model", "state_dict", "model_state_dict")


def read_state(path: pathlib.Path) -> Dict[str, torch.Tensor]:
    """The state dict in ``path`` (.pt, .pth or .safetensors) by parameter name, in the precision of the file.

    A ``.pt`` file holds a dict with a pickled model under ``ema`` or ``model`` (official checkpoints; ``ema`` is
    preferred, as there), or a state dict, at the top or under one of those keys or ``state_dict``.

    Raises:
        BadInput: the file is missing, damaged, or holds no named tensors.
    """
    if not path.is_file():
        raise BadInput(f"no checkpoint at {path}")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    with inert.Checkpoint(path) as opened:
        records = _find_records(opened.root)
        if not records:
            raise BadInput(f"checkpoint {path} holds neither a model nor a state dict")
        return opened.tensors(records)


def read_facts(path: pathlib.Path) -> Dict[str, float]:
    """Numbers that ``edge-offload train kapao`` stored with the weights in ``path``; empty for any other file.

    ``depth`` and ``width`` of the network, ``size`` of the images, ``conf`` chosen on training images.
    """
    if path.suffix != ".safetensors" or not path.is_file():
        return {}
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as stream:
            stored = stream.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise BadInput(f"checkpoint {path} cannot be read: {error}") from error
    facts: Dict[str, float] = {}
    for name, (low, high) in _FACTS.items():
        if name not in stored:
            continue
        try:
            facts[name] = float(stored[name])
        except ValueError as error:
            raise BadInput(f"checkpoint {path}: {name} is {stored[name]!r}, not a number") from error
        if not low < facts[name] <= high:
            raise BadInput(f"checkpoint {path}: {name}={facts[name]:g} is out of range")
    return facts


def load(network: Kapao, path: pathlib.Path) -> None:
    """Copy the weights and anchors in ``path`` into ``network`` (float32), by name.

    Raises:
        BadInput: see :func:`read_state`; or the names or shapes are not those of this size of KAPAO.
    """
    state = _renamed(read_state(path))
    expected = network.state_dict()
    _complete_anchors(state)
    # a counter of training steps, which inference never reads and some exports drop
    for name in expected:
        if name.endswith(".num_batches_tracked"):
            state.setdefault(name, torch.zeros((), dtype=torch.int64))
    missing = sorted(set(expected) - set(state))
    unknown = sorted(set(state) - set(expected))
    wrong = [name for name in expected if name in state and state[name].shape != expected[name].shape]
    if missing or unknown or wrong:
        parts = [
            f"{label} {len(names)} ({', '.join(names[:2])}{', ...' if len(names) > 2 else ''})"
            for label, names in (("lacks", missing), ("has unknown", unknown), ("has of another shape", wrong))
            if names
        ]
        raise BadInput(
            f"checkpoint {path} is not this KAPAO: it {'; '.join(parts)}", remedy="check the size: n, s, m or l"
        )
    bad = [name for name, tensor in state.items() if tensor.is_floating_point() and not tensor.isfinite().all()]
    if bad:
        raise BadInput(f"checkpoint {path}: {bad[0]} holds NaN or infinity")
    network.load_state_dict({name: tensor.to(expected[name].dtype) for name, tensor in state.items()})


def _read_safetensors(path: pathlib.Path) -> Dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: Dict[str, torch.Tensor] = load_file(str(path))
    except (SafetensorError, OSError) as error:
        raise BadInput(f"checkpoint {path} cannot be read: {error}") from error
    return tensors


def _find_records(root: Any, depth: int = 0) -> Dict[str, inert.Tensor]:
    if isinstance(root, inert.Inert):
        return inert.module_records(root)
    if not isinstance(root, Mapping) or depth > 2:
        return {}
    records = {name: value for name, value in root.items() if isinstance(name, str) and isinstance(value, inert.Tensor)}
    if records:
        return records
    found = (_find_records(root[key], depth + 1) for key in _CONTAINERS if root.get(key) is not None)
    return next((records for records in found if records), {})


def _renamed(state: Mapping[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
    """Without the prefixes that data-parallel wrappers and our own estimator put before YOLOv5's names."""
    renamed = dict(state)
    for prefix in ("module.", "network."):
        if renamed and all(name.startswith(prefix) for name in renamed):
            renamed = {name[len(prefix) :]: tensor for name, tensor in renamed.items()}
    return renamed


def _complete_anchors(state: Dict[str, torch.Tensor]) -> None:
    """Later YOLOv5 code stores the anchors in strides only; in pixels they follow."""
    anchors, grid = "model.33.anchors", "model.33.anchor_grid"
    if anchors in state and grid not in state and state[anchors].shape == (len(STRIDES), 3, 2):
        strides = torch.tensor(STRIDES, dtype=torch.float32).view(-1, 1, 1)
        state[grid] = (state[anchors].float() * strides).view(len(STRIDES), 1, 3, 1, 1, 2)
