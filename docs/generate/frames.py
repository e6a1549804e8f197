"""Pages of results for every frame, and of several networks on one robot."""

from __future__ import annotations

from typing import Any, List

from generate.tables import Column, kb, mb, ms, percent, ratio, s, table, yes


def carry(record: Any) -> List[str]:
    """The page of ``bench carry``."""
    people, scenes = record["people"], record["scenes"]
    return [
        f"People found by {people['model']} in frames {people['frames'][0]} to {people['frames'][1] - 1} of "
        f"{people['video']} and tracked, so many frames later; F1 at IoU 0.5 against people labelled by hand.",
        "",
        *table(
            people["rows"],
            [
                ("frames old", "late", str),
                ("result", "method", str),
                ("F1", "f1", ratio),
                ("95 %, from", "f1_interval.0", ratio),
                ("to", "f1_interval.1", ratio),
                ("recall", "recall", ratio),
                ("precision", "precision", ratio),
            ],
        ),
        "",
        f"Scenes of {scenes['cells']}x{scenes['cells']}x32 voxels in {scenes['worlds']} streets and as many rooms;"
        " completion IoU.",
        "",
        *table(
            scenes["rows"],
            [
                ("robot", "motion", str),
                ("sweeps old", "late", str),
                ("held", "held", ratio),
                ("carried", "carried", ratio),
                ("fresh", "fresh", ratio),
                ("closed", "closed", percent),
                ("column fill", "local", ratio),
            ],
        ),
        "",
        *table(
            record["cost"],
            [
                ("processor time", "what", str),
                ("one frame, ms", "step_ms.p50", s),
                ("p99", "step_ms.p99", s),
                ("8 caught up, ms", "catch_up_ms.p50", s),
                ("p99", "catch_up_ms.p99", s),
                ("ring over 10,000 frames, MB", "ring_bytes", mb),
            ],
        ),
    ]


def in_flight(record: Any) -> List[str]:
    """The page of ``bench in-flight``."""
    kinds = (("twice the rate that one reaches", "fast"), ("10 Hz", "camera"))
    rows = [
        {"camera": words, "many": many, **record[kind][side]}
        for words, kind in kinds
        for many, side in ((1, "one"), (2, "two"))
    ]
    lines = [f"{record['model']}, mode {record['mode']}, link {record['link']}; a robot that computes by itself "
             f"is slowed {record['slowdown']:g} times; load average {record['load_average']:.1f} on {record['cores']} "
             "cores.", ""]  # fmt: skip
    lines += table(
        rows,
        [
            ("camera", "camera", str),
            ("in flight", "many", str),
            ("results a second", "results_per_s", s),
            ("mean, ms", "latency_s.mean", ms),
            ("p50, ms", "latency_s.p50", ms),
            ("p99, ms", "latency_s.p99", ms),
            ("behind own frames, ms", "behind_s", ms),
            ("results", "results", str),
            ("fell back", "fell_back", str),
            ("superseded", "superseded_share", percent),
        ],
    )
    lines += ["", "Two to one, all blocks together:", ""]
    return lines + table(record["bars"], [("bar", "name", str), ("value", "value", str), ("met", "met", yes)])


def every_frame(record: Any) -> List[str]:
    """The page of ``bench every-frame``."""

    def counted(value: Any) -> str:
        return ", ".join(f"{name} {count}" for name, count in value.items())

    lines = [f"{record['seconds']:g} s of results of each launch file; images and sweeps every "
             f"{1e3 * record['interval_s']:.0f} ms, grids of {record['cells']} x {record['cells']}; load average "
             f"{record['load_average']:.1f} on {record['cores']} cores. Delays are from a frame's stamp to its result.",
             ""]  # fmt: skip
    lines += table(
        record["rows"],
        [
            ("launch file", "launch", str),
            ("task", "task", str),
            ("frames", "frames", str),
            ("superseded", "superseded", str),
            ("results", "results_by_origin", counted),
            ("inferences", "inferences_by_mode", counted),
            ("p50, ms", "delay_s.p50", ms),
            ("p99, ms", "delay_s.p99", ms),
            ("robot slowed", "slowdown", str),
        ],
    )
    return [*lines, "", *table(record["bars"], [("bar", "name", str), ("value", "value", str), ("met", "met", yes)])]


