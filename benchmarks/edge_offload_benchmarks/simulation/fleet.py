"""Many robots that share one device, in virtual time: cameras, links, what results lose, and who is computed when.

A robot's frame is captured, travels, is computed alone or in a batch, and its result travels back; from then on the
robot uses it, carried along, until the next one. What that costs comes from the truth (:class:`Content`); the systems
see only what a robot measures: what a carried result had lost when the network's own came.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Protocol, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import Refused
from edge_offload.manager.drop import DropCurve, DropEstimator, Habits
from edge_offload.manager.promise import UNKNOWN
from edge_offload.manager.tuning import RECENT_S
from edge_offload.protocol.promises import SETTLE_S
from edge_offload.server.promises.board import PERIOD_S
from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.promises.settings import Wish

_NEAR = 1e-9
#: Frames over which results are carried, at most.
FAR = 30


class Content(Protocol):
    """Content of what robots see."""

    @property
    def interval(self) -> float:
        """Frame interval in seconds."""

    @property
    def habits(self) -> Habits:
        """Prior of the task before any measurement."""

    def drop(self, robot: int, frames: Array, ages: Array) -> Array:
        """Drop in ``frames`` [n] of results that are ``ages`` [n] frames older."""


#: Of lines through zero that stay.
STEADY = Habits(0.0, 0.01, 0.1, 0.1, intercept_s=600.0, slope_s=600.0, noise=0.02, mean_gain=0.0)


@dataclass(frozen=True)
class Lines:
    """Drops rise by a rate for each frame, which stays: the dissertation's assumption.

    Attributes:
        interval: seconds between frames.
        rates: of each robot.
        habits: the line goes through zero, and stays.
    """

    interval: float
    rates: Tuple[float, ...]
    habits: Habits = STEADY

    def drop(self, robot: int, frames: Array, ages: Array) -> Array:
        """See :class:`Content`."""
        del frames
        return np.minimum(1.0, self.rates[robot] * ages)


@dataclass(frozen=True)
class Tables:
    """Measured drops of stretches of frames, which robots replay from a place of their own.

    Attributes:
        interval: seconds between frames.
        tables: of each stretch, [frame, age]: what the result of a frame has lost so many frames later.
        places: stretch and first frame of each robot.
        habits: of the task.
    """

    interval: float
    tables: Tuple[Array, ...]
    places: Tuple[Tuple[int, int], ...]
    habits: Habits = UNKNOWN

    def drop(self, robot: int, frames: Array, ages: Array) -> Array:
        """See :class:`Content`. Results older than the table knows have lost what the oldest it knows have."""
        stretch, first = self.places[robot]
        table = self.tables[stretch]
        shown = np.clip(ages, 0, table.shape[1] - 1).astype(int)
        source = np.maximum(first + frames - shown, 0).astype(int)
        drops: Array = table[source, shown]
        return np.where(shown == 0, 0.0, np.nan_to_num(drops, nan=1.0))


@dataclass(frozen=True)
class Link:
    """Means and standard deviations: megabits per second up and down, round trip in seconds."""

    up: Tuple[float, float]
    down: Tuple[float, float]
    round_trip: Tuple[float, float]


#: The first two as in the dissertation (3.6.1), the third of phones at one access point.
LINKS = {
    "5G": Link((152, 6), (1715, 57), (0.014, 0.002)),
    "LTE": Link((44, 8), (110, 17), (0.032, 0.005)),
    "Wi-Fi": Link((180, 40), (180, 40), (0.004, 0.002)),
}
#: Bytes of a frame and of a result.
UP_BYTES, DOWN_BYTES = 100_000, 10_000


@dataclass
class Robot:
    """A camera and a link.

    Attributes:
        number: among the robots.
        phase: when its first frame is captured (seconds).
        content: what it sees.
        link: how it is connected.
        random: of its link.
        results: (frame, when it can be used), as they come.
        since: it has a promise since then; None: it has none.
        request_at: it asks for one from then on.
        newest: frame whose result it holds; older ones are ignored.
    """

    number: int
    phase: float
    content: Content
    link: Link
    random: np.random.Generator
    results: List[Tuple[int, float]] = field(default_factory=list)
    since: Optional[float] = None
    request_at: float = 0.0
    newest: int = -1000

    def __post_init__(self) -> None:
        self.drops = DropEstimator(self.content.habits)
        self.last: Optional[Tuple[float, float]] = None
        ways = sorted(self.up() for _ in range(64))
        self.usual = ways[32]
        self.ups, self.downs = ways[60], float(np.median([self.down() for _ in range(16)]))

    def _way(self, megabits: Tuple[float, float], size: int) -> float:
        rate = max(0.2 * megabits[0], self.random.normal(*megabits))
        trip = max(0.2 * self.link.round_trip[0], self.random.normal(*self.link.round_trip))
        return size * 8e-6 / rate + trip / 2

    def up(self) -> float:
        """Draw the seconds from a capture to the arrival at the server."""
        return self._way(self.link.up, UP_BYTES)

    def down(self) -> float:
        """Draw the seconds from the end of a batch to the result's use."""
        return self._way(self.link.down, DOWN_BYTES)

    def captured(self, frame: int) -> float:
        """Return when a frame is captured."""
        return self.phase + frame * self.content.interval

    def frame(self, now: float) -> int:
        """The newest frame."""
        return math.floor((now - self.phase) / self.content.interval + _NEAR)

    def computed(self, frame: int, done: float) -> None:
        """A result leaves the server at ``done``; the robot compares it with what it had carried to that frame."""
        usable = done + self.down()
        newest, self.newest = self.newest, max(self.newest, frame)
        stride = frame - newest
        if 0 < stride <= FAR:
            lost = float(self.content.drop(self.number, np.array([frame]), np.array([stride]))[0])
            self.drops.add_comparison(usable, stride * self.content.interval, lost)
            self.last = (lost, stride)
        self.results.append((frame, usable))

    def estimate(self, now: float, sigmas: float) -> float:
        """Estimate the loss for each frame that a result is older."""
        curve = self.drops.curve(now)
        return min(1.0, (curve.slope + sigmas * curve.slope_error) * self.content.interval)

    def wish(self, bound: float, slope: float, batch: int, curve: Optional[DropCurve] = None) -> Wish:
        """Make the wish for a promise; without a curve the loss is a line through zero."""
        interval = self.content.interval
        flicker, noise = (0.0, 0.0) if curve is None else (curve.intercept, curve.lasting)
        return Wish(
            bound, slope, interval, self.ups, self.downs, batch, self.usual, flicker, SETTLE_S / interval, noise
        )

    def drop_by_frame(self, first: int, last: int) -> Array:
        """True drop in frames ``first`` to ``last`` (excluded)."""
        frames = np.arange(first, last)
        captured = self.phase + frames * self.content.interval
        order = sorted(self.results, key=lambda one: one[1])
        usable = np.array([when for _, when in order])
        newest = np.maximum.accumulate(np.array([frame for frame, _ in order])) if order else np.zeros(0)
        at = np.searchsorted(usable, captured + _NEAR, side="right") - 1
        source = np.where(at >= 0, newest[np.maximum(at, 0)], -1000) if order else np.full(len(frames), -1000)
        return self.content.drop(self.number, frames, frames - source)

    def twin(self) -> Robot:
        """The same robot, which has not begun."""
        return Robot(self.number, self.phase, self.content, self.link, np.random.default_rng(self.number))


