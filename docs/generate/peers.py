"""The page of results of ``bench peers``: the product beside its peers."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from generate.tables import table

#: Quantities of rows, as the page names them.
NAMES = {
    "start": "start to first result, ms",
    "first": "first inference, ms",
    "steady": "inference, ms",
    "robot_cpu": "processor of the robot, ms",
    "server_cpu": "processor of the server, ms",
    "answers": "answers per second",
}


def peers(record: Any) -> List[str]:
    """A table for each program and link, and what could not be measured."""
    lines: List[str] = []
    cases: Dict[str, List[Any]] = {}
    for row in record["rows"]:
        cases.setdefault(f"{row['program']}, {row['link']}", []).append(row)
    for case, rows in cases.items():
        names = list(rows[0]["medians"])
        differing = sorted({name for row in rows for name in row["differing"]})
        lines += [f"## {case}", ""]
        lines += table(
            [
                {**row, "shown": _scale_medians(row), "verdict": "**behind**" if row["behind"] else "holds"}
                for row in rows
            ],
            [
                ("", "quantity", lambda quantity: NAMES[quantity]),
                *((name, f"shown.{name}", str) for name in names),
                ("ours over the best peer [95 %]", "ratio", lambda of: f"{of[0]:.3f} [{of[1]:.3f}, {of[2]:.3f}]"),
                ("best peer", "best", str),
                ("rounds", "rounds", str),
                ("bar 1.02", "verdict", str),
            ],
        )
        lines += ["", f"Other bits than the product's: {', '.join(differing) or 'none'}.", ""]
    lines += [f"* {name} is not installed: {reason}" for name, reason in record["absent"].items()]
    lines += [f"* {name} failed: {reason}" for name, reason in record["failed"].items()]
    return [*lines, "", f"Load average {record['load_average']:.1f}."]


def _scale_medians(row: Mapping[str, Any]) -> Dict[str, str]:
    scale = 1.0 if row["quantity"] == "answers" else 1e3
    return {name: f"{value * scale:.1f}" for name, value in row["medians"].items()}
