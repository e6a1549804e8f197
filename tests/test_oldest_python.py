"""Python 3.8 runs the sources: what it has not is not used where it is evaluated."""

from __future__ import annotations

import ast
import pathlib
from typing import List

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ("src", "benchmarks", "research", "training")
#: Classes that Python 3.8 takes no ``[…]`` of; annotations are not evaluated.
PLAIN = {
    "Counter", "Future", "OrderedDict", "PathLike", "Popen", "Queue", "WeakSet", "chain", "defaultdict", "deque",
    "dict", "frozenset", "list", "ref", "set", "tuple", "type",
}  # fmt: skip


class Evaluated(ast.NodeVisitor):
    """Finds subscripts of such classes in code that runs."""

    def __init__(self) -> None:
        self.lines: List[int] = []

    def generic_visit(self, node: ast.AST) -> None:
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and name not in ("annotation", "returns"):
                    self.visit(child)

    def visit_If(self, node: ast.If) -> None:
        typing_only = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for child in node.orelse if typing_only else [node.test, *node.body, *node.orelse]:
            self.visit(child)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.value, ast.Name) and node.value.id in PLAIN:
            self.lines.append(node.lineno)
        self.generic_visit(node)


def evaluated_generics(text: str) -> List[int]:
    visitor = Evaluated()
    if any(f"{name}[" in text for name in PLAIN):
        visitor.visit(ast.parse(text))
    return visitor.lines


def test_classes_of_the_standard_library_are_not_subscripted_where_that_is_evaluated():
    sources = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 500
    assert not [f"{path.relative_to(ROOT)}:{line}" for path in sources for line in evaluated_generics(path.read_text())]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("total = sum(values, Counter[str]())", [1]),
        ("total: Counter[str] = Counter()\ndef f(x: list[int] = []) -> dict[str, int]: ...", []),
        ("if TYPE_CHECKING:\n    Base = Future[int]\nelse:\n    Base = Future[str]", [4]),
    ],
)  # fmt: skip
def test_annotations_and_what_only_type_checkers_read_are_no_matter(text, lines):
    assert evaluated_generics(text) == lines