class Planner(Protocol):
    """Plans batches of robots in time, as :class:`~edge_offload.server.promises.board.Board`."""

    latencies: Latencies

    def admit_robot(self, now: float, robot: str, wish: Wish, frame: int, arrival: float) -> None:
        """A robot asks for a promise."""

    def update_wish(self, robot: str, wish: Wish) -> None:
        """Update the estimates of a robot."""

    def record_arrival(self, robot: str, frame: int, arrival: float) -> None:
        """A frame has come."""

    def record_result(self, robot: str, frame: int, sent_at: float) -> None:
        """The result for a frame leaves."""

    def update_plan(self, now: float) -> List[Tuple[str, str]]:
        """A new plan; who has to go."""

    def next_batch(self) -> Any:
        """The next batch."""

    def start_next_batch(self, now: float, present: Optional[int] = None) -> Any:
        """Start the next batch."""


def request_promise(planner: Planner, robot: Robot, wish: Wish, now: float) -> None:
    """A robot asks for a promise."""
    frame = max(0, robot.frame(now))
    try:
        planner.admit_robot(now, str(robot.number), wish, frame, robot.captured(frame) + robot.ups)
    except Refused:
        robot.request_at = now + RECENT_S
    else:
        robot.since = now


def follow(planner: Planner, robots: List[Robot], wish_of: Any, seconds: float) -> Dict[str, float]:
    """Robots ask for promises, and follow the turns of a planner. Returns counts; results are with the robots.

    Who is refused, or loses its promise, asks again, as long as there is time left for a session.
    """
    by_name = {str(robot.number): robot for robot in robots}
    counts = dict.fromkeys(("batches", "members", "late", "busy_s"), 0.0)
    now = free = replan_at = 0.0
    late: List[Tuple[float, Robot, int]] = []
    arrivals: Dict[Tuple[str, int], float] = {}
    lat = planner.latencies

    def arrival_of(name: str, frame: int) -> float:
        if (name, frame) not in arrivals:
            robot = by_name[name]
            arrivals[name, frame] = robot.captured(frame) + robot.up()
        return arrivals[name, frame]

    while True:
        batch = planner.next_batch()
        begin = math.inf
        if batch is not None:
            # as the server: at once when all have come, without those who have not when its grace is over
            latest = max(batch.latest, free)
            begin = max(free, min(latest, max(arrival_of(turn.robot, turn.frame) for turn in batch.slots)))
        if late and max(free, late[0][0]) + lat.batch_latency(1) <= min(begin, replan_at):
            # what missed its batch is computed in what is left
            arrival, robot, frame = late.pop(0)
            free = max(free, arrival) + lat.batch_latency(1)
            robot.computed(frame, free)
            counts["busy_s"] += lat.batch_latency(1)
            continue
        if min(begin, replan_at) >= seconds:
            return counts
        if replan_at <= begin:
            now = replan_at
            for robot in robots:
                if robot.since is not None:
                    planner.update_wish(str(robot.number), wish_of(robot, now))
                elif robot.request_at <= now <= max(0.0, seconds - SESSION_S):
                    request_promise(planner, robot, wish_of(robot, now), now)
            for name, _ in planner.update_plan(now):
                by_name[name].since, by_name[name].request_at = None, now + RECENT_S
            replan_at += PERIOD_S
            continue
        now = begin
        robot_turns = []
        for turn in batch.slots:
            robot, arrival = by_name[turn.robot], arrivals.pop((turn.robot, turn.frame))
            planner.record_arrival(turn.robot, turn.frame, arrival)
            if arrival <= now + _NEAR:
                robot_turns.append((robot, turn.frame))
            else:
                late.append((arrival, robot, turn.frame))
        counts["late"] += len(batch.slots) - len(robot_turns)
        counts["members"] += len(batch.slots)
        planner.start_next_batch(now, len(robot_turns))
        if robot_turns:
            free = now + lat.batch_latency(len(robot_turns))
            counts["busy_s"] += free - now
            counts["batches"] += 1
            for robot, frame in robot_turns:
                robot.computed(frame, free)
                planner.record_result(str(robot.number), frame, free)


