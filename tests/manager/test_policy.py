"""What the manager decides: the faster mode, no flapping, deadlines, energy, obstacles, and a reason in words."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_offload.errors import BadInput
from edge_offload.link.estimate.estimator import LinkReading
from edge_offload.manager.forecast import Forecast, Forecaster
from edge_offload.manager.policy import (
    Decision,
    EnergyPolicy,
    FixedPolicy,
    Knobs,
    LatencyPolicy,
    Manager,
    Situation,
    chooses,
    make_policy,
)
from edge_offload.mode import Mode
from edge_offload.power.states import StatePowers
from edge_offload.timing import InferenceReport
from edge_offload_benchmarks.simulation.oracle import OraclePolicy

MB = 1e6


def forecasts(local, server, unavailable_reason="", error=0.001):
    """Situation from (latency, energy) of local and server."""
    made = {
        Mode.LOCAL: Forecast(Mode.LOCAL, local[0], error, local[1]),
        Mode.SERVER: Forecast(Mode.SERVER, server[0], error, server[1], unavailable_reason),
    }
    return made


def decide(policy, made, deadline=None, now=0.0, **more):
    return policy.decide(Situation(now, made, deadline, **more))


def test_the_fastest_mode_is_chosen_and_the_reason_names_it():
    decision = decide(LatencyPolicy(), forecasts((0.4, 5.0), (0.1, 0.5)))
    assert decision.mode is Mode.SERVER
    assert decision.policy == "latency"
    assert "server 100±1 ms" in decision.reason
    assert "local 400±1 ms 5.00 J" in decision.reason


def test_an_obstacle_is_obeyed_at_once_and_named():
    policy = LatencyPolicy()
    assert decide(policy, forecasts((0.4, 5), (0.1, 1))).mode is Mode.SERVER
    decision = decide(policy, forecasts((0.4, 5), (0.1, 1), unavailable_reason="no server: connection refused"))
    assert decision.mode is Mode.LOCAL
    assert "connection refused" in decision.reason
    assert decide(policy, forecasts((0.4, 5), (0.1, 1))).mode is Mode.SERVER, "and it comes back as soon as it can"


def test_two_modes_that_are_nearly_equal_do_not_alternate():
    policy, chance = LatencyPolicy(), random.Random(1)
    chosen = []
    for _ in range(500):
        jitter = chance.uniform(0.97, 1.03)
        chosen.append(decide(policy, forecasts((0.1, 1), (0.1 * jitter, 1))).mode)
    assert sum(a is not b for a, b in zip(chosen, chosen[1:])) <= 1


def test_a_mode_is_replaced_only_when_worse_by_the_margin_beyond_doubt():
    for better, standard_error_s, expected in (
        (0.098, 0.0, Mode.SERVER),
        (0.096, 0.0, Mode.LOCAL),
        (0.09, 0.006, Mode.SERVER),
    ):
        policy = LatencyPolicy(Knobs(margin=0.03))
        made = forecasts((0.3, 1), (0.1, 1))
        assert decide(policy, made).mode is Mode.SERVER
        made[Mode.LOCAL] = Forecast(Mode.LOCAL, better, 0.001, 1.0, standard_error_s=standard_error_s)
        assert decide(policy, made).mode is expected


def test_a_rejected_mode_is_readmitted_when_it_is_no_worse_by_the_margin():
    policy = LatencyPolicy()
    assert decide(policy, three_modes(0.2, 0.1)).mode is Mode.SPLIT
    assert decide(policy, three_modes(0.104, 0.1, standard_error_s=0.004)).mode is Mode.SPLIT, (
        "it is expected to be 4 % worse"
    )
    assert decide(policy, three_modes(0.102, 0.1, standard_error_s=0.004)).mode is Mode.REPLAY
    assert decide(policy, three_modes(0.104, 0.1, standard_error_s=0.004)).mode is Mode.REPLAY, (
        "and is not left for so little"
    )


def test_chance_switches_nothing_between_two_bounds():
    policy, chance = LatencyPolicy(), random.Random(3)
    chosen = [
        decide(
            policy, three_modes(0.1 * chance.gauss(1.0, 0.02), 0.1 * chance.gauss(0.98, 0.02), standard_error_s=0.003)
        ).mode
        for _ in range(2000)
    ]
    assert sum(a is not b for a, b in zip(chosen, chosen[1:])) <= 40
    assert chosen.count(Mode.REPLAY) > 1700


def three(local, server, split, unavailable_reason="", standard_error_s=0.0):
    """Situation of latencies, with an obstacle to everything remote."""
    return {
        Mode.LOCAL: Forecast(Mode.LOCAL, local, 0.001, 1.0),
        Mode.SERVER: Forecast(Mode.SERVER, server, 0.001, 1.0, unavailable_reason),
        Mode.SPLIT: Forecast(Mode.SPLIT, split, 0.001, 1.0, unavailable_reason, standard_error_s=standard_error_s),
    }


def test_an_outage_does_not_change_estimates_of_the_remote_modes():
    for server, expected in ((0.098, Mode.SPLIT), (0.08, Mode.SERVER)):
        policy = LatencyPolicy()
        assert decide(policy, three(0.4, 0.11, 0.1)).mode is Mode.SPLIT
        assert decide(policy, three(0.4, 0.11, 0.1, "no server")).mode is Mode.LOCAL
        assert decide(policy, three(0.4, server, 0.1)).mode is expected


def three_modes(replay, split, server=0.3, standard_error_s=0.0, energy=(0.5, 0.6)):
    """Situation of latencies of the remote modes, with the same doubt of each."""
    made = {Mode.LOCAL: Forecast(Mode.LOCAL, 0.9, 0.001, 9.0)}
    for mode, seconds, joules in (
        (Mode.SERVER, server, 0.5), (Mode.REPLAY, replay, energy[0]), (Mode.SPLIT, split, energy[1])
    ):  # fmt: skip
        made[mode] = Forecast(mode, seconds, 0.001, joules, standard_error_s=standard_error_s)
    return made


def test_within_the_doubt_the_order_is_replay_split_server_local():
    assert decide(LatencyPolicy(), three_modes(0.1, 0.098)).mode is Mode.REPLAY
    assert decide(LatencyPolicy(), three_modes(0.12, 0.1, standard_error_s=0.01)).mode is Mode.REPLAY
    assert decide(LatencyPolicy(), three_modes(0.12, 0.1, standard_error_s=0.003)).mode is Mode.SPLIT
    assert decide(LatencyPolicy(), three_modes(0.3, 0.101, server=0.1)).mode is Mode.SPLIT
    near = {**three_modes(0.3, 0.3, server=0.1), Mode.LOCAL: Forecast(Mode.LOCAL, 0.098, 0.001, 0.1)}
    assert decide(LatencyPolicy(), near).mode is Mode.SERVER
    assert decide(EnergyPolicy(), three_modes(0.1, 0.1, energy=(0.5, 0.499))).mode is Mode.REPLAY
    assert decide(EnergyPolicy(), three_modes(0.1, 0.1, energy=(0.5, 0.4))).mode is Mode.SPLIT


def test_the_mode_that_stands_in_for_replay_has_to_be_faster_by_eight_percent():
    for server, expected in ((0.1 / 1.07, Mode.REPLAY), (0.1 / 1.09, Mode.SERVER)):
        assert decide(LatencyPolicy(), three_modes(replay=0.1, split=0.3, server=server)).mode is expected
    learning = {**three_modes(0.1, 0.4), Mode.REPLAY: Forecast(Mode.REPLAY, unavailable_reason="it is being learnt")}
    assert decide(LatencyPolicy(), learning).mode is Mode.SERVER


def test_a_covariance_makes_a_small_difference_certain():
    """Both costs are uncertain by a tenth, but they move together: their ratio is known."""
    together = {Mode.REPLAY: 0.01, Mode.SPLIT: 0.01}
    made = {
        mode: replace(forecast, covariance=together if mode in together else {})
        for mode, forecast in three_modes(0.11, 0.1, standard_error_s=0.01).items()
    }
    assert decide(LatencyPolicy(), three_modes(0.11, 0.1, standard_error_s=0.01)).mode is Mode.REPLAY
    assert decide(LatencyPolicy(), made).mode is Mode.SPLIT


def test_the_reason_does_not_contradict_the_decision():
    reason = decide(LatencyPolicy(), three_modes(0.1, 0.098)).reason
    assert reason.startswith("replay is preferred: split is not better by 3% beyond doubt: ")
    assert decide(LatencyPolicy(), three_modes(0.1, 0.2)).reason.startswith("replay is expected to finish first: ")


def test_a_deadline_rules_out_what_is_not_sure_to_meet_it():
    made = {
        Mode.LOCAL: Forecast(Mode.LOCAL, 0.09, 0.001, 1.0),
        Mode.SERVER: Forecast(Mode.SERVER, 0.07, 0.03, 1.0),
    }
    assert decide(LatencyPolicy(), made).mode is Mode.SERVER
    assert decide(LatencyPolicy(), made, deadline=0.1).mode is Mode.LOCAL, "70 ms give or take 60 is no promise of 100"
    late = decide(LatencyPolicy(), made, deadline=0.01)
    assert late.mode is Mode.SERVER, "no mode is in time: the faster one is next"
    assert "no mode is sure" in late.reason


def test_energy_under_a_deadline():
    made = forecasts((0.1, 2.0), (0.3, 1.0))
    assert decide(EnergyPolicy(), made).mode is Mode.SERVER
    assert decide(EnergyPolicy(), made, deadline=0.5).mode is Mode.SERVER
    assert decide(EnergyPolicy(), made, deadline=0.2).mode is Mode.LOCAL
    assert decide(EnergyPolicy(), made, deadline=0.05).mode is Mode.LOCAL, "nothing is in time: the fastest"


def test_modes_that_draw_nothing_are_equal():
    assert decide(EnergyPolicy(), forecasts((0.1, 0.0), (0.3, 0.0))).mode is Mode.SERVER
    assert decide(EnergyPolicy(), forecasts((0.1, 0.0), (0.3, 1.0))).mode is Mode.LOCAL


def test_unknown_energies_decide_nothing_and_the_reason_names_that():
    made = forecasts((0.1, math.nan), (0.3, math.nan))
    decision = decide(EnergyPolicy(), made, deadline=0.5)
    assert (decision.mode, decision.reason.split(",")[0]) == (
        Mode.LOCAL,
        "local is expected to finish first; energy is not known (no sensor",
    )
    bounded = decide(LatencyPolicy(), made, power_budget_w=5.0)
    assert bounded.mode is Mode.LOCAL
    assert "the power budget cannot be held" in bounded.reason
    assert "nan" not in bounded.reason


def test_the_power_budget_rules_out_a_hot_mode():
    made = forecasts((0.1, 1.3), (0.3, 1.2))  # 13 W and 4 W
    assert decide(LatencyPolicy(), made).mode is Mode.LOCAL
    assert decide(LatencyPolicy(), made, power_budget_w=6.0).mode is Mode.SERVER
    assert decide(LatencyPolicy(), made, power_budget_w=1.0).mode is Mode.LOCAL, "nothing fits: the budget cannot hold"


def test_a_mode_that_never_ran_is_tried():
    made = {Mode.LOCAL: Forecast(Mode.LOCAL, 0.1, 0.001, 1.0), Mode.SPLIT: Forecast(Mode.SPLIT)}
    decision = decide(LatencyPolicy(), made)
    assert decision.mode is Mode.SPLIT
    assert "tried" in decision.reason
    made[Mode.SPLIT] = Forecast(Mode.SPLIT, unavailable_reason="it is being recorded")
    assert decide(LatencyPolicy(), made).mode is Mode.LOCAL


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.floats(1e-3, 5), st.floats(1e-3, 5), st.one_of(st.none(), st.floats(1e-3, 5)), st.booleans())
def test_the_decision_is_always_a_mode_that_can_run(local, server, deadline, blocked):
    for policy in (LatencyPolicy(), EnergyPolicy()):
        made = forecasts((local, 1.0), (server, 1.0), "gone" if blocked else "")
        for _ in range(5):
            decision = decide(policy, made, deadline)
            assert not made[decision.mode].unavailable_reason
            assert decision.reason


def test_policies_by_name_and_absurd_knobs():
    assert make_policy("auto").name == "latency"
    assert make_policy("energy", Knobs(margin=0.5)).knobs.margin == 0.5
    assert make_policy("energy_under_deadline").name == "energy"
    assert isinstance(make_policy("server"), FixedPolicy)
    assert isinstance(make_policy("edge_offload.manager.policy:EnergyPolicy"), EnergyPolicy)
    for wrong in (
        "nowhere:Mine",
        "edge_offload.manager.policy:Nothing",
        "edge_offload_benchmarks.simulation.oracle:OraclePolicy",
    ):
        with pytest.raises(BadInput, match="cannot make policy"):
            make_policy(wrong)
    with pytest.raises(BadInput, match="is no policy"):
        make_policy("collections:OrderedDict")
    with pytest.raises(BadInput, match="unknown mode"):
        make_policy("best")
    with pytest.raises(BadInput, match="out of range"):
        Knobs(margin=-1)


class Mine:
    """A policy of a user's own."""

    name = "mine"

    def decide(self, situation):
        return Decision(Mode.LOCAL, "as I please", self.name)


