"""Operators whose results the device derives by itself: their sizes, strides, dtype and storage.

``shapes-<release>.json`` has the operators of a release of torch for which that agreed with a CPU's kernels on samples
of PyTorch's own tests, in which layouts of their operands, and how it is worked out: by the meta kernel, by a rule, or
over the numbers among the arguments as well (``native/cpp/rules.h``). ``shapes-<release>-cuda.json`` has those that
agreed with a GPU's kernels. Both are written by :mod:`edge_offload_research.device.conformance.shapes`.

A release without a table has that of the nearest one, if that is near. Where there is none, the device asks once for
each form of a call (a call without its sizes) and supposes of others what was right for it (``native/cpp/suppose.h``).
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
from typing import Any, Dict, List, Mapping

from edge_offload.device import connect

#: How results are worked out.
HOW = ("meta", "rules", "numbers")
#: Operators that a table has asked of the executor: some sample differed from their meta kernel.
REQUESTED_KEY = "asked"
#: Minor releases over which a table holds: what has changed since then the executor finds.
MAX_RELEASES_AWAY = 2
#: Where the tables lie.
FOLDER = pathlib.Path(__file__).parent
#: Layouts of a call's operands: rows; at worst with channels last; dense in another order; with gaps; empty; complex.
LAYOUTS = "rcdgex"


def trust_shapes(native: Any, remote: Any) -> None:
    """Lets the device derive the shapes of results where they will equal those that ``remote`` finds.

    It checks: an executor that finds other layouts goes on with its own, one that finds other sizes raises before any
    result is used, and both are asked from then on. The device
    also records operators as a GPU's kernels take them where ``remote`` computes on one.
    """
    facts = remote.facts
    on_gpu = bool(facts.get("name")) and not _on_cpu(facts)
    native.computed_by_gpu(on_gpu)
    if connect.ExecSettings.from_environment(os.environ).shapes == connect.NEVER_DERIVE:
        native.trust([], [{}, {}, {}])
        native.suppose(False, [])
        return
    table = sampled_for(facts)
    requested = set(table.get(REQUESTED_KEY, ()))
    exact = {} if getattr(remote, "torches", "") else table  # what differs from one torch differs from another, too
    ways = [{name: layouts_of(letters) for name, letters in exact.get(how, {}).items()} for how in HOW]
    native.suppose(not any(ways), sorted(requested))
    native.trust([name for name in operators_with_exact_shapes() if name not in requested], ways)


def sampled_for(facts: Mapping[str, Any]) -> Dict[str, Any]:
    """Table of shapes for a device with ``facts``; empty if there is none.

    A table of a GPU holds for that compute capability alone if it names one: kernels differ between GPUs.
    """
    if not facts.get("name"):
        return {}
    if _on_cpu(facts):
        return sampled_shapes()
    table = sampled_shapes("-cuda")
    if table.get("capability") in (None, [facts.get("major"), facts.get("minor")]):
        return table
    return {REQUESTED_KEY: table.get(REQUESTED_KEY, [])}


def _on_cpu(facts: Mapping[str, Any]) -> bool:
    from edge_offload.execute.devices import ON_CPU

    return str(facts.get("name", "")).endswith(ON_CPU)


def layouts_of(letters: str) -> int:
    """A set of layouts as the device has it, of its letters in :data:`LAYOUTS`."""
    return sum(1 << LAYOUTS.index(letter) for letter in letters)


def sampled_shapes(kind: str = "") -> Dict[str, Any]:
    """The table of this release of torch, or of the nearest at most :data:`MAX_RELEASES_AWAY` away.

    Nothing if there is none.

    Args:
        kind: empty for CPUs, ``-cuda`` for GPUs, of which there is one for the very release alone.
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
    """Operators whose metadata is worked out here: their meta kernel is generated from the same code as the CPU's.

    Those are the structured ones; meta kernels written in Python are approximations and not among them.
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
