"""Numbers that the wire lets through, however absurd: plans are made, nobody else pays, and nothing fails."""

from __future__ import annotations

import contextlib
import math
import random

from edge_offload.errors import Refused
from edge_offload.protocol.promises import (
    INTERVAL_RANGE_S,
    LEAST_BOUND,
    MOST_SLOPE,
    MOST_WAY_S,
    SETTLE_S,
)
from edge_offload.server.promises.board import PERIOD_S, Board
from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.promises.settings import Wish

TABLES = [Latencies((0.0125, 0.0185, 0.0245)), Latencies((5.0,)), Latencies((1e-6, 1e-6)), Latencies((0.02,) * 8)]


def an_absurd_wish(source: random.Random) -> Wish:
    interval = source.choice([INTERVAL_RANGE_S[0], 0.1, INTERVAL_RANGE_S[1]])
    up, down, usual = (source.choice([0.0, 5e-324, 0.01, MOST_WAY_S]) for _ in range(3))
    slope, flicker, noise = (source.choice([0.0, 5e-324, 1e-300, 0.01, MOST_SLOPE]) for _ in range(3))
    bound = source.choice([LEAST_BOUND, 0.05, 1.0])
    return Wish(
        bound, slope * 1.25, interval, up, down, source.choice([1, 3, 8]), usual, flicker, SETTLE_S / interval, noise
    )


def test_no_request_accepted_by_the_protocol_stops_the_planner() -> None:
    source = random.Random(1)
    joined = 0
    for _ in range(150):
        board, names, now = Board(source.choice(TABLES)), [], 1000.0  # type: Board, List[str], float
        for number in range(source.randrange(1, 5)):
            with contextlib.suppress(Refused):
                board.admit_robot(
                    now, str(number), an_absurd_wish(source), source.choice([0, 2**53, -(2**53)]), now - 5.0
                )
                names.append(str(number))
        joined += len(names)
        for _ in range(4):
            for name in names:
                board.update_wish(name, an_absurd_wish(source))
                board.record_arrival(name, source.choice([0, 2**53, -(2**53), 17]), now)
            board.update_plan(now)
            assert all(math.isfinite(drop) for drop in board.drops.values())
            assert all(math.isfinite(batch.start) for batch in board.list_batches())
            now += PERIOD_S
            while board.next_batch() is not None and board.next_batch().start < now:  # type: ignore[union-attr]
                batch = board.start_next_batch(now)
                for turn in batch.slots:
                    board.record_result(turn.robot, turn.frame, now)
    assert joined > 100
