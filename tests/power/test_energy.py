"""Energy over exact intervals: additive, never negative, right for what can be worked out by hand."""

from __future__ import annotations

import math
import threading
from typing import Callable, List, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_offload.errors import BadInput
from edge_offload.mode import Mode
from edge_offload.power.meter import EnergyMeter
from edge_offload.power.source import EnergyCounter, PowerSource
from edge_offload.power.states import COMMUNICATE, COMPUTE, StateModel, StatePowers, StateTimeline, powers_of
from edge_offload.timing import InferenceReport


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Wattmeter(PowerSource):
    name = "wattmeter"

    def __init__(self, clock: Clock, power: Callable[[float], float]) -> None:
        self.clock, self.power, self.broken = clock, power, False

    def watts(self) -> float:
        if self.broken:
            raise OSError("unplugged")
        return self.power(self.clock.now)


class Counter(EnergyCounter):
    name = "counter"

    def __init__(self, clock: Clock, energy: Callable[[float], float]) -> None:
        self.clock, self.energy = clock, energy

    def watts(self) -> float:
        return 0.0

    def joules(self) -> float:
        return self.energy(self.clock.now)


def metered(
    *sources: PowerSource, clock: Clock, until: float = 10.0, period: float = 0.125, **options: float
) -> EnergyMeter:
    """A meter that has sampled ``sources`` from 0 to ``until``."""
    meter = EnergyMeter(sources, StateModel(StateTimeline(clock)), clock=clock, **options)
    steps = round(until / period)
    for step in range(steps + 1):
        clock.now = step * period
        meter.sample()
    return meter


times = st.floats(0, 10, allow_nan=False)
intervals = st.tuples(times, times).map(lambda pair: (min(pair), max(pair)))


@given(intervals, st.floats(0, 500))
def test_constant_power_is_watts_times_seconds(interval: Tuple[float, float], watts: float) -> None:
    clock = Clock()
    meter = metered(Wattmeter(clock, lambda _: watts), clock=clock)
    joules, source = meter.energy_between(*interval)
    assert source == "measured"
    assert joules == pytest.approx(watts * (interval[1] - interval[0]), rel=1e-9, abs=1e-9)


@given(intervals)
def test_a_ramp_is_integrated_exactly_between_samples_too(interval: Tuple[float, float]) -> None:
    clock = Clock()
    meter = metered(Wattmeter(clock, lambda t: 2 * t), clock=clock)
    expected = interval[1] ** 2 - interval[0] ** 2
    assert meter.energy_between(*interval).joules == pytest.approx(expected, abs=1e-9)


@given(st.tuples(times, times, times).map(sorted), st.lists(st.floats(0, 100), min_size=4, max_size=4))
def test_energy_adds_up_over_adjacent_intervals_and_is_never_negative(cuts: List[float], powers: List[float]) -> None:
    clock = Clock()
    sources = [Wattmeter(clock, lambda t: powers[int(t) % 4]), Counter(clock, lambda t: powers[0] * t)]
    meter = metered(*sources, clock=clock)
    a, b, c = cuts
    first, second, total = (meter.energy_between(*pair).joules for pair in ((a, b), (b, c), (a, c)))
    assert first >= 0
    assert second >= 0
    assert first + second == pytest.approx(total, rel=1e-9, abs=1e-6)


def test_a_counter_is_exact_however_rarely_it_is_read() -> None:
    clock = Clock()
    meter = metered(Counter(clock, lambda t: 7 * t + math.sin(t)), clock=clock, period=0.5)
    assert meter.energy_between(1.0, 9.5).joules == pytest.approx(7 * 8.5 + math.sin(9.5) - math.sin(1.0))


def test_sources_add_up() -> None:
    clock = Clock()
    meter = metered(Wattmeter(clock, lambda _: 10.0), Counter(clock, lambda t: 5 * t), clock=clock)
    assert meter.energy_between(2.0, 4.0).joules == pytest.approx(30.0)
    assert meter.read_power().watts == pytest.approx(15.0)
    assert meter.name == "wattmeter + counter"


def test_an_interval_that_ends_now_starts_with_a_new_sample() -> None:
    clock = Clock()
    meter = metered(Wattmeter(clock, lambda t: 10.0 if t <= 10 else 20.0), clock=clock)
    clock.now = 10.25
    joules, source = meter.energy_between(10.0, 10.25)
    assert source == "measured"
    assert joules == pytest.approx(0.25 * 15.0)


