"""Results pages: one for each recorded JSON, with its command, date, machine and tables."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Callable, Dict, Iterator, List, Mapping

from generate import corpus, faults, fleets, frames, gpu, links, peers, shorten
from generate.tables import Column
from generate.tables import cell as _cell
from generate.tables import exponent as _exponent
from generate.tables import kb as _kb
from generate.tables import mb as _mb
from generate.tables import ms as _ms
from generate.tables import percent as _percent
from generate.tables import ratio as _ratio
from generate.tables import s as _s
from generate.tables import table as _table
from generate.tables import tenths as _tenths
from generate.tables import us as _us
from generate.tables import yes as _yes


def pages(root: pathlib.Path) -> Dict[str, str]:
    """Pages by their path below docs/. ``results/sources.json`` says how each JSON came about."""
    folder = root / "docs" / "results"
    sources: Mapping[str, Mapping[str, str]] = json.loads((folder / "sources.json").read_text(encoding="utf-8"))
    made = {}
    index = [
        "# Results",
        "",
        "Each page is written by `scripts/docs` from a JSON file that a command wrote.",
        "",
        "| page | date | command |",
        "| --- | --- | --- |",
    ]
    for name, source in sources.items():
        record = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        lines = [
            f"# {source['title']}",
            "",
            f"*Written by `scripts/docs` from [{name}.json]({name}.json); do not edit.*",
            "",
            f"- Command: `{source['command']}`" if "command" in source else f"- Command: {UNKNOWN}",
            f"- Date: {source.get('date', UNKNOWN)}",
            f"- Machine: {source.get('machine', UNKNOWN)}",
            f"- Beside it: {source.get('beside', UNKNOWN)}",
        ]
        lines += [f"- {source['note']}"] if "note" in source else []
        lines += ["", *TABLES[name](record)]
        if (folder / f"{name}.png").exists():
            lines += ["", f"![{source['title']}]({name}.png)"]
        made[f"results/{name}.md"] = "\n".join(lines).rstrip() + "\n"
        command = f"`{_cell(source['command'])}`" if "command" in source else UNKNOWN
        index.append(f"| [{source['title']}]({name}.md) | {source.get('date', UNKNOWN)} | {command} |")
    made["results/README.md"] = "\n".join(index) + "\n"
    return made


def shorten_records(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Rewrite each record in ``folder`` that holds what no page shows; yield its path."""
    for name in json.loads((folder / "sources.json").read_text(encoding="utf-8")):
        path = folder / f"{name}.json"
        before = path.read_text(encoding="utf-8")
        after = shorten.write(shorten.shorten(json.loads(before), TABLES[name]))
        if after != before:
            path.write_text(after, encoding="utf-8")
            yield path


UNKNOWN = "not recorded"


def _adaptive(record: Any) -> List[str]:
    lines = []
    for number, experiment in enumerate(record["experiments"]):
        lines += [
            f"## {experiment['trace'] if isinstance(experiment['trace'], str) else f'Experiment {number + 1}'}",
            "",
        ]
        lines += [f"{experiment['workload']}; robot slowed {experiment['slowdown']:g} times; virtual time.", ""]
        lines += _table(
            experiment["rows"],
            [
                ("policy", "policy", str),
                ("seeds", "seeds", str),
                ("mean, ms", "latency_s.mean", _ms),
                ("p50, ms", "latency_s.p50", _ms),
                ("p99, ms", "latency_s.p99", _ms),
                ("J a frame", "energy_j", _s),
                ("switches", "switches", str),
                ("remote", "remote_share", _percent),
            ],
        )
        lines += [
            "",
            *_table(experiment["bars"], [("bar", "name", str), ("value", "value", str), ("met", "met", _yes)]),
        ]
        lines.append("")
    return lines


