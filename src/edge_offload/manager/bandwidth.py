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
class TopicReading:
    """The topic's latest reading and its time of arrival (monotonic seconds), from which its age counts on."""

    reading: LinkReading
    received_s: float

    def at(self, now: float) -> LinkReading:
        """The reading, as old as it is now."""
        return replace(self.reading, age_s=self.reading.age_s + max(0.0, now - self.received_s))


def informed(situation: Situation, latest: Optional[TopicReading], since_s: float) -> Tuple[Situation, str]:
    """Return the situation with forecasts for the link as it is known best, and what is wrong with the topic.

    Args:
        situation: forecasts, and the reading of the link that they rest on.
        latest: what the topic last said; None: nothing yet.
        since_s: since when the topic has been listened to (monotonic).
    """
    if not any(TABLE[mode].needs_link for mode in situation.forecasts):
        return situation, ""
    now, transfers = situation.now_s, situation.link
    silent_s = now - (since_s if latest is None else latest.received_s)
    silent = f"{TOPIC} has been silent for {silent_s:.0f} s: forecasts go by {TRANSFERS} alone"
    if latest is None or silent_s > RECENT_S:
        return replace(
            situation, source=TRANSFERS if transfers.uplink > 0 else ""
        ), silent if silent_s > RECENT_S else ""
    topic = latest.at(now)
    situation = replace(situation, bandwidth=topic)
    if topic.uplink <= 0:
        return replace(situation, source=TRANSFERS if transfers.uplink > 0 else ""), ""
    older_s = topic.age_s - transfers.age_s
    if transfers.uplink > 0 and older_s > -RECENT_S and _contradict(topic, transfers):
        both = (
            f"{TOPIC} says {topic.uplink / 1e6:.2g} MB/s up, {TRANSFERS} {transfers.uplink / 1e6:.2g}: the latter count"
        )
        return replace(situation, source=TRANSFERS), both if older_s <= RECENT_S else ""
    forecasts = {mode: rested(forecast, transfers, topic) for mode, forecast in situation.forecasts.items()}
    return replace(situation, forecasts=forecasts, link=topic, source=TOPIC), ""


def _contradict(one: LinkReading, other: LinkReading) -> bool:
    distance = abs(math.log(one.uplink / other.uplink))
    doubts = [reading.uplink_error for reading in (one, other) if math.isfinite(reading.uplink_error)]
    return distance > max(CHANGE, SURPRISE * math.hypot(*doubts))


def rested(forecast: Forecast, transfers: LinkReading, topic: LinkReading) -> Forecast:
    """Return a forecast that was made for the link of ``transfers``, for that of ``topic``.

    What a frame puts on the link takes as much longer or shorter as the rates say. Where a plan would change with the
    bandwidth, too, that is an upper bound.
    """
    if not TABLE[forecast.mode].needs_link or not forecast.measured or not forecast.bytes_up:
        return forecast
    if transfers.uplink <= 0:
        return forecast
    before_s, after_s = (_transfer_s(forecast, reading.cautious) for reading in (transfers, topic))
    change_s = min(after_s, GIVE_UP_S) - min(before_s, GIVE_UP_S)
    # what was not known of the link before is gone with its part; that of the new rate takes its place
    replaced_s = before_s * min(1.0, transfers.uplink_error) if math.isfinite(transfers.uplink_error) else 0.0
    rest_s = math.sqrt(max(0.0, forecast.doubt_s**2 - replaced_s**2))
    doubt_s = min(after_s, GIVE_UP_S) * min(1.0, topic.uplink_error)
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
