"""Converts the library's types to messages of edge_offload, and back."""

from __future__ import annotations

import math
from typing import Any, Dict, Optional

import rospy
from std_msgs.msg import Header

from edge_offload.errors import BadInput
from edge_offload.link.estimate.estimator import ACTIVE, PASSIVE, LinkReading
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.replies import LinkState
from edge_offload.manager.forecast import Forecast as ModeForecast
from edge_offload.manager.policy import Situation
from edge_offload.mode import TABLE, Mode, parse_mode
from edge_offload.perception.timeline import stamp_of
from edge_offload.runtime.carrying import FRESH, NONE, Along
from edge_offload.timing import STAGES, InferenceReport
from edge_offload_msgs.msg import Bandwidth, Forecast, Latency, OffloadMode, ResultOrigin

MAX_DURATION_S = 2.0**31 - 1
"""Seconds; what a ROS duration holds."""


def ros_duration(seconds: float) -> rospy.Duration:
    """A ROS duration; what is not finite becomes 0, what is too long the longest there is."""
    if not math.isfinite(seconds):
        return rospy.Duration()
    nanoseconds = round(min(max(seconds, -MAX_DURATION_S), MAX_DURATION_S) * 1e9)
    # floats of seconds are truncated by Duration.from_sec
    return rospy.Duration(*divmod(nanoseconds, 1_000_000_000))


def copy_header(header: Any) -> Header:
    """A header of its own with the same stamp and frame (publishing writes a sequence number into the one it gets)."""
    return Header(stamp=header.stamp, frame_id=header.frame_id)


NOTHING: Along[Any] = Along(None, NONE)
"""Of a frame that could not be used."""


def origin_message(header: Any, along: Optional[Along[Any]] = None) -> ResultOrigin:
    """Make the origin of the result of the frame with ``header``; by default the network saw it itself."""
    if along is None or along.origin == FRESH:
        return ResultOrigin(origin=FRESH, seen=header.stamp, expected_drop=0.0)
    seen = rospy.Time(*divmod(stamp_of(along.source), 10**9))
    return ResultOrigin(origin=along.origin, seen=seen, expected_drop=along.drop)


def latency_message(report: InferenceReport, header: Any, camera: str = "", client: Optional[Client] = None) -> Latency:
    """Make the costs of the inference of the frame with ``header``, and the link's state; the energy stays 0."""
    message = Latency(
        header=copy_header(header),
        frame_seq=header.seq,
        camera=camera,
        model=report.model,
        mode=report.mode.value,
        mode_code=TABLE[report.mode].code,
        engine=report.engine,
        fallback_reason=report.fallback_reason,
        total=ros_duration(report.total_s),
        clock_error=ros_duration(report.clock_error_s),
        bytes_up=report.bytes_up,
        bytes_down=report.bytes_down,
        round_trips=report.round_trips,
        emulated_slowdown=report.emulated_slowdown,
        deadline_met=True,
        overlap_ratio=math.nan,
        idle_robot=math.nan,
        idle_server=math.nan,
    )
    if math.isfinite(report.overlap_s):
        message.overlap_ratio = min(report.overlap_s / max(report.total_s, 1e-9), 1.0)
        message.idle_robot, message.idle_server = report.idle()
    for stage in STAGES:
        setattr(message, stage, ros_duration(report.stages_s[stage]))
    if client is not None and client.state is LinkState.READY:
        reading = client.clock
        message.connected = True
        message.link_round_trip = ros_duration(reading.rtt_s)
        message.clock_offset = ros_duration(reading.offset_s)
        if not message.round_trips:
            message.clock_error = ros_duration(reading.error_s)
    return message


def report_of(message: Any) -> InferenceReport:
    """The report in a ``Latency`` message.

    Raises:
        BadInput: it names a mode that does not exist.
    """
    stages: Dict[str, float] = {stage: getattr(message, stage).to_sec() for stage in STAGES}
    return InferenceReport(
        mode=parse_mode(message.mode),
        model=message.model,
        total_s=message.total.to_sec(),
        stages_s=stages,
        bytes_up=message.bytes_up,
        bytes_down=message.bytes_down,
        round_trips=message.round_trips,
        clock_error_s=message.clock_error.to_sec(),
        emulated_slowdown=message.emulated_slowdown,
        fallback_reason=message.fallback_reason,
        engine=message.engine,
        overlap_s=message.overlap_ratio * message.total.to_sec(),
    )


