"""Reference pages: command line, nodes, launch arguments, messages, Python."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pathlib
import re
import textwrap
import xml.etree.ElementTree as ElementTree
from typing import Any, Dict, Iterator, List, Tuple

Pages = Dict[str, str]
WRITTEN = "*Written by `scripts/docs` from {}; do not edit.*"
#: What a program imports: module, and the names that it may use.
API: Tuple[Tuple[str, Tuple[str, ...]], ...] = (
    ("edge_offload.runtime.module", ("OffloadedModule",)),
    ("edge_offload.runtime.settings", ("ModuleSettings",)),
    ("edge_offload.mode", ("Mode",)),
    ("edge_offload.timing", ("InferenceReport",)),
    ("edge_offload.execute.tensors", ("TensorSpec",)),
    ("edge_offload.link.security.keys", ("KeyStore",)),
    ("edge_offload.link.transport.client", ("Client",)),
    ("edge_offload.link.codecs", ("encode", "decode", "select")),
    ("edge_offload.server.server", ("OffloadServer",)),
    ("edge_offload.server.settings", ("Compute", "Models", "Limits")),
    ("edge_offload.models.registry", ("entries", "build_estimator", "state_hash")),
    ("edge_offload.models.entry", ("Entry",)),
    ("edge_offload.models.base", ("PersonEstimator", "PeopleModule")),
    ("edge_offload.manager.policy", ("Policy", "Situation", "Decision", "Knobs", "make_policy")),
    (
        "edge_offload.errors",
        ("EdgeOffloadError", "BadInput", "Unsupported", "LinkLost", "ProtocolError", "Refused", "RemoteError"),
    ),
)


def pages(root: pathlib.Path) -> Pages:
    """Pages that any Python writes alike, by their path below docs/."""
    return {
        "reference/launch.md": _launch(root / "launch"),
        "reference/messages.md": _messages(root / "src" / "edge_offload_msgs"),
        "reference/python.md": _python(),
    }


def help_pages() -> Pages:
    """Pages of --help texts, which depend on the version of Python."""
    return {"reference/cli.md": _cli(), "reference/nodes.md": _nodes()}


def _page(title: str, source: str, body: List[str]) -> str:
    return "\n".join([f"# {title}", "", WRITTEN.format(source), "", *body]).rstrip() + "\n"


def _cli() -> str:
    from edge_offload.cli import build_parser
    from edge_offload.subcommands import filled

    body: List[str] = []
    for parser in filled(build_parser()):
        depth = min(2 + max(parser.prog.count(" ") - 1, 0), 4)
        lines = [line.rstrip() for line in parser.format_help().splitlines()]
        body += [f"{'#' * depth} {parser.prog}", "", "```text", *lines, "```", ""]
    return _page("Command line", "`--help`", body)


def _table(header: List[str], rows: List[List[str]]) -> List[str]:
    clean = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *clean)]


def _nodes() -> str:
    """Nodes with their topics (the docstring that --help prints) and parameters."""
    import edge_offload.nodes as nodes

    body: List[str] = []
    folder = pathlib.Path(nodes.__path__[0])
    for path in sorted([*folder.glob("*/*_node.py"), *folder.glob("*/run_recorder.py")], key=lambda item: item.stem):
        module = importlib.import_module(f"edge_offload.nodes.{path.parent.name}.{path.stem}")
        node = module.NODE
        body += [f"## {node.name}", "", f"`{node.name}` {(module.__doc__ or '').splitlines()[0]}", ""]
        details = textwrap.dedent("\n".join((module.__doc__ or "").splitlines()[1:])).strip("\n")
        body += ["```text", *[line.rstrip() for line in details.splitlines()], "```", ""]
        rows = [[f"`~{p.name}`", f"`{p.default!r}`", _doc(p)] for p in node.declared]
        body += [*_table(["parameter", "default", "meaning"], rows), ""] if rows else []
    return _page("Nodes, topics and parameters", "each node's `--help`", body)


def _doc(param: Any) -> str:
    bounds = [f"{word} {value:g}" for word, value in (("from", param.low), ("to", param.high)) if value is not None]
    choices = [f"one of {', '.join(map(str, param.choices))}"] if param.choices else []
    return "; ".join([param.doc, *choices, *([" ".join(bounds)] if bounds else [])])


def _launch(folder: pathlib.Path) -> str:
    body: List[str] = []
    for path in sorted(folder.glob("*.launch")):
        text = path.read_text(encoding="utf-8")
        said = re.search(r"<!--(.*?)-->", text, re.DOTALL)
        body += [f"## {path.name}", "", " ".join(said.group(1).split()) if said else "", ""]
        rows = []
        for arg in ElementTree.fromstring(text).findall("arg"):
            if arg.get("name", "").startswith("_"):  # worked out from others: nobody gives it
                continue
            default = arg.get("default")
            value = arg.get("value")
            given = "required" if default is None and value is None else _short(default if value is None else value)
            rows.append([f"`{arg.get('name')}`", given, arg.get("doc", "")])
        body += [*_table(["argument", "default", "meaning"], rows), ""]
    return _page("Launch arguments", "the launch files", body)


def _short(value: Any) -> str:
    """A default as a reader wants it: an expression is only said to be one."""
    text = str(value)
    return "follows from others" if text.startswith("$(") else f"`{text}`" if text else "empty"


def _messages(package: pathlib.Path) -> str:
    body: List[str] = []
    for path in [*sorted((package / "msg").glob("*.msg")), *sorted((package / "srv").glob("*.srv"))]:
        body += [f"## {path.stem}", "", "```text", *path.read_text(encoding="utf-8").rstrip().splitlines(), "```", ""]
    return _page("Messages and services (edge_offload_msgs)", "the message definitions", body)


def _python() -> str:
    body: List[str] = []
    for module_name, names in API:
        module = importlib.import_module(module_name)
        for name in names:
            thing = getattr(module, name)
            body += [f"## {name}", "", "```python", f"from {module_name} import {name}", "```", ""]
            body += _described(name, thing, "###")
    # roles of docstrings, which Markdown does not know
    plain = [re.sub(r":\w+:`~?([^`]+)`", r"`\1`", line) for line in body]
    return _page("Python", "docstrings", plain)


def _described(name: str, thing: Any, below: str) -> Iterator[str]:
    lines: List[str] = []
    if inspect.isfunction(thing) or (inspect.isclass(thing) and not issubclass(thing, (Exception, str))):
        with contextlib.suppress(TypeError, ValueError):
            lines += [f"`{name}{_signature(thing)}`", ""]
    lines += ["```text", *(inspect.getdoc(thing) or "").splitlines(), "```", ""]
    if inspect.isclass(thing) and not issubclass(thing, (Exception, str)):
        for method, value in vars(thing).items():
            if method.startswith("_") or not inspect.getdoc(value):
                continue
            function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            if inspect.isfunction(function):
                lines += [f"{below} {name}.{method}", "", f"`{method}{_signature(function)}`", ""]
            elif isinstance(value, property):
                lines += [f"{below} {name}.{method} (property)", ""]
            else:
                continue
            lines += ["```text", *(inspect.getdoc(value) or "").splitlines(), "```", ""]
    return iter(lines)


def _signature(thing: Any) -> str:
    """Parameters without their types, which the docstring says in words."""
    signature = inspect.signature(thing)
    shown = []
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        plain = parameter.replace(annotation=inspect.Parameter.empty)
        if " at 0x" in repr(parameter.default) or "<factory>" in repr(parameter.default):
            plain = plain.replace(default=...)
        shown.append(plain)
    return re.sub(r"<(\w+\.\w+): [^>]*>", r"\1", str(inspect.Signature(shown)))