def test_a_sensor_that_fails_hands_over_to_the_model_and_comes_back() -> None:
    clock = Clock()
    wattmeter = Wattmeter(clock, lambda _: 10.0)
    meter = metered(wattmeter, clock=clock)
    wattmeter.broken = True
    clock.now = 12.0
    joules, source = meter.energy_between(9.0, 12.0)
    assert source == "model"
    assert joules == pytest.approx(3 * 4.04)
    assert "unplugged" in meter.problem
    assert meter.read_power().source == "model"
    assert meter.energy_between(8.0, 9.0).source == "measured", "what was measured stays measured"
    wattmeter.broken = False
    for clock.now in (12.0, 12.2, 12.4):
        meter.sample()
    assert meter.problem == ""
    assert meter.energy_between(12.0, 12.4).source == "measured"
    assert meter.energy_between(9.0, 12.4).source == "model", "the gap was not measured"


def test_a_sensor_that_reads_nan_is_a_failure() -> None:
    clock = Clock()
    meter = metered(Wattmeter(clock, lambda _: math.nan), clock=clock, until=1.0)
    assert "nan" in meter.problem
    assert meter.energy_between(0.0, 1.0).source == "model"


def test_before_the_first_sample_the_model_answers() -> None:
    clock = Clock()
    clock.now = 5.0
    meter = EnergyMeter([Wattmeter(clock, lambda _: 10.0)], StateModel(StateTimeline(clock)), clock=clock)
    meter.sample()
    clock.now = 5.1
    assert meter.energy_between(4.9, 5.1).source == "model"
    assert meter.energy_between(5.0, 5.1).source == "measured"


def test_history_is_bounded_and_the_recent_past_stays_measured() -> None:
    clock = Clock()
    meter = metered(Wattmeter(clock, lambda _: 1.0), clock=clock, until=300.0, history_s=10.0)
    recent = meter.energy_between(291.0, 300.0)
    assert recent.joules == pytest.approx(9.0)
    assert recent.source == "measured"
    assert meter.energy_between(1.0, 2.0).source == "model"
    assert len(meter._traces[0]._times) < 200


def test_reversed_intervals_are_refused() -> None:
    clock = Clock()
    meter = metered(clock=clock)
    with pytest.raises(BadInput, match="not an interval"):
        meter.energy_between(2.0, 1.0)
    with pytest.raises(BadInput, match="not an interval"):
        meter.energy_between(0.0, math.nan)


def test_the_sampling_thread_samples_and_ends() -> None:
    clock = Clock()
    sampled = threading.Event()

    def power(_: float) -> float:
        clock.now += 0.01
        if clock.now > 0.05:
            sampled.set()
        return 3.0

    before = threading.active_count()
    with EnergyMeter([Wattmeter(clock, power)], StateModel(StateTimeline(clock)), period_s=0.001, clock=clock) as meter:
        assert sampled.wait(60.0)
        assert meter.energy_between(0.02, 0.04).joules == pytest.approx(0.06)
    assert threading.active_count() == before


# --- the state model


def test_the_model_at_the_published_powers() -> None:
    clock = Clock()
    timeline = StateTimeline(clock)
    timeline.add_interval(COMPUTE, 1.0, 3.0)
    timeline.add_interval(COMMUNICATE, 3.0, 4.0)
    model = StateModel(timeline)
    assert model.energy(1.0, 3.0) == pytest.approx(2 * 13.35)
    assert model.energy(3.0, 4.0) == pytest.approx(4.25)
    assert model.energy(0.0, 5.0) == pytest.approx(2 * 4.04 + 2 * 13.35 + 4.25)


def test_what_overlaps_adds_what_it_adds_to_standby() -> None:
    timeline = StateTimeline(Clock())
    timeline.add_interval(COMPUTE, 0.0, 1.0)
    timeline.add_interval(COMMUNICATE, 0.0, 1.0)
    assert StateModel(timeline).energy(0.0, 1.0) == pytest.approx(13.35 + 4.25 - 4.04)


def test_a_state_counts_once_where_its_intervals_overlap_and_the_model_rests_between_frames() -> None:
    timeline = StateTimeline(Clock())
    model = StateModel(timeline)
    timeline.add_interval(COMPUTE, 0.0, 2.0)
    timeline.add_interval(COMPUTE, 0.5, 1.5)
    assert model.watts() == pytest.approx(4.04)
    assert model.energy(0.0, 3.0) == pytest.approx(2 * 13.35 + 4.04)


busy_lists = st.lists(st.tuples(st.sampled_from([COMPUTE, COMMUNICATE]), intervals), max_size=12)


