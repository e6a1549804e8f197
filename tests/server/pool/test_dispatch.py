"""Batches under faults, in virtual time: every request is answered or refused once, and late stages go elsewhere."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from typing import Any, Callable, Dict, List, Sequence, Set, Tuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edge_offload.server.pool.columns import Cluster, Demand
from edge_offload.server.pool.dispatch import Dispatcher, Route, StageCall, queues, routes_of
from edge_offload.server.pool.links import LinkSchedule
from edge_offload.server.pool.plan import PlannedPipeline, PlannedStage, plan_most
from edge_offload.server.pool.simulate import simulate_load
from tests.server.pool.pool_nets import a_network

pytestmark = pytest.mark.unit
SLO_S = 0.6


class World:
    """Workers that serve in turn; a test freezes, ends or brings back nodes of them."""

    def __init__(
        self, seed: int, gpus: int = 3, load: float = 0.5, beyond: float = 0.0, slo: float = 0.0, stays: bool = False,
        together: int = 1,
    ) -> None:  # fmt: skip
        self.source = random.Random(seed)
        self.stays = stays
        self.beyond = beyond
        self.network = network = a_network(self.source, "net", ("H", "L"), 4, 3, 1)
        fastest = min(float(shares[1][:, 0].sum()) for shares in network.latency_s.values())
        self.slo_s = slo * fastest or SLO_S
        self.cluster = cluster = Cluster({"H": gpus, "L": gpus}, 1e9)
        self.plan = plan = plan_most([Demand(network, self.slo_s)], cluster, 0.4, 2)
        self.rate = plan.objective * load
        self.routes = routes_of(plan, {"net": network}, cluster)["net"]
        self.nodes = {
            (r, s, w): f"{stage.gpu}{w // together}"
            for r, route in enumerate(self.routes)
            for s, stage in enumerate(route.pipeline.stages)
            for w in range(stage.gpus)
        }
        self.dispatcher = Dispatcher(self.start, self.answer, self.refuse)
        self.now, self.waiting_for_ever = 0.0, 0
        self.events: List[Tuple[float, int, Callable[[], None]]] = []
        self.numbers = itertools.count()
        self.frozen: Set[str] = set()
        self.dead: Set[str] = set()
        self.free: Dict[Tuple[int, int, int], float] = {}
        self.frozen_calls: Dict[str, List[StageCall]] = {}
        self.outcome: Dict[int, List[str]] = {}
        self.arrived: Dict[int, float] = {}
        self.dispatcher.use_routes(self.routes, self.nodes, [])

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.events, (when, next(self.numbers), what))

    def where(self, call: StageCall) -> Tuple[int, int, int]:
        return self.routes.index(call.route), call.stage, call.worker

    def start(self, call: StageCall) -> None:
        node = self.nodes[self.where(call)]
        if node in self.dead:
            self.at(self.now + 0.017, lambda: self.dispatcher.fail_call(call.number, "it died", True, self.now))
        elif node in self.frozen:
            self.frozen_calls.setdefault(node, []).append(call)
        elif call.holder in self.dead | self.frozen:
            self.waiting_for_ever += 1  # it takes its tensors from there
        else:
            begin = max(self.now, self.free.get(self.where(call), 0.0))
            duration_s = call.compute_s * (1.0 + self.beyond * self.source.expovariate(1.0))
            self.free[self.where(call)] = begin + duration_s
            self.at(begin + duration_s, lambda: self.end(call))

    def end(self, call: StageCall) -> None:
        node = self.nodes[self.where(call)]
        if node in self.frozen:
            self.frozen_calls.setdefault(node, []).append(call)
        elif node in self.dead:
            self.dispatcher.fail_call(call.number, "it died", True, self.now)
        else:
            self.dispatcher.end_call(call.number, list(call.payload), self.now, self.stays)

    def thaw(self, node: str) -> None:
        self.frozen.discard(node)
        for call in self.frozen_calls.pop(node, []):
            self.at(self.now, lambda call=call: self.dispatcher.end_call(call.number, list(call.payload), self.now))

    def answer(self, requests: Tuple[int, ...], payload: Any) -> None:
        assert payload == list(requests), "the answer is of these requests"
        for request in requests:
            late = self.now > self.arrived[request] + self.slo_s + 1e-9
            self.outcome.setdefault(request, []).append("late" if late else "answered")

    def refuse(self, requests: Sequence[int], _why: str) -> None:
        for request in requests:
            self.outcome.setdefault(request, []).append("refused")

    def run(self, seconds: float) -> Dict[int, str]:
        when, number = 0.0, 0
        while when < seconds:
            when += self.source.expovariate(self.rate)
            number += 1
            self.at(when, lambda number=number: self.arrive(number))
        next_s = math.inf
        while self.events or next_s < math.inf:
            if self.events and self.events[0][0] <= next_s:
                self.now, _, what = heapq.heappop(self.events)
                what()
            else:
                self.now = max(self.now, next_s)
            next_s = self.dispatcher.step(self.now)
            assert next_s > self.now - 1e-9 or self.events
        assert set(self.outcome) == set(self.arrived)
        assert all(len(outcomes) == 1 for outcomes in self.outcome.values()), "once, and not more"
        return {request: answers[0] for request, answers in self.outcome.items()}

    def arrive(self, number: int) -> None:
        self.arrived[number] = self.now
        self.dispatcher.add_request(number, [number], self.now + self.slo_s)


@pytest.mark.parametrize(("beyond", "least"), [(0.0, -0.003), (0.01, -0.01)])
def test_as_many_are_in_time_as_in_the_simulator(beyond: float, least: float) -> None:
    more: List[float] = []
    divided = 0
    for seed in range(100, 116):
        world = World(seed, 4, 0.9, beyond, 5.0)
        world.dispatcher = Dispatcher(world.start, world.answer, world.refuse, 0.1 * world.slo_s * bool(beyond))
        world.dispatcher.use_routes(world.routes, world.nodes, [], links=True)
        divided += any(len(route.stages) > 1 for route in world.routes)
        answers = world.run(400.0 / world.rate)
        times = np.array([world.arrived[number] for number in sorted(answers)])
        nets = {"net": world.network}
        simulated = simulate_load(world.plan, nets, world.cluster, {"net": world.slo_s}, {"net": times}).attainment[
            "net"
        ]
        more.append(list(answers.values()).count("answered") / len(answers) - simulated)
    assert sum(more) / len(more) >= least
    assert min(more) >= -0.04
    assert divided >= 5


def test_without_faults_nearly_all_is_in_time() -> None:
    answers = World(1).run(20.0)
    assert list(answers.values()).count("answered") >= 0.99 * len(answers)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["freeze", "die", "blink"]))
@example(41387, "blink")  # a call that was made twice ends when what follows it has nobody
def test_every_request_has_one_outcome_whatever_happens(seed: int, fault: str) -> None:
    world = World(seed)
    names = sorted(set(world.nodes.values()))
    for node in world.source.sample(names, min(2, len(names) - 1)):
        when = world.source.uniform(0.5, 3.0)
        world.at(when, lambda node=node: (world.dead if fault == "die" else world.frozen).add(node))
        if fault != "die":
            world.at(when + (0.2 if fault == "blink" else 2.0), lambda node=node: world.thaw(node))
    answers = world.run(5.0)
    assert "answered" in answers.values()


def test_a_frozen_node_is_out_after_two_overdue_calls_until_it_answers() -> None:
    world = World(3, load=0.6)
    victim = world.nodes[0, 0, 0]
    world.at(1.0, lambda: world.frozen.add(victim))
    seen: List[float] = []
    for tick in range(100, 500):
        world.at(tick / 100, lambda: seen.append(world.now) if victim in world.dispatcher.members.excluded else None)
    world.at(3.0, lambda: world.thaw(victim))
    answers = world.run(5.0)
    assert seen, "it is taken out"
    assert seen[0] < 1.0 + 2 * SLO_S
    assert max(seen) <= 3.01, "and back when it answers"
    lost = [number for number, outcome in answers.items() if outcome != "answered"]
    before = [number for number in lost if not 0.8 < world.arrived[number] < 1.0 + 2 * SLO_S]
    assert len(before) <= 0.02 * len(answers)


def test_without_workers_requests_are_refused_at_once() -> None:
    world = World(4)
    world.dispatcher.use_routes(world.routes, world.nodes, list(world.nodes))
    answers = world.run(0.5)
    assert set(answers.values()) == {"refused"}


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("fault", ["freeze", "die"])
def test_what_is_under_way_makes_its_deadline_elsewhere_if_it_can(fault: str, stays: bool, together: int) -> None:
    made, could = 0, 0
    for seed in range(14):
        world = World(seed, 6 * together, load=0.4, stays=stays, together=together)
        victim = next((world.nodes[at] for at in world.nodes if at[2] == 0 and (*at[:2], together) in world.nodes), "")
        able: List[int] = []

        def harm(world: World = world, victim: str = victim, able: List[int] = able) -> None:
            (world.dead if fault == "die" else world.frozen).add(victim)
            for call in world.dispatcher.calls:
                if world.nodes[world.where(call)] != victim:
                    continue
                first = 0 if call.holder == victim else call.stage  # its tensors are gone, too: from the inputs
                size = len(call.job.requests)
                # a dead one is told of when its call would end, a frozen one is overdue later
                detected_s = max(call.due, world.now) + (0.017 if fault == "die" else max(0.05, call.compute_s / 2))
                if call.route.expected_end(first, size, detected_s, {victim}) <= call.job.deadline:
                    able += call.job.requests

        world.at(1.0, harm)
        answers = world.run(2.0)
        could += len(able)
        made += sum(answers[number] == "answered" for number in able)
        outcomes = world.dispatcher.outcomes
        stranded = list(outcomes.stranded)
        assert outcomes.moved == sum(each.requests for each in stranded) >= len(able), "who counts is told of each"
        assert outcomes.moved_in_time == sum(each.requests for each in stranded if each.answered <= each.deadline)
        assert all(each.noticed >= 1.0 and each.answered > each.noticed for each in stranded)
    assert could >= 10
    assert made >= 0.95 * could


class TwoStages:
    """One route, two workers a stage, each on a node of its own (A, B; C, D); a call takes a second."""

    def __init__(self) -> None:
        stages = [queues.StageQueue([2 * n, 2 * n + 1], [0.0, 1.0], 0.0) for n in range(2)]
        shape = tuple(PlannedStage(n, n + 1, "H", 1, 1, 2) for n in range(2))
        self.calls: List[StageCall] = []
        self.answered: List[int] = []
        self.refused: List[int] = []
        self.dispatcher = Dispatcher(
            lambda call: self.calls.append(call),
            lambda requests, _: self.answered.extend(requests),
            lambda r, _: self.refused.extend(r),
        )
        route = Route(PlannedPipeline("net", 2.0, 2.0, shape), stages, LinkSchedule(4))
        nodes = {(0, stage, worker): "ABCD"[2 * stage + worker] for stage in range(2) for worker in range(2)}
        self.dispatcher.use_routes([route], nodes, [])

    def list_started(self) -> List[Tuple[int, int, Any]]:
        """Stage, worker and tensors of the calls that have begun since."""
        started = [(call.stage, call.worker, call.payload) for call in self.calls]
        self.calls = []
        return started

    def of(self, request: int) -> StageCall:
        """The call of a request that has begun since."""
        (answers,) = [call for call in self.calls if call.job.requests == (request,)]
        return answers

    def passes_a_stage(self) -> StageCall:
        """A request whose first stage has ended on A: its call on C."""
        self.dispatcher.add_request(1, ["inputs"], 20.0)
        self.dispatcher.step(0.0)
        (first,) = self.calls
        assert self.list_started() == [(0, 0, ["inputs"])]
        self.dispatcher.end_call(first.number, "kept on A", 1.0, stays=True)
        self.dispatcher.step(1.0)
        (second,) = self.calls
        assert self.list_started() == [(1, 0, "kept on A")]
        return second


def test_a_batch_with_tensors_on_a_lost_node_restarts_from_its_inputs() -> None:
    world = TwoStages()
    world.passes_a_stage()
    world.dispatcher.lose_node("A", 1.1)
    world.dispatcher.step(1.1)
    (restarted,) = world.calls
    assert world.list_started() == [(0, 1, ["inputs"])]
    world.dispatcher.end_call(restarted.number, "kept on B", 2.1, stays=True)
    world.dispatcher.step(2.1)
    (last,) = world.calls
    world.dispatcher.end_call(last.number, "result", 3.1)
    world.dispatcher.step(3.1)
    assert (world.answered, world.refused) == ([1], [])


def test_with_a_suspected_node_the_inputs_are_retried_and_the_first_answer_counts() -> None:
    world = TwoStages()
    second = world.passes_a_stage()
    world.dispatcher.members.doubted.add("A")  # as another call's failure there tells
    world.dispatcher.step(2.6)  # it is overdue on C, which waits for A
    (restarted,) = world.calls
    assert world.list_started() == [(0, 1, ["inputs"])]
    world.dispatcher.end_call(second.number, "result", 2.7)
    world.dispatcher.end_call(restarted.number, "kept on B", 3.6)
    world.dispatcher.step(3.6)
    assert (world.answered, world.list_started()) == ([1], [])


@pytest.mark.parametrize(("answers", "clear"), [("small", False), ("stored", True), ("ping", True)])
def test_a_node_with_a_suspected_store_is_trusted_after_an_answer_that_reports_it_present(
    answers: str, clear: bool
) -> None:
    world = TwoStages()
    world.dispatcher.add_request(1, ["inputs"], 20.0)
    world.dispatcher.step(0.0)
    (call,) = world.calls
    world.dispatcher.members.doubted.add("A")
    assert world.dispatcher.members.unconfirmed == {"A"}
    if answers == "ping":
        world.dispatcher.members.record_answer("A")
    else:
        world.dispatcher.end_call(call.number, "result", 1.0, stays=answers == "stored")
    assert world.dispatcher.members.unconfirmed == (set() if clear else {"A"})


def test_tensors_that_the_driver_has_are_not_computed_twice() -> None:
    world = TwoStages()
    second = world.passes_a_stage()
    second.holder = second.job.holder = ""
    world.dispatcher.lose_node("A", 1.1)
    world.dispatcher.step(1.1)
    assert world.list_started() == []


@pytest.mark.parametrize(("free_s", "goes_to"), [(0.5, 2), (3.5, 1)])
def test_what_is_late_goes_to_another_node_than_the_one_that_is_late(free_s: float, goes_to: int) -> None:
    stages = [queues.StageQueue([0, 0, 1], [0.0, 1.0], 0.0)]
    calls: List[StageCall] = []
    dispatcher = Dispatcher(calls.append, lambda *_: None, lambda *_: None)
    route = Route(PlannedPipeline("net", 3.0, 1.0, (PlannedStage(0, 1, "H", 1, 1, 3),)), stages, LinkSchedule(2))
    stages[0].free_s[2] = free_s
    dispatcher.use_routes([route], {(0, 0, 0): "A", (0, 0, 1): "A", (0, 0, 2): "B"}, [])
    dispatcher.add_request(1, ["inputs"], 4.0)
    dispatcher.step(0.0)
    dispatcher.step(1.6)
    dispatcher.step(max(1.6, free_s))
    assert [call.worker for call in calls] == [0, goes_to], "A's other worker only where B is not in time"


@pytest.mark.parametrize(("deadline", "route"), [(5.5, 0), (4.5, 1)])
def test_a_batch_that_would_be_late_restarts_where_it_is_in_time(deadline: float, route: int) -> None:
    routes = [
        Route(
            PlannedPipeline(
                "net", 1.0, 1.0, tuple(PlannedStage(n, n + 1, "H", 1, 1, count) for n, count in enumerate(of))
            ),
            [queues.StageQueue([0] * count, [0.0, 1.0], 0.0) for count in of],
            LinkSchedule(1),
        )
        for of in ((2, 1), (1,))
    ]
    routes[0].stages[0].free_s[1] = 3.0
    calls: List[StageCall] = []
    dispatcher = Dispatcher(calls.append, lambda *_: None, lambda *_: None)
    dispatcher.use_routes(routes, {(0, 0, 0): "A", (0, 0, 1): "B", (0, 1, 0): "C", (1, 0, 0): "D"}, [])
    dispatcher.add_request(1, ["inputs"], deadline)
    dispatcher.step(0.0)
    dispatcher.fail_call(calls[0].number, "it died", True, 0.1)
    dispatcher.step(0.1)
    dispatcher.step(3.0)
    assert [routes.index(call.route) for call in calls] == [0, route]


def test_the_next_stage_avoids_a_node_that_was_late_meanwhile() -> None:
    world = TwoStages()
    world.dispatcher.add_request(1, ["inputs"], 20.0)
    world.dispatcher.step(0.0)
    (first,) = world.calls
    world.dispatcher.members.strikes["C"] = 1  # as a call there that is overdue tells
    world.list_started()
    world.dispatcher.end_call(first.number, "kept on A", 1.0)
    world.dispatcher.step(1.0)
    assert world.list_started() == [(1, 1, "kept on A")]


def test_a_next_stage_only_on_a_late_node_starts_on_it_and_from_the_inputs_once_late_twice() -> None:
    routes = [
        Route(
            PlannedPipeline("net", 1.0, 1.0, tuple(PlannedStage(n, n + 1, "H", 1, 1, 1) for n in range(2))),
            [queues.StageQueue([0], [0.0, 1.0], 0.0) for _ in range(2)],
            LinkSchedule(1),
        )
        for _ in range(2)
    ]
    calls: List[StageCall] = []
    answered: List[int] = []
    dispatcher = Dispatcher(calls.append, lambda requests, _: answered.extend(requests), lambda *_: None)
    dispatcher.use_routes(routes, {(0, 0, 0): "A", (0, 1, 0): "C", (1, 0, 0): "D", (1, 1, 0): "E"}, [])
    dispatcher.add_request(1, ["inputs"], 20.0)
    dispatcher.step(0.0)
    dispatcher.members.strikes["C"] = 1  # as a call there that is overdue tells
    dispatcher.end_call(calls[0].number, "kept on A", 1.0)
    dispatcher.step(1.0)
    dispatcher.step(2.5)
    assert [(routes.index(call.route), call.stage) for call in calls[1:]] == [(0, 1), (1, 0)]
    assert "C" in dispatcher.members.excluded
    dispatcher.end_call(calls[1].number, "result", 2.6)
    assert answered == [1], "whichever is first"
    dispatcher.end_call(calls[2].number, "another result", 3.5)
    dispatcher.step(3.5)
    assert (answered, len(calls)) == ([1], 3), "once"


def test_a_worker_silent_for_twice_the_time_is_removed_though_it_had_one_call() -> None:
    world = TwoStages()
    world.dispatcher.add_request(1, ["inputs"], 20.0)
    for now, out in ((0.0, False), (1.5, False), (1.9, False), (2.0, True)):
        world.dispatcher.step(now)
        assert ("A" in world.dispatcher.members.excluded) is out


def test_a_later_batch_on_a_lost_node_is_scheduled_elsewhere() -> None:
    world = TwoStages()
    world.dispatcher.add_request(1, ["inputs"], 20.0)
    world.dispatcher.step(0.0)
    (first,) = world.calls
    world.dispatcher.lose_node("C", 0.5)
    world.list_started()
    world.dispatcher.end_call(first.number, "kept on A", 1.3)
    world.dispatcher.step(1.3)
    (second,) = world.calls
    assert (second.worker, second.due) == (1, pytest.approx(2.3))
    world.dispatcher.end_call(second.number, "result", 2.3)
    assert world.answered == [1]


def test_the_earliest_deadline_goes_first_though_it_arrived_later() -> None:
    world = TwoStages()
    world.dispatcher.lose_node("C", 0.0)
    for request, deadline in enumerate((20.0, 20.0, 20.0, 8.0), 1):
        world.dispatcher.add_request(request, ["inputs"], deadline)
    world.dispatcher.step(0.0)
    for now in (1.0, 2.0):
        for call in [call for call in world.calls if call.stage == 0]:
            world.dispatcher.end_call(call.number, "small", now)
        world.dispatcher.step(now)
    later = [call.job.requests[0] for call in world.calls if call.stage == 1]
    assert later == [1, 2], "D computes one, and has another one's tensors"
    world.dispatcher.end_call(next(call.number for call in world.calls if call.stage == 1), "result", 2.0)
    world.dispatcher.step(2.0)
    assert [call.job.requests[0] for call in world.calls if call.stage == 1] == [1, 2, 4]


def test_what_waits_too_long_is_refused_when_that_is_certain() -> None:
    world = TwoStages()
    for request in range(1, 6):
        world.dispatcher.add_request(request, ["inputs"], 2.5)
    assert world.dispatcher.step(0.0) == pytest.approx(0.5, abs=1e-3)
    assert world.refused == []
    world.dispatcher.step(0.51)
    assert world.refused == [3, 4, 5]


def test_a_retried_call_precedes_those_with_more_time() -> None:
    world = TwoStages()
    for request, deadline in enumerate((4.0, 20.0, 20.0, 20.0), 1):
        world.dispatcher.add_request(request, ["inputs"], deadline)
    world.dispatcher.step(0.0)
    first, second = world.of(1), world.of(2)
    world.list_started()
    for call in (first, second):
        world.dispatcher.end_call(call.number, "small", 1.0)
    world.dispatcher.step(1.0)
    first = world.of(1)
    assert (first.worker, first.due) == (0, 2.0)
    world.list_started()
    world.dispatcher.fail_call(first.number, "it died", False, 1.5)
    world.dispatcher.step(1.5)
    retried = world.of(1)
    assert (retried.worker, retried.due) == (1, pytest.approx(3.0)), (
        "behind what is under way, before what has not come yet"
    )
