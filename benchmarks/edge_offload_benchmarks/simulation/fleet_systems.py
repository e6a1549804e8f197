"""Ways to share one device between robots under a bound on accuracy: ours, and others (dissertation, 3.6.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, Optional, Tuple

from edge_offload.server.promises import windows
from edge_offload.server.promises.board import FIRST_SLACK, FIXED_S, GRACE_SHARE, Board, PlannedBatch, Slot
from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.promises.packing import Pace, order_requests, pack_requests
from edge_offload.server.promises.robot import Rules
from edge_offload.server.promises.settings import Wish, choose_settings
from edge_offload.server.services.promise.register import SIGMAS
from edge_offload_benchmarks.simulation.fleet import Robot, follow, react

#: What a system is run on: robots, the device, the bound, seconds. Returns counts; results are with the robots.
Run = Callable[[List[Robot], Latencies, float, float], Dict[str, float]]
#: Ours, with what it keeps back searched on the same load, as baselines have their settings.
SEARCHED = "ours-searched"
#: Slope that a robot says of itself before it has measured one.
UNKNOWN = 0.01


@dataclass(frozen=True)
class System:
    """One way.

    Attributes:
        name: of it.
        variants: settings that are searched, in words, with what runs them.
        adaptive: it says by itself whom it can hold; else all that are there are held.
    """

    name: str
    variants: Tuple[Tuple[str, Run], ...]
    adaptive: bool = False


class FixedBoard(Board):
    """Turns as the board gives them, but every robot has the same interval and batch: what packing alone gives."""

    def __init__(self, latencies: Latencies, interval: int, batch: int) -> None:
        super().__init__(latencies)
        self._interval, self._batch = interval, batch

    def admit_robot(self, now: float, robot: str, wish: Wish, frame: int, arrival: float) -> None:
        """Everybody is let in."""
        super().admit_robot(now, robot, replace(wish, bound=1e6, slope=0.0), frame, arrival)

    def update_wish(self, robot: str, wish: Wish) -> None:
        """Ignore the estimates."""

    def update_plan(self, now: float) -> List[Tuple[str, str]]:
        """See :class:`Board`; nobody has to go."""
        self._plan = [batch for batch in self._plan if batch.start < now + FIXED_S and batch.slots]
        begin = self._plan_start(now)
        clients = [self._as_client(one, begin) for one in self._robots.values()]
        paces = [
            Pace(
                one.robot, self._interval, min(self._batch, self.latencies.largest), one.frame, one.arrival,
                one.wish.frame_interval, tolerance=0.0,
            )
            for one in clients
        ]  # fmt: skip
        requests = order_requests(paces, begin + self._rules.horizon_s)
        for batch in pack_requests(paces, requests, self.latencies, begin, FIRST_SLACK, wait=True):
            turns = tuple(Slot(paces[place].robot, frame) for place, frame in batch.members)
            self._plan.append(PlannedBatch(batch.start, batch.start + self._grace_of(len(turns)), turns))
        for one in self._robots.values():
            one.mean = 0.0
        return []

    def _grace_of(self, size: int) -> float:
        return GRACE_SHARE * self.latencies.batch_latency(size)


def _promised(sigmas: float, cautious: float = 1.0) -> Run:
    def run(robots: List[Robot], latencies: Latencies, bound: float, seconds: float) -> Dict[str, float]:
        windows.is_ready(wait=True)  # plans must not depend on when it is built
        board = Board(latencies, rules=Rules(caution=cautious))

        def slope_of(robot: Robot, now: float) -> float:
            return robot.estimate(now, sigmas)

        return _followed(board, robots, bound, slope_of, seconds, flicker=True)

    return run


def _fixed(interval: int, batch: int) -> Run:
    def run(robots: List[Robot], latencies: Latencies, bound: float, seconds: float) -> Dict[str, float]:
        board = FixedBoard(latencies, interval, batch)
        return _followed(board, robots, bound, lambda robot, now: 0.0, seconds)

    return run


def _as_written(margin: float) -> Run:
    def run(robots: List[Robot], latencies: Latencies, bound: float, seconds: float) -> Dict[str, float]:
        board = Board(latencies, rules=Rules(horizon_s=1.0, most_spare=0.0, planned=1.0, fixed_intervals=True))
        return _followed(board, robots, bound * margin, _single, seconds)

    return run


def _single(robot: Robot, _now: float) -> float:
    """A single measurement over its stride, as in the text (3.4.3)."""
    return UNKNOWN if robot.last is None else robot.last[0] / robot.last[1]


def _followed(
    board: Board,
    robots: List[Robot],
    bound: float,
    slope_of: Callable[[Robot, float], float],
    seconds: float,
    flicker: bool = False,
) -> Dict[str, float]:
    def wish_of(robot: Robot, now: float) -> Wish:
        return robot.wish(
            bound, slope_of(robot, now), board.latencies.largest, robot.drops.curve(now) if flicker else None
        )

    return follow(board, robots, wish_of, seconds)


def _reactive(
    interval: Optional[int], batch: Optional[int], margin: float = 1.0, full: bool = False, dynamic: int = 64
) -> Run:
    """Requests are not coordinated; an interval or a batch that is None follows from Step 1 by the robot's estimate."""

    def run(robots: List[Robot], latencies: Latencies, bound: float, seconds: float) -> Dict[str, float]:
        def settings(robot: Robot, now: float) -> Any:
            slope = robot.estimate(now, 0.0)
            return choose_settings(robot.wish(bound * margin, slope, min(dynamic, latencies.largest)), latencies, True)

        def interval_of(robot: Robot, now: float) -> int:
            return settings(robot, now).interval if interval is None else interval

        def batch_of(robot: Robot, now: float) -> int:
            return settings(robot, now).batch if batch is None else batch

        return react(robots, latencies, interval_of, batch_of, seconds, full)

    return run


def systems(intervals: Tuple[int, ...], batches: Tuple[int, ...]) -> List[System]:
    """All of them; baselines with every interval, batch and margin that is searched."""
    margins, reserves = (1.0, 0.75, 0.5), (1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.25, 0.0)
    pairs = [(interval, batch) for interval in intervals for batch in batches]
    return [
        System("ours", (("", _promised(SIGMAS)),), adaptive=True),
        System(
            SEARCHED, tuple((f"keeps back {share:g}", _promised(SIGMAS, share)) for share in reserves), adaptive=True
        ),
        System("fixed", tuple((f"interval {i}, batch {b}", _fixed(i, b)) for i, b in pairs)),
        System("ARISE", tuple((f"margin {margin:g}", _as_written(margin)) for margin in margins), adaptive=True),
        System(
            "ARISE-alpha", tuple((f"margin {margin:g}", _reactive(None, None, margin)) for margin in margins)
        ),
        System(
            "Chameleon-like",
            tuple((f"margin {margin:g}", _reactive(None, 1, margin, dynamic=1)) for margin in margins),
        ),
        System("Clipper-like", tuple((f"interval {i}", _reactive(i, 64)) for i in intervals)),
        System("Static", tuple((f"interval {i}, batch {b}", _reactive(i, b, full=b > 1)) for i, b in pairs)),
    ]  # fmt: skip
