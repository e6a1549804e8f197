"""Writes the records of a run to a file of JSON lines, for 'edge-offload report' and 'dashboard'."""

from __future__ import annotations

import pathlib
import threading
import time
from typing import Any, Callable, Sequence

import rospy

from edge_offload.dashboard.stream import MAX_BYTES, Record, Writer
from edge_offload.nodes.common.health import Health
from edge_offload.nodes.monitor.run_topics import RunTopics


class RecordFile:
    """Open from construction on.

    Args:
        path: the file; replaced if it is there.
        link: name of the emulated link, for the first record.
        guard: wraps the callbacks (:meth:`edge_offload.nodes.common.base.Node.callback`).
        max_bytes: records are kept up to this size.
        health: told when the file is full or cannot be written; the run goes on without it.
        cameras: as of :class:`RunTopics`.
    """

    def __init__(
        self,
        path: pathlib.Path,
        link: str,
        guard: Callable[[Callable[[Any], None]], Callable[[Any], None]],
        health: Health,
        max_bytes: int = MAX_BYTES,
        cameras: Sequence[str] = ("",),
    ) -> None:
        self.path = path
        self._health = health
        self._lock = threading.Lock()
        self._frames_end = False
        self._writer = Writer(path, max_bytes)
        self._flushed_at = time.monotonic()
        self._queue_record({"kind": "about", "t_s": time.time(), "link": link or "none"})
        self._topics = RunTopics(self._queue_record, guard, cameras)

    def end_frames(self) -> None:
        """Keep no more frames and results: the run counts no more. Other records are kept until the end."""
        self._frames_end = True

    def close(self) -> None:
        """Take no more records, and finish the file."""
        self._topics.close()
        self._try_write(self._writer.close)

    def _queue_record(self, record: Record) -> None:
        if self._frames_end and record["kind"] in ("latency", "people", "scene"):
            return
        self._try_write(lambda: self._write_record(record))

    def _write_record(self, record: Record) -> None:
        self._writer.write(record)
        # so that the file can be followed, and little is lost with the machine
        if time.monotonic() - self._flushed_at > 1.0:
            self._flushed_at = time.monotonic()
            self._writer.flush()
        if self._writer.full:
            self._health.warn("records", f"{self.path} is full: records of the run are no longer kept")

    def _try_write(self, work: Callable[[], None]) -> None:
        with self._lock:
            try:
                work()
            except OSError as error:
                if self._health.warn("records", f"cannot write {self.path}: {error.strerror}"):
                    rospy.logwarn(f"records of the run: cannot write {self.path}: {error.strerror}")