def _busy(record: Any) -> List[str]:
    return _table(
        record,
        [
            ("busy processes", "busy", str),
            ("load average", "load_average", _s),
            ("link, Mbit/s", "mbps", str),
            ("frames", "frames", str),
            ("mode changes a minute", "changes_per_min", _s),
            ("forecast off by (median)", "ratio.p50", _s),
            ("longest forecast, s", "worst_forecast_s", _s),
            ("estimate p5, Mbit/s", "uplink_mbps.p5", _s),
            ("p50", "uplink_mbps.p50", _s),
            ("p95", "uplink_mbps.p95", _s),
        ],
    )


def _conformance(record: Any) -> List[str]:
    totals = [{"mode": mode, **counts} for mode, counts in record["totals"].items()]
    samples = sum(entry.get("samples", 0) for entry in record["entries"])
    said = (
        f"torch {record['torch']}; {len(record['entries'])} operator entries, {samples} samples; "
        f"dtypes {', '.join(record['dtypes'])}; layouts {', '.join(record['layouts'])}."
    )
    return [
        said,
        "",
        *_table(totals, [(name, name, str) for name in ("mode", "passed", "refused", "wrong", "excluded")]),
    ]


def _run(record: Any) -> List[str]:
    rows = [
        {"mode": mode, "frames": record["frames_by_mode"].get(mode), **row} for mode, row in record["by_mode"].items()
    ]
    said = (
        f"{record['model']}: {record['frames_in']} frames taken up, {record['results_out']} results; "
        f"{record['energy_j']:.2f} J a frame (model); compute slowed {record['robot_slowdown']:g} times."
    )
    return [
        said,
        "",
        *_table(
            rows,
            [
                ("mode", "mode", str),
                ("frames", "frames", str),
                ("mean, ms", "latency_s.mean", _ms),
                ("p50, ms", "latency_s.p50", _ms),
                ("p99, ms", "latency_s.p99", _ms),
                ("up, kB", "bytes_up", _kb),
                ("down, kB", "bytes_down", _kb),
                ("round trips", "round_trips", _s),
            ],
        ),
    ]


def _overhead(record: Any) -> List[str]:
    rows = [{**row, "each_s": row["overhead_s"] / row["operators"]} for row in record]
    return _table(
        rows,
        [
            ("network", "model", str),
            ("way", "way", str),
            ("lead", "lead", str),
            ("pairs", "pairs", str),
            ("plain, ms", "plain_s", _ms),
            ("intercepted, ms", "intercepted_s", _ms),
            ("overhead, ms", "overhead_s", _ms),
            ("operators", "operators", str),
            ("µs an operator", "each_s", _us),
            ("within its bar", "within", _yes),
        ],
    )


def _papers(record: Any) -> List[str]:
    return _table(
        record,
        [
            ("network", "model", str),
            ("planner", "planner", str),
            ("codecs", "variant", str),
            ("camera", "camera", str),
            ("mean, ms", "latency_s.mean", _ms),
            ("p99, ms", "latency_s.p99", _ms),
            ("authors, ms", "authors_s", _ms),
            ("ratio", "ratio", _ratio),
            ("J", "energy_j", _s),
        ],
    )


def _people(record: Any) -> List[str]:
    lines = _table(
        record["rows"],
        [
            ("finder", "finder", str),
            ("against", "reference", str),
            ("frames", "frames", str),
            ("people", "people", str),
            ("recall", "recall", _ratio),
            ("precision", "precision", _ratio),
            ("F1", "f1", _ratio),
            ("box AP50", "box_ap50", _ratio),
            ("box AP", "box_ap", _ratio),
            ("keypoint AP", "keypoint_ap", _ratio),
        ],
    )
    return [
        *lines,
        "",
        *_table(
            record["tracking"],
            [
                ("finder", "finder", str),
                ("MOTA", "mota", _ratio),
                ("IDF1", "idf1", _ratio),
                ("identity switches", "switches", str),
                ("fragmentations", "fragmentations", str),
                ("misses", "misses", str),
                ("false", "false_positives", str),
            ],
        ),
    ]


