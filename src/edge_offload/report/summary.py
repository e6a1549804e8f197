"""The figures of a run: overall, and by the mode that ran."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Dict, List, Optional

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.report.columns import MODES, ORIGINS, Columns
from edge_offload.timing import STAGES

_RATE = re.compile(r"\d [kM]B/s")


def summarise(run: Columns) -> Dict[str, Any]:
    """The record ``report`` of the schema.

    Raises:
        BadInput: no frame has a result.
    """
    frames = {name: np.asarray(column, dtype=float) for name, column in run.frames.items()}
    count = len(frames["t_s"])
    if not count:
        raise BadInput("the run holds no frame with a result", remedy="record offload/latency")
    times = np.sort(frames["t_s"])
    lasted = float(times[-1] - times[0])
    switches = [after for before, after in zip(run.modes, run.modes[1:]) if before["mode"] != after["mode"]]
    record: Dict[str, Any] = {
        "begin_s": float(run.first_s),
        "duration_s": float(run.last_s - run.first_s),
        "model": max(run.models, key=lambda name: run.models[name]),
        "robot_slowdown": float(run.slowdown),
        "frames": count,
        "frames_failed": run.failed,
        "frames_per_s": (count - 1) / lasted if lasted > 0 else 0.0,
        "all": _figures(frames, np.ones(count, dtype=bool)),
        "by_mode": {},
        "fallbacks": dict(sorted(run.fallbacks.items(), key=lambda item: -item[1])),
        "mode_switches": len(switches),
        "switches_with_rate": sum(_RATE.search(str(one["reason"])) is not None for one in switches),
        "bandwidth": _bandwidth(run),
        "energy_source": max(run.energy_sources, key=lambda name: run.energy_sources[name], default="unknown"),
    }
    found = {
        kind: Counter(ORIGINS[int(code)] for code in columns["origin"])
        for kind, columns in run.results.items()
        if columns["origin"]
    }
    origins = sum(found.values(), Counter[str]())
    if origins["carried"] or origins["local"]:
        record["results_by_origin"] = dict(origins.most_common())
        if len(found) > 1:
            record["results_by_task"] = {kind: dict(counts.most_common()) for kind, counts in found.items()}
    if "link" in run.about:
        record["link"] = run.about["link"]
    for code, mode in enumerate(MODES):
        chosen = frames["mode"] == code
        if chosen.any():
            record["by_mode"][mode] = _figures(frames, chosen)
    return record


def _figures(frames: Dict[str, Array], chosen: Array) -> Dict[str, Any]:
    total = frames["total_s"][chosen]
    energy = frames["energy_j"][chosen]
    known = energy[np.isfinite(energy)]
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
        **_both({stage: frames[stage][chosen] for stage in STAGES}, total, frames["overlap"][chosen]),
        "bytes_up": float(frames["bytes_up"][chosen].mean()),
        "bytes_down": float(frames["bytes_down"][chosen].mean()),
        "round_trips": float(frames["round_trips"][chosen].mean()),
        "energy_j": float(known.mean()) if len(known) else None,
    }


def _both(stages: Dict[str, Array], total: Array, told: Array) -> Dict[str, float]:
    """Shares of the frames' time in which a side was idle, and in which both computed.

    Frames of mode split have ``told`` how long both did. The stages of the others are sums (NaN there): two that take
    longer than the frame together overlap by the rest, at least.
    """
    whole = np.maximum(total, 1e-9)
    robot = np.minimum((stages["encode"] + stages["compute_robot"] + stages["decode"]) / whole, 1.0)
    server = np.minimum(stages["compute_server"] / whole, 1.0)
    return {
        "overlap_ratio": float(np.where(np.isnan(told), np.maximum(robot + server - 1.0, 0.0), told).mean()),
        "idle_robot": float(1.0 - robot.mean()),
        "idle_server": float(1.0 - server.mean()),
    }


def _bandwidth(run: Columns) -> Optional[Dict[str, float]]:
    """Bytes/s over the time that the link was up, and the share of the time since the first connection it was not."""
    if not run.bandwidth["t_s"]:
        return None
    connected = np.asarray(run.bandwidth["connected"]) > 0
    up, down = np.asarray(run.bandwidth["up"])[connected], np.asarray(run.bandwidth["down"])[connected]
    # each estimate holds until the next one
    held = np.diff(np.asarray(run.bandwidth["t_s"]), append=run.last_s)
    if connected.any():
        held[: int(connected.argmax())] = 0.0
    whole = float(held.sum())
    return {
        "uplink_p10": _percentile(up, 10),
        "uplink_p50": _percentile(up, 50),
        "downlink_p50": _percentile(down, 50),
        "down_share": float(held[~connected].sum() / whole) if whole > 0 else float(not connected.any()),
    }


def _percentile(values: Array, share: float) -> float:
    return float(np.percentile(values, share)) if len(values) else 0.0


def rows(record: Dict[str, Any]) -> List[List[str]]:
    """The figures by mode as text: a head, a row per mode, and one for all when there are several modes."""
    head = ["mode", "frames", "fell back", "late", "mean", "p50", "p90", "p99", "max", "up", "down", "round trips",
            "energy"]  # fmt: skip
    table = [[mode, *_cells(figures)] for mode, figures in record["by_mode"].items()]
    if len(table) > 1:
        table.append(["all", *_cells(record["all"])])
    return [head, *table]


def _cells(figures: Dict[str, Any]) -> List[str]:
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
