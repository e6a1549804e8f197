"""The bars for choosing per frame, over traces in virtual time: they hold for the policy, or the product is worse."""

import json
import math
import statistics

import pytest

from edge_offload import records
from edge_offload.cli import main
from edge_offload.errors import BadInput
from edge_offload.link.estimate.estimator import Transfer
from edge_offload.manager.policy import FixedPolicy, LatencyPolicy
from edge_offload.mode import Mode
from edge_offload_benchmarks.experiments.adaptive import compare_policies, dead_times, judge_bars, with_outages
from edge_offload_benchmarks.simulation.closed_loop import ModeCost, VirtualRobot
from edge_offload_benchmarks.simulation.workload import load_workload, replay_cost, save_workload
from edge_offload_research.emulate.trace import Trace, named_link

MB = 1e6
# a network that takes 87 ms on the robot and 5 ms on the server, and an input that takes 61 ms at 10 MB/s
EVEN = [
    ModeCost(Mode.LOCAL, [0.085, 0.087, 0.089]),
    ModeCost(Mode.SERVER, [0.003], [0.0044, 0.006], [607_000], 4500),
]
INDOORS = named_link("wifi_indoors").up


@pytest.fixture(scope="module")
def indoors():
    return {row["policy"]: row for row in compare_policies(EVEN, INDOORS, 60.0, 2.6e-3)}


@pytest.fixture(scope="module")
def interrupted():
    return {row["policy"]: row for row in compare_policies(EVEN, with_outages(INDOORS), 60.0, 2.6e-3)}


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


@pytest.mark.parametrize(("share", "chosen"), [(1.0, Mode.REPLAY), (1.5, Mode.SERVER)])
def test_server_stands_in_for_replay_only_where_that_is_slower(share, chosen):
    """Two modes of 0.1 s, and replay of as much or more, on a link that takes no time."""
    costs_of_replay = {"robot_s": [0.01], "server_s": [share * 0.1 - 0.01], "bytes_up": [600], "bytes_down": [400]}
    server = ModeCost(Mode.SERVER, [0.01], [0.09], [1000], 1000)
    costs = [ModeCost(Mode.LOCAL, [0.4]), server, replay_cost(costs_of_replay, 1.0, ())]
    robot = VirtualRobot(costs, Trace((0.0,), (10 * MB,), 60.0), LatencyPolicy())
    modes = robot.run(30.0).modes[10:]
    assert modes.count(chosen) >= 0.95 * len(modes)


def test_a_slow_robot_is_slow_in_the_robots_part_of_replay():
    measured = {"robot_s": [0.01, 0.02], "server_s": [0.03], "bytes_up": [5], "bytes_down": [7, 9]}
    slow, fast = replay_cost(measured, 4.0, [0.001]), replay_cost(measured, 1.0, [0.001])
    assert slow.robot_s == [0.04, 0.08]
    assert (slow.server_s, slow.bytes_up, slow.bytes_down) == (fast.server_s, fast.bytes_up, fast.bytes_down)


def test_no_frame_waits_for_a_dead_link():
    trace = Trace((0.0, 5.0), (10 * MB, 0.0), 60.0)
    robot = VirtualRobot(EVEN, trace, LatencyPolicy())
    robot.run(50.0)
    ended, late = 0.0, 0
    for latency in robot.result.latencies_s:
        started_at, ended = ended, ended + latency
        if started_at > 5.0:
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


class _Plans:
    """Two plans: one that sends everything and is fast on a good link, one that sends little and computes more here."""

    def choose(self, bandwidth):
        return 0 if bandwidth >= 5 * MB else 1

    def predicted_s(self, bandwidth):
        return self._seconds(self.choose(bandwidth), bandwidth)

    def all_plans(self):
        return [0, 1]

    def is_local(self, number):
        return False

    def is_remote(self, number):
        return False

    @staticmethod
    def _size(number):
        return (400_000, 60_000)[number]

    def _seconds(self, number, bandwidth):
        return (0.010, 0.050)[number] + self._size(number) / bandwidth + 0.004

    def run(self, number, link, sent_s, chance):
        compute_s = (0.010, 0.050)[number]
        begin = max(sent_s + compute_s, link.free_up_s)
        up = link.trace.finish_time(begin, self._size(number)) + link.rtt_s / 2
        return Transfer(sent_s, begin, up, up, up + link.rtt_s / 2, 1e-4, self._size(number), 1000), compute_s


class _FixedPlan(_Plans):
    def __init__(self, number):
        self._number = number

    def choose(self, bandwidth):
        return self._number


def test_with_plans_auto_uses_the_one_for_the_bandwidth_of_now():
    trace = Trace((0.0, 20.0), (20 * MB, 1.2 * MB), 40.0)

    def mean_of(policy, planned):
        return statistics.mean(VirtualRobot(EVEN[:1], trace, policy, planned=planned).run(80.0).latencies_s)

    auto = mean_of(LatencyPolicy(), _Plans())
    assert auto < mean_of(FixedPolicy(Mode.LOCAL), None)
    for number in (0, 1):
        assert auto < mean_of(FixedPolicy(Mode.SPLIT), _FixedPlan(number)), f"plan {number} held"


