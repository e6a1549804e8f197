"""Words to the user of a program that runs on, on standard error."""

from __future__ import annotations

import sys


def notify(text: str) -> None:
    """One line, with the name of who says it."""
    print(f"edge_offload: {text}", file=sys.stderr, flush=True)
