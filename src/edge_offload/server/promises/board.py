"""The promises of one device: admitted robots, their slots, and the next batch. No clock, no thread.

Every :data:`PERIOD_S` a plan (for some seconds ahead: :class:`~.robot.Rules`) replaces the last one, but for the
batches of the next :data:`FIXED_S`: robots were notified of these, and may be sending frames already. Times are
seconds on the server's clock.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import Dict, List, Optional, Sequence, Tuple

from edge_offload.errors import BadInput, Refused
from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.promises.packing import Batch
from edge_offload.server.promises.planner import (
    Client,
    Moment,
    Schedule,
    admit_client,
    device_share,
    fit_clients,
    make_schedule,
)
from edge_offload.server.promises.robot import Robot, Rules
from edge_offload.server.promises.settings import Wish

PERIOD_S, FIXED_S = 0.2, 0.3
#: A late member is waited for so long (share of the batch's time). Plans first set less aside, since few members are
#: late and the next plan sees the delay; the measured excess over the latency table is added.
GRACE_SHARE, FIRST_SLACK = 0.1, 0.03
#: Weight of a batch in the mean excess, and the upper limit of what is set aside.
_OVERRUN_SHARE, _MOST_SLACK = 0.05, 0.25
#: A schedule may exceed bounds by the first factor while all promises are met. Otherwise robots are evicted after ten
#: infeasible schedules in a row, or at once above the last factor.
TOLERATED_EXCESS, FAILED_PLANS, LARGEST_EXCESS = 1.1, 10, 2.0


@dataclass(frozen=True)
class Slot:
    """Place of one frame of a robot in a batch.

    Attributes:
        robot: its name.
        frame: its number.
    """

    robot: str
    frame: int


@dataclass(frozen=True)
class PlannedBatch:
    """A batch of which robots have been notified, or will be.

    Attributes:
        start: its start; members that have not arrived by ``latest`` are omitted.
        latest: the end of its grace period.
        slots: frames of its members.
    """

    start: float
    latest: float
    slots: Tuple[Slot, ...]


class Occupancy:
    """Estimate of when the device is free, and of how much longer batches take than its table says.

    Args:
        latencies: seconds per batch size on this device.
        fixed_intervals: nothing is learnt, as in the text.
    """

    def __init__(self, latencies: Latencies, fixed_intervals: bool) -> None:
        self._latencies = latencies
        self._fixed_intervals = fixed_intervals
        self.busy_until = 0.0
        #: Share of a batch's time that plans set aside.
        self.slack = GRACE_SHARE if fixed_intervals else FIRST_SLACK
        #: Start of the last batch, its expected time, and the time until its last answer.
        self._started_at, self._expected_s, self._measured_s = 0.0, 0.0, 0.0
        #: Mean share by which batches exceed their expected time.
        self._overrun = 0.0

    def start_batch(self, now: float, size: int) -> None:
        """Record the start of a batch of ``size`` frames."""
        if self._measured_s and self._expected_s and not self._fixed_intervals:
            self._overrun += _OVERRUN_SHARE * (self._measured_s / self._expected_s - 1 - self._overrun)
            self.slack = min(_MOST_SLACK, FIRST_SLACK + max(0.0, self._overrun))
        self._started_at, self._measured_s = now, 0.0
        self._expected_s = self._latencies.batch_latency(size) if size else 0.0
        self.busy_until = now + self._expected_s

    def record_answer(self, sent_at: float) -> None:
        """Record that one of its results was sent."""
        self._measured_s = max(self._measured_s, sent_at - self._started_at)

    def end_of(self, batch: PlannedBatch, free: float) -> float:
        """Return the end of a planned batch on a device that is free at ``free``."""
        return max(free, batch.start) + self._latencies.batch_latency(len(batch.slots)) * (1 + self.slack)


class Board:
    """Admits robots and plans their slots.

    Args:
        latencies: seconds per batch size on this device.
        other_share: share of the device's time that is reserved for robots without a promise, 0 to below 1.
        rules: parameters of planning.
    """

    def __init__(self, latencies: Latencies, other_share: float = 0.0, rules: Rules = Rules()) -> None:  # noqa: B008
        self.latencies = latencies
        self.other_share = other_share
        self.drops: Dict[str, float] = {}
        self._rules = rules
        self._robots: Dict[str, Robot] = {}
        self._plan: List[PlannedBatch] = []
        self._device = Occupancy(latencies, rules.fixed_intervals)
        #: Infeasible plans in a row.
        self._failed_plans = 0

    def __len__(self) -> int:
        return len(self._robots)

    def wish_of(self, robot: str) -> Optional[Wish]:
        """Return the promise and declaration of a robot; None if it has no promise."""
        entry = self._robots.get(robot)
        return None if entry is None else entry.client.wish

    def admit_robot(self, now: float, robot: str, wish: Wish, frame: int, arrival: float) -> None:
        """Promise ``wish.bound`` to a robot whose ``frame`` arrived at ``arrival``.

        Raises:
            BadInput: it has a promise already.
            Refused: the others' promises leave no room for it; the message says what could be promised now.
        """
        if robot in self._robots:
            raise BadInput(f"robot {robot} has a promise already", remedy="give it back first")
        most = 256
        if len(self._robots) >= most:
            raise Refused(f"full: {most} robots have promises", remedy="use another server")
        newcomer = Client(robot, wish, frame, arrival)
        plan_start = self._plan_start(now)
        others = [
            replace(self._as_client(entry, plan_start), spare=entry.usual_spare) for entry in self._robots.values()
        ]
        usual = [entry.usual_spare / entry.client.wish.bound for entry in self._robots.values()]
        usual_share = statistics.mean(usual) if usual else 0.0

        def with_bound(bound: float) -> Client:
            candidate = replace(newcomer, wish=replace(wish, bound=bound))
            return replace(self._as_client(Robot(candidate, frame, arrival), plan_start), spare=bound * usual_share)

        plan, bound = admit_client(with_bound, wish.bound, others, self.latencies, self._planning_moment(plan_start))
        if plan is None:
            raise Refused(
                f"full: {len(self._robots)} robots have promises, and {wish.bound:g} would break one; "
                f"{_format_offer(bound)}",
                remedy="ask for a looser bound, or use another server" if bound < math.inf else "use another server",
            )
        self._robots[robot] = Robot(newcomer, frame, arrival, device_share(newcomer, self.latencies))

    def remove_robot(self, robot: str) -> None:
        """End the promise of a robot; batches go on without it."""
        self._robots.pop(robot, None)
        self.drops.pop(robot, None)
        self._plan = [
            replace(batch, slots=tuple(slot for slot in batch.slots if slot.robot != robot)) for batch in self._plan
        ]

    def update_wish(self, robot: str, wish: Wish) -> None:
        """Replace the declaration of a robot, except for its bound, which was promised."""
        entry = self._robots.get(robot)
        if entry is not None:
            entry.client = replace(entry.client, wish=replace(wish, bound=entry.client.wish.bound))

    def record_arrival(self, robot: str, frame: int, arrival: float) -> None:
        """Update the clock estimate of a robot, slowly, since links are uneven."""
        entry = self._robots.get(robot)
        if entry is not None:
            entry.record_arrival(frame, arrival)

    def update_plan(self, now: float) -> List[Tuple[str, str]]:
        """Replace the plan from ``now`` on. Robots that it cannot serve lose their promise.

        Returns:
            (robot, reason) of those.
        """
        fixed = [batch for batch in self._plan if batch.start < now + FIXED_S and batch.slots]
        self._plan = fixed
        plan_start = self._plan_start(now)
        clients = [self._as_client(entry, plan_start) for entry in self._robots.values()]
        plan, evicted = self._schedule_clients(clients, self._planning_moment(plan_start))
        reasons = []
        for client in evicted:
            entry = self._robots[client.robot]
            self.remove_robot(client.robot)

            def with_bound(bound: float, entry: Robot = entry) -> Client:
                candidate = replace(entry.client, wish=replace(entry.client.wish, bound=bound))
                return replace(self._as_client(replace(entry, client=candidate), plan_start), spare=0.0)

            promised = entry.client.wish.bound
            _, bound = admit_client(
                with_bound, promised, plan.clients, self.latencies, self._planning_moment(plan_start)
            )
            reasons.append(
                (
                    client.robot,
                    f"the promise of {promised:g} cannot be kept beside {len(plan.clients)} others; "
                    f"{_format_offer(bound)}",
                )
            )
        for batch in plan.batches:
            slots = []
            for place, frame in batch.members:
                client = plan.clients[place]
                slots.append(Slot(client.robot, frame))
            self._plan.append(PlannedBatch(batch.start, batch.start + self._grace_s(batch), tuple(slots)))
        self.drops = {client.robot: drop for client, drop in zip(plan.clients, plan.drops)}
        for (robot, drop), interval in zip(self.drops.items(), plan.intervals):
            self._robots[robot].record_plan(drop, interval)
        return reasons

    def _schedule_clients(self, clients: Sequence[Client], moment: Moment) -> Tuple[Schedule, List[Client]]:
        """Schedule ``clients`` without eviction for past excess alone, unlike :func:`~.planner.fit_clients`.

        A robot that exceeded its bound gets earlier slots if there is room. Robots are evicted if the long run has no
        room.
        """
        plan = make_schedule(clients, self.latencies, moment)
        if plan.holds:
            self._failed_plans = 0
            return plan, []
        if self._rules.fixed_intervals:
            return fit_clients(clients, self.latencies, moment)
        claims = [entry.claim for entry in self._robots.values()]
        lasting = [replace(entry, spare=self._robots[entry.robot].usual_spare, fresh=True) for entry in clients]
        usual = make_schedule(lasting, self.latencies, moment)
        if usual.holds or (
            usual.worst <= TOLERATED_EXCESS and all(entry.within_bound for entry in self._robots.values())
        ):
            self._failed_plans = 0
            return plan, []
        self._failed_plans += 1
        if self._failed_plans < FAILED_PLANS and usual.worst <= LARGEST_EXCESS:
            return plan, []
        self._failed_plans = 0
        return fit_clients(lasting, self.latencies, moment, claims)

    def slots_of(self, robot: str) -> List[Tuple[int, float]]:
        """Return (frame, start of its batch) of a robot in the current plan."""
        return [(slot.frame, batch.start) for batch in self._plan for slot in batch.slots if slot.robot == robot]

    def list_batches(self) -> List[PlannedBatch]:
        """Return the batches of the plan, in order."""
        return list(self._plan)

    def capture_time(self, robot: str, frame: int) -> Optional[float]:
        """Return the estimated capture time of a frame; None if the robot has no promise."""
        entry = self._robots.get(robot)
        return None if entry is None else entry.capture_time(frame)

    def record_result(self, robot: str, frame: int, sent_at: float) -> None:
        """Record that a result was sent; the robot is charged for the real delay, not for the planned one."""
        self._device.record_answer(sent_at)
        entry = self._robots.get(robot)
        if entry is not None:
            wish = entry.client.wish
            first_use = frame + max(
                1, math.ceil((sent_at + wish.down - entry.capture_time(frame)) / wish.frame_interval - 1e-9)
            )
            entry.record_use(frame, first_use, self.latencies)

    def next_batch(self) -> Optional[PlannedBatch]:
        """Return the next batch that has members, or None."""
        while self._plan and not self._plan[0].slots:
            self._plan.pop(0)
        return self._plan[0] if self._plan else None

    def start_next_batch(self, now: float, present: Optional[int] = None) -> PlannedBatch:
        """Start the next batch and remove it from the plan.

        Args:
            now: the current time.
            present: number of members that have arrived; None: all.

        Raises:
            IndexError: there is no batch.
        """
        batch = self._plan.pop(0)
        self._mark_planned(batch)
        self._device.start_batch(now, len(batch.slots) if present is None else present)
        return batch

    def _plan_start(self, now: float) -> float:
        """Return when a new plan may begin: after the notice that robots need, and after the fixed batches.

        A device that is behind its plan ends these later than planned.
        """
        free = max(now, self._device.busy_until)
        for batch in self._plan:
            if batch.start < now + FIXED_S and batch.slots:
                self._mark_planned(batch)
                free = self._device.end_of(batch, free)
        return max(now + FIXED_S, free)

    def _as_client(self, robot: Robot, begin: float) -> Client:
        return robot.as_client(begin, self.latencies, self._rules)

    def _mark_planned(self, batch: PlannedBatch) -> None:
        for slot in batch.slots:
            entry = self._robots.get(slot.robot)
            if entry is not None:
                entry.mark_planned(slot.frame)

    def _grace_s(self, batch: Batch) -> float:
        return GRACE_SHARE * self.latencies.batch_latency(len(batch.members))

    def _planning_moment(self, begin: float) -> Moment:
        return Moment(begin, self._rules.horizon_s, self._device.slack, self.other_share, self._rules.fixed_intervals)


def _format_offer(bound: float) -> str:
    return f"{bound:.3g} could be promised now" if bound < math.inf else "nothing could be promised now"
