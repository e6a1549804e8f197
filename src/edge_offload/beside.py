"""Distributions beside this one in its repository, which a robot does not need: benchmarks, research, training.

Each adds its subcommands to ``edge-offload`` by entry points of the group ``edge_offload.commands`` (name: the verb,
value: a module like those of :mod:`edge_offload.commands`). A verb whose distribution is not installed says how to
install it. The same holds for actions of a command (group ``edge_offload.actions``).
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Dict, Optional

from edge_offload.errors import Unsupported

GROUP = "edge_offload.commands"
ACTIONS = "edge_offload.actions"


@dataclass(frozen=True)
class Verb:
    """A subcommand that another distribution brings.

    Attributes:
        package: what it is imported as.
        summary: the line in ``edge-offload --help`` while it is not installed.
    """

    package: str
    summary: str


VERBS = {
    "bench": Verb("edge_offload_benchmarks", "Run an experiment: every number that the documentation quotes."),
    "chaos": Verb(
        "edge_offload_benchmarks", "Do harm to a robot and its server on this machine, and check the results."
    ),
    "conformance": Verb(
        "edge_offload_research",
        "Run PyTorch's own operator samples on the virtual CUDA device and compare with a reference, bit for bit.",
    ),
    "convert": Verb(
        "edge_offload_training", "Convert a PyTorch checkpoint (.pt, a pickle) to safetensors, once, on a workstation."
    ),
    "engines": Verb(
        "edge_offload_research",
        "List inference engines, build one ahead of time, compare one with torch on this machine.",
    ),
    "link": Verb(
        "edge_offload_research",
        "Emulate a wireless link in front of a server, list the named links, steer a running emulator.",
    ),
    "plan": Verb(
        "edge_offload_research",
        "Plan how robot and server compute one inference together: a table of plans by bandwidth, and a picture.",
    ),
    "profile": Verb(
        "edge_offload_research",
        "Measure every operator of a model at several slice sizes, here and on a server, for plans of split.",
    ),
    "promises": Verb(
        "edge_offload_research",
        "Plan the requests of many robots on one server: who is computed with whom, and which frame each sends.",
    ),
    "sample-bag": Verb("edge_offload_research", "Write a bag of images from a video, the same every time."),
    "scene": Verb(
        "edge_offload_training",
        "Complete a LiDAR scan with SCONet, score SCONet against simple baselines, make synthetic scenes.",
    ),
    "train": Verb("edge_offload_training", "Train a network, on synthetic or on your own data."),
    "turns": Verb(
        "edge_offload_research",
        "Plan whose frame goes to the server next, where several networks share it.",
    ),
}
#: Folder of the repository that holds a package.
FOLDERS = {
    "edge_offload_benchmarks": "benchmarks",
    "edge_offload_research": "research",
    "edge_offload_training": "training",
}
#: Libraries that only these packages need, by the package that says so.
LIBRARIES = {"motmetrics": "edge_offload_benchmarks", "pycocotools": "edge_offload_training"}


def action(name: str, package: str) -> ModuleType:
    """The module that ``package`` adds for an action of a command of this distribution, with ``run(args)``.

    Raises:
        Unsupported: it is not installed.
    """
    module = commands(ACTIONS).get(name)
    if module is None:
        raise absent(package) or AssertionError(package)
    return importlib.import_module(module)


def commands(group: str = GROUP) -> Dict[str, str]:
    """Module of every verb that an installed distribution adds; one whose package is gone adds none."""
    entry_points: Any = metadata.entry_points()
    # a mapping of groups up to Python 3.9; the backport's and later ones are selected from
    points = entry_points.select(group=group) if sys.version_info >= (3, 10) else entry_points.get(group, ())
    return {point.name: point.value for point in points if find_spec(point.value.split(".")[0]) is not None}


def absent(package: Optional[str]) -> Optional[Unsupported]:
    """Return the error of a missing ``package``, or None if it is none of :data:`FOLDERS` and their libraries."""
    root = (package or "").split(".")[0]
    folder = FOLDERS.get(LIBRARIES.get(root, root))
    if folder is None:
        return None
    return Unsupported(
        f"{root} is not installed in this Python", remedy=f"in a checkout of edge_offload: pip install ./{folder}"
    )
