"""Figures of a run: overall, and by the mode of the frames."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Dict, List, Optional

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.report.columns import MODES, ORIGINS, RunColumns
from edge_offload.timing import STAGES

#: Matches a reason that names a data rate, such as ``12.5 MB/s``.
_RATE = re.compile(r"\d [kM]B/s")


def summarise_run(run: RunColumns) -> Dict[str, Any]:
    """Return the record ``report`` of the schema.

    Raises:
        BadInput: no frame has a result.
    """
    frames = {name: np.asarray(column, dtype=float) for name, column in run.frames.items()}
    count = len(frames["t_s"])
    if not count:
        raise BadInput("the run holds no frame with a result", remedy="record offload/latency")
    times = np.sort(frames["t_s"])
    elapsed_s = float(times[-1] - times[0])
    mode_changes = [after for before, after in zip(run.modes, run.modes[1:]) if before["mode"] != after["mode"]]
    record: Dict[str, Any] = {
        "begin_s": float(run.first_s),
        "duration_s": float(run.last_s - run.first_s),
        "model": max(run.models, key=lambda name: run.models[name]),
        "robot_slowdown": float(run.slowdown),
        "frames": count,
        "frames_failed": run.failed,
        "frames_per_s": (count - 1) / elapsed_s if elapsed_s > 0 else 0.0,
        "all": _summarise_frames(frames, np.ones(count, dtype=bool)),
        "by_mode": {},
        "fallbacks": dict(sorted(run.fallbacks.items(), key=lambda item: -item[1])),
        "mode_switches": len(mode_changes),
        "switches_with_rate": sum(_RATE.search(str(change["reason"])) is not None for change in mode_changes),
        "bandwidth": _summarise_bandwidth(run),
        "energy_source": max(run.energy_sources, key=lambda name: run.energy_sources[name], default="unknown"),
    }
    origins_by_kind = {
        kind: Counter(ORIGINS[int(code)] for code in columns["origin"])
        for kind, columns in run.results.items()
        if columns["origin"]
    }
    origins: Counter[str] = sum(origins_by_kind.values(), Counter())
    if origins["carried"] or origins["local"]:
        record["results_by_origin"] = dict(origins.most_common())
        if len(origins_by_kind) > 1:
            record["results_by_task"] = {kind: dict(counts.most_common()) for kind, counts in origins_by_kind.items()}
    if "link" in run.about:
        record["link"] = run.about["link"]
    for code, mode in enumerate(MODES):
        chosen = frames["mode"] == code
        if chosen.any():
            record["by_mode"][mode] = _summarise_frames(frames, chosen)
    return record


def _summarise_frames(frames: Dict[str, Array], chosen: Array) -> Dict[str, Any]:
    """Return the figures of some frames; ``chosen`` is bool [frames], with at least one True."""
    total = frames["total_s"][chosen]
    energy = frames["energy_j"][chosen]
    known_j = energy[np.isfinite(energy)]
    return {
        "frames": int(chosen.sum()),
        "fell_back": int(frames["fallback"][chosen].sum()),
        "late": int(frames["late"][chosen].sum()),
        "latency_s": {
            "mean": float(total.mean()),
            "p50": float(np.percentile(total, 50)),
            "p90": float(np.percentile(total, 90)),
            "p99": float(np.percentile(total, 99)),
            "max": float(total.max()),
        },
        "stages_s": {stage: float(frames[stage][chosen].mean()) for stage in STAGES},
        **_compute_shares({stage: frames[stage][chosen] for stage in STAGES}, total, frames["overlap"][chosen]),
        "bytes_up": float(frames["bytes_up"][chosen].mean()),
        "bytes_down": float(frames["bytes_down"][chosen].mean()),
        "round_trips": float(frames["round_trips"][chosen].mean()),
        "energy_j": float(known_j.mean()) if len(known_j) else None,
    }


def _compute_shares(stages: Dict[str, Array], total: Array, overlap: Array) -> Dict[str, float]:
    """Return the mean shares (0 to 1) of a frame's time in which one side was idle, and in which both computed.

    Frames of mode split report ``overlap``; for other frames it is NaN and estimated. If robot and server together
    worked for longer than the frame's time, they overlapped at least by the difference.
    """
    frame_s = np.maximum(total, 1e-9)
    robot = np.minimum((stages["encode"] + stages["compute_robot"] + stages["decode"]) / frame_s, 1.0)
    server = np.minimum(stages["compute_server"] / frame_s, 1.0)
    return {
        "overlap_ratio": float(np.where(np.isnan(overlap), np.maximum(robot + server - 1.0, 0.0), overlap).mean()),
        "idle_robot": float(1.0 - robot.mean()),
        "idle_server": float(1.0 - server.mean()),
    }


def _summarise_bandwidth(run: RunColumns) -> Optional[Dict[str, float]]:
    """Return percentiles of the rates while the link was up, bytes/s, and the share of time in which it was down.

    Time counts from the first connection on. None: no bandwidth was recorded.
    """
    if not run.bandwidth["t_s"]:
        return None
    connected = np.asarray(run.bandwidth["connected"]) > 0
    up, down = np.asarray(run.bandwidth["up"])[connected], np.asarray(run.bandwidth["down"])[connected]
    # seconds for which each estimate is the newest
    valid_s = np.diff(np.asarray(run.bandwidth["t_s"]), append=run.last_s)
    if connected.any():
        valid_s[: int(connected.argmax())] = 0.0
    observed_s = float(valid_s.sum())
    return {
        "uplink_p10": _percentile_or_zero(up, 10),
        "uplink_p50": _percentile_or_zero(up, 50),
        "downlink_p50": _percentile_or_zero(down, 50),
        "down_share": float(valid_s[~connected].sum() / observed_s) if observed_s > 0 else float(not connected.any()),
    }


def _percentile_or_zero(values: Array, percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else 0.0


def table_rows(record: Dict[str, Any]) -> List[List[str]]:
    """Return a table of the figures as text: column heads, a row per mode, and a row of all if there are several."""
    head = ["mode", "frames", "fell back", "late", "mean", "p50", "p90", "p99", "max", "up", "down", "round trips",
            "energy"]  # fmt: skip
    table = [[mode, *_format_cells(figures)] for mode, figures in record["by_mode"].items()]
    if len(table) > 1:
        table.append(["all", *_format_cells(record["all"])])
    return [head, *table]


def _format_cells(figures: Dict[str, Any]) -> List[str]:
    latency, energy = figures["latency_s"], figures["energy_j"]
    return [
        str(figures["frames"]),
        str(figures["fell_back"]),
        str(figures["late"]),
        *(f"{latency[key] * 1e3:.0f} ms" for key in ("mean", "p50", "p90", "p99", "max")),
        f"{figures['bytes_up'] / 1e3:.1f} kB",
        f"{figures['bytes_down'] / 1e3:.1f} kB",
        f"{figures['round_trips']:.2f}",
        "–" if energy is None else f"{energy:.2f} J",
    ]
