"""Schedules that keep the bounds of the robots on one device (3.4.4, Step 2: simulate, adjust, verify).

Algorithm 2 packs as in the text. If its plan breaks a bound, batches go where results are freshest
(:mod:`~edge_offload.server.promises.windows`).

The caller decides when to plan again, what overlaps with the current plan, and what robots are notified of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from edge_offload.server.promises import windows
from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.promises.packing import Batch, Pace, order_requests, pack_requests
from edge_offload.server.promises.settings import MAX_INTERVAL, Wish, choose_settings
from edge_offload.server.promises.staleness import Staleness

#: Bounds are promised in steps of this share of the one before: an offer is within it of the least possible.
OFFER_STEP = 1.05
#: Bounds are shares of an accuracy of 0 to 1.
LARGEST_BOUND = 1.0
#: Frames are chosen that arrive this share of a frame interval before their batch begins.
EARLY_SHARE = 0.05
#: Rounds in which intervals are fitted to the cost of the schedule, and the largest change in each.
FIT_ROUNDS, FIT_STEP = 8, 0.25
#: No plan is feasible if intervals that keep the bounds, with the freshest results, need more than this share of the
#: device's time.
LARGEST_LOAD = 1.0
#: Budget of planned requests per robot over all plans of one moment: by Algorithm 2, and together with windows.
REQUEST_BUDGET, WINDOWS_REQUEST_BUDGET = 150, 180
#: Search ends if the best plan exceeds a robot's bound by the first factor; in windows, by the second.
SHARED_EXCESS, WINDOWS_EXCESS = 1.5, 2.0


@dataclass(frozen=True)
class Client:
    """A robot on the plan's clock.

    Attributes:
        robot: its name.
        wish: its promise and declaration.
        frame: number of the last requested frame, in a plan or by the robot.
        arrival: arrival time of that frame.
        spare: permitted drop beyond the bound, since its earlier drops were lower.
        fresh: it has had no slot yet; losses until its first one do not count.
        interval: its interval in the last plan with windows; 0: there was none.
    """

    robot: str
    wish: Wish
    frame: int
    arrival: float
    spare: float = 0.0
    fresh: bool = False
    interval: float = 0.0

    def make_pace(self, latencies: Latencies, fixed_intervals: bool = False, fresh: bool = False) -> Pace:
        """Return its pace under the settings of Step 1; frames arrive some time before the batch begins."""
        settings, wish = choose_settings(self.wish, latencies, fixed_intervals, fresh), self.wish
        return Pace(
            self.robot, settings.interval, settings.batch, self.frame, self.arrival, wish.frame_interval,
            tolerance=0.0 if fixed_intervals else -EARLY_SHARE * wish.frame_interval,
        )  # fmt: skip


@dataclass(frozen=True)
class Moment:
    """State of the device when a plan is made.

    Attributes:
        begin: the device is free from here on: the batch or other work under way has ended.
        horizon: requests that would come within this time are planned.
        grace: share of a batch's time that is left open after it.
        other_share: share of the device's time for other work, 0 to below 1: batches take that much longer.
        fixed_intervals: intervals are whole numbers of frames and are only shortened, as in the text.
    """

    begin: float
    horizon: float
    grace: float = 0.1
    other_share: float = 0.0
    fixed_intervals: bool = False


@dataclass(frozen=True)
class Schedule:
    """A plan and its cost to each client.

    Attributes:
        clients: the robots in it.
        batches: members are places among ``clients``.
        drops: mean drop of each client under the plan, over having the server alone.
        overfull: requests of the horizon take longer than the horizon; each further plan makes it worse.
        intervals: of each client, if batches are in windows: the next plan begins with these.
    """

    clients: Tuple[Client, ...]
    batches: Tuple[Batch, ...]
    drops: Tuple[float, ...]
    overfull: bool
    intervals: Tuple[float, ...] = ()

    @property
    def holds(self) -> bool:
        """True if it keeps all bounds and can be repeated."""
        return not self.overfull and not self.broken

    @property
    def worst(self) -> float:
        """The largest drop, as a share of its client's bound; 0: no clients."""
        return max((drop / client.wish.bound for drop, client in zip(self.drops, self.clients)), default=0.0)

    @property
    def broken(self) -> List[int]:
        """Indices of clients whose bound the plan breaks."""
        return [
            place
            for place, client in enumerate(self.clients)
            if self.drops[place] > client.wish.bound + client.spare + 1e-12
        ]


