"""How long a battery lasts in each mode."""

from __future__ import annotations

import math

import pytest

from edge_offload.manager.battery import Battery
from edge_offload.manager.forecast import Forecast
from edge_offload.mode import Mode

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
    ],
)
def test_what_is_left_is_read_from_whatever_the_battery_tells(fields, share, watt_hours):
    found = Battery.of(*fields)
    assert (found.share, found.watt_hours) == (
        pytest.approx(share, nan_ok=True),
        pytest.approx(watt_hours, nan_ok=True),
    )


def test_hours_are_those_of_the_mean_power_of_a_mode_and_unknown_ones_are_left_out():
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
