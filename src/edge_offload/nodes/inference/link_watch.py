"""What the absence of the server means for a node's health: amber or red, with the cause, in words that say what to do.

Amber as long as a policy decides: it makes do with the robot, and frames still have results. Red where a mode was asked
for by name that needs the server, and the server has been gone for :data:`GONE_S`: what was asked for does not happen.
"""

from __future__ import annotations

import math
from typing import Optional, Tuple

from edge_offload.nodes.common.health import ERROR, WARN

#: Seconds after which an absence is no interruption any more.
GONE_S = 10.0
#: Longer absences are told in these steps (seconds, words).
STEPS = ((600.0, "10 minutes"), (60.0, "a minute"), (GONE_S, f"{GONE_S:.0f} s"))
REMEDY = "check that 'edge-offload serve' runs there, that the address is right and that the robot has a network"


class LinkWatch:
    """Remembers since when there is no server. One thread at a time."""

    def __init__(self) -> None:
        self._since_s = math.nan

    def judge(self, now: float, ready: bool, address: str, cause: str, held: bool) -> Optional[Tuple[int, str]]:
        """Level and words of what is wrong now; None when nothing is.

        Args:
            now: monotonic seconds.
            ready: whether the server answers.
            address: of the server.
            cause: why it does not, in words.
            held: whether a mode that needs the server was asked for by name, instead of a policy that chooses.
        """
        if ready:
            self._since_s = math.nan
            return None
        if math.isnan(self._since_s):
            self._since_s = now
        gone_s = now - self._since_s
        long = next((words for least_s, words in STEPS if gone_s >= least_s), "")
        if not long:
            return WARN, f"no server at {address}: {cause}; frames are computed on the robot"
        words = f"no server at {address} for more than {long}: {cause}; every frame is computed on the robot; {REMEDY}"
        return (ERROR if held else WARN), words