def test_custom_policies_choose_and_fixed_modes_do_not():
    for choosing in ("auto", "latency", "energy", "mine", "my_package.policies:Mine"):
        assert chooses(choosing)
    assert chooses(make_policy(f"{__name__}:Mine").decide(Situation(0.0, {})).policy)
    for policy in ("local", "server", "split", "fixed", "service"):
        assert not chooses(policy)
    assert not chooses(decide(FixedPolicy(Mode.SERVER), {}).policy)


def test_dry_run_preserves_the_mode_and_reports_the_decision():
    manager = Manager(LatencyPolicy(), dry_run=Mode.LOCAL)
    decision = manager.decide(Situation(0.0, forecasts((0.4, 5), (0.1, 1))))
    assert decision.mode is Mode.LOCAL
    assert decision.reason.startswith("dry run: latency would choose server")
    assert manager.switches == 0


def test_switches_are_counted_and_the_policy_can_be_exchanged():
    manager = Manager(FixedPolicy(Mode.SERVER))
    situation = Situation(0.0, forecasts((0.4, 5), (0.1, 1)))
    manager.decide(situation)
    manager.policy = FixedPolicy(Mode.LOCAL, "the operator said so")
    assert manager.decide(situation).reason == "the operator said so"
    assert manager.switches == 1


