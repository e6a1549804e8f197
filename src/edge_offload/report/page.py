"""A run as one HTML file: summary, plots, events. Everything it needs is in it; it asks nothing of anybody."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import time
from typing import Any, Dict, List, Sequence

import numpy as np

from edge_offload.arrays import Array
from edge_offload.dashboard.server import STATIC
from edge_offload.report.columns import MODES, ORIGINS, Columns, thin
from edge_offload.report.summary import rows
from edge_offload.timing import STAGES

MAX_POINTS = 6000
"""Samples that a plot is drawn from; the figures are computed from all."""


def render(run: Columns, record: Dict[str, Any], title: str, notes: Sequence[str] = ()) -> str:
    """The page. ``record`` is what :func:`edge_offload.report.summary.summarise` makes of ``run``."""
    files = {name: (STATIC / name).read_text(encoding="utf-8") for name in (
        "uPlot.min.css", "style.css", "uPlot.iife.min.js", "charts.js", "report.js")}  # fmt: skip
    styles = files["uPlot.min.css"] + files["style.css"]
    scripts = [_script(files[name]) for name in ("uPlot.iife.min.js", "charts.js", "report.js")]
    licence = (STATIC / "uPlot.LICENSE.txt").read_text(encoding="utf-8").replace("--", "- -")
    # what a file from elsewhere says could be anything: only what is named here is run or shown
    policy = (
        "default-src 'none'; img-src data:; "
        f"style-src {_hash(styles)}; script-src {' '.join(_hash(script) for script in scripts)}"
    )
    shown = html.escape(title)
    body = _body(run, record, shown, notes)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{shown}: report of a run</title>
<link rel="icon" href="data:,">
<style>{styles}</style>
</head>
<body>
{body}
<script type="application/json" id="run">{_embed(data(run))}</script>
<!-- the plots are drawn by uPlot
{licence}-->
{"".join(f"<script>{script}</script>" for script in scripts)}
</body>
</html>
"""


def _script(text: str) -> str:
    """What can stand between script tags without ending them."""
    return text.replace("</script", "<\\/script")


