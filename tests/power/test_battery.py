"""How long a battery lasts in each mode."""

from __future__ import annotations

import math

import pytest

from edge_offload.manager.forecast import Forecast
from edge_offload.mode import Mode
from edge_offload.power.battery import Battery, BatteryReader

NAN = math.nan


@pytest.mark.parametrize(
    ("fields", "share", "watt_hours"),
    [
        ((0.5, NAN, 5.0, NAN, 10.0), 0.5, 25.0),
        ((0.5, 2.0, 5.0, NAN, 10.0), 0.5, 20.0),
        ((NAN, 2.0, NAN, 4.0, 10.0), 0.5, 20.0),
        ((0.5, NAN, NAN, NAN, 10.0), 0.5, NAN),
        ((NAN, NAN, NAN, NAN, 0.0), NAN, NAN),
        ((0.5, 2.0, 5.0, NAN, NAN), 0.5, NAN),
        # per cent, as many drivers write it
        ((62.0, NAN, 5.0, NAN, 10.0), 0.62, 31.0),
        ((100.0, NAN, NAN, 5.0, 10.0), 1.0, 50.0),
        ((62.0, 0.0, 0.0, 0.0, 12.0), 0.62, NAN),
        ((0.8, 0.04, 5.0, NAN, 10.0), 0.008, 0.4),
        # unknown, as MAVLink's -1 comes out; and what no share can be
        ((-0.01, NAN, NAN, NAN, 12.0), NAN, NAN),
        ((-0.01, 2.0, 4.0, NAN, 10.0), 0.5, 20.0),
        ((-1.0, 0.0, 0.0, 0.0, 12.0), NAN, NAN),
        ((255.0, NAN, 5.0, NAN, 10.0), NAN, NAN),
        ((math.inf, NAN, 5.0, NAN, 10.0), NAN, NAN),
        # 0 in what is not measured
        ((0.0, 0.0, 0.0, 0.0, 0.0), NAN, NAN),
        ((0.0, 0.0, 0.0, 0.0, 12.0), NAN, NAN),
        ((0.5, 0.0, 0.0, 0.0, 12.0), 0.5, NAN),
        ((0.5, 0.0, 5.0, 0.0, 10.0), 0.5, 25.0),
        ((0.0, 2.0, 4.0, 0.0, 10.0), 0.5, 20.0),
        # a driver that writes nan where it does not measure means its 0
        ((0.0, NAN, 5.0, NAN, 10.0), 0.0, 0.0),
        # a little more than full, or a little more than empty in per cent
        ((1.02, NAN, 5.0, NAN, 10.0), NAN, NAN),
        ((1.02, 5.1, 5.0, NAN, 10.0), 1.0, 51.0),
        # milliampere hours and millivolts, negative charge
        ((0.5, 2600.0, 5200.0, NAN, 10.0), 0.5, NAN),
        ((0.5, NAN, 5.0, NAN, 11100.0), 0.5, NAN),
        ((0.5, -2.0, 5.0, NAN, 10.0), 0.5, 25.0),
    ],
)
def test_remaining_charge_is_read_from_any_field_of_the_battery(fields, share, watt_hours):
    battery = Battery.of(*fields)
    assert (battery.share, battery.watt_hours) == (
        pytest.approx(share, nan_ok=True),
        pytest.approx(watt_hours, nan_ok=True),
    )


def test_a_driver_that_has_written_per_cent_goes_on_to_write_per_cent():
    reader = BatteryReader()
    seen = [reader.read(percentage, NAN, NAN, NAN, NAN).share for percentage in (2.5, 1.0, 0.5, 1.5)]
    assert seen == pytest.approx([0.025, 0.01, 0.005, 0.015])
    other = BatteryReader()
    seen = [other.read(percentage, NAN, NAN, NAN, NAN).share for percentage in (1.0, 1.2, 0.9)]
    assert seen == pytest.approx([1.0, NAN, 0.9], nan_ok=True)


def test_hours_follow_from_the_mean_power_of_a_mode_and_unknown_ones_are_omitted():
    made = {
        Mode.LOCAL: Forecast(Mode.LOCAL, 0.4, 0.01, 5.0),
        Mode.REPLAY: Forecast(Mode.REPLAY, 0.1, 0.01, 0.5),
        Mode.SPLIT: Forecast(Mode.SPLIT),
        Mode.SERVER: Forecast(Mode.SERVER, 0.1, 0.01, NAN),
    }
    assert Battery(0.5, 25.0).hours(made) == {Mode.LOCAL: pytest.approx(2.0), Mode.REPLAY: pytest.approx(5.0)}
    assert Battery(0.5, 25.0).words(made) == "50%, 25 Wh; local 2.0 h, replay 5.0 h (frame after frame)"
    assert Battery().words(made) == "nothing known of it"
    assert Battery(0.5).hours(made) == {}