def test_a_policy_of_a_user_still_reads_the_old_name_of_the_standard_error():
    forecast = Forecast(Mode.REPLAY, 0.1, standard_error_s=0.02)
    with pytest.warns(DeprecationWarning, match="standard_error_s"):
        assert forecast.doubt_s == 0.02


def test_the_oracle_chooses_the_least():
    oracle = OraclePolicy(lambda now: {Mode.LOCAL: 0.2, Mode.SERVER: 0.1 if now < 5 else 0.9})
    assert decide(oracle, {}, now=1).mode is Mode.SERVER
    assert decide(oracle, {}, now=6).mode is Mode.LOCAL


# ---------------------------------------------------------------------- forecasts


def remote(uplink_s=0.02, queue_s=0.0, compute_s=0.03, size=200_000):
    stages = {"uplink": uplink_s, "queue": queue_s, "compute_server": compute_s, "encode": 0.002}
    return InferenceReport(
        Mode.SERVER, total_s=sum(stages.values()), stages_s=stages, bytes_up=size, bytes_down=2000, round_trips=1
    )


def at(rate, age_s=0.0, rtt_age_s=0.0):
    return LinkReading(rate, rate, 0.1, 0.1, 2.6e-3, "passive", 9, age_s, rtt_age_s)


def test_a_remote_forecast_follows_the_bandwidth_of_now():
    forecaster = Forecaster(StatePowers())
    for i in range(10):
        forecaster.learn_report(i * 0.1, remote(), at(10 * MB))
    fast, slow = (forecaster.forecast(1.0, Mode.SERVER, at(rate)) for rate in (10 * MB, 1 * MB))
    assert fast.latency_s == pytest.approx(0.032 + 0.0226, rel=0.05)
    assert slow.latency_s == pytest.approx(0.032 + 0.2046, rel=0.05)
    assert slow.error_s > fast.error_s
    assert slow.energy_j > fast.energy_j


