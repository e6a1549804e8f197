"""Where a dashboard's records come from: what it says of itself, and a file or stream that is played into a history."""

from __future__ import annotations

import abc
import threading
import time
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

from edge_offload.dashboard.history import History
from edge_offload.dashboard.stream import Reading, Record
from edge_offload.errors import EdgeOffloadError

MAX_PAUSE_S = 10.0
"""A pause in a file is waited for no longer than this."""


class Source(abc.ABC):
    """What the page's head shows about the data.

    Attributes:
        title: what is shown: the robot, or the file.
    """

    title: str = ""

    @abc.abstractmethod
    def status(self) -> Dict[str, Any]:
        """What the page says of the source.

        ``state`` (live, waiting, lost, playing, ended, failed), ``text`` (in words), ``now_s`` (the time that is now on
        the records' clock, s since 1970, or None) and ``waits_for`` (what brings each kind of record).
        """

    def watched(self, viewers: int) -> None:  # noqa: B027 (most sources do not care)
        """How many browsers look now: pictures need not be fetched for nobody."""


class Player(Source):
    """Plays records into a history, in a thread of its own.

    Args:
        title: what is played.
        open_records: gives the records anew, and how reading them goes.
        history: where they go.
        speed: 1 as they came, 2 twice as fast, ...; 0 as fast as they can be read.
        loop: begin anew at the end.
    """

    def __init__(
        self,
        title: str,
        open_records: Callable[[Player], Tuple[Iterator[Record], Reading]],
        history: History,
        speed: float = 1.0,
        loop: bool = False,
    ) -> None:
        self.title = title
        self._open = open_records
        self._history = history
        self._speed = speed
        self._loop = loop
        self._lock = threading.Lock()
        self._state, self._text = "waiting", "no record yet"
        self._newest_s: Optional[float] = None
        self._newest_at = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="player", daemon=True)

    def start(self) -> None:
        """Begin to play."""
        self._thread.start()

    def close(self) -> None:
        """Stop playing."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(2.0)

    def pause(self, seconds: float) -> bool:
        """Wait; whether to go on."""
        return not self._stop.wait(seconds)

    def status(self) -> Dict[str, Any]:
        """See :class:`Source`."""
        with self._lock:
            now = self._newest_s
            if now is not None and self._state == "playing":
                # the clock runs on between two records
                now += (time.monotonic() - self._newest_at) * (self._speed or 1.0)
            return {"state": self._state, "text": self._text, "now_s": now, "waits_for": {}}

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                reading = self._play()
            except EdgeOffloadError as error:
                self._say("failed", str(error))
                return
            if not self._loop:
                self._say("ended", f"{reading.bad} lines left out ({reading.first_problem})" if reading.bad else "")
                return
            if not self.pause(1.0):
                return
            self._history.clear()

    def _play(self) -> Reading:
        records, reading = self._open(self)
        due, before = time.monotonic(), None
        for record in records:
            if before is not None and self._speed:
                due += min(max(0.0, record["t_s"] - before), MAX_PAUSE_S) / self._speed
            if self._stop.is_set() or (self._speed and not self.pause(max(0.0, due - time.monotonic()))):
                break
            before = record["t_s"]
            self._history.put(record)
            self._note(before)
        return reading

    def _note(self, t_s: float) -> None:
        with self._lock:
            self._newest_s, self._newest_at = t_s, time.monotonic()
            self._state, self._text = "playing", "" if self._speed in (0.0, 1.0) else f"{self._speed:g} times as fast"

    def _say(self, state: str, text: str) -> None:
        with self._lock:
            self._state, self._text = state, text
