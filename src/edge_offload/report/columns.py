"""Records of a run as columns, one array per quantity, so that hours of frames fit in memory; thinning for plots."""

from __future__ import annotations

from array import array
from typing import Any, Dict, Iterable, List, Sequence

import numpy as np

from edge_offload.arrays import Array
from edge_offload.dashboard.digest import Digest, Event, without_durations
from edge_offload.dashboard.stream import Record
from edge_offload.mode import TABLE
from edge_offload.timing import STAGES

MODES = tuple(mode.value for mode in TABLE)
ORIGINS = ("fresh", "carried", "local", "none")
"""Origins of results. A record without one is fresh."""

RESULT_KINDS = ("people", "scene")
"""Kinds of records of results."""

MAX_EVENTS = 2000


class RunColumns:
    """Columns of a run, for its report.

    Attributes:
        frames: columns of the frames with a result, float64, of equal length: ``t_s``, ``total_s``, the stages (s),
            ``bytes_up``, ``bytes_down``, ``round_trips``, ``energy_j`` (NaN: unknown), ``deadline_s`` (0: none),
            ``late`` and ``fallback`` (0 or 1), ``mode`` (index into :data:`MODES`) and ``overlap`` (share of the time
            in which both sides computed; NaN: unknown).
        bandwidth: columns ``t_s``, ``up``, ``down`` (bytes/s) and ``connected`` (0 or 1).
        power: columns ``t_s``, ``watts`` and ``joules`` (NaN: unknown).
        server: columns ``t_s`` and ``load`` (0 to 1).
        results: by kind (:data:`RESULT_KINDS`), columns ``t_s`` and ``origin`` (index into :data:`ORIGINS`).
        modes: records of the mode in force, at most :data:`MAX_EVENTS`.
        about: the run's platform.
        models: number of frames by model.
        energy_sources: number of frames with an energy, by its source (measured, model or unknown).
        slowdown: largest emulated slowdown of the robot's compute; 1: none.
        fallbacks: number of frames that fell back, by reason.
        failed: number of frames that could not be used.
        events: oldest first, at most :data:`MAX_EVENTS`.
        events_omitted: number of further events, which were dropped.
        first_s, last_s: earliest and latest ``t_s`` of all records.

    All ``t_s`` are times of receipt, s since 1970.
    """

    def __init__(self) -> None:
        names = ("t_s", "total_s", *STAGES, "bytes_up", "bytes_down", "round_trips", "energy_j", "deadline_s", "late",
                 "fallback", "mode", "overlap")  # fmt: skip
        self.frames: Dict[str, array[Any]] = {name: array("d") for name in names}
        self.bandwidth: Dict[str, array[Any]] = {name: array("d") for name in ("t_s", "up", "down", "connected")}
        self.power: Dict[str, array[Any]] = {name: array("d") for name in ("t_s", "watts", "joules")}
        self.server: Dict[str, array[Any]] = {name: array("d") for name in ("t_s", "load")}
        self.results: Dict[str, Dict[str, array[Any]]] = {
            kind: {name: array("d") for name in ("t_s", "origin")} for kind in RESULT_KINDS
        }
        self.modes: List[Record] = []
        self.about: Dict[str, Any] = {}
        self.models: Dict[str, int] = {}
        self.energy_sources: Dict[str, int] = {}
        self.slowdown = 1.0
        self.fallbacks: Dict[str, int] = {}
        self.failed = 0
        self.events: List[Event] = []
        self.events_omitted = 0
        self.first_s = np.inf
        self.last_s = -np.inf

    def add_records(self, records: Iterable[Record]) -> RunColumns:
        """Add the records of a run and return ``self``."""
        digest = Digest()
        for record in records:
            self.first_s = min(self.first_s, record["t_s"])
            self.last_s = max(self.last_s, record["t_s"])
            self._add_record(record)
            self._add_events(digest.digest_record(record))
        self._add_events(digest.finish())
        return self

    def _add_events(self, events: List[Event]) -> None:
        room = MAX_EVENTS - len(self.events)
        self.events += events[:room]
        self.events_omitted += len(events[room:])

    def _add_record(self, record: Record) -> None:
        kind, t_s = record["kind"], record["t_s"]
        if kind == "latency":
            self._add_frame(record)
        elif kind == "bandwidth":
            up, down = record["uplink_bytes_per_s"], record["downlink_bytes_per_s"]
            _append_row(self.bandwidth, t_s, up, down, float(record["connected"]))
        elif kind == "power":
            _append_row(self.power, t_s, record["watts"], record.get("joules", np.nan))
        elif kind == "server":
            _append_row(self.server, t_s, record["load"])
        elif kind in RESULT_KINDS:
            _append_row(self.results[kind], t_s, ORIGINS.index(record.get("origin", ORIGINS[0])))
        elif kind == "mode" and len(self.modes) < MAX_EVENTS:
            self.modes.append(record)
        elif kind == "about":
            self.about.update(record)

    def _add_frame(self, record: Record) -> None:
        if record.get("error"):
            self.failed += 1
            return
        energy, reason = record.get("energy_j"), record.get("fallback_reason", "")
        stages, frames = record["stages_s"], self.frames
        for stage in STAGES:
            frames[stage].append(stages.get(stage, 0.0))
        for key in ("t_s", "total_s"):
            frames[key].append(record[key])
        for key in ("bytes_up", "bytes_down", "round_trips", "deadline_s"):
            frames[key].append(record.get(key, 0))
        frames["energy_j"].append(np.nan if energy is None else energy)
        overlap = record.get("overlap_ratio")
        frames["overlap"].append(np.nan if overlap is None else overlap)
        frames["late"].append(float(record.get("deadline_s", 0) > 0 and not record.get("deadline_met", True)))
        frames["fallback"].append(float(bool(reason)))
        frames["mode"].append(MODES.index(record["mode"]))
        if reason:
            _count_key(self.fallbacks, without_durations(reason))
        _count_key(self.models, record.get("model", ""))
        if energy is not None:
            _count_key(self.energy_sources, record.get("energy_source", "unknown"))
        self.slowdown = max(self.slowdown, record.get("robot_slowdown", 1.0))


def _append_row(columns: Dict[str, array[Any]], *values: float) -> None:
    for column, value in zip(columns.values(), values):
        column.append(value)


def _count_key(counts: Dict[str, int], key: str, most: int = 200) -> None:
    """Count ``key``. Keys beyond the first ``most`` are counted together as ``(others)``."""
    key = key if key in counts or len(counts) < most else "(others)"
    counts[key] = counts.get(key, 0) + 1


def thin_samples(t_s: Sequence[float], peaks: Sequence[float], most: int) -> Array:
    """Select at most ``most`` samples for a plot: the largest and the median value of every slice of time.

    Args:
        t_s: times of the samples.
        peaks: values of the samples, whose outliers are kept.
        most: at least 2.

    Returns:
        int64 [m], indices in order of time; all of them when there are at most ``most``.
    """
    count = len(t_s)
    order = np.argsort(np.asarray(t_s, dtype=float), kind="stable")
    if count <= most:
        return order
    values = np.asarray(peaks, dtype=float)[order]
    chosen = []
    for slice_indices in np.array_split(np.arange(count), max(1, most // 2)):
        ranked = slice_indices[np.argsort(values[slice_indices], kind="stable")]
        chosen += [ranked[-1], ranked[(len(ranked) - 1) // 2]]
    indices: Array = order[np.unique(chosen)]
    return indices
