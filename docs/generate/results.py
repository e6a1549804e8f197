"""Results pages: one for each recorded JSON, with its command, date, machine and tables."""

from __future__ import annotations

import itertools
import json
import pathlib
from typing import Any, Callable, Dict, List, Mapping, Sequence

from generate import corpus
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


def _chaos(record: Any) -> List[str]:
    return _table(
        record,
        [
            ("scenario", "scenario", str),
            ("passed", "passed", _yes),
            ("frames", "figures.frames", str),
            ("remote", "figures.remote", str),
            ("local p99, ms", "figures.local_p99_s", _ms),
            ("p99 in the fault, ms", "figures.during_p99_s", _ms),
            ("most, ms", "figures.during_max_s", _ms),
            ("waited in vain", "figures.waited", str),
            ("back after, s", "figures.back_s", _s),
            ("robot, MB before → after", "figures.robot.memory", lambda m: f"{_mb(m[0])} → {_mb(m[1])}"),
            ("server, MB before → after", "figures.server.memory", lambda m: f"{_mb(m[0])} → {_mb(m[1])}"),
        ],
    )


def _chaos_pool(record: Any) -> List[str]:
    return _table(
        record,
        [
            ("scenario", "scenario", str),
            ("passed", "passed", _yes),
            ("frames", "figures.frames", str),
            ("remote", "figures.remote", str),
            ("longest time without the server, s", "figures.gap_s", _s),
            ("local p99, ms", "figures.local_p99_s", _ms),
            ("p99 in the fault, ms", "figures.during_p99_s", _ms),
        ],
    )


def _chaos_carry(record: Any) -> List[str]:
    rows = [{**row, "from": ", ".join(f"{origin} {count}" for origin, count in row["figures"]["origins"].items())}
            for row in record]  # fmt: skip
    turns: List[Any] = []
    if all("turns" in row["figures"] for row in record):
        rows = [{**row, "turns": ", ".join(f"{task} {count}" for task, count in row["figures"]["turns"].items())}
                for row in rows]  # fmt: skip
        turns = [("turns", "turns", str), ("two at once", "figures.two_outstanding", str)]
    return [
        "Frames come 20 times a second; each that is taken up leaves once, in order, with the newest result there is.",
        "",
        *_table(
            rows,
            [
                ("scenario", "scenario", str),
                ("passed", "passed", _yes),
                ("frames left", "figures.left", str),
                ("with results", "from", str),
                ("p99 after the frame, ms", "figures.late_p99_s", _ms),
                *turns,
                ("inferences", "figures.frames", str),
                ("remote", "figures.remote", str),
                ("back after, s", "figures.back_s", _s),
            ],
        ),
    ]


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


def _fuzz(record: Any) -> List[str]:
    facts = [
        ("messages", record["messages"]),
        ("connections of strangers", record["connections"]),
        ("seconds", round(record["seconds"])),
        ("strangers let in", record["strangers"]["let in"]),
        ("most bytes told to a stranger", record["strangers"]["most bytes told"]),
        ("checks of honest sessions", record["checks"]),
        ("calls that ended their own session", sum(record["crashes"].values())),
        ("server's memory, MB: begin", _mb(record["server_begin"]["memory"])),
        ("end", _mb(record["server_end"]["memory"])),
        ("failures", len(record["failures"])),
    ]
    kinds = [{"kind": kind, "count": count} for kind, count in record["sent"].items()]
    outcomes = [{"kind": kind, "count": count} for kind, count in record["outcomes"].items()]
    rows = [{"what": what, "value": value} for what, value in facts]
    lines = _table(rows, [("what", "what", str), ("value", "value", str)])
    for head, table in (("sent", kinds), ("what came of it", outcomes)):
        lines += ["", *_table(table, [(head, "kind", str), ("count", "count", str)])]
    columns: List[Column] = [
        ("messages", "messages", str),
        ("connections", "connections", str),
        ("server, MB", "memory", _mb),
    ]
    return [*lines, "", *_table(_spread(record["memory_over_time"]), columns)]


