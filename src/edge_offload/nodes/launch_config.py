"""Parameters of nodes from the YAML file that ``config:=`` names: ``node: {parameter: value}``."""

from __future__ import annotations

import importlib
import pathlib
import re
import xml.etree.ElementTree as ElementTree
from typing import Any, Dict, Iterable, List, Mapping

from edge_offload.errors import BadInput
from edge_offload.nodes import module_of
from edge_offload.nodes.common import params as parameters
from edge_offload.nodes.launch_file import PACKAGE, LaunchFile, suggest_name

FORM = "write node: {parameter: value}"


def check_config(path: str, launch: pathlib.Path, given: Mapping[str, str]) -> List[str]:
    """List the mistakes in the file, one line each.

    A node that this Python cannot import is not checked here: it warns of unknown parameters itself.

    Args:
        path: of the file.
        launch: the launch file.
        given: its arguments.

    Raises:
        ImportError: this Python has no YAML.
    """
    import yaml

    kinds = _node_types(launch, given)
    try:
        config = yaml.safe_load(pathlib.Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        return [f"it is not YAML ({' '.join(str(error).split())}); {FORM}"]
    if not isinstance(config, dict) or not all(isinstance(values, dict) for values in config.values()):
        return [f"it is no mapping of nodes; {FORM}"]
    lines = [f"the launch has no node {name}; {_advise(name, kinds)}" for name in config if name not in kinds]
    return lines + [
        line for name in sorted(set(config) & set(kinds)) for line in _check_node(name, kinds[name], config[name])
    ]


def _node_types(launch: pathlib.Path, given: Mapping[str, str]) -> Dict[str, str]:
    """Type of every node of this package that may start, by its name, those of included files as well."""
    root, values = ElementTree.parse(launch).getroot(), LaunchFile.read(launch).argument_values(dict(given))
    kinds: Dict[str, str] = {}
    for item in root.iter("include"):
        kinds.update(_node_types(launch.parent / pathlib.PurePath(item.get("file", "")).name, given))
    for node in root.iter("node"):
        if node.get("pkg") == PACKAGE and node.get("type") != "edge-offload":
            name, kind = (
                re.sub(r"\$\(arg (\w+)\)", lambda match: values.get(match[1], ""), node.get(key, ""))
                for key in ("name", "type")
            )
            kinds[name] = kind
    return kinds


def _check_node(name: str, kind: str, values: Mapping[str, Any]) -> List[str]:
    try:
        node = importlib.import_module(module_of(kind)).NODE
    except ImportError:
        return []
    declared = {param.name: param for param in node.declared}
    lines = [f"{name} has no parameter {key}; {_advise(key, declared)}" for key in values if key not in declared]
    for key in sorted(set(values) & set(declared)):
        try:
            parameters.read([declared[key]], values)
        except BadInput as error:
            lines.append(f"{name}: {error}")
    return lines


def _advise(name: Any, names: Iterable[str]) -> str:
    return suggest_name(str(name), names, f"it has {', '.join(sorted(names))}")
