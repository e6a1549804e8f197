"""The C++ runner of programs (``native/cpp/nodes.cpp``) in this process, where it has been built.

Without it, and without a compiler, :mod:`~edge_offload.execute.session.program` runs them, with equal results.
"""

from __future__ import annotations

from edge_offload.native.libraries import NODES
from edge_offload.native.loader import Library

library = Library(NODES)
