"""Whom one device can hold to their bounds, and the schedule that does it (3.4.4, Step 2: simulate, adjust, verify).

Replanning, overlap with the plan under way and what the robots are told is up to who uses it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import List, Optional, Sequence, Tuple

from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.promises.packing import Batch, Pace, adjust, simulate
from edge_offload.server.promises.settings import MAX_INTERVAL, Wish, settle
from edge_offload.server.promises.staleness import mean_drops

#: Bounds are promised in steps of this share of the one before: an offer is within it of the least possible.
OFFER_STEP = 1.05
#: So many steps are looked at: 349 times the bound that was asked for.
OFFER_STEPS = 120
#: Frames are chosen that arrive this share of a frame interval before their batch begins.
EARLY = 0.05
#: Times that intervals are fitted to what the schedule costs, each time by at most this share.
FITTED, FITTED_BY = 8, 0.25


@dataclass(frozen=True)
class Client:
    """A robot on the plan's clock.

    Attributes:
        robot: its name.
        wish: what it was promised, and says of itself.
        frame: number of the last frame that it asked for, in a plan or by itself.
        arrival: when that frame arrived.
        spare: drop beyond the bound that a plan may cost it, since it had less before.
        fresh: it has had no turn yet; what it loses until its first is its own.
    """

    robot: str
    wish: Wish
    frame: int
    arrival: float
    spare: float = 0.0
    fresh: bool = False

    def pace(self, latencies: Latencies, whole: bool = False, fresh: bool = False) -> Pace:
        """How it asks when its settings are those of Step 1; its frames arrive some time before the batch begins."""
        settings, wish = settle(self.wish, latencies, whole, fresh), self.wish
        return Pace(
            self.robot, settings.interval, settings.batch, self.frame, self.arrival, wish.frame_interval,
            late=0.0 if whole else -EARLY * wish.frame_interval,
        )  # fmt: skip


@dataclass(frozen=True)
class Moment:
    """When a plan is made.

    Attributes:
        begin: the device is free from here on: the batch or other work under way has ended.
        horizon: requests that would come within this time are planned.
        grace: share of a batch's time that is left open after it.
        other: share of the device's time that other work gets, 0 to below 1: batches take that much longer.
        whole: intervals are whole numbers of frames and are only shortened, as in the text.
    """

    begin: float
    horizon: float
    grace: float = 0.1
    other: float = 0.0
    whole: bool = False


@dataclass(frozen=True)
class Schedule:
    """A plan and what it costs those in it.

    Attributes:
        clients: who is held.
        batches: members are places among ``clients``.
        drops: mean drop of each client under the plan, over having the server alone.
        overfull: requests of the horizon take longer than that, and the longer the more such plans follow.
    """

    clients: Tuple[Client, ...]
    batches: Tuple[Batch, ...]
    drops: Tuple[float, ...]
    overfull: bool

    @property
    def holds(self) -> bool:
        """Whether it keeps all bounds, and can be kept up."""
        return not self.overfull and not self.broken

    @property
    def worst(self) -> float:
        """The largest drop, as a share of its client's bound; 0: no clients."""
        return max((drop / client.wish.bound for drop, client in zip(self.drops, self.clients)), default=0.0)

    @property
    def broken(self) -> List[int]:
        """Places of those whose bound the plan does not keep."""
        return [
            place
            for place, client in enumerate(self.clients)
            if self.drops[place] > client.wish.bound + client.spare + 1e-12
        ]


def schedule(clients: Sequence[Client], latencies: Latencies, moment: Moment) -> Schedule:
    """Simulate, adjust and verify for just these clients; linear in the requests of the horizon.

    Settings of Step 1 use a bound up as if batches began at any time. Whom the batches as they fall cost more gets
    shorter intervals, and while there is not enough room, whom they cost less gets longer ones. Where back to back does
    not hold, batches that begin when a frame arrives may: the device is idle now and then, but results are fresher.
    """
    plan = _fit(clients, latencies, moment, False, False)
    if moment.whole:
        return plan
    for fresh, hopeful in ((True, True), (False, True)):
        if plan.holds:
            break
        plan = min(plan, _fit(clients, latencies, moment, fresh, hopeful), key=_badness)
    return plan