def _adaptive_launch(records: Any) -> List[str]:
    lines: List[str] = []
    for record in records:
        told = " ".join(f"{name}:={value}" for name, value in sorted(record["arguments"].items()))
        busy = f", beside {record['busy']} busy processes" if record.get("busy") else ""
        lines += [f"## {told}{busy}", "", f"{record['turns']} turns; {record['seconds']:g} s of each run, behind "
                  f"{record['lead_s']:g} s; load average {record['load_average']:.1f} on {record['cores']} cores.",
                  ""]  # fmt: skip
        rows = [{**row, "ran": ", ".join(f"{mode} {part:.0%}" for mode, part in row["share"].items())}
                for row in record["rows"]]  # fmt: skip
        columns: List[Column] = [
            ("mode", "mode", str), ("frames", "frames", str), ("mean, ms", "mean_s", _ms), ("p50, ms", "p50_s", _ms),
            ("p99, ms", "p99_s", _ms), ("first result, s", "first_s", _s), ("ran in", "ran", str),
        ]  # fmt: skip
        if any(row["bandwidth_error"] is not None for row in rows):
            columns.append(("offload/bandwidth off by (median)", "bandwidth_error", _percent))
        lines += [*_table(rows, columns), ""]
        lines += [f"* {'met' if bar['met'] else '**not met**'}: {bar['name']}: {bar['value']}"
                  for bar in record["bars"]] + [""]  # fmt: skip
    return lines


def _modes(records: Any) -> List[str]:
    lines: List[str] = []
    for record in records:
        lines += [f"## {record['model']}, {record['mbps']:g} Mbit/s, {record['rtt_ms']:g} ms, robot slowed "
                  f"{record['slowdown']:g} times", "", f"{record['rounds']} rounds; load average "
                  f"{record['load_average']:.1f} on {record['cores']} cores.", ""]  # fmt: skip
        lines += _table(
            record["rows"],
            [("mode", "mode", str), ("median, ms", "median_s", _ms), ("mean, ms", "mean_s", _ms),
             ("x server [95 %]", "ratio", _interval), ("fell back", "fell_back", str)],
        )  # fmt: skip
        doubt = "" if record["beyond_doubt"] else ", not beyond doubt"
        shares = ", ".join(f"{mode} {share:.0%}" for mode, share in record["chosen"].items())
        lines += ["", f"Best: {record['best']}, {_interval(record['best_over_next'])} x the next{doubt}. "
                  f"Plan of split: {record['plan'] or 'none'}. `auto` ran {shares}, "
                  f"{_interval(record['auto_over_best'])} x the best.", ""]  # fmt: skip
        lines += [f"* {mode} could not run: {why}" for mode, why in record["lacks"].items()]
    return lines


def _interval(found: Any) -> str:
    return f"{found[0]:.3f} [{found[1]:.3f}, {found[2]:.3f}]"


def _sconet(record: Any) -> List[str]:
    rows = [{"method": method, **row} for method, row in record["methods"].items()]
    return _table(
        rows,
        [
            ("method", "method", str),
            ("completion IoU", "mean.completion_iou", _ratio),
            ("± ", "deviation.completion_iou", _ratio),
            ("precision", "mean.precision", _ratio),
            ("recall", "mean.recall", _ratio),
            ("mIoU", "mean.mean_iou", _ratio),
            ("±", "deviation.mean_iou", _ratio),
        ],
    )


