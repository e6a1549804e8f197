"""List the models that come with edge_offload, show their sources and licences, and fetch their weights.

  edge-offload models list                 all models, one per line
  edge-offload models info movenet         source, licence, size, checksum, options
  edge-offload models fetch movenet        download the weights into the cache before the first run

Weights are stored in $EDGE_OFFLOAD_CACHE, else in edge_offload in $XDG_CACHE_HOME (default ~/.cache/edge_offload). A
model of your own needs no entry here: give package.module:factory as the model's name. The factory returns a
torch.nn.Module.
"""

from __future__ import annotations

import argparse
import pathlib
from typing import TYPE_CHECKING, Any, Dict, List, Tuple

from edge_offload.outputs import add_output

if TYPE_CHECKING:
    from edge_offload.models.entry import Entry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`edge_offload.commands`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for action, text, count in (
        ("list", "every model, one a line", "*"),
        ("info", "all that is known about a model", "+"),
        ("fetch", "put weights into the cache", "+"),
    ):
        sub = actions.add_parser(action, help=text, description=text)
        sub.add_argument("names", nargs=count, metavar="MODEL", help="names from 'edge-offload models list'")
        add_output(sub, "--json", metavar="FILE", help="write the same as JSON records (kind 'model')")


def run(args: argparse.Namespace) -> int:
    """See :mod:`edge_offload.commands`."""
    import logging

    from edge_offload import records
    from edge_offload.errors import BadInput
    from edge_offload.models.registry import entries

    table = entries()
    for name in args.names:
        if name not in table:
            raise BadInput(f"no model named {name!r}", remedy=f"the models are: {', '.join(table)}")
    chosen = [table[name] for name in args.names] or list(table.values())
    if args.action == "fetch":
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        for entry in chosen:
            _fetch(entry)
    elif args.action == "list":
        width = max(len(entry.name) for entry in chosen)
        for entry in chosen:
            print(f"{entry.name:<{width}}  {_state(entry):<8}  {entry.summary}")
    else:
        print("\n\n".join(_describe(entry) for entry in chosen))
    if args.json:
        records.write(args.json, "model", [_record(entry) for entry in chosen])
    return 0


def _fetch(entry: Entry) -> None:
    if entry.fetch is None:
        print(f"{entry.name}: nothing to fetch; its weights are {entry.source}")
    else:
        print(f"{entry.name}: {entry.fetch()}")


def _state(entry: Entry) -> str:
    if entry.cached is None:
        return "shipped" if entry.shipped is not None else "-"
    return "cached" if entry.cached().exists() else "to fetch"


def _describe(entry: Entry) -> str:
    lines = [
        ("model", entry.name),
        ("kind", entry.kind),
        ("what", entry.summary),
        ("weights", entry.source),
        ("licence", entry.licence),
    ]
    if entry.cached is not None:
        lines += [
            ("size", f"{entry.weights_bytes / 1e6:.1f} MB, from a download of {entry.download_bytes / 1e6:.0f} MB"),
            ("sha256", f"{entry.sha256} (of the tensors)"),
            ("cache", f"{entry.cached()} ({_state(entry)})"),
        ]
    if entry.shipped is not None:
        size, checksum = _shipped(entry.shipped)
        lines += [("size", f"{size / 1e6:.1f} MB"), ("sha256", f"{checksum} (of the tensors)")]
    lines.append(("options", " ".join(f"{key}={value!r}" for key, value in entry.options.items())))
    return "\n".join(f"{label:<8} {text}" for label, text in lines)


def _shipped(path: pathlib.Path) -> Tuple[int, str]:
    """Bytes of the file, and the checksum of its tensors."""
    from edge_offload.cache import tensors_hash
    from edge_offload.models import checkpoint

    return path.stat().st_size, tensors_hash(checkpoint.read(path)[0])


def _record(entry: Entry) -> Dict[str, Any]:
    names: List[str] = ["name", "kind", "summary", "source", "licence", "weights_bytes", "download_bytes", "sha256"]
    path = entry.cached() if entry.cached is not None else None
    shipped = {} if entry.shipped is None else dict(zip(("weights_bytes", "sha256"), _shipped(entry.shipped)))
    return {
        **{name: getattr(entry, name) for name in names},
        **shipped,
        "options": dict(entry.options),
        "cached": str(path) if path is not None and path.exists() else None,
    }