def _spread(points: Sequence[Any], most: int = 8) -> List[Any]:
    """At most ``most`` + 1 of ``points``, evenly, with the first and the last."""
    steps = min(most, len(points) - 1)
    return [points[round(number * (len(points) - 1) / max(steps, 1))] for number in range(steps + 1)]


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


def _pool(record: Any) -> List[str]:
    systems = list(record["groups"][0]["systems"])
    loads = [
        {
            "cluster": row["cluster"],
            "networks": ", ".join(row["networks"]),
            **{name: one["load"] for name, one in row["systems"].items()},
        }
        for row in record["groups"]
    ]
    columns: List[Column] = [("cluster", "cluster", str), ("networks", "networks", str)]
    lines = ["The largest load, in steps of 0.05, at which 99 % of every network's requests are answered in time:", ""]
    lines += _table(loads, [*columns, *((name, name, lambda value: f"{value:.2f}") for name in systems)])
    lines += ["", "| figure | |", "| --- | --- |"]
    for name, values in record["summary"].items():
        shown = ", ".join(f"{of} {value:.3f}" for of, value in values.items())
        lines.append(f"| {_cell(name)} | {_cell(shown)} |")
    more = (_pool_real(record.get("real")), _pool_networks(record.get("networks")), _pool_costs(record.get("costs")))
    return [*lines, *itertools.chain.from_iterable(more)]


def _pool_real(found: Any) -> List[str]:
    if not found:
        return []
    gpus = ", ".join(f"{count} {gpu}" for gpu, count in found["gpus"].items())
    rows = [
        ("network", found["network"]),
        ("emulated GPUs", gpus),
        ("a stage costs beyond its time", f"{1e3 * found['overhead_s']:.1f} ms"),
        ("shortest stage, dilated", f"{1e3 * found['shortest_stage_s']:.0f} ms ({found['times']:.0f} times as long)"),
        ("cost over shortest stage", f"{100 * found['overhead_share']:.1f} %"),
        ("load", f"{found['load']:g} of {found['rate']:.2f} /s, {found['requests']} requests"),
        ("answered within the deadline", f"{100 * found['served']:.2f} %"),
        ("the simulator, same arrivals", f"{100 * found['simulated']:.2f} %"),
        ("refused, failed, lost", f"{found['refused']}, {found['failed']}, {found['lost']}"),
    ]
    lines = ["", "## On Ray", "", "`edge-offload bench pool --real`: head, members, driver and server as they are, on "
             "this machine; members sleep the profile's times, dilated, and pass tensors of the true size; requests of "
             "robots come through ZeroMQ.", "", "| figure | |", "| --- | --- |"]  # fmt: skip
    return [*lines, *(f"| {_cell(name)} | {_cell(value)} |" for name, value in rows)]


def _pool_networks(rows: Any) -> List[str]:
    if not rows:
        return []
    columns: List[Column] = [
        ("network", "model", str),
        ("stages", "stages", str),
        ("frames", "frames", str),
        ("computed by the pool", "remote", str),
        ("bit-equal to the robot's own", "equal_local", str),
        ("to an undivided server's", "equal_server", str),
        ("people", "people", str),
        ("frames with the same people", "people_equal", str),
    ]
    lines = ["", "## Real networks in stages", "", "`edge-offload bench pool --networks`: members compute; that they "
             "are of two classes is the bench's saying. Frames are those of the sample video, random inputs for "
             "ResNet-50, which finds no people.", ""]  # fmt: skip
    return [*lines, *_table(rows, columns)]


def _pool_costs(found: Any) -> List[str]:
    if not found:
        return []
    rows = [
        ("head and two members without models, memory", f"{found['idle_bytes'] / 1e9:.2f} GB"),
        ("head and two members without models, processor", f"{100 * found['idle_cores']:.1f} % of a core"),
        (
            "a frame of 250 kB through two stages adds, processor of all processes",
            f"{1e3 * found['frame_cpu_s']:.1f} ms",
        ),
        *((f"of this, {name}", f"{1e3 * cpu_s:.1f} ms") for name, cpu_s in found["frame_cpu_by_s"].items()),
        (
            "the same processes with a server and 16 robots, without frames",
            f"{100 * found['without_frames_cores']:.1f} % of a core",
        ),
        ("both, a frame of 20 a second", f"{1e3 * found['frame_cpu_all_s']:.1f} ms"),
        ("the same, from robot to robot, p50", f"{1e3 * found['p50_s']:.1f} ms"),
    ]
    lines = ["", "## What it costs", "", "`edge-offload bench pool --costs`; memory is shared out among who shares it, "
             "the robot's processor time does not count.", "", "| figure | |", "| --- | --- |"]  # fmt: skip
    return [*lines, *(f"| {_cell(name)} | {_cell(value)} |" for name, value in rows)]


