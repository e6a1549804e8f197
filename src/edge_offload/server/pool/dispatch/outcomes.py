"""Statistics of batches: lateness of calls, the slack that it requires, and batches that had to move."""

from __future__ import annotations

import statistics
from collections import deque
from typing import Deque

from edge_offload.server.pool.dispatch.queues import Stranded

#: Batches from whose lateness the slack is taken.
WINDOW_CALLS = 256


class Outcomes:
    """Statistics of one dispatcher.

    Args:
        most_slack_s: the first slack, and its limit.

    Attributes:
        slack_s: time before the deadline at which batches are to end.
        late_s: seconds from the expected ends of the latest calls to their ends.
        stranded: the latest batches that could not continue where they were.
        moved, moved_in_time: number of their requests, and of those answered in time.
    """

    def __init__(self, most_slack_s: float) -> None:
        self.slack_s = self._most_slack_s = most_slack_s
        self.late_s: Deque[float] = deque(maxlen=WINDOW_CALLS)
        self.stranded: Deque[Stranded] = deque(maxlen=WINDOW_CALLS)
        self.moved = self.moved_in_time = 0
        self._behind_s: Deque[float] = deque(maxlen=WINDOW_CALLS)
        self._ended = 0

    def record_lateness(self, behind_s: float) -> None:
        """Record the lateness of a batch over all of its calls (seconds)."""
        if not self._most_slack_s:
            return
        self._behind_s.append(behind_s)
        self._ended += 1
        if self._ended % 16 == 0:  # batches between two updates
            late_s = max(0.0, statistics.quantiles(self._behind_s, n=50)[-1])  # one batch in 50 may be later
            self.slack_s = min(self._most_slack_s, late_s)
