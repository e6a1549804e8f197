"""Promises over time: kept, refused, given back, and taken when they cannot be kept any more."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import List

import pytest

from edge_offload.errors import BadInput, Refused
from edge_offload.server.promises.board import FIXED_S, PERIOD_S, Board
from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.promises.robot import Rules
from edge_offload.server.promises.settings import Wish
from tests.server.promises.virtual_fleet import VirtualRobot, drive

GPU = Latencies((0.0125, 0.0185, 0.0245, 0.031, 0.0375, 0.044, 0.051, 0.058))


def a_robot(number: int, bound: float, slope: float = 0.006, jitter_s: float = 0.0, batch: int = 8) -> VirtualRobot:
    wish = Wish(bound, slope, 1 / 30, 0.012, 0.006, batch)
    return VirtualRobot(f"robot{number}", wish, 0.004 * (number % 8), lambda _: slope, jitter_s)


def joined(board: Board, robots: List[VirtualRobot], now: float = 0.0) -> List[VirtualRobot]:
    """Those that the board makes a promise to."""
    admitted = []
    for robot in robots:
        try:
            frame = max(0, robot.frame(now))
            board.admit_robot(now, robot.name, robot.wish, frame, robot.captured(frame) + robot.wish.up)
            admitted.append(robot)
        except Refused:
            pass
    return admitted


@pytest.mark.parametrize(("bound", "seed"), [(0.02, 1), (0.04, 2), (0.08, 3)])
def test_promises_hold_for_frames_counted_one_by_one(bound: float, seed: int) -> None:
    board = Board(GPU)
    robots = joined(board, [a_robot(number, bound) for number in range(64)])
    counts = drive(board, robots, 30.0, random.Random(seed))
    assert not counts["evicted"]
    assert counts["late"] == 0
    for robot in robots:
        first, last = 90, robot.frame(29.0)
        drop = robot.mean_drop(first, last) - robot.reference(GPU, first, last)
        assert drop <= bound
    assert counts["busy_s"] / 30 > 0.75, "a full board uses its device"


def test_fewer_robots_are_planned_for_noisy_results_and_fewest_at_a_bound_below_the_noise() -> None:
    shares = []
    for bound, noise, cautious in ((0.05, 0.0, 1.0), (0.05, 0.06, 1.0), (0.02, 0.06, 1.0), (0.02, 0.06, 0.0)):
        board = Board(GPU, rules=Rules(caution=cautious))
        wish = Wish(bound, 0.002, 0.1, 0.012, 0.006, 1, noise=noise)
        for number in range(200):  # as many as there is room for, so that bounds are used up
            try:
                board.admit_robot(0.0, str(number), wish, 3, 0.0)
            except Refused:
                break
        board.update_plan(0.0)
        shares.append(max(board.drops.values()) / bound)
    assert 0.9 < shares[0] <= 0.96 + 1e-9
    assert 0.7 < shares[1] <= 0.77
    assert 0.4 < shares[2] <= 0.52
    assert 0.9 < shares[3] <= 1.0 + 1e-9


def test_looser_promises_hold_more_robots() -> None:
    counts = [len(joined(Board(GPU), [a_robot(number, bound) for number in range(64)])) for bound in (0.02, 0.04, 0.08)]
    assert counts[0] < counts[1] < counts[2]


def test_uneven_links_make_few_members_late() -> None:
    board = Board(GPU)
    robots = joined(board, [a_robot(number, 0.05, jitter_s=0.01) for number in range(64)])
    counts = drive(board, robots, 20.0, random.Random(4))
    assert counts["late"] <= 0.05 * counts["members"]
    admitted = [robot for robot in robots if board.wish_of(robot.name) is not None]
    assert len(admitted) == len(robots) - counts["evicted"] >= 0.9 * len(robots), "they said nothing of their jitter"
    for robot in admitted:
        robot.results.sort()
        assert robot.results[-1][0] >= robot.frame(19.0), "nobody is forgotten"


def test_a_refusal_names_a_feasible_promise() -> None:
    board = Board(GPU)
    joined(board, [a_robot(number, 0.02) for number in range(64)])
    with pytest.raises(
        Refused, match=r"full: \d+ robots have promises, and 0.001 would break one; .* could be promised"
    ):
        board.admit_robot(0.0, "late", Wish(0.001, 0.006, 1 / 30, 0.012, 0.006, 8), 0, 0.0)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_an_offered_promise_is_granted_on_request(noise: float) -> None:
    board = Board(GPU)
    joined(board, [a_robot(number, 0.02) for number in range(64)])
    wish = Wish(0.0001, 0.006, 1 / 30, 0.012, 0.006, 8, noise=noise)
    with pytest.raises(Refused) as refusal:
        board.admit_robot(0.0, "late", wish, 0, 0.0)
    (offer,) = re.findall(r"one; (\S+) could be promised now", str(refusal.value))
    board.admit_robot(0.0, "late", replace(wish, bound=float(offer)), 0, 0.0)


def test_a_robot_that_leaves_makes_room() -> None:
    board = Board(GPU)
    admitted = joined(board, [a_robot(number, 0.02) for number in range(64)])
    board.update_plan(0.0)
    late = a_robot(99, 0.02)
    assert not joined(board, [late])
    board.remove_robot(admitted[0].name)
    assert not board.slots_of(admitted[0].name)
    board.update_plan(0.2)
    assert joined(board, [late], 0.2)


def test_bounds_reported_to_robots_persist_when_the_schedule_is_remade() -> None:
    board = Board(GPU)
    robots = joined(board, [a_robot(number, 0.05) for number in range(12)])
    board.update_plan(0.0)
    for step in range(1, 20):
        now = 0.2 * step
        before = {robot.name: [one for one in board.slots_of(robot.name) if one[1] < now + FIXED_S] for robot in robots}
        board.update_plan(now)
        for robot in robots:
            assert board.slots_of(robot.name)[: len(before[robot.name])] == before[robot.name]
            frames = [frame for frame, _ in board.slots_of(robot.name)]
            assert frames == sorted(set(frames))
        while board.next_batch() is not None and board.next_batch().start < now:  # type: ignore[union-attr]
            board.start_next_batch(now)


def test_harder_scenes_cost_promises_and_that_is_reported() -> None:
    board = Board(GPU)
    robots = joined(board, [a_robot(number, 0.02) for number in range(64)])
    before = len(board)
    for robot in robots:
        board.update_wish(robot.name, Wish(0.9, 0.03, 1 / 30, 0.012, 0.006, 8))
    assert board.wish_of(robots[0].name).bound == 0.02, "a robot does not change what it was promised"  # type: ignore[union-attr]
    evicted = board.update_plan(1.0)
    assert len(board) == before - len(evicted) < before
    assert all("cannot be kept beside" in why for _, why in evicted)
    assert all(drop <= 0.02 + 1e-12 for drop in board.drops.values())


def test_a_temporary_absence_of_the_device_costs_no_promise() -> None:
    board = Board(GPU)
    robots = joined(board, [a_robot(number, 0.02) for number in range(64)])
    drive(board, robots, 3.0, random.Random(5))
    assert len(robots) > 12
    before = len(board)
    # the device was away for a while
    counts = drive(board, robots, 12.0, random.Random(6), begin_s=3.6)
    assert len(board) == before
    assert not counts["evicted"]
    for robot in robots:
        first, last = robot.frame(7.0), robot.frame(11.5)
        assert robot.mean_drop(first, last) - robot.reference(GPU, first, last) <= 0.02, "and it is over soon"


def test_robots_that_cannot_be_served_in_the_long_run_are_evicted_one_by_one() -> None:
    board = Board(GPU)
    robots = joined(board, [a_robot(number, 0.02) for number in range(64)])
    before, now = len(board), 0.0
    evicted = []
    while now < 6.0:
        for robot in robots:
            board.update_wish(robot.name, Wish(0.9, 0.0072, 1 / 30, 0.012, 0.006, 8))  # a fifth more than at first
        evicted.append(len(board.update_plan(now)))
        now += PERIOD_S
        while board.next_batch() is not None and board.next_batch().start < now:  # type: ignore[union-attr]
            board.start_next_batch(now)
    assert not any(evicted[:5]), "not at once"
    assert 0.6 * before < len(board) < before


@pytest.mark.parametrize("longer", [1.0, 1.2])
def test_batch_times_beyond_the_table_are_reserved(longer: float) -> None:
    board = Board(GPU)
    joined(board, [a_robot(number, 0.02) for number in range(64)])
    now = replan_at = 0.0
    while now < 12.0:
        if now >= replan_at:
            board.update_plan(now)
            replan_at += PERIOD_S
        batch = board.next_batch()
        if batch is None or batch.start > replan_at:
            now = replan_at
            continue
        now = max(now, batch.start)
        board.start_next_batch(now)
        done = now + longer * GPU.batch_latency(len(batch.slots))
        for turn in batch.slots:
            board.record_result(turn.robot, turn.frame, done)
        now = done
    planned = board.list_batches()
    shares = [(later.start - one.start) / GPU.batch_latency(len(one.slots)) for one, later in zip(planned, planned[1:])]
    assert min(shares[:-1]) == pytest.approx(1.03 * longer, abs=0.03)


def test_a_robot_counts_once_and_a_clock_that_steps_is_followed() -> None:
    board = Board(GPU)
    robot = a_robot(0, 0.05)
    assert joined(board, [robot])
    with pytest.raises(BadInput, match="has a promise already"):
        board.admit_robot(0.0, robot.name, robot.wish, 0, 0.0)
    board.record_arrival(robot.name, 1000, 5.0)
    board.update_plan(5.0)
    assert board.slots_of(robot.name)[0][0] > 1000
    board.record_arrival("nobody", 1, 1.0)
    board.remove_robot("nobody")
