"""What became of batches: how late calls were, what slack that makes needed, and what could not go on where it was."""

from __future__ import annotations

import statistics
from collections import deque
from typing import Deque

from edge_offload.server.pool.dispatch.queues import Stranded

#: Batches from whose lateness the slack is taken; from so many on, and anew after each so many.
LATEST, EVERY = 256, 16
#: One batch in so many may be later than the slack.
MOST_LATE = 50


class Outcomes:
    """Of one dispatcher.

    Args:
        most_slack_s: the slack until enough is known, and at most.

    Attributes:
        slack_s: by so much batches are to end before the deadline.
        late_s: seconds from the expected ends of the latest calls to their ends.
        stranded: the latest batches that could not go on where they were.
        moved, moved_in_time: how many requests did not, and of these in time.
    """

    def __init__(self, most_slack_s: float) -> None:
        self.slack_s = self._most_slack_s = most_slack_s
        self.late_s: Deque[float] = deque(maxlen=LATEST)
        self.stranded: Deque[Stranded] = deque(maxlen=LATEST)
        self.moved = self.moved_in_time = 0
        self._behind_s: Deque[float] = deque(maxlen=LATEST)
        self._ended = 0

    def learn(self, behind_s: float) -> None:
        """The calls of a batch have ended so long behind their expected ends."""
        if not self._most_slack_s:
            return
        self._behind_s.append(behind_s)
        self._ended += 1
        if self._ended % EVERY == 0:
            late_s = max(0.0, statistics.quantiles(self._behind_s, n=MOST_LATE)[-1])
            self.slack_s = min(self._most_slack_s, late_s)
