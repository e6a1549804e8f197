"""torch's shape functions in Python without its compiler, whose import takes a second of a program's first frame."""

from __future__ import annotations

import gc
import types
from typing import Any

#: Where torch's functions are that work out sizes and types.
PACKAGES = ("torch._refs", "torch._prims", "torch._decomp", "torch._meta_registrations")
#: The attribute of a function that torch's compiler leaves alone: what is called in its place.
_MARK = "__dynamo_disable"


def bypass_compiler() -> int:
    """Have these functions called without an import of torch's compiler; the number of functions.

    torch wraps some of them so that its compiler leaves them alone. Their first call imports the compiler for that. On
    the virtual device ``torch.compile`` compiles nothing, so they are called as they are.
    """
    import torch

    disable = getattr(torch, "_disable_dynamo", None)
    if disable is None:
        return 0  # up to 2.0 nothing is wrapped
    code = disable(lambda: None).__code__
    if _MARK not in code.co_consts or "fn" not in code.co_freevars:
        return 0  # a torch that does this in another way
    place, count = code.co_freevars.index("fn"), 0
    for one in gc.get_objects():
        if type(one) is types.FunctionType and one.__code__ is code and one.__closure__:
            function: Any = one.__closure__[place].cell_contents
            if str(function.__module__).startswith(PACKAGES):
                function.__dict__.setdefault(_MARK, function)
                count += 1
    return count
