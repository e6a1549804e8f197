"""Look-up of torch's operator overloads by name, and of their arguments that stand for enumerations."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Tuple

import torch

from edge_offload.errors import Unsupported

#: Namespace, operator and overload.
_NAME = re.compile(r"([A-Za-z_]\w*)\.([A-Za-z_]\w*)\.([A-Za-z_]\w*)")


@lru_cache(maxsize=8192)
def find_overload(name: str) -> Any:
    """Looks up the ``torch._ops.OpOverload`` called ``name`` (``aten.relu.default``).

    The name is matched against a strict pattern and looked up in the dispatcher's registry only; it can never reach
    a Python attribute that is not a registered operator.

    Raises:
        Unsupported: the name is malformed, or this torch has no such overload.
    """
    match = _NAME.fullmatch(name)
    remedy = "install the torch or torchvision version that the program was recorded with"
    if match is None:
        raise Unsupported(f"{name!r} is not an operator overload")
    namespace, operator, variant = match.groups()
    schema_name = f"{namespace}::{operator}"
    try:
        torch._C._get_schema(schema_name, "" if variant == "default" else variant)
    except RuntimeError:
        raise Unsupported(f"torch {torch.__version__} has no operator {name}", remedy=remedy) from None
    return getattr(getattr(getattr(torch.ops, namespace), operator), variant)


#: Enumerations of torch whose arguments a schema types as integers.
ENUMERATIONS = ("ScalarType", "Layout", "MemoryFormat")


@lru_cache(maxsize=8192)
def enumerated_arguments(overload: Any) -> Tuple[Tuple[int, str, str], ...]:
    """Lists the arguments of an overload that stand for a dtype, a layout or a memory format.

    Schemas type them as integers. torch does not check their range, and reads outside its table for an unknown number.

    Returns:
        position, name and kind (one of :data:`ENUMERATIONS`) of each argument.
    """
    kinds = []
    for position, argument in enumerate(overload._schema.arguments):
        text = str(argument.real_type)
        kind = text[len("Optional[") : -1] if text.startswith("Optional[") else text
        if kind in ENUMERATIONS:
            kinds.append((position, argument.name, kind))
    return tuple(kinds)
