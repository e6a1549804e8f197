"""Calls that have been seen: how to tell that one comes again, and what to return for it."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from edge_offload.capture.fallback.device import Slot
from edge_offload.capture.fallback.tensor import RemoteTensor


class Out(NamedTuple):
    """How to make one result."""

    kind: int
    ref: int
    layout: int
    sizes: Tuple[int, ...]
    options: Dict[str, Any]
    nbytes: int


class Call:
    """A distinct call that has been seen: what to note and what to return.

    ``next`` is the call that followed when it was made last: if it is that one again, it need not be looked up.
    ``func``, ``types``, ``tensors`` (position, layout) and ``plain`` (position, value) say what it looks like, if that
    is simple: no operand twice, none in a list, no host number, nothing by name, one new result.
    """

    __slots__ = ("func", "index", "many", "next", "noted", "one", "outs", "plain", "tensors", "types", "values")

    def __init__(self, index: int, noted: bool) -> None:
        self.index = index
        self.noted = noted
        self.one: Optional[Out] = None  # the only result, if it has a storage of its own
        self.outs: List[List[Out]] = []
        self.many: List[bool] = []
        self.values: List[Any] = []
        self.next: Optional[Call] = None
        self.func: Any = None
        self.types: Tuple[type, ...] = ()
        self.tensors: Tuple[Tuple[int, int], ...] = ()
        self.plain: Tuple[Tuple[int, Any], ...] = ()

    def recognise(self, func: Any, args: Sequence[Any], slots: Sequence[Slot]) -> None:
        """Be found without being looked up, if the call is simple."""
        tensors = tuple((i, value._layout) for i, value in enumerate(args) if type(value) is RemoteTensor)
        plain = tuple((i, value) for i, value in enumerate(args) if type(value) is not RemoteTensor)
        if self.one is None or not self.noted or len(tensors) != len(slots) or len(set(slots)) != len(slots):
            return
        if all(_tells_apart(value) for _, value in plain):
            self.func, self.types, self.tensors, self.plain = func, tuple(map(type, args)), tensors, plain


def _tells_apart(value: Any) -> bool:
    """Whether what is equal to ``value`` and of its type is the same argument; zero has two signs."""
    if isinstance(value, (list, tuple)):
        return all(type(item) is int for item in value)
    return value is None or type(value) in (bool, int, str) or (type(value) is float and value != 0 and value == value)
