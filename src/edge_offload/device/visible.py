"""``CUDA_VISIBLE_DEVICES`` for the virtual device: the variable by which users hide GPUs from a program."""

from __future__ import annotations

import re
from typing import Mapping

VARIABLE = "CUDA_VISIBLE_DEVICES"
#: Says, with the value ``hidden``, that an empty :data:`VARIABLE` hides this machine's GPUs and not the virtual one.
LOCAL_GPU, HIDDEN = "EDGE_OFFLOAD_LOCAL_GPU", "hidden"
_NAMES_A_GPU = re.compile(r"\s*(\+?\d|GPU-|MIG-)")


def is_visible(environment: Mapping[str, str]) -> bool:
    """Checks if a program sees the virtual GPU.

    CUDA reads the list up to the first entry that names no GPU, so that an empty list and ``-1`` hide all. The virtual
    device stands for whatever GPU the first entry names, and is ``cuda:0``, as that one would be.
    """
    value = environment.get(VARIABLE)
    if value is None or (not value and environment.get(LOCAL_GPU) == HIDDEN):
        return True
    return _NAMES_A_GPU.match(value) is not None