def _fleet(record: Any) -> List[str]:
    systems = list(record["cells"][0]["systems"])
    rows = [
        {
            **row,
            "settings": ", ".join(
                f"{name}: {one['settings']}" for name, one in row["systems"].items() if one["settings"] and one["held"]
            ),
            **{name: one["held"] for name, one in row["systems"].items()},
            "most": row["systems"]["ours"]["drop_most"],
            "late": row["systems"]["ours"]["late"],
            "busy": row["systems"]["ours"]["busy"],
        }
        for row in record["cells"]
    ]
    lines = [
        "Robots held: every session's mean true drop over the robot alone within the bound, 95 % of windows of 5 s "
        "within 1.5 times it. Then, for ours: the largest mean drop, the share of frames that came too late, and how "
        "busy the device is.",
        "",
    ]
    lines += _table(
        rows,
        [
            ("robots see", "content", str),
            ("bound", "bound", lambda value: f"{value:g}"),
            ("device", "device", str),
            *((name, name, str) for name in systems),
            ("drop, most", "most", lambda value: f"{value:.4f}"),
            ("late", "late", lambda value: f"{value:.1%}"),
            ("busy", "busy", lambda value: f"{value:.0%}"),
        ],
    )
    lines += ["", "| figure | |", "| --- | --- |"]
    lines += [f"| {_cell(name)} | {value:.2f} |" for name, value in record["summary"].items()]
    lines += ["", "Settings that the search found, where a baseline has any:", ""]
    lines += [f"- {row['content']}, {row['bound']:g}, {row['device']}: {row['settings']}" for row in rows]
    if record.get("real"):
        lines += ["", "With `--real`: a server process on the emulated device, robots without torch, real sockets.", ""]
        lines += _table(
            record["real"],
            [
                ("device", "device", str),
                ("robots that ask", "robots", str),
                ("held", "held", str),
                ("in virtual time", "virtual", str),
                ("bound", "bound", lambda value: f"{value:g}"),
                ("promises broken", "broken", str),
                ("drop, most", "drop_most", lambda value: f"{value:.4f}"),
                ("windows within", "windows_within", lambda value: f"{value:.1%}"),
                ("late", "late", lambda value: f"{value:.1%}"),
                ("idle", "idle", lambda value: f"{value:.0%}"),
                ("server's memory", "memory_growth", lambda value: f"{value:+.1%}"),
            ],
        )
    return lines


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
        lines += [f"## {told}", "", f"{record['turns']} turns; {record['seconds']:g} s of each run, behind "
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


def _carry(record: Any) -> List[str]:
    people, scenes = record["people"], record["scenes"]
    return [
        f"People found by {people['model']} in frames {people['frames'][0]} to {people['frames'][1] - 1} of "
        f"{people['video']} and tracked, so many frames later; F1 at IoU 0.5 against people labelled by hand.",
        "",
        *_table(
            people["rows"],
            [
                ("frames old", "late", str),
                ("result", "method", str),
                ("F1", "f1", _ratio),
                ("95 %, from", "f1_interval.0", _ratio),
                ("to", "f1_interval.1", _ratio),
                ("recall", "recall", _ratio),
                ("precision", "precision", _ratio),
            ],
        ),
        "",
        f"Scenes of {scenes['cells']}x{scenes['cells']}x32 voxels in {scenes['worlds']} streets and as many rooms;"
        " completion IoU.",
        "",
        *_table(
            scenes["rows"],
            [
                ("robot", "motion", str),
                ("sweeps old", "late", str),
                ("held", "held", _ratio),
                ("carried", "carried", _ratio),
                ("fresh", "fresh", _ratio),
                ("closed", "closed", _percent),
                ("column fill", "local", _ratio),
            ],
        ),
        "",
        *_table(
            record["cost"],
            [
                ("processor time", "what", str),
                ("one frame, ms", "step_ms.p50", _s),
                ("p99", "step_ms.p99", _s),
                ("8 caught up, ms", "catch_up_ms.p50", _s),
                ("p99", "catch_up_ms.p99", _s),
                ("ring over 10,000 frames, MB", "ring_bytes", _mb),
            ],
        ),
    ]


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


def _in_flight(record: Any) -> List[str]:
    kinds = (("twice the rate that one reaches", "fast"), ("10 Hz", "camera"))
    rows = [
        {"camera": words, "many": many, **record[kind][side]}
        for words, kind in kinds
        for many, side in ((1, "one"), (2, "two"))
    ]
    lines = [f"{record['model']}, mode {record['mode']}, link {record['link']}; a robot that computes by itself "
             f"is slowed {record['slowdown']:g} times; load average {record['load_average']:.1f} on {record['cores']} "
             "cores.", ""]  # fmt: skip
    lines += _table(
        rows,
        [
            ("camera", "camera", str),
            ("in flight", "many", str),
            ("results a second", "results_per_s", _s),
            ("mean, ms", "latency_s.mean", _ms),
            ("p50, ms", "latency_s.p50", _ms),
            ("p99, ms", "latency_s.p99", _ms),
            ("behind own frames, ms", "behind_s", _ms),
            ("results", "results", str),
            ("fell back", "fell_back", str),
            ("superseded", "superseded_share", _percent),
        ],
    )
    lines += ["", "Two to one, all blocks together:", ""]
    return lines + _table(record["bars"], [("bar", "name", str), ("value", "value", str), ("met", "met", _yes)])


def _every_frame(record: Any) -> List[str]:
    def counted(value: Any) -> str:
        return ", ".join(f"{name} {count}" for name, count in value.items())

    lines = [f"{record['seconds']:g} s of results of each launch file; images and sweeps every "
             f"{1e3 * record['interval_s']:.0f} ms, grids of {record['cells']} x {record['cells']}; load average "
             f"{record['load_average']:.1f} on {record['cores']} cores. Delays are from a frame's stamp to its result.",
             ""]  # fmt: skip
    lines += _table(
        record["rows"],
        [
            ("launch file", "launch", str),
            ("task", "task", str),
            ("frames", "frames", str),
            ("superseded", "superseded", str),
            ("results", "results_by_origin", counted),
            ("inferences", "inferences_by_mode", counted),
            ("p50, ms", "delay_s.p50", _ms),
            ("p99, ms", "delay_s.p99", _ms),
            ("robot slowed", "slowdown", str),
        ],
    )
    return [*lines, "", *_table(record["bars"], [("bar", "name", str), ("value", "value", str), ("met", "met", _yes)])]


def _multitask(record: Any) -> List[str]:
    def drop(value: Any) -> str:
        return f"{value['mean']:.4f} ({value['low']:.4f} to {value['high']:.4f})"

    def ratio(value: Any) -> str:
        return f"{value['mean']:.3f} ({value['low']:.3f} to {value['high']:.3f})"

    def weights(value: Any) -> str:
        people, scene = value
        return f"{people / scene:g}:1" if people > scene > 0 else f"1:{scene / people:g}" if people else "0:1"

    frames = ", ".join(f"{task} {value}" for task, value in record["latency_frames"].items())
    lines = [
        f"Virtual time at {record['rate_hz']:g} Hz; frames from an offload to its result: {frames}. Drops are 0 to 1, "
        "against the network's own result for the frame; intervals are 95 %, by bootstrap over blocks of 2 s.",
        "",
        "## Turns, the best fixed pattern and the ceiling",
        "",
        "Weighted drop on the held-out part, in that of the fixed pattern (people:scene) that was best on the training "
        "part. true rates: turns that know the rates about now; ceiling: the offline optimum.",
        "",
    ]
    for words, rows in (
        ("Without local algorithms", record["weights"]),
        ("With local algorithms", [{"weights": row["weights"], **row["with_local"]} for row in record["weights"]]),
    ):
        lines += [f"{words}:", ""]
        columns: List[Column] = [("weights", "weights", weights), ("pattern", "pattern", str)]
        columns += [("its drop", "best_pattern", drop), ("turns", "turns_ratio", ratio)]
        columns += [("true rates", "true_rates_ratio", ratio), ("ceiling", "optimum_ratio", ratio)]
        lines += [*_table(rows, columns), ""]
    equal = [row for row in record["rows"] if row["weights"] == [0.5, 0.5]]
    lines += ["## Every schedule at 1:1", ""]
    lines += ["Labels: frames of the video with labelled people; what the streets are really like.", ""]
    lines += _table(
        equal,
        [
            ("schedule", "schedule", str),
            ("local algorithm", "local", _yes),
            ("weighted drop", "weighted", drop),
            ("people", "people", lambda value: f"{value:.4f}"),
            ("scene", "scene", lambda value: f"{value:.4f}"),
            ("people's share of turns", "people_share", _percent),
            ("kB a second", "bytes_per_s", _kb),
            ("J a second", "joules_per_s", _s),
            ("people, F1 by labels", "people_f1", _ratio),
            ("scene, IoU by labels", "scene_iou", _ratio),
        ],
    )
    lines += ["", "## Results that are old, by labels", "", "People: F1 at an overlap of 0.5.", ""]
    methods = ("fresh", "held", "velocity", "carried")
    columns = [("frames old", "age", str), ("labelled frames", "frames", str)]
    lines += _table(record["people"], columns + [(method, f"f1.{method}", _ratio) for method in methods])
    lines += ["", "Scene: completion IoU; carrying closes so much of the distance from held to fresh.", ""]
    columns = [("sweeps old", "age", str), ("robot", "robot", str), ("sweeps", "sweeps", str)]
    columns += [(method, method, _ratio) for method in ("fresh", "held", "carried")]
    columns += [("closes", "closes", _percent), ("closes, by the network's own result", "closes_network", _percent)]
    lines += [*_table(record["scene"], columns), "", *_real(record.get("real")), "## What is held", ""]
    return lines + _table(record["bars"], [("bar", "name", str), ("value", "value", str), ("met", "met", _yes)])


def _real(record: Any) -> List[str]:
    """A real run beside the virtual one."""
    if record is None:
        return []
    rows = []
    for task, real in record["tasks"].items():
        virtual = {**real["virtual"], "latency_s": real["virtual"]["latency_frames"] / 10}
        rows += [{"task": task, "where": "real", **real}, {"task": task, "where": "virtual", **virtual}]
    lines = ["## A real run", "", f"`patrol.launch` for {record['seconds']:g} s (`--real`), and turns in virtual time "
             "with its latencies, weights 1:1. The real drop is the mean over the comparisons that it made itself, at "
             "the age given; the virtual one that of all frames shown. The real scene has its local algorithm.",
             ""]  # fmt: skip
    table = _table(
        rows,
        [
            ("task", "task", str),
            ("", "where", str),
            ("latency of a turn, s", "latency_s", _s),
            ("turns a second", "turns_per_s", _s),
            ("age of what is shown, s", "stale_s", _s),
            ("drop", "drop", _ratio),
            ("age where compared, s", "drop_stale_s", _s),
        ],
    )
    return [*lines, *table, ""]


def _robots(record: Any) -> List[str]:
    rows = [
        ("robots", record["robots"]),
        ("seconds", record["seconds"]),
        ("answers a second", f"{record['answers_per_s']:.1f}"),
        *(
            [
                ("bytes of a frame", record["frame_bytes"]),
                ("server's processor time for one, ms", f"{1e3 * record['cpu_s']:.2f}"),
            ]
            if "cpu_s" in record
            else []
        ),
        ("most served over least served", _ratio(record["ratio"])),
        ("refused", record["refused"]),
        ("failed", record["failed"]),
        ("mean latency, ms", _ms(record["latency_s"]["mean"])),
        ("p99, ms", _ms(record["latency_s"]["p99"])),
        ("growth of the server's memory", _percent(record["memory_growth"])),
    ]
    return _table(
        [{"what": what, "value": value} for what, value in rows], [("what", "what", str), ("value", "value", str)]
    )


def _held_robots(records: Any) -> List[str]:
    rows = sorted(records, key=lambda record: (record["model"], record["mode"], record["robots"]))
    for row in rows:
        row["equal_of"] = f"{row['equal']} of {row['checked']}"
        row["back"] = "; ".join(f"{count} x {reason}" for reason, count in row["fell_back"].items()) or "none"
    return _table(
        rows,
        [
            ("model", "model", str), ("mode", "mode", str), ("robots", "robots", str),
            ("frames a second", "frames_per_s", _one), ("most / least served", "ratio", _ratio),
            ("p50, ms", "latency_s.p50", _ms), ("p99, ms", "latency_s.p99", _ms), ("bit-equal", "equal_of", str),
            ("largest difference", "difference", _exponent), ("computed on the robot", "back", str),
            ("load average", "load_average", _one),
        ],
    )  # fmt: skip


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
                  "before": _measured(row.get("measured"))} for row in model["pairs"]],
                [("MB/s", "bytes_per_s", _mb), ("plan", "kind", str), ("undivided", "undivided", str),
                 ("a divided plan as it ran before", "before", str), ("pairs", "pairs", str),
                 ("ratio [95 %]", "times", str), ("fell back", "fell_back", str)],
            )  # fmt: skip
            lines.append("")
    return lines


