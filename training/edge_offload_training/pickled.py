"""The tensors of a pickled checkpoint, by torch.load(weights_only=True): nothing that the file names is executed.

The classes that YOLOv5's and KAPAO's pickled models name are on an allow-list, each as a stand-in that remembers its
state and can do nothing; any other name is refused.
"""

from __future__ import annotations

import pathlib
import pickle
from typing import Any, Dict, List, Mapping

import torch

from edge_offload.errors import BadInput, Unsupported

_CONTAINERS = ("ema", "model", "state_dict", "model_state_dict")
_MAX_DEPTH = 64
_ALLOWED = {
    "models.yolo": "Model Detect",
    "models.common": "Conv Bottleneck C3 SPP Focus Concat",
    "torch.nn.modules.activation": "SiLU",
    "torch.nn.modules.batchnorm": "BatchNorm2d",
    "torch.nn.modules.container": "Sequential ModuleList",
    "torch.nn.modules.conv": "Conv2d",
    "torch.nn.modules.pooling": "MaxPool2d",
    "torch.nn.modules.upsampling": "Upsample",
    # a stored fitness
    "numpy": "dtype ndarray",
    "numpy.core.multiarray": "scalar _reconstruct",
}


class _StandIn:
    """An object of an allowed class, as the pickle describes it: no more than its state."""

    state: object = None

    def __init__(self, *_: object) -> None:
        """Take what the pickle constructs it from, and forget it."""

    def __setstate__(self, state: object) -> None:
        self.state = state


_STAND_INS: List[Any] = [
    type(name, (_StandIn,), {"__module__": module}) for module, names in _ALLOWED.items() for name in names.split()
]


def read_state(path: pathlib.Path) -> Dict[str, torch.Tensor]:
    """The state dict in ``path`` (see ``edge-offload convert``) by parameter name, in the precision of the file.

    Raises:
        BadInput: the file is missing or damaged, names something that is not allowed, or holds no named tensors.
        Unsupported: this torch is too old for it.
    """
    if not path.is_file():
        raise BadInput(f"no checkpoint at {path}")
    if not hasattr(torch.serialization, "add_safe_globals"):
        raise Unsupported(f"torch {torch.__version__} has no allow-list for pickles", remedy="use torch 2.4 or newer")
    before = torch.serialization.get_safe_globals()
    torch.serialization.add_safe_globals([*_STAND_INS, set])
    try:
        root = torch.load(path, map_location="cpu", weights_only=True)
        state = {name: tensor.detach().clone().contiguous() for name, tensor in _find_tensors(root).items()}
    except Exception as error:  # a damaged or hostile file fails in as many ways as it has fields
        raise BadInput(f"checkpoint {path} cannot be read: {_reason_of(error)}") from error
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)
    if not state:
        raise BadInput(f"checkpoint {path} holds neither a model nor a state dict")
    return state


def _reason_of(error: BaseException) -> str:
    """Describe the file's defect, without torch's advice to load it unprotected."""
    cause = error.__context__ if isinstance(error, pickle.UnpicklingError) else None
    text = next(iter(str(cause or error).splitlines()), "").split(" Please use ")[0]
    return f"{type(error).__name__}: {text}"


def _find_tensors(root: Any, depth: int = 0) -> Dict[str, torch.Tensor]:
    if isinstance(root, _StandIn):
        return _of_module(root)
    if not isinstance(root, Mapping) or depth > 2:
        return {}
    tensors = _tensors_of(root)
    if tensors:
        return tensors
    candidates = (_find_tensors(root[key], depth + 1) for key in _CONTAINERS if root.get(key) is not None)
    return next((tensors for tensors in candidates if tensors), {})


def _of_module(module: _StandIn, prefix: str = "", depth: int = 0) -> Dict[str, torch.Tensor]:
    """The parameters and buffers of a pickled ``nn.Module``, named as its state dict would name them."""
    if depth > _MAX_DEPTH:
        raise BadInput(f"its modules are nested more than {_MAX_DEPTH} deep")
    state = module.state if isinstance(module.state, dict) else {}
    direct = {**_tensors_of(state.get("_parameters") or {}), **_tensors_of(state.get("_buffers") or {})}
    collected = {f"{prefix}{name}": tensor for name, tensor in direct.items()}
    for name, child in (state.get("_modules") or {}).items():
        if isinstance(child, _StandIn):
            collected.update(_of_module(child, f"{prefix}{name}.", depth + 1))
    return collected


def _tensors_of(mapping: Mapping[Any, Any]) -> Dict[str, torch.Tensor]:
    return {name: value for name, value in mapping.items() if isinstance(name, str) and isinstance(value, torch.Tensor)}
