"""The C++ runner of nodes, built for the tests that want it."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from edge_offload.native.libraries import NODES
from edge_offload.native.loader import Library
from edge_offload.native.recipe import compiler


@functools.lru_cache(maxsize=1)
def _built() -> Any:
    NODES.build()
    return Library(NODES).look()


def native_runner() -> Any:
    """Its module; the test is skipped where there is no compiler."""
    if compiler() is None:
        pytest.skip("no C++ compiler")
    return _built()