def _measured(found: Any) -> str:
    """What mode ``split`` had measured of a divided plan when it chose."""
    if not found or found["ratio"] is None:
        return "-"
    verdict = "used" if found["used"] else "not used"
    return f"{_interval(found['ratio'])} over {found['pairs']} pairs: {verdict}"


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
            ("torch, ms of processor time", "eager_ms", _one),
            ("engine, ms", "engine_ms", _one),
            ("times as fast", "faster_cpu", _s),
            ("by wall clock", "faster_wall", _s),
            ("off torch", "error", _exponent),
            ("off float64", "error64", _exponent),
            ("torch off float64", "eager_error64", _exponent),
            ("until ready, s of processor time", "first_cpu_s", _one),
            ("at a second start", "again_cpu_s", _one),
        ],
    )
    calls: List[Column] = [("link", "link", str), ("mode", "mode", str), ("engine", "engine", str),
                           ("torch, ms", "eager_ms", _one), ("engine, ms", "engine_ms", _one),
                           ("times as fast", "faster", _s)]  # fmt: skip
    lines += ["", f"## Calls of a robot, {record['model']}", "", *_table(record["links"], calls)]
    lines += ["", "## What is held", ""]
    return lines + _table(record["bars"], [("bar", "name", str), ("value", "value", str), ("met", "met", _yes)])


def _one(value: float) -> str:
    return f"{value:.1f}"


TABLES: Dict[str, Callable[[Any], List[str]]] = {
    "kapao_tracking": _run,
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
    "adaptive_launch": _adaptive_launch,
    "modes": _modes,
    "busy": _busy,
    "engines": _engines,
    "every_frame": _every_frame,
    "in_flight": _in_flight,
    "multitask": _multitask,
    "chaos": _chaos,
    "chaos_split": _chaos,
    "chaos_in_flight": _chaos,
    "chaos_carry": _chaos_carry,
    "chaos_turns": _chaos_carry,
    "chaos_pool": _chaos_pool,
    "chaos_promise": _chaos_carry,
    "robots": _robots,
    "robots_front": _robots,
    "robots_modes": _held_robots,
    "fuzz": _fuzz,
    "fuzz_messages": _fuzz,
    "fuzz_strangers": _fuzz,
    "people": _people,
    "carry": _carry,
    "sconet": _sconet,
    "papers": _papers,
    "codecs": _codecs,
    "programs": corpus.programs,
    "programs_link": corpus.over_a_link,
    "pool": _pool,
    "fleet": _fleet,
}