def test_a_queue_at_the_server_fades_from_the_forecast():
    forecaster = Forecaster(StatePowers())
    for i in range(10):
        forecaster.learn_report(i * 0.1, remote(queue_s=0.5), at(10 * MB))
    now, later = (forecaster.forecast(t, Mode.SERVER, at(10 * MB)).latency_s for t in (1.0, 21.0))
    assert now > 0.5
    assert later < 0.1


def test_a_late_frame_raises_the_forecast_for_a_while_only():
    forecaster = Forecaster(StatePowers())
    forecaster.learn_report(0.0, remote(), at(10 * MB))
    usual_s = remote().total_s
    forecaster.raise_latency(1.0, Mode.SERVER, 2.0)
    assert forecaster.forecast(1.0, Mode.SERVER, at(10 * MB, age_s=1.0)).latency_s == pytest.approx(2.0 + usual_s)
    assert forecaster.forecast(31.0, Mode.SERVER, at(10 * MB, age_s=31.0)).latency_s < 0.1
    assert forecaster.forecast(1.5, Mode.SERVER, at(10 * MB, age_s=0.1)).latency_s < 0.1, "the link was measured since"
    rate_alone = at(10 * MB, age_s=0.1, rtt_age_s=2.0)
    assert forecaster.forecast(1.5, Mode.SERVER, rate_alone).latency_s > 1.0, "its round trip was not"


