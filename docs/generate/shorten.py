"""Recorded results without what no page shows: the raw record stays with who recorded it."""

from __future__ import annotations

import copy
import functools
import json
from typing import Any, Callable, Dict, List, Set, Tuple

#: Keys from the top of a record to a field; "*" stands for every item of a list.
Path = Tuple[str, ...]
_NOTHING = object()
#: Significant digits of a number in a record: the fewest that leave the page as it is.
DIGITS = (3, 4, 5, 6, 9, 17)


def shorten(record: Any, render: Callable[[Any], List[str]]) -> Any:
    """A copy of ``record`` that ``render`` makes the same page of, without the fields that this does not need.

    Args:
        record: what a benchmark wrote, as JSON gives it.
        render: makes the lines of the page.
    """
    page = render(copy.deepcopy(record))
    shortened = record
    ends: Set[Path] = {()}
    while True:
        # fields of a field that is needed come after it has been tried whole
        paths = [path for path in _paths(shortened) if path not in ends and _owner(path) in ends]
        if not paths:
            break
        for path in paths:
            shorter = _without(shortened, path)
            if _renders(render, shorter) == page:
                shortened = shorter
            else:
                ends.add(path)
    for path in _paths(shortened):
        rounded = (_changed(shortened, path, functools.partial(_round, digits=digits)) for digits in DIGITS)
        shortened = next(shorter for shorter in rounded if _renders(render, shorter) == page)
    return shortened


def write(record: Any) -> str:
    """JSON with one line for each field or item at the top."""
    if isinstance(record, dict):
        rows = [f"{json.dumps(key)}: {_compact(value)}" for key, value in record.items()]
        return "{\n" + ",\n".join(rows) + "\n}\n"
    if isinstance(record, list):
        return "[\n" + ",\n".join(map(_compact, record)) + "\n]\n"
    return _compact(record) + "\n"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _renders(render: Callable[[Any], List[str]], record: Any) -> Any:
    try:
        return render(copy.deepcopy(record))  # some add figures to what they are given
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        return None


def _round(value: Any, digits: int) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: _round(item, digits) for key, item in value.items()}
    return [_round(item, digits) for item in value] if isinstance(value, list) else value


def _owner(path: Path) -> Path:
    """The field whose value, or whose list's items, ``path`` is a field of; empty at the top."""
    owner = path[:-1]
    while owner and owner[-1] == "*":
        owner = owner[:-1]
    return owner


def _paths(value: Any, before: Path = ()) -> List[Path]:
    """Paths of all fields, each once."""
    paths: Dict[Path, None] = {}
    if isinstance(value, dict):
        for key, item in value.items():
            paths[(*before, key)] = None
            paths.update(dict.fromkeys(_paths(item, (*before, key))))
    elif isinstance(value, list):
        for item in value:
            paths.update(dict.fromkeys(_paths(item, (*before, "*"))))
    return list(paths)


def _without(value: Any, path: Path) -> Any:
    return _changed(value, path, lambda _: _NOTHING)


def _changed(value: Any, path: Path, change: Callable[[Any], Any]) -> Any:
    """``value`` with ``change`` of what is at ``path``, which is left out where that gives nothing."""
    head, rest = path[0], path[1:]
    if isinstance(value, list) and head == "*":
        return [_changed(item, rest, change) for item in value]
    if not isinstance(value, dict) or head not in value:
        return value
    if rest:
        return {**value, head: _changed(value[head], rest, change)}
    new = change(value[head])
    if new is _NOTHING:
        return {key: item for key, item in value.items() if key != head}
    return {**value, head: new}