def make_schedule(clients: Sequence[Client], latencies: Latencies, moment: Moment) -> Schedule:
    """Simulate, adjust and verify for exactly these clients; linear in the requests of the horizon.

    The settings of Step 1 assume that batches begin at any time. A client that pays more gets a shorter interval; if
    there is not enough room, a client that pays less gets a longer one. If back-to-back batches fail, batches in
    windows may hold: the device is idle at times, but results are fresher. If the device is too small for all, all get
    less.
    """
    trial = _Trial(clients, latencies, moment)
    plan = trial.fit_back_to_back()
    if plan.holds or moment.fixed_intervals:
        return plan
    load = trial.share_of(trial.paces_for(True))
    if load <= LARGEST_LOAD and windows.is_ready():
        plan = min(plan, trial.fit_windows(), key=_rank_plan)
    if not plan.holds and (load > LARGEST_LOAD or plan.worst > SHARED_EXCESS):
        return min(plan, trial.share_device(max(1.0, load)), key=_rank_plan)
    return plan


class _Trial:
    """Plans for the same clients at the same moment, with one pace after another."""

    def __init__(self, clients: Sequence[Client], latencies: Latencies, moment: Moment) -> None:
        self._clients, self._latencies, self._moment = tuple(clients), latencies, moment
        self._ends = moment.begin + moment.horizon
        self._grace = (1.0 + moment.grace) / (1.0 - moment.other_share) - 1.0
        self._paces: Dict[bool, List[Pace]] = {}
        wishes = [client.wish for client in clients]
        paces = self.paces_for(False)
        self._staleness = Staleness(wishes, latencies, paces, [client.fresh for client in clients])
        self._references = [wish.reference_loss(latencies) for wish in wishes]
        self._ways = [wish.up + wish.down for wish in wishes]
        self._planned = 0

    def paces_for(self, hopeful: bool) -> List[Pace]:
        """Return the paces of Step 1. ``hopeful``: as if all batches began when a frame arrives."""
        if hopeful not in self._paces:
            self._paces[hopeful] = self._usual_paces(hopeful)
        return self._paces[hopeful]

    def _usual_paces(self, hopeful: bool) -> List[Pace]:
        latencies, fixed_intervals = self._latencies, self._moment.fixed_intervals
        paces = [client.make_pace(latencies, fixed_intervals, hopeful) for client in self._clients]
        if fixed_intervals or not paces:
            return paces
        usual = sorted(pace.batch for pace in paces)[(len(paces) - 1) // 2]
        return [
            _widen_batch(pace, client.wish, usual, latencies, hopeful) for pace, client in zip(paces, self._clients)
        ]

    def share_of(self, paces: Sequence[Pace]) -> float:
        """Return the least share of the device's time for these paces: in batches as large as they allow."""
        needed = sum(
            self._latencies.batch_latency(pace.batch) / pace.batch / (pace.interval * pace.frame_interval)
            for pace in paces
        )
        return needed * (1.0 + self._grace)

    def fit_back_to_back(self) -> Schedule:
        """Fit intervals to batches back to back, by Algorithm 2."""
        fixed_intervals, clients = self._moment.fixed_intervals, self._clients
        paces = self.paces_for(False)
        plan = best = self._plan_back_to_back(paces)
        for _ in range(FIT_ROUNDS):
            if plan.holds or (fixed_intervals and plan.overfull) or self._planned > REQUEST_BUDGET * len(clients):
                break
            fitted = [
                _fit_interval(pace, client, drop, plan.overfull, fixed_intervals)
                for pace, client, drop in zip(paces, clients, plan.drops)
            ]
            # an overfull plan is not replaced by a fuller one
            if fitted == paces or (plan.overfull and self.share_of(fitted) >= self.share_of(paces)):
                break
            paces = fitted
            plan = self._plan_back_to_back(paces)
            best = min(plan, best, key=_rank_plan)
        return plan if fixed_intervals else best

    def fit_windows(self) -> Schedule:
        """Fit intervals to windows: from the intervals of the last such plan, then from the usual ones.

        A client with a margin leaves room for others there, even if there is enough.
        """
        usual = self.paces_for(True)
        before = [
            pace._replace(interval=client.interval) if client.interval else pace
            for pace, client in zip(usual, self._clients)
        ]
        best = self._fit_windows(before)
        return best if best.holds or before == usual else min(best, self._fit_windows(usual), key=_rank_plan)

    def _fit_windows(self, paces: List[Pace]) -> Schedule:
        plan = best = self._plan_windows(paces)
        for _ in range(FIT_ROUNDS):
            exhausted = self._planned > WINDOWS_REQUEST_BUDGET * len(self._clients)
            if plan.holds or plan.worst > WINDOWS_EXCESS or exhausted:
                break
            paces = [
                _fit_interval(pace, client, drop, True, False)
                for pace, client, drop in zip(paces, self._clients, plan.drops)
            ]
            plan = self._plan_windows(paces)
            best = min(plan, best, key=_rank_plan)
        return best

    def share_device(self, factor: float) -> Schedule:
        """Plan with all intervals longer by the same factor, so that there is room for all."""
        paces = [
            pace._replace(interval=min(float(MAX_INTERVAL), pace.interval * factor)) for pace in self.paces_for(True)
        ]
        return self._plan_back_to_back(paces)

    def _plan_back_to_back(self, paces: Sequence[Pace]) -> Schedule:
        begin, fixed_intervals = self._moment.begin, self._moment.fixed_intervals
        until = math.inf if fixed_intervals else self._ends
        requests = order_requests(paces, self._ends)
        batches = pack_requests(paces, requests, self._latencies, begin, self._grace, wait=True, until=until)
        self._planned += sum(len(batch.members) for batch in batches)
        overfull = bool(batches) and batches[-1].start > self._ends
        return self._verify_plan(batches, paces, until if overfull and not fixed_intervals else None, overfull)

    def _plan_windows(self, paces: Sequence[Pace]) -> Schedule:
        batches = windows.plan_batches(paces, self._ways, self._latencies, self._moment.begin, self._ends, self._grace)
        self._planned += sum(len(batch.members) for batch in batches)
        plan = self._verify_plan(batches, paces, self._ends, False)
        return replace(plan, intervals=tuple(pace.interval for pace in paces))

    def _verify_plan(
        self, batches: Sequence[Batch], paces: Sequence[Pace], until: Optional[float], overfull: bool
    ) -> Schedule:
        lost = self._staleness.mean_drops(batches, paces, until)
        drops = tuple(max(0.0, one - reference) for one, reference in zip(lost, self._references))
        return Schedule(self._clients, tuple(batches), drops, overfull)


def _rank_plan(plan: Schedule) -> Tuple[bool, float, bool]:
    """Return a sort key of plans by the excess over each client's bound and its spare."""
    over = ((drop - client.spare) / client.wish.bound for drop, client in zip(plan.drops, plan.clients))
    return not plan.holds, max(over, default=0.0), plan.overfull


def _widen_batch(pace: Pace, wish: Wish, batch: int, latencies: Latencies, fresh: bool) -> Pace:
    """Return a pace with a batch of at least ``batch`` if the bound permits: one small batch makes others small."""
    batch = min(batch, wish.batch)
    if pace.batch >= batch:
        return pace
    interval = wish.longest_interval(latencies.batch_latency(batch), latencies, fresh)
    return pace if interval < 1 else pace._replace(batch=batch, interval=interval)


def _fit_interval(pace: Pace, client: Client, drop: float, stretch: bool, fixed_intervals: bool) -> Pace:
    """Return a pace with an interval that meets the client's bound."""
    margin = client.wish.bound + client.spare - drop
    if margin >= 0 and (fixed_intervals or not stretch):
        return pace
    if fixed_intervals:
        shorter = min(pace.interval - 1, math.floor(pace.interval * 0.9))
        return pace._replace(interval=max(1, shorter))
    # a frame more between two results makes them half a frame older on average
    slope = max(client.wish.slope, 1e-6)
    change = min(FIT_STEP, max(-FIT_STEP, 2 * margin / slope / pace.interval))
    return pace._replace(interval=min(float(MAX_INTERVAL), max(1.0, pace.interval * (1 + change))))


def fit_clients(
    clients: Sequence[Client], latencies: Latencies, moment: Moment, claims: Sequence[float] = ()
) -> Tuple[Schedule, List[Client]]:
    """Return the schedule of as many of ``clients`` as it can serve, and the evicted ones.

    The client with the highest share of the device is evicted first; of equals, the last. Bisection gives the number.

    Args:
        clients: robots with a promise.
        latencies: seconds per batch size.
        moment: state of the device.
        claims: share of the device (:func:`device_share`) at each client's admission. That much of its share is
            excused, but at most the median claim: a client that declared too little to be admitted is evicted before an
            honest one.
    """
    loads = [device_share(client, latencies) for client in clients]
    if claims:
        usual = sorted(claims)[(len(claims) - 1) // 2]
        loads = [share - min(claim, usual) for share, claim in zip(loads, claims)]
    order = sorted(range(len(clients)), key=lambda place: (loads[place], place), reverse=True)

    def without(count: int) -> Schedule:
        evicted = set(order[:count])
        return make_schedule(
            [client for place, client in enumerate(clients) if place not in evicted], latencies, moment
        )

    plan = without(0)
    too_few, enough, step = 0, 0, 1
    while not plan.holds and enough < len(clients):
        too_few, enough = enough, min(len(clients), enough + step)
        plan, step = without(enough), 2 * step
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        candidate = without(middle)
        if candidate.holds:
            plan, enough = candidate, middle
        else:
            too_few = middle
    return plan, [clients[place] for place in order[:enough]]


def admit_client(
    newcomer: Callable[[float], Client],
    bound: float,
    clients: Sequence[Client],
    latencies: Latencies,
    moment: Moment,
) -> Tuple[Optional[Schedule], float]:
    """Return the schedule with the newcomer and its bound; or None and the bound that could be promised now.

    Args:
        newcomer: returns the client to plan with for a bound.
        bound: the bound that it requests.
        clients: robots with promises.
        latencies: seconds per batch size.
        moment: state of the device.

    Returns:
        The offered bound is infinite if none of up to :data:`LARGEST_BOUND` is feasible.
    """

    def plan_with(requested: float) -> Schedule:
        return make_schedule([*clients, newcomer(requested)], latencies, moment)

    plan = plan_with(bound)
    if plan.holds:
        return plan, bound
    steps = max(1, math.ceil(math.log(LARGEST_BOUND / bound, OFFER_STEP)))

    def bound_of(step: int) -> float:
        return min(LARGEST_BOUND, _round_up(bound * OFFER_STEP**step))

    too_tight, enough = 0, steps
    if bound >= LARGEST_BOUND or not plan_with(bound_of(enough)).holds:
        return None, math.inf
    while enough - too_tight > 1:
        middle = (too_tight + enough) // 2
        too_tight, enough = (too_tight, middle) if plan_with(bound_of(middle)).holds else (middle, enough)
    return None, bound_of(enough)


def _round_up(bound: float) -> float:
    """Round a bound up to three digits, so that a request for the offered bound asks for no less."""
    unit = 10.0 ** (math.floor(math.log10(bound)) - 2)
    return float(f"{math.ceil(bound / unit - 1e-9) * unit:.3g}")


def device_share(client: Client, latencies: Latencies) -> float:
    """Return the share of the device's time that a client needs in batches as large as it permits."""
    settings = choose_settings(client.wish, latencies)
    return latencies.batch_latency(settings.batch) / settings.batch / (settings.interval * client.wish.frame_interval)
