"""Report of a run as one self-contained HTML file: summary, plots, events."""

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
from edge_offload.report.columns import MODES, ORIGINS, RunColumns, thin_samples
from edge_offload.report.summary import table_rows
from edge_offload.timing import STAGES

MAX_POINTS = 6000
"""Most samples in a plot. Figures in the tables are computed from all samples."""


def render_page(run: RunColumns, record: Dict[str, Any], title: str, notes: Sequence[str] = ()) -> str:
    """Return the page's HTML; ``record`` comes from :func:`edge_offload.report.summary.summarise_run`."""
    files = {name: (STATIC / name).read_text(encoding="utf-8") for name in (
        "uPlot.min.css", "style.css", "uPlot.iife.min.js", "charts.js", "report.js")}  # fmt: skip
    styles = files["uPlot.min.css"] + files["style.css"]
    scripts = [_escape_script(files[name]) for name in ("uPlot.iife.min.js", "charts.js", "report.js")]
    licence = (STATIC / "uPlot.LICENSE.txt").read_text(encoding="utf-8").replace("--", "- -")
    # records may come from untrusted files: only the hashed scripts and styles run
    policy = (
        "default-src 'none'; img-src data:; "
        f"style-src {_hash_source(styles)}; script-src {' '.join(_hash_source(script) for script in scripts)}"
    )
    escaped_title = html.escape(title)
    body = _render_body(run, record, escaped_title, notes)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escaped_title}: report of a run</title>
