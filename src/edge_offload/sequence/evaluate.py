"""One operator on real tensors: argument tree to call, outputs flattened back."""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, Tuple

import torch

from edge_offload.errors import BadInput
from edge_offload.sequence.operators import Arg, Operator, Ref, Symbol
from edge_offload.sequence.schemas import overload

_NAMESPACES: Mapping[str, Tuple[str, type]] = {
    "dtype": ("", torch.dtype),
    "layout": ("", torch.layout),
    "memory_format": ("", torch.memory_format),
}


def resolve_symbol(symbol: Symbol, device: str = "cpu") -> Any:
    """The torch object that ``symbol`` names; any recorded device becomes ``device``.

    Raises:
        BadInput: torch has no such constant.
    """
    if symbol.kind == "device":
        return torch.device(device)
    if symbol.kind == "generator":
        raise BadInput(f"the generator {symbol.name!r} belongs to the process that recorded it")
    expected = _NAMESPACES[symbol.kind][1]
    found = vars(torch).get(symbol.name)
    if not isinstance(found, expected):
        raise BadInput(f"torch {torch.__version__} has no {symbol.kind} {symbol.name!r}")
    return found


def resolve(arg: Arg, fetch: Callable[[int], Any], device: str = "cpu") -> Any:
    """The Python object for an argument tree; ``fetch`` gives the tensor of a value number."""
    if isinstance(arg, Ref):
        return fetch(arg.id)
    if isinstance(arg, Symbol):
        return resolve_symbol(arg, device)
    if isinstance(arg, tuple):
        return [resolve(item, fetch, device) for item in arg]
    return arg


def call(operator: Operator, fetch: Callable[[int], Any], device: str = "cpu") -> List[Any]:
    """Run ``operator`` and return its tensors in the order of ``operator.outputs`` (``None`` where it gave none).

    Raises:
        BadInput: the overload returned another number of tensors than the sequence says.
    """
    args = [resolve(arg, fetch, device) for arg in operator.args]
    kwargs = {key: resolve(arg, fetch, device) for key, arg in operator.kwargs}
    results = flatten(overload(operator.name)(*args, **kwargs))
    if len(results) != len(operator.outputs):
        raise BadInput(f"{operator.name} returned {len(results)} tensors, the sequence says {len(operator.outputs)}")
    return results


def flatten(result: Any) -> List[Any]:
    """What an overload returned, as a flat list of tensors and ``None``."""
    if result is None:
        return []
    if isinstance(result, (tuple, list)):
        return [item for part in result for item in (flatten(part) if isinstance(part, (tuple, list)) else [part])]
    return [result]
