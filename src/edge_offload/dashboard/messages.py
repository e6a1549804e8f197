"""Records of ROS messages. Messages are known by their attributes alone, so that a bag can be read without rospy."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from edge_offload.dashboard.stream import Record
from edge_offload.mode import TABLE
from edge_offload.timing import SHARES, STAGES

MAX_TEXT = 500
"""Characters of a free text that are kept."""

MAX_FRAME_BYTES = 4 << 20
"""Size of a picture that is still shown."""

_MODES = {mode.value for mode in TABLE}
_ENERGY = {0: "unknown", 1: "measured", 2: "model"}
_STATES = {0: "unknown", 1: "standby", 2: "communication", 3: "inference"}
_SOURCES = {0: "none", 1: "passive", 2: "active"}
_SERVER_STATES = {1: "ready", 2: "stopping"}
_LEVELS = ("ok", "warn", "error", "stale")


def _number(value: float, low: float = 0.0) -> float:
    """What JSON can say: a message may hold NaN, or a negative duration when a clock was stepped."""
    return max(low, float(value)) if math.isfinite(value) else low


def _seconds(value: Any) -> float:
    return _number(value.to_sec())


def _share(value: float) -> Optional[float]:
    """A share, or None where it is not known."""
    return min(_number(value), 1.0) if math.isfinite(value) else None


def _text(value: str) -> str:
    return value if len(value) <= MAX_TEXT else value[: MAX_TEXT - 1] + "…"


def latency(message: Any, t_s: float) -> Optional[Record]:
    """Of Latency. None when it names a mode that this version does not know."""
    if message.mode not in _MODES:
        return None
    return {
        "kind": "latency",
        "t_s": t_s,
        "stamp_s": message.header.stamp.to_sec(),
        **({"camera": _text(message.camera)} if getattr(message, "camera", "") else {}),
        "model": _text(message.model),
        "mode": message.mode,
        "engine": _text(message.engine),
        "fallback_reason": _text(message.fallback_reason),
        "error": _text(message.error),
        "total_s": _seconds(message.total),
        "stages_s": {stage: _seconds(getattr(message, stage)) for stage in STAGES},
        "bytes_up": message.bytes_up,
        "bytes_down": message.bytes_down,
        "round_trips": message.round_trips,
        **{name: _share(getattr(message, name, math.nan)) for name in SHARES},
        "connected": bool(message.connected),
        "round_trip_s": _seconds(message.link_round_trip),
        "deadline_s": _seconds(message.deadline),
        "deadline_met": bool(message.deadline_met),
        "robot_slowdown": _number(message.emulated_slowdown),
        "energy_j": _number(message.energy) if math.isfinite(message.energy) else None,
        "energy_source": _ENERGY.get(message.energy_source, "unknown"),
    }


def people(message: Any, t_s: float) -> Optional[Record]:
    """Of PersonArray."""
    return {"kind": "people", "t_s": t_s, "people": len(message.people), **_origin(message)}


def scene(message: Any, t_s: float) -> Optional[Record]:
    """Of SemanticGrid."""
    return {"kind": "scene", "t_s": t_s, **_origin(message)}


def _origin(message: Any) -> Record:
    """Where a result comes from, unless it is fresh; messages of earlier versions do not say it."""
    origin = getattr(getattr(message, "result", None), "origin", "")
    return {"origin": origin} if origin in ("carried", "local", "none") else {}


def mode(message: Any, t_s: float) -> Optional[Record]:
    """Of OffloadMode. None when it names a mode that this version does not know."""
    if message.mode not in _MODES:
        return None
    return {
        "kind": "mode",
        "t_s": t_s,
        "mode": message.mode,
        "policy": _text(message.policy),
        "reason": _text(message.reason),
    }


def bandwidth(message: Any, t_s: float) -> Optional[Record]:
    """Of Bandwidth."""
    return {
        "kind": "bandwidth",
        "t_s": t_s,
        "peer": _text(message.peer),
        "connected": bool(message.connected),
        "source": _SOURCES.get(message.source, "none"),
        "uplink_bytes_per_s": _number(message.uplink),
        "downlink_bytes_per_s": _number(message.downlink),
        "round_trip_s": _seconds(message.round_trip),
        "age_s": _seconds(message.age),
        "samples": message.samples,
    }


def power(message: Any, t_s: float) -> Optional[Record]:
    """Of Power; None where nobody knows what the machine draws."""
    if not math.isfinite(message.watts):
        return None
    return {
        "kind": "power",
        "t_s": t_s,
        "host": _text(message.host),
        "watts": _number(message.watts),
        "joules": _number(message.joules),
        "source": _ENERGY.get(message.source, "unknown"),
        "sensor": _text(message.sensor),
        "state": _STATES.get(message.state, "unknown"),
    }


def server(message: Any, t_s: float) -> Optional[Record]:
    """Of ServerStatus."""
    return {
        "kind": "server",
        "t_s": t_s,
        "address": _text(message.address),
        "device": _text(message.device),
        "state": _SERVER_STATES.get(message.state, "unknown"),
        "robots": message.robots,
        "queue_length": message.queue_length,
        "load": _number(message.load),
        "memory_bytes": message.memory,
        "inferences": message.inferences,
        "refused": message.refused,
        "failed": message.failed,
    }


class Diagnostics:
    """Records of DiagnosticArray: what changed, and of texts that change all the time at most one in ``pause_s``."""

    MAX_NAMES = 256

    def __init__(self, pause_s: float = 5.0) -> None:
        self._pause_s = pause_s
        self._said: Dict[str, Tuple[str, str, float]] = {}

    def records(self, message: Any, t_s: float) -> List[Record]:
        """What is new in ``message``."""
        found = []
        for status in message.status:
            # a byte in Python 2 messages, a number in Python 3 ones
            number = status.level if isinstance(status.level, int) else ord(status.level)
            level = _LEVELS[number] if 0 <= number < len(_LEVELS) else "stale"
            name, text = _text(status.name), _text(status.message)
            said_level, said_text, said_at = self._said.get(name, ("", "", -math.inf))
            battery = next((_text(item.value) for item in status.values if item.key == "battery"), "")
            whole = f"{text} {battery}"
            same = said_level == level and (said_text == whole or 0 <= t_s - said_at < self._pause_s)
            if same or (name not in self._said and len(self._said) >= self.MAX_NAMES):
                continue
            self._said[name] = (level, whole, t_s)
            record = {"kind": "diagnostic", "t_s": t_s, "name": name, "level": level, "message": text}
            found.append({**record, "battery": battery} if battery else record)
        return found


class Topic(NamedTuple):
    """Where a kind of record comes from.

    Attributes:
        name: relative topic name (absolute for /diagnostics).
        package, message: its type.
        convert: message and time of receipt (s) to a record, or None.
    """

    name: str
    package: str
    message: str
    convert: Callable[[Any, float], Optional[Record]]


TOPICS: Dict[str, Topic] = {
    "latency": Topic("offload/latency", "edge_offload_msgs", "Latency", latency),
    "people": Topic("kapao/people", "edge_offload_msgs", "PersonArray", people),
    "scene": Topic("agrnav/semantic_grid", "edge_offload_msgs", "SemanticGrid", scene),
    "mode": Topic("offload/mode", "edge_offload_msgs", "OffloadMode", mode),
    "bandwidth": Topic("offload/bandwidth", "edge_offload_msgs", "Bandwidth", bandwidth),
    "power": Topic("offload/power", "edge_offload_msgs", "Power", power),
    "server": Topic("server/status", "edge_offload_msgs", "ServerStatus", server),
}
"""Topics by the kind of record that their messages become, /diagnostics and the pictures apart."""

DIAGNOSTICS_TOPIC = "/diagnostics"
FRAME_TOPIC = "kapao/overlay/compressed"


def picture(message: Any) -> Optional[bytes]:
    """The JPEG or PNG file in a CompressedImage, or None. Its format string varies, so the bytes decide."""
    data = bytes(message.data)
    known = data.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"))
    return data if known and len(data) <= MAX_FRAME_BYTES else None