def _split(record: Any) -> List[str]:
    lines: List[str] = []
    for model in record:
        lines += [f"## {model['model']} {' '.join(model['options'])}".rstrip(), ""]
        lines += [
            f"Robot slowed {model['slowdown']:g} times; load average {model['load_average']:.1f}; median error of the "
            f"predictions {_percent(model['median_error'])}.",
            "",
        ]
        lines += _table(
            model["rows"],
            [
                ("MB/s", "bytes_per_s", _mb),
                ("planner", "planner", str),
                ("codecs", "codecs", _yes),
                ("kind", "kind", str),
                ("predicted, ms", "predicted_s", _ms),
                ("median, ms", "latency_s.p50", _ms),
                ("p99, ms", "latency_s.p99", _ms),
                ("up, kB", "bytes_up", _kb),
                ("fell back", "fell_back", str),
            ],
        )
        lines.append("")
        if "pairs" in model:
            lines += ["What mode `split` runs against the best plan that divides no operator, in turns:", ""]
            lines += _table(
                [{**row, "times": "the same plan" if row["ratio"] is None else _interval(row["ratio"]),
                  "before": _measured(row.get("measured")), "beside": _set_aside(row.get("divided"))}
                 for row in model["pairs"]],
                [("MB/s", "bytes_per_s", _mb), ("plan", "kind", str), ("undivided", "undivided", str),
                 ("a divided plan as it ran before", "before", str), ("pairs", "pairs", str),
                 ("ratio [95 %]", "times", str), ("fell back", "fell_back", str),
                 ("the divided plan that is not used", "beside", str)],
            )  # fmt: skip
            lines.append("")
    return lines


def _measured(found: Any) -> str:
    """What mode ``split`` had measured of a divided plan when it chose."""
    if not found or found["ratio"] is None:
        return "-"
    verdict = "used" if found["used"] else "not used"
    return f"{_interval(found['ratio'])} over {found['pairs']} pairs: {verdict}"


def _set_aside(found: Any) -> str:
    """A divided plan that is not used, against the undivided one that is."""
    return f"{_interval(found['ratio'])} over {found['pairs']} pairs" if found else "-"


def _exactness(record: Any) -> List[str]:
    rows = [{**row, "what": " ".join([row["model"], *row.get("options", [])])} for row in record]
    return [
        "Largest difference from the float64 network, as a share of the largest value.",
        "",
        *_table(
            rows,
            [
                ("network", "what", str),
                ("planner", "planner", str),
                ("plans", "plans", str),
                ("that divide", "splits", str),
                ("in float64", "float64", _exponent),
                ("in float32", "float32", _exponent),
                ("unsplit, float32", "unsplit_float32", _exponent),
                ("exact", "exact", _yes),
            ],
        ),
    ]


def _transparent(record: Any) -> List[str]:
    lines = [
        "## Ratios of medians, in pairs",
        "",
        *_table(
            record["checks"],
            [
                ("network", "model", str),
                ("link", "link", str),
                ("replay / server", "replay_over_server", _ratio),
                ("per_op / replay", "per_op_over_replay", _s),
                ("modelled", "modelled", _s),
                ("load average", "load_average", _s),
            ],
        ),
    ]
    lines += [
        "",
        "## Latency by mode",
        "",
        *_table(
            record["records"],
            [
                ("network", "model", str),
                ("link", "link", str),
                ("mode", "mode", str),
                ("median, ms", "latency_s.p50", _ms),
                ("p99, ms", "latency_s.p99", _ms),
                ("round trips", "round_trips", _s),
                ("up, kB", "bytes_up", _kb),
                ("down, kB", "bytes_down", _kb),
                ("J", "energy_j", _s),
                ("bits equal", "bit_equal", _yes),
            ],
        ),
    ]
    lines += [
        "",
        "## Bits, every input a fresh one, from the first inference on",
        "",
        *_table(
            record["bits"],
            [
                ("network", "model", str),
                ("inferences", "inferences", str),
                ("equal", "equal", str),
                ("round trips", "round_trips", str),
            ],
        ),
    ]
    cricket = record["cricket"]
    rows = [
        {"system": system, "rpcs": rpcs, "s": cricket["communication_s"][system]}
        for system, rpcs in cricket["rpcs"].items()
    ]
    return [
        *lines,
        "",
        f"## Published systems (synthetic: computed from {cricket['source']})",
        "",
        *_table(
            rows,
            [
                ("system", "system", str),
                ("round trips", "rpcs", str),
                ("communication, s", "s", _s),
            ],
        ),
    ]


def _memory(record: Any) -> List[str]:
    rows = [{"model": part["model"], **point} for part in record for point in part["points"]]
    return _table(
        rows,
        [
            ("network", "model", str),
            ("inferences", "inferences", str),
            ("robot, MB", "robot_bytes", _mb),
            ("server, MB", "server_bytes", _mb),
            ("round trips since the line before", "round_trips", str),
        ],
    )


