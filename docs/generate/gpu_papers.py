"""The papers' table of a machine with a GPU: networks, links and modes, from ``scripts/gpu run papers``."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence

from generate.tables import Column, s, table, tenths

#: Modes in the order of the papers' tables, and what the published ones are called.
MODES = {
    "local": "device-only",
    "per_op": "per_op (Cricket)",
    "cached": "cached (semi-RRTO)",
    "lazy": "lazy",
    "replay": "replay (RRTO)",
    "server": "server (NNTO)",
    "split": "split",
}


def papers(records: Sequence[Mapping[str, Any]]) -> List[str]:
    """Write a table of latencies per link, one of what a frame costs on the first link, and the plans of split."""
    rows = [one for one in records if one.get("link")]
    lines = _describe_robot(records)
    links = list(dict.fromkeys(str(one["link"]) for one in rows))
    for link in links:
        lines += [f"### {link}", "", *_latencies([one for one in rows if one["link"] == link]), ""]
    if links:
        first = [one for one in rows if one["link"] == links[0] and "wall" in one]
        lines += [f"### What a frame costs at {links[0]}", "", *_costs(first), ""]
    plans = [
        {"model": one["model"], "link": one["link"], "when": when, "way": way, **facts}
        for one in rows
        if one["mode"] == "split"
        for when, key in (("compared", "trials"), ("in use", "ways"))
        for way, facts in one.get(key, {}).items()
    ]
    if plans:
        columns: List[Column] = [
            ("network", "model", str),
            ("link", "link", str),
            ("", "when", str),
            ("plan", "way", str),
            ("frames", "n", str),
            ("median, ms", "ms", s),
        ]
        lines += [
            "### Plans of split",
            "",
            "A plan that divides operators runs in turns with the best one that does not, until one is faster beyond",
            "doubt. The other one is not used then.",
            "",
            *table(plans, columns),
            "",
        ]
    failed = [f"- {one['name']}: {str(one['failed'])[:160]}" for one in records if one.get("failed")]
    return [*lines, *(["Not measured:", "", *failed] if failed else [])]


def _describe_robot(records: Sequence[Mapping[str, Any]]) -> List[str]:
    robot = next((one for one in records if one["name"] == "robot" and "slowdown" in one), None)
    lines = [
        "Medians in ms. A robot is one core with one thread and no GPU; one robot at a time sends frames. `sconet` is",
        "AGRNav's network. RTT 2.6 ms; of each trace, the four seconds whose mean and deviation are nearest to all",
        "of it, from the same beginning for each row.",
    ]
    if robot is not None:
        lines += [
            f"It is slowed {robot['slowdown']:g} times: DenseNet-121 takes {robot['core_ms']:.1f} ms on the core, and",
            f"{robot['xavier_ms']:g} ms on the Jetson Xavier NX of LOPInfer's authors.",
        ]
    return [*lines, ""]


def _latencies(rows: Sequence[Mapping[str, Any]]) -> List[str]:
    by_network: Dict[str, Dict[str, Any]] = {}
    for one in rows:
        row = by_network.setdefault(one["model"], {"model": one["model"]})
        row[one["mode"]] = one.get("wall", {}).get("ms")
    columns: List[Column] = [("network", "model", str)]
    columns += [(title, mode, tenths) for mode, title in MODES.items() if any(one["mode"] == mode for one in rows)]
    return table([{**dict.fromkeys(MODES), **row} for row in by_network.values()], columns)


def _costs(rows: Sequence[Mapping[str, Any]]) -> List[str]:
    costs = [
        {
            **{key: one.get(key) for key in ("model", "mode", "trips", "J_per_frame")},
            "p95": one["wall"].get("p95_ms"),
            "up_kb": _scaled(one.get("up"), 1e-3),
            "down_kb": _scaled(one.get("down"), 1e-3),
            "server_ms": _scaled(one.get("server_s"), 1e3),
            "gpu": _scaled(one.get("gpu"), 100),
        }
        for one in rows
    ]
    columns: List[Column] = [
        ("network", "model", str),
        ("mode", "mode", str),
        ("p95, ms", "p95", tenths),
        ("kB up", "up_kb", tenths),
        ("kB down", "down_kb", tenths),
        ("round trips", "trips", str),
        ("server, ms", "server_ms", s),
        ("GPU busy, %", "gpu", tenths),
        ("GPU, J/frame", "J_per_frame", s),
    ]
    return table(costs, columns)


def _scaled(value: Optional[float], factor: float) -> Optional[float]:
    return None if value is None else value * factor