def test_a_result_that_comes_later_still_leaves_the_lateness():
    """The round trip rose; its estimate is the shortest of the latest seconds."""
    forecaster = Forecaster(StatePowers())
    for i in range(10):
        forecaster.learn_report(i * 0.1, remote(), at(10 * MB))
    slow = remote(uplink_s=0.2)
    forecaster.raise_latency(1.1, Mode.SERVER, 0.08)
    forecaster.learn_late_report(1.25, slow, at(10 * MB, rtt_age_s=0.3))
    assert forecaster.forecast(1.3, Mode.SERVER, at(10 * MB, rtt_age_s=0.35)).latency_s > 0.9 * slow.total_s
    forecaster.learn_report(1.4, remote(), at(10 * MB))
    assert forecaster.forecast(1.5, Mode.SERVER, at(10 * MB, rtt_age_s=9.0)).latency_s < 0.1, "it was fast again"


def test_a_late_result_attributes_its_time():
    forecaster = Forecaster(StatePowers())
    forecaster.learn_report(0.0, remote(), at(10 * MB))
    for i in range(10):
        forecaster.learn_late_report(1.0 + i, remote(compute_s=2.0), at(10 * MB))
    assert forecaster.forecast(11.0, Mode.SERVER, at(10 * MB)).latency_s > 1.0, "the server is slow, not the link"


def test_a_fallback_teaches_what_local_costs_not_how_long_it_waited():
    forecaster = Forecaster(StatePowers())
    fallen = InferenceReport(
        Mode.LOCAL, total_s=5.4, stages_s={"compute_robot": 0.4}, fallback_reason="server: did not answer"
    )
    forecaster.learn_report(0.0, fallen, LinkReading())
    assert forecaster.forecast(0.0, Mode.LOCAL, LinkReading()).latency_s == pytest.approx(0.4)
    assert not forecaster.forecast(0.0, Mode.SERVER, LinkReading()).measured


