"""One operator on real tensors: argument tree to call, outputs flattened back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Dict, List, Sequence

import torch

from edge_offload.errors import BadInput
from edge_offload.ir.operators import Arg, Operator, Ref, Symbol
from edge_offload.ir.schemas import find_overload

Fetch = Callable[[int], Any]
"""Gives the tensor of a value number."""

VIEWS = ("aten.view.default", "aten._unsafe_view.default")
"""Operators that exist only for operands with the recorded strides."""

_TYPES = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


def resolve_symbol(symbol: Symbol, device: str = "cpu") -> Any:
    """The torch object that ``symbol`` names; any recorded device becomes ``device``.

    Raises:
        BadInput: torch has no such constant.
    """
    if symbol.kind == "device":
        return torch.device(device)
    if symbol.kind == "generator":
        raise BadInput(f"the generator {symbol.name!r} belongs to the process that recorded it")
    constant = vars(torch).get(symbol.name)
    if not isinstance(constant, _TYPES[symbol.kind]):
        raise BadInput(f"torch {torch.__version__} has no {symbol.kind} {symbol.name!r}")
    return constant


def resolve_argument(arg: Arg, fetch: Fetch, device: str = "cpu") -> Any:
    """Converts an argument tree to a Python object; ``fetch`` gives the tensor of a value number."""
    if isinstance(arg, Ref):
        return fetch(arg.id)
    if isinstance(arg, Symbol):
        return resolve_symbol(arg, device)
    if isinstance(arg, tuple):
        return [resolve_argument(item, fetch, device) for item in arg]
    return arg


class Kernels(Dict[int, Callable[[Fetch], List[Any]]]):
    """Kernels of ``operators`` on ``device``, by index; each is made on first use.

    Results of another device's kernels, and what came from the other side, may lie in memory otherwise than what was
    recorded. A view that does not fit them becomes a copy, which is the same where nothing is written into values.
    """

    def __init__(self, operators: Sequence[Operator], device: str = "cpu") -> None:
        super().__init__()
        self._written = any(operator.mutates for operator in operators)
        self.operators = operators
        self.outputs = [operator.outputs for operator in operators]
        self.device = device

    def __missing__(self, index: int) -> Callable[[Fetch], List[Any]]:
        operator = self.operators[index]
        if operator.name in VIEWS and not operator.kwargs and not self._written:
            operator = replace(operator, name="aten.reshape.default")
        made = self[index] = make_kernel(operator, self.device)
        return made


def make_kernel(operator: Operator, device: str = "cpu") -> Callable[[Fetch], List[Any]]:
    """Makes the function that runs ``operator``: it returns the tensors (or None) of ``operator.outputs``.

    What is no tensor among its arguments is resolved once. It raises BadInput where the overload returns another number
    of tensors than the sequence says.
    """
    function = find_overload(operator.name)
    positional = [_argument_getter(arg, device) for arg in operator.args]
    keywords = [(key, _argument_getter(arg, device)) for key, arg in operator.kwargs]
    count = len(operator.outputs)

    def run(fetch: Fetch) -> List[Any]:
        results = flatten_outputs(
            function(*[get(fetch) for get in positional], **{key: get(fetch) for key, get in keywords})
        )
        if len(results) != count:
            raise BadInput(f"{operator.name} returned {len(results)} tensors, the sequence says {count}")
        return results

    return run


def _argument_getter(arg: Arg, device: str) -> Callable[[Fetch], Any]:
    if isinstance(arg, Ref):
        number = arg.id
        return lambda fetch: fetch(number)
    if mentions_tensor(arg):
        return lambda fetch: resolve_argument(arg, fetch, device)
    value = resolve_argument(arg, _refuse_value, device)
    return lambda fetch: value


def mentions_tensor(arg: Arg) -> bool:
    """Checks an argument tree for tensors."""
    return isinstance(arg, Ref) or (isinstance(arg, tuple) and any(mentions_tensor(item) for item in arg))


def _refuse_value(number: int) -> Any:
    raise BadInput(f"value {number} stands in an argument without tensors")


def flatten_outputs(result: Any) -> List[Any]:
    """Flatten the result of an overload to a list of tensors; other items are None."""
    if result is None:
        return []
    flat: List[Any] = []
    for part in result if isinstance(result, (tuple, list)) else [result]:
        if isinstance(part, (tuple, list)):
            flat += flatten_outputs(part)
        else:
            flat.append(part if isinstance(part, torch.Tensor) else None)
    return flat
