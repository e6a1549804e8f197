"""Statistics of the last seconds of a robot with a promise: ages of its results, batches, late frames."""

from __future__ import annotations

import math
from collections import deque
from typing import Deque, Tuple

from edge_offload.server.promises.latencies import NEAR, Latencies
from edge_offload.server.promises.settings import Wish

#: Results, and seconds, that it is judged by.
WINDOW_RESULTS, WINDOW_S = 512, 10.0


class AgeStatistics:
    """Statistics of one robot. One thread at a time."""

    def __init__(self) -> None:
        self._results: Deque[Tuple[float, int, int, Wish, int]] = deque(maxlen=WINDOW_RESULTS)
        self._late: Deque[Tuple[float, bool]] = deque(maxlen=WINDOW_RESULTS)
        self.slots = 0

    def record_result(self, done: float, frame: int, captured: float, wish: Wish, batch: int) -> None:
        """Record a result that was sent at ``done``; all times on one clock, in seconds."""
        age = max(1, math.ceil((done + wish.down - captured) / wish.frame_interval - NEAR))
        self._results.append((done, frame, frame + age, wish, batch))

    def record_slot(self, now: float, late: bool) -> None:
        """Record the end of one of its slots: its frame was there, or late."""
        self.slots += 1
        self._late.append((now, late))

    def mean_drop(self, now: float, latencies: Latencies) -> float:
        """Return the accuracy lost to ages, over an exclusive server; NaN: fewer than two results."""
        self._remove_old(now)
        frames = 0
        total = 0.0
        results = list(self._results)
        for (_, frame, begin, wish, _), (_, _, following, _, _) in zip(results, results[1:]):
            count = max(0, following - begin)
            frames += count
            total += wish.total_loss(begin - frame, count) - count * wish.reference_loss(latencies)
        return max(0.0, total / frames) if frames else math.nan

    def mean_interval(self, now: float) -> float:
        """Return mean frames between results; NaN: fewer than two."""
        self._remove_old(now)
        if len(self._results) < 2:
            return math.nan
        return (self._results[-1][1] - self._results[0][1]) / (len(self._results) - 1)

    def mean_batch(self, now: float) -> float:
        """Return the mean size of its batches; NaN: none was computed."""
        self._remove_old(now)
        return sum(result[4] for result in self._results) / len(self._results) if self._results else math.nan

    def late_share(self, now: float) -> float:
        """Return the share of its slots whose frame was late."""
        self._remove_old(now)
        return sum(late for _, late in self._late) / len(self._late) if self._late else 0.0

    def _remove_old(self, now: float) -> None:
        while self._results and self._results[0][0] < now - WINDOW_S:
            self._results.popleft()
        while self._late and self._late[0][0] < now - WINDOW_S:
            self._late.popleft()
