"""Parameters of a node: declared once with default and meaning, checked when read. Independent of ROS."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from edge_offload.errors import BadInput

Value = Union[bool, int, float, str, List[Any], Dict[str, Any]]
_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a mapping",
}


@dataclass(frozen=True)
class Param:
    """One private parameter. Its type is that of the default.

    Attributes:
        name: without the ``~``.
        default: used when the parameter is not set.
        doc: what it means, with the unit.
        choices: the only values allowed; empty when any is.
        low, high: bounds of a number, both included.
        single: the only entry of a list may be given without the list.
    """

    name: str
    default: Value
    doc: str
    choices: Tuple[Value, ...] = ()
    low: Optional[float] = None
    high: Optional[float] = None
    single: bool = False


CAMERA_NS = Param(
    "camera_ns",
    ["camera"],
    "namespace of the camera; several, which take turns at the network: [front, left, rear], results in each of them",
    single=True,
)


def check_namespaces(entries: Sequence[object]) -> List[str]:
    """Namespaces of cameras, without slashes behind them.

    Raises:
        BadInput: there is none, one is no name, or two are the same.
    """
    names = [str(name).strip().rstrip("/") for name in entries]
    invalid = [name for name in names if not re.fullmatch(r"/?[A-Za-z]\w*(/[A-Za-z]\w*)*", name)]
    double = [name for name in names if sum(name.strip("/") == other.strip("/") for other in names) > 1]
    if not names or invalid or double:
        cause = "names no camera" if not names else f"has {invalid[0]!r}" if invalid else f"names {double[0]} twice"
        raise BadInput(f"camera_ns {cause}", remedy="name each camera once, by its namespace: [front, left, rear]")
    return names


def read(declared: Sequence[Param], raw: Mapping[str, Any]) -> Dict[str, Any]:
    """Values of all declared parameters, from those that are set (``raw``) and the defaults.

    Raises:
        BadInput: a value has the wrong type or is out of bounds.
    """
    return {
        param.name: _check_value(param, raw[param.name]) if param.name in raw else param.default for param in declared
    }


def undeclared_names(declared: Sequence[Param], raw: Iterable[str]) -> List[str]:
    """Names that are set but not declared: most likely misspelt."""
    return sorted(set(raw) - {param.name for param in declared})


def _check_value(param: Param, value: Any) -> Any:
    kind = type(param.default)
    if kind is float and type(value) is int:
        value = float(value)
    elif kind is bool and type(value) is int and value in (0, 1):
        # a condition of roslaunch may be written so, too
        value = bool(value)
    elif kind is str and isinstance(value, bool):
        value = str(value).lower()
    elif kind is str and isinstance(value, (int, float)):
        # roslaunch turns what looks like a number into one: cores "0", camera "0"
        value = str(value)
    elif param.single and kind is list and isinstance(value, str):
        value = [value]
    if type(value) is not kind:
        raise BadInput(f"parameter ~{param.name} is {value!r}, not {_KINDS[kind]}", remedy=f"give {_KINDS[kind]}")
    if param.choices and value not in param.choices:
        raise BadInput(
            f"parameter ~{param.name} is {value!r}", remedy=f"use one of: {', '.join(map(str, param.choices))}"
        )
    if isinstance(value, (int, float)):
        _check_bounds(param, value)
    return value


def _check_bounds(param: Param, value: float) -> None:
    if not math.isfinite(value):
        raise BadInput(f"parameter ~{param.name} is {value}", remedy="give a finite number")
    if param.low is not None and value < param.low:
        raise BadInput(f"parameter ~{param.name} is {value}", remedy=f"give at least {param.low:g}")
    if param.high is not None and value > param.high:
        raise BadInput(f"parameter ~{param.name} is {value}", remedy=f"give at most {param.high:g}")


def render_table(declared: Sequence[Param]) -> str:
    """The parameters as text for ``--help``."""
    lines = []
    for param in declared:
        default = repr(param.default) if isinstance(param.default, str) else str(param.default)
        choices = f"; one of {', '.join(map(str, filter(None, param.choices)))}" if param.choices else ""
        lines.append(f"  ~{param.name:<18} {param.doc}{choices} (default: {default})")
    return "\n".join(lines)