def _codecs(record: Any) -> List[str]:
    return _table(
        record["rows"],
        [
            ("payload", "payload", str),
            ("codec", "codec", str),
            ("lossless", "lossless", _yes),
            ("ratio", "ratio", _s),
            ("encode, MB/s", "encode_bytes_per_s", _mb),
            ("decode, MB/s", "decode_bytes_per_s", _mb),
        ],
    )


def _engines(record: Any) -> List[str]:
    engines = ", ".join(f"{one['engine']} {one['version']}" for one in record["engines"])
    lines = [f"{engines}; load average {record['load_average']:.1f} on {record['cores']} cores.", "", "## Networks", ""]
    lines += _table(
        record["networks"],
        [
            ("network", "model", str),
            ("threads", "threads", str),
            ("engine", "engine", str),
            ("torch, ms of processor time", "eager_ms", _tenths),
            ("engine, ms", "engine_ms", _tenths),
            ("times as fast", "faster_cpu", _s),
            ("by wall clock", "faster_wall", _s),
            ("off torch", "error", _exponent),
            ("off float64", "error64", _exponent),
            ("torch off float64", "eager_error64", _exponent),
            ("until ready, s of processor time", "first_cpu_s", _tenths),
            ("at a second start", "again_cpu_s", _tenths),
        ],
    )
    calls: List[Column] = [("link", "link", str), ("mode", "mode", str), ("engine", "engine", str),
                           ("torch, ms", "eager_ms", _tenths), ("engine, ms", "engine_ms", _tenths),
                           ("times as fast", "faster", _s)]  # fmt: skip
    lines += ["", f"## Calls of a robot, {record['model']}", "", *_table(record["links"], calls)]
    lines += ["", "## What is held", ""]
    return lines + _table(record["bars"], [("bar", "name", str), ("value", "value", str), ("met", "met", _yes)])


TABLES: Dict[str, Callable[[Any], List[str]]] = {
    "kapao_tracking": _run,
    "loop_indoors": _run,
    "agrnav": _run,
    "transparent": _transparent,
    "transparent_memory": _memory,
    "overhead": _overhead,
    "conformance": _conformance,
    "conformance_layouts": _conformance,
    "conformance_layouts_lazy": _conformance,
    "split": _split,
    "split_pairs": _split,
    "split_exactness": _exactness,
    "adaptive": _adaptive,
    "adaptive_replay": _adaptive,
    "adaptive_launch": _adaptive_launch,
    "modes": _modes,
    "busy": _busy,
    "engines": _engines,
    "every_frame": frames.every_frame,
    "in_flight": frames.in_flight,
    "in_flight_replay": frames.in_flight,
    "multitask": frames.multitask,
    "chaos": faults.chaos,
    "chaos_split": faults.chaos,
    "chaos_replay": faults.chaos,
    "chaos_packet": faults.chaos,
    "chaos_in_flight": faults.chaos,
    "chaos_carry": faults.chaos_carry,
    "chaos_turns": faults.chaos_carry,
    "chaos_pool": faults.chaos_pool,
    "chaos_promise": faults.chaos_carry,
    "robots": fleets.robots,
    "robots_front": fleets.robots,
    "robots_modes": fleets.held_robots,
    "fuzz": faults.fuzz,
    "fuzz_messages": faults.fuzz,
    "fuzz_strangers": faults.fuzz,
    "people": _people,
    "carry": frames.carry,
    "sconet": _sconet,
    "papers": _papers,
    "codecs": _codecs,
    "programs": corpus.programs,
    "programs_link": corpus.over_a_link,
    "programs_loopback": corpus.over_a_link,
    "pool": fleets.pool,
    "pool_schedulers": fleets.pool_schedulers,
    "fleet": fleets.fleet,
    "gpu": gpu.gpu,
    "packets": links.packets,
    "levels": links.levels,
    "peers": peers.peers,
}
