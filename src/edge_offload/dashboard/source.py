"""Sources of a dashboard's records: the interface, and a player of files and streams."""

from __future__ import annotations

import abc
import threading
import time
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

from edge_offload.dashboard.history import History
from edge_offload.dashboard.stream import Reading, Record
from edge_offload.errors import EdgeOffloadError


class RecordSource(abc.ABC):
    """Source of a dashboard's records; the head of the page shows its title and state.

    Attributes:
        title: name of the robot or file.
    """

    title: str = ""

    @abc.abstractmethod
    def status(self) -> Dict[str, Any]:
        """Return the source's state for the page.

        Returns:
            ``state``: live, waiting, lost, playing, ended or failed. ``text``: a message for the user.
            ``now_s``: current time on the records' clock, s since 1970, or None.
            ``waits_for``: topic by kind of record.
        """

    def set_viewers(self, viewers: int) -> None:  # noqa: B027 (most sources do not care)
        """Set the number of browsers that show the page. With none, pictures need not be fetched."""


class Player(RecordSource):
    """Thread that plays records into a history.

    Args:
        title: name of the file or stream.
        open_records: called with the player, to wait by :meth:`pause`; returns all records, and the counts of reading.
        history: receives the records.
        speed: 1: as recorded, 2: twice as fast; 0: as fast as they can be read. Recorded gaps count as at most 10 s.
        loop: whether to restart at the end.
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
        # time of the newest record (s since 1970), and when it was played (monotonic s)
        self._newest_s: Optional[float] = None
        self._newest_at = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._play_repeatedly, name="player", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, and wait for it at most 2 s."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(2.0)

    def pause(self, seconds: float) -> bool:
        """Wait ``seconds``; return False at once when the player is closed."""
        return not self._stop.wait(seconds)

    def status(self) -> Dict[str, Any]:
        """Return the player's state (see :class:`RecordSource`)."""
        with self._lock:
            now_s = self._newest_s
            if now_s is not None and self._state == "playing":
                # the clock continues between two records
                now_s += (time.monotonic() - self._newest_at) * (self._speed or 1.0)
            return {"state": self._state, "text": self._text, "now_s": now_s, "waits_for": {}}

    def _play_repeatedly(self) -> None:
        while not self._stop.is_set():
            try:
                reading = self._play_once()
            except EdgeOffloadError as error:
                self._set_state("failed", str(error))
                return
            if not self._loop:
                text = f"{reading.bad} lines left out ({reading.first_problem})" if reading.bad else ""
                self._set_state("ended", text)
                return
            if not self.pause(1.0):
                return
            self._history.clear()

    def _play_once(self) -> Reading:
        records, reading = self._open(self)
        due_s, previous_s = time.monotonic(), None
        for record in records:
            if previous_s is not None and self._speed:
                due_s += min(max(0.0, record["t_s"] - previous_s), 10.0) / self._speed
            if self._stop.is_set() or (self._speed and not self.pause(max(0.0, due_s - time.monotonic()))):
                break
            previous_s = record["t_s"]
            self._history.put(record)
            self._set_position(previous_s)
        return reading

    def _set_position(self, t_s: float) -> None:
        with self._lock:
            self._newest_s, self._newest_at = t_s, time.monotonic()
            self._state, self._text = "playing", "" if self._speed in (0.0, 1.0) else f"{self._speed:g} times as fast"

    def _set_state(self, state: str, text: str) -> None:
        with self._lock:
            self._state, self._text = state, text
