"""Progress of a run in one line, as the recorder and 'edge-offload top --progress' print it."""

from __future__ import annotations

from typing import Optional

PROGRESS = "progress "
"""Prefix of a line of progress, by which scripts/run overwrites it on a terminal."""


def results_line(done: int, total: int, elapsed_s: float, mode: str, total_s: float) -> str:
    """Format ``done`` results (of ``total``; 0: unknown), and the mode and latency (s) of the last one."""
    many = f"{done} of {total}" if total else f"{done}"
    return f"{many} results in {elapsed_s:.0f} s: {mode}, {total_s * 1e3:.0f} ms"


def waiting_line(elapsed_s: float, frames: Optional[int] = None) -> str:
    """Format that no result arrived in ``elapsed_s`` seconds, and the number of frames; None: not counted."""
    received = "" if frames is None else f", {frames} frames came" if frames else ", no frame came yet"
    return f"no result after {elapsed_s:.0f} s{received}"
