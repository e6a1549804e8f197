"""Step 1, what a schedule costs, and whom a server can hold: against listing and against frames counted one by one."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace
from typing import Callable, List

import pytest

from edge_offload.errors import BadInput
from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.promises.packing import Batch, Pace
from edge_offload.server.promises.planner import Client, Moment, admit_client, fit_clients, make_schedule
from edge_offload.server.promises.settings import MAX_INTERVAL, Wish, choose_settings
from edge_offload.server.promises.staleness import Staleness

GPU = Latencies((0.0125, 0.0185, 0.0245, 0.031, 0.0375, 0.044, 0.051, 0.058))


def a_wish(source: random.Random) -> Wish:
    return Wish(
        bound=source.uniform(0.01, 0.2),
        slope=source.choice([0.0, source.uniform(0.001, 0.03)]),
        frame_interval=source.uniform(0.01, 0.1),
        up=source.uniform(0, 0.03),
        down=source.uniform(0, 0.02),
        batch=source.randint(1, 8),
        flicker=source.choice([0.0, source.uniform(0.01, 0.2)]),
        settle=source.choice([0.0, source.uniform(0.1, 3.0)]),
    )


def planned_drop(wish: Wish, service: float, interval: float) -> float:
    """Return the loss over the reference of a result every ``interval`` frames."""
    age = wish.planned_age(service)
    mean = wish.slope * (age + (interval - 1) / 2) + wish.flicker * (1 - wish._unsettled(age, interval))
    return mean - wish.reference_loss(GPU)


def test_settings_serve_most_robots_of_all_within_the_bound() -> None:
    source = random.Random(1)
    for _ in range(500):
        wish = a_wish(source)
        best = 0.0
        for batch in range(1, wish.batch + 1):
            for interval in range(1, MAX_INTERVAL + 1):
                if planned_drop(wish, GPU.batch_latency(batch), interval) <= wish.bound + 1e-12:
                    best = max(best, batch / GPU.batch_latency(batch) * interval)
        chosen = choose_settings(wish, GPU, fixed_intervals=True)
        if best == 0:
            assert (chosen.batch, chosen.interval) == (1, 1)
            continue
        assert chosen.batch / GPU.batch_latency(chosen.batch) * chosen.interval == pytest.approx(best, rel=1e-6)
        exact = choose_settings(wish, GPU)
        service = GPU.batch_latency(exact.batch)
        assert exact.batch / service * exact.interval >= best * (1 - 1e-6)
        assert planned_drop(wish, service, exact.interval) <= wish.bound + 1e-6
        if exact.interval < MAX_INTERVAL:
            assert planned_drop(wish, service, exact.interval) >= 0.999 * wish.bound, "it uses the bound up"


def test_the_age_of_results_is_that_of_frames_counted_one_by_one() -> None:
    source = random.Random(2)
    for _ in range(500):
        wish = a_wish(source)
        interval = source.randint(1, 8)
        pace = Pace("one", interval, 8, 0, wish.up, wish.frame_interval)  # frame n is captured at n * frame_interval
        plan, start = [], wish.up + wish.frame_interval
        while len(plan) < 6:
            plan.append(Batch(start, ((0, pace.frame_at(start)),)))
            start += max(GPU.batch_latency(1), wish.frame_interval) * source.uniform(1.001, 5)
        results = [(0, wish.result_age(GPU.batch_latency(8)))]  # frame, and the first frame for which it is known
        for batch in plan:
            first_frame = batch.start + GPU.batch_latency(1) + wish.down
            frame = batch.members[0][1]
            results.append((frame, max(frame + 1, math.ceil(first_frame / wish.frame_interval - 1e-9))))
        if results[1][1] < results[0][1]:  # the plan's first result comes before that of the frame asked for last
            results = results[1:]
        ages: List[int] = []
        for now in range(results[0][1], results[-1][1] + interval):
            ages.append(now - max(frame for frame, begin in results if begin <= now))
        lost = [
            wish.slope * age + wish.flicker * (1 - (math.exp(-age / wish.settle) if wish.settle else 0)) for age in ages
        ]
        assert Staleness([wish], GPU, [pace]).mean_drops(plan, [pace]) == [pytest.approx(sum(lost) / len(lost))]


def fleet(count: int, bound: float, slope: float = 0.005, batch: int = 8) -> List[Client]:
    wish = Wish(bound, slope, 1 / 30, 0.012, 0.006, batch)
    return [Client(str(n), wish, 0, 0.012 - 0.005 * (n % 7)) for n in range(count)]


def test_more_robots_are_served_under_looser_bounds_and_in_batches() -> None:
    def count_served(bound: float, batch: int = 8) -> int:
        return len(fit_clients(fleet(60, bound, batch=batch), GPU, Moment(0.05, 1.0))[0].clients)

    assert count_served(0.01) < count_served(0.03) < count_served(0.06)
    assert count_served(0.03, batch=1) < count_served(0.03)


def test_a_feasible_schedule_meets_every_bound_and_reports_evicted_robots() -> None:
    clients = fleet(60, 0.03)
    plan, evicted = fit_clients(clients, GPU, Moment(0.05, 1.0))
    assert plan.holds
    assert len(plan.clients) + len(evicted) == 60
    assert all(drop <= 0.03 + 1e-12 for drop in plan.drops)
    assert not make_schedule(clients, GPU, Moment(0.05, 1.0)).holds


@pytest.mark.parametrize("fixed", [False, True])
def test_the_servers_schedule_waits_for_the_next_frame_if_no_robot_has_a_new_one(fixed: bool) -> None:
    """The last frame came 0.3 intervals ago, and the device is free."""
    latencies = Latencies((0.14,))
    wishes = [Wish(bound, 0.02, 0.1) for bound in (0.01, 0.05, 0.3)]
    for wish in wishes:
        for age in (-0.05, 0.0, 0.03, 0.09):
            plan = make_schedule(
                [Client("r0", wish, 48, 14.6)], latencies, Moment(14.6 + age, 6.0, fixed_intervals=fixed)
            )
            assert plan.batches
            assert plan.batches[0].start <= 14.6 + age + wish.frame_interval * MAX_INTERVAL / 2
            assert all(frame > 48 for batch in plan.batches for _, frame in batch.members)


def test_a_full_server_names_a_feasible_promise() -> None:
    clients = fit_clients(fleet(60, 0.03), GPU, Moment(0.05, 1.0))[0].clients

    def newcomer(bound: float) -> Client:
        return Client("new", Wish(bound, 0.005, 1 / 30, 0.012, 0.006, 8), 0, 0.0)

    for requests in (0.008, 1e-9):
        plan, offer = admit_client(newcomer, requests, clients, GPU, Moment(0.05, 1.0))
        assert plan is None
        assert requests < offer <= 1.0
        assert offer == float(f"{offer:.3g}"), "what people read is what is offered"
        assert admit_client(newcomer, offer, clients, GPU, Moment(0.05, 1.0))[0] is not None
    wild = [replace(one, wish=replace(one.wish, slope=1.0)) for one in fleet(200, 0.01)]
    assert admit_client(newcomer, 0.008, wild, GPU, Moment(0.05, 1.0)) == (None, math.inf)
    assert admit_client(newcomer, 0.008, [], GPU, Moment(0.05, 1.0))[0] is not None


def test_other_work_reduces_room_for_promises() -> None:
    free = len(fit_clients(fleet(60, 0.03), GPU, Moment(0.05, 1.0))[0].clients)
    busy = len(fit_clients(fleet(60, 0.03), GPU, Moment(0.05, 1.0, other_share=0.4))[0].clients)
    assert busy < free


def spent(work: Callable[[], object]) -> float:
    """Processor time of the fastest of some runs."""
    taken = []
    for _ in range(9):
        begin = time.thread_time()
        work()
        taken.append(time.thread_time() - begin)
    return min(taken)


@pytest.mark.parametrize("bound", [0.012, 0.01, 0.005, 0.001])
def test_an_infeasible_schedule_costs_no_more_time_than_a_few_feasible_ones(bound: float) -> None:
    moment = Moment(0.05, 2.0)
    assert make_schedule(fleet(16, 0.02), GPU, moment).holds
    assert not make_schedule(fleet(16, bound), GPU, moment).holds
    fits = spent(lambda: make_schedule(fleet(16, 0.02), GPU, moment))
    assert spent(lambda: make_schedule(fleet(16, bound), GPU, moment)) < 12 * fits


def test_a_plan_that_is_too_full_is_no_longer_than_its_horizon_and_shares_the_device() -> None:
    plan = make_schedule(fleet(60, 0.012), GPU, Moment(0.05, 1.0))
    assert not plan.holds
    assert all(batch.start <= 1.05 for batch in plan.batches[:-1])
    turns = [sum(place == one for batch in plan.batches for one, _ in batch.members) for place in range(60)]
    assert max(turns) - min(turns) <= 1


def test_as_many_are_served_as_with_one_by_one_eviction() -> None:
    source = random.Random(7)
    for _ in range(60):
        clients = [replace(one, wish=a_wish(source)) for one in fleet(source.randint(1, 14), 0.05)]
        moment = Moment(0.05, 1.0)
        plan, evicted = fit_clients(clients, GPU, moment)
        assert plan.holds
        assert {one.robot for one in plan.clients} | {one.robot for one in evicted} == {one.robot for one in clients}
        if evicted:
            assert not make_schedule([*plan.clients, evicted[-1]], GPU, moment).holds, (
                "nobody goes for whom there is room"
            )


@pytest.mark.parametrize("wrong", [
    {"bound": 0.0}, {"bound": -1}, {"bound": math.nan}, {"slope": -0.1}, {"slope": math.inf}, {"frame_interval": 0},
    {"up": -1}, {"down": math.nan}, {"batch": 0}, {"batch": 1.5}, {"bound": "0.1"},
])  # fmt: skip
def test_wishes_that_make_no_sense_are_refused(wrong: dict) -> None:
    with pytest.raises(BadInput):
        Wish(**{"bound": 0.1, "slope": 0.01, "frame_interval": 0.1, **wrong})
