"""Chooses the bandwidth for forecasts: the topic ``offload/bandwidth``, or the measured transfers of frames.

The topic counts while its messages arrive, since it includes probes. If the two contradict each other, the topic counts
only if its measurement is more than :data:`.RECENT_S` newer; else the transfers of frames count. A contradiction
between measurements of about the same time is also reported: then a monitor is wrong. Pure: time comes in as an
argument.
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

#: Names of the two sources, in reasons.
TOPIC, TRANSFERS = "offload/bandwidth", "the frames' transfers"


@dataclass(frozen=True)
class TopicReading:
    """The topic's latest reading, and the time at which it was received (monotonic seconds)."""

    reading: LinkReading
    received_s: float

    def at(self, now: float) -> LinkReading:
        """Return the reading with its age at ``now``."""
        return replace(self.reading, age_s=self.reading.age_s + max(0.0, now - self.received_s))


def apply_topic_reading(situation: Situation, latest: Optional[TopicReading], since_s: float) -> Tuple[Situation, str]:
    """Return the situation with forecasts for the chosen bandwidth, and a problem of the topic (empty: none).

    Args:
        situation: forecasts, with ``link`` as the transfers of frames give it.
        latest: the topic's latest reading; None: none was received.
        since_s: time of the subscription to the topic (monotonic seconds).
    """
    if not any(TABLE[mode].needs_link for mode in situation.forecasts):
        return situation, ""
    now, transfers = situation.now_s, situation.link
    silent_s = now - (since_s if latest is None else latest.received_s)
    silence = f"{TOPIC} has been silent for {silent_s:.0f} s: forecasts go by {TRANSFERS} alone"
    if latest is None or silent_s > RECENT_S:
        return replace(
            situation, source=TRANSFERS if transfers.uplink > 0 else ""
        ), silence if silent_s > RECENT_S else ""
    topic = latest.at(now)
    situation = replace(situation, bandwidth=topic)
    if topic.uplink <= 0:
        return replace(situation, source=TRANSFERS if transfers.uplink > 0 else ""), ""
    older_s = topic.age_s - transfers.age_s  # negative: the topic's measurement is newer
    if transfers.uplink > 0 and older_s > -RECENT_S and _contradict(topic, transfers):
        conflict = (
            f"{TOPIC} says {topic.uplink / 1e6:.2g} MB/s up, {TRANSFERS} {transfers.uplink / 1e6:.2g}: the latter count"
        )
        return replace(situation, source=TRANSFERS), conflict if older_s <= RECENT_S else ""
    forecasts = {mode: convert_forecast(forecast, transfers, topic) for mode, forecast in situation.forecasts.items()}
    return replace(situation, forecasts=forecasts, link=topic, source=TOPIC), ""


def _contradict(one: LinkReading, other: LinkReading) -> bool:
    """Return True if the uplink rates differ by more than their errors and usual changes explain (logarithms)."""
    distance = abs(math.log(one.uplink / other.uplink))
    errors = [reading.uplink_error for reading in (one, other) if math.isfinite(reading.uplink_error)]
    return distance > max(CHANGE, SURPRISE * math.hypot(*errors))


def convert_forecast(forecast: Forecast, transfers: LinkReading, topic: LinkReading) -> Forecast:
    """Convert a forecast for the bandwidth of ``transfers`` to that of ``topic``.

    The transfer times of a frame's bytes change with the rates. If the mode's plan would change with the bandwidth too,
    the result is an upper bound of the latency.
    """
    if not TABLE[forecast.mode].needs_link or not forecast.measured or not forecast.bytes_up:
        return forecast
    if transfers.uplink <= 0:
        return forecast
    before_s, after_s = (_transfer_s(forecast, reading.cautious) for reading in (transfers, topic))
    change_s = min(after_s, GIVE_UP_S) - min(before_s, GIVE_UP_S)
    # the uncertainty of the new transfer time replaces that of the old one
    old_standard_error_s = before_s * min(1.0, transfers.uplink_error) if math.isfinite(transfers.uplink_error) else 0.0
    other_error_s = math.sqrt(max(0.0, forecast.standard_error_s**2 - old_standard_error_s**2))
    standard_error_s = min(after_s, GIVE_UP_S) * min(1.0, topic.uplink_error)
    latency_s = max(forecast.latency_s + change_s, min(after_s, GIVE_UP_S), 1e-6)
    return replace(
        forecast,
        latency_s=latency_s,
        error_s=min(math.hypot(forecast.error_s, standard_error_s), max(latency_s, forecast.error_s)),
        standard_error_s=math.hypot(other_error_s, standard_error_s),
    )


def _transfer_s(forecast: Forecast, reading: LinkReading) -> float:
    """Return the seconds of a frame's bytes on the link, both ways, without the propagation delay."""
    down = reading.downlink if reading.downlink > 0 else reading.uplink
    return forecast.bytes_up / reading.uplink + forecast.bytes_down / down