@given(busy_lists, st.tuples(times, times, times).map(sorted))
def test_the_model_is_additive_and_between_standby_and_everything(busy: list, cuts: List[float]) -> None:
    timeline = StateTimeline(Clock())
    for state, (start, end) in busy:
        timeline.add_interval(state, start, end)
    model = StateModel(timeline)
    a, b, c = cuts
    assert model.energy(a, b) + model.energy(b, c) == pytest.approx(model.energy(a, c), abs=1e-9)
    assert 4.04 * (c - a) - 1e-9 <= model.energy(a, c) <= (13.35 + 4.25 - 4.04) * (c - a) + 1e-9


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted), max_size=12))
def test_intervals_in_any_order_are_united(spans: list) -> None:
    timeline = StateTimeline(Clock())
    for start, end in spans:
        timeline.add_interval(COMPUTE, start, end)
    covered = sum(any(start <= second < end for start, end in spans) for second in range(20))
    assert timeline.busy_seconds(0, 20)[COMPUTE] == pytest.approx(covered)


def test_a_report_becomes_states_of_the_right_length() -> None:
    timeline = StateTimeline(Clock())
    report = InferenceReport(
        Mode.SERVER,
        total_s=0.100,
        stages_s={
            "queue": 0.01, "encode": 0.01, "uplink": 0.03, "compute_server": 0.03, "downlink": 0.01, "decode": 0.01,
        },
    )  # fmt: skip
    timeline.add_report(report, start_s=5.0)
    busy_s = timeline.busy_seconds(5.0, 5.1)
    assert busy_s[COMPUTE] == pytest.approx(0.02)
    assert busy_s[COMMUNICATE] == pytest.approx(0.04)
    overlapped = InferenceReport(Mode.SPLIT, total_s=0.05, stages_s={"compute_robot": 0.04, "uplink": 0.04})
    timeline.add_report(overlapped, start_s=6.0)
    assert sum(timeline.busy_seconds(6.05, 7.0).values()) == 0.0, "nothing spills over the end of the inference"


def test_states_beyond_the_history_are_refused_not_guessed() -> None:
    clock = Clock()
    timeline = StateTimeline(clock, history_s=10.0)
    for second in range(100):
        clock.now = float(second)
        timeline.add_interval(COMPUTE, second - 0.5, second)
    assert timeline.busy_seconds(90.0, 99.0)[COMPUTE] == pytest.approx(4.5)
    with pytest.raises(BadInput, match="history_s"):
        timeline.busy_seconds(5.0, 6.0)


def test_the_timeline_survives_many_threads() -> None:
    timeline = StateTimeline(Clock())

    def work(first: int) -> None:
        for second in range(first, first + 200):
            timeline.add_interval(COMPUTE, second, second + 1)
            timeline.busy_seconds(0.0, 800.0)

    threads = [threading.Thread(target=work, args=(200 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert timeline.busy_seconds(0.0, 800.0)[COMPUTE] == pytest.approx(800.0)


def test_misuse_is_refused() -> None:
    timeline = StateTimeline(Clock())
    with pytest.raises(BadInput, match="unknown state"):
        timeline.add_interval("flying", 0.0, 1.0)
    with pytest.raises(BadInput, match="before it starts"):
        timeline.add_interval(COMPUTE, 2.0, 1.0)
    with pytest.raises(BadInput, match="below standby"):
        StatePowers(inference=1.0)


def test_without_a_table_what_no_sensor_measures_is_unknown() -> None:
    clock = Clock()
    blind = EnergyMeter([], None, clock=clock)
    assert math.isnan(blind.energy_between(0.0, 1.0).joules)
    assert blind.energy_between(0.0, 1.0).source == blind.read_power().source == "unknown"
    assert math.isnan(blind.read_power().watts)
    measuring = EnergyMeter([Wattmeter(clock, lambda _: 10.0)], None, clock=clock)
    measuring.sample()
    assert (measuring.read_power().watts, measuring.read_power().source) == (10.0, "measured")
    clock.now += 100.0
    assert measuring.energy_between(1.0, 2.0).source == "unknown", "nobody looked"


def test_a_table_of_watts_is_reported_completely_or_not_at_all() -> None:
    total = {"inference_watts": 30, "communication_watts": 9.0, "standby_watts": 8.0, "rate": 1.0}
    assert powers_of(total) == StatePowers(30.0, 9.0, 8.0)
    assert powers_of({}) is powers_of(dict.fromkeys(total, 0)) is None
    for wrong in ({"standby_watts": 4.0}, {**total, "inference_watts": "much"}, {**total, "inference_watts": 1.0}):
        with pytest.raises(BadInput, match="power model"):
            powers_of(wrong)