def test_uncertainty_is_that_of_the_errors_made():
    chance, quiet, noisy = random.Random(0), Forecaster(StatePowers()), Forecaster(StatePowers())
    for i in range(100):
        quiet.learn_report(i * 0.1, remote(uplink_s=0.0028), at(1000 * MB))
        noisy.learn_report(i * 0.1, remote(uplink_s=0.0028, compute_s=0.03 + abs(chance.gauss(0, 0.02))), at(1000 * MB))
    calm, wild = (f.forecast(10.0, Mode.SERVER, at(1000 * MB)) for f in (quiet, noisy))
    assert calm.error_s < 0.003
    assert 0.005 < wild.error_s < 0.04


def test_one_frame_in_an_outage_delays_no_later_frame():
    forecaster = Forecaster(StatePowers())
    stages = {"compute_robot": 0.2}
    forecaster.learn_report(0.0, InferenceReport(Mode.LOCAL, total_s=0.2, stages_s=stages), LinkReading())
    for i in range(30):
        forecaster.learn_report(i * 0.1, remote(), at(10 * MB))
    forecaster.learn_late_report(4.0, remote(compute_s=30.0), at(10 * MB))
    for i in range(10):
        forecaster.learn_report(4.0 + i * 0.1, remote(), at(10 * MB))
    after = forecaster.forecast(5.0, Mode.SERVER, at(10 * MB))
    assert after.error_s < 5.0, "30 s once are not the spread of all others"


def test_local_energy_is_the_compute_state_over_the_frame():
    forecaster = Forecaster(StatePowers())
    forecaster.learn_report(
        0.0, InferenceReport(Mode.LOCAL, total_s=0.4, stages_s={"compute_robot": 0.4}), LinkReading()
    )
    assert forecaster.forecast(0.0, Mode.LOCAL, LinkReading()).energy_j == pytest.approx(13.35 * 0.4)


def test_the_first_frame_which_pays_for_the_start_is_ignored():
    forecaster = Forecaster(StatePowers())
    for seconds in (3.0, 0.1):
        stages = {"compute_robot": seconds}
        forecaster.learn_report(0.0, InferenceReport(Mode.LOCAL, total_s=seconds, stages_s=stages), LinkReading())
    assert forecaster.forecast(0.0, Mode.LOCAL, LinkReading()).latency_s == pytest.approx(0.1)


@pytest.mark.parametrize("trips", [(8, 5, 1, 1, 1), (5, 1, 3, 1, 1), (2, 2, 1, 4, 1)])
def test_frames_that_still_record_do_not_raise_the_forecast(trips):
    forecaster = Forecaster(StatePowers())
    for number, count in enumerate(trips):
        stages = {"uplink": 0.01 * count, "compute_server": 0.05}
        report = InferenceReport(Mode.REPLAY, "", 0.06 * count, stages, 100_000, 4000, count)
        forecaster.learn_report(float(number), report, at(1e7))
    made = forecaster.forecast(5.0, Mode.REPLAY, at(1e7))
    assert made.latency_s == pytest.approx(0.063, rel=0.02)
    assert made.error_s < 0.02


def test_a_mode_whose_frames_keep_their_round_trips_costs_what_they_cost():
    forecaster = Forecaster(StatePowers())
    for number in range(30):
        count = 1 if number == 0 else 4
        stages = {"uplink": 0.01 * count, "compute_server": 0.05}
        report = InferenceReport(Mode.REPLAY, "", 0.06 * count, stages, 100_000, 4000, count)
        forecaster.learn_report(float(number), report, at(1e7))
    assert forecaster.forecast(30.0, Mode.REPLAY, at(1e7)).latency_s == pytest.approx(0.213, rel=0.05)


def test_a_forecast_is_never_more_precise_than_a_transfer():
    """A link of which a sample said 0.3 kB/s: what is not through after ten seconds is given up."""
    forecaster = Forecaster(StatePowers())
    for i in range(10):
        forecaster.learn_report(i * 0.1, remote(size=2_000_000), at(10 * MB))
    for rate in (300.0, 1.0):
        predicted = forecaster.forecast(1.0, Mode.SERVER, at(rate))
        assert predicted.latency_s < 11.0
        assert predicted.error_s <= predicted.latency_s
        assert predicted.energy_j < 100.0
    forecaster.learn_report(1.1, remote(size=2_000_000), at(300.0))
    after = forecaster.forecast(1.2, Mode.SERVER, at(10 * MB))
    assert after.error_s <= after.latency_s < 1.0, "a forecast that was wrong by seconds is no reason to say ±10 s"


