"""Subcommands found by name: one module of a package each, imported only when it is the one that is wanted."""

from __future__ import annotations

import argparse
import ast
import importlib
import pathlib
import pkgutil
from types import ModuleType
from typing import Any, Optional, Sequence, Tuple


class Subparser(argparse.ArgumentParser):
    """The parser of a module that has ``add_arguments(parser)`` and ``run(args) -> int``, filled in when it parses.

    Without ``module`` an ordinary one: argparse makes the parsers below a parser of its own class.
    """

    def __init__(self, *args: Any, module: Optional[str] = None, dest: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **{"formatter_class": argparse.RawDescriptionHelpFormatter, **kwargs})
        self._module = module
        self._dest = dest

    def parse_known_args(  # type: ignore[override]
        self, args: Optional[Sequence[str]] = None, namespace: Optional[argparse.Namespace] = None
    ) -> Tuple[argparse.Namespace, Sequence[str]]:
        """Import the module, then parse as usual."""
        if self._module is not None:
            name, self._module = self._module, None
            module = importlib.import_module(name)
            self.description = (module.__doc__ or "").strip()
            module.add_arguments(self)
            self.set_defaults(**{self._dest: module.run})
        return super().parse_known_args(args, namespace)


def add(parser: argparse.ArgumentParser, package: ModuleType, what: str, dest: str) -> None:
    """Give ``parser`` a subcommand for every module of ``package`` that defines ``run``.

    Args:
        what: the kind of thing that a subcommand is, such as ``command``.
        dest: attribute of the parsed arguments that becomes the module's ``run``.
    """
    actions = parser.add_subparsers(dest=what, metavar=what.upper(), required=True, parser_class=Subparser)
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda item: item.name):
        tree = ast.parse((pathlib.Path(package.__path__[0]) / f"{info.name}.py").read_text(encoding="utf-8"))
        if not any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in tree.body):
            continue  # something that they share
        text = ast.get_docstring(tree) or ""
        actions.add_parser(
            info.name.replace("_", "-"),
            help=text.split("\n", 1)[0],
            module=f"{package.__name__}.{info.name}",
            dest=dest,
        )