def _fit(clients: Sequence[Client], latencies: Latencies, moment: Moment, fresh: bool, hopeful: bool) -> Schedule:
    """``fresh``: batches begin when a frame arrives. ``hopeful``: intervals are at first as if they all did."""
    paces = [client.pace(latencies, moment.whole, hopeful) for client in clients]
    if not moment.whole and paces:
        usual = sorted(pace.batch for pace in paces)[(len(paces) - 1) // 2]
        paces = [_wider(pace, client.wish, usual, latencies, hopeful) for pace, client in zip(paces, clients)]
    plan = best = _schedule(clients, paces, latencies, moment, fresh)
    for _ in range(FITTED):
        if plan.holds or (moment.whole and plan.overfull):
            break
        fitted = [
            _fitted(pace, client, drop, plan.overfull, moment.whole)
            for pace, client, drop in zip(paces, clients, plan.drops)
        ]
        if fitted == paces:
            break
        paces = fitted
        plan = _schedule(clients, paces, latencies, moment, fresh)
        best = min(plan, best, key=_badness)
    return plan if moment.whole else best


def _badness(plan: Schedule) -> Tuple[bool, float, bool]:
    return not plan.holds, plan.worst, plan.overfull


def _wider(pace: Pace, wish: Wish, batch: int, latencies: Latencies, fresh: bool) -> Pace:
    """With a batch of at least ``batch``, where the bound has room for it: one small batch makes others small."""
    batch = min(batch, wish.batch)
    if pace.batch >= batch:
        return pace
    interval = wish.longest(latencies.batch(batch), latencies, fresh)
    return pace if interval < 1 else replace(pace, batch=batch, interval=interval)


def _fitted(pace: Pace, client: Client, drop: float, stretch: bool, whole: bool) -> Pace:
    """With an interval by which the client has its bound."""
    left = client.wish.bound + client.spare - drop
    if left >= 0 and (whole or not stretch):
        return pace
    if whole:
        shorter = min(pace.interval - 1, math.floor(pace.interval * 0.9))
        return replace(pace, interval=max(1, shorter))
    # a frame more between two results makes them half a frame older on average
    slope = max(client.wish.slope, 1e-6)
    longer = min(FITTED_BY, max(-FITTED_BY, 2 * left / slope / pace.interval))
    return replace(pace, interval=min(float(MAX_INTERVAL), max(1.0, pace.interval * (1 + longer))))


def _schedule(
    clients: Sequence[Client], paces: Sequence[Pace], latencies: Latencies, moment: Moment, fresh: bool
) -> Schedule:
    wishes = [client.wish for client in clients]
    requests = list(simulate(paces, moment.begin + moment.horizon))
    stretched = (1.0 + moment.grace) / (1.0 - moment.other) - 1.0
    batches = adjust(paces, requests, latencies, moment.begin, stretched, wait=True, fresh=fresh)
    lost = mean_drops(batches, paces, wishes, latencies, [client.fresh for client in clients])
    drops = tuple(max(0.0, one - wish.reference(latencies)) for wish, one in zip(wishes, lost))
    overfull = bool(batches) and batches[-1].start > moment.begin + moment.horizon
    return Schedule(tuple(clients), tuple(batches), drops, overfull)


def hold(clients: Sequence[Client], latencies: Latencies, moment: Moment) -> Tuple[Schedule, List[Client]]:
    """The schedule of as many of ``clients`` as it can hold, and those that had to go.

    While a bound is broken, the one goes that takes most of the device's time for itself; of equals, the last.
    """
    held = list(clients)
    gone: List[Client] = []
    while True:
        plan = schedule(held, latencies, moment)
        if plan.holds or not held:
            return plan, gone
        loads = [_load(client, latencies) for client in held]
        gone.append(held.pop(max(range(len(held)), key=lambda place: (loads[place], place))))


def admit(
    newcomer: Client, clients: Sequence[Client], latencies: Latencies, moment: Moment
) -> Tuple[Optional[Schedule], float]:
    """The schedule with the newcomer, and its bound; or None, and the bound that could be promised to it now.

    The bound offered is infinite where none would do.
    """
    plan = schedule([*clients, newcomer], latencies, moment)
    if plan.holds:
        return plan, newcomer.wish.bound

    def at(step: int) -> float:
        return newcomer.wish.bound * OFFER_STEP**step

    def holds(step: int) -> bool:
        offer = replace(newcomer, wish=replace(newcomer.wish, bound=at(step)))
        return schedule([*clients, offer], latencies, moment).holds

    too_tight, enough = 0, OFFER_STEPS
    if not holds(enough):
        return None, math.inf
    while enough - too_tight > 1:
        middle = (too_tight + enough) // 2
        too_tight, enough = (too_tight, middle) if holds(middle) else (middle, enough)
    return None, at(enough)


def _load(client: Client, latencies: Latencies) -> float:
    """Share of the device's time that it takes, in batches as large as it allows."""
    settings = settle(client.wish, latencies)
    return latencies.batch(settings.batch) / settings.batch / (settings.interval * client.wish.frame_interval)
