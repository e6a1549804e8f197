"""When sizes that the host needs to go on leave for it: seldom while much is still to be computed, often near the end.

Whatever leaves costs both sides time, and the host is quicker to make use of sizes than the server is to compute them.
All that matters is that little is left to do for it when the last sizes come. So they leave whenever three quarters of
the time that remained at the last departure are over, if it is known from the last time how long all of it takes.
"""

from __future__ import annotations

from typing import Dict

#: Where it is not known how long it takes, and where it takes longer than the last time (seconds).
SIZES_EVERY_S = 20e-3
#: No more often, and no more seldom, than that (seconds).
LEAST_S, MOST_S = 4e-3, 200e-3


class FlushPacer:
    """Flushes of the answer of one run: decides when results leave ahead of the rest.

    Args:
        spans: how long runs took from their first node on, the last time.
        first: that of this one.
        now_s: the time of its beginning.
    """

    def __init__(self, spans: Dict[int, float], first: int, now_s: float) -> None:
        self._spans = spans
        self._first = first
        self._started_s = self._flushed_s = now_s
        self._end_s = now_s + spans.get(first, 0.0)

    def is_due(self, now_s: float) -> bool:
        """True if the results so far should leave."""
        remaining_s = self._end_s - now_s
        # what remains must be over three times since the last departure
        wait_s = SIZES_EVERY_S if remaining_s <= 0 else min(max(3 * remaining_s, LEAST_S), MOST_S)
        return now_s - self._flushed_s >= wait_s

    def note_flush(self, now_s: float) -> None:
        """All that was there has left."""
        self._flushed_s = now_s

    def note_end(self, now_s: float) -> None:
        """The run is over."""
        self._spans[self._first] = now_s - self._started_s
