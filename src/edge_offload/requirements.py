"""What the library requires of other distributions, and which of that the installed ones do not meet."""

from __future__ import annotations

import configparser
import importlib.metadata
import pathlib
import shlex
import sys
from typing import List, NamedTuple, Optional

_DISTRIBUTION = "edge_offload"


class Unmet(NamedTuple):
    """A requirement that is not met: ``installed`` is the version that is there, None if there is none."""

    name: str
    bounds: str
    installed: Optional[str]

    def __str__(self) -> str:
        needed = f"{self.name}{self.bounds}"
        return f"{needed} (not installed)" if self.installed is None else f"{needed} ({self.installed} is installed)"


def unmet() -> List[Unmet]:
    """Requirements of the library without its extras that the installed distributions do not meet."""
    try:
        from packaging.requirements import Requirement
    except ImportError:  # without it versions cannot be compared
        return [Unmet("packaging", "", None)]
    failed = []
    for line in _required():
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version: Optional[str] = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            version = None
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            failed.append(Unmet(requirement.name, str(requirement.specifier), version))
    return failed


def install(extra: str) -> str:
    """The command that installs an extra into this Python; numpy 1, for which ROS's cv_bridge is built, stays."""
    try:
        pin = " 'numpy<2'" if importlib.metadata.version("numpy").startswith("1.") else ""
    except importlib.metadata.PackageNotFoundError:
        pin = ""
    return f"{shlex.quote(sys.executable)} -m pip install '{_DISTRIBUTION}[{extra}]'{pin}"


def _required() -> List[str]:
    """Each requirement, as the checkout states them, else as the installed package does."""
    stated = pathlib.Path(__file__).resolve().parents[2] / "setup.cfg"
    parser = configparser.ConfigParser(interpolation=None)
    if stated.exists() and parser.read(stated, encoding="utf-8") and parser.has_option("options", "install_requires"):
        return [line for line in parser.get("options", "install_requires").splitlines() if line.strip()]
    try:
        return importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
