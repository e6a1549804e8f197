"""Which measurement of the link the manager goes by: the topic's or that of the frames' own transfers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from edge_offload.link.estimate.estimator import LinkReading
from edge_offload.manager.bandwidth import TOPIC, TRANSFERS, TopicReading, apply_topic_reading
from edge_offload.manager.forecast import Forecast
from edge_offload.manager.policy import LatencyPolicy, Situation
from edge_offload.mode import Mode

NOW = 100.0
MB = 1e6


def reading(rate, age_s=0.0, error=0.1):
    return LinkReading(rate, rate, error, error, 2.6e-3, "active", 9, age_s)


def situation(measured=None, server_s=0.05):
    made = {
        Mode.LOCAL: Forecast(Mode.LOCAL, 0.2, 0.002, 2.0),
        Mode.SERVER: Forecast(Mode.SERVER, server_s, 0.002, 0.5, bytes_up=200_000, bytes_down=2000),
    }
    return Situation(NOW, made, link=measured or reading(10 * MB, age_s=20.0))


def test_forecasts_follow_the_topic_where_it_is_newer_and_the_reason_names_it():
    informed_situation, problem = apply_topic_reading(situation(), TopicReading(reading(0.5 * MB), NOW), 0.0)
    assert not problem
    assert informed_situation.source == TOPIC
    assert informed_situation.bandwidth == informed_situation.link == reading(0.5 * MB)
    # 20 ms of the 50 were those of 200 kB at 10 MB/s
    assert informed_situation.forecasts[Mode.SERVER].latency_s == pytest.approx(0.05 + 0.202 * (2 - 0.1), rel=0.02)
    assert informed_situation.forecasts[Mode.LOCAL] == situation().forecasts[Mode.LOCAL]
    decision = LatencyPolicy().decide(informed_situation)
    assert decision.mode is Mode.LOCAL
    assert "0.50 MB/s±10% up by offload/bandwidth" in decision.reason
    fast, _ = apply_topic_reading(
        situation(reading(0.5 * MB, age_s=20.0), 0.43), TopicReading(reading(10 * MB), NOW), 0.0
    )
    assert LatencyPolicy().decide(fast).mode is Mode.SERVER


@pytest.mark.parametrize("reported", [None, TopicReading(reading(0.5 * MB), NOW - 4.0)])
def test_a_silent_monitor_changes_nothing_and_is_reported(reported):
    informed_situation, problem = apply_topic_reading(situation(reading(10 * MB)), reported, 0.0)
    assert "silent" in problem
    assert informed_situation.forecasts == situation().forecasts
    assert (informed_situation.bandwidth, informed_situation.source) == (None, TRANSFERS)
    assert "by the frames' transfers" in LatencyPolicy().decide(informed_situation).reason


def test_a_monitor_that_has_had_no_time_to_speak_is_not_reported():
    assert apply_topic_reading(situation(), None, NOW - 1.0)[1] == ""


def test_a_topic_that_contradicts_transfers_is_ignored_and_reported():
    informed_situation, problem = apply_topic_reading(
        situation(reading(10 * MB)), TopicReading(reading(0.5 * MB), NOW), 0.0
    )
    assert problem == "offload/bandwidth says 0.5 MB/s up, the frames' transfers 10: the latter count"
    assert informed_situation.forecasts == situation().forecasts
    assert informed_situation.bandwidth.uplink == 0.5 * MB, "what it said is kept"
    vague = replace(reading(0.5 * MB), uplink_error=1.5, downlink_error=1.5)
    assert apply_topic_reading(situation(reading(10 * MB)), TopicReading(vague, NOW), 0.0)[1] == "", (
        "who is so unsure contradicts nobody"
    )


def test_an_old_measurement_of_the_topic_is_no_contradiction_but_does_not_count_either():
    informed_situation, problem = apply_topic_reading(
        situation(reading(10 * MB)), TopicReading(reading(0.5 * MB, age_s=8.0), NOW), 0.0
    )
    assert not problem
    assert informed_situation.source == TRANSFERS
    assert informed_situation.forecasts == situation().forecasts


def test_a_topic_without_a_rate_and_a_robot_without_a_server_change_no_forecast():
    informed_situation, problem = apply_topic_reading(situation(), TopicReading(LinkReading(), NOW), 0.0)
    assert (informed_situation.forecasts, problem) == (situation().forecasts, "")
    local_only = Situation(NOW, {Mode.LOCAL: Forecast(Mode.LOCAL, 0.2)})
    assert apply_topic_reading(local_only, None, 0.0) == (local_only, "")


def test_a_rate_of_almost_nothing_forecasts_no_more_than_a_transfer_can_mean():
    informed_situation, _ = apply_topic_reading(situation(), TopicReading(reading(1.0), NOW), 0.0)
    assert 9.0 < informed_situation.forecasts[Mode.SERVER].latency_s < 11.0
    assert math.isfinite(informed_situation.forecasts[Mode.SERVER].error_s)
