"""Pages of many robots on one server, and of pools of GPUs."""

from __future__ import annotations

import itertools
from typing import Any, List, Tuple

from generate.tables import Column, cell, exponent, ms, percent, ratio, table, tenths


def pool(record: Any) -> List[str]:
    """The page of ``bench pool``."""
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
    lines += table(loads, [*columns, *((name, name, lambda value: f"{value:.2f}") for name in systems)])
    lines += ["", "| figure | |", "| --- | --- |"]
    for name, values in record["summary"].items():
        shown = ", ".join(f"{of} {value:.3f}" for of, value in values.items())
        lines.append(f"| {cell(name)} | {cell(shown)} |")
    parts = (
        ("planning", _pool_planning), ("real", _pool_real), ("faults", _pool_faults), ("networks", _pool_networks),
        ("costs", _pool_costs),
    )  # fmt: skip
    return [*lines, *itertools.chain.from_iterable(show(record.get(name)) for name, show in parts)]


def pool_schedulers(record: Any) -> List[str]:
    """The page of ``bench pool-schedulers``."""

    def attained(value: Any) -> str:
        return f"{100 * value:.2f} %"

    columns: List[Column] = [
        ("cluster", "cluster", str),
        ("plan", "plan", str),
        ("share of its rate", "at", lambda value: f"{value:g}"),
        ("groups", "groups", str),
        ("in time, deadlines", "deadlines", attained),
        ("in time, reserved", "reserved", attained),
        ("gain, mean", "gain", lambda value: f"{100 * value:+.2f}"),
        ("gain, least of a group", "least_gain", lambda value: f"{100 * value:+.2f}"),
    ]
    lines = [f"{record['seeds']} seeds of {record['seconds']:g} s; gains of deadlines over reserved in points of "
             "percent. Requests in time, mean over networks and groups:", "",
             *table(record["summary"], columns)]  # fmt: skip
    rows = [
        {
            **{name: row[name] for name in ("cluster", "plan", "at")},
            "networks": ", ".join(row["networks"]),
            **{name: f"{100 * row[name]['mean']:.2f} ± {100 * row[name]['spread']:.2f}"
               for name in ("deadlines", "reserved", "gain")},
        }
        for row in record["rows"]
    ]  # fmt: skip
    each: List[Column] = [*columns[:3], ("networks", "networks", str)]
    lines += ["", "Each group, in percent, with the standard deviation over seeds:", ""]
    return [*lines, *table(rows, [*each, *((name, name, str) for name in ("deadlines", "reserved", "gain"))])]


def _pool_planning(rows: Any) -> List[str]:
    if not rows:
        return []
    columns: List[Column] = [
        ("planned", "what", str),
        ("stages, at most", "stages", str),
        ("plans", "plans", str),
        ("s of processor, mean", "mean_s", lambda value: f"{value:.3f}"),
        ("s of processor, most", "most_s", lambda value: f"{value:.3f}"),
    ]
    lines = ["", "## What a plan takes", "", "`edge-offload bench pool --planning`: for 25 + 75 GPUs of the four "
             "clusters, with 0.8 and all of the links; networks alone at margins of 0.1 and 0.4, and the groups above.",
             ""]  # fmt: skip
    return [*lines, *table(rows, columns)]


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
    return [*lines, *(f"| {cell(name)} | {cell(value)} |" for name, value in rows)]


def _pool_faults(rows: Any) -> List[str]:
    if not rows:
        return []
    names = {
        "fault": "a machine's", "faults": "times", "requests": "requests", "stranded": "under way there",
        "could": "could be in time elsewhere", "did": "were", "refused": "refused, of all", "lost": "lost",
    }  # fmt: skip
    lines = ["", "## Faults under load, on Ray", "", "`edge-offload bench pool --faults`: as above, at "
             f"{rows[0]['load']:g} of the planned rate, each request within {rows[0]['slo_s']:.1f} s; processes of one "
             "machine are killed or stopped from outside.", ""]  # fmt: skip
    if "beyond_s" in rows[0]:
        late = ", ".join(f"{1e3 * row['beyond_s']:.0f}" for row in rows)
        lines[-2] += f" What could be in time allows for what three calls cost beyond their time ({late} ms)."
    return [*lines, *table(rows, [(title, name, str) for name, title in names.items()])]


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
    return [*lines, *table(rows, columns)]


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
        *((f"of this, {name}", _some_ms(cpu_s)) for name, cpu_s in found["frame_cpu_by_s"].items()),
        (
            "the same processes with a server and 16 robots, without frames",
            f"{100 * found['without_frames_cores']:.1f} % of a core",
        ),
        ("both, a frame of 20 a second", f"{1e3 * found['frame_cpu_all_s']:.1f} ms"),
        ("the same, from robot to robot, p50", f"{1e3 * found['p50_s']:.1f} ms"),
        *_pool_often(found.get("often")),
    ]
    lines = ["", "## What it costs", "", "`edge-offload bench pool --costs`; memory is shared out among who shares it, "
             "the robot's processor time does not count.", "", "| figure | |", "| --- | --- |"]  # fmt: skip
    return [*lines, *(f"| {cell(name)} | {cell(value)} |" for name, value in rows)]


def _some_ms(seconds: float) -> str:
    """With what is left of two sums, which may be less than nothing by a rounding, as nothing."""
    return f"{round(1e3 * seconds, 1) + 0.0:.1f} ms"