<link rel="icon" href="data:,">
<style>{styles}</style>
</head>
<body>
{body}
<script type="application/json" id="run">{_embed_json(plot_data(run))}</script>
<!-- the plots are drawn by uPlot
{licence}-->
{"".join(f"<script>{script}</script>" for script in scripts)}
</body>
</html>
"""


def _escape_script(text: str) -> str:
    """Escape a script so that no text in it ends the script element."""
    return text.replace("</script", "<\\/script")


def _embed_json(value: Any) -> str:
    """Return JSON that can stand in a script element: no text in it ends the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash_source(text: str) -> str:
    """Return the source expression of an inline script or style for the Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _render_body(run: RunColumns, record: Dict[str, Any], escaped_title: str, notes: Sequence[str]) -> str:
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record["begin_s"]))
    about = [f"{started}, {_format_duration(record['duration_s'])}", f"model {record['model'] or 'not named'}"]
    about += [f"emulated link {record['link']}"] if record.get("link", "none") != "none" else []
    slowdown = record["robot_slowdown"]
    about += [f"robot's compute slowed {slowdown:g} times on purpose (emulation)"] if slowdown > 1 else []
    warnings = "".join(f'<p class="notice">{html.escape(note)}</p>' for note in notes)
    return f"""<header><h1>{escaped_title}</h1><span class="title">{html.escape(" · ".join(about))}</span></header>
{warnings}
<noscript><p class="notice">The plots need JavaScript; the tables do not.</p></noscript>
<main>
<section class="tiles report" aria-label="Summary">{_render_tiles(record)}</section>
<section class="panel wide"><h2>By the mode that ran</h2>
{_render_table(table_rows(record), "figures-by-mode")}</section>
<section class="panel wide"><h2>Latency by stage <span class="unit">ms per frame; stages may overlap, the line is the
total; drag to zoom, double click to go back</span></h2><div id="chart-latency" class="chart"></div>
<div id="ribbon" class="ribbon"></div><p class="empty" id="thinned"></p></section>
<section class="panel half"><h2>Share of frames that are faster <span class="unit">%, by latency</span></h2>
<div id="chart-share" class="chart"></div></section>
<section class="panel half"><h2>Mean time by stage <span class="unit">ms</span></h2>
{_render_table(_stage_rows(record), "figures-by-stage")}</section>
<section class="panel half"><h2>Bandwidth <span class="unit">Mbit/s, measured</span></h2>
<div id="chart-bandwidth" class="chart"></div></section>
<section class="panel half"><h2>Energy <span class="unit">J per frame, {html.escape(_source_label(record))}</span></h2>
<div id="chart-energy" class="chart"></div></section>
<section class="panel half"><h2>Power of the robot <span class="unit">W</span></h2>
<div id="chart-power" class="chart"></div></section>
<section class="panel half"><h2>Server load <span class="unit">% of its time</span></h2>
<div id="chart-server" class="chart"></div></section>
<section class="panel wide"><h2>Why frames fell back</h2>{_render_fallbacks(record)}</section>
<section class="panel wide"><h2>Events <span class="unit">{_event_count(run)}</span></h2>
<ol id="events" class="event-list"></ol></section>
</main>"""


def _source_label(record: Dict[str, Any]) -> str:
    return {"measured": "measured", "model": "modelled"}.get(record["energy_source"], "source unknown")


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _format_counts(counts: Dict[str, int]) -> str:
    return ", ".join(f"{origin} {number}" for origin, number in counts.items())


def _render_tiles(record: Dict[str, Any]) -> str:
    figures, link = record["all"], record["bandwidth"]
    latency, count = figures["latency_s"], record["frames"]
    shares = ", ".join(f"{mode} {100 * mode_figures['frames'] / count:.0f} %" for mode, mode_figures in sorted(
        record["by_mode"].items(), key=lambda item: -item[1]["frames"]))  # fmt: skip
    energy = figures["energy_j"]
    results = record.get("results_by_origin", {})  # absent if every result is fresh: then results are not counted
    tasks = record.get("results_by_task", {"": results})
    result_counts = "; ".join(f"{task} {_format_counts(counts)}".strip() for task, counts in tasks.items())
    tiles = [
        *([("Results", f"{sum(results.values())}", result_counts)] if results else []),
        ("Frames" if not results else "Inferences", f"{count}", f"{record['frames_per_s']:.2f} per second"
         + (f", {record['frames_failed']} more could not be used" if record["frames_failed"] else "")),
        ("Ran in", shares, f"the mode in force changed {_format_times(record['mode_switches'])}"),
        ("Latency, median", f"{latency['p50'] * 1e3:.0f} ms",
         f"mean {latency['mean'] * 1e3:.0f}, p99 {latency['p99'] * 1e3:.0f} ms"),
        ("Fell back", f"{figures['fell_back']} frames", f"{figures['late']} missed their deadline"),
        ("Energy per frame", "–" if energy is None else f"{energy:.2f} J", _source_label(record)),
        ("Uplink, median", "–" if link is None else f"{link['uplink_p50'] * 8e-6:.1f} Mbit/s",
         "not recorded" if link is None else f"link down {100 * link['down_share']:.0f} % of the time"),
    ]  # fmt: skip
    return "".join(
        f'<div class="tile{" broad" if name == "Ran in" else ""}"><h2>{html.escape(name)}</h2>'
        f'<p class="big">{html.escape(big)}</p>'
        f'<p class="small">{html.escape(small)}</p></div>'
        for name, big, small in tiles
    )


def _format_times(number: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(number, f"{number} times")


def _render_table(cells: List[List[str]], name: str) -> str:
    """Return an HTML table with id ``name``; the first row and the first cell of every row are heads."""
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
        [label, *(f"{one[name]:.0%}" for one in modes.values())]
        for label, name in (("robot idle", "idle_robot"), ("server idle", "idle_server"),
                            ("both compute", "overlap_ratio"))
    ]  # fmt: skip
    return [head, *lines, total, *shares]


def _render_fallbacks(record: Dict[str, Any]) -> str:
    if not record["fallbacks"]:
        return '<p class="empty">No frame did: each ran in the mode that was asked for.</p>'
    shown = list(record["fallbacks"].items())[:20]
    return _render_table([["reason", "frames"], *([reason, str(count)] for reason, count in shown)], "fallbacks")


def _event_count(run: RunColumns) -> str:
    more = f", {run.events_omitted} more are left out" if run.events_omitted else ""
    return f"{len(run.events)}{more}"


def plot_data(run: RunColumns) -> Dict[str, Any]:
    """Return the data of the plots for ``report.js``: columns as lists of at most :data:`MAX_POINTS` samples.

    Times are in seconds since the start of the run, bandwidths in Mbit/s, loads in percent.
    """
    frames, start_s = run.frames, float(run.first_s)
    shown = thin_samples(frames["t_s"], frames["total_s"], MAX_POINTS)
    latency = {
        "t": _round_values(np.asarray(frames["t_s"]) - start_s, shown),
        "total": _round_values(frames["total_s"], shown),
        "stages": [_round_values(frames[stage], shown) for stage in STAGES],
        "mode": [MODES[int(frames["mode"][index])] for index in shown],
        "fallback": [bool(frames["fallback"][index]) for index in shown],
        "deadline": _round_values(frames["deadline_s"], shown),
        "energy": _round_values(frames["energy_j"], shown),
    }
    return {
        "end": float(run.last_s) - start_s,
        "frames": len(frames["t_s"]),
        "latency": latency,
        "results": _result_series(run, start_s),
        "share": _latency_percentiles(run),
        "bandwidth": _column_series(run.bandwidth, ("up", "down"), start_s, 8e-6),
        "power": _column_series(run.power, ("watts",), start_s),
        "server": _column_series(run.server, ("load",), start_s, 100.0),
        "modes": [[record["t_s"] - start_s, record["mode"]] for record in run.modes],
        "events": [{**event, "t_s": event["t_s"] - start_s} for event in run.events],
    }


def _result_series(run: RunColumns, start_s: float) -> Dict[str, Dict[str, List[Any]]]:
    """Return times and origins of the results, by kind."""
    series = {}
    for kind, columns in run.results.items():
        times, origins = columns["t_s"], columns["origin"]
        if not times:
            continue
        shown = thin_samples(times, origins, MAX_POINTS)
        origin_names = [ORIGINS[int(origins[index])] for index in shown]
        series[kind] = {"t": _round_values(np.asarray(times) - start_s, shown), "origin": origin_names}
    return series


def _column_series(
    columns: Dict[str, Any], names: Sequence[str], start_s: float, factor: float = 1.0
) -> Dict[str, List[Any]]:
    """Return thinned columns: the times, and those called ``names``, multiplied by ``factor``."""
    shown = thin_samples(columns["t_s"], columns[names[0]], MAX_POINTS)
    values = {name: _round_values(np.asarray(columns[name]) * factor, shown) for name in names}
    return {"t": _round_values(np.asarray(columns["t_s"]) - start_s, shown), **values}


def _round_values(column: Any, shown: Array) -> List[Any]:
    """Return the samples at the indices ``shown``, rounded to 6 decimals; None for those that are not finite."""
    values = np.asarray(column, dtype=float)[shown] if len(shown) else np.zeros(0)
    return [round(value, 6) if math.isfinite(value) else None for value in values.tolist()]


def _latency_percentiles(run: RunColumns) -> Dict[str, List[float]]:
    """Return the percentiles 0, 0.5, ... 100 of the latency by mode, seconds."""
    modes, total = np.asarray(run.frames["mode"]), np.asarray(run.frames["total_s"])
    percentiles = {}
    for code, mode in enumerate(MODES):
        chosen = total[modes == code]
        if len(chosen):
            percentiles[mode] = [round(value, 6) for value in np.percentile(chosen, np.linspace(0, 100, 201)).tolist()]
    return percentiles
