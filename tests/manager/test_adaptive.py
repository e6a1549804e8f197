"""The bars for choosing per frame, over traces in virtual time: they hold for the policy, or the product is worse."""

import json
import math

import pytest

from edge_offload.bench.adaptive import compare, load_workload, save_workload, with_outages
from edge_offload.bench.closed_loop import ModeCost, VirtualRobot
from edge_offload.errors import BadInput
from edge_offload.link.trace import Trace, named_link
from edge_offload.manager.policy import FixedPolicy, LatencyPolicy
from edge_offload.modes import Mode

MB = 1e6
# a network that takes 87 ms on the robot and 5 ms on the server, and an input that takes 61 ms at 10 MB/s
EVEN = [
    ModeCost(Mode.LOCAL, [0.085, 0.087, 0.089]),
    ModeCost(Mode.SERVER, [0.003], [0.0044, 0.006], [607_000], 4500),
]
INDOORS = named_link("wifi_indoors").up


@pytest.fixture(scope="module")
def indoors():
    return {row["policy"]: row for row in compare(EVEN, INDOORS, 60.0, 2.6e-3)}


@pytest.fixture(scope="module")
def interrupted():
    return {row["policy"]: row for row in compare(EVEN, with_outages(INDOORS), 60.0, 2.6e-3)}


def mean(row):
    return row["latency_s"]["mean"]


def test_auto_is_near_the_oracle_and_no_worse_than_the_best_fixed_mode(indoors):
    assert mean(indoors["auto"]) <= 1.10 * mean(indoors["oracle"])
    assert mean(indoors["auto"]) <= 1.02 * min(mean(indoors["local"]), mean(indoors["server"]))


def test_with_outages_auto_is_better_than_every_fixed_mode(interrupted):
    assert mean(interrupted["auto"]) < min(mean(interrupted["local"]), mean(interrupted["server"]))


def test_it_neither_stays_local_nor_hedges_all_the_time(indoors):
    assert indoors["auto"]["remote_when_faster"] >= 0.95
    assert indoors["auto"]["hedge_rate"] <= 0.05
    assert indoors["auto"]["switches"] < 0.05 * indoors["auto"]["frames"]


def test_the_oracle_is_never_beaten(indoors, interrupted):
    for rows in (indoors, interrupted):
        assert all(row["regret"] >= -1e-3 for row in rows.values())


def test_no_frame_waits_for_a_dead_link():
    trace = Trace((0.0, 5.0), (10 * MB, 0.0), 60.0)
    robot = VirtualRobot(EVEN, trace, LatencyPolicy())
    robot.run(50.0)
    ended, late = 0.0, 0
    for latency in robot.result.latencies_s:
        began, ended = ended, ended + latency
        if began > 5.0:
            late += latency > 0.089 + 0.02
    assert late <= 1, "one frame finds out, the others do not wait"
    assert robot.result.modes[-1] is Mode.LOCAL


def test_offloading_comes_back_when_the_link_does():
    trace = Trace((0.0, 5.0, 15.0), (20 * MB, 0.0, 20 * MB), 60.0)
    for policy in (LatencyPolicy(), FixedPolicy(Mode.SERVER)):
        robot = VirtualRobot(EVEN, trace, policy)
        robot.run(30.0)
        ended, back = 0.0, math.inf
        for mode, latency in zip(robot.result.modes, robot.result.latencies_s):
            ended += latency
            if mode is Mode.SERVER and ended > 15.0:
                back = min(back, ended)
        assert back < 15.0 + 2.0


def test_a_workload_survives_its_file_and_a_bad_one_is_refused(tmp_path):
    path = tmp_path / "costs.json"
    save_workload(path, EVEN)
    again = tmp_path / "again.json"
    save_workload(again, load_workload(path))
    assert again.read_text() == path.read_text()
    path.write_text(json.dumps([{"mode": "server", "robot_s": [1]}]))
    with pytest.raises(BadInput, match="needs the mode local"):
        load_workload(path)
    path.write_text("{")
    with pytest.raises(BadInput, match="is no workload"):
        load_workload(path)
