"""Events of a run, derived from its records, as texts for people."""

from __future__ import annotations

import math
import re
from typing import Any, Callable, Dict, List, Optional

from edge_offload.dashboard.stream import Record

Event = Dict[str, Any]
"""``t_s`` (s since 1970), ``level`` (info, ok, warn, error), ``what`` (a word) and ``text``."""

_DURATION = re.compile(r"\d+(?:\.\d+)?(?= m?s\b)")


def without_durations(reason: str) -> str:
    """Replace durations in ``reason`` by "…", so that "not answered for 0.31 s" and "... for 0.49 s" are equal."""
    return _DURATION.sub("…", reason)


class Streak:
    """Consecutive frames with the same fault: one event at their start, one with their number at the end.

    Args:
        what: name of the fault.
        verb: verb of the event's text.
        level: level of the event.
        gap_s: seconds without the fault that end the streak; shorter gaps do not.
    """

    def __init__(self, what: str, verb: str, level: str, gap_s: float = 3.0) -> None:
        self._what = what
        self._verb = verb
        self._level = level
        self._gap_s = gap_s
        self._why: Optional[str] = None
        self._count = 0
        self._begun_s = self._last_s = 0.0

    def add_frame(self, t_s: float, why: Optional[str]) -> List[Event]:
        """Add a frame with its fault ``why`` (None: no fault) and return new events."""
        if why is None:
            return self.end_streak() if t_s - self._last_s > self._gap_s else []
        if self._why is not None and without_durations(why) == without_durations(self._why):
            self._count, self._last_s = self._count + 1, t_s
            return []
        events = self.end_streak()
        self._why, self._count, self._begun_s, self._last_s = why, 1, t_s, t_s
        return [*events, make_event(t_s, self._level, self._what, f"frames {self._verb}: {why}")]

    def end_streak(self) -> List[Event]:
        """End the streak and return its last event, if it had several frames."""
        why, self._why = self._why, None
        # the event of its start says everything of a single frame
        if why is None or self._count == 1:
            return []
        lasted = max(0.0, self._last_s - self._begun_s)
        text = f"{self._count} frames {self._verb} in {lasted:.1f} s: {why}"
        return [make_event(self._last_s, "info", self._what, text)]


def make_event(t_s: float, level: str, what: str, text: str) -> Event:
    """Make an event."""
    return {"t_s": t_s, "level": level, "what": what, "text": text}


class Digest:
    """Derives events from the records of a run, one by one.

    Args:
        silence_s: seconds without a frame that make an event.
    """

    def __init__(self, silence_s: float = 5.0) -> None:
        self._silence_s = silence_s
        self._readers: Dict[str, Callable[[Record], List[Event]]] = {
            "about": self._digest_about,
            "latency": self._digest_latency,
            "mode": self._digest_mode,
            "bandwidth": self._digest_bandwidth,
            "server": self._digest_server,
            "diagnostic": self._digest_diagnostic,
        }
        self._in_force = ""
        self._ran = ""
        self._frame_s = -math.inf
        self._connected: Optional[bool] = None
        self._server_seen: Dict[str, Any] = {}
        self._levels: Dict[str, str] = {}
        self._fallback = Streak("fallback", "fell back", "warn")
        self._late = Streak("deadline", "missed their deadline", "warn")
        self._unusable = Streak("frame", "could not be used", "error")

    def digest_record(self, record: Record) -> List[Event]:
        """Return the events of ``record``."""
        reader = self._readers.get(record["kind"])
        return [] if reader is None else reader(record)

    def finish(self) -> List[Event]:
        """Return the events of the streaks that the run's end closes."""
        return self._unusable.end_streak() + self._fallback.end_streak() + self._late.end_streak()

    def _digest_about(self, record: Record) -> List[Event]:
        link = record.get("link")
        return [make_event(record["t_s"], "info", "run", f"emulated link: {link}")] if link and link != "none" else []

    def _digest_latency(self, record: Record) -> List[Event]:
        t_s, events = record["t_s"], []
        # a slow frame is no silence
        pause, self._frame_s = t_s - record["total_s"] - self._frame_s, t_s
        if self._silence_s <= pause < math.inf:
            events.append(make_event(t_s, "warn", "frames", f"no frame for {pause:.1f} s"))
        error = record.get("error") or None
        events += self._unusable.add_frame(t_s, error)
        if error is None:
            events += self._fallback.add_frame(t_s, record.get("fallback_reason") or None)
            deadline = record.get("deadline_s", 0.0)
            missed = deadline > 0 and not record.get("deadline_met", True)
            events += self._late.add_frame(t_s, f"the deadline is {deadline * 1e3:.0f} ms" if missed else None)
            # the events of fallbacks and of the mode in force report such changes
            explained = record.get("fallback_reason") or record["mode"] == self._in_force
            if record["mode"] != self._ran and not explained:
                events.append(make_event(t_s, "info", "ran", f"frames run in mode {record['mode']} from here on"))
            self._ran = record["mode"]
        return events

    def _digest_mode(self, record: Record) -> List[Event]:
        if record["mode"] == self._in_force:
            return []
        before, self._in_force = self._in_force, record["mode"]
        change = f"{before} → {record['mode']}" if before else record["mode"]
        return [make_event(record["t_s"], "info", "mode", f"{change}: {record['reason']}")]

    def _digest_bandwidth(self, record: Record) -> List[Event]:
        connected, before = record["connected"], self._connected
        self._connected = connected
        if connected == before:
            return []
        peer = record.get("peer") or "the server"
        if connected:
            return [make_event(record["t_s"], "ok", "link", f"{peer} answers")]
        # without a first answer the link was never up
        return [] if before is None else [make_event(record["t_s"], "error", "link", f"{peer} does not answer")]

    def _digest_server(self, record: Record) -> List[Event]:
        before, self._server_seen, t_s = self._server_seen, record, record["t_s"]
        events = []
        if record.get("state") != before.get("state"):
            level = "ok" if record.get("state") == "ready" else "warn"
            name = record.get("address", "the server")
            events.append(make_event(t_s, level, "server", f"{name} is {record.get('state')}"))
        for key, text in (("refused", "requests refused"), ("failed", "requests failed")):
            more = record.get(key, 0) - before.get(key, record.get(key, 0))
            if more > 0:
                events.append(make_event(t_s, "warn", "server", f"{more} {text}"))
        if before and record.get("robots", 0) != before.get("robots", 0):
            robots = record.get("robots", 0)
            events.append(make_event(t_s, "info", "server", f"{robots} robot{'' if robots == 1 else 's'} connected"))
        return events

    def _digest_diagnostic(self, record: Record) -> List[Event]:
        name, level = record["name"], record["level"]
        before = self._levels.get(name)
        if before is None and len(self._levels) >= 256:  # a bound on memory
            return []
        self._levels[name] = level
        # neither a node that starts well nor a new text of a healthy one is an event
        if level == "ok" and before in (None, "ok"):
            return []
        shown = {"ok": "ok", "error": "error"}.get(level, "warn")
        node = name.split(":")[0].lstrip("/")
        return [make_event(record["t_s"], shown, "node", f"{node}: {record['message']}")]
