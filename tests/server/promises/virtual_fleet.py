"""Robots that share a device in virtual time: cameras, links that vary, a board that plans, and true drops by frame."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Callable, Dict, List, Tuple

from edge_offload.server.promises.board import PERIOD_S, Board
from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.promises.settings import Wish


@dataclass
class VirtualRobot:
    """A camera of ``1 / frame_interval`` frames per second whose first frame is taken at ``phase``."""

    name: str
    wish: Wish
    phase: float
    slope_at: Callable[[int], float]
    jitter_s: float = 0.0
    results: List[Tuple[int, float]] = field(default_factory=list)  # frame, when it can be used
    sent: Dict[int, float] = field(default_factory=dict)  # frame, when it arrives

    def captured(self, frame: int) -> float:
        return self.phase + frame * self.wish.frame_interval

    def frame(self, now: float) -> int:
        return int((now - self.phase) / self.wish.frame_interval)

    def mean_drop(self, first: int, last: int) -> float:
        """True drop over frames ``first`` to ``last`` (excluded), by their results' ages."""
        total, newest, at = 0.0, first - 30, 0
        results = sorted(self.results, key=lambda one: one[1])
        for frame in range(first, last):
            while at < len(results) and results[at][1] <= self.captured(frame) + 1e-9:
                newest = max(newest, results[at][0])
                at += 1
            total += self.slope_at(frame) * (frame - newest)
        return total / (last - first)

    def reference(self, latencies: Latencies, first: int, last: int) -> float:
        """The same for the robot alone on the server, batch 1."""
        strides = replace(self.wish, slope=1.0).reference_loss(latencies)
        return sum(self.slope_at(frame) for frame in range(first, last)) * strides / (last - first)


def drive(
    board: Board, robots: List[VirtualRobot], seconds: float, source: random.Random, begin_s: float = 0.0
) -> Dict[str, float]:
    """Let robots follow the board from ``begin_s`` until ``seconds``.

    Returns counts: batches, members, late members, busy seconds.
    """
    counts = {"batches": 0.0, "members": 0.0, "late": 0.0, "busy_s": 0.0, "evicted": 0.0}
    by_name = {robot.name: robot for robot in robots}
    now, replan_at, free = begin_s, begin_s, begin_s
    while now < seconds:
        batch = board.next_batch()
        begin = max(batch.start, free) if batch is not None else float("inf")
        if replan_at <= begin:
            now = replan_at
            for robot in robots:
                board.update_wish(robot.name, Wish(**{**vars(robot.wish), "slope": robot.slope_at(robot.frame(now))}))
            counts["evicted"] += len(board.update_plan(now))
            replan_at += PERIOD_S
            continue
        now = begin
        assert batch is not None
        arrivals = []
        for turn in batch.slots:
            robot = by_name[turn.robot]
            arrival = robot.captured(turn.frame) + robot.wish.up + source.uniform(0, robot.jitter_s)
            board.record_arrival(turn.robot, turn.frame, arrival)
            arrivals.append((arrival, robot, turn.frame))
        latest = max(batch.latest, now)
        arrived = [one for one in arrivals if one[0] <= latest]
        counts["late"] += len(arrivals) - len(arrived)
        board.start_next_batch(now)
        if not arrived:
            continue
        start = max([now, *(arrival for arrival, _, _ in arrived)])
        latency_s = board.latencies.batch_latency(len(arrived))
        free = start + latency_s
        for _, robot, frame in arrived:
            robot.results.append((frame, free + robot.wish.down))
            board.record_result(robot.name, frame, free)
        counts["batches"] += 1
        counts["members"] += len(arrived)
        counts["busy_s"] += latency_s
    return counts
