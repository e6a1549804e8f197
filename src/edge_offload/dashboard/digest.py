"""The events among the records of a run, in words: what a person would have noted down."""

from __future__ import annotations

import math
import re
from typing import Any, Callable, Dict, List, Optional

from edge_offload.dashboard.stream import Record

Event = Dict[str, Any]
"""``t_s`` (s since 1970), ``level`` (info, ok, warn, error), ``what`` (a word) and ``text``."""

MAX_NAMES = 256
"""Nodes whose diagnostics are followed."""


_DURATION = re.compile(r"\d+(?:\.\d+)?(?= m?s\b)")


def without_durations(reason: str) -> str:
    """``reason`` with its seconds left out: "not answered for 0.31 s" and "... for 0.49 s" are the same reason."""
    return _DURATION.sub("…", reason)


class Streak:
    """Frames close together that share a fault: told when they begin, and how many they were when they are over.

    Args:
        what: the fault in a word.
        verb: what such frames did, in words.
        level: of the event.
        patience_s: good frames for this long end it; a fault that comes and goes is one event, not a hundred.
    """

    def __init__(self, what: str, verb: str, level: str, patience_s: float = 3.0) -> None:
        self._what = what
        self._verb = verb
        self._level = level
        self._patience_s = patience_s
        self._why: Optional[str] = None
        self._count = 0
        self._begun_s = self._last_s = 0.0

    def frame(self, t_s: float, why: Optional[str]) -> List[Event]:
        """One frame: ``why`` it is faulty, or None when it is not."""
        if why is None:
            return self.end() if t_s - self._last_s > self._patience_s else []
        if self._why is not None and without_durations(why) == without_durations(self._why):
            self._count, self._last_s = self._count + 1, t_s
            return []
        events = self.end()
        self._why, self._count, self._begun_s, self._last_s = why, 1, t_s, t_s
        return [*events, event(t_s, self._level, self._what, f"frames {self._verb}: {why}")]

    def end(self) -> List[Event]:
        """No more of them."""
        why, self._why = self._why, None
        # of a single frame everything has been said
        if why is None or self._count == 1:
            return []
        lasted = max(0.0, self._last_s - self._begun_s)
        return [event(self._last_s, "info", self._what, f"{self._count} frames {self._verb} in {lasted:.1f} s: {why}")]


def event(t_s: float, level: str, what: str, text: str) -> Event:
    """One line of the list of events."""
    return {"t_s": t_s, "level": level, "what": what, "text": text}


class Digest:
    """Takes the records of a run one after the other and gives the events that they make.

    Args:
        silence_s: seconds without a frame that are worth telling.
    """

    def __init__(self, silence_s: float = 5.0) -> None:
        self._silence_s = silence_s
        self._readers: Dict[str, Callable[[Record], List[Event]]] = {
            "about": self._about,
            "latency": self._latency,
            "mode": self._mode,
            "bandwidth": self._bandwidth,
            "server": self._server,
            "diagnostic": self._diagnostic,
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

    def events(self, record: Record) -> List[Event]:
        """What ``record`` tells that is new."""
        reader = self._readers.get(record["kind"])
        return [] if reader is None else reader(record)

    def finish(self) -> List[Event]:
        """What was still going on when the run ended."""
        return self._unusable.end() + self._fallback.end() + self._late.end()

    def _about(self, record: Record) -> List[Event]:
        link = record.get("link")
        return [event(record["t_s"], "info", "run", f"emulated link: {link}")] if link and link != "none" else []

    def _latency(self, record: Record) -> List[Event]:
        t_s, events = record["t_s"], []
        # a frame that takes long is not silence
        pause, self._frame_s = t_s - record["total_s"] - self._frame_s, t_s
        if self._silence_s <= pause < math.inf:
            events.append(event(t_s, "warn", "frames", f"no frame for {pause:.1f} s"))
        error = record.get("error") or None
        events += self._unusable.frame(t_s, error)
        if error is None:
            events += self._fallback.frame(t_s, record.get("fallback_reason") or None)
            deadline = record.get("deadline_s", 0.0)
            missed = deadline > 0 and not record.get("deadline_met", True)
            events += self._late.frame(t_s, f"the deadline is {deadline * 1e3:.0f} ms" if missed else None)
            # a fallback, or the mode in force, has said it already
            known = record.get("fallback_reason") or record["mode"] == self._in_force
            if record["mode"] != self._ran and not known:
                events.append(event(t_s, "info", "ran", f"frames run in mode {record['mode']} from here on"))
            self._ran = record["mode"]
        return events

    def _mode(self, record: Record) -> List[Event]:
        if record["mode"] == self._in_force:
            return []
        before, self._in_force = self._in_force, record["mode"]
        change = f"{before} → {record['mode']}" if before else record["mode"]
        return [event(record["t_s"], "info", "mode", f"{change}: {record['reason']}")]

    def _bandwidth(self, record: Record) -> List[Event]:
        connected, before = record["connected"], self._connected
        self._connected = connected
        if connected == before:
            return []
        peer = record.get("peer") or "the server"
        if connected:
            return [event(record["t_s"], "ok", "link", f"{peer} answers")]
        # before the first answer there was nothing to lose
        return [] if before is None else [event(record["t_s"], "error", "link", f"{peer} does not answer")]

    def _server(self, record: Record) -> List[Event]:
        before, self._server_seen, t_s = self._server_seen, record, record["t_s"]
        events = []
        if record.get("state") != before.get("state"):
            level = "ok" if record.get("state") == "ready" else "warn"
            name = record.get("address", "the server")
            events.append(event(t_s, level, "server", f"{name} is {record.get('state')}"))
        for key, words in (("refused", "requests refused"), ("failed", "requests failed")):
            more = record.get(key, 0) - before.get(key, record.get(key, 0))
            if more > 0:
                events.append(event(t_s, "warn", "server", f"{more} {words}"))
        if before and record.get("robots", 0) != before.get("robots", 0):
            robots = record.get("robots", 0)
            events.append(event(t_s, "info", "server", f"{robots} robot{'' if robots == 1 else 's'} connected"))
        return events

    def _diagnostic(self, record: Record) -> List[Event]:
        name, level = record["name"], record["level"]
        before = self._levels.get(name)
        if before is None and len(self._levels) >= MAX_NAMES:
            return []
        self._levels[name] = level
        # a node that is fine from the start on is no news, nor is a new text while it is fine
        if level == "ok" and before in (None, "ok"):
            return []
        shown = {"ok": "ok", "error": "error"}.get(level, "warn")
        node = name.split(":")[0].lstrip("/")
        return [event(record["t_s"], shown, "node", f"{node}: {record['message']}")]
