"""The promises of one device: who was admitted, whose turn is when, and what is due. No clock, no thread.

Every :data:`PERIOD_S` a plan (for some seconds ahead: :class:`~.robot.Rules`) replaces the last one, but for the
batches of the next :data:`FIXED_S`: robots have been told of these, and may be sending for them already. Times are
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
from edge_offload.server.promises.planner import Client, Moment, Schedule, admit, hold, load, schedule
from edge_offload.server.promises.robot import Robot, Rules
from edge_offload.server.promises.settings import Wish

PERIOD_S, FIXED_S = 0.2, 0.3
#: Share of a batch's time that is waited for members that come late. Few do, so that plans set less aside for it: what
#: a batch begins late is known when the next plan is made. What batches take longer than the table says is added.
GRACE, SLACK = 0.1, 0.03
#: Share of a batch in what is known of that, and the most that is set aside.
_LONGER, _MOST_SLACK = 0.05, 0.25
#: Robots that one device makes promises to.
MAX_ROBOTS = 256
#: Plans that do not hold, though nobody made up for what it had before, may cost robots so much of their bounds while
#: all have what they were promised; else so many in a row. One that costs so many bounds is the last.
NEARLY, PATIENCE, BY_FAR = 1.1, 10, 2.0


@dataclass(frozen=True)
class Turn:
    """A robot's frame in a batch.

    Attributes:
        robot: its name.
        frame: its number.
    """

    robot: str
    frame: int


@dataclass(frozen=True)
class PlannedBatch:
    """A batch that robots have been told of, or will be.

    Attributes:
        start: when it begins; members that have not come by ``latest`` are left out.
        latest: the end of its grace.
        turns: whose frames.
    """

    start: float
    latest: float
    turns: Tuple[Turn, ...]


class Occupancy:
    """When the device is free, and by how much batches take longer than its table says.

    Args:
        latencies: seconds that a batch takes on this device.
        whole: nothing is learnt, as in the text.
    """

    def __init__(self, latencies: Latencies, whole: bool) -> None:
        self._latencies = latencies
        self._whole = whole
        self.until = 0.0
        #: Share of a batch's time that plans set aside.
        self.slack = GRACE if whole else SLACK
        #: When the last batch began, what it should take, and has taken until its last answer.
        self._began, self._takes, self._took = 0.0, 0.0, 0.0
        #: Share by which batches take longer than they should.
        self._longer = 0.0

    def begin(self, now: float, size: int) -> None:
        """A batch of so many frames begins."""
        if self._took and self._takes and not self._whole:
            self._longer += _LONGER * (self._took / self._takes - 1 - self._longer)
            self.slack = min(_MOST_SLACK, SLACK + max(0.0, self._longer))
        self._began, self._took = now, 0.0
        self._takes = self._latencies.batch(size) if size else 0.0
        self.until = now + self._takes

    def answered(self, when: float) -> None:
        """One of its results was sent."""
        self._took = max(self._took, when - self._began)

    def after(self, batch: PlannedBatch, free: float) -> float:
        """When the device is free after a planned batch, if it was at ``free``."""
        return max(free, batch.start) + self._latencies.batch(len(batch.turns)) * (1 + self.slack)


class Board:
    """Admits robots and plans their turns.

    Args:
        latencies: seconds that a batch takes on this device.
        other: share of the device's time that is kept for robots without a promise, 0 to below 1.
        rules: how plans are made.
    """

    def __init__(self, latencies: Latencies, other: float = 0.0, rules: Rules = Rules()) -> None:  # noqa: B008
        self.latencies = latencies
        self.other = other
        self.drops: Dict[str, float] = {}
        self._rules = rules
        self._robots: Dict[str, Robot] = {}
        self._plan: List[PlannedBatch] = []
        self._device = Occupancy(latencies, rules.whole)
        #: Plans in a row that did not hold.
        self._strained = 0

    def __len__(self) -> int:
        return len(self._robots)

    def wish(self, robot: str) -> Optional[Wish]:
        """What a robot was promised, and says of itself; None if it has no promise."""
        found = self._robots.get(robot)
        return None if found is None else found.client.wish

    def join(self, now: float, robot: str, wish: Wish, frame: int, arrival: float) -> None:
        """Promise ``wish.bound`` to a robot whose ``frame`` arrived at ``arrival``.

        Raises:
            BadInput: it has a promise already.
            Refused: the others' promises leave no room for it; the message says what could be promised now.
        """
        if robot in self._robots:
            raise BadInput(f"robot {robot} has a promise already", remedy="give it back first")
        if len(self._robots) >= MAX_ROBOTS:
            raise Refused(f"full: {MAX_ROBOTS} robots have promises", remedy="use another server")
        newcomer = Client(robot, wish, frame, arrival)
        begin = self._begin(now)
        others = [replace(self._at(one, begin), spare=one.usual_spare) for one in self._robots.values()]
        usual = [one.usual_spare / one.client.wish.bound for one in self._robots.values()]
        usual_share = statistics.mean(usual) if usual else 0.0

        def at(bound: float) -> Client:
            asked = replace(newcomer, wish=replace(wish, bound=bound))
            return replace(self._at(Robot(asked, frame, arrival), begin), spare=bound * usual_share)

        plan, bound = admit(at, wish.bound, others, self.latencies, self._moment(begin))
        if plan is None:
            raise Refused(
                f"full: {len(self._robots)} robots have promises, and {wish.bound:g} would break one; {_offer(bound)}",
                remedy="ask for a looser bound, or use another server" if bound < math.inf else "use another server",
            )
        self._robots[robot] = Robot(newcomer, frame, arrival, load(newcomer, self.latencies))

    def leave(self, robot: str) -> None:
        """Its promise ends; batches go on without it."""
        self._robots.pop(robot, None)
        self.drops.pop(robot, None)
        self._plan = [
            replace(batch, turns=tuple(turn for turn in batch.turns if turn.robot != robot)) for batch in self._plan
        ]

    def told(self, robot: str, wish: Wish) -> None:
        """What a robot says of itself has changed (not its bound: that was promised)."""
        found = self._robots.get(robot)
        if found is not None:
            found.client = replace(found.client, wish=replace(wish, bound=found.client.wish.bound))

    def arrived(self, robot: str, frame: int, arrival: float) -> None:
        """A frame has come: what is believed of the robot's clock follows, slowly, since links are uneven."""
        found = self._robots.get(robot)
        if found is not None:
            found.came(frame, arrival)

    def replan(self, now: float) -> List[Tuple[str, str]]:
        """Make the plan from ``now`` on anew. Robots that it cannot hold any more lose their promise.

        Returns:
            (robot, why) of those.
        """
        kept = [batch for batch in self._plan if batch.start < now + FIXED_S and batch.turns]
        self._plan = kept
        begin = self._begin(now)
        clients = [self._at(one, begin) for one in self._robots.values()]
        plan, gone = self._held(clients, self._moment(begin))
        reasons = []
        for client in gone:
            found = self._robots[client.robot]
            self.leave(client.robot)

            def at(bound: float, found: Robot = found) -> Client:
                asked = replace(found.client, wish=replace(found.client.wish, bound=bound))
                return replace(self._at(replace(found, client=asked), begin), spare=0.0)

            promised = found.client.wish.bound
            _, bound = admit(at, promised, plan.clients, self.latencies, self._moment(begin))
            reasons.append(
                (
                    client.robot,
                    f"the promise of {promised:g} cannot be kept beside {len(plan.clients)} others; {_offer(bound)}",
                )
            )
        for batch in plan.batches:
            turns = []
            for place, frame in batch.members:
                client = plan.clients[place]
                turns.append(Turn(client.robot, frame))
            self._plan.append(PlannedBatch(batch.start, batch.start + self._grace(batch), tuple(turns)))
        self.drops = {client.robot: drop for client, drop in zip(plan.clients, plan.drops)}
        for (robot, drop), interval in zip(self.drops.items(), plan.intervals):
            self._robots[robot].planned(drop, interval)
        return reasons

    def _held(self, clients: Sequence[Client], moment: Moment) -> Tuple[Schedule, List[Client]]:
        """As :func:`~.planner.hold`; but what robots have had more or less before costs nobody a promise.

        Who had more than its bound gets its turns sooner as far as there is room. Somebody has to go when all could
        not be held in the long run.
        """
        plan = schedule(clients, self.latencies, moment)
        if plan.holds:
            self._strained = 0
            return plan, []
        if self._rules.whole:
            return hold(clients, self.latencies, moment)
        claims = [one.claim for one in self._robots.values()]
        lasting = [replace(one, spare=self._robots[one.robot].usual_spare, fresh=True) for one in clients]
        usual = schedule(lasting, self.latencies, moment)
        if usual.holds or (usual.worst <= NEARLY and all(one.kept for one in self._robots.values())):
            self._strained = 0
            return plan, []
        self._strained += 1
        if self._strained < PATIENCE and usual.worst <= BY_FAR:
            return plan, []
        self._strained = 0
        return hold(lasting, self.latencies, moment, claims)

    def turns(self, robot: str) -> List[Tuple[int, float]]:
        """(frame, start of its batch) of a robot, as planned now."""
        return [(turn.frame, batch.start) for batch in self._plan for turn in batch.turns if turn.robot == robot]

    def planned(self) -> List[PlannedBatch]:
        """All batches to come, in order."""
        return list(self._plan)

    def captured(self, robot: str, frame: int) -> Optional[float]:
        """When a frame was captured, as believed; None: the robot has no promise."""
        found = self._robots.get(robot)
        return None if found is None else found.captured(frame)

    def done(self, robot: str, frame: int, when: float) -> None:
        """The result for a robot's frame was sent: what its turns cost is what they were, not what was planned."""
        self._device.answered(when)
        found = self._robots.get(robot)
        if found is not None:
            wish = found.client.wish
            begin = frame + max(1, math.ceil((when + wish.down - found.captured(frame)) / wish.frame_interval - 1e-9))
            found.used(frame, begin, self.latencies)

    def due(self) -> Optional[PlannedBatch]:
        """The batch that comes next."""
        while self._plan and not self._plan[0].turns:
            self._plan.pop(0)
        return self._plan[0] if self._plan else None

    def take(self, now: float, there: Optional[int] = None) -> PlannedBatch:
        """The batch that comes next begins now; it is no longer part of the plan.

        Args:
            now: when.
            there: how many of its members have come; None: all.

        Raises:
            IndexError: there is none.
        """
        batch = self._plan.pop(0)
        self._note(batch)
        self._device.begin(now, len(batch.turns) if there is None else there)
        return batch

    def _begin(self, now: float) -> float:
        """When what is planned now may begin: robots must hear of it first, and what is fixed goes before.

        Where the device is behind its plan, what is fixed ends later than was planned.
        """
        free = max(now, self._device.until)
        for batch in self._plan:
            if batch.start < now + FIXED_S and batch.turns:
                self._note(batch)
                free = self._device.after(batch, free)
        return max(now + FIXED_S, free)

    def _at(self, robot: Robot, begin: float) -> Client:
        return robot.at(begin, self.latencies, self._rules)

    def _note(self, batch: PlannedBatch) -> None:
        for turn in batch.turns:
            found = self._robots.get(turn.robot)
            if found is not None:
                found.take(turn.frame)

    def _grace(self, batch: Batch) -> float:
        return GRACE * self.latencies.batch(len(batch.members))

    def _moment(self, begin: float) -> Moment:
        return Moment(begin, self._rules.horizon_s, self._device.slack, self.other, self._rules.whole)


def _offer(bound: float) -> str:
    return f"{bound:.3g} could be promised now" if bound < math.inf else "nothing could be promised now"