def forecast_message(situation: Situation, header: Any, task: str = "") -> Forecast:
    """Make the forecasts of the next frame; ``task``: where it takes turns with others."""
    forecasts = list(situation.forecasts.values())
    return Forecast(
        header=copy_header(header),
        task=task,
        mode=[forecast.mode.value for forecast in forecasts],
        latency=[ros_duration(forecast.latency_s) for forecast in forecasts],
        error=[ros_duration(forecast.error_s) for forecast in forecasts],
        doubt=[ros_duration(forecast.standard_error_s) for forecast in forecasts],
        covariance=[one.covariance.get(other.mode, 0.0) for one in forecasts for other in forecasts],
        energy=[forecast.energy_j for forecast in forecasts],
        bytes_up=[forecast.bytes_up for forecast in forecasts],
        bytes_down=[forecast.bytes_down for forecast in forecasts],
        obstacle=[forecast.unavailable_reason for forecast in forecasts],
        absent=[mode.value for mode in situation.absent],
        remedy=list(situation.absent.values()),
        deadline=ros_duration(situation.deadline_s or 0.0),
        server_load=situation.load,
        uplink=situation.link.uplink,
        downlink=situation.link.downlink,
        link_error=situation.link.uplink_error if math.isfinite(situation.link.uplink_error) else math.nan,
        link_age=ros_duration(min(situation.link.age_s, MAX_DURATION_S)),
    )


def situation_of(message: Any, now_s: float, power_budget_w: float = math.inf) -> Situation:
    """Return a policy's inputs from a ``Forecast`` message.

    Raises:
        BadInput: its arrays do not fit together, or it names a mode that does not exist.
    """
    arrays = (message.mode, message.latency, message.error, message.doubt, message.energy, message.obstacle)
    if len({len(array) for array in arrays}) != 1:
        raise BadInput("the arrays of a forecast differ in length", remedy="one entry per mode in each")
    sizes = [array or [0] * len(message.mode) for array in (message.bytes_up, message.bytes_down)]
    if {len(array) for array in sizes} - {len(message.mode)}:
        raise BadInput("the sizes in a forecast are not those of its modes", remedy="one entry per mode, or none")
    if len(message.covariance) not in (0, len(message.mode) ** 2):
        raise BadInput("the covariance in a forecast is not that of its modes", remedy="one entry per pair, or none")
    absent = {parse_mode(name): why for name, why in zip(message.absent, message.remedy)}
    modes, forecasts = [parse_mode(name) for name in message.mode], {}
    for index in range(len(modes)):
        mode, seconds, why = modes[index], message.latency[index].to_sec(), message.obstacle[index]
        row = message.covariance[index * len(modes) : (index + 1) * len(modes)]
        if seconds > 0:
            forecasts[mode] = ModeForecast(
                mode, seconds, message.error[index].to_sec(), float(message.energy[index]), why,
                standard_error_s=message.doubt[index].to_sec(), bytes_up=sizes[0][index], bytes_down=sizes[1][index],
                covariance=dict(zip(modes, row)),
            )  # fmt: skip
        else:
            forecasts[mode] = ModeForecast(mode, unavailable_reason=why)
    load, deadline_s = float(message.server_load), message.deadline.to_sec() or None
    return Situation(now_s, forecasts, deadline_s, load, power_budget_w, absent, link_of(message))


def link_of(message: Any) -> LinkReading:
    """The link that a ``Forecast`` message rests on: as the frames' own transfers show it."""
    if not (message.uplink > 0 and message.downlink >= 0):
        return LinkReading()
    error = float(message.link_error) if message.link_error >= 0 else math.inf
    age_s = max(0.0, message.link_age.to_sec())
    return LinkReading(float(message.uplink), float(message.downlink), error, error, source=PASSIVE, age_s=age_s)


def reading_of(message: Any) -> LinkReading:
    """Return the reading in a ``Bandwidth`` message.

    Raises:
        BadInput: it says what no link can be.
    """
    rates = (message.uplink, message.downlink, message.uplink_error, message.downlink_error, message.age.to_sec())
    if not all(math.isfinite(value) and value >= 0 for value in rates):
        raise BadInput(f"offload/bandwidth says rates, errors or an age that cannot be: {rates}")
    if message.source == Bandwidth.NONE:
        return LinkReading()
    errors = (message.uplink_error or math.inf, message.downlink_error or math.inf)
    source = ACTIVE if message.source == Bandwidth.ACTIVE else PASSIVE
    rtt_s = message.round_trip.to_sec() or math.nan
    return LinkReading(message.uplink, message.downlink, *errors, rtt_s, source, message.samples, rates[-1])


def mode_message(mode: Mode, policy: str, reason: str) -> OffloadMode:
    """The mode in force from now on."""
    header = Header(stamp=rospy.Time.now())
    return OffloadMode(header=header, mode=mode.value, code=TABLE[mode].code, policy=policy, reason=reason)
