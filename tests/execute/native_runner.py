"""The C++ runner of nodes, built for the tests that want it."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from edge_offload.execute.session.native_runner import Library
from edge_offload.native import build


@functools.lru_cache(maxsize=1)
def _built() -> Any:
    build.build_nodes()
    library = Library()
    library.look()
    return library.module


def native_runner() -> Any:
    """Its module; the test is skipped where there is no compiler."""
    if build.compiler() is None:
        pytest.skip("no C++ compiler")
    return _built()
