"""Turns in virtual time: one offload at a time, nobody is waited for in vain, nodes go on by themselves."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Dict, List, Optional, Set, Tuple

import pytest

from edge_offload.errors import BadInput
from edge_offload.manager.drop import DropCurve
from edge_offload.manager.tuning import RECENT_S
from edge_offload.manager.turn_giver import Rules, Turn, TurnGiver, rules_with
from edge_offload.manager.turn_taker import TurnTaker

STEP_S = 0.005


class Robot:
    """A manager and nodes, whose messages take up to 10 ms."""

    def __init__(self, latencies_s: Dict[str, float], seed: int = 0, rules: Optional[Rules] = None) -> None:
        self.now = 100.0
        self.chance = random.Random(seed)
        self.giver: Optional[TurnGiver] = TurnGiver(rules)
        self.latencies_s = latencies_s
        self.takers = {node: TurnTaker(node, self.now) for node in latencies_s}
        self.curves = {node: DropCurve(0.1, 0.1, 0.01) for node in latencies_s}
        self.deaf: Set[str] = set()
        self.silent: Set[str] = set()
        self.messages: List[Tuple[float, object]] = []
        self.under_way: Dict[str, Tuple[float, int, float]] = {}
        self.turns: List[str] = []
        self.most = 0
        self.last: Optional[Turn] = None

    def later(self, what: object) -> None:
        self.messages.append((self.now + self.chance.random() * 0.01, what))

    def step(self) -> None:
        self.now += STEP_S
        due = [message for when, message in self.messages if when <= self.now]
        self.messages = [message for message in self.messages if message[0] > self.now]
        for message in due:
            message()  # type: ignore[operator]
        if self.giver is not None:
            self.manage(self.giver)
        for node, taker in self.takers.items():
            self.work(node, taker)
        self.most = max(self.most, len(self.under_way))

    def manage(self, giver: TurnGiver) -> None:
        for node in self.takers:
            if node not in self.silent:
                giver.report_task(self.now, node, node.strip("/"), self.latencies_s[node], 0.1)
                giver.update_drops(self.now, node, self.curves[node], 0.1)
        turn = giver.give_turn(self.now)
        if turn is not None:
            self.last = turn
            for node, taker in self.takers.items():
                if node not in self.deaf:
                    key, tasks = (turn.number, id(giver)), giver.tasks
                    self.later(lambda t=taker, k=key, n=turn.node, s=tasks: t.record_turn(self.now, k, n, s))
        elif self.last is not None:
            for node, taker in self.takers.items():
                if node not in self.deaf:
                    taker.record_turn(self.now, (self.last.number, id(giver)), self.last.node, giver.tasks)

    def work(self, node: str, taker: TurnTaker) -> None:
        begun = self.under_way.get(node)
        if begun is not None and self.now >= begun[0] + self.latencies_s[node] and node not in self.silent:
            del self.under_way[node]
            self.report_turn(node, begun[1], True)
        if node in self.under_way or node in self.silent:
            return
        claim = taker.claim_turn(self.now, self.now)
        if claim is not None:
            self.under_way[node] = (self.now, claim.number, self.now)
            self.turns.append(node)
            self.report_turn(node, claim.number, False)

    def report_turn(self, node: str, number: int, ends: bool) -> None:
        stale_s = self.latencies_s[node]
        for taker in self.takers.values():
            self.later(lambda t=taker: t.record_other_frame(self.now, node, ends))
        giver = self.giver
        if giver is None:
            return
        if ends:
            self.later(lambda: giver.record_ended(self.now, number, node, stale_s))
        else:
            self.later(lambda: giver.record_taken(self.now, number, node))

    def run(self, seconds: float) -> List[str]:
        """The turns that were taken."""
        before = len(self.turns)
        for _ in range(round(seconds / STEP_S)):
            self.step()
        return self.turns[before:]


@pytest.mark.parametrize("seed", range(5))
def test_turns_follow_each_other_and_never_two_are_out(seed: int) -> None:
    robot = Robot({"/people": 0.3, "/scene": 0.4}, seed)
    turns = robot.run(20)
    assert robot.most == 1
    assert len(turns) > 45, "a turn is given as soon as the one before it has ended"
    assert 0.3 < turns.count("/people") / len(turns) < 0.7
    assert robot.giver is not None
    assert robot.giver.not_taken == robot.giver.never_ended == 0


def test_who_loses_more_gets_more_and_weights_count() -> None:
    robot = Robot({"/people": 0.3, "/scene": 0.3})
    robot.curves["/people"] = DropCurve(0.1, 0.0, 0.01)
    turns = robot.run(3 + 0.5)
    assert turns[2:].count("/scene") >= 0.7 * len(turns[2:]), "its drop is zero while the robot stands"
    robot.curves["/people"] = DropCurve(0.1, 0.1, 0.01)
    assert robot.giver is not None
    robot.giver.rules = rules_with(robot.giver.rules, weights={"people": 30.0})
    turns = robot.run(12)
    assert turns.count("/people") > 2 * turns.count("/scene")
    assert turns.count("/scene") > 0
    assert robot.last is not None
    assert "people 0." in robot.last.reason
    assert "times 30" in robot.last.reason
    assert "most is gained" in robot.last.reason


def test_with_several_in_flight_a_task_whose_frame_is_under_way_is_not_the_oldest() -> None:
    giver, now = TurnGiver(Rules(in_flight=2)), 100.0
    for node in ("/a", "/b"):
        giver.report_task(now, node, node.strip("/"), 0.3, 0.1)
    giver.record_ended(now, 0, "/b", 0.0)
    nodes = []
    for step in range(2):
        turn = giver.give_turn(now + 2 + step / 10)
        assert turn is not None
        giver.record_taken(now + 2 + step / 10, turn.number, turn.node)
        nodes.append(turn.node)
    assert nodes == ["/a", "/b"]


def test_a_turn_that_is_not_taken_goes_to_another_within_a_frame() -> None:
    robot = Robot({"/people": 0.3, "/scene": 0.3})
    robot.run(3)
    robot.deaf.add("/people")
    # it goes on saying that it wants turns, and hears of none
    robot.takers["/people"] = TurnTaker("/people", robot.now + 1e6)
    turns = robot.run(6)
    assert turns.count("/scene") > 10
    assert robot.giver is not None
    assert robot.giver.not_taken > 3
    assert robot.most == 1


def test_a_task_that_never_answers_holds_up_the_others_once() -> None:
    robot = Robot({"/people": 0.3, "/scene": 0.3})
    robot.run(3)
    while "/people" not in robot.under_way:
        robot.step()
    robot.silent.add("/people")
    turns = robot.run(10)
    assert turns.count("/scene") > 20
    assert robot.giver is not None
    assert robot.giver.never_ended == 1
    assert list(robot.giver.tasks) == ["/scene"], "it says nothing any more"


@pytest.mark.parametrize("seed", range(5))
def test_without_a_manager_nodes_take_turns_by_themselves(seed: int) -> None:
    robot = Robot({"/people": 0.3, "/scene": 0.4}, seed)
    robot.run(3)
    robot.giver = None
    robot.run(2.5)
    turns = robot.run(20)
    assert all("no manager" in taker.clock_reason for taker in robot.takers.values())
    assert robot.most == 1
    assert len(turns) > 25
    assert abs(turns.count("/people") - turns.count("/scene")) <= 2
    # it comes back, and counts from the beginning, while a frame is under way of which it knows nothing
    while not robot.under_way:
        robot.step()
    robot.giver = TurnGiver()
    robot.run(0.6)
    assert robot.most == 1
    assert not any(taker.clock_reason for taker in robot.takers.values())
    assert len(robot.run(10)) > 20


def test_a_single_node_never_waits() -> None:
    robot = Robot({"/people": 0.3})
    robot.giver = None
    assert robot.run(RECENT_S / 2) == [], "a manager may still come"
    robot.run(RECENT_S / 2)
    assert len(robot.run(10)) > 30


def test_one_node_has_all_the_turns() -> None:
    robot = Robot({"/people": 0.3})
    assert len(robot.run(10)) > 28
    assert robot.last is not None
    assert robot.last.reason == "no other task takes turns"


def test_four_tasks_called_alike_are_distinguished_and_named() -> None:
    turns: Counter[str] = Counter()
    giver, now = TurnGiver(), 0.0
    nodes = ["/one", "/two", "/three", "/four"]
    for _ in range(40):
        for node in nodes:
            giver.report_task(now, node, "people", 0.3)
        turn = giver.give_turn(now)
        assert turn is not None
        turns[turn.node] += 1
        giver.record_taken(now, turn.number, turn.node)
        now += 0.3
        giver.record_ended(now, turn.number, turn.node, 0.3)
    assert giver.shared_tasks == ["people"]
    assert min(turns[node] for node in nodes) >= 5, turns


def test_reports_of_nodes_are_bounded() -> None:
    giver = TurnGiver()
    for number in range(16):
        giver.report_task(0.0, f"/node{number}", "a", math.nan, 1e9)
    with pytest.raises(BadInput, match="more than 16 nodes"):
        giver.report_task(0.0, "/another", "a", 0.1)
    turn = giver.give_turn(0.1)
    assert turn is not None
    giver.record_taken(0.2, 99, turn.node)
    giver.record_ended(0.2, 99, turn.node, math.nan)
    giver.record_ended(0.2, turn.number, turn.node, -5.0)
    assert giver.give_turn(0.3) is not None


@pytest.mark.parametrize("weight", [math.nan, math.inf, -1.0, "1", True])
def test_weights_without_sense_are_refused(weight: object) -> None:
    with pytest.raises(BadInput, match="weight of task people"):
        rules_with(Rules(), weights={"people": weight})


def test_turns_take_little_memory_over_many() -> None:
    giver, now = TurnGiver(), 0.0
    for step in range(400):
        now += 0.3
        giver.report_task(now, "/a", "a", 0.3, 0.1)
        giver.report_task(now, "/b", "b", 0.3, 0.1)
        turn = giver.give_turn(now)
        assert turn is not None, step
        giver.record_taken(now, turn.number, turn.node)
        giver.record_ended(now + 0.3, turn.number, turn.node, 0.3)
    assert len(giver.__dict__["_open"]) == 0
    assert turn.number == 400


def test_a_new_manager_gives_no_turn_alongside_an_unregistered_node() -> None:
    taker = TurnTaker("/people", 0.0)
    taker.lose_manager("the manager is gone")
    taker.record_other_frame(10.0, "/scene", ends=False)
    taker.record_turn(10.05, (1, 7), "/people", {"/people": 0.1})
    assert taker.claim_turn(10.06, 10.06) is None
    taker.record_other_frame(10.2, "/scene", ends=True)
    assert taker.claim_turn(10.21, 10.21) is not None


def test_what_is_under_way_is_waited_for_though_its_task_offloads_nothing_more() -> None:
    giver, now = TurnGiver(), 100.0
    for node in ("/a", "/b"):
        giver.report_task(now, node, node.strip("/"), 0.2, 0.1)
    turn = giver.give_turn(now)
    assert turn is not None
    giver.record_taken(now, turn.number, turn.node)
    giver.remove_node(turn.node)
    assert giver.give_turn(now + 0.1) is None, "two would be outstanding"
    giver.record_ended(now + 0.2, turn.number, turn.node, 0.2)
    after = giver.give_turn(now + 0.2)
    assert after is not None
    assert after.node != turn.node
    # a turn that was not taken goes with its task
    giver.remove_node(after.node)
    giver.report_task(now + 0.3, turn.node, "a", 0.2, 0.1)
    assert giver.give_turn(now + 0.3) is not None