def _embed(value: Any) -> str:
    """JSON that can stand in a script element: no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _body(run: Columns, record: Dict[str, Any], title: str, notes: Sequence[str]) -> str:
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record["begin_s"]))
    about = [f"{began}, {_lasting(record['duration_s'])}", f"model {record['model'] or 'not named'}"]
    about += [f"emulated link {record['link']}"] if record.get("link", "none") != "none" else []
    slowdown = record["robot_slowdown"]
    about += [f"robot's compute slowed {slowdown:g} times on purpose (emulation)"] if slowdown > 1 else []
    warnings = "".join(f'<p class="notice">{html.escape(note)}</p>' for note in notes)
    return f"""<header><h1>{title}</h1><span class="title">{html.escape(" · ".join(about))}</span></header>
{warnings}
<noscript><p class="notice">The plots need JavaScript; the tables do not.</p></noscript>
<main>
<section class="tiles report" aria-label="Summary">{_tiles(record)}</section>
<section class="panel wide"><h2>By the mode that ran</h2>
{_table(rows(record), "figures-by-mode")}</section>
<section class="panel wide"><h2>Latency by stage <span class="unit">ms per frame; stages may overlap, the line is the
total; drag to zoom, double click to go back</span></h2><div id="chart-latency" class="chart"></div>
<div id="ribbon" class="ribbon"></div><p class="empty" id="thinned"></p></section>
<section class="panel half"><h2>Share of frames that are faster <span class="unit">%, by latency</span></h2>
<div id="chart-share" class="chart"></div></section>
<section class="panel half"><h2>Mean time by stage <span class="unit">ms</span></h2>
{_table(_stage_rows(record), "figures-by-stage")}</section>
<section class="panel half"><h2>Bandwidth <span class="unit">Mbit/s, measured</span></h2>
<div id="chart-bandwidth" class="chart"></div></section>
<section class="panel half"><h2>Energy <span class="unit">J per frame, {html.escape(_source(record))}</span></h2>
<div id="chart-energy" class="chart"></div></section>
<section class="panel half"><h2>Power of the robot <span class="unit">W</span></h2>
<div id="chart-power" class="chart"></div></section>
<section class="panel half"><h2>Server load <span class="unit">% of its time</span></h2>
<div id="chart-server" class="chart"></div></section>
<section class="panel wide"><h2>Why frames fell back</h2>{_fallbacks(record)}</section>
<section class="panel wide"><h2>Events <span class="unit">{_event_count(run)}</span></h2>
<ol id="events" class="event-list"></ol></section>
</main>"""


def _source(record: Dict[str, Any]) -> str:
    return {"measured": "measured", "model": "modelled"}.get(record["energy_source"], "source unknown")


def _lasting(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _many(counts: Dict[str, int]) -> str:
    return ", ".join(f"{origin} {number}" for origin, number in counts.items())


def _tiles(record: Dict[str, Any]) -> str:
    figures, link = record["all"], record["bandwidth"]
    latency, count = figures["latency_s"], record["frames"]
    shares = ", ".join(f"{mode} {100 * one['frames'] / count:.0f} %" for mode, one in sorted(
        record["by_mode"].items(), key=lambda item: -item[1]["frames"]))  # fmt: skip
    energy = figures["energy_j"]
    given = record.get("results_by_origin", {})
    tasks = record.get("results_by_task", {"": given})
    words = "; ".join(f"{task} {_many(counts)}".strip() for task, counts in tasks.items())
    made = [
        *([("Results", f"{sum(given.values())}", words)] if given else []),
        ("Frames" if not given else "Inferences", f"{count}", f"{record['frames_per_s']:.2f} per second"
         + (f", {record['frames_failed']} more could not be used" if record["frames_failed"] else "")),
        ("Ran in", shares, f"the mode in force changed {_times(record['mode_switches'])}"),
        ("Latency, median", f"{latency['p50'] * 1e3:.0f} ms",
         f"mean {latency['mean'] * 1e3:.0f}, p99 {latency['p99'] * 1e3:.0f} ms"),
        ("Fell back", f"{figures['fell_back']} frames", f"{figures['late']} missed their deadline"),
        ("Energy per frame", "–" if energy is None else f"{energy:.2f} J", _source(record)),
        ("Uplink, median", "–" if link is None else f"{link['uplink_p50'] * 8e-6:.1f} Mbit/s",
         "not recorded" if link is None else f"link down {100 * link['down_share']:.0f} % of the time"),
    ]  # fmt: skip
    return "".join(
        f'<div class="tile{" broad" if name == "Ran in" else ""}"><h2>{html.escape(name)}</h2>'
        f'<p class="big">{html.escape(big)}</p>'
        f'<p class="small">{html.escape(small)}</p></div>'
        for name, big, small in made
    )


def _times(number: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(number, f"{number} times")


def _table(cells: List[List[str]], name: str) -> str:
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in cells[0])
    lines = "".join(
        f'<tr><th scope="row">{html.escape(line[0])}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in line[1:])
        + "</tr>"
        for line in cells[1:]
    )
    table = f'<table class="figures" id="{name}"><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>'
    return f'<div class="scroll">{table}</div>'


def _stage_rows(record: Dict[str, Any]) -> List[List[str]]:
    modes = record["by_mode"]
    head = ["stage", *modes]
    lines = [
        [stage.replace("_", ", "), *(f"{one['stages_s'][stage] * 1e3:.1f}" for one in modes.values())]
        for stage in STAGES
    ]
    total = ["total", *(f"{one['latency_s']['mean'] * 1e3:.1f}" for one in modes.values())]
    shares = [
        [words, *(f"{one[name]:.0%}" for one in modes.values())]
        for words, name in (("robot idle", "idle_robot"), ("server idle", "idle_server"),
                            ("both compute", "overlap_ratio"))
    ]  # fmt: skip
    return [head, *lines, total, *shares]


def _fallbacks(record: Dict[str, Any]) -> str:
    if not record["fallbacks"]:
        return '<p class="empty">No frame did: each ran in the mode that was asked for.</p>'
    shown = list(record["fallbacks"].items())[:20]
    return _table([["reason", "frames"], *([reason, str(count)] for reason, count in shown)], "fallbacks")


def _event_count(run: Columns) -> str:
    more = f", {run.events_left_out} more are left out" if run.events_left_out else ""
    return f"{len(run.events)}{more}"


def data(run: Columns) -> Dict[str, Any]:
    """What the plots are drawn from: columns as lists, thinned; times are seconds since the run began."""
    frames, began = run.frames, float(run.first_s)
    shown = thin(frames["t_s"], frames["total_s"], MAX_POINTS)
    drawn = {
        "t": _list(np.asarray(frames["t_s"]) - began, shown),
        "total": _list(frames["total_s"], shown),
        "stages": [_list(frames[stage], shown) for stage in STAGES],
        "mode": [MODES[int(frames["mode"][index])] for index in shown],
        "fallback": [bool(frames["fallback"][index]) for index in shown],
        "deadline": _list(frames["deadline_s"], shown),
        "energy": _list(frames["energy_j"], shown),
    }
    return {
        "end": float(run.last_s) - began,
        "frames": len(frames["t_s"]),
        "latency": drawn,
        "results": _results(run, began),
        "share": _shares(run),
        "bandwidth": _series(run.bandwidth, ("up", "down"), began, 8e-6),
        "power": _series(run.power, ("watts",), began),
        "server": _series(run.server, ("load",), began, 100.0),
        "modes": [[record["t_s"] - began, record["mode"]] for record in run.modes],
        "events": [{**event, "t_s": event["t_s"] - began} for event in run.events],
    }


def _results(run: Columns, began_s: float) -> Dict[str, Dict[str, List[Any]]]:
    """Of people and of scenes, as far as there are: when results were given, and where they came from."""
    found = {}
    for kind, columns in run.results.items():
        times, origins = columns["t_s"], columns["origin"]
        if not times:
            continue
        shown = thin(times, origins, MAX_POINTS)
        came = [ORIGINS[int(origins[each])] for each in shown]
        found[kind] = {"t": _list(np.asarray(times) - began_s, shown), "origin": came}
    return found


def _series(columns: Dict[str, Any], names: Sequence[str], began_s: float, factor: float = 1.0) -> Dict[str, List[Any]]:
    shown = thin(columns["t_s"], columns[names[0]], MAX_POINTS)
    made = {name: _list(np.asarray(columns[name]) * factor, shown) for name in names}
    return {"t": _list(np.asarray(columns["t_s"]) - began_s, shown), **made}


def _list(column: Any, shown: Array) -> List[Any]:
    values = np.asarray(column, dtype=float)[shown] if len(shown) else np.zeros(0)
    return [round(value, 6) if math.isfinite(value) else None for value in values.tolist()]


def _shares(run: Columns) -> Dict[str, List[float]]:
    """Latency in seconds at 0, 0.5, ... 100 % of the frames, by mode."""
    modes, total = np.asarray(run.frames["mode"]), np.asarray(run.frames["total_s"])
    found = {}
    for code, mode in enumerate(MODES):
        chosen = total[modes == code]
        if len(chosen):
            found[mode] = [round(value, 6) for value in np.percentile(chosen, np.linspace(0, 100, 201)).tolist()]
    return found