def row(policy, mean_s, **more):
    made = {"policy": policy, "latency_s": {"mean": mean_s, "p50": mean_s, "p99": mean_s}, "hedge_rate": 0.01,
            "remote_when_faster": 0.99, "outage_p99_s": mean_s,
            "outage_waited": 1}  # fmt: skip
    return {**made, **more}


@pytest.mark.parametrize(
    ("auto_row", "broken"),
    [
        (row("auto", 0.050), set()),
        (row("auto", 0.0525), {"2%", "every plan"}),
        (row("auto", 0.060), {"10%", "2%", "every plan"}),
        (row("auto", 0.050, hedge_rate=0.2), {"hedged"}),
        (row("auto", 0.050, remote_when_faster=0.3), {"faster remotely"}),
    ],
)
def test_the_bars_name_what_does_not_hold(auto_row, broken):
    rows = [
        auto_row,
        row("local", 0.09),
        row("server", 0.0515),
        row("plan 0: server-only", 0.0512),
        row("oracle", 0.049),
    ]
    missed = [bar["name"] for bar in judge_bars(rows, "auto", outages=False) if not bar["met"]]
    assert len(missed) == len(broken)
    assert all(any(part in name for name in missed) for part in broken)


def test_the_bars_of_a_trace_with_outages():
    local = row("local", 0.09)
    for auto_row, met in (
        (row("auto", 0.05, outage_p99_s=0.10), [True, True, True, True]),
        (row("auto", 0.05, outage_p99_s=0.12), [True, True, False, True]),
        (row("auto", 0.05, outage_waited=2), [True, False, True, True]),
        (row("auto", 0.06), [False, True, True, True]),
    ):
        rows = [auto_row, local, row("server", 0.055), row("oracle", 0.045)]
        assert [bar["met"] for bar in judge_bars(rows, "auto", outages=True)] == met


def test_strictly_below_is_claimed_only_beyond_chance():
    def judged(seed_means, other):
        rows = [{**row("auto", statistics.mean(seed_means)), "seeds": len(seed_means), "seed_means_s": seed_means},
                {**row("local", 0.5), "seed_means_s": [0.5]},
                {**row("split", statistics.mean(other)), "seed_means_s": other}, row("oracle", 0.04)]  # fmt: skip
        return judge_bars(rows, "auto", outages=True)[0]

    # the same mean difference, with pairs that agree and pairs that do not
    assert judged([0.099, 0.100, 0.101, 0.102], [0.100, 0.101, 0.102, 0.1031])["met"]
    unsure = judged([0.099, 0.100, 0.101, 0.102], [0.106, 0.095, 0.108, 0.0971])
    assert not unsure["met"]
    assert "over 4 seeds" in unsure["value"]


def test_frames_that_begin_in_an_outage_are_attributed_to_it():
    assert dead_times(Trace((0.0, 5.0, 9.0), (1e6, 0.0, 1e6), 20.0)) == [(5.0, 9.0)]
    assert dead_times(Trace((0.0, 5.0, 5.5), (1e6, 0.0, 1e6), 20.0)) == [], "half a second is a stall"
    assert dead_times(Trace((0.0, 5.0), (1e6, 0.0), 20.0)) == [(5.0, 20.0)]


def test_the_command_writes_records_of_its_schema(tmp_path, capsys):
    path, out = tmp_path / "costs.json", tmp_path / "adaptive.json"
    save_workload(path, EVEN)
    command = ["bench", "adaptive", "--workload", str(path), "--outages", "--seconds", "31", "--json", str(out)]
    assert main(command) == 0
    record = json.loads(out.read_text())
    records.validate("adaptive_bench", record)
    assert [item["trace"] for item in record["experiments"]] == ["wifi_indoors", "wifi_indoors with outages"]
    printed = capsys.readouterr().out
    assert all(bar["name"] in printed for item in record["experiments"] for bar in item["bars"])


def test_a_workload_survives_its_file_and_a_bad_one_is_refused(tmp_path):
    path = tmp_path / "costs.json"
    save_workload(path, EVEN)
    copy = tmp_path / "again.json"
    save_workload(copy, load_workload(path))
    assert copy.read_text() == path.read_text()
    path.write_text(json.dumps([{"mode": "server", "robot_s": [1]}]))
    with pytest.raises(BadInput, match="needs the mode local"):
        load_workload(path)
    path.write_text("{")
    with pytest.raises(BadInput, match="is no workload"):
        load_workload(path)


def test_several_seeds_are_pooled_and_change_nothing_else():
    one, other = (compare_policies(EVEN, INDOORS, 20.0, 2.6e-3, seed=seed) for seed in (0, 1))
    both = {row["policy"]: row for row in compare_policies(EVEN, INDOORS, 20.0, 2.6e-3, seeds=2)}
    for name in ("auto", "local", "server"):
        rows = [next(row for row in rows if row["policy"] == name) for rows in (one, other)]
        assert both[name]["seeds"] == 2
        assert both[name]["frames"] == sum(row["frames"] for row in rows)
        total_s = sum(row["frames"] * row["latency_s"]["mean"] for row in rows)
        assert both[name]["latency_s"]["mean"] == pytest.approx(total_s / both[name]["frames"])
    assert both["oracle"]["seeds"] == 1