def react(
    robots: List[Robot], latencies: Latencies, interval_of: Any, batch_of: Any, seconds: float, full: bool = False
) -> Dict[str, float]:
    """Robots send by themselves, every ``interval_of(robot, now)`` frames; the server takes what has come.

    Args:
        robots: who.
        latencies: of batches.
        interval_of: frames from one request to the next (robot, now).
        batch_of: the largest batch of a robot (robot, now).
        seconds: of virtual time.
        full: a batch begins only when there are as many as it may have.
    """
    counts = dict.fromkeys(("batches", "members", "late", "busy_s"), 0.0)
    requests: List[Tuple[float, int, int, int]] = []
    for robot in robots:
        frame = 0
        while robot.captured(frame) < seconds:
            requests.append((robot.captured(frame) + robot.up(), robot.number, frame, 0))
            frame += 10**9
    import heapq

    heapq.heapify(requests)
    by_number = {robot.number: robot for robot in robots}
    queue: List[Tuple[Robot, int]] = []
    free = 0.0

    def pull(until: float) -> None:
        while requests and requests[0][0] <= until:
            arrival, number, frame, _ = heapq.heappop(requests)
            robot = by_number[number]
            queue.append((robot, frame))
            following = frame + max(1, int(interval_of(robot, arrival)))
            if robot.captured(following) < seconds:
                heapq.heappush(requests, (max(arrival, robot.captured(following) + robot.up()), number, following, 0))

    while requests or queue:
        pull(free)
        if not queue or (full and requests and len(queue) < batch_of(queue[0][0], free)):
            if not requests:
                break
            free = max(free, requests[0][0])
            pull(free)
            if full and requests and len(queue) < batch_of(queue[0][0], free):
                continue
        limit = latencies.largest
        members: List[Tuple[Robot, int]] = []
        while queue and len(members) < limit:
            limit = min(limit, max(1, batch_of(queue[0][0], free)))
            if len(members) >= limit:
                break
            members.append(queue.pop(0))
        free += latencies.batch_latency(len(members))
        counts["busy_s"] += latencies.batch_latency(len(members))
        counts["batches"] += 1
        counts["members"] += len(members)
        for robot, frame in members:
            robot.computed(frame, free)
    return counts


