"""Checks of a launch file before roslaunch reads it: argument names, ports, nodes, RViz.

Uses only the standard library and the names of modes, because :mod:`edge_offload.nodes.arguments` runs it.
"""

from __future__ import annotations

import difflib
import os
import pathlib
import re
import shutil
import socket
import xml.etree.ElementTree as ElementTree
import xmlrpc.client
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Dict, Iterable, List, Sequence, Set

from edge_offload import beside
from edge_offload.mode import TABLE, Mode, names

PACKAGE = "edge_offload"
OURS = pathlib.Path(__file__).resolve().parents[3] / "launch"
"""Where the launch files lie beside the sources; an installed package has them in its share folder."""


_TRUE = ("true", "1")

_PARAMETERS = {
    "device": "offload_server_node: {device: %s}",
    "follower_config": "follower_node: {distance: 2.0}",
    "record_limit": "run_recorder: {record_limit: %s}",
    "robot_cores": "NETWORK: {cores: %s}",
    "robot_threads": "NETWORK: {threads: %s}",
    "runs_limit": "run_recorder: {runs_limit: %s}",
    "server_cores": "offload_server_node: {cores: %s}",
    "server_threads": "offload_server_node: {threads: %s}",
    **{
        name: f"NETWORK: {{{name}: %s}}" for name in ("batched", "every_frame", "in_flight", "local_options", "tf_wait")
    },
}
"""What has no argument in most launch files: where ``config:=`` takes it, ``%s`` is the value."""


@dataclass
class LaunchFile:
    """Content of a launch file, read without ROS: ``arguments`` with their defaults, ``nodes`` that always start."""

    path: pathlib.Path
    arguments: Dict[str, str] = field(default_factory=dict)
    nodes: Set[str] = field(default_factory=set)

    @classmethod
    def read(cls, path: pathlib.Path) -> LaunchFile:
        """Read ``path``; what is no XML has nothing (roslaunch says so)."""
        made = cls(path)
        try:
            root = ElementTree.parse(path).getroot()
        except (OSError, ElementTree.ParseError):
            return made
        made.arguments = {
            arg.get("name", ""): arg.get("default", "") for arg in root.findall("arg") if "value" not in arg.attrib
        }
        made.nodes = {node.get("name", "") for node in root.iter("node") if not {"if", "unless"} & set(node.attrib)} - {
            ""
        }
        return made

    def argument_values(self, given: Dict[str, str]) -> Dict[str, str]:
        """Values of the arguments; defaults that roslaunch would have to compute are left as they stand."""
        return {**self.arguments, **given}


def parse_arguments(given: Sequence[str]) -> Dict[str, str]:
    """``name:=value`` by name."""
    return dict(argument.split(":=", 1) for argument in given if ":=" in argument)


def locate_launch_files(given: Sequence[str]) -> List[pathlib.Path]:
    """Launch files that a command line of roslaunch names, as paths or by package, as far as they can be located."""
    positional = [word for word in given if ":=" not in word and not word.startswith("-")]
    located = []
    for before, word in zip(["", *positional], positional):
        if not word.endswith(".launch"):
            continue
        prefixes = filter(None, os.environ.get("CMAKE_PREFIX_PATH", "").split(os.pathsep))
        places = [pathlib.Path(prefix) / "share" / before / "launch" / word for prefix in prefixes]
        places = [pathlib.Path(word), *([OURS / word] if before == PACKAGE else []), *places]
        located += [place.resolve() for place in places if place.is_file()][:1]
    return located


def suggest_name(name: str, names: Iterable[str], otherwise: str) -> str:
    """Return the advice for a misspelt ``name``: the nearest of ``names``, or ``otherwise`` if none is near."""
    near = difflib.get_close_matches(name, sorted(names), 1)
    return f"is it {near[0]}?" if near else otherwise


def list_misspelt(given: Sequence[str]) -> List[str]:
    """Arguments that the launch files named do not have, which roslaunch ignores, each with the nearest name."""
    files = [LaunchFile.read(path) for path in locate_launch_files(given)]
    declared = {name for file in files for name in file.arguments}
    if not declared:
        return []
    lines = []
    for name, value in parse_arguments(given).items():
        if name in declared or name.startswith("_"):
            continue
        listing = f"'roslaunch --ros-args {_launch_name(files[0].path)}' lists its arguments"
        advice = suggest_name(name, declared, listing)
        if name in _PARAMETERS and "config" in declared:
            network = "agrnav_node" if files[0].path.name == "agrnav.launch" else "kapao_node"
            entry = _PARAMETERS[name].replace("%s", value).replace("NETWORK", network)
            advice = f"write {entry} in a YAML file, and config:=FILE"
        lines.append(f"{name}:={value}: {files[0].path.name} has no argument {name}; {advice}")
    return lines


def _launch_name(path: pathlib.Path) -> str:
    return f"{PACKAGE} {path.name}" if _is_ours(path) else str(path)


def _is_ours(path: pathlib.Path) -> bool:
    return path.parent == OURS or path.parts[-3:-1] == (PACKAGE, "launch")


