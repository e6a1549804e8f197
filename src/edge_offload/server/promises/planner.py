"""Whom one device can hold to their bounds, and the schedule that does it (3.4.4, Step 2: simulate, adjust, verify).

Algorithm 2 packs as the text has it. Where its plan does not hold, batches go where results are freshest
(:mod:`~edge_offload.server.promises.windows`).

Replanning, overlap with the plan under way and what the robots are told is up to who uses it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from edge_offload.server.promises import windows
from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.promises.packing import Batch, Pace, adjust, simulate
from edge_offload.server.promises.settings import MAX_INTERVAL, Wish, settle
from edge_offload.server.promises.staleness import Staleness

#: Bounds are promised in steps of this share of the one before: an offer is within it of the least possible.
OFFER_STEP = 1.05
#: Bounds are shares of an accuracy of 0 to 1.
MOST_BOUND = 1.0
#: Frames are chosen that arrive this share of a frame interval before their batch begins.
EARLY = 0.05
#: Times that intervals are fitted to what the schedule costs, each time by at most this share.
FITTED, FITTED_BY = 8, 0.25
#: Where intervals that keep the bounds, with results as fresh as can be, would take this much of the device's time and
#: more, no plan holds.
HOPELESS = 1.0
#: Requests of each robot that are planned, all plans of one moment together, before the best that was found has to do:
#: by Algorithm 2, and with those in windows.
TRIED, TRIED_IN_WINDOWS = 150, 180
#: Nor where the best that was found so far costs somebody so many bounds; or the first in windows.
FAR, HOPELESS_WINDOWS = 1.5, 2.0


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
        interval: with which it was planned in windows last; 0: it was not.
    """

    robot: str
    wish: Wish
    frame: int
    arrival: float
    spare: float = 0.0
    fresh: bool = False
    interval: float = 0.0

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
        intervals: of each client, where batches are in windows: the next plan begins with these.
    """

    clients: Tuple[Client, ...]
    batches: Tuple[Batch, ...]
    drops: Tuple[float, ...]
    overfull: bool
    intervals: Tuple[float, ...] = ()

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
    not hold, batches in windows may: the device is idle now and then, but results are fresher. Where the device is too
    small for all, whatever the batches, everybody gets as much less.
    """
    trial = _Trial(clients, latencies, moment)
    plan = trial.fit()
    if plan.holds or moment.whole:
        return plan
    too_much = trial.load(trial.paces(True))
    if too_much <= HOPELESS and windows.ready():
        plan = min(plan, trial.fit_windows(), key=_badness)
    if not plan.holds and (too_much > HOPELESS or plan.worst > FAR):
        return min(plan, trial.shared(max(1.0, too_much)), key=_badness)
    return plan


