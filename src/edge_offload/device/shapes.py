"""Of which operators the device works out by itself what their results look like: sizes, strides, dtype, storage.

``shapes-<release>.json`` has the operators of a release of torch for which that agreed with a CPU's kernels on samples
of PyTorch's own tests, in which layouts of their operands, and how it is worked out: by the meta kernel, by a rule, or
over the numbers among the arguments as well (``native/cpp/rules.h``). It is written by
:mod:`edge_offload.device.conformance.shapes`.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
from typing import Any, Dict, List

from edge_offload.device import connect

#: How results are worked out.
HOW = ("meta", "rules", "numbers")
#: Layouts of a call's operands: rows; at worst with channels last; dense in another order; with gaps; empty; complex.
LAYOUTS = "rcdgex"


def trust(native: Any, remote: Any) -> None:
    """Have the device work out what results look like, where that is known to be what ``remote`` will find.

    It checks: an executor that finds otherwise raises before any result is used. The device also records operators as
    a GPU's kernels take them where ``remote`` computes on one.
    """
    from edge_offload.execute.devices import ON_CPU

    name = str(remote.facts.get("name", ""))
    native.computed_by_gpu(bool(name) and not name.endswith(ON_CPU))
    if connect.Settings.from_environment(os.environ).shapes == connect.ASK:
        native.trust([], [{}, {}, {}])
        return
    computes_like_here = name.endswith(ON_CPU) and not getattr(remote, "torches", "")
    found = sampled_shapes() if computes_like_here else {}
    ways = [{name: layouts_of(letters) for name, letters in found.get(how, {}).items()} for how in HOW]
    native.trust(operators_with_exact_shapes(), ways)


def layouts_of(letters: str) -> int:
    """A set of layouts as the device has it, of its letters in :data:`LAYOUTS`."""
    return sum(1 << LAYOUTS.index(letter) for letter in letters)


def sampled_shapes() -> Dict[str, Any]:
    """The file of this release of torch, by :data:`HOW`; nothing if it has none."""
    import torch

    release = ".".join(torch.__version__.split(".")[:2])
    path = pathlib.Path(__file__).with_name(f"shapes-{release}.json")
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


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