def list_collisions(given: Sequence[str]) -> List[str]:
    """List what the named launch file of this package collides with: a program, a port, a node."""
    lines: List[str] = []
    for path in locate_launch_files(given):
        if not _is_ours(path):
            continue
        file = LaunchFile.read(path)
        values = file.argument_values(parse_arguments(given))
        lines += (
            _without_server(values)
            or _without_emulator(values)
            or _without_rviz(values)
            or _ports_in_use(values)
            or _nodes_that_run(file, values, given)
        )
    return lines


def _without_server(values: Dict[str, str]) -> List[str]:
    """A mode that needs a server, where there is none: its node would be started for ever."""
    mode = values.get("mode", "")
    if values.get("server") != "none" or mode not in names() or not TABLE[Mode(mode)].needs_link:
        return []
    return [f"mode:={mode}: it needs a server, and server:=none; give server:=host:port, or mode:=local"]


def _without_emulator(values: Dict[str, str]) -> List[str]:
    """An emulated link where the emulator is not installed."""
    server, link = values.get("server", "none"), values.get("link", "none")
    package = beside.VERBS["link"].package
    # importable is enough: scripts/run checks before it installs
    if server == "none" or "," in server or link == "none" or find_spec(package) is not None:
        return []
    return [f"link:={link}: {beside.absent(package)}, or give link:=none"]


def _without_rviz(values: Dict[str, str]) -> List[str]:
    if values.get("rviz", "").lower() not in _TRUE or values.get("headless", "").lower() in _TRUE:
        return []
    prefixes = ["/usr", *filter(None, os.environ.get("CMAKE_PREFIX_PATH", "").split(os.pathsep))]
    if shutil.which("rviz") or any((pathlib.Path(prefix) / "lib/rviz/rviz").exists() for prefix in prefixes):
        return []
    package = "ros-noetic-rviz" if pathlib.Path("/opt/ros/noetic").exists() else "rviz"
    return [f"rviz:={values['rviz']}: RViz is not installed; apt-get install {package}, or leave the argument out"]


def _ports_in_use(values: Dict[str, str]) -> List[str]:
    """Ports on loopback that the nodes would listen on."""
    server = values.get("server", "none")
    listening = {
        "port": server == "embedded",
        "link_port": server != "none" and "," not in server and values.get("link", "none") != "none",
        "dashboard_port": values.get("dashboard", "").lower() in _TRUE,
    }
    ports = [(name, int(values[name])) for name, used in listening.items() if used and values.get(name, "").isdigit()]
    taken = {port for _, port in ports}
    lines = []
    for name, port in ports:
        if port == 0 or _is_free(port):
            continue
        other = next((other for other in range(port + 1, 65536) if other not in taken and _is_free(other)), 0)
        taken.add(other)
        use = f", or server:=127.0.0.1:{port} if that is a server" if name == "port" else ""
        lines.append(f"{name}:={port}: another process listens there; end it, or give {name}:={other}{use}")
    return lines


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            # another socket that may be reused is only noticed where both would listen
            probe.listen(1)
        except OSError:
            return False
    return True


class _Impatient(xmlrpc.client.Transport):
    def make_connection(self, host: Any) -> Any:
        connection = super().make_connection(host)
        connection.timeout = 1.0
        return connection


def _nodes_that_run(file: LaunchFile, values: Dict[str, str], given: Sequence[str]) -> List[str]:
    """Nodes of the same names at the same master, which the new ones would push off."""
    nodes = set(file.nodes)
    if values.get("server") == "embedded":
        nodes |= LaunchFile.read(file.path.parent / "server.launch").nodes
    if "robot.launch" in file.path.read_text(encoding="utf-8"):
        nodes |= LaunchFile.read(file.path.parent / "robot.launch").nodes
    space = os.environ.get("ROS_NAMESPACE", "").strip("/")
    uri = _master_uri(given)
    running = sorted(
        name for name in nodes if re.fullmatch(r"\w+", name) and _is_running(uri, f"/{space}/{name}".replace("//", "/"))
    )
    if not running:
        return []
    return [
        f"{file.path.name}: {', '.join(running)} of another launch run at {uri} and would be ended; end that launch, "
        "or start this one at a master of its own: ROS_MASTER_URI=http://localhost:11312"
    ]


def _master_uri(given: Sequence[str]) -> str:
    """Return the URI of the launch's master: roslaunch's option -p, the environment, or ROS's default."""
    for option, value in zip(given, [*given[1:], ""]):
        port = re.fullmatch(r"(?:-p|--port)=?(\d*)", option)
        if port:
            return f"http://localhost:{port.group(1) or value}"
    return os.environ.get("ROS_MASTER_URI", "http://localhost:11311")


def _is_running(uri: str, node: str) -> bool:
    """Tell whether a node of that name answers; the master lists those that died, too."""
    try:
        code, _, address = _call_master(uri).lookupNode("/edge_offload_arguments", node)
        return bool(code == 1 and _call_master(address).getPid("/edge_offload_arguments")[0] == 1)
    except (OSError, xmlrpc.client.Error, ValueError, TypeError):
        return False


def _call_master(uri: str) -> Any:
    return xmlrpc.client.ServerProxy(uri, transport=_Impatient())
