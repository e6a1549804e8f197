"""Pages of the corpus of other people's programs."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, List, Sequence

from generate.tables import Column, cell, exponent, ms, s, table, yes


def programs(record: Any) -> List[str]:
    """The page of ``bench programs``."""
    ran = record["programs"]
    packages = "; ".join(f"in environment {name}: {', '.join(found)}" for name, found in record["packages"].items())
    said = f"{len(ran)} programs, {record['inferences']} inferences each; {packages}."
    columns: List[Column] = [
        ("program", "program", str),
        ("passed", "passed", str),
        ("off the plain CPU", "plain_error", exponent),
        ("first inference, round trips", "modes.replay.first_trips", str),
        ("steady: per_op", "modes.per_op.steady_trips", _whole),
        ("lazy", "modes.lazy.steady_trips", _whole),
        ("replay", "modes.replay.steady_trips", _whole),
        ("ms, steady: local", "modes.local.median_s", ms),
        ("lazy", "modes.lazy.median_s", ms),
        ("replay", "modes.replay.median_s", ms),
        ("split: divided", "modes.split.split.inferences", str),
        ("off mode local", "modes.split.off", exponent),
        ("sources", "sources", str),
        ("of per_op and split", "modes.split.sources", str),
        ("why not", "why", str),
    ]
    rows = []
    for item in ran:
        modes = item["modes"]
        passed = [mode for mode, row in modes.items() if row["verdict"] == "passed"]
        failed = [f"{mode}: {row['verdict']}, {row['reason']}" for mode, row in modes.items() if mode not in passed]
        rows.append({**item, "passed": ", ".join(passed), "why": "; ".join(failed) or None})
    return [said, "", *_steadiness(ran), *_undivided(ran), *_far(ran), *table(rows, columns)]


def _far(programs: Sequence[Any]) -> List[str]:
    """Programs that are farther from the plain CPU than 1e-6, and how far their operators are."""
    far = [item for item in programs if item.get("operators")]
    if not far:
        return []
    columns: List[Column] = [
        ("more than 1e-6 off the plain CPU", "program", str),
        ("off", "plain_error", exponent),
        ("its operators, each alone, at most", "worst", exponent),
        ("which", "names", str),
        ("its results, when each convolution is off by one unit in the last place", "operators.grown", exponent),
    ]
    rows = []
    for item in far:
        worst = {name.rsplit(".", 1)[-1]: off for name, off in item["operators"]["worst"].items()}
        names = ", ".join(f"{name} {off:.1e}" for name, off in worst.items()) or "none is off"
        rows.append({**item, "worst": max(worst.values(), default=0.0), "names": names})
    return [*table(rows, columns), ""]


def _undivided(programs: Sequence[Any]) -> List[str]:
    """What mode split divides, and why it divides nothing of the others."""
    ran = [item["modes"]["split"]["split"] for item in programs if item["modes"].get("split", {}).get("split")]
    if not ran:
        return []
    told = [line for row in ran for line in row["said"]]
    whole: Counter[str] = Counter()
    for line in told:
        _, found, names = line.partition("in one piece: ")
        whole.update(name.split(" ", 1)[1] for name in (names.split(", ") if found else ()))
    reasons = [line.split(" is computed here: ")[1] for line in told if " is computed here: " in line]
    reasons += [line.split(" was not opened: ")[1] for line in told if " was not opened: " in line]
    why = Counter(re.sub(r"inference \d+", "the inference", reason)[:100] for reason in reasons)
    recorded = sum(any(" is recorded: " in line for line in row["said"]) for row in ran)
    first = ", ".join(f"{name} {count}" for name, count in whole.most_common(12))
    lines = [
        f"- Mode split, of {len(ran)}: an inference was recorded in {recorded}, divided between robot and server in "
        f"{sum(bool(row.get('inferences')) for row in ran)} (in the 20 that were made).",
        f"- Operators that run in one piece, by the number of inferences that have them: {first or 'none'}.",
    ]
    lines += [f"- Computed by the robot alone, {count} times: {cell(reason)}" for reason, count in why.most_common()]
    return [*lines, ""]


def _whole(value: float) -> str:
    return f"{value:g}"


def _steadiness(programs: Sequence[Any]) -> List[str]:
    """How many programs are as they are promised to be in mode replay."""
    pairs = [(item["modes"]["lazy"], item["modes"]["replay"], item["program"]) for item in programs]
    both = [(lazy, replay, name) for lazy, replay, name in pairs if replay["steady_trips"] and lazy["steady_trips"]]
    one = [name for _, replay, name in both if replay["steady_trips"] == 1.0]
    soon = [name for lazy, replay, name in both if replay["first_trips"] <= 1.5 * lazy["steady_trips"] + 10]
    more = ", ".join(f"{name} {replay['steady_trips']:g}" for _, replay, name in both if name not in one)
    late = ", ".join(f"{name} {replay['first_trips']}" for _, replay, name in both if name not in soon)
    modes = list(dict.fromkeys(mode for item in programs for mode in item["modes"]))
    rows = {mode: [item["modes"][mode]["verdict"] for item in programs if mode in item["modes"]] for mode in modes}
    passed = ", ".join(f"{mode} {found.count('passed')} of {len(found)}" for mode, found in rows.items())
    every = sum(all(row["verdict"] == "passed" for row in item["modes"].values()) for item in programs)
    return [
        f"- Passed, with the bits of mode local (in mode split within 1e-5): {passed}; {every} of {len(programs)} in"
        " every mode in which they were run.",
        f"- One round trip a steady inference in mode replay: {len(one)} of {len(both)}; more: {more or 'none'}.",
        f"- First inference within 1.5 times the steady round trips of lazy and 10 more: {len(soon)} of {len(both)};"
        f" not: {late or 'none'}.",
        "",
    ]


def over_a_link(record: Any) -> List[str]:
    """The page of ``bench programs --against``."""
    ran = [row for row in record["programs"] if "ratio" in row]
    failed = [f"{row['program']} ({row['problem']})" for row in record["programs"] if "problem" in row]
    mine, other = record["modes"]
    ratios, sure = sorted(row["ratio"] for row in ran), [row for row in ran if row["low"] <= 1.1]
    said = (
        f"{len(ran)} programs over {record['link']}, {ran[0]['pairs']} pairs each: up to 1.1 in "
        f"{sum(ratio <= 1.1 for ratio in ratios)}, or within the interval in {len(sure)}; worst {ratios[-1]:.2f}. "
        f"Bits equal in {sum(row['equal'] == row['inferences'] for row in ran)}; failed: {', '.join(failed) or 'none'}."
    )
    columns: List[Column] = [
        ("program", "program", str),
        ("inputs vary in size or course", "varies", yes),
        (f"time, {mine} over {other}", "ratio", s),
        ("from", "low", s),
        ("to", "high", s),
        (f"ms, {mine}", f"modes.{mine}.median_s", ms),
        (f"ms, {other}", f"modes.{other}.median_s", ms),
        (f"round trips, {mine}", f"modes.{mine}.steady_trips", str),
        (other, f"modes.{other}.steady_trips", str),
        ("first time of a fourth length", f"modes.{mine}.new_trips", str),
        ("learning, share of time", "learning_share", s),
        ("ms at most", "learning_s", ms),
        ("load of the machine", "load", s),
    ]
    return [said, "", *table(ran, columns)]