def test_uncertainty_of_the_link_widens_only_remote_modes():
    forecaster = Forecaster(StatePowers())
    for i in range(10):
        forecaster.learn_report(i * 0.1, remote(), at(1 * MB))
    forecaster.learn_report(1.0, InferenceReport(Mode.LOCAL, total_s=0.2, stages_s={"compute_robot": 0.2}), at(1 * MB))
    vague = LinkReading(1 * MB, 1 * MB, 0.8, 0.8, 2.6e-3, "passive", 9, 0.0)
    sure, unsure = (forecaster.forecast(1.0, Mode.SERVER, reading) for reading in (at(1 * MB), vague))
    assert unsure.standard_error_s > 0.15 > sure.standard_error_s
    local = [forecaster.forecast(1.0, Mode.LOCAL, reading).standard_error_s for reading in (at(1 * MB), vague)]
    assert local[0] == local[1]


def test_a_link_that_may_be_slower_is_no_reason_to_leave_the_mode_for_a_little():
    policy = LatencyPolicy()
    made = forecasts((0.2, 1.0), (0.1, 0.5))
    assert decide(policy, made).mode is Mode.SERVER
    doubtful = replace(made[Mode.SERVER], latency_s=0.24, standard_error_s=0.1)
    for _ in range(20):
        assert decide(policy, {**made, Mode.SERVER: doubtful}).mode is Mode.SERVER
    certain = replace(doubtful, standard_error_s=0.005)
    assert [decide(policy, {**made, Mode.SERVER: certain}).mode for _ in range(3)][-1] is Mode.LOCAL


def test_an_overtaken_local_computation_raises_its_estimate():
    forecaster = Forecaster(StatePowers())
    forecaster.overtaken(0.0, 5.0)
    assert not forecaster.forecast(0.0, Mode.LOCAL, LinkReading()).measured
    for i in range(5):
        forecaster.learn_report(
            i * 0.1, InferenceReport(Mode.LOCAL, total_s=0.2, stages_s={"compute_robot": 0.2}), at(MB)
        )
    for i in range(3):
        forecaster.overtaken(1.0 + i, 0.1)
    assert forecaster.forecast(4.0, Mode.LOCAL, at(MB)).latency_s == pytest.approx(0.2), "that is what it takes"
    for i in range(3):
        forecaster.overtaken(5.0 + i, 1.0)
    assert forecaster.forecast(8.0, Mode.LOCAL, at(MB)).latency_s == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize(
    ("seconds", "error_s", "energy_j", "phrase"),
    [
        (0.0532, 0.0121, 0.456, "server 53±12 ms 0.46 J"),
        (1.4604, 0.4401, 17.243, "server 1.5±0.4 s 17.2 J"),
        (10.13, 9.98, 471.25, "server 10±10 s 471 J"),
        (0.2, math.inf, math.nan, "server about 200 ms"),
    ],
)
def test_the_reason_is_for_people(seconds, error_s, energy_j, phrase):
    made = forecasts((20.0, 900.0), (seconds, energy_j), error=error_s)
    assert phrase in [part.strip() for part in decide(LatencyPolicy(), made).reason.replace(":", ",").split(",")]


def test_a_trial_of_a_mode_names_its_link():
    made = {**forecasts((0.4, 1.0), (0.1, 0.5)), Mode.REPLAY: Forecast(Mode.REPLAY)}
    link = LinkReading(uplink=2.1e6, uplink_error=0.08)
    decision = decide(make_policy("auto"), made, link=link, source="offload/bandwidth")
    assert decision.mode is Mode.REPLAY
    assert decision.reason.startswith("replay has not run yet and is tried: 2.1 MB/s±8% up by offload/bandwidth, local")
    local_only = {Mode.LOCAL: Forecast(Mode.LOCAL)}
    assert decide(make_policy("auto"), local_only).reason == "local has not run yet and is tried"
