"""Subcommands found by name: one module each, imported only when it is the one that is wanted."""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import importlib.util
import json
import math
import pathlib
import pkgutil
from types import ModuleType
from typing import Any, Dict, Iterator, Mapping, NoReturn, Optional, Sequence, Tuple

from edge_offload.errors import BadInput

DEVICE = "what computes here: auto (the GPU if there is one, default), cpu, cuda or cuda:n"


def signed(text: str) -> float:
    """A number that may be negative, such as a coordinate; NaN and infinity are none."""
    value = float(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return value


def amount(text: str) -> float:
    """A finite number from 0 on: seconds, factors, rates."""
    value = signed(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is negative; give a number from 0 on")
    return value


def positive(text: str) -> float:
    """A finite number above 0."""
    value = amount(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} is too small; give a number above 0")
    return value


def count(text: str) -> int:
    """A whole number from 0 on: how many, which, a port, a seed."""
    value = int(text)
    most = 2**31 - 1
    if not 0 <= value <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is out of range; give a whole number from 0 to {most}")
    return value


def some(text: str) -> int:
    """A whole number from 1 on."""
    value = count(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} is too few; give a whole number from 1 on")
    return value


def options(
    texts: Sequence[str], known: Optional[Mapping[str, Any]] = None, form: str = "NAME=VALUE"
) -> Dict[str, Any]:
    """``{name: value}`` from texts of a ``form``: JSON scalars, else text; yes or no where the known value is a bool.

    Raises:
        BadInput: not of that form.
    """
    values: Dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise BadInput(f"option {text!r}", remedy=f"write {form}")
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value
        if known is not None and isinstance(known.get(name), bool):
            values[name] = value.lower() in ("1", "true", "yes")
    return values


class Subparser(argparse.ArgumentParser):
    """The parser of a module that has ``add_arguments(parser)`` and ``run(args) -> int``, filled in when it parses.

    Without ``module`` an ordinary one: argparse makes the parsers below a parser of its own class. ``type=float`` means
    :func:`amount` and ``type=int`` means :func:`count`; a wrong argument is told in one line.
    """

    def __init__(self, *args: Any, module: Optional[str] = None, dest: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **{"formatter_class": argparse.RawDescriptionHelpFormatter, **kwargs})
        self._module = module
        self._dest = dest
        self.register("type", float, amount)
        self.register("type", int, count)

    def error(self, message: str) -> NoReturn:
        """Leave with 2 and one line instead of the whole usage."""
        self.exit(2, f"{self.prog}: {' '.join(message.split())}; see '{self.prog} --help'\n")

    def parse_known_args(  # type: ignore[override]
        self, args: Optional[Sequence[str]] = None, namespace: Optional[argparse.Namespace] = None
    ) -> Tuple[argparse.Namespace, Sequence[str]]:
        """Import the module, then parse as usual; an option that this command lacks is an error here."""
        self.fill()
        parsed, extra = super().parse_known_args(args, namespace)
        if extra and self._subparsers is None:
            near = difflib.get_close_matches(extra[0].split("=")[0], self._option_string_actions, 1)
            self.error(f"unrecognized arguments: {' '.join(extra)}{f'; is it {near[0]}?' if near else ''}")
        return parsed, extra

    def fill(self) -> None:
        """Import the module and take its arguments over, if that has not been done."""
        if self._module is not None:
            name, self._module = self._module, None
            module = importlib.import_module(name)
            self.description = (module.__doc__ or "").strip()
            module.add_arguments(self)
            self.set_defaults(**{self._dest: module.run})


def filled(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """``parser`` and every parser below it, with their arguments."""
    if isinstance(parser, Subparser):
        parser.fill()
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from filled(below)


def modules_of(package: ModuleType) -> Dict[str, str]:
    """Subcommand and module's name, for every module of ``package`` that defines ``run``."""
    modules = {}
    for info in pkgutil.iter_modules(package.__path__):
        tree = ast.parse((pathlib.Path(package.__path__[0]) / f"{info.name}.py").read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in tree.body):
            modules[info.name.replace("_", "-")] = f"{package.__name__}.{info.name}"
    return modules


def summary(module: str) -> str:
    """First line of a module's docstring, read without importing it."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    text = ast.get_docstring(ast.parse(pathlib.Path(spec.origin).read_text(encoding="utf-8"))) or ""
    return text.split("\n", 1)[0]


def add(
    parser: argparse.ArgumentParser,
    modules: Mapping[str, str],
    what: str,
    dest: str,
    absent: Optional[Mapping[str, str]] = None,
) -> None:
    """Give ``parser`` a subcommand for every module, in the order of their names.

    Args:
        parser: gets them.
        modules: name of the subcommand and module that has ``add_arguments`` and ``run``.
        what: the kind of thing that a subcommand is, such as ``command``.
        dest: attribute of the parsed arguments that becomes the module's ``run``.
        absent: subcommands that are not installed, with their summaries; for them ``dest`` is None.
    """
    actions = parser.add_subparsers(dest=what, metavar=what.upper(), required=True, parser_class=Subparser)
    add_parsers(actions, modules, dest, absent or {})


def add_parsers(actions: Any, modules: Mapping[str, str], dest: str, absent: Mapping[str, str]) -> None:
    """As :func:`add`, to what ``add_subparsers`` returned."""
    for name in sorted({*modules, *absent}):
        if name in modules:
            actions.add_parser(name, help=summary(modules[name]), module=modules[name], dest=dest)
        else:
            # by a prefix that no argument has, options are arguments like others
            lacking = actions.add_parser(
                name, help=f"(not installed) {absent[name]}", add_help=False, prefix_chars="\0"
            )
            lacking.add_argument("arguments", nargs=argparse.REMAINDER)
            lacking.set_defaults(**{dest: None})