class _Trial:
    """Plans for the same clients at the same moment, with one pace after another."""

    def __init__(self, clients: Sequence[Client], latencies: Latencies, moment: Moment) -> None:
        self._clients, self._latencies, self._moment = tuple(clients), latencies, moment
        self._ends = moment.begin + moment.horizon
        self._grace = (1.0 + moment.grace) / (1.0 - moment.other) - 1.0
        self._paces: Dict[bool, List[Pace]] = {}
        wishes = [client.wish for client in clients]
        paces = self.paces(False)
        self._staleness = Staleness(wishes, latencies, paces, [client.fresh for client in clients])
        self._references = [wish.reference(latencies) for wish in wishes]
        self._ways = [wish.up + wish.down for wish in wishes]
        self._planned = 0

    def paces(self, hopeful: bool) -> List[Pace]:
        """As Step 1 says. ``hopeful``: as if all batches began when a frame arrives."""
        if hopeful not in self._paces:
            self._paces[hopeful] = self._usual_paces(hopeful)
        return self._paces[hopeful]

    def _usual_paces(self, hopeful: bool) -> List[Pace]:
        latencies, whole = self._latencies, self._moment.whole
        paces = [client.pace(latencies, whole, hopeful) for client in self._clients]
        if whole or not paces:
            return paces
        usual = sorted(pace.batch for pace in paces)[(len(paces) - 1) // 2]
        return [_wider(pace, client.wish, usual, latencies, hopeful) for pace, client in zip(paces, self._clients)]

    def load(self, paces: Sequence[Pace]) -> float:
        """The least share of the device's time that robots take at these paces: in batches as large as they allow."""
        takes = sum(
            self._latencies.batch(pace.batch) / pace.batch / (pace.interval * pace.frame_interval) for pace in paces
        )
        return takes * (1.0 + self._grace)

    def fit(self) -> Schedule:
        """Back to back, by Algorithm 2."""
        whole, clients = self._moment.whole, self._clients
        paces = self.paces(False)
        plan = best = self._schedule(paces)
        for _ in range(FITTED):
            if plan.holds or (whole and plan.overfull) or self._planned > TRIED * len(clients):
                break
            fitted = [
                _fitted(pace, client, drop, plan.overfull, whole)
                for pace, client, drop in zip(paces, clients, plan.drops)
            ]
            # who asks for more than was too much already does not get it
            if fitted == paces or (plan.overfull and self.load(fitted) >= self.load(paces)):
                break
            paces = fitted
            plan = self._schedule(paces)
            best = min(plan, best, key=_badness)
        return plan if whole else best

    def fit_windows(self) -> Schedule:
        """In windows: with the intervals of the last such plan, and anew.

        Who has more than it needs leaves room for others there, though there is enough.
        """
        anew = self.paces(True)
        before = [
            pace._replace(interval=client.interval) if client.interval else pace
            for pace, client in zip(anew, self._clients)
        ]
        best = self._fit_windows(before)
        return best if best.holds or before == anew else min(best, self._fit_windows(anew), key=_badness)

    def _fit_windows(self, paces: List[Pace]) -> Schedule:
        plan = best = self._in_windows(paces)
        for _ in range(FITTED):
            tired = self._planned > TRIED_IN_WINDOWS * len(self._clients)
            if plan.holds or plan.worst > HOPELESS_WINDOWS or tired:
                break
            paces = [
                _fitted(pace, client, drop, True, False) for pace, client, drop in zip(paces, self._clients, plan.drops)
            ]
            plan = self._in_windows(paces)
            best = min(plan, best, key=_badness)
        return best

    def shared(self, too_much: float) -> Schedule:
        """Everybody's interval is longer than it should be, so that there is room for all."""
        paces = [
            pace._replace(interval=min(float(MAX_INTERVAL), pace.interval * too_much)) for pace in self.paces(True)
        ]
        return self._schedule(paces)

    def _schedule(self, paces: Sequence[Pace]) -> Schedule:
        begin, whole = self._moment.begin, self._moment.whole
        until = math.inf if whole else self._ends
        requests = simulate(paces, self._ends)
        batches = adjust(paces, requests, self._latencies, begin, self._grace, wait=True, until=until)
        self._planned += sum(len(batch.members) for batch in batches)
        overfull = bool(batches) and batches[-1].start > self._ends
        return self._verified(batches, paces, until if overfull and not whole else None, overfull)

    def _in_windows(self, paces: Sequence[Pace]) -> Schedule:
        batches = windows.batches(paces, self._ways, self._latencies, self._moment.begin, self._ends, self._grace)
        self._planned += sum(len(batch.members) for batch in batches)
        plan = self._verified(batches, paces, self._ends, False)
        return replace(plan, intervals=tuple(pace.interval for pace in paces))

    def _verified(
        self, batches: Sequence[Batch], paces: Sequence[Pace], until: Optional[float], overfull: bool
    ) -> Schedule:
        lost = self._staleness.mean_drops(batches, paces, until)
        drops = tuple(max(0.0, one - reference) for one, reference in zip(lost, self._references))
        return Schedule(self._clients, tuple(batches), drops, overfull)


def _badness(plan: Schedule) -> Tuple[bool, float, bool]:
    """Who had less than its bound before may have more now: what counts is what is left to each."""
    over = ((drop - client.spare) / client.wish.bound for drop, client in zip(plan.drops, plan.clients))
    return not plan.holds, max(over, default=0.0), plan.overfull


def _wider(pace: Pace, wish: Wish, batch: int, latencies: Latencies, fresh: bool) -> Pace:
    """With a batch of at least ``batch``, where the bound has room for it: one small batch makes others small."""
    batch = min(batch, wish.batch)
    if pace.batch >= batch:
        return pace
    interval = wish.longest(latencies.batch(batch), latencies, fresh)
    return pace if interval < 1 else pace._replace(batch=batch, interval=interval)


def _fitted(pace: Pace, client: Client, drop: float, stretch: bool, whole: bool) -> Pace:
    """With an interval by which the client has its bound."""
    left = client.wish.bound + client.spare - drop
    if left >= 0 and (whole or not stretch):
        return pace
    if whole:
        shorter = min(pace.interval - 1, math.floor(pace.interval * 0.9))
        return pace._replace(interval=max(1, shorter))
    # a frame more between two results makes them half a frame older on average
    slope = max(client.wish.slope, 1e-6)
    longer = min(FITTED_BY, max(-FITTED_BY, 2 * left / slope / pace.interval))
    return pace._replace(interval=min(float(MAX_INTERVAL), max(1.0, pace.interval * (1 + longer))))


def hold(
    clients: Sequence[Client], latencies: Latencies, moment: Moment, claims: Sequence[float] = ()
) -> Tuple[Schedule, List[Client]]:
    """The schedule of as many of ``clients`` as it can hold, and those that had to go.

    While a bound is broken, the one goes that takes most of the device's time for itself; of equals, the last. How many
    have to go is found by halves.

    Args:
        clients: who has a promise.
        latencies: what a batch takes.
        moment: when.
        claims: share of the device (:func:`load`) that each was admitted with. So much of what it takes does not count
            against it, but no more than half of them have: who said little to be let in goes before who said the truth.
    """
    loads = [load(client, latencies) for client in clients]
    if claims:
        usual = sorted(claims)[(len(claims) - 1) // 2]
        loads = [takes - min(claim, usual) for takes, claim in zip(loads, claims)]
    leave = sorted(range(len(clients)), key=lambda place: (loads[place], place), reverse=True)

    def without(count: int) -> Schedule:
        gone = set(leave[:count])
        return schedule([one for place, one in enumerate(clients) if place not in gone], latencies, moment)

    plan = without(0)
    too_few, enough, step = 0, 0, 1
    while not plan.holds and enough < len(clients):
        too_few, enough = enough, min(len(clients), enough + step)
        plan, step = without(enough), 2 * step
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        tried = without(middle)
        if tried.holds:
            plan, enough = tried, middle
        else:
            too_few = middle
    return plan, [clients[place] for place in leave[:enough]]


def admit(
    newcomer: Callable[[float], Client],
    bound: float,
    clients: Sequence[Client],
    latencies: Latencies,
    moment: Moment,
) -> Tuple[Optional[Schedule], float]:
    """The schedule with the newcomer, and its bound; or None, and the bound that could be promised to it now.

    Args:
        newcomer: as it would be planned with, if it were promised a bound.
        bound: that it asks for.
        clients: who has promises.
        latencies: what a batch takes.
        moment: when.

    Returns:
        The bound offered is infinite where none of up to :data:`MOST_BOUND` would do.
    """

    def planned(asked: float) -> Schedule:
        return schedule([*clients, newcomer(asked)], latencies, moment)

    plan = planned(bound)
    if plan.holds:
        return plan, bound
    steps = max(1, math.ceil(math.log(MOST_BOUND / bound, OFFER_STEP)))

    def at(step: int) -> float:
        return min(MOST_BOUND, _rounded(bound * OFFER_STEP**step))

    too_tight, enough = 0, steps
    if bound >= MOST_BOUND or not planned(at(enough)).holds:
        return None, math.inf
    while enough - too_tight > 1:
        middle = (too_tight + enough) // 2
        too_tight, enough = (too_tight, middle) if planned(at(middle)).holds else (middle, enough)
    return None, at(enough)


def _rounded(bound: float) -> float:
    """Up, to what people read: who asks for what was offered asks for no less."""
    unit = 10.0 ** (math.floor(math.log10(bound)) - 2)
    return float(f"{math.ceil(bound / unit - 1e-9) * unit:.3g}")


def load(client: Client, latencies: Latencies) -> float:
    """Share of the device's time that it takes, in batches as large as it allows."""
    settings = settle(client.wish, latencies)
    return latencies.batch(settings.batch) / settings.batch / (settings.interval * client.wish.frame_interval)
