"""Pages of harm done on purpose: faults, and hostile messages."""

from __future__ import annotations

from typing import Any, List, Sequence

from generate.tables import Column, mb, ms, s, table, yes

_FRAMES: List[Column] = [
    ("scenario", "scenario", str),
    ("passed", "passed", yes),
    ("frames", "figures.frames", str),
    ("remote", "figures.remote", str),
]


def chaos(record: Any) -> List[str]:
    """The page of ``chaos``."""
    return table(
        record,
        [
            *_FRAMES,
            ("local p99, ms", "figures.local_p99_s", ms),
            ("p99 in the fault, ms", "figures.during_p99_s", ms),
            ("most, ms", "figures.during_max_s", ms),
            ("waited in vain", "figures.waited", str),
            ("back after, s", "figures.back_s", s),
            ("robot, MB before → after", "figures.robot.memory", lambda m: f"{mb(m[0])} → {mb(m[1])}"),
            ("server, MB before → after", "figures.server.memory", lambda m: f"{mb(m[0])} → {mb(m[1])}"),
        ],
    )


def chaos_pool(record: Any) -> List[str]:
    """The page of ``chaos pool_*``."""
    return table(
        record,
        [
            *_FRAMES,
            ("longest time without the server, s", "figures.gap_s", s),
            ("local p99, ms", "figures.local_p99_s", ms),
            ("p99 in the fault, ms", "figures.during_p99_s", ms),
        ],
    )


def chaos_carry(record: Any) -> List[str]:
    """The page of ``chaos --carry``, ``--turns`` and ``--accuracy``."""
    rows = [{**row, "from": ", ".join(f"{origin} {count}" for origin, count in row["figures"]["origins"].items())}
            for row in record]  # fmt: skip
    turns: List[Any] = []
    if all("turns" in row["figures"] for row in record):
        rows = [{**row, "turns": ", ".join(f"{task} {count}" for task, count in row["figures"]["turns"].items())}
                for row in rows]  # fmt: skip
        turns = [("turns", "turns", str), ("two at once", "figures.two_outstanding", str)]
    if any(row["figures"].get("followed") for row in record):
        turns = [*turns, ("frames that turns chose", "figures.followed", str)]
    return [
        "Frames come 20 times a second; each that is taken up leaves once, in order, with the newest result there is.",
        "",
        *table(
            rows,
            [
                ("scenario", "scenario", str),
                ("passed", "passed", yes),
                ("frames left", "figures.left", str),
                ("with results", "from", str),
                ("p99 after the frame, ms", "figures.late_p99_s", ms),
                *turns,
                ("inferences", "figures.frames", str),
                ("remote", "figures.remote", str),
                ("back after, s", "figures.back_s", s),
            ],
        ),
    ]


def fuzz(record: Any) -> List[str]:
    """The page of ``bench fuzz``."""
    facts = [
        ("messages", record["messages"]),
        ("connections of strangers", record["connections"]),
        ("seconds", round(record["seconds"])),
        ("strangers let in", record["strangers"]["let in"]),
        ("most bytes told to a stranger", record["strangers"]["most bytes told"]),
        ("checks of honest sessions", record["checks"]),
        ("calls that ended their own session", sum(record["crashes"].values())),
        ("server's memory, MB: begin", mb(record["server_begin"]["memory"])),
        ("end", mb(record["server_end"]["memory"])),
        ("failures", len(record["failures"])),
    ]
    kinds = [{"kind": kind, "count": count} for kind, count in record["sent"].items()]
    outcomes = [{"kind": kind, "count": count} for kind, count in record["outcomes"].items()]
    rows = [{"what": what, "value": value} for what, value in facts]
    lines = table(rows, [("what", "what", str), ("value", "value", str)])
    for head, counted in (("sent", kinds), ("what came of it", outcomes)):
        lines += ["", *table(counted, [(head, "kind", str), ("count", "count", str)])]
    columns: List[Column] = [
        ("messages", "messages", str),
        ("connections", "connections", str),
        ("server, MB", "memory", mb),
    ]
    return [*lines, "", *table(_spread(record["memory_over_time"]), columns)]


def _spread(points: Sequence[Any], most: int = 8) -> List[Any]:
    """At most ``most`` + 1 of ``points``, evenly, with the first and the last."""
    steps = min(most, len(points) - 1)
    return [points[round(number * (len(points) - 1) / max(steps, 1))] for number in range(steps + 1)]
