"""Tables of operators whose results' metadata (sizes, strides, dtype, storage) the device infers by itself.

``shapes-<release>.json`` lists operators of a torch release for which inferred metadata agreed with the CPU kernels, on
samples of PyTorch's own tests. It has the layouts of operands in which that holds, and the way to infer: the meta
kernel, a rule, or the iterator over operands and numbers (``native/cpp/rules.h``). ``shapes-<release>-cuda.json`` lists
those that agreed with a GPU's kernels. :mod:`edge_offload_research.device.conformance.shapes` writes both.

A release without a table uses that of the nearest release, if that is near. Without any table, the device asks the
server once for each form of a call (a call without its sizes). It then infers other calls of the form in the way that
was correct for the first one (``native/cpp/suppose.h``).
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
from typing import Any, Dict, List, Mapping

from edge_offload.device import connect

#: Ways to infer metadata: keys of a table.
HOW = ("meta", "rules", "numbers")
#: Key of a table: operators that are always requested from the executor: a sample differed from their meta kernel.
REQUESTED_KEY = "asked"
#: Most minor releases between torch and a table; the executor detects operators that have changed since.
MAX_RELEASES_AWAY = 2
#: Folder of the tables.
FOLDER = pathlib.Path(__file__).parent
#: Letters of layouts of a call's operands: rows, channels last, dense in another order, gaps, empty, complex.
LAYOUTS = "rcdgex"


def trust_shapes(native: Any, remote: Any) -> None:
    """Let the device infer the metadata of results where it will equal that of ``remote``.

    The executor compares. If only strides differ, its kernels use the actual ones, and the robot keeps the inferred
    ones. If sizes differ, it raises before any result is used. In both cases the operator is requested from then on. If
    ``remote`` computes on a GPU, the device also records operators as the GPU's kernels take them.
    """
    facts = remote.facts
    on_gpu = bool(facts.get("name")) and not _on_cpu(facts)
    native.computed_by_gpu(on_gpu)
    if connect.ExecSettings.from_environment(os.environ).shapes == connect.NEVER_DERIVE:
        native.trust([], [{}, {}, {}])
        native.suppose(False, [])
        return
    table = table_for_device(facts)
    requested = set(table.get(REQUESTED_KEY, ()))
    exact = {} if getattr(remote, "torches", "") else table  # what differs from one torch differs from another, too
    ways = [{name: layouts_of(letters) for name, letters in exact.get(how, {}).items()} for how in HOW]
    native.suppose(not any(ways), sorted(requested))
    native.trust([name for name in operators_with_exact_shapes() if name not in requested], ways)


def table_for_device(facts: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the table for a device with ``facts``; empty if there is none.

    A GPU's table that names a compute capability is valid only for it, because kernels differ between GPUs.
    """
    if not facts.get("name"):
        return {}
    if _on_cpu(facts):
        return load_table()
    table = load_table("-cuda")
    if table.get("capability") in (None, [facts.get("major"), facts.get("minor")]):
        return table
    return {REQUESTED_KEY: table.get(REQUESTED_KEY, [])}


def _on_cpu(facts: Mapping[str, Any]) -> bool:
    from edge_offload.execute.devices import ON_CPU

    return str(facts.get("name", "")).endswith(ON_CPU)


def layouts_of(letters: str) -> int:
    """Return a set of layouts as the bits of ``native/cpp/rules.h``, from its letters in :data:`LAYOUTS`."""
    return sum(1 << LAYOUTS.index(letter) for letter in letters)


def load_table(kind: str = "") -> Dict[str, Any]:
    """Load the table of this torch release, or of the nearest at most :data:`MAX_RELEASES_AWAY` away; empty: none.

    Args:
        kind: empty for CPUs; ``-cuda`` for GPUs, whose table has to be of the same release.
    """
    import torch

    major, minor = torch.__version__.split(".")[:2]
    for away in range(1 if kind else MAX_RELEASES_AWAY + 1):
        for release in (int(minor) - away, int(minor) + away):
            path = FOLDER / f"shapes-{major}.{release}{kind}.json"
            if path.is_file():
                return dict(json.loads(path.read_text(encoding="utf-8")))
    return {}


def operators_with_exact_shapes() -> List[str]:
    """Return operators whose meta kernel is generated from the same code as the CPU kernel (structured operators).

    Meta kernels in Python are approximations, and not among them.
    """
    import torch

    names = []
    python_made = set(torch._meta_registrations._meta_lib_dont_use_me_use_register_meta._op_impls)
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::"):
            continue
        has = functools.partial(torch._C._dispatch_has_kernel_for_dispatch_key, name)
        short = name[len("aten::") :]
        if (
            has("Meta")
            and has("CPU")
            and not has("CompositeExplicitAutograd")
            and f"aten/{short}/Meta" not in python_made
        ):
            names.append(name)
    return names
