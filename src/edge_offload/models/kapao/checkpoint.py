"""KAPAO's weights in safetensors files, under YOLOv5's names or with this package's prefixes."""

from __future__ import annotations

import pathlib
from typing import Dict, Mapping

import torch

from edge_offload.errors import BadInput
from edge_offload.models.kapao.network import STRIDES, Kapao

_FACTS = {"depth": (0.0, 2.0), "width": (0.0, 2.0), "size": (0.0, 4096.0), "conf": (0.0, 1.0)}


def facts_of(path: pathlib.Path, metadata: Mapping[str, str]) -> Dict[str, float]:
    """Parse the numbers that ``edge-offload train kapao`` stored with the weights in ``path``; empty for other files.

    ``depth`` and ``width`` of the network, ``size`` of the images, ``conf`` chosen on training images.

    Raises:
        BadInput: one of them is no number, or out of range.
    """
    facts: Dict[str, float] = {}
    for name, (low, high) in _FACTS.items():
        if name not in metadata:
            continue
        try:
            facts[name] = float(metadata[name])
        except ValueError as error:
            raise BadInput(f"checkpoint {path}: {name} is {metadata[name]!r}, not a number") from error
        if not low < facts[name] <= high:
            raise BadInput(f"checkpoint {path}: {name}={facts[name]:g} is out of range")
    return facts


def load_network(network: Kapao, path: pathlib.Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy the weights and anchors ``tensors`` of the file ``path`` into ``network`` (float32), by name.

    Raises:
        BadInput: the names or shapes are not those of this size of KAPAO, or a number is not finite.
    """
    state = _strip_prefixes(tensors)
    expected = network.state_dict()
    _complete_anchors(state)
    # a counter of training steps, which inference does not read and some exports omit
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


def _strip_prefixes(state: Mapping[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
    """Strip the prefixes of data-parallel wrappers and of this package's estimator from YOLOv5's names."""
    renamed = dict(state)
    for prefix in ("module.", "network."):
        if renamed and all(name.startswith(prefix) for name in renamed):
            renamed = {name[len(prefix) :]: tensor for name, tensor in renamed.items()}
    return renamed


def _complete_anchors(state: Dict[str, torch.Tensor]) -> None:
    """Compute the anchors in pixels, which later YOLOv5 code does not store, from those in strides."""
    anchors, grid = "model.33.anchors", "model.33.anchor_grid"
    if anchors in state and grid not in state and state[anchors].shape == (len(STRIDES), 3, 2):
        strides = torch.tensor(STRIDES, dtype=torch.float32).view(-1, 1, 1)
        state[grid] = (state[anchors].float() * strides).view(len(STRIDES), 1, 3, 1, 1, 2)
