"""What ``offload/bandwidth`` says of the link, against what the frames' own transfers say: which of the two counts.

The newer measurement counts, and of two within :data:`.RECENT_S` the topic's, which knows of probes, too. Where such
two cannot both be true, a monitor that is wrong must not decide: what frames really took counts, and it is
told. A topic that has gone silent says nothing. Pure: time comes in as an argument.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Optional, Tuple

from edge_offload.link.estimate.estimator import LinkReading
from edge_offload.manager.forecast import Forecast
from edge_offload.manager.policy import Situation
from edge_offload.manager.tuning import CHANGE, GIVE_UP_S, RECENT_S, SURPRISE
from edge_offload.mode import TABLE

#: Names of what counts, in reasons.
TOPIC, TRANSFERS = "offload/bandwidth", "the frames' transfers"


@dataclass(frozen=True)
class Heard:
    """The topic's latest reading and its time of arrival (monotonic seconds), from which its age counts on."""

    reading: LinkReading
    came_s: float

    def at(self, now: float) -> LinkReading:
        """The reading, as old as it is now."""
        return replace(self.reading, age_s=self.reading.age_s + max(0.0, now - self.came_s))


def informed(situation: Situation, heard: Optional[Heard], began_s: float) -> Tuple[Situation, str]:
    """The situation with forecasts for the link as it is known best, and what is wrong with the topic, in words.

    Args:
        situation: forecasts, and the reading of the link that they rest on.
        heard: what the topic last said; None: nothing yet.
        began_s: since when the topic has been listened to (monotonic).
    """
    if not any(TABLE[mode].needs_link for mode in situation.forecasts):
        return situation, ""
    now, own = situation.now_s, situation.link
    silent_s = now - (began_s if heard is None else heard.came_s)
    silent = f"{TOPIC} has been silent for {silent_s:.0f} s: forecasts go by {TRANSFERS} alone"
    if heard is None or silent_s > RECENT_S:
        return replace(situation, source=TRANSFERS if own.uplink > 0 else ""), silent if silent_s > RECENT_S else ""
    told = heard.at(now)
    situation = replace(situation, bandwidth=told)
    if told.uplink <= 0:
        return replace(situation, source=TRANSFERS if own.uplink > 0 else ""), ""
    older_s = told.age_s - own.age_s
    if own.uplink > 0 and older_s > -RECENT_S and _contradict(told, own):
        both = f"{TOPIC} says {told.uplink / 1e6:.2g} MB/s up, {TRANSFERS} {own.uplink / 1e6:.2g}: the latter count"
        return replace(situation, source=TRANSFERS), both if older_s <= RECENT_S else ""
    forecasts = {mode: rested(forecast, own, told) for mode, forecast in situation.forecasts.items()}
    return replace(situation, forecasts=forecasts, link=told, source=TOPIC), ""


def _contradict(one: LinkReading, other: LinkReading) -> bool:
    apart = abs(math.log(one.uplink / other.uplink))
    doubts = [reading.uplink_error for reading in (one, other) if math.isfinite(reading.uplink_error)]
    return apart > max(CHANGE, SURPRISE * math.hypot(*doubts))


def rested(forecast: Forecast, own: LinkReading, told: LinkReading) -> Forecast:
    """A forecast that was made for the link of ``own``, for that of ``told``.

    What a frame puts on the link takes as much longer or shorter as the rates say. Where a plan would change with the
    bandwidth, too, that is an upper bound.
    """
    if not TABLE[forecast.mode].needs_link or not forecast.known or not forecast.bytes_up:
        return forecast
    if own.uplink <= 0:
        return forecast
    before_s, after_s = (_transfer_s(forecast, reading.cautious) for reading in (own, told))
    change_s = min(after_s, GIVE_UP_S) - min(before_s, GIVE_UP_S)
    # what was not known of the link before is gone with its part; that of the new rate takes its place
    gone_s = before_s * min(1.0, own.uplink_error) if math.isfinite(own.uplink_error) else 0.0
    rest_s = math.sqrt(max(0.0, forecast.doubt_s**2 - gone_s**2))
    doubt_s = min(after_s, GIVE_UP_S) * min(1.0, told.uplink_error)
    latency_s = max(forecast.latency_s + change_s, min(after_s, GIVE_UP_S), 1e-6)
    return replace(
        forecast,
        latency_s=latency_s,
        error_s=min(math.hypot(forecast.error_s, doubt_s), max(latency_s, forecast.error_s)),
        doubt_s=math.hypot(rest_s, doubt_s),
    )


def _transfer_s(forecast: Forecast, reading: LinkReading) -> float:
    """Time of a frame's bytes on the link, both ways, without its delay."""
    down = reading.downlink if reading.downlink > 0 else reading.uplink
    return forecast.bytes_up / reading.uplink + forecast.bytes_down / down