def multitask(record: Any) -> List[str]:
    """The page of ``bench multitask``."""

    def drop(value: Any) -> str:
        return f"{value['mean']:.4f} ({value['low']:.4f} to {value['high']:.4f})"

    def of_pattern(value: Any) -> str:
        return f"{value['mean']:.3f} ({value['low']:.3f} to {value['high']:.3f})"

    def weights(value: Any) -> str:
        people, scene = value
        return f"{people / scene:g}:1" if people > scene > 0 else f"1:{scene / people:g}" if people else "0:1"

    def ages(value: Any) -> str:
        return ", ".join(f"{age:.2f}" for age in value)

    frames = ", ".join(f"{task} {value}" for task, value in record["latency_frames"].items())
    lines = [
        f"Virtual time at {record['rate_hz']:g} Hz; frames from an offload to its result: {frames}. Drops are 0 to 1, "
        "against the network's own result for the frame; intervals are 95 %, by bootstrap over blocks of 2 s.",
        "",
        "## Turns, the best fixed pattern and the ceiling",
        "",
        "Weighted drop on the held-out part, in that of the fixed pattern (people:scene) that was best on the training "
        "part. true rates: turns that know the rates about now; plan: all plans searched (`edge-offload turns plan`) "
        "in the place of the rule; ceiling: the offline optimum.",
        "",
    ]
    for words, rows in (
        ("Without local algorithms", record["weights"]),
        ("With local algorithms", [{"weights": row["weights"], **row["with_local"]} for row in record["weights"]]),
    ):
        lines += [f"{words}:", ""]
        columns: List[Column] = [("weights", "weights", weights), ("pattern", "pattern", str)]
        columns += [("its drop", "best_pattern", drop), ("turns", "turns_ratio", of_pattern)]
        columns += [("true rates", "true_rates_ratio", of_pattern), ("plan", "plan_ratio", of_pattern)]
        columns += [("ceiling", "optimum_ratio", of_pattern)]
        lines += [*table(rows, columns), ""]
    equal = [row for row in record["rows"] if row["weights"] == [0.5, 0.5]]
    lines += ["## Every schedule at 1:1", ""]
    lines += ["Labels: frames of the video with labelled people; what the streets are really like.", ""]
    lines += table(
        equal,
        [
            ("schedule", "schedule", str),
            ("local algorithm", "local", yes),
            ("weighted drop", "weighted", drop),
            ("people", "people", lambda value: f"{value:.4f}"),
            ("scene", "scene", lambda value: f"{value:.4f}"),
            ("people's share of turns", "people_share", percent),
            ("kB a second", "bytes_per_s", kb),
            ("J a second", "joules_per_s", s),
            ("people, F1 by labels", "people_f1", ratio),
            ("scene, IoU by labels", "scene_iou", ratio),
        ],
    )
    lines += ["", "## Over emulated links", ""]
    lines += ["Weighted drop of turns over that of the search of all plans; ages of people and scene, s.", ""]
    columns = [("link", "link", str), ("share of it", "share", str), ("runs", "runs", str), ("mean", "mean", ratio)]
    columns += [("least", "least", ratio), ("most", "most", ratio)]
    columns += [(f"ages, {name}", f"{name}_stale_s", ages) for name in ("turns", "plan")]
    lines += table(record["links"], columns)
    lines += ["", "## Results that are old, by labels", "", "People: F1 at an overlap of 0.5.", ""]
    methods = ("fresh", "held", "velocity", "carried")
    columns = [("frames old", "age", str), ("labelled frames", "frames", str)]
    lines += table(record["people"], columns + [(method, f"f1.{method}", ratio) for method in methods])
    lines += ["", "Scene: completion IoU; carrying closes so much of the distance from held to fresh.", ""]
    columns = [("sweeps old", "age", str), ("robot", "robot", str), ("sweeps", "sweeps", str)]
    columns += [(method, method, ratio) for method in ("fresh", "held", "carried")]
    columns += [("closes", "closes", percent), ("closes, by the network's own result", "closes_network", percent)]
    lines += [*table(record["scene"], columns), "", *_real(record.get("real")), "## What is held", ""]
    return lines + table(record["bars"], [("bar", "name", str), ("value", "value", str), ("met", "met", yes)])


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
    shown = table(
        rows,
        [
            ("task", "task", str),
            ("", "where", str),
            ("latency of a turn, s", "latency_s", s),
            ("turns a second", "turns_per_s", s),
            ("age of what is shown, s", "stale_s", s),
            ("drop", "drop", ratio),
            ("age where compared, s", "drop_stale_s", s),
        ],
    )
    return [*lines, *shown, ""]
