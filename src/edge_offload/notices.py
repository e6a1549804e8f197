"""Words to the user of a program that runs on, on standard error."""

from __future__ import annotations

import sys
from typing import Set


def notify(text: str) -> None:
    """One line, with the name of who says it."""
    print(f"edge_offload: {text}", file=sys.stderr, flush=True)


class Once:
    """Says each thing once; after ``most`` different ones it is silent."""

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._reported: Set[str] = set()

    def notify(self, text: str) -> None:
        """See :func:`notify`."""
        if text not in self._reported and len(self._reported) < self._most:
            self._reported.add(text)
            notify(text)
