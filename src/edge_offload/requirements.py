"""What the library requires of other distributions, and which of that the installed ones do not meet."""

from __future__ import annotations

import configparser
import importlib.metadata
import pathlib
import re
from typing import Iterator, List, NamedTuple, Optional, Tuple

_DISTRIBUTION = "edge_offload"
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(;.*)?")
_BOUND = re.compile(r"(>=|<=|==|!=|<|>)\s*([0-9][0-9A-Za-z.+]*)")


class Unmet(NamedTuple):
    """A requirement that is not met: ``installed`` is the version that is there, None if there is none."""

    name: str
    bounds: str
    installed: Optional[str]

    def __str__(self) -> str:
        wanted = f"{self.name}{self.bounds}"
        return f"{wanted} (not installed)" if self.installed is None else f"{wanted} ({self.installed} is installed)"


def unmet() -> List[Unmet]:
    """Requirements of the library without its extras that the installed distributions do not meet."""
    failed = []
    for name, bounds in _required():
        try:
            version: Optional[str] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = None
        if version is None or not meets(version, bounds):
            failed.append(Unmet(name, bounds, version))
    return failed


def meets(version: str, bounds: str) -> bool:
    """Whether ``version`` is within ``bounds`` such as ``>=1.0,<2``."""
    try:
        from packaging.specifiers import SpecifierSet
    except ImportError:
        return all(_within(version, sign, bound) for sign, bound in _BOUND.findall(bounds))
    return SpecifierSet(bounds).contains(version, prereleases=True)


def _required() -> Iterator[Tuple[str, str]]:
    """Name and bounds of each requirement, as the checkout states them, else as the installed package does."""
    stated = pathlib.Path(__file__).resolve().parents[2] / "setup.cfg"
    parser = configparser.ConfigParser(interpolation=None)
    if stated.exists() and parser.read(stated, encoding="utf-8") and parser.has_option("options", "install_requires"):
        lines = parser.get("options", "install_requires").splitlines()
    else:
        try:
            lines = importlib.metadata.requires(_DISTRIBUTION) or []
        except importlib.metadata.PackageNotFoundError:
            lines = []
    for line in lines:
        match = _REQUIREMENT.fullmatch(line.strip())
        if match and "extra" not in (match.group(3) or ""):
            yield match.group(1), match.group(2).replace(" ", "")


def _within(version: str, sign: str, bound: str) -> bool:
    """Without the package ``packaging``: by the numbers of the release."""
    ours, theirs = _release(version), _release(bound)
    length = max(len(ours), len(theirs))
    ours, theirs = (numbers + (0,) * (length - len(numbers)) for numbers in (ours, theirs))
    signs = {">=": ours >= theirs, "<=": ours <= theirs, "==": ours == theirs, "!=": ours != theirs}
    return {**signs, "<": ours < theirs, ">": ours > theirs}[sign]


def _release(version: str) -> Tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(number) for number in match.group().split(".")) if match else ()