#: So long robots have been on before they ask: each alone on this server (seconds).
BEFORE_S = 5.0


def before(robot: Robot, latencies: Latencies) -> None:
    """Let a robot observe and learn before time 0."""
    frame = robot.frame(-BEFORE_S) + 1
    while robot.captured(frame) < -0.5:
        robot.computed(frame, robot.captured(frame) + robot.up() + latencies.batch_latency(1))
        frame = max(frame + 1, math.ceil((robot.results[-1][1] - robot.phase) / robot.content.interval - _NEAR))


def simulate_single(robot: Robot, latencies: Latencies, seconds: float) -> Robot:
    """The robot alone on this server: batch 1, the next frame when the last result has come. That is the reference."""
    twin = robot.twin()
    frame = 0
    while twin.captured(frame) < seconds:
        twin.results.append((frame, twin.captured(frame) + twin.up() + latencies.batch_latency(1) + twin.down()))
        frame = max(frame + 1, math.ceil((twin.results[-1][1] - twin.phase) / twin.content.interval - _NEAR))
    return twin


#: Sessions last at least so long (seconds).
SESSION_S = 20.0
#: A session is judged from this time on (its first result has to come), in windows of so many seconds, ...
FIRST_S, WINDOW_S = 2.0, 5.0
#: ... of which so many have to be within so much of the bound.
WINDOWS, BEYOND = 0.95, 1.5


def check_promise(
    robot: Robot, reference: Robot, bound: float, seconds: float, first_s: float = FIRST_S
) -> Tuple[bool, float]:
    """Return whether the session was within its bound, on average and in windows; its mean drop over the reference."""
    first, last = robot.frame(first_s), robot.frame(seconds - 1.0)
    over = robot.drop_by_frame(first, last) - reference.drop_by_frame(first, last)
    mean = float(over.mean())
    return mean <= bound + _NEAR, mean


def windows(robot: Robot, reference: Robot, seconds: float, first_s: float = FIRST_S) -> List[float]:
    """Mean drop over the reference in each window."""
    first, last = robot.frame(first_s), robot.frame(seconds - 1.0)
    over = robot.drop_by_frame(first, last) - reference.drop_by_frame(first, last)
    size = round(WINDOW_S / robot.content.interval)
    return [float(over[begin : begin + size].mean()) for begin in range(0, len(over) - size + 1, size)]