def _pool_often(found: Any) -> List[Tuple[str, str]]:
    if not found:
        return []
    by_s, per_s = found["frame_cpu_by_s"], found["per_s"]
    return [
        (f"where there are {per_s} a second, a frame adds", f"{1e3 * sum(by_s.values()):.1f} ms"),
        *((f"of this, {name}", _some_ms(cpu_s)) for name, cpu_s in by_s.items()),
        (
            f"{per_s} a second: frames, answered, p50",
            f"{found['frames']}, {found['answered']}, {1e3 * found['p50_s']:.1f} ms",
        ),
    ]


def fleet(record: Any) -> List[str]:
    """The page of ``bench fleet``."""
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
    lines += table(
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
    lines += [f"| {cell(name)} | {value:.2f} |" for name, value in record["summary"].items()]
    lines += ["", "Settings that the search found, where a baseline has any:", ""]
    lines += [f"- {row['content']}, {row['bound']:g}, {row['device']}: {row['settings']}" for row in rows]
    if record.get("real"):
        lines += ["", "With `--real`: a server process on the emulated device, robots without torch, real sockets.", ""]
        lines += table(
            record["real"],
            [
                ("device", "device", str),
                ("robots that ask", "robots", str),
                ("held at the end", "held", str),
                ("for 20 s and more", "judged", str),
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
    return [*lines, *_fleet_network(record.get("network")), *_fleet_misbehave(record.get("misbehave"))]


def _fleet_misbehave(found: Any) -> List[str]:
    if not found:
        return []
    lines = ["", "With `--misbehave`: beside robots that do. Counted are the others; the first row is without "
             "them.", ""]  # fmt: skip
    lines += table(
        found,
        [
            ("device", "device", str),
            ("beside", "beside", str),
            ("robots that ask", "robots", str),
            ("held at the end", "held", str),
            ("for 20 s and more", "judged", str),
            ("promises broken", "broken", str),
            ("bound", "bound", lambda value: f"{value:g}"),
            ("drop, most", "drop_most", lambda value: f"{value:.4f}"),
            ("windows within", "windows_within", lambda value: f"{value:.1%}"),
            ("late", "late", lambda value: f"{value:.1%}"),
        ],
    )
    fates = [
        {"device": row["device"], "robot": habit, "interval": None, **fate, "words": fate.get("note") or fate["alone"]}
        for row in found
        for habit, fate in row["misbehave"].items()
    ]
    columns: List[Column] = [(name, name, str) for name in ("device", "robot", "sent", "answered")]
    columns += [("frames between results", "interval", lambda value: "" if value is None else f"{value:.1f}")]
    return [*lines, "", *table(fates, [*columns, ("what the server says of it, or it of the server", "words", str)])]


def _fleet_network(found: Any) -> List[str]:
    if not found:
        return []
    rows = [
        ("robots that ask, promised", f"{found['robots']}, {found['held']}"),
        ("bound", f"{found['bound']:g}"),
        ("sessions judged, promises broken", f"{found['judged']}, {found['broken']}"),
        ("drop over the robot alone, mean and largest", f"{found['drop_mean']:.4f}, {found['drop_most']:.4f}"),
        ("windows within 1.5 times the bound", f"{found['windows_within']:.1%}"),
        ("frames that came too late for their batch", f"{found['late']:.1%}"),
        ("device idle", f"{found['idle']:.0%}"),
        ("a frame alone takes", f"{1e3 * found['network_s']:.0f} ms"),
        ("frames sent, answered", f"{found['sent']}, {found['answered']}"),
        ("of the last results of each robot, other than the network's own", str(found["other_results"])),
    ]
    lines = ["", "With `--network`: a real network on one core, robots replay the sample video; every frame's drop is "
             "measured against the network's own results.", "", "| figure | |", "| --- | --- |"]  # fmt: skip
    return [*lines, *(f"| {cell(name)} | {cell(value)} |" for name, value in rows)]


def robots(record: Any) -> List[str]:
    """The page of ``bench robots``."""
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
        ("most served over least served", ratio(record["ratio"])),
        ("refused", record["refused"]),
        ("failed", record["failed"]),
        ("mean latency, ms", ms(record["latency_s"]["mean"])),
        ("p99, ms", ms(record["latency_s"]["p99"])),
        ("growth of the server's memory", percent(record["memory_growth"])),
    ]
    return table(
        [{"what": what, "value": value} for what, value in rows], [("what", "what", str), ("value", "value", str)]
    )


def held_robots(records: Any) -> List[str]:
    """The page of ``bench robots --mode``."""
    rows = sorted(records, key=lambda record: (record["model"], record["mode"], record["robots"]))
    for row in rows:
        row["equal_of"] = f"{row['equal']} of {row['checked']}"
        row["back"] = "; ".join(f"{count} x {reason}" for reason, count in row["fell_back"].items()) or "none"
    return table(
        rows,
        [
            ("model", "model", str), ("mode", "mode", str), ("robots", "robots", str),
            ("frames a second", "frames_per_s", tenths), ("most / least served", "ratio", ratio),
            ("p50, ms", "latency_s.p50", ms), ("p99, ms", "latency_s.p99", ms), ("bit-equal", "equal_of", str),
            ("largest difference", "difference", exponent), ("computed on the robot", "back", str),
            ("load average", "load_average", tenths),
        ],
    )  # fmt: skip
