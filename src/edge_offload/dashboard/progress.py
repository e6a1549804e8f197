"""How far a run is, in one line: what the recorder and 'edge-offload top --progress' print now and then."""

from __future__ import annotations

from typing import Optional

PROGRESS = "progress "
"""How a line of progress begins; scripts/run writes it over on a terminal."""


def results_line(done: int, wanted: int, passed_s: float, mode: str, total_s: float) -> str:
    """``done`` results (of ``wanted``, unless that is 0) in ``passed_s``, the last one by ``mode`` in ``total_s``."""
    many = f"{done} of {wanted}" if wanted else f"{done}"
    return f"{many} results in {passed_s:.0f} s: {mode}, {total_s * 1e3:.0f} ms"


def waiting_line(passed_s: float, frames: Optional[int] = None) -> str:
    """No result came in ``passed_s``, though ``frames`` did; None: nobody counts those."""
    came = "" if frames is None else f", {frames} frames came" if frames else ", no frame came yet"
    return f"no result after {passed_s:.0f} s{came}"
