"""Conversion of ROS messages to records.

Only attributes of the messages are read, so that bags can be converted without rospy. Every converter takes a message
and ``t_s``, the time of its receipt (s since 1970).
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from edge_offload.dashboard.stream import Record
from edge_offload.mode import TABLE
from edge_offload.timing import SHARES, STAGES

MAX_TEXT = 500
"""Most characters of a free text."""

MAX_FRAME_BYTES = 4 << 20
"""Largest picture that is shown."""

_MODES = {known_mode.value for known_mode in TABLE}
#: Names of the messages' constants, by number.
_ENERGY = {0: "unknown", 1: "measured", 2: "model"}
_STATES = {0: "unknown", 1: "standby", 2: "communication", 3: "inference"}
_SOURCES = {0: "none", 1: "passive", 2: "active"}
_SERVER_STATES = {1: "ready", 2: "stopping"}
_LEVELS = ("ok", "warn", "error", "stale")


def _to_finite(value: float, low: float = 0.0) -> float:
    """Return ``value``, or ``low`` if it is less or not finite.

    Messages may hold NaN, or negative durations after a step of the clock.
    """
    return max(low, float(value)) if math.isfinite(value) else low


def _to_seconds(value: Any) -> float:
    return _to_finite(value.to_sec())


def _to_share(value: float) -> Optional[float]:
    """Return a share from 0 to 1; None: unknown."""
    return min(_to_finite(value), 1.0) if math.isfinite(value) else None


def _shorten_text(value: str) -> str:
    return value if len(value) <= MAX_TEXT else value[: MAX_TEXT - 1] + "…"


def convert_latency(message: Any, t_s: float) -> Optional[Record]:
    """Convert Latency; return None if its mode is unknown to this version."""
    if message.mode not in _MODES:
        return None
    return {
        "kind": "latency",
        "t_s": t_s,
        "stamp_s": message.header.stamp.to_sec(),
        **({"camera": _shorten_text(message.camera)} if getattr(message, "camera", "") else {}),
        "model": _shorten_text(message.model),
        "mode": message.mode,
        "engine": _shorten_text(message.engine),
        "fallback_reason": _shorten_text(message.fallback_reason),
        "error": _shorten_text(message.error),
        "total_s": _to_seconds(message.total),
        "stages_s": {stage: _to_seconds(getattr(message, stage)) for stage in STAGES},
        "bytes_up": message.bytes_up,
        "bytes_down": message.bytes_down,
        "round_trips": message.round_trips,
        **{name: _to_share(getattr(message, name, math.nan)) for name in SHARES},
        "connected": bool(message.connected),
        "round_trip_s": _to_seconds(message.link_round_trip),
        "deadline_s": _to_seconds(message.deadline),
        "deadline_met": bool(message.deadline_met),
        "robot_slowdown": _to_finite(message.emulated_slowdown),
        "energy_j": _to_finite(message.energy) if math.isfinite(message.energy) else None,
        "energy_source": _ENERGY.get(message.energy_source, "unknown"),
    }


def convert_people(message: Any, t_s: float) -> Optional[Record]:
    """Convert PersonArray."""
    return {"kind": "people", "t_s": t_s, "people": len(message.people), **_result_origin(message)}


def convert_scene(message: Any, t_s: float) -> Optional[Record]:
    """Convert SemanticGrid."""
    return {"kind": "scene", "t_s": t_s, **_result_origin(message)}


def _result_origin(message: Any) -> Record:
    """Return ``{"origin": ...}`` of a result that is not fresh, else ``{}``; messages of earlier versions lack it."""
    origin = getattr(getattr(message, "result", None), "origin", "")
    return {"origin": origin} if origin in ("carried", "local", "none") else {}


def mode(message: Any, t_s: float) -> Optional[Record]:
    """Convert OffloadMode; return None if its mode is unknown to this version."""
    if message.mode not in _MODES:
        return None
    return {
        "kind": "mode",
        "t_s": t_s,
        "mode": message.mode,
        "policy": _shorten_text(message.policy),
        "reason": _shorten_text(message.reason),
    }


def convert_bandwidth(message: Any, t_s: float) -> Optional[Record]:
    """Convert Bandwidth."""
    return {
        "kind": "bandwidth",
        "t_s": t_s,
        "peer": _shorten_text(message.peer),
        "connected": bool(message.connected),
        "source": _SOURCES.get(message.source, "none"),
        "uplink_bytes_per_s": _to_finite(message.uplink),
        "downlink_bytes_per_s": _to_finite(message.downlink),
        "round_trip_s": _to_seconds(message.round_trip),
        "age_s": _to_seconds(message.age),
        "samples": message.samples,
    }


def convert_power(message: Any, t_s: float) -> Optional[Record]:
    """Convert Power; return None if its watts are not finite (unknown)."""
    if not math.isfinite(message.watts):
        return None
    return {
        "kind": "power",
        "t_s": t_s,
        "host": _shorten_text(message.host),
        "watts": _to_finite(message.watts),
        "joules": _to_finite(message.joules),
        "source": _ENERGY.get(message.source, "unknown"),
        "sensor": _shorten_text(message.sensor),
        "state": _STATES.get(message.state, "unknown"),
    }


def convert_server(message: Any, t_s: float) -> Optional[Record]:
    """Convert ServerStatus."""
    return {
        "kind": "server",
        "t_s": t_s,
        "address": _shorten_text(message.address),
        "device": _shorten_text(message.device),
        "state": _SERVER_STATES.get(message.state, "unknown"),
        "robots": message.robots,
        "queue_length": message.queue_length,
        "load": _to_finite(message.load),
        "memory_bytes": message.memory,
        "inferences": message.inferences,
        "refused": message.refused,
        "failed": message.failed,
    }


class DiagnosticChanges:
    """Converter of DiagnosticArray that returns a record only where a status has changed.

    Args:
        pause_s: seconds between two records of one status whose text changes but whose level does not.
    """

    MAX_NAMES = 256  # statuses of further names are left out

    def __init__(self, pause_s: float = 5.0) -> None:
        self._pause_s = pause_s
        self._reported: Dict[str, Tuple[str, str, float]] = {}  # by name: level, text with battery, t_s

    def changed_records(self, message: Any, t_s: float) -> List[Record]:
        """Return a record of every status in ``message`` that has changed."""
        changes = []
        for status in message.status:
            # the level is a byte in some versions of the message class, an integer in others
            number = status.level if isinstance(status.level, int) else ord(status.level)
            level = _LEVELS[number] if 0 <= number < len(_LEVELS) else "stale"
            name, text = _shorten_text(status.name), _shorten_text(status.message)
            last_level, last_text, reported_at = self._reported.get(name, ("", "", -math.inf))
            battery = next((_shorten_text(item.value) for item in status.values if item.key == "battery"), "")
            content = f"{text} {battery}"
            same = last_level == level and (last_text == content or 0 <= t_s - reported_at < self._pause_s)
            if same or (name not in self._reported and len(self._reported) >= self.MAX_NAMES):
                continue
            self._reported[name] = (level, content, t_s)
            record = {"kind": "diagnostic", "t_s": t_s, "name": name, "level": level, "message": text}
            changes.append({**record, "battery": battery} if battery else record)
        return changes


class Topic(NamedTuple):
    """Topic whose messages become records of one kind.

    Attributes:
        name: relative name of the topic.
        package, message: type of its messages.
        convert: makes a record from a message and its time of receipt (s since 1970); None: it cannot be used.
    """

    name: str
    package: str
    message: str
    convert: Callable[[Any, float], Optional[Record]]


TOPICS: Dict[str, Topic] = {
    "latency": Topic("offload/latency", "edge_offload_msgs", "Latency", convert_latency),
    "people": Topic("kapao/people", "edge_offload_msgs", "PersonArray", convert_people),
    "scene": Topic("agrnav/semantic_grid", "edge_offload_msgs", "SemanticGrid", convert_scene),
    "mode": Topic("offload/mode", "edge_offload_msgs", "OffloadMode", mode),
    "bandwidth": Topic("offload/bandwidth", "edge_offload_msgs", "Bandwidth", convert_bandwidth),
    "power": Topic("offload/power", "edge_offload_msgs", "Power", convert_power),
    "server": Topic("server/status", "edge_offload_msgs", "ServerStatus", convert_server),
}
"""Topics by kind of record, without /diagnostics and the pictures."""

DIAGNOSTICS_TOPIC = "/diagnostics"
FRAME_TOPIC = "kapao/overlay/compressed"


def picture_bytes(message: Any) -> Optional[bytes]:
    """Return the JPEG or PNG file in a CompressedImage; None: another format, or over :data:`MAX_FRAME_BYTES`.

    The first bytes decide, because format strings vary.
    """
    data = bytes(message.data)
    supported = data.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"))
    return data if supported and len(data) <= MAX_FRAME_BYTES else None
