"""Parameters of a node that may change while it runs (dynamic_reconfigure), from the table that declares them.

A .cfg file would repeat names, defaults and bounds.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Callable, Dict, Optional, Sequence

import rospy

from edge_offload.nodes.common.params import Param, Value

_TYPES = {bool: "bool", int: "int", float: "double", str: "str"}


def serve(knobs: Sequence[Param], values: Dict[str, Any], changed: Callable[[Dict[str, Any]], None]) -> Optional[Any]:
    """Offer ``knobs`` on ``~set_parameters``; ``changed`` is called with the new values (bounds are kept by ROS).

    Returns:
        The server, to be kept; None where dynamic_reconfigure is not installed (the parameters then hold as read).
    """
    try:
        from dynamic_reconfigure.server import Server
    except ImportError as error:
        rospy.logwarn(f"parameters cannot be turned at run time: {error}")
        return None

    def called(config: Any, _level: int) -> Any:
        changed({knob.name: config[knob.name] for knob in knobs})
        return config

    return Server(_describe_knobs(knobs, values), called)


def _describe_knobs(knobs: Sequence[Param], values: Dict[str, Any]) -> SimpleNamespace:
    unbounded = 1e9
    parameters = [
        {
            "name": knob.name,
            "type": _TYPES[type(knob.default)],
            "level": 1,
            "description": knob.doc,
            "edit_method": "",
            "default": values[knob.name],
            "min": _finite_bound(knob, knob.low, -unbounded),
            "max": _finite_bound(knob, knob.high, unbounded),
            "cconsttype": "",
            "ctype": "",
            "srcfile": "",
            "srcline": 0,
        }
        for knob in knobs
    ]
    group = {
        "name": "Default",
        "type": "",
        "state": True,
        "cstate": "true",
        "id": 0,
        "parent": 0,
        "parameters": parameters,
        "groups": [],
    }
    return SimpleNamespace(
        config_description=group,
        min={str(item["name"]): item["min"] for item in parameters},
        max={str(item["name"]): item["max"] for item in parameters},
        defaults={str(item["name"]): item["default"] for item in parameters},
        level={str(item["name"]): 1 for item in parameters},
        all_level=1,
    )


def _finite_bound(knob: Param, bound: Optional[float], unbounded: float) -> Value:
    kind = type(knob.default)
    if kind is bool:
        return unbounded > 0
    if kind is str:
        return ""
    number = unbounded if bound is None else bound
    return int(number) if kind is int else float(number)
